#include <parley/cublas_runtime.hpp>
#include <parley/transports/cuda/device/loaded_function.hpp>
#include <parley/transports/cuda/device/on_device.hpp>

#if __has_include(<cublasLt.h>)

#include <cublasLt.h>
#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::result;

namespace {

// The functions that are used.
// NOLINTBEGIN(readability-identifier-naming): NVIDIA's own names, by which they are looked up
struct functions {
  decltype(&cublasLtCreate) LtCreate = nullptr;
  decltype(&cublasLtGetVersion) LtGetVersion = nullptr;
  decltype(&cublasLtMatmul) LtMatmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) LtMatmulAlgoGetHeuristic = nullptr;
  decltype(&cublasLtMatmulAlgoGetIds) LtMatmulAlgoGetIds = nullptr;
  decltype(&cublasLtMatmulAlgoInit) LtMatmulAlgoInit = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) LtMatmulAlgoCheck = nullptr;
  decltype(&cublasLtMatmulAlgoCapGetAttribute) LtMatmulAlgoCapGetAttribute = nullptr;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) LtMatmulAlgoConfigGetAttribute = nullptr;
  decltype(&cublasLtMatmulAlgoConfigSetAttribute) LtMatmulAlgoConfigSetAttribute = nullptr;
  decltype(&cublasLtMatmulDescInit_internal) LtMatmulDescInit_internal = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) LtMatmulDescSetAttribute = nullptr;
  decltype(&cublasLtMatrixLayoutInit_internal) LtMatrixLayoutInit_internal = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) LtMatrixLayoutSetAttribute = nullptr;
  decltype(&cublasLtMatmulPreferenceInit_internal) LtMatmulPreferenceInit_internal = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) LtMatmulPreferenceSetAttribute = nullptr;
  decltype(&cublasCreate_v2) Create = nullptr;
  decltype(&cublasSetStream_v2) SetStream = nullptr;
  decltype(&cublasSetWorkspace_v2) SetWorkspace = nullptr;
  // Their headers overload these two.
  cublasStatus_t (*GemmEx)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void*,
                           const void*, cudaDataType, int, const void*, cudaDataType, int, const void*, void*,
                           cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t) = nullptr;
  cublasStatus_t (*GemmStridedBatchedEx)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                                         const void*, const void*, cudaDataType, int, long long int, const void*,
                                         cudaDataType, int, long long int, const void*, void*, cudaDataType, int,
                                         long long int, int, cublasComputeType_t, cublasGemmAlgo_t) = nullptr;
};
// NOLINTEND(readability-identifier-naming)

bool load_all(void* lt, void* blas, functions& f) {
  return load(lt, "cublasLtCreate", f.LtCreate) && load(lt, "cublasLtGetVersion", f.LtGetVersion) &&
         load(lt, "cublasLtMatmul", f.LtMatmul) &&
         load(lt, "cublasLtMatmulAlgoGetHeuristic", f.LtMatmulAlgoGetHeuristic) &&
         load(lt, "cublasLtMatmulAlgoGetIds", f.LtMatmulAlgoGetIds) &&
         load(lt, "cublasLtMatmulAlgoInit", f.LtMatmulAlgoInit) &&
         load(lt, "cublasLtMatmulAlgoCheck", f.LtMatmulAlgoCheck) &&
         load(lt, "cublasLtMatmulAlgoCapGetAttribute", f.LtMatmulAlgoCapGetAttribute) &&
         load(lt, "cublasLtMatmulAlgoConfigGetAttribute", f.LtMatmulAlgoConfigGetAttribute) &&
         load(lt, "cublasLtMatmulAlgoConfigSetAttribute", f.LtMatmulAlgoConfigSetAttribute) &&
         load(lt, "cublasLtMatmulDescInit_internal", f.LtMatmulDescInit_internal) &&
         load(lt, "cublasLtMatmulDescSetAttribute", f.LtMatmulDescSetAttribute) &&
         load(lt, "cublasLtMatrixLayoutInit_internal", f.LtMatrixLayoutInit_internal) &&
         load(lt, "cublasLtMatrixLayoutSetAttribute", f.LtMatrixLayoutSetAttribute) &&
         load(lt, "cublasLtMatmulPreferenceInit_internal", f.LtMatmulPreferenceInit_internal) &&
         load(lt, "cublasLtMatmulPreferenceSetAttribute", f.LtMatmulPreferenceSetAttribute) &&
         load(blas, "cublasCreate_v2", f.Create) && load(blas, "cublasSetStream_v2", f.SetStream) &&
         load(blas, "cublasSetWorkspace_v2", f.SetWorkspace) && load(blas, "cublasGemmEx", f.GemmEx) &&
         load(blas, "cublasGemmStridedBatchedEx", f.GemmStridedBatchedEx);
}

