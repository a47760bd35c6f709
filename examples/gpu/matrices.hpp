#pragma once
// Matrices of bf16 with small whole numbers in them, so that every order of summing gives the same bits, for code that nvcc does not compile.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace examples {

/// A part of a matrix of whole numbers from -2 to 2; which ones depends on its seed. On average five of each `of` are drawn from
/// these, zeros among them, and the others are zeros.
struct whole_numbers {
  std::uint64_t seed = 0;
  std::uint64_t first_row = 0;
  std::uint64_t first_column = 0;
  std::uint64_t of = 5;
};
cudaError_t launch_whole_numbers(void* to, std::uint64_t rows, std::uint64_t columns, whole_numbers n, cudaStream_t s);

/// c (m x n) as a simple kernel has it: a (m x k) times b (n x k) transposed, both of whole numbers; only rows 0, `step`, 2 `step` …
struct simple_product {
  std::uint64_t m = 0;
  std::uint64_t n = 0;
  std::uint64_t k = 0;
  std::uint64_t step = 1;
  whole_numbers a;
  whole_numbers b;
};
/// Adds to `*count` how many elements of c are not that, and how many of two matrices differ.
cudaError_t launch_count_wrong(const void* c, const simple_product& right, unsigned long long* count, cudaStream_t s);
cudaError_t launch_count_different(const void* x, const void* y, std::uint64_t elements, unsigned long long* count,
                                   cudaStream_t s);

/// Matrices of the same size, whose rows are multiples of 8 long.
struct summands {
  static constexpr unsigned most = 16;
  const void* of[most]{};
  unsigned count = 0;
};
/// to = the first + the second + …, in this order for each element, in fp32.
cudaError_t launch_add_up(void* to, const summands& all, std::uint64_t elements, cudaStream_t s);

/// As `load_kernels`.
cudaError_t load_matrix_kernels();

}  // namespace examples
