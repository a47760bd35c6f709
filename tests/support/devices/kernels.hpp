#pragma once
/// What the worked cases compute, an element at a time: by the processor, or as kernels of a GPU, as nvcc reads this, too. Addresses are those
/// that a kernel may follow (place.hpp).
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

/// to = factor x + y, or + term where there is no y.
struct linear {
  float* to;
  const float* x;
  const float* y;
  float factor;
  float term;
  PARLEY_KERNEL void operator()(std::size_t i) const { to[i] = factor * x[i] + (y == nullptr ? term : y[i]); }
};

/// A sweep of Jacobi over the cells of a sheet with a rim, and the squares of what it changes.
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

/// A stage y = tanh(weight x) of a model; without x: of that microbatch's input.
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
/// Without `after`: of the mean squares of y, which is the loss.
struct backward {
  stage of;
  const double* y;
  const double* after;
  double* before;           ///< null: nobody wants it
  double* weight_gradient;  ///< each element's part, added to
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

/// A row of queries with a block of keys and values, added to what it has of the blocks before; arrays are [heads][rows][dimensions].
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
  bool first;  ///< nothing is summed up yet
  bool last;   ///< `out` is written
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

/// By the processor.
inline void run(const any& kernel, std::size_t count) {
  std::visit(
      [count](const auto& k) {
        for (std::size_t i = 0; i < count; ++i) k(i);
      },
      kernel);
}

}  // namespace parley::tests::kernels
