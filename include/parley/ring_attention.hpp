#pragma once
/// Attention over a sequence that the ranks share: keys and values go around the ring, while each rank computes with those that it has.
/// Each pair of neighbours runs one of several configs: the fastest, which is found while the program runs.
///
///     ring_attention ring(self, {.name = "attention"});
///     co_await ring.forward<float>({.heads = 8, .rows = 1024, .dimensions = 64, .causal = true}, q, k, v, out);
///
/// Arrays are [heads][rows][dimensions]. Each rank has `rows` rows of the sequence, in the order of the ranks.
/// `out = softmax(q k^T scale) v` over the whole sequence. Keys and values move exactly P - 1 times (P: ranks); while a rank computes
/// with a block, it receives the next one. A causal rank skips blocks that lie after its own, but passes them on. Elements are `float`,
/// `double` or `bf16`. Sums have at least single precision and are formed in the order of the rotation, so every run gives the same bits.
/// A key that scores -inf is masked: it has no part in the row, whatever its value is. A row whose keys are all masked is zero.
///
/// The user may provide the arithmetic of one block (`attention_block`).
///
/// On a device (`.memory`) the user always provides it: kernels, in the order of a stream. The host enqueues a block while the device
/// computes the block before it, and waits for no kernel:
///
///     attention_plan plan = ring.plan<bf16>({.heads = 8, .rows = 1024, .dimensions = 64});     // allocates memory for received blocks
///     const device_attention_block<bf16> block = [&](const auto& b) { launch(b.stream, b.q, b.k, b.v, b.out, …); };
///     co_await plan.forward<bf16>(q, k, v, out, stream, block);
///
/// Failure and cancellation: those of the messages (p2p.hpp). `bad_argument` if the sizes of arrays do not fit the shape, on this rank or
/// on the neighbour. `declaration_mismatch`, with both values, if the calls of two neighbours differ in type, heads, dimensions, mask or
/// scale: messages of such calls never match, and the two ranks exchange nothing more. After a call that has failed on one rank, no rank
/// of the op exchanges anything more, until all have joined again after a restart: calls throw `closed`, or the failed call's own error
/// if the call itself was wrong. The error says where and why. After a failure `out` is undefined and the inputs are untouched.
#include <parley/dataflow.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/core/call_under_way.hpp>
#include <parley/p2p.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/narrow_floats.hpp>

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace parley::ops {

class neighbours;

struct ring_attention_options {
  std::string name;
  std::vector<rank_id> ranks{};  ///< in the order of the sequence; empty: all
  std::vector<config_ptr> configs{configs::direct(), configs::chunked(256 * 1024, 2), configs::chunked(1024 * 1024, 4)};
  tuning::constraints constraints{};        ///< what this rank's user demands of every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` says so
  runtime::memory_space* memory = nullptr;  ///< where the arrays lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
};

using runtime::bf16;

struct attention_shape {
  std::uint64_t heads = 1;
  std::uint64_t rows = 0;  ///< of the sequence, per rank
  std::uint64_t dimensions = 0;
  bool causal = false;
  double scale = 0;               ///< 0: 1 / sqrt(dimensions)
  runtime::time_ns block_ns = 0;  ///< how long a block takes in virtual time

  std::uint64_t elements() const noexcept { return heads * rows * dimensions; }
};

template <class T>
using attention_sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// Throws `bad_argument` if rank `from` has sent another number of bytes.
void check_came(const std::string& title, const neighbours& around, rank_id from, std::uint64_t bytes,
                std::uint64_t expected);

/// The sums of one rank so far.
template <class T>
struct attention_state {
  using sum = attention_sum<T>;
  explicit attention_state(const attention_shape& s)
      : shape(s), maximum(s.heads * s.rows, -std::numeric_limits<sum>::infinity()), weight(s.heads * s.rows),
        weighted(s.elements()) {}
  attention_shape shape;
  std::vector<sum> maximum;
  std::vector<sum> weight;
  std::vector<sum> weighted;
};

/// Adds a block of keys and values to the state. In the sequence it begins `first_key - first_query` rows after the block of queries.
template <class T>
using attention_block = std::function<void(attention_state<T>& state, std::span<const T> q, std::span<const T> k,
                                           std::span<const T> v, std::uint64_t first_query, std::uint64_t first_key)>;

/// The block function for processors, with the running softmax.
template <class T>
void add_attention_block(attention_state<T>& state, std::span<const T> q, std::span<const T> k, std::span<const T> v,
                         std::uint64_t first_query, std::uint64_t first_key) {
  using sum = attention_sum<T>;
  const attention_shape& s = state.shape;
  const auto scale = static_cast<sum>(s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.dimensions)));
  constexpr sum masked = -std::numeric_limits<sum>::infinity();
  std::vector<sum> score(s.rows);
  for (std::uint64_t row = 0; row < s.heads * s.rows; ++row) {
    const std::uint64_t head = row / s.rows;
    const std::uint64_t query = first_query + row % s.rows;
    const std::uint64_t visible = s.causal ? (query < first_key ? 0 : std::min(query - first_key + 1, s.rows)) : s.rows;
    if (visible == 0) continue;
    const T* const mine = q.data() + row * s.dimensions;
    const T* const keys = k.data() + head * s.rows * s.dimensions;
    const T* const values = v.data() + head * s.rows * s.dimensions;
    sum highest = state.maximum[row];
    for (std::uint64_t j = 0; j < visible; ++j) {
      sum product = 0;
      for (std::uint64_t d = 0; d < s.dimensions; ++d)
        product += static_cast<sum>(mine[d]) * static_cast<sum>(keys[j * s.dimensions + d]);
      score[j] = product * scale;
      highest = std::max(highest, score[j]);
    }
    // If a row has met only keys that score -inf, 0 is subtracted in place of -inf, so that the results are numbers.
    const sum base = highest == masked ? 0 : highest;
    const sum shrink = std::exp(state.maximum[row] - base);
    sum* const out = state.weighted.data() + row * s.dimensions;
    for (std::uint64_t d = 0; d < s.dimensions; ++d) out[d] *= shrink;
    state.weight[row] *= shrink;
    for (std::uint64_t j = 0; j < visible; ++j) {
      if (score[j] == masked) continue;
      const sum weight = std::exp(score[j] - base);
      state.weight[row] += weight;
      for (std::uint64_t d = 0; d < s.dimensions; ++d)
        out[d] += weight * static_cast<sum>(values[j * s.dimensions + d]);
    }
    state.maximum[row] = highest;
  }
}

