#pragma once
/// Whether GPU planes work here, by a small message that takes them, for `parley doctor`.
///
///     if (const auto tried = try_cuda_copy(gpu); !tried) say(tried.reason().text());
///
/// Both ends are in this process, on the first device and the last. The error says what was refused, in CUDA's words, or that what
/// came was not what was sent, or did not come within 5 s.
#include <parley/transports/cuda/cuda_driver.hpp>

#include <cstddef>

namespace parley::cli {

/// From stream to stream.
runtime::result<> try_cuda_copy(transports::cuda_driver& gpu);
/// Down into pinned memory, across, and up again.
runtime::result<> try_staged(transports::cuda_driver& gpu);
/// Whether UCX moves memory of devices by itself, where PARLEY_UCX_CUDA=1 asks it to; it is asked, and sends nothing.
runtime::result<> ask_ucx(transports::cuda_driver& gpu);
/// What NCCL is good for with so many GPUs here: it takes no two ranks on one.
const char* what_nccl_takes(std::size_t gpus) noexcept;

}  // namespace parley::cli
