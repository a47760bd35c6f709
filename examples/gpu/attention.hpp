#pragma once
// Attention of a block of queries with one of keys and values on a GPU, as a ring has it, for code that nvcc does not compile.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace examples {

enum class element : std::uint8_t { fp32, bf16 };

/// Arrays are [heads][rows][dimensions], with 16, 32, 64 or 128 dimensions; sums are kept from one block to the next. A key that scores
/// -inf is masked: it weighs nothing, but its value has to be finite, as the products are made of whole tiles. A row all of whose keys are
/// masked is zero.
struct attention_block {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* maximum = nullptr;   ///< [heads][rows], of the scores, in the kernel's own unit
  float* weight = nullptr;    ///< [heads][rows]
  float* weighted = nullptr;  ///< [heads][rows][dimensions]
  std::uint64_t heads = 0;
  std::uint64_t rows = 0;
  std::uint64_t dimensions = 0;
  bool diagonal = false;  ///< row i sees keys 0 to i, instead of all
  bool first = false;     ///< the sums begin here
  bool last = false;      ///< `out` is written instead of the sums
};
/// By tensor cores for bf16, with sums in fp32. cudaErrorInvalidValue for other dimensions.
cudaError_t launch_attention(const attention_block& b, element e, cudaStream_t s);

/// What is found in a sequence: multiples of 1/500 between -2 and 2, rounded to the element.
struct sequence_numbers {
  std::uint64_t seed = 0;
  std::uint64_t first_row = 0;
};
cudaError_t launch_numbers(void* to, element e, std::uint64_t heads, std::uint64_t rows, std::uint64_t dimensions,
                           sequence_numbers n, cudaStream_t s);

/// Rows of the result as a simple kernel computes them, in one piece, over a sequence of those numbers.
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
/// To [heads][count][dimensions]; `scores` has room for heads * count * sequence numbers. Summed up in double, and not rounded, or in
/// float and rounded to the element.
cudaError_t launch_dense(double* to, double* scores, const dense_rows& d, element e, cudaStream_t s);
cudaError_t launch_dense_rounded(double* to, float* scores, const dense_rows& d, element e, cudaStream_t s);

/// As `load_kernels`.
cudaError_t load_attention_kernels();

}  // namespace examples
