#pragma once
/// A matrix multiplication of parley's own, for machines without a BLAS library: one thread, blocked for the caches, with AVX2 or AVX-512
/// where the processor has it.
///
///     multiply_blocked<float>(call);     // a `gemm_call` in column-major order with all its leading dimensions and strides
#include <parley/gemm_call.hpp>

namespace parley::ops {

template <class T>
void multiply_blocked(const gemm_call<T>& call);

extern template void multiply_blocked(const gemm_call<float>&);
extern template void multiply_blocked(const gemm_call<double>&);
extern template void multiply_blocked(const gemm_call<runtime::bf16>&);

}  // namespace parley::ops
