#pragma once
// What `gemm` and `cuda_gemm` share: the sizes of a call, in column-major order, their checks, and their names and keys in results files.
#include <parley/error.hpp>
#include <parley/gemm_call.hpp>
#include <parley/kernel_key.hpp>
#include <parley/ops/kernels/kernel_output.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace parley::ops::gemm_sizes {

using runtime::errc;
using tuning::kernel_key;

inline std::string text_of(std::size_t n) { return std::to_string(n); }

/// The smallest leading dimensions, in column-major order.
struct smallest {
  template <class T, class Out>
  explicit smallest(const gemm_call<T, Out>& c) : smallest(c.m, c.n, c.k, c.trans_a, c.trans_b) {}
  smallest(std::size_t m, std::size_t n, std::size_t k, bool trans_a, bool trans_b)
      : lda(std::max<std::size_t>(trans_a ? k : m, 1)), ldb(std::max<std::size_t>(trans_b ? n : k, 1)),
        ldc(std::max<std::size_t>(m, 1)) {}
  std::size_t lda, ldb, ldc;
};

/// The same multiplication in column-major order, with all leading dimensions and strides.
template <class T, class Out>
gemm_call<T, Out> in_full(const gemm_call<T, Out>& given) {
  gemm_call<T, Out> c = given;
  if (c.order == matrix_order::row_major) {
    std::swap(c.m, c.n);
    std::swap(c.a, c.b);
    std::swap(c.lda, c.ldb);
    std::swap(c.stride_a, c.stride_b);
    std::swap(c.trans_a, c.trans_b);
    std::swap(c.scale_a, c.scale_b);
    c.order = matrix_order::column_major;
  }
  const smallest least(c);
  if (c.lda == 0) c.lda = least.lda;
  if (c.ldb == 0) c.ldb = least.ldb;
  if (c.ldc == 0) c.ldc = least.ldc;
  if (c.stride_a == 0) c.stride_a = c.lda * (c.trans_a ? c.m : c.k);
  if (c.stride_b == 0) c.stride_b = c.ldb * (c.trans_b ? c.k : c.n);
  if (c.stride_c == 0) c.stride_c = c.ldc * c.n;
  return c;
}

template <class T, class Out>
bool is_of_same_sizes(const gemm_call<T, Out>& a, const gemm_call<T, Out>& b) {
  return a.m == b.m && a.n == b.n && a.k == b.k && a.trans_a == b.trans_a && a.trans_b == b.trans_b && a.lda == b.lda &&
         a.ldb == b.ldb && a.ldc == b.ldc && a.batch == b.batch && a.stride_a == b.stride_a &&
         a.stride_b == b.stride_b && a.stride_c == b.stride_c && a.order == b.order &&
         a.bias.empty() == b.bias.empty() && a.scales_by_row == b.scales_by_row;
}

// ---- checks

[[noreturn]] inline void refuse(const std::string& what) { runtime::raise({errc::bad_argument, "gemm: " + what}); }

/// The elements of a matrix, or of all of a batch.
inline std::size_t elements(const char* name, std::size_t rows, std::size_t columns, std::size_t leading,
                            std::size_t batch, std::size_t stride) {
  if (leading < rows)
    refuse(std::string("the leading dimension of ") + name + " is " + text_of(leading) + ", but it must be at least " +
           text_of(rows));
  if (rows == 0 || columns == 0 || batch == 0) return 0;
  std::size_t before_last = 0, all = (columns - 1) * leading + rows;  // both sizes are less than 2^31
  if (__builtin_mul_overflow(batch - 1, stride, &before_last) || __builtin_add_overflow(all, before_last, &all))
    refuse(std::string(name) + " would have more elements than there can be");
  return all;
}

template <class T, class Out>
gemm_memory memory_of(const gemm_call<T, Out>& c, matrix_order given) {
  for (const std::size_t size : {c.m, c.n, c.k, c.lda, c.ldb, c.ldc})
    if (size > INT_MAX) refuse("sizes and leading dimensions must be less than 2^31");
  const bool swapped = given == matrix_order::row_major;
  gemm_memory needs;
  needs.a = elements(swapped ? "B" : "A", c.trans_a ? c.k : c.m, c.trans_a ? c.m : c.k, c.lda, c.batch, c.stride_a);
  needs.b = elements(swapped ? "A" : "B", c.trans_b ? c.n : c.k, c.trans_b ? c.k : c.n, c.ldb, c.batch, c.stride_b);
  needs.c = elements("C", c.m, c.n, c.ldc, c.batch, c.stride_c);
  return needs;
}

inline void check_has(const char* name, std::size_t has, std::size_t needs) {
  if (has < needs) [[unlikely]]
    refuse(std::string(name) + " has " + text_of(has) + " elements, but this multiplication needs " + text_of(needs));
}

