#pragma once
// payload.hpp's functions on a GPU. `stream` must belong to `device`.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace parley::cli {

cudaError_t make_payload_kernel(std::uint16_t slope, std::uint16_t offset, std::byte* into, std::size_t bytes,
                                int device, cudaStream_t stream);
cudaError_t multiply_kernel(std::byte* payload, std::size_t bytes, std::uint16_t factor, int device,
                            cudaStream_t stream);

}  // namespace parley::cli
