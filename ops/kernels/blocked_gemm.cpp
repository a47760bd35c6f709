// C is computed in tiles that fit the second-level cache. For each tile, panels of A and B are copied so that the innermost loop reads both
// from front to back.
#include <parley/ops/kernels/blocked_gemm.hpp>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace parley::ops {

namespace {

constexpr std::size_t vector_bytes = 32;
constexpr std::size_t panel_columns = 6;
// Of a tile and of its panels, at most.
constexpr std::size_t most_rows = 192;
constexpr std::size_t most_columns = 240;
constexpr std::size_t most_depth = 256;

template <class Sum>
using vector_of [[gnu::vector_size(vector_bytes)]] = Sum;
template <class Sum>
constexpr std::size_t lanes = vector_bytes / sizeof(Sum);
template <class Sum>
constexpr std::size_t panel_rows = 2 * lanes<Sum>;

std::size_t rounded_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

// Adds the product of two panels to `panel_rows` x `panel_columns` sums, whose columns are `stride` apart.
template <class Sum>
[[gnu::always_inline]] inline void add_product(std::size_t k, const Sum* a, const Sum* b, Sum* sums,
                                               std::size_t stride) {
  using vec = vector_of<Sum>;
  vec upper[panel_columns]{}, lower[panel_columns]{};
  for (std::size_t p = 0; p < k; ++p, a += panel_rows<Sum>, b += panel_columns) {
    vec first, second;
    __builtin_memcpy(&first, a, sizeof first);
    __builtin_memcpy(&second, a + lanes<Sum>, sizeof second);
#pragma GCC unroll 6
    for (std::size_t j = 0; j < panel_columns; ++j) {
      upper[j] += first * b[j];
      lower[j] += second * b[j];
    }
  }
  for (std::size_t j = 0; j < panel_columns; ++j, sums += stride) {
    for (std::size_t i = 0; i < lanes<Sum>; ++i) {
      sums[i] += upper[j][i];
      sums[i + lanes<Sum>] += lower[j][i];
    }
  }
}

// Adds the product of all panels to a tile of whole panels.
template <class Sum>
[[gnu::always_inline]] inline void add_panels(std::size_t rows, std::size_t columns, std::size_t k, const Sum* a,
                                              const Sum* b, Sum* tile, std::size_t stride) {
  for (std::size_t j = 0; j < columns; j += panel_columns)
    for (std::size_t i = 0; i < rows; i += panel_rows<Sum>)
      add_product(k, a + i * k, b + j * k, tile + j * stride + i, stride);
}
template <class Sum>
void add_panels_plain(std::size_t rows, std::size_t columns, std::size_t k, const Sum* a, const Sum* b, Sum* tile,
                      std::size_t stride) {
  add_panels(rows, columns, k, a, b, tile, stride);
}

#ifdef __x86_64__
template <class Sum>
[[gnu::target("avx2,fma")]] void add_panels_avx2(std::size_t rows, std::size_t columns, std::size_t k, const Sum* a,
                                                 const Sum* b, Sum* tile, std::size_t stride) {
  add_panels(rows, columns, k, a, b, tile, stride);
}
template <class Sum>
auto fastest_for_this_processor() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &add_panels_avx2<Sum>
                                                                         : &add_panels_plain<Sum>;
}
#else
template <class Sum>
auto fastest_for_this_processor() {
  return &add_panels_plain<Sum>;
}
#endif

// A matrix of which `at(i, j)` is an element, transposed or not.
template <class T>
struct operand {
  const T* first;
  std::size_t leading;
  bool transposed;
  const T* at(std::size_t i, std::size_t j) const { return first + (transposed ? i * leading + j : j * leading + i); }
  std::size_t to_next_row() const { return transposed ? leading : 1; }
};

// Copies rows (of A) or columns (of B) as panels of `width`: for each of the k elements of its rows, those of the whole panel lie side by
// side. What the matrix lacks is 0.
template <class Sum, class T>
void pack(const operand<T>& from, std::size_t row, std::size_t rows, std::size_t column, std::size_t k,
          std::size_t width, Sum* to) {
  for (std::size_t i = 0; i < rows; i += width) {
    const std::size_t here = std::min(width, rows - i);
    for (std::size_t p = 0; p < k; ++p, to += width) {
      const T* at = from.at(row + i, column + p);
      for (std::size_t r = 0; r < here; ++r, at += from.to_next_row()) to[r] = static_cast<Sum>(*at);
      std::fill(to + here, to + width, Sum{});
    }
  }
}

template <class T>
void multiply_one(const gemm_call<T>& call, const T* a, const T* b, T* c) {
  using sum = gemm_scalar<T>;
  static const auto add = fastest_for_this_processor<sum>();
  const operand<T> left{a, call.lda, call.trans_a},
      right{b, call.ldb, !call.trans_b};  // columns of op(B) are rows of its transpose
  const std::size_t all_k = call.alpha == sum{} ? 0 : call.k;
  const std::size_t depth = std::min(most_depth, all_k);
  const std::size_t tile_rows = std::min(most_rows, rounded_up(call.m, panel_rows<sum>));
  const std::size_t tile_columns = std::min(most_columns, rounded_up(call.n, panel_columns));
  std::vector<sum> tile(tile_rows * tile_columns), panels_of_a(tile_rows * depth), panels_of_b(tile_columns * depth);
  for (std::size_t j = 0; j < call.n; j += tile_columns) {
    const std::size_t columns = std::min(tile_columns, call.n - j);
    for (std::size_t i = 0; i < call.m; i += tile_rows) {
      const std::size_t rows = std::min(tile_rows, call.m - i);
      std::fill(tile.begin(), tile.end(), sum{});
      for (std::size_t p = 0; p < all_k; p += depth) {
        const std::size_t k = std::min(depth, all_k - p);
        pack(left, i, rows, p, k, panel_rows<sum>, panels_of_a.data());
        pack(right, j, columns, p, k, panel_columns, panels_of_b.data());
        add(rounded_up(rows, panel_rows<sum>), columns, k, panels_of_a.data(), panels_of_b.data(), tile.data(),
            tile_rows);
      }
      for (std::size_t column = 0; column < columns; ++column) {
        const sum* const sums = &tile[column * tile_rows];
        T* const out = c + (j + column) * call.ldc + i;
        for (std::size_t row = 0; row < rows; ++row) {
          const sum before = call.beta == sum{} ? sum{} : call.beta * static_cast<sum>(out[row]);
          const sum more = call.bias.empty() ? sum{} : static_cast<sum>(call.bias[i + row]);
          out[row] = static_cast<T>(call.alpha * sums[row] + before + more);
        }
      }
    }
  }
}

}  // namespace

template <class T>
void multiply_blocked(const gemm_call<T>& call) {
  for (std::size_t i = 0; i < call.batch; ++i)
    multiply_one(call, call.a.data() + i * call.stride_a, call.b.data() + i * call.stride_b,
                 call.c.data() + i * call.stride_c);
}

template void multiply_blocked(const gemm_call<float>&);
template void multiply_blocked(const gemm_call<double>&);
template void multiply_blocked(const gemm_call<runtime::bf16>&);

}  // namespace parley::ops