/// A block for a device to add to its sums. The kernels keep these sums themselves.
template <class T>
struct device_block {
  attention_shape shape;
  std::span<const T> q;
  std::span<const T> k;
  std::span<const T> v;
  std::span<T> out;
  std::uint64_t first_query = 0;  ///< where the blocks of queries and of keys begin in the sequence
  std::uint64_t first_key = 0;
  bool first = false;  ///< first block of its call: there are no sums yet
  bool last = false;   ///< last block of its call: `out` is to be written
  runtime::device_stream stream = nullptr;
};

/// Enqueues kernels for a block. k and v are ready for what `stream` gets from now on. Not called for blocks that a causal rank skips.
template <class T>
using device_attention_block = std::function<void(const device_block<T>&)>;

/// Arrays of one shape on a device, and the memory for received blocks. Must outlive the work of streams on that memory.
class attention_plan {
 public:
  /// The call comes after what `stream` has now, and what the stream gets after the call sees `out`. The call ends when its messages have
  /// ended; its kernels may still run. Until the call ends, put nothing else into `stream`, and do not write to k and v. One call at a
  /// time. Name a lambda that captures more than references and numbers before you pass it (g++ 12 destroys such temporaries of a
  /// `co_await` twice).
  template <class T>
  runtime::task<> forward(std::span<const T> q, std::span<const T> k, std::span<const T> v, std::span<T> out,
                          runtime::device_stream stream, device_attention_block<T> block) {
    check(sizeof(T), {q.size(), k.size(), v.size(), out.size()}, stream);
    const auto enqueue = [&](const arrived& a) {
      const auto elements = [](std::span<const std::byte> bytes) {
        return std::span(reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T));
      };
      block({state_->shape, q, elements(a.keys), elements(a.values), out, state_->place * state_->shape.rows,
             a.first_key, a.first, a.last, stream});
    };
    const call c{std::as_bytes(k), std::as_bytes(v), stream, enqueue};
    call_under_way now(state_->around);
    std::exception_ptr thrown;
    try {
      co_await runtime::with_dataflow(rotate, state_.get(), &c);
    } catch (...) {
      thrown = std::current_exception();
    }
    now.end(thrown);
  }
  /// Registers memory of k and v that calls use again and again, so that the receiver may get k and v from there.
  template <writable_buffer B>
  actors::registered_memory registered(B&& memory) {
    return state_->ring.registered(std::forward<B>(memory));
  }

 private:
  friend class ring_attention;
  struct arrived {
    std::span<const std::byte> keys;
    std::span<const std::byte> values;
    std::uint64_t first_key;
    bool first;
    bool last;
  };
  struct call {
    std::span<const std::byte> keys;
    std::span<const std::byte> values;
    runtime::device_stream stream;
    std::function<void(const arrived&)> enqueue;
  };
  struct part {
    std::shared_ptr<runtime::memory_space::block> memory;  // keys, then values
    actors::registered_memory registered;
  };
  struct state {
    std::string title;
    p2p ring;
    runtime::memory_space* memory = nullptr;
    attention_shape shape;
    std::uint64_t element_bytes = 0;
    std::uint64_t size = 0;
    std::uint64_t place = 0;
    rank_id next = 0;
    rank_id previous = 0;
    std::array<part, 2> came;  // used in turn, as on the host
    neighbours* around = nullptr;
  };
  void check(std::uint64_t element_bytes, std::initializer_list<std::size_t> sizes,
             runtime::device_stream stream) const;
  static runtime::task<> rotate(runtime::dataflow& flow, state* s, const call* c);
  std::unique_ptr<state> state_ = std::make_unique<state>();
};

