#pragma once
/// Computes attention over a sequence that the ranks share: keys and values go around the ring, while each rank computes with the keys and
/// values that it has. Each pair of neighbours runs the fastest of several configs. The pair finds that config while the program runs.
///
///     ring_attention ring(self, {.name = "attention"});
///     co_await ring.forward<float>({.heads = 8, .rows = 1024, .dimensions = 64, .causal = true}, q, k, v, out);
///
/// Arrays are [heads][rows][dimensions]. Each rank has `rows` rows of the sequence, in the order of the ranks. `out = softmax(q k^T scale)
/// v` over the whole sequence. Keys and values move exactly P - 1 times (P: ranks); while a rank computes with a block, it receives the
/// next one. A causal rank skips blocks that lie after its own, but passes them on. Elements are `float`, `double` or `bf16`. Sums have at
/// least single precision and are formed in the order of the rotation, so every run gives the same bits. A key that scores -inf is masked:
/// it has no part in the row, whatever its value. A row whose keys are all masked is zero.
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
/// Failure and cancellation: as for the messages (p2p.hpp). A call throws `bad_argument` if the sizes of arrays do not fit the shape, on
/// this rank or on the neighbour. A call throws `declaration_mismatch`, with both values, if the calls of two neighbours differ in type,
/// heads, dimensions, mask or scale. Messages of such calls never match, and the two ranks exchange nothing more. After a call has failed
/// on one rank, no rank of the op exchanges anything more until all ranks have joined again after a restart. Until then calls throw
/// `closed`, or the failed call's own error if the call itself was wrong. The error says where and why. After a failure `out` is undefined
/// and the inputs are untouched.
#include <parley/attention_block.hpp>
#include <parley/dataflow.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/grids/attention_elements.hpp>
#include <parley/p2p.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace parley::ops {

class neighbours;

struct ring_attention_options {
  std::string name;
  std::vector<rank_id> ranks{};  ///< in the order of the sequence; empty: all
  std::vector<config_ptr> configs{configs::direct(), configs::chunked(256 * 1024, 2), configs::chunked(1024 * 1024, 4)};
  tuning::constraints constraints{};        ///< limits of this rank's user for every config except the default
  capability_function can_run{};            ///< which configs a rank can run; empty: each config's `available` decides
  runtime::memory_space* memory = nullptr;  ///< where the arrays lie, such as a GPU's memory; null: host memory
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);  ///< of one call
};

/// Arrays of one shape on a device, and the memory for received blocks. Must outlive the work of streams on that memory.
class attention_plan {
 public:
  attention_plan();
  attention_plan(attention_plan&&) noexcept;
  attention_plan& operator=(attention_plan&&) noexcept;
  ~attention_plan();
  /// The call runs after the work that is in `stream` now, and work that is enqueued after the call sees `out`. The call ends when its
  /// messages have ended; its kernels may still run. Until the call ends, put nothing else into `stream`, and do not write to k and v. One
  /// call at a time. Name a lambda that captures more than references and numbers before you pass it (g++ 12 destroys such temporaries of a
  /// `co_await` twice).
  template <class T>
  runtime::task<> forward(std::span<const T> q, std::span<const T> k, std::span<const T> v, std::span<T> out,
                          runtime::device_stream stream, device_attention_block<T> block) {
    check(sizeof(T), {q.size(), k.size(), v.size(), out.size()}, stream);
    const auto enqueue = [&](const arrived& a) {
      block({shape(), q, elements_of<T>(a.keys), elements_of<T>(a.values), out, first_query(), a.first_key, a.first,
             a.last, stream});
    };
    const call c{std::as_bytes(k), std::as_bytes(v), stream, enqueue};
    co_await run(c);
  }
  /// Registers memory of k and v that calls use again and again, so that the receiver may get k and v from there.
  template <writable_buffer B>
  actors::registered_memory registered(B&& memory) {
    return ring().registered(std::forward<B>(memory));
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
  struct state;
  void check(std::uint64_t element_bytes, std::initializer_list<std::size_t> sizes,
             runtime::device_stream stream) const;
  const attention_shape& shape() const noexcept;
  std::uint64_t first_query() const noexcept;
  p2p& ring() noexcept;
  runtime::task<> run(const call& c);
  static runtime::task<> rotate(runtime::dataflow& flow, state* s, const call* c);
  std::unique_ptr<state> state_;
};

/// A light handle of the op. The op ends with its rank; copies of the handle refer to the same op.
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
    attention_state<T> state(shape);
    call c{.shape = shape, .type = type_of_elements<std::span<T>>(), .element_bytes = sizeof(T)};
    c.q = std::as_bytes(q), c.keys = std::as_bytes(k), c.values = std::as_bytes(v);
    c.sums = std::as_writable_bytes(std::span(state.weighted)), c.out = std::as_writable_bytes(out);
    c.add = [&](std::span<const std::byte> keys, std::span<const std::byte> values, std::uint64_t query,
                std::uint64_t key) { block(state, q, elements_of<T>(keys), elements_of<T>(values), query, key); };
    c.divide = [&] { state.divide_into(out); };
    c.tag = begin(shape, attention_type<T>());
    co_await run(c);
  }
  /// For arrays of T in the op's `memory`. Throws `unavailable` if there is no memory for received blocks.
  template <class T>
  attention_plan plan(attention_shape shape) const {
    return plan_of(shape, sizeof(T));
  }
  /// Runs a tuning phase (`transfer::tune`) for arrays of this shape. All ranks call it.
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
  /// Call it after `peer_restarted`, on each of the op's other ranks: all pairs begin a new generation. Returns false if no rank has
  /// restarted.
  bool rejoin();

 private:
  struct call {
    attention_shape shape;
    std::uint16_t type;  // of the elements
    std::uint64_t element_bytes;
    std::span<const std::byte> q{};
    std::span<const std::byte> keys{};
    std::span<const std::byte> values{};
    std::span<std::byte> sums{};
    std::span<std::byte> out{};
    std::function<void(std::span<const std::byte> keys, std::span<const std::byte> values, std::uint64_t first_query,
                       std::uint64_t first_key)>
        add{};
    std::function<void()> divide{};
    // Of the first keys. Values have the next tag, and every other rotation has the next two tags.
    std::uint32_t tag = 0;
    std::array<std::vector<std::byte>, 2> came{};
  };
  attention_plan plan_of(const attention_shape& shape, std::uint64_t element_bytes) const;
  void check(const attention_shape& shape, std::initializer_list<std::size_t> sizes) const;
  /// Returns the tag for the messages of a call. A call with other terms gets another tag.
  std::uint32_t begin(const attention_shape& shape, std::string_view type);

  runtime::task<> run(call& c);
  static runtime::task<> rotate(runtime::dataflow& flow, ring_attention* self, call* c);

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
