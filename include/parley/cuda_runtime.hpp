#pragma once
/// The CUDA driver of this machine, part of `parley::cuda`.
///
///     result<cuda_driver*> gpu = cuda_runtime();          // or why there is none
///
/// The process's only one, made at the first call and kept to its end. It links CUDA's runtime statically, which looks for
/// libcuda itself: a program that never calls this runs on machines without a driver.
#include <parley/transports/cuda/cuda_driver.hpp>

namespace parley::transports {

/// The error says what is missing: no driver, one that is too old, no device.
runtime::result<cuda_driver*> cuda_runtime();

}  // namespace parley::transports
