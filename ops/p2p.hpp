#pragma once
/// Batches of sends and receives between any ranks, in place, in whatever order they are posted; each directed pair of ranks
/// runs one config of several, the fastest, found out while the program runs.
///
///     auto ring = self.declare(point_to_point{.name = "ring", .configs = {direct(), chunked(256_KiB)}});
///     dataflow flow(here);                                           // runtime/dataflow.hpp: who waits for whom
///     auto round = ring.start(flow, {ring.isend(x, {.to = next}), ring.irecv(y, {.from = previous})});
///     co_await round[1];                                             // y is here; or `co_await round`
///     co_await flow.join();
///
/// A send waits until the steps of the flow that wrote its buffer have ended, a receive until nobody needs what is in its
/// buffer. Sends and receives of one pair and tag are matched in the order in which they were posted, also where they have to
/// wait; other tags are independent. Sends to oneself, of zero bytes, and batches that differ from rank to rank are fine. What a batch sends
/// to one rank, of one size, runs the same config, and is one repetition of a trial.
///
/// `{isend(x, …), irecv(x, …)}` exchanges x in place, at every size, whether the two are in one batch or in two, have all of x in common or
/// only a part, and are for one rank or for several. Where all ranks do that, each send would wait for a receive that waits for such
/// a send: the receive then takes what comes beside x, and copies it in when the send has ended, which `copied_bytes` counts. A rank that
/// works with two buffers in turn copies nothing. The other order sends on what has come; to oneself, in one batch, it is `bad_argument`.
///
/// On a device, in the order of a stream (`batch_options::stream`): nothing waits on the host, and the next kernels can be enqueued
/// at once.
///
///     ring.start(flow, {ring.isend(x, {.to = next}), ring.irecv(y, {.from = previous})}, {.stream = s});
///     launch(s, y, z);                                               // runs when y is here
///
/// Failure: as of a transfer (paired_transfer.hpp), per operation, with the title of the operation in front; a batch throws its first failure
/// and goes through with the others. Cancellation and deadlines: per operation and per batch (dataflow.hpp). What ends before it was
/// matched leaves its place to the next one of its pair and tag: where that must not be, `dataflow::stop_at_failure`, or another tag.
#include <parley/ops/paired_transfer.hpp>
#include <parley/ops/self_edge.hpp>
#include <parley/runtime/dataflow.hpp>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace parley::ops {

class rank;

struct point_to_point {
  std::string name;
  std::vector<config_ptr> configs{direct()};
  std::vector<rank_id> ranks{};  ///< who takes part; empty: all
  /// Sender and receiver of each pair that may be used; empty: all pairs of `ranks`.
  std::vector<std::pair<rank_id, rank_id>> edges{};
  capability_function capable{};
  std::string dtype{};
  time_ns timeout_ns = 30'000'000'000;
  runtime::memory_space* memory = nullptr;  ///< where its buffers lie, such as a GPU's; null: in host memory
  tuning::constraints allowed{};
  /// For ops in which what pairs do hangs together: all of their ranks. When one has come back as a new process, all pairs begin
  /// anew, with `rejoin` on each of the others. Empty: the pairs of that rank do, by themselves.
  std::vector<rank_id> coupled{};
};

struct p2p_operation;

/// What belongs to operations of an op that is made of messages, such as unpacking: kept by those that have it.
class p2p_hooks : public runtime::flow_counted<p2p_hooks> {
 public:
  virtual ~p2p_hooks() = default;
  /// A receive has brought so many bytes. Its work ends after this, with what it throws.
  virtual void after_receive(const p2p_operation& o, std::uint64_t bytes) = 0;
  /// It was given up, perhaps before it had its place among the messages of its peer and tag: the next one may have that.
  virtual void on_given_up(const p2p_operation& o, const runtime::error& why) noexcept = 0;
};

/// One send or receive of a batch, before it is started.
struct p2p_operation {
  enum class kind : std::uint8_t { send, receive } what;
  rank_id peer = 0;
  std::span<std::byte> bytes{};
  std::uint32_t tag = 0;
  time_ns timeout_ns = 0;
  std::uint64_t expected = 0;  ///< of a receive, see `receive_options`
  std::uint16_t type = 0;      ///< of its elements (`element_type_of`); 0: any
  /// What `bytes` are packed from, or unpacked into, unless its config moves each piece by itself; null: they are the payload. Kept as the
  /// hooks keep it.
  actors::payload_pieces* pieces = nullptr;
  boost::intrusive_ptr<p2p_hooks> hooks{};
};

