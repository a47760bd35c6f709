#include <parley/gemm.hpp>

#include <parley/ops/kernels/blas_libraries.hpp>
#include <parley/ops/kernels/blocked_gemm.hpp>
#include <parley/ops/kernels/gemm_sizes.hpp>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace parley::ops {

using namespace gemm_sizes;
using runtime::bf16;

namespace {

template <class T>
constexpr const char* type_name = "float";
template <>
constexpr const char* type_name<double> = "double";
template <>
constexpr const char* type_name<bf16> = "BFloat16";

// ---- implementations

template <class T>
void add_bias(const gemm_call<T>& c, T* out) {
  for (std::size_t j = 0; j < c.n; ++j)
    for (std::size_t i = 0; i < c.m; ++i) out[j * c.ldc + i] += c.bias[i];
}

template <class T>
void multiply_by(blas_library& by, unsigned threads, const gemm_call<T>& c) {
  for (std::size_t i = 0; i < c.batch; ++i) {
    T* const out = c.c.data() + i * c.stride_c;
    by.multiply({c.trans_a, c.trans_b, static_cast<int>(c.m), static_cast<int>(c.n), static_cast<int>(c.k), c.alpha,
                 c.a.data() + i * c.stride_a, static_cast<int>(c.lda), c.b.data() + i * c.stride_b,
                 static_cast<int>(c.ldb), c.beta, out, static_cast<int>(c.ldc)},
                threads);
    if (!c.bias.empty()) add_bias(c, out);
  }
}

/// Room for the operands of a `bf16` call as `float`.
struct wide_operands {
  std::vector<float> a, b, c, bias;
};

std::span<const float> widen(std::span<const bf16> from, std::vector<float>& into) {
  into.assign(from.begin(), from.end());
  return into;
}

void multiply_by(blas_library& by, unsigned threads, const gemm_call<bf16>& call, wide_operands& wide) {
  gemm_call<float> c{
      .m = call.m, .n = call.n, .k = call.k, .trans_a = call.trans_a, .trans_b = call.trans_b, .alpha = call.alpha};
  c.a = widen(call.a, wide.a);
  c.b = widen(call.b, wide.b);
  c.bias = widen(call.bias, wide.bias);
  if (call.beta != 0) widen(call.c, wide.c);
  wide.c.resize(call.c.size());
  c.c = wide.c;
  c.lda = call.lda, c.ldb = call.ldb, c.ldc = call.ldc;
  c.beta = call.beta;
  c.batch = call.batch, c.stride_a = call.stride_a, c.stride_b = call.stride_b, c.stride_c = call.stride_c;
  multiply_by(by, threads, c);
  for (std::size_t i = 0; i < call.batch; ++i)
    for (std::size_t j = 0; j < call.n; ++j) {
      const std::size_t at = i * call.stride_c + j * call.ldc;
      std::copy_n(wide.c.begin() + static_cast<std::ptrdiff_t>(at), call.m,
                  call.c.begin() + static_cast<std::ptrdiff_t>(at));
    }
}

template <class T>
using kernel_of = tunable_op<void(const gemm_call<T>&)>;
template <class T>
using implementations_of = std::vector<typename kernel_of<T>::implementation>;

/// 1, 2, 4, … and the number of usable processors; the largest first.
std::vector<unsigned> thread_counts() {
  const unsigned most = usable_processors();
  std::vector<unsigned> counts{most};
  for (unsigned n = 1; n < most; n *= 2) counts.push_back(n);
  return counts;
}

template <class T>
implementations_of<T> all_implementations(const std::shared_ptr<wide_operands>& wide) {
  implementations_of<T> all;
  for (blas_library* const by : blas_libraries()) {
    if (std::is_same_v<T, double> && !by->has_doubles()) continue;
    for (const unsigned threads : thread_counts()) {
      typename kernel_of<T>::implementation one;
      one.id = by->name() + "(threads=" + text_of(threads) + ")";
      one.family = by->name();
      if constexpr (std::is_same_v<T, bf16>) {
        one.run = [by, threads, wide](const gemm_call<T>& c) { multiply_by(*by, threads, c, *wide); };
      } else {
        one.run = [by, threads](const gemm_call<T>& c) { multiply_by(*by, threads, c); };
      }
      all.push_back(std::move(one));
    }
  }
  all.push_back({.id = "blocked", .run = &multiply_blocked<T>, .family = "blocked"});
  return all;
}

}  // namespace

