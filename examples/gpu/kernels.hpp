#pragma once
// The GPU kernels of this folder's examples, for code that nvcc does not compile.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace examples {

/// to[i] = x[i] * factor + term.
cudaError_t launch_scale(float* to, const float* x, float factor, float term, std::size_t count, cudaStream_t s);
/// to[i] = x[i] + y[i].
cudaError_t launch_add(float* to, const float* x, const float* y, std::size_t count, cudaStream_t s);

/// Adds to `*unlike` the number of elements in which `seen` and `right` differ.
cudaError_t launch_count_unlike(unsigned* unlike, const float* seen, const float* right, std::size_t count,
                                cudaStream_t s);

/// One rank's part of a training step: gradients[i] = weights[i] * rate + (5 * rank + 3 * *step + i) % batch_period -
/// (batch_period - 1) / 2. The last two terms differ in each step, so no later step hides a wrong sum; over
/// `batch_period` consecutive steps they add up to zero.
constexpr unsigned batch_period = 64;
struct gradient_terms {
  float rate = 0;
  unsigned rank = 0;
};
cudaError_t launch_gradients(float* gradients, const float* weights, gradient_terms t, const unsigned* step,
                             std::size_t count, cudaStream_t s);
/// weights[i] += gradients[i], and increments `*step`.
cudaError_t launch_update(float* weights, const float* gradients, unsigned* step, std::size_t count, cudaStream_t s);

/// A block of a grid, with one row above and one below that belong to the neighbours. The first and the last column
/// never change.
struct jacobi_block {
  std::uint64_t columns = 0;
  std::uint64_t rows = 0;       ///< without the neighbours' two
  std::uint64_t first_row = 0;  ///< position in the whole grid
  std::uint64_t all_rows = 0;
};
/// Fills the field with zeros, and its first and last column with sin(2 pi row / (all_rows - 1)).
cudaError_t launch_begin(float* field, const jacobi_block& b, cudaStream_t s);
/// Sweeps rows [from_row, to_row) once, counted from 1. Adds the squares of the changes to `*norm` unless that is
/// null.
cudaError_t launch_sweep(float* to, const float* from, const jacobi_block& b, std::uint64_t from_row,
                         std::uint64_t to_row, float* norm, cudaStream_t s);

/// Loads all kernels for the current device. CUDA otherwise loads a kernel at its first launch and then waits for all
/// streams, even for one that waits for a message.
cudaError_t load_kernels();

}  // namespace examples
