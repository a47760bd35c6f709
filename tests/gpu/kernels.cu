#include <parley/tests/gpu/kernels_on_gpu.hpp>

#include <type_traits>

namespace parley::tests {

namespace {

constexpr unsigned threads = 128;

template <class Kernel>
__global__ void each(Kernel k, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) k(i);
}

// A processor has room for exactly two such blocks.
constexpr unsigned most_threads = 1024;
__global__ void __launch_bounds__(most_threads, 2) hold(const volatile unsigned* may_end, unsigned* begun) {
  if (threadIdx.x == 0) atomicAdd_system(begun, 1U);
  while (*may_end == 0) __nanosleep(1000);
}

template <class... Kernels>
cudaError_t launch_all_once(const std::variant<Kernels...>*, cudaStream_t s) {
  (each<<<1, threads, 0, s>>>(Kernels{}, 0), ...);
  cudaFuncAttributes a{};
  const cudaError_t loaded = cudaFuncGetAttributes(&a, reinterpret_cast<const void*>(&hold));
  const cudaError_t launched = cudaGetLastError();
  return launched == cudaSuccess ? loaded : launched;
}

}  // namespace

cudaError_t launch_case_kernels_once(cudaStream_t s) {
  return launch_all_once(static_cast<const kernels::any*>(nullptr), s);
}

cudaError_t hold_all_processors(int device, const unsigned* may_end, unsigned* begun, unsigned* blocks,
                                cudaStream_t s) {
  int processors = 0;
  const cudaError_t asked = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (asked != cudaSuccess) return asked;
  *blocks = 2 * static_cast<unsigned>(processors);
  hold<<<*blocks, most_threads, 0, s>>>(may_end, begun);
  return cudaGetLastError();
}

cudaError_t launch_case_kernel(const kernels::any& kernel, std::size_t count, cudaStream_t s) {
  if (count == 0) return cudaSuccess;
  std::visit(
      [&](const auto& k) { each<<<static_cast<unsigned>((count + threads - 1) / threads), threads, 0, s>>>(k, count); },
      kernel);
  return cudaGetLastError();
}

}  // namespace parley::tests
