#pragma once
/// Matrix multiplication on a GPU as a tunable op: C = alpha op(A) op(B) + beta C, in device memory.
///
///     cuda_gemm<bf16> multiply(self.kernels(), *cuda_runtime().value(), *cublas_runtime().value());
///     self.kernels().enable_tunable_op(true);
///     multiply({.m = 4096, .n = 16, .k = 4096, .trans_a = true, .a = a, .b = b, .c = c}, stream);
///
/// A call puts the product into the stream and returns. The first call with new sizes tries what this GPU has: cuBLAS, cuBLASLt with the
/// algorithm that its heuristic chooses, and up to 2,048 of cuBLASLt's other algorithms: its heuristic's next choices, those that differ
/// from these in one setting, and some at random. A model says which of them are worth a trial (tuning/planners/guided_plan.hpp); on an H200 a
/// search takes half a second. All later calls with these sizes run the fastest one.
///
/// | T | Out | computed as |
/// |---|---|---|
/// | `float`, `double`, `f16`, `bf16` | the same | sums of `float`, or of `double` |
/// | `float`, with the option `tf32` | `float` | factors rounded to 19 bits |
/// | `f8_e4m3` | `bf16`, `f16`; without a bias also `float` | sums of `float`, times the scales; A is transposed, B is not |
///
/// Names of implementations: `cublas`, the default; `cublaslt`, the heuristic's choice, which is the default for `f8_e4m3` and with a bias,
/// because cuBLAS has neither; `cublaslt(algo=66 cluster=5 stages=35 tile=24)`, in cuBLASLt's numbers. Families: `cublas`, `cublaslt`. The
/// names and keys in results files are those of TunableOp, as for `gemm` (parley/gemm.hpp): `GemmTunableOp_BFloat16_TN`, and
/// `ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_4096_16_4096_ld_4096_4096_4096_rw_0_bias_None`.
///
/// Each stream has its own workspace, so streams may multiply at the same time. Decided calls can be captured into graphs; while a stream is
/// captured, nothing is tuned. A graph uses the workspace of the stream that was captured: replay it in that stream, and keep the
/// `cuda_gemm` as long as its graphs.
///
/// Matrices that are not aligned to 16 bytes run the default, whatever was decided. C must not overlap A, B or the bias. In another version
/// of cuBLASLt its numbers may mean other algorithms: tune again after an update.
///
/// A context reserves the names: it has room for one `cuda_gemm` or one `gemm` of each type. With several GPUs, give each GPU its own
/// context. A null stream is the default stream of the thread's current device. One thread.
///
/// Throws `bad_argument` if a matrix does not fit its memory, and `device_failed` if CUDA or cuBLAS refuses.
#include <parley/cublas_runtime.hpp>
#include <parley/cuda_runtime.hpp>
#include <parley/gemm_call.hpp>
#include <parley/tunable_op.hpp>

#include <cstddef>
#include <memory>
#include <string>

namespace parley::ops {

struct cuda_gemm_options {
  int device = 0;
  bool tf32 = false;  ///< of `float`: rounds the factors, and is several times as fast
  std::size_t workspace_bytes = std::size_t{32} << 20U;  ///< for each stream; algorithms that need more are left out
  std::size_t most_algorithms = 2048;                    ///< of cuBLASLt, for one key; at most 4,000
};

template <class T, class Out = T>
class cuda_gemm {
 public:
  /// The driver and the library must outlive it.
  cuda_gemm(tunable_context& context, transports::cuda_driver& driver, transports::cublas_library& library,
            cuda_gemm_options o = {});
  cuda_gemm(cuda_gemm&&) noexcept;
  ~cuda_gemm();

  void operator()(const gemm_call<T, Out>& call, transports::cuda_stream stream);
  /// As of `gemm`.
  const kernel_entry& decision(const gemm_call<T, Out>& call);
  const std::string& runs(const gemm_call<T, Out>& call);
  static gemm_memory needs(const gemm_call<T, Out>& call);

 private:
  struct state;
  std::unique_ptr<state> state_;
};

extern template class cuda_gemm<float>;
extern template class cuda_gemm<double>;
extern template class cuda_gemm<runtime::f16>;
extern template class cuda_gemm<runtime::bf16>;
extern template class cuda_gemm<runtime::f8_e4m3, float>;
extern template class cuda_gemm<runtime::f8_e4m3, runtime::f16>;
extern template class cuda_gemm<runtime::f8_e4m3, runtime::bf16>;

}  // namespace parley::ops
