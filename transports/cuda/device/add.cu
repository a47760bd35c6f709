// Adds one array of numbers in device memory to another.
#include <parley/transports/cuda/device/kernels.hpp>
#include <parley/transports/cuda/device/launch.hpp>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace parley::transports {

namespace {

constexpr unsigned threads_per_block = 256;
constexpr std::size_t most_blocks = 512;

template <class Number>
__device__ Number sum_of(Number a, Number b) {
  return static_cast<Number>(a + b);
}
// Like the host: adds in float and rounds to nearest even.
template <>
__device__ __half sum_of(__half a, __half b) {
  return __float2half_rn(__half2float(a) + __half2float(b));
}
template <>
__device__ __nv_bfloat16 sum_of(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __float2bfloat16_rn(__bfloat162float(a) + __bfloat162float(b));
}

template <class Number>
__global__ void __launch_bounds__(threads_per_block)
    add_numbers(Number* __restrict__ into, const Number* __restrict__ from, std::size_t count) {
  const std::size_t step = std::size_t{gridDim.x} * threads_per_block;
  for (std::size_t at = std::size_t{blockIdx.x} * threads_per_block + threadIdx.x; at < count; at += step)
    into[at] = sum_of(into[at], from[at]);
}

template <class Number>
cudaError_t launch(void* into, const void* from, std::size_t bytes, cudaStream_t s) {
  const std::size_t count = bytes / sizeof(Number);
  const std::size_t useful = (count + threads_per_block - 1) / threads_per_block;
  const auto grid = static_cast<unsigned>(useful < most_blocks ? useful : most_blocks);
  return launch_kernel(add_numbers<Number>, grid, threads_per_block, s, static_cast<Number*>(into),
                       static_cast<const Number*>(from), count);
}

template <class Number>
cudaError_t launch_once(cudaStream_t s) {
  return launch_kernel(add_numbers<Number>, 1, threads_per_block, s, nullptr, nullptr, 0);
}

}  // namespace

cudaError_t launch_adds_once(cudaStream_t s) {
  return first_failure({launch_once<float>(s), launch_once<double>(s), launch_once<std::uint8_t>(s),
                        launch_once<std::uint16_t>(s), launch_once<std::uint32_t>(s), launch_once<std::uint64_t>(s),
                        launch_once<__half>(s), launch_once<__nv_bfloat16>(s)});
}

cudaError_t launch_add(void* into, const void* from, std::size_t bytes, runtime::summand of, cudaStream_t s) {
  if (bytes == 0) return cudaSuccess;
  switch (of) {
    case runtime::summand::f32: return launch<float>(into, from, bytes, s);
    case runtime::summand::f64: return launch<double>(into, from, bytes, s);
    case runtime::summand::i8: return launch<std::uint8_t>(into, from, bytes, s);
    case runtime::summand::i16: return launch<std::uint16_t>(into, from, bytes, s);
    case runtime::summand::i32: return launch<std::uint32_t>(into, from, bytes, s);
    case runtime::summand::i64: return launch<std::uint64_t>(into, from, bytes, s);
    case runtime::summand::f16: return launch<__half>(into, from, bytes, s);
    case runtime::summand::bf16: return launch<__nv_bfloat16>(into, from, bytes, s);
    case runtime::summand::none: break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace parley::transports
