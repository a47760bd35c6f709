#pragma once
/// Batches of sends and receives between any ranks, in place, in whatever order they are posted; each directed pair of ranks
/// runs one config of several, the fastest, found out while the program runs.
///
///     p2p ring(self, {.name = "ring", .configs = {configs::direct(), configs::chunked(256_KiB)}});
///     dataflow flow(here);                                           // parley/dataflow.hpp: who waits for whom
///     auto round = ring.start(flow, {ring.isend(x, {.to = next}), ring.irecv(y, {.from = previous})});
///     co_await round[1];                                             // y is here; or `co_await round`
///     co_await flow.join();
///
/// A send waits until the steps of the flow that wrote its buffer have ended, a receive until nobody needs what is in its
/// buffer. Sends and receives of one pair and tag are matched in the order in which they were posted, also where they have to
/// wait; other tags are independent. Sends to oneself, of zero bytes, and batches that differ from rank to rank are fine. What a batch sends
/// to one rank, of one size, runs the same config, and is one repetition of a trial.
///
/// `{isend(x, …), irecv(x, …)}` exchanges x in place, at every size. Several sends of x and then several receives into x do so, too. They
/// may be in one batch or in several, have all of x in common or only a part, and be for one rank or for several. Where all ranks do
/// that, each send would wait for a receive that waits for such a send. The receive then takes what comes beside x, and copies it in when
/// the steps before it have ended, which `copied_bytes` counts. The op decides that when the receive is posted. It looks for a send of its
/// own that the receive would wait for, also by way of other steps, and whose own receive has not been posted yet. From a send under a tag
/// that this rank never receives under, it follows messages only, and no computations: all ranks should use the same tags where
/// computations stand between. A rank that works with two buffers in turn copies nothing.
///
/// The other order, `{irecv(x, …), isend(x, …)}`, sends on what has come. To oneself that never ends: `start` throws `bad_argument`, also
/// where the receive is of an earlier batch of the flow.
///
/// On a device, in the order of a stream (`batch_options::stream`): nothing waits on the host, and the next kernels can be enqueued
/// at once.
///
///     ring.start(flow, {ring.isend(x, {.to = next}), ring.irecv(y, {.from = previous})}, {.stream = s});
///     launch(s, y, z);                                               // runs when y is here
///
/// Failure: as of a transfer (transfer.hpp), per operation, with the title of the operation in front; a batch throws its first failure
/// and goes through with the others. Cancellation and deadlines: per operation and per batch (dataflow.hpp). What ends before it was
/// matched leaves its place to the next one of its pair and tag: where that must not be, `dataflow::stop_at_failure`, or another tag.
#include <parley/dataflow.hpp>
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
  std::vector<rank_id> ranks{};  ///< who takes part; empty: all
  /// Sender and receiver of each pair that may be used; empty: all pairs of `ranks`.
  std::vector<std::pair<rank_id, rank_id>> edges{};
  std::vector<config_ptr> configs{configs::direct()};
  tuning::constraints constraints{};        ///< what this rank's user demands of all configs but the default
  capability_function can_run{};            ///< which configs a rank can run; empty: they are asked themselves
  runtime::memory_space* memory = nullptr;  ///< where its buffers lie, such as a GPU's; null: in host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
  std::string dtype{};
  /// For ops in which what pairs do hangs together: all of their ranks. When one has come back as a new process, all pairs begin
  /// anew, with `rejoin` on each of the others. Empty: the pairs of that rank do, by themselves.
  std::vector<rank_id> restart_group{};
};

struct p2p_operation;

/// What belongs to operations of an op that is made of messages, such as unpacking: kept by those that have it.
class p2p_hooks : public runtime::flow_counted<p2p_hooks> {
 public:
  virtual ~p2p_hooks() = default;
  /// A receive has brought so many bytes. Its work ends after this, with what it throws.
  virtual void after_receive(const p2p_operation& o, std::uint64_t bytes) = 0;
  /// It was given up, and had begun.
  virtual void on_given_up(const p2p_operation& o, const runtime::error& why) noexcept = 0;
  /// It was given up before it had its place among the messages of its peer and tag: the next one may have that. `cancelled`: with its flow.
  /// Otherwise the flow goes on without it, as a step that it waited for has failed.
  virtual void on_left_out(const p2p_operation& o, const runtime::error& why) noexcept = 0;
};

