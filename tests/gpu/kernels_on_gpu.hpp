#pragma once
// The kernels of the worked cases on a GPU, for code that nvcc does not compile.
#include <parley/tests/support/devices/kernels.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace parley::tests {

cudaError_t launch_case_kernel(const kernels::any& kernel, std::size_t count, cudaStream_t s);

/// Each on the device that is current, with nothing to do. Where a kernel is first launched CUDA loads it, and gets the memory that it needs
/// more than those before it; what is enqueued after that waits for all streams, also for one that waits for a message.
cudaError_t launch_case_kernels_once(cudaStream_t s);

/// All of the device's processors, until `*may_end` is not 0, which is in the host's memory as is `*begun`: how many of its `*blocks` run.
cudaError_t hold_all_processors(int device, const unsigned* may_end, unsigned* begun, unsigned* blocks, cudaStream_t s);

}  // namespace parley::tests
