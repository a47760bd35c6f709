#pragma once
/// Loads cuBLAS and cuBLASLt. Part of `parley::cuda`.
///
///     result<cublas_library*> cublas = cublas_runtime();        // or why there is none
///
/// The first call looks for libcublasLt.so.13 and libcublas.so.13, then for those of CUDA 12, in the places where the dynamic linker looks
/// for libraries (LD_LIBRARY_PATH). They stay loaded until the process ends. A program that has no GPU needs neither.
#include <parley/transports/cuda/cublas_library.hpp>

namespace parley::transports {

/// The error says what is missing.
runtime::result<cublas_library*> cublas_runtime();

}  // namespace parley::transports
