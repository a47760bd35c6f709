#pragma once
// What the examples of this folder compute on a GPU, for code that nvcc does not compile.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace examples {

/// to[i] = x[i] * factor + term.
cudaError_t launch_scale(float* to, const float* x, float factor, float term, std::size_t count, cudaStream_t s);
/// to[i] = x[i] + y[i].
cudaError_t launch_add(float* to, const float* x, const float* y, std::size_t count, cudaStream_t s);

/// Adds to `*unlike` how many of seen[i] and right[i] differ.
cudaError_t launch_count_unlike(unsigned* unlike, const float* seen, const float* right, std::size_t count,
                                cudaStream_t s);

/// One rank's part of a training step, whose numbers are other ones in each step, so that no later step mends a wrong sum:
/// gradients[i] = weights[i] * rate + (5 * rank + 3 * *step + i) % batch_period - (batch_period - 1) / 2, where over
/// `batch_period` steps in a row the last part is nothing in all.
constexpr unsigned batch_period = 64;
struct gradient_terms {
  float rate = 0;
  unsigned rank = 0;
};
cudaError_t launch_gradients(float* gradients, const float* weights, gradient_terms t, const unsigned* step,
                             std::size_t count, cudaStream_t s);
/// weights[i] += gradients[i], and counts the step.
cudaError_t launch_update(float* weights, const float* gradients, unsigned* step, std::size_t count, cudaStream_t s);

/// A block of a grid with one row above and one below that belong to the neighbours; its first and last column stay as they are.
struct jacobi_block {
  std::uint64_t columns = 0;
  std::uint64_t rows = 0;       ///< without the two
  std::uint64_t first_row = 0;  ///< of the whole grid
  std::uint64_t all_rows = 0;
};
/// Zeros, and sin(2 pi row / (all_rows - 1)) in the first and the last column.
cudaError_t launch_begin(float* field, const jacobi_block& b, cudaStream_t s);
/// One sweep over rows [from_row, to_row), counted from 1; adds the squares of what changed to `*norm` unless that is null.
cudaError_t launch_sweep(float* to, const float* from, const jacobi_block& b, std::uint64_t from_row,
                         std::uint64_t to_row, float* norm, cudaStream_t s);

/// Loads all of them for the device that is current. CUDA loads a kernel where it is first launched, and waits for all streams then:
/// also for one that waits for a message.
cudaError_t load_kernels();

}  // namespace examples