/// A light handle of the op. The op ends with its rank; copies of the handle stand for the same op.
class ring_attention {
 public:
  /// A handle of no op: this rank counts as idle.
  ring_attention() = default;
  /// Declares the op; call it on all ranks. If the options cannot work, every rank throws the same `bad_argument` or `role_conflict`.
  ring_attention(rank& self, const ring_attention_options& op);
  /// For arrays in host memory.
  template <class T>
  runtime::task<> forward(attention_shape shape, std::span<const T> q, std::span<const T> k, std::span<const T> v,
                          std::span<T> out, attention_block<T> block = add_attention_block<T>) {
    check(shape, {q.size(), k.size(), v.size(), out.size()});
    call<T> c{shape, q, k, v, out, attention_state<T>(shape), std::move(block), begin(shape, name_of<T>()), {}};
    call_under_way now(around_);
    std::exception_ptr thrown;
    try {
      co_await runtime::with_dataflow(rotate<T>, this, &c);
    } catch (...) {
      thrown = std::current_exception();
    }
    now.end(thrown);
  }
  /// For arrays of T in the op's `memory`. Throws `unavailable` if there is no memory for received blocks.
  template <class T>
  attention_plan plan(attention_shape shape) const {
    return plan_of(shape, sizeof(T));
  }
  /// A tuning phase (`transfer::tune`) for arrays of this shape, on all ranks.
  template <class T>
  runtime::task<> tune(attention_shape shape) {
    return ring_.tune({shape.elements() * sizeof(T)});
  }
  /// True if this rank has no part in the op.
  bool idle() const noexcept { return ring_.idle() || size_ == 0; }
  std::uint64_t size() const noexcept { return size_; }
  agreement to_next() const { return ring_.to(next_); }
  ops::decision decision(std::uint64_t bytes) const { return to_next().decision(bytes); }
  ops::decision decision(std::uint64_t bytes, rank_id peer) const { return ring_.decision(bytes, peer); }
  /// After `peer_restarted`, on each of the op's other ranks: all pairs begin a new generation. False: no rank has restarted.
  bool rejoin();

