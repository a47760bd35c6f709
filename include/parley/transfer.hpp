#pragma once
/// Send and receive between pairs of ranks, each pair running one config of several: the fastest, found out while the
/// program runs.
///
///     transfer acts(self, {
///         .name    = "activations",
///         .role    = [](rank_id r) { return r == 0 ? role::sender : role::receiver; },
///         .configs = {configs::direct(), configs::chunked(256_KiB), configs::chunked(1_MiB, 4)}});
///     if (self.id() == 0) co_await acts.send(batch, {.to = 1});
///     else                auto bytes = co_await acts.receive(batch, {.from = 0});
///
/// The k-th sender is paired with the k-th receiver, ranks ascending, unless `edges` says otherwise; other roles are idle
/// and exchange nothing. All ranks declare the same roles. Calls of one tag are matched in their order; tags are independent
/// of each other. A receive refuses a message that has no room in it, or that is of another type of elements (bytes go with all):
/// both ends throw, the sender at its next call where its own message had left by then. Awaiting a call throws `failure` (see error.hpp); `attempt` turns that into a value:
///
///     auto sent = co_await attempt(acts.send(batch, {.to = 1}));      // result<>
#include <parley/agreement.hpp>
#include <parley/config.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/edges/calls.hpp>
#include <parley/registered_memory.hpp>
#include <parley/role.hpp>
#include <parley/when.hpp>
#include <parley/work.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::ops {

class declared_edge;
struct op_host;
class p2p;
class p2p_end;
class rank;

struct transfer_options {
  std::string name;
  std::function<ops::role(rank_id)> role{};
  /// Sender and receiver of each pair; empty: by their order.
  std::vector<std::pair<rank_id, rank_id>> edges{};
  std::vector<config_ptr> configs{configs::direct()};
  tuning::constraints constraints{};        ///< what this rank's user demands of all configs but the default
  capability_function can_run{};            ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where its buffers lie, such as a GPU's; null: in host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
};

struct send_options {
  rank_id to = 0;
  std::uint32_t tag = 0;
  /// 0: the op's. A send that has put into memory of a rank that computes without polling ends later: when that polls, or is gone.
  std::chrono::nanoseconds timeout{};
};
struct receive_options {
  rank_id from = 0;
  std::uint32_t tag = 0;
  std::chrono::nanoseconds timeout{};
  std::uint64_t expected = 0;  ///< what `cuda_copies::expect` answered, if a stream is to wait for it
};

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op. An op is light, too, until it is first used
/// here, by a call or by what its other ranks send for it.
class transfer {
 public:
  /// Of no op: this rank is idle in it.
  transfer() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  transfer(rank& self, const transfer_options& op);
  /// The buffer must stay until the call has ended. Throws `bad_argument` when this rank does not send to `o.to`.
  template <readable_buffer B>
  send_call send(B&& data, send_options o) {
    return {edge_to(o.to),
            std::as_bytes(std::span(data)),
            {.tag = o.tag, .timeout_ns = o.timeout.count(), .type = type_of_elements<B>()}};
  }
  /// Answers the number of bytes that came, at most those of `into`.
  template <writable_buffer B>
  receive_call receive(B&& into, receive_options o) {
    return {edge_from(o.from),
            std::as_writable_bytes(std::span(into)),
            {.tag = o.tag, .timeout_ns = o.timeout.count(), .expected = o.expected, .type = type_of_elements<B>()}};
  }
  /// The same for code that is no coroutine (parley/work.hpp): `auto sent = transfer.start_send(batch, {.to = 1});`
  template <readable_buffer B>
  runtime::work<> start_send(B&& data, send_options o, runtime::start_options s = {}) {
    check_caller();
    return runtime::start(*where_, send(std::forward<B>(data), o), std::move(s));
  }
  template <writable_buffer B>
  runtime::work<std::uint64_t> start_receive(B&& into, receive_options o, runtime::start_options s = {}) {
    check_caller();
    return runtime::start(*where_, receive(std::forward<B>(into), o), std::move(s));
  }
  /// Registers memory of this rank for puts and gets, with all pairs that it is in: receives into it may be put by their sender,
  /// sends from it may be got by their receiver. The handle must outlive the calls that use the memory. It is empty when none of
  /// the configs needs it. Throws `unavailable` when the machine refuses. See parley/registered_memory.hpp for what a sender
  /// that is declared dead means to the memory.
  ///
  ///     auto handle = transfer.registered(batch);
  ///     auto got = co_await transfer.receive(batch, {.from = 0});        // with `put`, if that is what was agreed on
  template <writable_buffer B>
  actors::registered_memory registered(B&& memory) {
    return register_bytes(std::as_writable_bytes(std::span(memory)));
  }

  /// A tuning phase, for those who want one: both ends call it, with the same sizes, and it ends when their configs for
  /// these sizes are agreed. It moves scratch data on a tag of its own; other calls may go on meanwhile.
  runtime::task<> tune(std::vector<std::uint64_t> sizes_bytes);

  /// What has been agreed with one partner, and wishes about it (agreement.hpp). Throw `bad_argument` where there is none.
  agreement to(rank_id peer) const;
  agreement from(rank_id peer) const;
  /// The same where this rank has only one partner, in one direction.
  agreement agreed() const;
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  /// What was agreed with `peer`, of messages to it, or else of those that come from it.
  ops::decision decision(std::uint64_t bytes, rank_id peer) const { return with(peer).decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }
  /// Of all partners: see `agreement::retune`.
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;

  /// Whether this rank has a part in it at all.
  bool idle() const noexcept { return outs_.empty() && ins_.empty(); }
  /// Payload bytes that this rank has received and had to copy into the caller's buffers: of messages so short that their payload
  /// comes with them, and of those that UCX brought before their receive was known; and of those up to 2 KiB that it has sent from copies,
  /// as nobody then has to wait for their buffers. Longer ones go directly.
  std::uint64_t copied_bytes() const noexcept;

 private:
  friend p2p;
  friend p2p_end;
  using edge_list = std::vector<std::pair<rank_id, rank_id>>;
  transfer(op_host& host, const transfer_options& op, const edge_list& edges,
           const std::shared_ptr<const std::vector<rank_id>>& restart_group);
  agreement with(rank_id peer) const;
  edge_out& edge_to(rank_id peer) const;
  edge_in& edge_from(rank_id peer) const;
  void check_caller() const;
  [[noreturn]] void throw_no_edge(const char* lacks, rank_id peer, const char* option) const;
  bool rejoin();
  std::uint64_t generation_with(rank_id peer) const;
  actors::registered_memory register_bytes(std::span<std::byte> memory);
  std::string name_;
  runtime::executor* where_ = nullptr;
  rank_id self_ = 0;
  std::vector<declared_edge*> outs_;
  std::vector<declared_edge*> ins_;
};

/// The failure of a call as a value.
template <class Call>
runtime::with_deadline<typename Call::value_type> attempt(Call&& call) {
  return {runtime::never, std::forward<Call>(call)};
}

/// The pairs of an op, or `role_conflict` / `bad_argument` saying which ranks and why. The same on all ranks.
runtime::result<std::vector<std::pair<rank_id, rank_id>>> pair_up(const transfer_options& op, rank_id world_size);

}  // namespace parley::ops
