#include <parley/cuda_gemm.hpp>

#include <parley/cuda_kernels.hpp>
#include <parley/ops/kernels/gemm_algorithms.hpp>
#include <parley/ops/kernels/gemm_sizes.hpp>

#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace parley::ops {

using namespace gemm_sizes;
using runtime::bf16;
using runtime::f16;
using runtime::f8_e4m3;
using transports::cuda_stream;
using transports::gemm_algorithm;
using transports::matrix_product;
using transports::number;

namespace {

template <class T>
struct type;
template <>
struct type<float> {
  static constexpr const char* name = "float";
  static constexpr const char* in_scaled = "Float";
  static constexpr number is = number::f32;
};
template <>
struct type<double> {
  static constexpr const char* name = "double";
  static constexpr number is = number::f64;
};
template <>
struct type<f16> {
  static constexpr const char* name = "Half";
  static constexpr const char* in_scaled = "Half";
  static constexpr number is = number::f16;
};
template <>
struct type<bf16> {
  static constexpr const char* name = "BFloat16";
  static constexpr const char* in_scaled = "BFloat16";
  static constexpr number is = number::bf16;
};
template <>
struct type<f8_e4m3> {
  static constexpr const char* in_scaled = "Float8_e4m3fn";
  static constexpr number is = number::f8_e4m3;
};

constexpr std::uint32_t usual_alignment = 16;  // in bytes: what the algorithms that are tried count on

/// The alignment of all matrices of a call, and of the steps between those of a batch; at most the usual one.
template <class T, class Out>
std::uint32_t alignment_of(const gemm_call<T, Out>& c) noexcept {
  std::uintptr_t all = usual_alignment | reinterpret_cast<std::uintptr_t>(c.a.data()) |
                       reinterpret_cast<std::uintptr_t>(c.b.data()) | reinterpret_cast<std::uintptr_t>(c.c.data()) |
                       reinterpret_cast<std::uintptr_t>(c.bias.data());
  if (c.batch > 1) all |= c.stride_a * sizeof(T) | c.stride_b * sizeof(T) | c.stride_c * sizeof(Out);
  return static_cast<std::uint32_t>(all & (~all + 1));  // the lowest bit
}

}  // namespace

template <class T, class Out>
struct cuda_gemm<T, Out>::state {
  static constexpr bool is_scaled = std::is_same_v<T, f8_e4m3>;
  using call_type = gemm_call<T, Out>;
  using kernel_type = tunable_op<void(const call_type&)>;
  using implementation = typename kernel_type::implementation;

  state(tunable_context& c, transports::cuda_driver& d, transports::cublas_library& l, const cuda_gemm_options& o)
      : context(c), library(l), options(o), gpu(c.where(), d, o.device) {}

  // ---- one product

  matrix_product product_of(const call_type& c) const {
    matrix_product p{.of_a_b = type<T>::is, .of_c = type<Out>::is, .trans_a = c.trans_a, .trans_b = c.trans_b};
    if (options.tf32 && p.of_a_b == number::f32) p.of_a_b = number::tf32;
    p.m = c.m, p.n = c.n, p.k = c.k;
    p.lda = c.lda, p.ldb = c.ldb, p.ldc = c.ldc;
    p.batch = c.batch, p.stride_a = c.stride_a, p.stride_b = c.stride_b, p.stride_c = c.stride_c;
    p.has_bias = !c.bias.empty(), p.scales_by_row = c.scales_by_row;
    p.device = options.device;
    return p;
  }
  static transports::matrix_values values_of(const call_type& c) {
    return {c.a.data(), c.b.data(), c.c.data(), c.bias.data(), c.scale_a, c.scale_b, c.alpha, c.beta};
  }
  void must(runtime::errc outcome) const {
    if (outcome != runtime::errc::none) runtime::raise({outcome, "gemm: " + library.fault()});
  }
  std::span<std::byte> workspace() {
    transports::cuda_memory& mine = workspaces[gpu.stream()];
    if (mine.bytes().size() < options.workspace_bytes)
      mine = transports::cuda_memory::on_device(gpu.driver(), options.device, options.workspace_bytes);
    return mine.bytes();
  }
  void by_cublas(const call_type& c) { must(library.multiply(product_of(c), values_of(c), workspace(), gpu.stream())); }
  void by(const gemm_algorithm& g, const call_type& c) {
    must(library.multiply(product_of(c), values_of(c), g, workspace(), gpu.stream()));
  }
  void by_guess(const call_type& c) {
    if (!*latest.guess) *latest.guess = first_guess(product_of(c));
    by(**latest.guess, c);
  }
  /// What cuBLASLt's heuristic chooses.
  gemm_algorithm first_guess(const matrix_product& p) {
    const auto all = library.guesses(p, options.workspace_bytes, 1);
    if (all.empty())
      runtime::raise({runtime::errc::unavailable, "gemm: cuBLASLt has no algorithm for this product" +
                                                      (library.fault().empty() ? "" : ": " + library.fault())});
    return all.front();
  }
  /// Matrices that lie anywhere.
  void by_any(const call_type& c, std::uint32_t alignment) {
    if (!needs_cublaslt(c)) return by_cublas(c);
    matrix_product p = product_of(c);
    p.alignment = alignment;
    // The heuristic does not know where the bias lies, so an algorithm may still refuse.
    for (const gemm_algorithm& g : library.guesses(p, options.workspace_bytes))
      if (library.multiply(p, values_of(c), g, workspace(), gpu.stream()) == runtime::errc::none) return;
    runtime::raise(
        {runtime::errc::unavailable, "gemm: cuBLASLt has no algorithm for matrices with a bias or of 8 bits that are "
                                     "aligned to " +
                                         text_of(alignment) + " bytes; align them to 16"});
  }
  static bool needs_cublaslt(const call_type& c) { return is_scaled || !c.bias.empty(); }