 private:
  template <class T>
  struct call {
    attention_shape shape;
    std::span<const T> q;
    std::span<const T> k;
    std::span<const T> v;
    std::span<T> out;
    attention_state<T> state;
    attention_block<T> block;
    std::uint32_t tag;  // of the first keys; values have the next tag, and every other rotation has the next two tags
    std::vector<T> came[2];  // keys and values, used in turn: one is computed with while the other is received
  };
  attention_plan plan_of(const attention_shape& shape, std::uint64_t element_bytes) const;
  void check(const attention_shape& shape, std::initializer_list<std::size_t> sizes) const;
  void check_came(std::uint64_t bytes, std::uint64_t expected) const;
  template <class T>
  static std::string_view name_of() noexcept {
    if constexpr (std::is_same_v<T, bf16>) return "bf16";
    constexpr std::uint32_t known = call_types::element_of<T>();
    return known == 0 ? typeid(T).name() : call_types::elements[known];
  }
  /// Returns the tag for the messages of a call. A call with other terms gets another tag.
  std::uint32_t begin(const attention_shape& shape, std::string_view type);

  template <class T>
  static runtime::task<> rotate(runtime::dataflow& flow, ring_attention* self, call<T>* c) {
    using runtime::reads;
    using runtime::writes;
    flow.stop_at_failure();
    const std::uint64_t n = c->shape.elements();
    for (auto& both : c->came) both.resize(self->size_ > 1 ? 2 * n : 0);
    std::span<const T> keys = c->k;
    std::span<const T> values = c->v;
    for (std::uint64_t step = 0; step < self->size_; ++step) {
      const std::span<T> next(c->came[step % 2]);
      if (step + 1 < self->size_) {
        // Two rotations in a row have different tags: a receive that ends without its block must not leave the block to the next receive.
        const std::uint32_t tag = c->tag + 2 * static_cast<std::uint32_t>(step % 2);
        auto moving = self->ring_.start(flow, {p2p::isend(keys, {.to = self->next_, .tag = tag}),
                                               p2p::isend(values, {.to = self->next_, .tag = tag + 1}),
                                               p2p::irecv(next.first(n), {.from = self->previous_, .tag = tag}),
                                               p2p::irecv(next.last(n), {.from = self->previous_, .tag = tag + 1})});
        for (const std::size_t part : {2, 3}) {
          auto check = [self, n, message = moving[part]] { self->check_came(message.bytes(), n * sizeof(T)); };
          const auto half = part == 2 ? next.first(n) : next.last(n);
          auto checked = flow.compute({runtime::updates(half)}, std::move(check), self->here());
        }
      }
      const std::uint64_t from = (self->place_ + self->size_ - step) % self->size_;
      auto add = [self, c, keys, values, from] {
        if (c->shape.causal && from > self->place_) return;
        c->block(c->state, c->q, keys, values, self->place_ * c->shape.rows, from * c->shape.rows);
      };
      auto added = flow.compute({reads(c->q), reads(keys), reads(values), runtime::updates(c->state.weighted)},
                                std::move(add), {.name = self->title_ + ": a block", .modelled_ns = c->shape.block_ns});
      keys = next.first(std::min<std::size_t>(n, next.size()));
      values = next.last(std::min<std::size_t>(n, next.size()));
    }
    auto divide = [c] {
      for (std::uint64_t row = 0; row < c->state.weight.size(); ++row) {
        for (std::uint64_t d = 0; d < c->shape.dimensions; ++d) {
          const std::uint64_t i = row * c->shape.dimensions + d;
          // A row without keys has the weight 0 and becomes 0. NaN stays NaN.
          const attention_sum<T> weight = c->state.weight[row];
          c->out[i] = static_cast<T>(weight == 0 ? attention_sum<T>{0} : c->state.weighted[i] / weight);
        }
      }
    };
    auto done = flow.compute({reads(c->state.weighted), writes(c->out)}, std::move(divide), self->here());
    co_await done;
  }
  runtime::compute_options here() const {
    return {.name = title_, .where = runtime::compute_options::place::actor_thread};
  }

  std::string title_;
  p2p ring_;
  runtime::memory_space* memory_ = nullptr;
  std::uint64_t size_ = 0;
  std::uint64_t place_ = 0;
  rank_id next_ = 0;
  rank_id previous_ = 0;
  neighbours* around_ = nullptr;  // owned by the rank; null: no neighbours
};

}  // namespace parley::ops