template <class T>
struct gemm<T>::state {
  explicit state(tunable_context& c) : context(c) {
    for (const auto& each : all_implementations<T>(wide)) ids.push_back(each.id);
  }
  /// TunableOp has a name for each kind and each pair of layouts, so each of them is a kernel by itself.
  kernel_of<T>& kernel(const gemm_call<T>& c) {
    auto& mine = kernels[(static_cast<std::size_t>(kind_of(c)) * 2 + (c.trans_a ? 1 : 0)) * 2 + (c.trans_b ? 1 : 0)];
    if (mine == nullptr) mine = make(kind_of(c), c.trans_a, c.trans_b);
    return *mine;
  }
  std::unique_ptr<kernel_of<T>> make(gemm_kind kind, bool trans_a, bool trans_b) {
    static constexpr const char* names[] = {"GemmTunableOp_", "GemmStridedBatchedTunableOp_", "GemmAndBiasTunableOp_"};
    return std::make_unique<kernel_of<T>>(
        context, typename kernel_of<T>::options{
                     .name = std::string(names[static_cast<std::size_t>(kind)]) + type_name<T> + "_" +
                             (trans_a ? "T" : "N") + (trans_b ? "T" : "N"),
                     .key = key_of<T, T>,
                     .implementations = all_implementations<T>(wide),
                     .outputs = outputs_of<T, T>,
                     .key_texts = [trans_a, trans_b](const kernel_key& k) { return texts_of(k, trans_a, trans_b); }});
  }
  /// What the latest call has found out about its sizes. Programs repeat them.
  struct known {
    gemm_call<T> given{};
    gemm_call<T> full{};
    gemm_memory needs{};
    kernel_of<T>* by = nullptr;
    kernel_entry* entry = nullptr;
  };
  tunable_context& context;
  std::shared_ptr<wide_operands> wide = std::make_shared<wide_operands>();  // one for all: only one runs at a time
  std::vector<std::string> ids;
  known latest{};
  std::array<std::unique_ptr<kernel_of<T>>, 12> kernels{};
};

template <class T>
gemm<T>::gemm(tunable_context& context) : state_(std::make_unique<state>(context)) {}
template <class T>
gemm<T>::gemm(gemm&&) noexcept = default;
template <class T>
gemm<T>::~gemm() = default;

template <class T>
void gemm<T>::operator()(const gemm_call<T>& given) {
  auto& latest = state_->latest;
  if (latest.by == nullptr || !is_of_same_sizes(given, latest.given)) {
    const gemm_call<T> full = in_full(given);
    const gemm_memory needs = memory_of(full, given.order);
    if (full.m == 0 || full.n == 0 || full.batch == 0) return;
    kernel_of<T>& by = state_->kernel(full);
    latest = {given, full, needs, &by, &by.entry(full)};
  }
  const gemm_call<T> call = with_memory_of(given, latest.full, latest.needs);
  // Not all libraries take a product of nothing, which only scales C, and they differ about NaN in it.
  if (call.k == 0 || call.alpha == 0) return multiply_blocked(call);
  latest.by->call(*latest.entry, call);
}

template <class T>
const kernel_entry& gemm<T>::decision(const gemm_call<T>& given) {
  const gemm_call<T> call = in_full(given);
  return state_->kernel(call).decision(call);
}

template <class T>
const std::string& gemm<T>::runs(const gemm_call<T>& given) {
  const gemm_call<T> call = in_full(given);
  kernel_of<T>& kernel = state_->kernel(call);
  return kernel.id_of(kernel.decision(call));
}

template <class T>
gemm_memory gemm<T>::needs(const gemm_call<T>& given) {
  return needs_of(given);
}

template <class T>
const std::vector<std::string>& gemm<T>::implementations() const noexcept {
  return state_->ids;
}

template class gemm<float>;
template class gemm<double>;
template class gemm<bf16>;

}  // namespace parley::ops
