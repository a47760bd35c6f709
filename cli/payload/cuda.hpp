#pragma once
/// The GPUs of this machine, for commands that can use them, and the kernels of `parley tune`.
///
///     const auto gpu = find_cuda();
///     if (!gpu) say(gpu.reason().what());     // built without CUDA, no driver, no device: which of them, and what to do
///
/// Nothing is searched for before the first call. The kernels make the same bytes as payload.hpp's functions. A launch
/// returns an empty text, or CUDA's message.
#include <parley/transports/cuda/cublas_library.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>
#include <parley/transports/nccl/nccl_library.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace parley::cli {

runtime::result<transports::cuda_driver*> find_cuda();
runtime::result<transports::nccl_library*> find_nccl();
runtime::result<transports::cublas_library*> find_cublas();

std::string launch_make_payload(std::uint64_t number, std::span<std::byte> into, int device,
                                transports::cuda_stream stream);
std::string launch_multiply(std::span<std::byte> payload, std::uint16_t factor, int device,
                            transports::cuda_stream stream);
/// Throws `device_failed` with that message, unless it is empty.
inline void must_launch(const std::string& fault) {
  if (!fault.empty()) runtime::raise({runtime::errc::device_failed, fault});
}

}  // namespace parley::cli
