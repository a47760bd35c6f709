#include "kernels_on_gpu.hpp"

#include <type_traits>

namespace parley::tests {

namespace {

constexpr unsigned threads = 128;

template <class Kernel>
__global__ void each(Kernel k, std::size_t count) {
  const std::size_t i = std::size_t{blockIdx.x} * threads + threadIdx.x;
  if (i < count) k(i);
}

template <class Kernel>
cudaError_t load() {
  cudaFuncAttributes a{};
  return cudaFuncGetAttributes(&a, reinterpret_cast<const void*>(&each<Kernel>));
}

template <class... Kernels>
cudaError_t load_all(const std::variant<Kernels...>*) {
  cudaError_t first = cudaSuccess;
  const auto keep = [&first](cudaError_t e) { first = first == cudaSuccess ? e : first; };
  (keep(load<Kernels>()), ...);
  return first;
}

}  // namespace

cudaError_t load_case_kernels() { return load_all(static_cast<const kernels::any*>(nullptr)); }

cudaError_t launch_case_kernel(const kernels::any& kernel, std::size_t count, cudaStream_t s) {
  if (count == 0) return cudaSuccess;
  std::visit(
      [&](const auto& k) { each<<<static_cast<unsigned>((count + threads - 1) / threads), threads, 0, s>>>(k, count); },
      kernel);
  return cudaGetLastError();
}

}  // namespace parley::tests
