#pragma once
// How this folder's launchers start a kernel.
#include <cuda_runtime.h>

#include <initializer_list>
#include <utility>

namespace parley::transports {

// What this launch came to. `<<<>>>` answers nothing, and `cudaGetLastError` would take an error that some earlier call has left in this
// thread for the launch's own, and away from whoever is to find it.
template <class... Parameters, class... Arguments>
cudaError_t launch_kernel(void (*kernel)(Parameters...), unsigned blocks, unsigned threads_per_block, cudaStream_t s,
                          Arguments&&... arguments) {
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(blocks);
  how.blockDim = dim3(threads_per_block);
  how.stream = s;
  return cudaLaunchKernelEx(&how, kernel, std::forward<Arguments>(arguments)...);
}

// The first of them that is no success.
inline cudaError_t first_failure(std::initializer_list<cudaError_t> outcomes) {
  for (const cudaError_t e : outcomes) {
    if (e != cudaSuccess) return e;
  }
  return cudaSuccess;
}

}  // namespace parley::transports