struct batch_options {
  time_ns timeout_ns = runtime::never;      ///< of all of it, from now
  runtime::compute_queue* after = nullptr;  ///< it begins after what is in there now
  /// Of the device that the op's `memory` is of, such as a cudaStream_t: all of the batch comes after what that has now, and what it gets
  /// from here on comes after the receives. A stream does not know of failures: await the work before results are trusted, and
  /// before kernels overwrite what is sent.
  runtime::device_stream stream = nullptr;
  /// The stream does not come after the receives yet, so that they can be started before what sends for them: `wait_on` of the
  /// `memory` says when it does.
  bool ahead = false;
};

/// The op on one rank that has a part in it.
class p2p_end {
 public:
  p2p_end(transfer pairs, const actors::services& s, const point_to_point& op)
      : name_(op.name), pairs_(std::move(pairs)), memory_(op.memory == nullptr ? runtime::host_memory() : *op.memory),
        to_itself_(s, memory_, op.name, op.timeout_ns), services_(s), self_(s.net.rank()) {}
  p2p_end(const p2p_end&) = delete;
  p2p_end& operator=(const p2p_end&) = delete;

  /// Those of a batch with a stream are expected from here on (`memory_space::expect`).
  runtime::flow_work start(runtime::dataflow& flow, std::span<const p2p_operation> batch, const batch_options& o);
  /// Throws `bad_argument` where one of the op's own configs calls it, or a process that fork() made.
  void check_caller() const { runtime::check_call(services_.ex, {"op", name_}); }
  runtime::memory_space& memory() const noexcept { return memory_; }
  std::uint64_t generation_with(rank_id peer) const { return peer == self_ ? 0 : pairs_.generation_with(peer); }
  transfer& pairs() noexcept { return pairs_; }
  const self_edge& to_itself() const noexcept { return to_itself_; }
  void list_waiting(runtime::waiting_list& all) { to_itself_.list_waiting(all); }
  /// Of how many peers and tags something is kept here; those that are used no more are forgotten.
  std::size_t known_tags() const noexcept { return sends_.size() + receives_.size() + to_itself_.known_tags(); }
  /// Whether a receive from `source` that is posted now may wait until `sent`, the `number`-th one of its peer and tag, has ended.
  bool may_wait_for(const p2p_operation& sent, std::uint64_t number, rank_id source) const;
  /// What came beside the memory that it was for.
  void note_copied(std::uint64_t bytes) noexcept { copied_bytes_ += bytes; }
  std::uint64_t copied_bytes() const noexcept { return copied_bytes_; }

 private:
  struct line {
    runtime::begin_sequence order;
    std::uint64_t posted = 0;  // so many so far
  };
  class sequences {  // by peer and tag
   public:
    line& operator[](std::uint64_t key) {
      if (latest_ == nullptr || latest_->first != key) latest_ = &find_or_make(key);
      return latest_->second;
    }
    std::size_t size() const noexcept { return all_.size(); }
    const line* find(std::uint64_t key) const {
      const auto known = all_.find(key);
      return known == all_.end() ? nullptr : &known->second;
    }

   private:
    using map = std::unordered_map<std::uint64_t, line>;
    map::value_type& find_or_make(std::uint64_t key);
    map all_;
    map::value_type* latest_ = nullptr;
    std::size_t sweep_at_ = 64;  // so many: tags that are used no more are forgotten
  };
  void order_behind(const batch_options& o, std::span<p2p_operation> batch);
  enum class with : std::uint8_t { peer, itself };
  with check_pair(const p2p_operation& o);
  void check_circles(std::span<const p2p_operation> batch) const;
  bool has_waiting(std::uint32_t own_tag) const;
  runtime::flow_step_ptr step_for(const p2p_operation& o, std::uint64_t batch, std::uint64_t number);
  bool leaves_at_once(const runtime::dataflow& flow, const p2p_operation& o, std::uint64_t batch,
                      const runtime::buffer_access& use, const runtime::step_options& how);
  static std::uint64_t key_of(rank_id peer, std::uint32_t tag) noexcept { return (std::uint64_t{peer} << 32U) | tag; }
  line& line_of(const p2p_operation& o);
  std::string name_;
  transfer pairs_;
  runtime::memory_space& memory_;
  self_edge to_itself_;
  const actors::services& services_;
  rank_id self_;
  sequences sends_;
  sequences receives_;
  std::uint64_t batches_ = 0;
  std::uint64_t copied_bytes_ = 0;
};

