#pragma once
/// The kernels of the worked cases, an element at a time. They run on the processor or, because nvcc compiles this file, too, on a GPU.
/// Addresses are those under which kernels see memory (place.hpp).
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <variant>

#ifdef __CUDACC__
#define PARLEY_KERNEL __host__ __device__
#else
#define PARLEY_KERNEL
#endif

namespace parley::tests::kernels {

/// to = factor x + y; without y: to = factor x + term.
struct linear {
  float* to;
  const float* x;
  const float* y;
  float factor;
  float term;
  PARLEY_KERNEL void operator()(std::size_t i) const { to[i] = factor * x[i] + (y == nullptr ? term : y[i]); }
};

/// A Jacobi sweep over the cells of a sheet with a rim, and the square of each cell's change.
struct sweep {
  double* to;
  double* squares;
  const double* from;
  std::size_t columns;
  PARLEY_KERNEL void operator()(std::size_t i) const {
    const std::size_t width = columns + 2;
    const std::size_t at = (i / columns + 1) * width + i % columns + 1;
    const double next = 0.25 * (from[at - width] + from[at + width] + from[at - 1] + from[at + 1]);
    squares[i] = (next - from[at]) * (next - from[at]);
    to[at] = next;
  }
};

/// A stage y = tanh(weight x) of a model; without x: the stage reads the microbatch's input.
struct stage {
  const double* x;
  double weight;
  std::uint32_t microbatch;
  std::uint32_t width;
  PARLEY_KERNEL double in(std::size_t i) const {
    return x != nullptr ? x[i] : sin(0.3 * static_cast<double>(std::size_t{microbatch} * width + i));
  }
};
struct forward {
  stage of;
  double* y;
  PARLEY_KERNEL void operator()(std::size_t i) const { y[i] = tanh(of.weight * of.in(i)); }
};
/// The gradients of a stage. `after` is the gradient of y; without it, the gradient is that of the loss, the mean squares of y.
struct backward {
  stage of;
  const double* y;
  const double* after;
  double* before;           ///< the gradient of x; null: not needed
  double* weight_gradient;  ///< each element's part is added to it
  PARLEY_KERNEL void operator()(std::size_t i) const {
    const double inside = (after != nullptr ? after[i] : y[i]) * (1 - y[i] * y[i]);
    weight_gradient[i] += inside * of.in(i);
    if (before != nullptr) before[i] = inside * of.weight;
  }
};

PARLEY_KERNEL inline double number(float x) { return x; }
PARLEY_KERNEL inline double number(double x) { return x; }
/// A bf16.
PARLEY_KERNEL inline double number(std::uint16_t upper) {
  const std::uint32_t bits = std::uint32_t{upper} << 16U;
  float x = 0;
  memcpy(&x, &bits, sizeof x);
  return x;
}
PARLEY_KERNEL inline void store(float* to, double x) { *to = static_cast<float>(x); }
PARLEY_KERNEL inline void store(double* to, double x) { *to = x; }
PARLEY_KERNEL inline void store(std::uint16_t* to, double x) {
  const auto rounded = static_cast<float>(x);
  std::uint32_t bits = 0;
  memcpy(&bits, &rounded, sizeof bits);
  *to = static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16U) & 1U)) >> 16U);
}

/// Attention of a row of queries to one block of keys and values, added to the sums of the blocks before. Arrays are
/// [heads][rows][dimensions].
template <class Element>
struct attention {
  const Element* q;
  const Element* k;
  const Element* v;
  Element* out;
  double* maximum;   ///< [heads][rows]
  double* weight;    ///< [heads][rows]
  double* weighted;  ///< [heads][rows][dimensions]
  std::uint64_t rows;
  std::uint64_t dimensions;
  std::uint64_t first_query;
  std::uint64_t first_key;
  bool causal;
  bool first;  ///< the first block: the sums are still empty
  bool last;   ///< the last block: `out` is written
  PARLEY_KERNEL void operator()(std::size_t row) const {
    double* const sums = weighted + row * dimensions;
    if (first) {
      maximum[row] = -1e300;
      weight[row] = 0;
      for (std::uint64_t d = 0; d < dimensions; ++d) sums[d] = 0;
    }
    const std::uint64_t keys = row / rows * rows;  // of this head
    for (std::uint64_t j = 0; j < rows; ++j) {
      if (causal && first_key + j > first_query + row % rows) break;
      double score = 0;
      for (std::uint64_t d = 0; d < dimensions; ++d)
        score += number(q[row * dimensions + d]) * number(k[(keys + j) * dimensions + d]);
      score /= sqrt(static_cast<double>(dimensions));
      const double highest = score > maximum[row] ? score : maximum[row];
      const double shrink = exp(maximum[row] - highest);
      const double mine = exp(score - highest);
      maximum[row] = highest;
      weight[row] = weight[row] * shrink + mine;
      for (std::uint64_t d = 0; d < dimensions; ++d)
        sums[d] = sums[d] * shrink + mine * number(v[(keys + j) * dimensions + d]);
    }
    const double all = weight[row] == 0 ? 1 : weight[row];  // a row all of whose keys are masked is zero
    for (std::uint64_t d = 0; last && d < dimensions; ++d) store(&out[row * dimensions + d], sums[d] / all);
  }
};

using any =
    std::variant<linear, sweep, forward, backward, attention<double>, attention<float>, attention<std::uint16_t>>;

/// Runs a kernel on the processor.
inline void run(const any& kernel, std::size_t count) {
  std::visit(
      [count](const auto& k) {
        for (std::size_t i = 0; i < count; ++i) k(i);
      },
      kernel);
}

}  // namespace parley::tests::kernels
