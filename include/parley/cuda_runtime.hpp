#pragma once
/// The CUDA driver of this machine, part of `parley::cuda`.
///
///     result<cuda_driver*> gpu = cuda_runtime();          // the driver, or an error that says why there is none
///
/// A process has one driver object. The first call makes the object, and it lives until the process ends. `parley::cuda` links CUDA's
/// runtime statically, and the runtime loads libcuda only when it is used: a program that never calls this function runs on machines
/// without a driver.
#include <parley/transports/cuda/cuda_driver.hpp>

namespace parley::transports {

/// The error says what is missing: no driver, a driver that is too old, or no device.
runtime::result<cuda_driver*> cuda_runtime();

}  // namespace parley::transports
