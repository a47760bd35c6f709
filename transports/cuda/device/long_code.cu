// Code that is larger than the caches of instructions.
#include <parley/transports/cuda/device/kernels.hpp>
#include <parley/transports/cuda/device/launch.hpp>

#include <cstdint>

namespace parley::transports {

namespace {

// An instruction has 16 bytes, and the largest cache of instructions of one processor has some 128 KiB.
constexpr int steps = 8'192;

// Each step has constants of its own, so the compiler cannot make a short loop of the steps.
// Nothing is written as long as `never` is null.
__global__ void run_long_code(std::uint32_t* never) {
  std::uint32_t x = threadIdx.x;
#pragma unroll 8192
  for (int i = 0; i < steps; ++i) x = (x ^ static_cast<std::uint32_t>(i) * 40'503U) * 1'664'525U;
  if (never != nullptr) *never = x;
}

}  // namespace

cudaError_t launch_long_code(unsigned blocks, cudaStream_t s) {
  constexpr unsigned threads_per_block = 32;
  return launch_kernel(run_long_code, blocks, threads_per_block, s, nullptr);
}

}  // namespace parley::transports