/// One send or receive of a batch, before it is started.
struct [[nodiscard]] p2p_operation {
  enum class kind : std::uint8_t { send, receive } what;
  rank_id peer = 0;
  std::span<std::byte> bytes{};
  std::uint32_t tag = 0;
  std::chrono::nanoseconds timeout{};
  std::uint64_t expected = 0;  ///< of a receive, see `receive_options`
  std::uint16_t type = 0;      ///< of its elements (`element_type_of`); 0: any
  /// What `bytes` are packed from, or unpacked into, unless its config moves each piece by itself; null: they are the payload. Kept as the
  /// hooks keep it.
  actors::payload_pieces* pieces = nullptr;
  boost::intrusive_ptr<p2p_hooks> hooks{};
};

struct batch_options {
  std::chrono::nanoseconds timeout = runtime::no_timeout;  ///< of all of it, from now
  runtime::compute_queue* after = nullptr;                 ///< it begins after what is in there now
  /// Of the device that the op's `memory` is of, such as a cudaStream_t: all of the batch comes after what that has now, and what it gets
  /// from here on comes after the receives. A stream does not know of failures: await the work before results are trusted, and
  /// before kernels overwrite what is sent.
  runtime::device_stream stream = nullptr;
  /// The stream does not come after the receives yet, so that they can be started before what sends for them: `wait_on` of the
  /// `memory` says when it does.
  bool ahead = false;
};

/// A light handle of the op, which ends with its rank; copies of it are handles of the same op.
class p2p {
 public:
  /// Of no op: this rank is idle in it.
  p2p() = default;
  /// On all ranks. Throws `bad_argument` or `role_conflict`, on every rank alike, when the options cannot work.
  p2p(rank& self, const p2p_options& op);
  template <readable_buffer B>
  static p2p_operation isend(B&& data, send_options o) {
    const auto bytes = std::as_bytes(std::span(data));
    // Not written to: a send only reads.
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
  /// Buffers must stay until their operations have ended. Throws `bad_argument` when this rank has no such pair; nothing has
  /// been started then.
  runtime::flow_work start(runtime::dataflow& flow, std::span<const p2p_operation> batch, const batch_options& o = {});
  runtime::flow_work start(runtime::dataflow& flow, std::initializer_list<p2p_operation> batch,
                           const batch_options& o = {}) {
    return start(flow, std::span(batch.begin(), batch.size()), o);
  }

  /// A batch alone: starts it, and ends when all of it has ended. Throws what came first.
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

  /// See `transfer`.
  template <writable_buffer B>
  actors::registered_memory registered(B&& memory) {
    return register_bytes(std::as_writable_bytes(std::span(memory)));
  }
  /// For ops that are made of messages, before a call of theirs begins: see `p2p_end`.
  void check_caller() const;
  agreement to(rank_id peer) const;
  agreement from(rank_id peer) const;
  /// What was agreed with `peer`, of messages to it, or else of those that come from it.
  ops::decision decision(std::uint64_t bytes, rank_id peer) const;
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const;
  /// See `transfer`; on all ranks of the op.
  runtime::task<> tune(std::vector<std::uint64_t> sizes_bytes);
  /// As `transfer::copied_bytes`, and those of sends to oneself, once each, and of exchanges in place.
  std::uint64_t copied_bytes() const;
  /// After `peer_restarted`, where all pairs begin anew together: enters the generation that has begun. False when none has.
  bool rejoin() const;
  /// See `p2p_end`.
  std::size_t known_tags() const;
  /// In which the messages with that peer are, which this rank sends to.
  std::uint64_t generation_with(rank_id peer) const;
  /// All of this rank's; none where it has no part in it.
  std::vector<declared_edge*> edges() const;
  /// Whether this rank has no part in it.
  bool idle() const noexcept { return end_ == nullptr; }

 private:
  p2p_end& end() const;
  actors::registered_memory register_bytes(std::span<std::byte> memory) const;
  std::string name_;
  p2p_end* end_ = nullptr;
};

/// The messages of an op that is made of them: what both have in common.
template <class Op>
p2p_options messages_of(const Op& op, std::vector<rank_id> ranks = {}) {
  p2p_options messages;
  messages.name = op.name;
  messages.configs = op.configs;
  messages.restart_group = ranks;
  messages.ranks = std::move(ranks);
  messages.can_run = op.can_run;
  messages.timeout = op.timeout;
  messages.constraints = op.constraints;
  if constexpr (requires { op.dtype; }) messages.dtype = op.dtype;
  if constexpr (requires { op.memory; }) messages.memory = op.memory;
  return messages;
}

/// `named`, or the first `count` ranks where none are.
std::vector<rank_id> named_or_first(const std::vector<rank_id>& named, std::size_t count);

/// Whether rank `r` is one of the op's.
bool takes_part(const p2p_options& op, rank_id r);

/// The pairs that rank `self` has, or `bad_argument` saying what is wrong, the same on all ranks.
runtime::result<transfer_options> pairs_of(const p2p_options& op, rank_id self, rank_id world_size);

}  // namespace parley::ops
