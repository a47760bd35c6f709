#pragma once
// The kernels of the worked cases on a GPU, for code that nvcc does not compile.
#include <parley/tests/support/devices/kernels.hpp>

#include <cuda_runtime_api.h>

#include <cstddef>

namespace parley::tests {

cudaError_t launch_case_kernel(const kernels::any& kernel, std::size_t count, cudaStream_t s);

/// Launches each kernel on the current device with nothing to do, which makes CUDA load it. CUDA allocates the additional memory that a
/// kernel needs at its first launch; work enqueued after that waits for all streams, even for one that waits for a message.
cudaError_t launch_case_kernels_once(cudaStream_t s);

/// Holds all processors of the device until `*may_end` is not 0. `*begun` counts the blocks that run, of `*blocks` in all. `may_end` and
/// `begun` point into host memory.
cudaError_t hold_all_processors(int device, const unsigned* may_end, unsigned* begun, unsigned* blocks, cudaStream_t s);

}  // namespace parley::tests
