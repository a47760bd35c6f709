#pragma once
/// Batches of sends and receives between any ranks, in place and in any order. Each directed pair of ranks runs the fastest of several
/// configs. The pair finds that config while the program runs.
///
///     p2p ring(self, {.name = "ring", .configs = {configs::direct(), configs::chunked(256_KiB)}});
///     dataflow flow(here);                                           // parley/dataflow.hpp: who waits for whom
///     auto round = ring.start(flow, {ring.isend(x, {.to = next}), ring.irecv(y, {.from = previous})});
///     co_await round[1];                                             // y is here; or `co_await round`
///     co_await flow.join();
///
/// A send waits until the steps of the flow that wrote its buffer have ended. A receive waits until no earlier step needs the contents of
/// its buffer. Sends and receives of one pair and tag are matched in the order in which they were posted, even if they have to wait;
/// other tags are independent. A rank may send to itself and send zero bytes, and batches may differ from rank to rank. All messages of
/// one size that a batch sends to one rank run the same config, and count as one repetition of a trial.
///
/// `{isend(x, …), irecv(x, …)}` exchanges x in place, at every size. So do several sends of x followed by several receives into x. They may
/// be in one batch or in several, use all of x or only a part, and have one peer or several. If all ranks exchange in place, each send
/// waits for a receive, and that receive waits for a send of its own rank. To avoid this deadlock, the receive uses temporary memory, and
/// the op copies the data into x when the earlier steps that use x have ended. `copied_bytes` counts these bytes. The op decides this when
/// the receive is posted. It looks for a send of its own that the receive would wait for, directly or through other steps. It considers
/// only sends that have no matching receive yet, judged by this rank's own calls. If this rank never receives under the tag of that send,
/// the op follows only messages from the send on, and no computations. So all ranks should use the same tags if computations come between a
/// send and a receive. A rank that alternates between two buffers copies nothing.
///
/// The other order, `{irecv(x, …), isend(x, …)}`, forwards the received data. A rank that sends to itself in this order would wait for
/// ever: `start` throws `bad_argument`, even if the receive is in an earlier batch of the flow.
///
/// On a device, a batch can run in the order of a stream (`batch_options::stream`). The host then waits for nothing, and the program can
/// enqueue the next kernels at once.
///
///     ring.start(flow, {ring.isend(x, {.to = next}), ring.irecv(y, {.from = previous})}, {.stream = s});
///     launch(s, y, z);                                               // runs when y is here
///
/// Failure: each operation fails as a transfer does (transfer.hpp); the error begins with the title of the operation. A batch throws its
/// first failure and finishes its other operations. Cancellation and deadlines: per operation and per batch (dataflow.hpp). If an
/// operation ends before it was matched, the next operation of its pair and tag takes its place. To prevent that, use
/// `dataflow::stop_at_failure` or another tag.
#include <parley/dataflow.hpp>
#include <parley/ops/edges/p2p_hooks.hpp>
#include <parley/transfer.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace parley::actors {
struct payload_pieces;
}

