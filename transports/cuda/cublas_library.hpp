#pragma once
/// The thin layer over cuBLAS and cuBLASLt: everything that `cuda_gemm` needs from them, compilable without CUDA. The real implementation is
/// in `parley::cuda` (parley/cublas_runtime.hpp); tests have a fake.
///
///     const matrix_product p{.of_a_b = number::bf16, .of_c = number::bf16, .m = 4096, .n = 16, .k = 4096, …};
///     for (const gemm_algorithm& g : library.guesses(p, workspace_bytes)) …       // what its heuristic chooses, the best first
///     gemm_algorithm g{.id = 66, .tile = 24, .stages = 35, .cluster = 5};
///     if (library.takes(p, g, workspace_bytes)) library.multiply(p, values, &g, workspace, stream);
///
/// Matrices are column-major, in the memory of the current device of the stream. Everything is enqueued; nothing waits. One thread.
#include <parley/error.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

struct CUstream_st;

namespace parley::transports {

enum class number : std::uint8_t { f64, f32, tf32, f16, bf16, f8_e4m3 };

/// A multiplication without its memory: C = alpha op(A) op(B) + beta C, `batch` times, plus a bias for each column.
struct matrix_product {
  number of_a_b = number::f32;  ///< `tf32`: numbers of 32 bits that are rounded to 19
  number of_c = number::f32;
  bool trans_a = false, trans_b = false;
  std::size_t m = 0, n = 0, k = 0;
  std::size_t lda = 0, ldb = 0, ldc = 0;
  std::size_t batch = 1, stride_a = 0, stride_b = 0, stride_c = 0;
  bool has_bias = false;
  bool scales_by_row = false;    ///< of `f8_e4m3`: a scale for each row of op(A) and each column of op(B)
  std::uint32_t alignment = 16;  ///< of all matrices, and of the steps between those of a batch, in bytes
  int device = 0;
  friend bool operator==(const matrix_product&, const matrix_product&) = default;
};

/// Addresses in device memory, and the two factors, which are read before `multiply` returns.
struct matrix_values {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;
  const float* scale_a = nullptr;  ///< of `f8_e4m3`; null: 1
  const float* scale_b = nullptr;
  double alpha = 1, beta = 0;
};

/// One of cuBLASLt's algorithms with its settings, in cuBLASLt's numbers.
struct gemm_algorithm {
  int id = 0;
  int tile = 0;
  int stages = 0;
  int split_k = 1;  ///< -1: cuBLASLt splits as it likes
  int reduction = 0;
  int swizzle = 0;
  int custom = 0;
  int inner = 0;
  int cluster = 0;
  std::array<std::uint64_t, 8> state{};  ///< cuBLASLt's own form; `guesses` and `takes` make it
  friend bool operator==(const gemm_algorithm& a, const gemm_algorithm& b) noexcept {
    return a.settings() == b.settings();
  }
  friend auto operator<=>(const gemm_algorithm& a, const gemm_algorithm& b) noexcept {
    return a.settings() <=> b.settings();
  }

 private:
  std::array<int, 9> settings() const noexcept {
    return {id, tile, stages, split_k, reduction, swizzle, custom, inner, cluster};
  }
};

/// The settings that an algorithm may have. Not all combinations exist.
struct gemm_algorithm_range {
  int id = 0;
  std::vector<int> tiles{};
  std::vector<int> stages{};
  std::vector<int> clusters{};
  std::vector<int> reductions{};  ///< of sums that are split; empty: sums cannot be split
  int most_custom = 0;
  int most_swizzle = 0;
};

class cublas_library {
 public:
  virtual ~cublas_library() = default;
  /// For instance `13.1.0`.
  virtual const std::string& version() const noexcept = 0;
  /// What its heuristic chooses, the best first; empty: nothing.
  virtual std::vector<gemm_algorithm> guesses(const matrix_product& p, std::size_t workspace_bytes,
                                              std::size_t most = 64) = 0;
  virtual std::vector<gemm_algorithm_range> ranges(const matrix_product& p) = 0;
  /// Whether cuBLASLt can run the algorithm for this product, within that workspace.
  virtual bool takes(const matrix_product& p, gemm_algorithm& g, std::size_t workspace_bytes) = 0;
  /// By one of cuBLASLt's algorithms. Returns `none` or `device_failed`.
  virtual runtime::errc multiply(const matrix_product& p, const matrix_values& v, const gemm_algorithm& by,
                                 std::span<std::byte> workspace, CUstream_st* stream) = 0;
  /// By cuBLAS, which chooses the algorithm. It takes neither a bias nor `f8_e4m3`.
  virtual runtime::errc multiply(const matrix_product& p, const matrix_values& v, std::span<std::byte> workspace,
                                 CUstream_st* stream) = 0;
  /// The latest error in words.
  virtual std::string fault() const = 0;
};

}  // namespace parley::transports
