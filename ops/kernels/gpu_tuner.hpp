#pragma once
// Tunes listed products on a GPU.
#include <parley/ops/kernels/listed_gemm.hpp>
#include <parley/transports/cuda/cublas_library.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>

#include <memory>

namespace parley::ops {

std::unique_ptr<product_tuner> make_gpu_tuner(tunable_context& kernels, transports::cuda_driver& driver,
                                              transports::cublas_library& cublas, int device);

}  // namespace parley::ops