  // ---- kernels

  /// TunableOp has a name for each kind and each pair of layouts, so each of them is a kernel by itself. It names no batch with a bias, whose
  /// default cannot be cuBLAS. The bias of scaled products is part of their keys.
  static std::size_t kind(const call_type& c) {
    if (is_scaled) return c.batch == 1 ? 0 : 1;
    return c.batch != 1 && !c.bias.empty() ? 3 : static_cast<std::size_t>(kind_of(c));
  }
  kernel_type& kernel(const call_type& c) {
    auto& mine = kernels[(kind(c) * 2 + (c.trans_a ? 1 : 0)) * 2 + (c.trans_b ? 1 : 0)];
    if (mine == nullptr) mine = make(c);
    return *mine;
  }
  std::string name_of(const call_type& c) const {
    static constexpr const char* kinds[] = {"Gemm", "GemmStridedBatched", "GemmAndBias", "GemmStridedBatchedAndBias"};
    const std::string name = std::string(kinds[kind(c)]) + "TunableOp_";
    const std::string layout = std::string("_") + (c.trans_a ? "T" : "N") + (c.trans_b ? "T" : "N");
    if constexpr (is_scaled) {
      const std::string in = std::string(type<T>::in_scaled) + "_";
      return "Scaled" + name + in + in + type<Out>::in_scaled + layout;
    } else {
      return name + (options.tf32 && std::is_same_v<T, float> ? "tf32" : type<T>::name) + layout;
    }
  }
  /// Whether a scaled product has a bias, and has scales by row: one number, because a key has room for one more.
  static unsigned of_scaled(const call_type& c) { return (c.bias.empty() ? 0U : 1U) + (c.scales_by_row ? 2U : 0U); }
  std::unique_ptr<kernel_type> make(const call_type& c) {
    typename kernel_type::options o;
    o.name = name_of(c);
    o.key = [](const call_type& call) {
      const kernel_key sizes = key_of(call);
      if constexpr (is_scaled) {
        const auto* const n = sizes.begin();
        return kernel_key{n[0], n[1], n[2], n[3], n[4], n[5], n[6], {"scaled", of_scaled(call)}};
      } else {
        return sizes;
      }
    };
    const implementation guessed{
        .id = "cublaslt", .run = [this](const call_type& call) { by_guess(call); }, .family = "cublaslt"};
    if (!needs_cublaslt(c))
      o.implementations.push_back(
          {.id = "cublas", .run = [this](const call_type& call) { by_cublas(call); }, .family = "cublas"});
    o.implementations.push_back(guessed);
    o.for_key = [this](const std::string& named, const call_type& call) { return own_of(named, call); };
    o.outputs = outputs_of<T, Out>;
    o.device = &gpu;
    o.key_texts = [trans_a = c.trans_a, trans_b = c.trans_b](const kernel_key& k) {
      std::vector<std::string> texts = texts_of(k, trans_a, trans_b);
      if constexpr (is_scaled) {
        // Its leading dimensions are always there.
        const std::uint64_t scaled = (k.end() - 1)->number;
        return std::vector{texts.back() + (scaled >= 2 ? "_rw_1" : "_rw_0") + "_bias_" +
                           (scaled % 2 != 0 ? type<Out>::in_scaled : "None")};
      } else {
        return texts;
      }
    };
    return std::make_unique<kernel_type>(context, std::move(o));
  }
  std::vector<implementation> own_of(const std::string& named, const call_type& c) {
    const matrix_product p = product_of(c);
    std::vector<implementation> all;
    const auto add = [&](const gemm_algorithm& g) {
      all.push_back({.id = id_of(g), .run = [this, g](const call_type& call) { by(g, call); }, .family = "cublaslt"});
    };
    if (!named.empty()) {
      auto g = algorithm_of(named);
      if (g && library.takes(p, *g, options.workspace_bytes)) add(*g);
      return all;
    }
    constexpr std::size_t most_for_one_key = 4'000;  // tunable_op.hpp
    const std::size_t most = std::min(options.most_algorithms, most_for_one_key);
    const std::vector<gemm_algorithm> chosen = library.guesses(p, options.workspace_bytes);
    for (const gemm_algorithm& g : algorithms_for(library, p, chosen, options.workspace_bytes, most)) {
      // The first choice of the heuristic has a name of its own.
      if (chosen.empty() || g != chosen.front()) add(g);
    }
    return all;
  }

