#pragma once
/// Send and receive between pairs of ranks. Each pair runs the fastest of several configs. The pair finds that config while the program
/// runs.
///
///     transfer acts(self, {
///         .name    = "activations",
///         .role    = [](rank_id r) { return r == 0 ? role::sender : role::receiver; },
///         .configs = {configs::direct(), configs::chunked(256_KiB), configs::chunked(1_MiB, 4)}});
///     if (self.id() == 0) co_await acts.send(batch, {.to = 1});
///     else                auto bytes = co_await acts.receive(batch, {.from = 0});
///
/// The k-th sender is paired with the k-th receiver, in ascending order of ranks, unless `edges` says otherwise. Ranks with other roles are
/// idle and exchange nothing. All ranks declare the same roles. Calls of one tag are matched in their order; tags are independent of each
/// other. A receive refuses a message that does not fit into its buffer, or that has another type of elements (bytes match every type).
/// Then both ends throw; if the sender's call has already ended, the sender's next call throws. Awaiting a call throws `failure` (see
/// error.hpp); `attempt` turns the failure into a value:
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
  /// The sender and the receiver of each pair; empty: senders and receivers are paired in ascending order of ranks.
  std::vector<std::pair<rank_id, rank_id>> edges{};
  std::vector<config_ptr> configs{configs::direct()};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where the buffers lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
};

struct send_options {
  rank_id to = 0;
  std::uint32_t tag = 0;
  /// 0: the op's. A send by `put` may end after its timeout: if the receiving rank computes without polling, the send ends when that rank
  /// polls or is gone.
  std::chrono::nanoseconds timeout{};
};
struct receive_options {
  rank_id from = 0;
  std::uint32_t tag = 0;
  std::chrono::nanoseconds timeout{};
  std::uint64_t expected = 0;  ///< the number that `cuda_copies::expect` returned, if a stream waits for the message
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op. An edge costs little until it is set
/// up. The first 16 edges of a rank are set up at once, the others at the first call or message.
class transfer {
 public:
  /// A handle of no op: this rank counts as idle.
  transfer() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  transfer(rank& self, const transfer_options& op);
  /// The buffer must stay until the call has ended. Throws `bad_argument` if this rank does not send to `o.to`.
  template <readable_buffer B>
  send_call send(B&& data, send_options o) {
    return {edge_to(o.to),
            std::as_bytes(std::span(data)),
            {.tag = o.tag, .timeout_ns = o.timeout.count(), .type = type_of_elements<B>()}};
  }
  /// Returns the number of bytes received, at most the size of `into`.
  template <writable_buffer B>
  receive_call receive(B&& into, receive_options o) {
    return {edge_from(o.from),
            std::as_writable_bytes(std::span(into)),
            {.tag = o.tag, .timeout_ns = o.timeout.count(), .expected = o.expected, .type = type_of_elements<B>()}};
  }
  /// For code that is no coroutine (parley/work.hpp): `auto sent = transfer.start_send(batch, {.to = 1});`
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
  /// Registers memory of this rank for puts and gets with all of its pairs. For a receive into this memory the sender may put the payload
  /// there. For a send from this memory the receiver may get the payload from there. The handle must outlive the calls that use the memory.
  /// The handle is empty if none of the configs needs registered memory. Throws `unavailable` if the machine refuses to register the
  /// memory. parley/registered_memory.hpp says what happens to the memory when a sender is declared dead.
  ///
  ///     auto handle = transfer.registered(batch);
  ///     auto got = co_await transfer.receive(batch, {.from = 0});        // with `put`, if that is what was agreed on
  template <writable_buffer B>
  actors::registered_memory registered(B&& memory) {
    return register_bytes(std::as_writable_bytes(std::span(memory)));
  }

  /// A tuning phase, for programs that want one. Both ends call it with the same sizes, and it ends when their configs for these sizes are
  /// agreed. It sends scratch data under its own tag; other calls may run at the same time.
  runtime::task<> tune(std::vector<std::uint64_t> sizes_bytes);

  /// The agreement with one partner, and requests about it (agreement.hpp). Both throw `bad_argument` if there is no such partner.
  agreement to(rank_id peer) const;
  agreement from(rank_id peer) const;
  /// The agreement with the only partner of this rank. Throws `bad_argument` unless this rank has exactly one edge.
  agreement agreed() const;
  ops::decision decision(std::uint64_t bytes) const { return agreed().decision(bytes); }
  /// The decision for messages to `peer`; if this rank sends none to it, for messages from it.
  ops::decision decision(std::uint64_t bytes, rank_id peer) const { return with(peer).decision(bytes); }
  runtime::task<ops::decision> decided(std::uint64_t bytes, decided_options o = {}) const {
    return agreed().decided(bytes, o);
  }
  /// For all partners: see `agreement::retune`.
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;

  /// True if this rank has no part in the op.
  bool idle() const noexcept { return outs_.empty() && ins_.empty(); }
  /// The number of payload bytes that this rank has copied. Receives: short payloads that arrived with their messages, and payloads that
  /// UCX delivered before their receives were known. Sends: payloads of up to 2 KiB that were sent from copies, so that no call had to wait
  /// for their buffers. Longer payloads are not copied.
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

/// Turns the failure of a call into a value.
template <class Call>
runtime::with_deadline<typename Call::value_type> attempt(Call&& call) {
  return {runtime::never, std::forward<Call>(call)};
}

/// Returns the pairs of an op, or `role_conflict` / `bad_argument` with the ranks and the reason. All ranks get the same result.
runtime::result<std::vector<std::pair<rank_id, rank_id>>> pair_up(const transfer_options& op, rank_id world_size);

}  // namespace parley::ops
