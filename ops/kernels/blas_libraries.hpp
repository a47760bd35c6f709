#pragma once
/// The BLAS libraries that this process can load: OpenBLAS, BLIS and oneDNN. They are looked for once, when the first `gemm` is made.
#include <cstddef>
#include <string>
#include <vector>

namespace parley::ops {

/// One multiplication in column-major order, as BLAS libraries take it.
template <class T>
struct blas_call {
  bool trans_a, trans_b;
  int m, n, k;
  T alpha;
  const T* a;
  int lda;
  const T* b;
  int ldb;
  T beta;
  T* c;
  int ldc;
};

class blas_library {
 public:
  virtual ~blas_library() = default;
  virtual const std::string& name() const noexcept = 0;
  virtual bool has_doubles() const noexcept = 0;
  /// Runs on so many threads. Throws `config_failed` if the library refuses.
  virtual void multiply(const blas_call<float>& call, unsigned threads) = 0;
  virtual void multiply(const blas_call<double>& call, unsigned threads) = 0;
};

/// In the order in which they are defaults. Never destroyed: their threads may outlive static objects.
const std::vector<blas_library*>& blas_libraries();
/// How many processors this process may use.
unsigned usable_processors();

}  // namespace parley::ops