  // ---- calls

  /// What the latest call has found out about its sizes. Programs repeat them.
  struct known {
    call_type given{};
    call_type full{};
    gemm_memory needs{};
    kernel_type* by = nullptr;
    kernel_entry* entry = nullptr;
    std::optional<gemm_algorithm>* guess = nullptr;
  };
  void call(const call_type& given, cuda_stream stream) {
    if (latest.by == nullptr || !is_of_same_sizes(given, latest.given)) {
      const call_type full = in_full(given);
      const gemm_memory sizes = memory_of(full, given.order);
      if (full.m == 0 || full.n == 0 || full.batch == 0) return;
      if (full.batch > INT_MAX) refuse("a batch must have less than 2^31 products");
      kernel_type& its = kernel(full);
      kernel_entry& entry = its.entry(full);
      latest = {given, full, sizes, &its, &entry, &guesses[entry.title]};
    }
    const call_type c = with_memory_of(given, latest.full, latest.needs);
    if (c.k == 0 && needs_cublaslt(c)) refuse("cuBLASLt cannot multiply with k = 0; add the bias yourself");
    gpu.use(stream);
    const std::uint32_t alignment = alignment_of(c);
    if (alignment == usual_alignment && c.k != 0) return latest.by->call(*latest.entry, c);
    by_any(c, alignment);
  }

  tunable_context& context;
  transports::cublas_library& library;
  cuda_gemm_options options;
  cuda_kernels gpu;
  std::map<cuda_stream, transports::cuda_memory> workspaces{};
  std::map<std::string, std::optional<gemm_algorithm>> guesses{};  // the heuristic's choice, by the title of the entry
  known latest{};
  std::array<std::unique_ptr<kernel_type>, 16> kernels{};
};

template <class T, class Out>
cuda_gemm<T, Out>::cuda_gemm(tunable_context& context, transports::cuda_driver& driver,
                             transports::cublas_library& library, cuda_gemm_options o)
    : state_(std::make_unique<state>(context, driver, library, o)) {}
template <class T, class Out>
cuda_gemm<T, Out>::cuda_gemm(cuda_gemm&&) noexcept = default;
template <class T, class Out>
cuda_gemm<T, Out>::~cuda_gemm() = default;

template <class T, class Out>
void cuda_gemm<T, Out>::operator()(const gemm_call<T, Out>& call, cuda_stream stream) {
  state_->call(call, stream);
}

template <class T, class Out>
const kernel_entry& cuda_gemm<T, Out>::decision(const gemm_call<T, Out>& given) {
  const gemm_call<T, Out> call = in_full(given);
  return state_->kernel(call).decision(call);
}

template <class T, class Out>
const std::string& cuda_gemm<T, Out>::runs(const gemm_call<T, Out>& given) {
  const gemm_call<T, Out> call = in_full(given);
  auto& kernel = state_->kernel(call);
  return kernel.id_of(kernel.decision(call));
}

template <class T, class Out>
gemm_memory cuda_gemm<T, Out>::needs(const gemm_call<T, Out>& given) {
  return needs_of(given);
}

template class cuda_gemm<float>;
template class cuda_gemm<double>;
template class cuda_gemm<f16>;
template class cuda_gemm<bf16>;
template class cuda_gemm<f8_e4m3, float>;
template class cuda_gemm<f8_e4m3, f16>;
template class cuda_gemm<f8_e4m3, bf16>;

}  // namespace parley::ops
