#pragma once
/// For `parley doctor`: whether GPU planes work here, tried with a small message.
///
///     if (const auto tried = try_cuda_copy(gpu); !tried) say(tried.reason().text());
///
/// Both ends are in this process, on the first and the last device. The error says what was refused, in CUDA's words, or that the wrong
/// data was received, or none within 5 s.
#include <parley/transports/cuda/cuda_driver.hpp>

#include <cstddef>

namespace parley::cli {

/// Sends the message from one stream to another.
runtime::result<> try_cuda_copy(transports::cuda_driver& gpu);
/// Sends it down into pinned memory, across, and up into the other device.
runtime::result<> try_staged(transports::cuda_driver& gpu);
/// Asks UCX whether it moves device memory by itself, as PARLEY_UCX_CUDA=1 would have it; sends nothing.
runtime::result<> ask_ucx(transports::cuda_driver& gpu);
/// Says what NCCL can do with that many GPUs here: it does not accept two ranks on one GPU.
const char* what_nccl_takes(std::size_t gpus) noexcept;

}  // namespace parley::cli
