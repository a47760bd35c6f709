#pragma once
// Launchers of this folder's kernels, for code that nvcc does not compile.
#include <cuda_runtime_api.h>
#include <parley/transports/cuda/cuda_driver.hpp>

#include <cstddef>
#include <span>

namespace parley::transports {

// Launch each kernel once, with nothing to do. At a kernel's first launch on a device CUDA may load the kernel and allocate more memory for
// its threads. That allocation waits for streams that already wait for words, and all later work waits for the allocation. So launch all
// kernels before any stream waits for a word.
cudaError_t launch_copies_once(cudaStream_t s);
cudaError_t launch_peer_sums_once(cudaStream_t s);
cudaError_t launch_pieces_once(cudaStream_t s);
cudaError_t launch_adds_once(cudaStream_t s);
// A kernel whose code is larger than a processor's caches of instructions.
cudaError_t launch_long_code(unsigned blocks, cudaStream_t s);
cudaError_t launch_copy(void* to, const void* from, std::size_t bytes, unsigned blocks, cudaStream_t s);
cudaError_t launch_peer_sum(void* floats, std::size_t bytes, const peer_boxes& with, cudaStream_t s);
cudaError_t launch_add_up(void* floats, std::size_t bytes, std::span<const std::byte* const> parts, unsigned blocks,
                          cudaStream_t s);
cudaError_t launch_pieces(void* packed, const runtime::memory_pieces& p, pieces_way way, cudaStream_t s);
cudaError_t launch_add(void* into, const void* from, std::size_t bytes, runtime::summand of, cudaStream_t s);

}  // namespace parley::transports
