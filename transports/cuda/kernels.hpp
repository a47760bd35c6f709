#pragma once
// Launchers of this folder's kernels, for code that nvcc does not compile.
#include <cuda_runtime_api.h>

#include <cstddef>

namespace parley::transports {

cudaError_t launch_copy(void* to, const void* from, std::size_t bytes, unsigned blocks, cudaStream_t s);

}  // namespace parley::transports