cudaDataType_t type_of(number n) noexcept {
  switch (n) {
    case number::f64: return CUDA_R_64F;
    case number::f32:
    case number::tf32: return CUDA_R_32F;
    case number::f16: return CUDA_R_16F;
    case number::bf16: return CUDA_R_16BF;
    case number::f8_e4m3: return CUDA_R_8F_E4M3;
  }
  return CUDA_R_32F;
}
/// Of alpha and beta.
cudaDataType_t scalar_of(const matrix_product& p) noexcept { return p.of_a_b == number::f64 ? CUDA_R_64F : CUDA_R_32F; }
cublasComputeType_t compute_of(const matrix_product& p) noexcept {
  if (p.of_a_b == number::f64) return CUBLAS_COMPUTE_64F;
  return p.of_a_b == number::tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}
cublasOperation_t operation(bool transposed) noexcept { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

/// alpha and beta in the type that the libraries expect.
struct factors {
  explicit factors(const matrix_product& p, const matrix_values& v)
      : wide{v.alpha, v.beta}, narrow{static_cast<float>(v.alpha), static_cast<float>(v.beta)},
        alpha(p.of_a_b == number::f64 ? static_cast<const void*>(&wide[0]) : &narrow[0]),
        beta(p.of_a_b == number::f64 ? static_cast<const void*>(&wide[1]) : &narrow[1]) {}
  factors(const factors&) = delete;
  factors& operator=(const factors&) = delete;
  double wide[2];
  float narrow[2];
  const void* alpha;
  const void* beta;
};

class loaded_cublas final : public cublas_library {
 public:
  explicit loaded_cublas(const functions& f) : f_(f) {
    const std::size_t v = f_.LtGetVersion();  // 130100: 13.1.0
    version_ = fmt::format("{}.{}.{}", v / 10'000, v / 100 % 100, v % 100);
  }

  const std::string& version() const noexcept override { return version_; }

  std::vector<gemm_algorithm> guesses(const matrix_product& p, std::size_t workspace_bytes, std::size_t most) override {
    if (p.scales_by_row && !has_scales_by_row()) return {};
    description d(f_, p, questions_of(p));
    cublasLtMatmulPreferenceOpaque_t wish{};
    f_.LtMatmulPreferenceInit_internal(&wish, sizeof wish);
    f_.LtMatmulPreferenceSetAttribute(&wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                      sizeof workspace_bytes);
    for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      f_.LtMatmulPreferenceSetAttribute(&wish, which, &p.alignment, sizeof p.alignment);
    std::vector<cublasLtMatmulHeuristicResult_t> found(most);
    int count = 0;
    const on_device here(p.device);
    const auto asked = f_.LtMatmulAlgoGetHeuristic(lt(p.device), &d.operation, &d.a, &d.b, &d.c, &d.c, &wish,
                                                   static_cast<int>(most), found.data(), &count);
    std::vector<gemm_algorithm> all;
    if (note(asked, "cublasLtMatmulAlgoGetHeuristic") != errc::none) return all;
    for (int i = 0; i < count; ++i) {
      if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
        all.push_back(settings_of(found[static_cast<std::size_t>(i)].algo));
    }
    return all;
  }

  std::vector<gemm_algorithm_range> ranges(const matrix_product& p) override {
    constexpr int most = 512;
    int ids[most];
    int count = 0;
    const cudaDataType_t in = type_of(p.of_a_b), out = type_of(p.of_c);
    const auto asked =
        f_.LtMatmulAlgoGetIds(lt(p.device), compute_of(p), scalar_of(p), in, in, out, out, most, ids, &count);
    std::vector<gemm_algorithm_range> all;
    if (note(asked, "cublasLtMatmulAlgoGetIds") != errc::none) return all;
    for (int i = 0; i < count; ++i) {
      cublasLtMatmulAlgo_t algorithm{};
      if (f_.LtMatmulAlgoInit(lt(p.device), compute_of(p), scalar_of(p), in, in, out, out, ids[i], &algorithm) ==
          CUBLAS_STATUS_SUCCESS)
        all.push_back(range_of(ids[i], algorithm));
    }
    return all;
  }

  bool takes(const matrix_product& p, gemm_algorithm& g, std::size_t workspace_bytes) override {
    cublasLtMatmulAlgo_t algorithm{};
    if ((p.scales_by_row && !has_scales_by_row()) || !make(p, g, algorithm)) return false;
    if (known_ == nullptr || known_->p != p) known_ = std::make_unique<known>(p, description(f_, p, questions_of(p)));
    description& d = known_->d;
    cublasLtMatmulHeuristicResult_t found{};
    const auto checked = f_.LtMatmulAlgoCheck(lt(p.device), &d.operation, &d.a, &d.b, &d.c, &d.c, &algorithm, &found);
    if (checked != CUBLAS_STATUS_SUCCESS || found.workspaceSize > workspace_bytes) return false;
    std::memcpy(g.state.data(), algorithm.data, sizeof g.state);
    return true;
  }

  errc multiply(const matrix_product& p, const matrix_values& v, const gemm_algorithm& by,
                std::span<std::byte> workspace, CUstream_st* stream) override {
    description d(f_, p, v);
    cublasLtMatmulAlgo_t algorithm{};
    static_assert(sizeof algorithm.data == sizeof by.state);
    std::memcpy(algorithm.data, by.state.data(), sizeof by.state);
    const factors scale(p, v);
    const on_device here(p.device);
    return note(f_.LtMatmul(lt(p.device), &d.operation, scale.alpha, v.a, &d.a, v.b, &d.b, scale.beta, v.c, &d.c, v.c,
                            &d.c, &algorithm, workspace.data(), workspace.size(), stream),
                "cublasLtMatmul");
  }

  errc multiply(const matrix_product& p, const matrix_values& v, std::span<std::byte> workspace,
                CUstream_st* stream) override {
    const on_device here(p.device);
    cublasHandle_t const h = blas(p.device);
    if (h == nullptr) return errc::device_failed;
    if (const errc e = note(f_.SetStream(h, stream), "cublasSetStream"); e != errc::none) return e;
    if (const errc e = note(f_.SetWorkspace(h, workspace.data(), workspace.size()), "cublasSetWorkspace");
        e != errc::none)
      return e;
    const factors scale(p, v);
    const auto size = [](std::size_t n) { return static_cast<int>(n); };
    const cudaDataType_t in = type_of(p.of_a_b), out = type_of(p.of_c);
    if (p.batch == 1)
      return note(f_.GemmEx(h, operation(p.trans_a), operation(p.trans_b), size(p.m), size(p.n), size(p.k), scale.alpha,
                            v.a, in, size(p.lda), v.b, in, size(p.ldb), scale.beta, v.c, out, size(p.ldc),
                            compute_of(p), CUBLAS_GEMM_DEFAULT),
                  "cublasGemmEx");
    const auto step = [](std::size_t n) { return static_cast<long long>(n); };
    return note(f_.GemmStridedBatchedEx(h, operation(p.trans_a), operation(p.trans_b), size(p.m), size(p.n), size(p.k),
                                        scale.alpha, v.a, in, size(p.lda), step(p.stride_a), v.b, in, size(p.ldb),
                                        step(p.stride_b), scale.beta, v.c, out, size(p.ldc), step(p.stride_c),
                                        size(p.batch), compute_of(p), CUBLAS_GEMM_DEFAULT),
                "cublasGemmStridedBatchedEx");
  }

  std::string fault() const override { return fault_; }

 private:
  /// A product as cuBLASLt takes it.
  struct description {
    description(const functions& f, const matrix_product& p, const matrix_values& v) {
      f.LtMatmulDescInit_internal(&operation, sizeof operation, compute_of(p), scalar_of(p));
      const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
        f.LtMatmulDescSetAttribute(&operation, which, &value, sizeof value);
      };
      set(CUBLASLT_MATMUL_DESC_TRANSA, transports::operation(p.trans_a));
      set(CUBLASLT_MATMUL_DESC_TRANSB, transports::operation(p.trans_b));
      if (p.has_bias) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
        set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(p.of_c));
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, v.bias);
      }
#if CUBLAS_VERSION >= 120900
      if (p.scales_by_row) {
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
      }
#endif
      if (v.scale_a != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, v.scale_a);
      if (v.scale_b != nullptr) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, v.scale_b);
      lay_out(f, a, p.of_a_b, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda, p.batch, p.stride_a);
      lay_out(f, b, p.of_a_b, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb, p.batch, p.stride_b);
      lay_out(f, c, p.of_c, p.m, p.n, p.ldc, p.batch, p.stride_c);
    }
    static void lay_out(const functions& f, cublasLtMatrixLayoutOpaque_t& l, number of, std::size_t rows,
                        std::size_t columns, std::size_t leading, std::size_t batch, std::size_t stride) {
      f.LtMatrixLayoutInit_internal(&l, sizeof l, type_of(of), rows, columns, static_cast<std::int64_t>(leading));
      if (batch == 1) return;
      const auto count = static_cast<std::int32_t>(batch);
      const auto step = static_cast<std::int64_t>(stride);
      f.LtMatrixLayoutSetAttribute(&l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count);
      f.LtMatrixLayoutSetAttribute(&l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
    }
    cublasLtMatmulDescOpaque_t operation{};
    cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
  };
  struct known {
    known(const matrix_product& product, const description& its) : p(product), d(its) {}
    matrix_product p;
    description d;
  };
  bool has_scales_by_row() {
    if (CUBLAS_VERSION >= 120900 && f_.LtGetVersion() >= 120900) return true;
    fault_ = "scales by row need cuBLASLt 12.9";
    return false;
  }
  /// Addresses for a question about a product. cuBLASLt does not read there, but refuses scales by row that are nowhere.
  static matrix_values questions_of(const matrix_product& p) {
    alignas(16) static constexpr float nowhere[4] = {};
    return p.of_a_b == number::f8_e4m3 ? matrix_values{.scale_a = nowhere, .scale_b = nowhere} : matrix_values{};
  }
  bool make(const matrix_product& p, const gemm_algorithm& g, cublasLtMatmulAlgo_t& algorithm) {
    const cudaDataType_t in = type_of(p.of_a_b), out = type_of(p.of_c);
    if (f_.LtMatmulAlgoInit(lt(p.device), compute_of(p), scalar_of(p), in, in, out, out, g.id, &algorithm) !=
        CUBLAS_STATUS_SUCCESS)
      return false;
    bool all = true;
    const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t which, auto value) {
      all = f_.LtMatmulAlgoConfigSetAttribute(&algorithm, which, &value, sizeof value) == CUBLAS_STATUS_SUCCESS && all;
    };
    set(CUBLASLT_ALGO_CONFIG_TILE_ID, static_cast<std::uint32_t>(g.tile));
    set(CUBLASLT_ALGO_CONFIG_STAGES_ID, static_cast<std::uint32_t>(g.stages));
    set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, static_cast<std::int32_t>(g.split_k));
    set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, static_cast<std::uint32_t>(g.reduction));
    set(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, static_cast<std::uint32_t>(g.swizzle));
    set(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, static_cast<std::uint32_t>(g.custom));
    set(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, static_cast<std::uint16_t>(g.inner));
    set(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, static_cast<std::uint16_t>(g.cluster));
    return all;
  }
  gemm_algorithm settings_of(const cublasLtMatmulAlgo_t& algorithm) {
    const auto get = [&]<class N>(cublasLtMatmulAlgoConfigAttributes_t which, N value) {
      std::size_t written = 0;
      f_.LtMatmulAlgoConfigGetAttribute(&algorithm, which, &value, sizeof value, &written);
      return static_cast<int>(value);
    };
    gemm_algorithm g;
    g.id = get(CUBLASLT_ALGO_CONFIG_ID, std::int32_t{0});
    g.tile = get(CUBLASLT_ALGO_CONFIG_TILE_ID, std::uint32_t{0});
    g.stages = get(CUBLASLT_ALGO_CONFIG_STAGES_ID, std::uint32_t{0});
    g.split_k = get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, std::int32_t{0});
    g.reduction = get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, std::uint32_t{0});
    g.swizzle = get(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, std::uint32_t{0});
    g.custom = get(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, std::uint32_t{0});
    g.inner = get(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, std::uint16_t{0});
    g.cluster = get(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, std::uint16_t{0});
    std::memcpy(g.state.data(), algorithm.data, sizeof g.state);
    return g;
  }
  gemm_algorithm_range range_of(int id, const cublasLtMatmulAlgo_t& algorithm) {
    const auto one = [&](cublasLtMatmulAlgoCapAttributes_t which) {
      std::int32_t value = 0;
      std::size_t written = 0;
      f_.LtMatmulAlgoCapGetAttribute(&algorithm, which, &value, sizeof value, &written);
      return value;
    };
    const auto list = [&](cublasLtMatmulAlgoCapAttributes_t which) {
      std::size_t bytes = 0;
      f_.LtMatmulAlgoCapGetAttribute(&algorithm, which, nullptr, 0, &bytes);
      std::vector<int> all(bytes / sizeof(int));
      if (!all.empty()) f_.LtMatmulAlgoCapGetAttribute(&algorithm, which, all.data(), bytes, &bytes);
      if (all.empty()) all.push_back(0);
      return all;
    };
    gemm_algorithm_range r{.id = id,
                           .tiles = list(CUBLASLT_ALGO_CAP_TILE_IDS),
                           .stages = list(CUBLASLT_ALGO_CAP_STAGES_IDS),
                           .most_custom = one(CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX),
                           .most_swizzle = one(CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) == 0 ? 0 : 1};
    // There is no question that tells which shapes of clusters an algorithm has.
    r.clusters.push_back(CUBLASLT_CLUSTER_SHAPE_AUTO);
    for (int c = CUBLASLT_CLUSTER_SHAPE_1x1x1; c < CUBLASLT_CLUSTER_SHAPE_END; ++c) r.clusters.push_back(c);
    if (one(CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) != 0) {
      const int mask = one(CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK);
      for (const int scheme : {CUBLASLT_REDUCTION_SCHEME_INPLACE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                               CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE})
        if ((mask & scheme) != 0) r.reductions.push_back(scheme);
    }
    return r;
  }

  // Handles live as long as the process. cuBLASLt's belongs to the device that is current when it is made.
  cublasLtHandle_t lt(int device) {
    cublasLtHandle_t& h = lt_[device];
    if (h == nullptr) {
      const on_device here(device);
      const beside_captures relaxed;
      if (note(f_.LtCreate(&h), "cublasLtCreate") != errc::none) h = nullptr;
    }
    return h;
  }
  cublasHandle_t blas(int device) {
    cublasHandle_t& h = blas_[device];
    if (h == nullptr) {
      const beside_captures relaxed;
      if (note(f_.Create(&h), "cublasCreate") != errc::none) h = nullptr;
    }
    return h;
  }
  static const char* text_of(cublasStatus_t s) noexcept {
    switch (s) {
      case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
      case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED: no memory";
      case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
      case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH: this GPU has no such numbers";
      case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
      case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
      case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED: no algorithm for this product";
      default: return "an unknown status";
    }
  }
  errc note(cublasStatus_t s, const char* where) noexcept {
    if (s == CUBLAS_STATUS_SUCCESS) return errc::none;
    try {
      fault_ = fmt::format("{} ({}), in {}", text_of(s), static_cast<int>(s), where);
    } catch (...) {
      fault_.clear();
    }
    return errc::device_failed;
  }

  functions f_;
  std::string version_;
  std::string fault_;
  std::map<int, cublasLtHandle_t> lt_;
  std::map<int, cublasHandle_t> blas_;
  std::unique_ptr<known> known_;  // the product that `takes` was asked about last: it is asked thousands of times
};

