#pragma once
/// For `parley doctor`: tries with a small message whether GPU planes work here.
///
///     if (const auto tried = try_cuda_copy(gpu); !tried) say(tried.reason().text());
///
/// Both ends are in this process, on the first and the last device. The error contains CUDA's own text about what it refused, or says that
/// wrong data arrived, or that none arrived within 5 s.
#include <parley/transports/cuda/cuda_driver.hpp>

#include <cstddef>

namespace parley::cli {

/// Sends the message from one stream to another.
runtime::result<> try_cuda_copy(transports::cuda_driver& gpu);
/// Sends the message through pinned host memory: from one device into it, across, and into the other device.
runtime::result<> try_staged(transports::cuda_driver& gpu);
/// Asks UCX whether it can move device memory by itself, which PARLEY_UCX_CUDA=1 requests; sends nothing.
runtime::result<> ask_ucx(transports::cuda_driver& gpu);
/// Says what NCCL can do with that many GPUs here: it does not accept two ranks on one GPU.
const char* what_nccl_takes(std::size_t gpus) noexcept;

}  // namespace parley::cli
