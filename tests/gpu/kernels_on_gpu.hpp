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

/// All of the device's processors, until `*may_end` is not 0, which is in the host's memory as is `*begun`: how many of its `*blocks` run.
cudaError_t hold_all_processors(int device, const unsigned* may_end, unsigned* begun, unsigned* blocks, cudaStream_t s);

}  // namespace parley::tests
