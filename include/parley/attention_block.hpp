#pragma once
/// The arithmetic of ring attention (ring_attention.hpp): how a rank adds a block of keys and values to its sums. In host memory a program
/// may provide the function, and `add_attention_block` is the default. On a device the program always provides it.
///
///     attention_block<float> timed = [&](attention_state<float>& sums, auto... block) {
///       const stopwatch s(times);
///       add_attention_block<float>(sums, block...);
///     };
///     co_await ring.forward<float>(shape, q, k, v, out, timed);
#include <parley/identifiers.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/runtime/narrow_floats.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

namespace parley::ops {

using runtime::bf16;

struct attention_shape {
  std::uint64_t heads = 1;
  std::uint64_t rows = 0;  ///< of the sequence, per rank
  std::uint64_t dimensions = 0;
  bool causal = false;
  double scale = 0;               ///< 0: 1 / sqrt(dimensions)
  runtime::time_ns block_ns = 0;  ///< the duration of a block in virtual time

  std::uint64_t elements() const noexcept { return heads * rows * dimensions; }
};

template <class T>
using attention_sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// The sums of one rank so far.
template <class T>
struct attention_state {
  using sum = attention_sum<T>;
  explicit attention_state(const attention_shape& s)
      : shape(s), maximum(s.heads * s.rows, -std::numeric_limits<sum>::infinity()), weight(s.heads * s.rows),
        weighted(s.elements()) {}
  /// Writes the rows of `out`: their sums divided by their weights. A row without keys is 0; NaN stays NaN.
  void divide_into(std::span<T> out) const;
  attention_shape shape;
  std::vector<sum> maximum;
  std::vector<sum> weight;
  std::vector<sum> weighted;
};

/// Adds a block of keys and values to the state. In the sequence the block of keys begins `first_key - first_query` rows after the block of
/// queries.
template <class T>
using attention_block = std::function<void(attention_state<T>& state, std::span<const T> q, std::span<const T> k,
                                           std::span<const T> v, std::uint64_t first_query, std::uint64_t first_key)>;

/// The block function for CPUs, with the running softmax. T is `float`, `double`, `bf16` or `f16`.
template <class T>
void add_attention_block(attention_state<T>& state, std::span<const T> q, std::span<const T> k, std::span<const T> v,
                         std::uint64_t first_query, std::uint64_t first_key);

/// A block that a device adds to its sums. The kernels keep these sums themselves.
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
  bool last = false;   ///< last block of its call: write `out` now
  runtime::device_stream stream = nullptr;
};

/// Enqueues kernels for a block. k and v are ready for work that is enqueued into `stream` from now on. Not called for blocks that a causal
/// rank skips.
template <class T>
using device_attention_block = std::function<void(const device_block<T>&)>;

}  // namespace parley::ops
