#pragma once
// Starts kernels for this folder's launchers.
#include <cuda_runtime.h>

#include <initializer_list>
#include <utility>

namespace parley::transports {

// Launches a kernel and returns the outcome of this launch. `<<<>>>` returns nothing, and `cudaGetLastError` could return an error that
// an earlier call left in this thread; it would also clear that error, so that the program could not find it.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), unsigned blocks, unsigned threads_per_block, cudaStream_t s,
                          Arguments&&... arguments) {
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(blocks);
  how.blockDim = dim3(threads_per_block);
  how.stream = s;
  return cudaLaunchKernelEx(&how, kernel, std::forward<Arguments>(arguments)...);
}

inline cudaError_t first_failure(std::initializer_list<cudaError_t> outcomes) {
  for (const cudaError_t e : outcomes) {
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace parley::transports
