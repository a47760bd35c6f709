#pragma once
// bf16 matrices of small whole numbers, so that every order of summing gives the same bits. For code that nvcc does
// not compile.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace examples {

/// Part of a matrix of whole numbers from -2 to 2, which its seed determines. On average five of every `of` elements
/// are drawn from these values, zero included; the others are zero.
struct whole_numbers {
  std::uint64_t seed = 0;
  std::uint64_t first_row = 0;
  std::uint64_t first_column = 0;
  std::uint64_t of = 5;
};
cudaError_t launch_whole_numbers(void* to, std::uint64_t rows, std::uint64_t columns, whole_numbers n, cudaStream_t s);

/// c (m x n) = a (m x k) times b (n x k) transposed, both of whole numbers, as a simple kernel computes it. Only rows
/// 0, `step`, 2 `step`, … are computed.
struct simple_product {
  std::uint64_t m = 0;
  std::uint64_t n = 0;
  std::uint64_t k = 0;
  std::uint64_t step = 1;
  whole_numbers a;
  whole_numbers b;
};
/// Both add to `*count`: the first the number of elements of c that differ from `right`, the second the number of
/// elements in which two matrices differ.
cudaError_t launch_count_wrong(const void* c, const simple_product& right, unsigned long long* count, cudaStream_t s);
cudaError_t launch_count_different(const void* x, const void* y, std::uint64_t elements, unsigned long long* count,
                                   cudaStream_t s);

/// Matrices of the same size. The length of their rows is a multiple of 8.
struct summands {
  static constexpr unsigned most = 16;
  const void* of[most]{};
  unsigned count = 0;
};
/// to = the first + the second + …, summed in fp32 and in this order for each element.
cudaError_t launch_add_up(void* to, const summands& all, std::uint64_t elements, cudaStream_t s);

/// Like `load_kernels`.
cudaError_t load_matrix_kernels();

}  // namespace examples