result<std::unique_ptr<loaded_cublas>> load_cublas() {
  std::string why;
  for (const char* const version : {"13", "12"}) {
    const std::string lt_name = std::string("libcublasLt.so.") + version,
                      blas_name = std::string("libcublas.so.") + version;
    void* const lt = ::dlopen(lt_name.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* const blas = lt == nullptr ? nullptr : ::dlopen(blas_name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (blas == nullptr) {
      if (const char* const said = ::dlerror(); said != nullptr && why.empty()) why = said;
      continue;
    }
    functions f;
    if (load_all(lt, blas, f)) return std::make_unique<loaded_cublas>(f);
    why = lt_name + " lacks a function that parley calls; CUDA 12.8 and newer have all";
  }
  return error{errc::unavailable, "no cuBLAS: " + why + "; install it, or name its folder in LD_LIBRARY_PATH"};
}

}  // namespace

result<cublas_library*> cublas_runtime() {
  // Never destroyed: CUDA may have shut down before static objects are destroyed.
  static const auto* const loaded = new result<std::unique_ptr<loaded_cublas>>(load_cublas());
  if (!*loaded) return loaded->reason();
  return loaded->value().get();
}

}  // namespace parley::transports

#else

namespace parley::transports {

runtime::result<cublas_library*> cublas_runtime() {
  return runtime::error{runtime::errc::unavailable,
                        "no cuBLAS: parley was built without its headers; install them and build parley again"};
}

}  // namespace parley::transports

#endif