/// What `declare` gives back; a light handle that lives as long as its rank.
class p2p {
 public:
  template <buffer B>
  static p2p_operation isend(const B& data, send_options o) {
    const auto bytes = std::as_bytes(std::span(data));
    // Not written to: a send only reads.
    return {.what = p2p_operation::kind::send,
            .peer = o.to,
            .bytes = {const_cast<std::byte*>(bytes.data()), bytes.size()},
            .tag = o.tag,
            .timeout_ns = o.timeout_ns,
            .type = type_of_elements<B>()};
  }
  template <buffer B>
  static p2p_operation irecv(B&& into, receive_options o) {
    return {.what = p2p_operation::kind::receive,
            .peer = o.from,
            .bytes = std::as_writable_bytes(std::span(into)),
            .tag = o.tag,
            .timeout_ns = o.timeout_ns,
            .expected = o.expected,
            .type = type_of_elements<B>()};
  }
  /// Buffers must stay until their operations have ended. Throws `bad_argument` when this rank has no such pair; nothing has
  /// been started then.
  runtime::flow_work start(runtime::dataflow& flow, std::span<const p2p_operation> batch, const batch_options& o = {}) {
    return end().start(flow, batch, o);
  }
  runtime::flow_work start(runtime::dataflow& flow, std::initializer_list<p2p_operation> batch,
                           const batch_options& o = {}) {
    return start(flow, std::span(batch.begin(), batch.size()), o);
  }

  /// See `transfer`.
  template <buffer B>
  actors::registered_memory registered(B&& memory) {
    return end().pairs().registered(std::forward<B>(memory));
  }
  /// For ops that are made of messages, before a call of theirs begins: see `p2p_end`.
  void check_caller() const {
    if (!idle()) end().check_caller();
  }
  agreement to(rank_id peer) const { return end().pairs().to(peer); }
  agreement from(rank_id peer) const { return end().pairs().from(peer); }
  void retune(std::optional<std::uint64_t> bytes = {}, std::string_view why = {}) const {
    end().pairs().retune(bytes, why);
  }
  /// See `transfer`; on all ranks of the op.
  runtime::task<> tune(std::vector<std::uint64_t> sizes_bytes) { return end().pairs().tune(std::move(sizes_bytes)); }
  /// As `transfer::copied_bytes`, and those of sends to oneself, once each, and of exchanges in place.
  std::uint64_t copied_bytes() const {
    return end().pairs().copied_bytes() + end().to_itself().copied_bytes() + end().copied_bytes();
  }
  /// After `peer_restarted`, where all pairs begin anew together: enters the generation that has begun. False when none has.
  bool rejoin() const { return !idle() && end().pairs().rejoin(); }
  /// See `p2p_end`.
  std::size_t known_tags() const { return end().known_tags(); }
  /// In which the messages with that peer are, which this rank sends to.
  std::uint64_t generation_with(rank_id peer) const { return end().generation_with(peer); }
  /// All of this rank's; none where it has no part in it.
  std::vector<declared_edge*> edges() const;
  /// Whether this rank has no part in it.
  bool idle() const noexcept { return end_ == nullptr; }

 private:
  friend rank;
  p2p_end& end() const;
  std::string name_;
  p2p_end* end_ = nullptr;
};

/// The messages of an op that is made of them: what both have in common.
template <class Op>
point_to_point messages_of(const Op& op, std::vector<rank_id> ranks = {}) {
  point_to_point messages;
  messages.name = op.name;
  messages.configs = op.configs;
  messages.coupled = ranks;
  messages.ranks = std::move(ranks);
  messages.capable = op.capable;
  messages.timeout_ns = op.timeout_ns;
  messages.allowed = op.allowed;
  if constexpr (requires { op.dtype; }) messages.dtype = op.dtype;
  if constexpr (requires { op.memory; }) messages.memory = op.memory;
  return messages;
}

/// `named`, or the first `count` ranks where none are.
std::vector<rank_id> named_or_first(const std::vector<rank_id>& named, std::size_t count);

/// Whether rank `r` is one of the op's.
bool takes_part(const point_to_point& op, rank_id r);

/// The pairs that rank `self` has, or `bad_argument` saying what is wrong, the same on all ranks.
runtime::result<paired_transfer> pairs_of(const point_to_point& op, rank_id self, rank_id world_size);

}  // namespace parley::ops
