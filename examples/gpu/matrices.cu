#include "hash.cuh"
#include "matrices.hpp"

#include <cuda_bf16.h>

namespace examples {

namespace {

using bf16 = __nv_bfloat16;

constexpr unsigned threads = 256;
constexpr unsigned blocks = 2048;

__device__ int whole_number(const whole_numbers& n, std::uint64_t row, std::uint64_t column) {
  const std::uint64_t drawn = hash_of(n.seed, n.first_row + row, n.first_column + column) % n.of;
  return drawn < 5 ? static_cast<int>(drawn) - 2 : 0;
}

__global__ void fill(bf16* to, std::uint64_t rows, std::uint64_t columns, whole_numbers n) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * columns; i += step)
    to[i] = static_cast<bf16>(static_cast<float>(whole_number(n, i / columns, i % columns)));
}

__global__ void count_wrong(const bf16* c, simple_product p, unsigned long long* count) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  const std::uint64_t looked_at = (p.m + p.step - 1) / p.step * p.n;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < looked_at; i += step) {
    const std::uint64_t row = i / p.n * p.step;
    int sum = 0;
    for (std::uint64_t k = 0; k < p.k; ++k) sum += whole_number(p.a, row, k) * whole_number(p.b, i % p.n, k);
    const auto right = static_cast<bf16>(static_cast<float>(sum));
    if (static_cast<float>(c[row * p.n + i % p.n]) != static_cast<float>(right)) atomicAdd(count, 1ULL);
  }
}

__global__ void count_different(const std::uint16_t* x, const std::uint16_t* y, std::uint64_t elements,
                                unsigned long long* count) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += step) {
    if (x[i] != y[i]) atomicAdd(count, 1ULL);
  }
}

__global__ void add_up(uint4* to, summands all, std::uint64_t eights) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < eights; i += step) {
    float2 sum[4]{};
    for (unsigned k = 0; k < all.count; ++k) {
      const uint4 eight = static_cast<const uint4*>(all.of[k])[i];
      const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&eight);
#pragma unroll
      for (unsigned p = 0; p < 4; ++p) {
        const float2 pair = __bfloat1622float2(pairs[p]);
        sum[p].x += pair.x;
        sum[p].y += pair.y;
      }
    }
    uint4 eight;
    auto* const pairs = reinterpret_cast<__nv_bfloat162*>(&eight);
#pragma unroll
    for (unsigned p = 0; p < 4; ++p) pairs[p] = __float22bfloat162_rn(sum[p]);
    to[i] = eight;
  }
}

}  // namespace

cudaError_t launch_whole_numbers(void* to, std::uint64_t rows, std::uint64_t columns, whole_numbers n, cudaStream_t s) {
  fill<<<blocks, threads, 0, s>>>(static_cast<bf16*>(to), rows, columns, n);
  return cudaGetLastError();
}

cudaError_t launch_count_wrong(const void* c, const simple_product& right, unsigned long long* count, cudaStream_t s) {
  count_wrong<<<blocks, threads, 0, s>>>(static_cast<const bf16*>(c), right, count);
  return cudaGetLastError();
}

cudaError_t launch_count_different(const void* x, const void* y, std::uint64_t elements, unsigned long long* count,
                                   cudaStream_t s) {
  count_different<<<blocks, threads, 0, s>>>(static_cast<const std::uint16_t*>(x), static_cast<const std::uint16_t*>(y),
                                             elements, count);
  return cudaGetLastError();
}

cudaError_t launch_add_up(void* to, const summands& all, std::uint64_t elements, cudaStream_t s) {
  if (elements % 8 != 0) return cudaErrorInvalidValue;
  add_up<<<blocks, threads, 0, s>>>(static_cast<uint4*>(to), all, elements / 8);
  return cudaGetLastError();
}

cudaError_t load_matrix_kernels() {
  cudaFuncAttributes a{};
  for (const void* kernel : {reinterpret_cast<const void*>(&fill), reinterpret_cast<const void*>(&count_wrong),
                             reinterpret_cast<const void*>(&count_different), reinterpret_cast<const void*>(&add_up)}) {
    if (const cudaError_t e = cudaFuncGetAttributes(&a, kernel); e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace examples
