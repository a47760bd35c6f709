#include "stage_kernel.hpp"

namespace examples {

namespace {

__device__ std::uint64_t now() {
  std::uint64_t ns = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void stage(stage_step step) {
  const std::uint64_t began = now();
  const std::uint64_t end = began + step.spin_ns;
  const std::size_t width = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < step.count; i += width) {
    const float fresh = step.base + static_cast<float>(i % 1000);
    const float x = step.in == nullptr ? fresh : step.in[i];
    if (step.in != nullptr && x != fresh * step.expected_factor) atomicAdd(step.wrong, 1U);
    if (step.out != nullptr) step.out[i] = x * step.factor + step.term;
  }
  while (now() < end) {}
  if (step.times != nullptr && blockIdx.x == 0 && threadIdx.x == 0) {
    step.times[0] = began;
    step.times[1] = now();
  }
}

}  // namespace

cudaError_t launch_stage(const stage_step& step, int device, cudaStream_t stream) {
  if (const cudaError_t e = cudaSetDevice(device); e != cudaSuccess) return e;
  stage<<<16, 256, 0, stream>>>(step);
  return cudaGetLastError();
}

}  // namespace examples
