#pragma once
/// The GPUs of this machine, for the commands that can use them.
///
///     const auto gpu = find_cuda();
///     if (!gpu) say(gpu.reason().what());     // built without CUDA, no driver, no device: which of them, and what to do
///
/// Nothing is looked for before the first call.
#include <parley/transports/cuda_driver.hpp>

namespace parley::cli {

runtime::result<transports::cuda_driver*> find_cuda();

}  // namespace parley::cli