namespace parley::ops {

class p2p_end;
class rank;

struct p2p_options {
  std::string name;
  std::vector<rank_id> ranks{};  ///< the ranks that take part; empty: all
  /// Sender and receiver of each pair that may be used; empty: all pairs of `ranks`.
  std::vector<std::pair<rank_id, rank_id>> edges{};
  std::vector<config_ptr> configs{configs::direct()};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where the buffers lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
  /// For an op whose pairs depend on each other: all ranks of these pairs. When one of them comes back as a new process, all pairs begin a
  /// new generation, once each of the other ranks has called `rejoin`. Empty: only the pairs of the restarted rank begin a new generation,
  /// without a call.
  std::vector<rank_id> restart_group{};
};

/// One send or receive of a batch, before it is started.
struct [[nodiscard]] p2p_operation {
  enum class kind : std::uint8_t { send, receive } what;
  rank_id peer = 0;
  std::span<std::byte> bytes{};
  std::uint32_t tag = 0;
  std::chrono::nanoseconds timeout{};
  std::uint64_t expected = 0;  ///< of a receive: see `receive_options`
  std::uint16_t type = 0;      ///< type of its elements (`element_type_of`); 0: any
  const char* remark = "";     ///< the end of the text of a timeout
  /// The pieces of the payload. They are packed into `bytes` or unpacked from it, unless the config moves each piece by itself. Null:
  /// `bytes` is the payload. The hooks keep the pieces alive.
  actors::payload_pieces* pieces = nullptr;
  boost::intrusive_ptr<p2p_hooks> hooks{};
};

struct batch_options {
  std::chrono::nanoseconds timeout = runtime::no_timeout;  ///< of the whole batch, from now on
  runtime::compute_queue* after = nullptr;  ///< the batch begins after the present contents of this queue
  /// A stream of the device that the op's `memory` belongs to, such as a cudaStream_t. The whole batch runs after the work that is in the
  /// stream now, and work that is enqueued from now on runs after the receives. A stream does not notice failures: await the returned work
  /// before the program trusts results, and before kernels overwrite the data to be sent.
  runtime::device_stream stream = nullptr;
  /// True: the stream does not wait for the receives yet, so that the program can start them before the sends. Later `wait_on` of the
  /// `memory` makes the stream wait for them.
  bool ahead = false;
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
class p2p {
 public:
  /// A handle of no op: this rank counts as idle.
  p2p() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  p2p(rank& self, const p2p_options& op);
  template <readable_buffer B>
  static p2p_operation isend(B&& data, send_options o) {
    const auto bytes = std::as_bytes(std::span(data));
    // A send only reads the bytes.
    return {.what = p2p_operation::kind::send,
            .peer = o.to,
            .bytes = {const_cast<std::byte*>(bytes.data()), bytes.size()},
            .tag = o.tag,
            .timeout = o.timeout,
            .type = type_of_elements<B>()};
  }
  template <writable_buffer B>
  static p2p_operation irecv(B&& into, receive_options o) {
    return {.what = p2p_operation::kind::receive,
            .peer = o.from,
            .bytes = std::as_writable_bytes(std::span(into)),
            .tag = o.tag,
            .timeout = o.timeout,
            .expected = o.expected,
            .type = type_of_elements<B>()};
  }
  /// Starts a batch. Buffers must stay until their operations have ended. Throws `bad_argument`, before anything has been started, if
  /// this rank has no such pair.
  runtime::flow_work start(runtime::dataflow& flow, std::span<const p2p_operation> batch, const batch_options& o = {});
  runtime::flow_work start(runtime::dataflow& flow, std::initializer_list<p2p_operation> batch,
                           const batch_options& o = {}) {
    return start(flow, std::span(batch.begin(), batch.size()), o);
  }

  /// Starts a batch, and ends when the whole batch has ended. Throws the first failure.
  ///
  ///     co_await ring.exchange(ring.isend(out, {.to = next}), ring.irecv(in, {.from = previous}));
  template <std::same_as<p2p_operation>... Operations>
  runtime::task<> exchange(Operations... batch) {
    std::vector<p2p_operation> all;
    all.reserve(sizeof...(batch));
    (all.push_back(std::move(batch)), ...);
    return exchange_all(std::move(all), {});
  }
  runtime::task<> exchange_all(std::vector<p2p_operation> batch, batch_options o = {});

  /// See `transfer::registered`.
  template <writable_buffer B>
  actors::registered_memory registered(B&& memory) {
    return register_bytes(std::as_writable_bytes(std::span(memory)));
  }
  /// Called by ops that are built on messages, before one of their calls begins: see `p2p_end`.
  void check_caller() const;
  agreement to(rank_id peer) const;
  agreement from(rank_id peer) const;
  /// The decision for messages to `peer`, or else for messages from it.
  ops::decision decision(std::uint64_t bytes, rank_id peer) const;
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;
  /// See `transfer::tune`. Called on all ranks of the op.
  runtime::task<> tune(std::vector<std::uint64_t> sizes_bytes);
  /// Like `transfer::copied_bytes`, plus the bytes of a rank's sends to itself (counted once) and of exchanges in place.
  std::uint64_t copied_bytes() const;
  /// Call it after `peer_restarted`, in an op with a `restart_group`: enters the new generation. Returns false if no new generation has
  /// begun.
  bool rejoin() const;
  /// See `p2p_end`.
  std::size_t known_tags() const;
  /// The generation of this rank's messages to `peer`.
  std::uint64_t generation_with(rank_id peer) const;
  /// All edges of this rank; empty: this rank is idle.
  std::vector<declared_edge*> edges() const;
  /// True if this rank has no part in the op.
  bool idle() const noexcept { return end_ == nullptr; }

 private:
  p2p_end& end() const;
  actors::registered_memory register_bytes(std::span<std::byte> memory) const;
  std::string name_;
  p2p_end* end_ = nullptr;
};

}  // namespace parley::ops
