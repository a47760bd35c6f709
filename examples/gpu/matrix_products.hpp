#pragma once
// bf16 matrix products by cuBLASLt. The algorithms that its heuristics propose are the tiles to choose from. The
// library is loaded at run time, from where the dynamic linker finds it (LD_LIBRARY_PATH).
#include "device.hpp"

#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace examples {

/// c (rows x n) = a (rows x k) times b (n x k) transposed, all in row-major order.
class matrix_products {
 public:
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20U;

  /// Throws `unavailable` if cuBLASLt is not found.
  matrix_products(std::uint64_t n, std::uint64_t k) : n_(n), k_(k) {
    load();
    must(create_(&handle_), "cublasLtCreate");
    must(make_desc_(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    must(set_desc_(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
         "cublasLtMatmulDescSetAttribute");
    must(make_preference_(&preference_), "cublasLtMatmulPreferenceCreate");
    must(set_preference_(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                         sizeof workspace_bytes),
         "cublasLtMatmulPreferenceSetAttribute");
    // Exclude algorithms that round partial sums to bf16.
    const std::uint32_t exact = CUBLASLT_REDUCTION_SCHEME_INPLACE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    must(set_preference_(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &exact, sizeof exact),
         "cublasLtMatmulPreferenceSetAttribute");
    b_ = layout(k, n, k);
  }
  matrix_products(const matrix_products&) = delete;
  matrix_products& operator=(const matrix_products&) = delete;
  ~matrix_products() {
    for (auto& [rows, s] : shapes_) {
      destroy_layout_(s.a);
      destroy_layout_(s.c);
    }
    destroy_layout_(b_);
    destroy_preference_(preference_);
    destroy_desc_(desc_);
    destroy_(handle_);
  }

  /// The number of algorithms for this number of rows. The first is cuBLASLt's own choice.
  std::size_t tiles(std::uint64_t rows) { return shape_of(rows).ways.size(); }
  /// `workspace` has `workspace_bytes` and must not be shared by streams.
  void multiply(const void* a, const void* b, void* c, std::uint64_t rows, std::size_t tile, void* workspace,
                cudaStream_t s) {
    const shape& of = shape_of(rows);
    if (tile >= of.ways.size())
      parley::runtime::raise({parley::errc::unavailable, "cuBLASLt knows " + std::to_string(of.ways.size()) +
                                                             " ways for " + std::to_string(rows) + " rows"});
    const float one = 1;
    const float zero = 0;
    // cuBLAS expects column-major order, in which all three matrices are transposed: c^T = b a^T.
    must(multiply_(handle_, desc_, &one, b, b_, a, of.a, &zero, c, of.c, c, of.c, &of.ways[tile].algo, workspace,
                   workspace_bytes, s),
         "cublasLtMatmul");
  }

 private:
  struct shape {
    cublasLtMatrixLayout_t a = nullptr;
    cublasLtMatrixLayout_t c = nullptr;
    std::vector<cublasLtMatmulHeuristicResult_t> ways;
  };

  const shape& shape_of(std::uint64_t rows) {
    const auto known = shapes_.find(rows);
    if (known != shapes_.end()) return known->second;
    constexpr int most = 8;
    shape made{layout(k_, rows, k_), layout(n_, rows, n_), std::vector<cublasLtMatmulHeuristicResult_t>(most)};
    int found = 0;
    must(propose_(handle_, desc_, b_, made.a, made.c, made.c, preference_, most, made.ways.data(), &found),
         "cublasLtMatmulAlgoGetHeuristic");
    made.ways.resize(static_cast<std::size_t>(found));
    std::erase_if(made.ways, [](const auto& w) { return w.state != CUBLAS_STATUS_SUCCESS; });
    return shapes_.emplace(rows, std::move(made)).first->second;
  }
  cublasLtMatrixLayout_t layout(std::uint64_t rows, std::uint64_t columns, std::uint64_t from_column_to_column) {
    cublasLtMatrixLayout_t made = nullptr;
    must(make_layout_(&made, CUDA_R_16BF, rows, columns, static_cast<std::int64_t>(from_column_to_column)),
         "cublasLtMatrixLayoutCreate");
    return made;
  }
  void must(cublasStatus_t s, const char* what) const {
    if (s != CUBLAS_STATUS_SUCCESS)
      parley::runtime::raise({parley::errc::device_failed, std::string(what) + ": " + words_(s)});
  }

  void load() {
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* const library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      parley::runtime::raise({parley::errc::unavailable, std::string("cuBLASLt was not found: ") + ::dlerror() +
                                                             "; set LD_LIBRARY_PATH to the folder that has it"});
    find(library, "cublasLtCreate", create_);
    find(library, "cublasLtDestroy", destroy_);
    find(library, "cublasLtGetStatusString", words_);
    find(library, "cublasLtMatmul", multiply_);
    find(library, "cublasLtMatmulAlgoGetHeuristic", propose_);
    find(library, "cublasLtMatmulDescCreate", make_desc_);
    find(library, "cublasLtMatmulDescDestroy", destroy_desc_);
    find(library, "cublasLtMatmulDescSetAttribute", set_desc_);
    find(library, "cublasLtMatrixLayoutCreate", make_layout_);
    find(library, "cublasLtMatrixLayoutDestroy", destroy_layout_);
    find(library, "cublasLtMatmulPreferenceCreate", make_preference_);
    find(library, "cublasLtMatmulPreferenceDestroy", destroy_preference_);
    find(library, "cublasLtMatmulPreferenceSetAttribute", set_preference_);
  }
  template <class F>
  static void find(void* library, const char* name, F& into) {
    into = reinterpret_cast<F>(::dlsym(library, name));
    if (into == nullptr)
      parley::runtime::raise({parley::errc::unavailable, std::string("the cuBLASLt that was found has no ") + name});
  }

  decltype(&cublasLtCreate) create_ = nullptr;
  decltype(&cublasLtDestroy) destroy_ = nullptr;
  decltype(&cublasLtGetStatusString) words_ = nullptr;
  decltype(&cublasLtMatmul) multiply_ = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) propose_ = nullptr;
  decltype(&cublasLtMatmulDescCreate) make_desc_ = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_desc_ = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_desc_ = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout_ = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout_ = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference_ = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference_ = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference_ = nullptr;

  std::uint64_t n_;
  std::uint64_t k_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatrixLayout_t b_ = nullptr;
  std::map<std::uint64_t, shape> shapes_;
};

}  // namespace examples
