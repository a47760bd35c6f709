#pragma once
/// Send and receive between pairs of ranks, each pair running one config of several: the fastest, found out while the
/// program runs.
///
///     auto transfer = self.declare(paired_transfer{
///         .name    = "activations",
///         .role    = [](rank_id r) { return r == 0 ? "sender" : "receiver"; },
///         .configs = {direct(), chunked(256_KiB), chunked(1_MiB, 4)}});
///     if (self.id() == 0) co_await transfer.send(batch, {.to = 1});
///     else                auto bytes = co_await transfer.receive(batch, {.from = 0});
///
/// The k-th sender is paired with the k-th receiver, ranks ascending, unless `edges` says otherwise; other roles are idle
/// and exchange nothing. All ranks declare the same roles. Calls of one tag are matched in their order; tags are independent
/// of each other. A receive refuses a message that has no room in it, or that is of another type of elements (bytes go with all):
/// both ends throw, the sender at its next call where its own message had left by then. Awaiting a call throws `failure` (see error.hpp); `attempt` turns that into a value:
///
///     auto sent = co_await attempt(transfer.send(batch, {.to = 1}));      // result<>
#include <parley/agreement.hpp>
#include <parley/config.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/edges/calls.hpp>
#include <parley/registered_memory.hpp>
#include <parley/when.hpp>
#include <parley/work.hpp>

#include <concepts>
#include <cstdint>
#include <functional>
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

struct paired_transfer {
  std::string name;
  std::function<std::string(rank_id)> role{};
  std::vector<config_ptr> configs{direct()};
  /// Sender and receiver of each pair; empty: by their order.
  std::vector<std::pair<rank_id, rank_id>> edges{};
  capability_function capable{};  ///< which configs a rank can run; empty: they are asked themselves
  std::string dtype{};
  time_ns timeout_ns = 30'000'000'000;
  runtime::memory_space* memory = nullptr;  ///< where its buffers lie, such as a GPU's; null: in host memory
  tuning::constraints allowed{};            ///< what this rank's user demands of all configs but the default
};

struct send_options {
  rank_id to = 0;
  std::uint32_t tag = 0;
  /// 0: the op's. A send that has put into memory of a rank that computes without polling ends later: when that polls, or is gone.
  time_ns timeout_ns = 0;
};
struct receive_options {
  rank_id from = 0;
  std::uint32_t tag = 0;
  time_ns timeout_ns = 0;
  std::uint64_t expected = 0;  ///< what `cuda_copies::expect` answered, if a stream is to wait for it
};

/// A contiguous container or span of plain values.
template <class R>
concept buffer = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                 std::is_trivially_copyable_v<std::ranges::range_value_t<R>>;

/// Of a buffer's elements, as messages say it: see `element_type_of`.
template <buffer B>
std::uint16_t type_of_elements() noexcept {
  return element_type_of<std::ranges::range_value_t<B>>();
}

/// What `declare` gives back; a light handle that lives as long as its rank. An op is light, too, until it is first used here,
/// by a call or by what its other ranks send for it.
class transfer {
 public:
  /// The buffer must stay until the call has ended. Throws `bad_argument` when this rank does not send to `o.to`.
  template <buffer B>
  send_call send(const B& data, send_options o) {
    return {edge_to(o.to),
            std::as_bytes(std::span(data)),
            {.tag = o.tag, .timeout_ns = o.timeout_ns, .type = type_of_elements<B>()}};
  }
  /// Answers the number of bytes that came, at most those of `into`.
  template <buffer B>
  receive_call receive(B&& into, receive_options o) {
    return {edge_from(o.from),
            std::as_writable_bytes(std::span(into)),
            {.tag = o.tag, .timeout_ns = o.timeout_ns, .expected = o.expected, .type = type_of_elements<B>()}};
  }
  /// The same for code that is no coroutine (parley/work.hpp): `auto sent = transfer.start_send(batch, {.to = 1});`
  template <buffer B>
  runtime::work<> start_send(const B& data, send_options o, runtime::start_options s = {}) {
    check_caller();
    return runtime::start(*where_, send(data, o), std::move(s));
  }
  template <buffer B>
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
  template <buffer B>
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
  friend op_host;
  friend rank;
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
runtime::result<std::vector<std::pair<rank_id, rank_id>>> pair_up(const paired_transfer& op, rank_id world_size);

}  // namespace parley::ops
