#pragma once
// Launchers of this folder's kernels, for code that nvcc does not compile.
#include <cuda_runtime_api.h>
#include <parley/transports/cuda_driver.hpp>

#include <cstddef>
#include <span>

namespace parley::transports {

// Loads them for the device that is current: at its first launch CUDA would wait for all streams, also for those that wait for words.
cudaError_t load_copy();
cudaError_t load_peer_sum();
cudaError_t load_pieces();
cudaError_t load_add();
cudaError_t launch_copy(void* to, const void* from, std::size_t bytes, unsigned blocks, cudaStream_t s);
cudaError_t launch_peer_sum(void* floats, std::size_t bytes, const peer_boxes& with, cudaStream_t s);
cudaError_t launch_add_up(void* floats, std::size_t bytes, std::span<const std::byte* const> parts, unsigned blocks,
                          cudaStream_t s);
cudaError_t launch_pieces(void* packed, const runtime::memory_pieces& p, pieces_way way, cudaStream_t s);
cudaError_t launch_add(void* into, const void* from, std::size_t bytes, runtime::summand of, cudaStream_t s);

}  // namespace parley::transports
