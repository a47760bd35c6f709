#include "kernels.hpp"

namespace examples {

namespace {

constexpr unsigned threads = 256;
constexpr double pi = 3.14159265358979323846;

unsigned blocks_for(std::size_t count) {
  constexpr std::size_t most = 1024;
  const std::size_t useful = (count + threads - 1) / threads;
  return static_cast<unsigned>(useful < most ? useful : most);
}

__global__ void scale(float* to, const float* x, float factor, float term, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    to[i] = x[i] * factor + term;
}

__global__ void add(float* to, const float* x, const float* y, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) to[i] = x[i] + y[i];
}

__global__ void count_unlike(unsigned* unlike, const float* seen, const float* right, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  unsigned mine = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    mine += seen[i] == right[i] ? 0 : 1;  // NaN counts as different
  if (mine != 0) atomicAdd(unlike, mine);
}

__global__ void gradients_of(float* gradients, const float* weights, gradient_terms t, const unsigned* steps,
                             std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  const unsigned first = 5 * t.rank + 3 * *steps;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const unsigned batch = (first + static_cast<unsigned>(i)) % batch_period;
    gradients[i] = weights[i] * t.rate + (static_cast<float>(batch) - 0.5F * (batch_period - 1));
  }
}

__global__ void update(float* weights, const float* gradients, unsigned* steps, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (std::size_t i = first; i < count; i += step) weights[i] += gradients[i];
  if (first == 0) ++*steps;  // no thread of this kernel reads it
}

__global__ void begin(float* field, jacobi_block b) {
  const std::uint64_t count = (b.rows + 2) * b.columns;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const std::uint64_t column = i % b.columns;
    // The grid is periodic in this direction: the row above the first is the last.
    const std::uint64_t row = (b.first_row + i / b.columns + b.all_rows - 1) % b.all_rows;
    const bool edge = column == 0 || column + 1 == b.columns;
    field[i] = edge ? static_cast<float>(sin(2.0 * pi * static_cast<double>(row) / static_cast<double>(b.all_rows - 1)))
                    : 0.0F;
  }
}

constexpr unsigned tile_columns = 32;
constexpr unsigned tile_rows = 8;
constexpr unsigned rows_per_thread = 4;

template <bool with_norm>
__global__ void __launch_bounds__(tile_columns* tile_rows)
    sweep(float* __restrict__ to, const float* __restrict__ from, std::uint64_t columns, std::uint64_t from_row,
          std::uint64_t to_row, float* norm) {
  const std::uint64_t column = std::uint64_t{blockIdx.x} * tile_columns + threadIdx.x + 1;
  const std::uint64_t first = from_row + (std::uint64_t{blockIdx.y} * tile_rows + threadIdx.y) * rows_per_thread;
  float sum = 0;
  if (column + 1 < columns && first < to_row) {
    const float* at = from + first * columns + column;
    float above = *(at - columns);
    float here = *at;
#pragma unroll
    for (unsigned k = 0; k < rows_per_thread; ++k) {
      if (first + k >= to_row) break;
      const float below = at[columns];
      const float next = 0.25F * (at[1] + at[-1] + below + above);
      to[(first + k) * columns + column] = next;
      if constexpr (with_norm) sum += (next - here) * (next - here);
      above = here;
      here = below;
      at += columns;
    }
  }
  if constexpr (with_norm) {
    __shared__ float sums[tile_rows];
    for (unsigned lanes = 16; lanes != 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffU, sum, lanes);
    if (threadIdx.x == 0) sums[threadIdx.y] = sum;
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
      for (unsigned i = 1; i < tile_rows; ++i) sum += sums[i];
      atomicAdd(norm, sum);
    }
  }
}

}  // namespace

cudaError_t launch_scale(float* to, const float* x, float factor, float term, std::size_t count, cudaStream_t s) {
  scale<<<blocks_for(count), threads, 0, s>>>(to, x, factor, term, count);
  return cudaGetLastError();
}

cudaError_t launch_add(float* to, const float* x, const float* y, std::size_t count, cudaStream_t s) {
  add<<<blocks_for(count), threads, 0, s>>>(to, x, y, count);
  return cudaGetLastError();
}

cudaError_t launch_count_unlike(unsigned* unlike, const float* seen, const float* right, std::size_t count,
                                cudaStream_t s) {
  count_unlike<<<blocks_for(count), threads, 0, s>>>(unlike, seen, right, count);
  return cudaGetLastError();
}

cudaError_t launch_gradients(float* gradients, const float* weights, gradient_terms t, const unsigned* step,
                             std::size_t count, cudaStream_t s) {
  gradients_of<<<blocks_for(count), threads, 0, s>>>(gradients, weights, t, step, count);
  return cudaGetLastError();
}

cudaError_t launch_update(float* weights, const float* gradients, unsigned* step, std::size_t count, cudaStream_t s) {
  update<<<blocks_for(count), threads, 0, s>>>(weights, gradients, step, count);
  return cudaGetLastError();
}

cudaError_t launch_begin(float* field, const jacobi_block& b, cudaStream_t s) {
  begin<<<blocks_for((b.rows + 2) * b.columns), threads, 0, s>>>(field, b);
  return cudaGetLastError();
}

cudaError_t launch_sweep(float* to, const float* from, const jacobi_block& b, std::uint64_t from_row,
                         std::uint64_t to_row, float* norm, cudaStream_t s) {
  if (from_row >= to_row) return cudaSuccess;
  constexpr std::uint64_t rows_per_block = tile_rows * rows_per_thread;
  const dim3 grid(static_cast<unsigned>((b.columns + tile_columns - 1) / tile_columns),
                  static_cast<unsigned>((to_row - from_row + rows_per_block - 1) / rows_per_block));
  const dim3 block(tile_columns, tile_rows);
  if (norm != nullptr) {
    sweep<true><<<grid, block, 0, s>>>(to, from, b.columns, from_row, to_row, norm);
  } else {
    sweep<false><<<grid, block, 0, s>>>(to, from, b.columns, from_row, to_row, nullptr);
  }
  return cudaGetLastError();
}

cudaError_t load_kernels() {
  cudaFuncAttributes a{};
  for (const void* kernel : {reinterpret_cast<const void*>(&scale), reinterpret_cast<const void*>(&add),
                             reinterpret_cast<const void*>(&count_unlike), reinterpret_cast<const void*>(&gradients_of),
                             reinterpret_cast<const void*>(&update), reinterpret_cast<const void*>(&begin),
                             reinterpret_cast<const void*>(&sweep<true>),
                             reinterpret_cast<const void*>(&sweep<false>)}) {
    if (const cudaError_t e = cudaFuncGetAttributes(&a, kernel); e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace examples
