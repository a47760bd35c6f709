#pragma once
/// The arguments of a matrix multiplication (parley/gemm.hpp).
///
///     const gemm_call<float> call{.m = 512, .n = 256, .k = 64, .trans_b = true, .a = a, .b = b, .c = c};
#include <parley/runtime/narrow_floats.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace parley::ops {

enum class matrix_order : std::uint8_t { column_major, row_major };

/// The type of alpha, beta and of sums.
template <class T>
using gemm_scalar = std::conditional_t<std::is_same_v<T, double>, double, float>;

/// One multiplication. All sizes, and leading dimensions and strides, count elements. T is the type of A and B, and Out that of C and the
/// bias; `gemm` and `cuda_gemm` say which types there are.
template <class T, class Out = T>
struct gemm_call {
  std::size_t m = 0;  ///< rows of C
  std::size_t n = 0;  ///< columns of C
  std::size_t k = 0;  ///< columns of op(A)
  bool trans_a = false;
  bool trans_b = false;
  gemm_scalar<T> alpha = 1;
  std::span<const T> a{};
  std::size_t lda = 0;  ///< from one column to the next (row-major: row); 0: the smallest
  std::span<const T> b{};
  std::size_t ldb = 0;
  gemm_scalar<T> beta = 0;
  std::span<Out> c{};
  std::size_t ldc = 0;
  /// Added to each column of C (row-major: row): `m` (row-major: `n`) numbers. Empty: none.
  std::span<const Out> bias{};
  std::size_t batch = 1;     ///< so many multiplications of one size
  std::size_t stride_a = 0;  ///< from one A to the next; 0: the next one follows
  std::size_t stride_b = 0;
  std::size_t stride_c = 0;
  matrix_order order = matrix_order::column_major;
  /// Of numbers of 8 bits, which only `cuda_gemm` takes: op(A) and op(B) are multiplied by these, in device memory. Null: 1.
  const float* scale_a = nullptr;
  const float* scale_b = nullptr;
  /// `scale_a` has a number for each row of op(A), and `scale_b` one for each column of op(B), for all products of a batch. Needs both.
  bool scales_by_row = false;
};

/// How many elements the matrices of a call must have.
struct gemm_memory {
  std::size_t a = 0;
  std::size_t b = 0;
  std::size_t c = 0;
};

}  // namespace parley::ops