/// True if one matrix C of a batch has elements of another. They may follow each other, or lie side by side between the columns.
template <class T, class Out>
bool overlaps_itself(const gemm_call<T, Out>& c) {
  if (c.m == 0 || c.n == 0) return false;
  const bool follow = c.stride_c >= c.ldc * (c.n - 1) + c.m;
  const bool side_by_side = c.stride_c >= c.m && (c.batch - 1) <= (c.ldc - c.m) / c.stride_c;
  return !follow && !side_by_side;
}

template <class T, class Out>
void check(const gemm_call<T, Out>& c, const gemm_memory& needs, matrix_order given) {
  const bool swapped = given == matrix_order::row_major;
  check_has(swapped ? "B" : "A", c.a.size(), needs.a);
  check_has(swapped ? "A" : "B", c.b.size(), needs.b);
  check_has("C", c.c.size(), needs.c);
  if (sizeof(T) != 1 && (c.scale_a != nullptr || c.scale_b != nullptr)) refuse("only numbers of 8 bits have scales");
  if (c.scales_by_row && (c.scale_a == nullptr || c.scale_b == nullptr))
    refuse("scales by row need both `scale_a` and `scale_b`");
  if (c.batch > 1 && overlaps_itself(c)) refuse("the C of one batch overlaps the next one");
  if (!c.bias.empty() && c.bias.size() != c.m)
    refuse("the bias has " + text_of(c.bias.size()) + " elements, but it must have " + text_of(c.m));
}

/// A call of known sizes, `full`, with the factors and the memory of another call of these sizes. Throws `bad_argument` if they do not fit.
template <class T, class Out>
gemm_call<T, Out> with_memory_of(const gemm_call<T, Out>& given, const gemm_call<T, Out>& full,
                                 const gemm_memory& needs) {
  gemm_call<T, Out> call = full;
  const bool swapped = given.order == matrix_order::row_major;
  call.alpha = given.alpha, call.beta = given.beta;
  call.a = swapped ? given.b : given.a;
  call.b = swapped ? given.a : given.b;
  call.c = given.c, call.bias = given.bias;
  call.scale_a = swapped ? given.scale_b : given.scale_a;
  call.scale_b = swapped ? given.scale_a : given.scale_b;
  check(call, needs, given.order);
  call.a = call.a.first(needs.a);
  call.b = call.b.first(needs.b);
  call.c = call.c.first(needs.c);
  return call;
}

/// What a call needs, of its own A and B.
template <class T, class Out>
gemm_memory needs_of(const gemm_call<T, Out>& given) {
  gemm_memory all = memory_of(in_full(given), given.order);
  if (given.order == matrix_order::row_major) std::swap(all.a, all.b);
  return all;
}

// ---- names and keys

enum class gemm_kind : std::uint8_t { plain, batched, with_bias };

template <class T, class Out>
gemm_kind kind_of(const gemm_call<T, Out>& c) {
  if (c.batch != 1) return gemm_kind::batched;
  return c.bias.empty() ? gemm_kind::plain : gemm_kind::with_bias;
}

template <class T, class Out>
kernel_key key_of(const gemm_call<T, Out>& c) {
  return {{"m", c.m}, {"n", c.n}, {"k", c.k}, {"lda", c.lda}, {"ldb", c.ldb}, {"ldc", c.ldc}, {"batch", c.batch}};
}

/// The texts of a key as TunableOp writes it: the first one is written, and all are looked up.
inline std::vector<std::string> texts_of(const kernel_key& key, bool trans_a, bool trans_b) {
  std::array<std::size_t, 7> n{};
  std::transform(key.begin(), key.begin() + n.size(), n.begin(),
                 [](const tuning::kernel_parameter& p) { return p.number; });
  const auto [m, columns, k, lda, ldb, ldc, batch] = n;
  std::string sizes = std::string(trans_a ? "t" : "n") + (trans_b ? "t" : "n") + "_" + text_of(m) + "_" +
                      text_of(columns) + "_" + text_of(k);
  if (batch != 1) sizes += "_B_" + text_of(batch);
  std::string all = sizes + "_ld_" + text_of(lda) + "_" + text_of(ldb) + "_" + text_of(ldc);
  const smallest least(m, columns, k, trans_a, trans_b);
  if (lda != least.lda || ldb != least.ldb || ldc != least.ldc) return {std::move(all)};
  return {std::move(sizes), std::move(all)};
}

template <class T, class Out>
kernel_outputs outputs_of(const gemm_call<T, Out>& c) {
  const bool has_gaps = c.ldc != c.m || (c.batch > 1 && c.stride_c != c.ldc * c.n);
  // What lies between columns must stay, so it is restored like an output that is read.
  return c.beta != 0 || has_gaps ? kernel_outputs::updated(c.c) : kernel_outputs(c.c);
}

}  // namespace parley::ops::gemm_sizes
