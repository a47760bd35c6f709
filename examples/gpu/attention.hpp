#pragma once
// Attention of a block of queries with a block of keys and values on a GPU, as in one step of a ring. For code that
// nvcc does not compile.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace examples {

enum class element : std::uint8_t { fp32, bf16 };

/// Arrays are [heads][rows][dimensions], with 16, 32, 64 or 128 dimensions. The sums are kept from one block to the
/// next. A key with score -inf is masked: its weight is zero, but its value must be finite, because products cover
/// whole tiles. A row whose keys are all masked is zero.
struct attention_block {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* maximum = nullptr;   ///< [heads][rows], largest score so far, in the kernel's own unit
  float* weight = nullptr;    ///< [heads][rows]
  float* weighted = nullptr;  ///< [heads][rows][dimensions]
  std::uint64_t heads = 0;
  std::uint64_t rows = 0;
  std::uint64_t dimensions = 0;
  bool diagonal = false;  ///< row i sees keys 0 to i instead of all keys
  bool first = false;     ///< the sums start with this block
  bool last = false;      ///< writes `out` instead of the sums
};
/// bf16 runs on tensor cores and sums in fp32. Returns cudaErrorInvalidValue for other numbers of dimensions.
cudaError_t launch_attention(const attention_block& b, element e, cudaStream_t s);

/// The test data of a sequence: multiples of 1/500 between -2 and 2, rounded to the element type.
struct sequence_numbers {
  std::uint64_t seed = 0;
  std::uint64_t first_row = 0;
};
cudaError_t launch_numbers(void* to, element e, std::uint64_t heads, std::uint64_t rows, std::uint64_t dimensions,
                           sequence_numbers n, cudaStream_t s);

/// The rows of the result that a simple kernel computes in one piece, over a sequence of `sequence_numbers`.
struct dense_rows {
  std::uint64_t heads = 0;
  std::uint64_t sequence = 0;
  std::uint64_t dimensions = 0;
  std::uint64_t first = 0;  ///< row of the sequence
  std::uint64_t step = 1;
  std::uint64_t count = 0;
  bool causal = false;
  std::uint64_t seed_q = 0, seed_k = 0, seed_v = 0;
};
/// Both write to [heads][count][dimensions]; `scores` needs room for heads * count * sequence numbers. `launch_dense`
/// sums in double and does not round; `launch_dense_rounded` sums in float and rounds to the element type.
cudaError_t launch_dense(double* to, double* scores, const dense_rows& d, element e, cudaStream_t s);
cudaError_t launch_dense_rounded(double* to, float* scores, const dense_rows& d, element e, cudaStream_t s);

/// Like `load_kernels`.
cudaError_t load_attention_kernels();

}  // namespace examples
