#pragma once
// The kernels of the worked cases on a GPU, for code that nvcc does not compile.
#include "../support/kernels.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>

namespace parley::tests {

cudaError_t launch_case_kernel(const kernels::any& kernel, std::size_t count, cudaStream_t s);

/// For the device that is current. CUDA loads a kernel where it is first launched, and waits for all streams then, also for one that waits
/// for a message.
cudaError_t load_case_kernels();

}  // namespace parley::tests
