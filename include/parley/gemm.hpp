#pragma once
/// Matrix multiplication as a tunable op: C = alpha op(A) op(B) + beta C, where op(X) is X or its transpose.
///
///     gemm<float> multiply(self.kernels());
///     self.kernels().enable_tunable_op(true);
///     multiply({.m = 512, .n = 256, .k = 64, .a = a, .b = b, .c = c});        // C is m x n, op(A) m x k, op(B) k x n
///
/// The first call with new sizes tries what this machine has: OpenBLAS, BLIS and oneDNN (`float` alone), each with 1, 2, 4, … threads and
/// with all processors, and a kernel of parley's own with one thread. All later calls with these sizes run the fastest one. The default,
/// which runs while tunable ops are not enabled, is the first of these libraries that was found, with all processors of this process. The
/// libraries are looked for where the system's loader looks; none is needed. Names of implementations: `openblas(threads=4)`,
/// `blis(threads=1)`, `onednn(threads=2)`, `blocked`; each library is a family (`tunable_context::enable_family`). `bf16` is widened for
/// the libraries.
///
/// Results have the names and keys of PyTorch's TunableOp: `GemmTunableOp_float_NT,nt_25088_4096_64`; with leading dimensions that are not
/// the smallest `nt_25088_4096_64_ld_25088_5000_25088`, and batches as `GemmStridedBatchedTunableOp_float_NT,nt_64_64_32_B_12`. With a bias
/// the name is `GemmAndBiasTunableOp_float_NT`, unless there are batches. Keys of files may also name the smallest leading dimensions, as
/// those of PyTorch 2.6 do. As there, keys are those of column-major matrices: a row-major product is the column-major product of B and A.
///
/// C must not overlap A, B or the bias, because trials compute it several times. Strides and the order are not part of the key. A library's
/// number of threads belongs to the whole process: a call sets it and restores it, so only one thread at a time may multiply. If alpha or k
/// is 0, A and B are not read.
///
/// A call runs on the caller's thread until C is complete. Throws `bad_argument`, and changes nothing, if a matrix does not fit its memory.
/// If beta is 0, C is not read. All calls of one type in one context go through one `gemm`: its name is reserved.
#include <parley/gemm_call.hpp>
#include <parley/tunable_op.hpp>

#include <memory>
#include <string>
#include <vector>

namespace parley::ops {

template <class T>
class gemm {
 public:
  explicit gemm(tunable_context& context);
  gemm(gemm&&) noexcept;
  ~gemm();

  void operator()(const gemm_call<T>& call);
  /// The decision for such calls, with its reason.
  const kernel_entry& decision(const gemm_call<T>& call);
  /// The name of the implementation that such calls run while tunable ops are enabled. Until they are decided, and where alpha or k is 0,
  /// they may run another one.
  const std::string& runs(const gemm_call<T>& call);
  /// The memory that such a call needs. Throws `bad_argument` for sizes that cannot be.
  static gemm_memory needs(const gemm_call<T>& call);
  /// The names of all implementations on this machine, the default first.
  const std::vector<std::string>& implementations() const noexcept;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

extern template class gemm<float>;
extern template class gemm<double>;
extern template class gemm<runtime::bf16>;

}  // namespace parley::ops
