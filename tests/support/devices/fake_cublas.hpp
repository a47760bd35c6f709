#pragma once
/// cuBLAS and cuBLASLt for tests without a GPU. It multiplies floats in the memory of a fake GPU, and other numbers not at all. It has
/// algorithms 1 and 2. The time of a
/// product is the number of ticks that the test gives.
#include <parley/tests/support/devices/fake_cuda.hpp>

#include <parley/transports/cuda/cublas_library.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace parley::tests {

class fake_cublas final : public transports::cublas_library {
 public:
  using algorithm = transports::gemm_algorithm;
  using product = transports::matrix_product;

  explicit fake_cublas(fake_cuda& gpu) : gpu_(gpu) {}

  std::uint64_t ticks_of_cublas = 40;
  std::function<std::uint64_t(const algorithm&)> ticks = [](const algorithm&) { return 50; };
  std::function<bool(const algorithm&)> exists = [](const algorithm& g) { return g.tile != 0 && g.cluster == 2; };
  std::vector<algorithm> first{{.id = 1, .tile = 1, .cluster = 2}, {.id = 2, .tile = 3, .cluster = 2}};
  std::function<bool(const algorithm&)> refuses = [](const algorithm&) { return false; };
  std::function<bool(const algorithm&)> is_wrong = [](const algorithm&) { return false; };
  std::function<bool(const algorithm&)> faults = [](const algorithm&) { return false; };  ///< its kernel breaks the GPU
  std::function<bool(const product&, const algorithm&)> refuses_sizes = [](const product&, const algorithm&) {
    return false;
  };
  std::vector<std::uint32_t> alignments{};  ///< of the products that guesses were asked for
  std::vector<std::string> ran{};           ///< ids of algorithms, or `cublas`
  std::uint64_t lists = 0;                  ///< how often somebody asked for the ranges

  const std::string& version() const noexcept override { return version_; }
  std::vector<algorithm> guesses(const product& p, std::size_t, std::size_t most) override {
    alignments.push_back(p.alignment);
    std::vector<algorithm> all(first.begin(),
                               first.begin() + std::min<std::ptrdiff_t>(std::ptrdiff_t(most), std::ssize(first)));
    for (algorithm& g : all) g.state[0] = key_of(p);
    return all;
  }
  std::vector<transports::gemm_algorithm_range> ranges(const product&) override {
    ++lists;
    return {{.id = 1, .tiles = {1, 2, 3, 4}, .stages = {0}, .clusters = {0, 2, 3}, .most_custom = 1},
            {.id = 2, .tiles = {3, 5}, .stages = {0}, .clusters = {2}, .reductions = {1, 2}}};
  }
  bool takes(const product& p, algorithm& g, std::size_t) override {
    g.state[0] = key_of(p);
    return exists(g) && !refuses_sizes(p, g);
  }
  runtime::errc multiply(const product& p, const transports::matrix_values& v, const algorithm& by,
                         std::span<std::byte>, CUstream_st* stream) override {
    // An algorithm must have been made for this product.
    if (refuses(by) || by.state[0] != key_of(p)) return runtime::errc::device_failed;
    if (faults(by)) {
      gpu_.fault_now();
      return runtime::errc::none;
    }
    const int more = is_wrong(by) ? 1 : 0;
    return run(p, v, stream, ticks(by), std::to_string(by.id) + "/" + std::to_string(by.tile), more);
  }
  runtime::errc multiply(const product& p, const transports::matrix_values& v, std::span<std::byte>,
                         CUstream_st* stream) override {
    return run(p, v, stream, ticks_of_cublas, "cublas");
  }
  std::string fault() const override { return "CUBLAS_STATUS_NOT_SUPPORTED (15), in a fake"; }

 private:
  static std::uint64_t key_of(const product& p) noexcept {
    return 1 + p.m + 1'000 * p.n + 1'000'000 * p.k + 1'000'000'000 * p.batch;
  }
  runtime::errc run(const product& p, const transports::matrix_values& v, CUstream_st* stream, std::uint64_t took,
                    std::string name, int more = 0) {
    ran.push_back(std::move(name));
    gpu_.launch(stream, took, [this, p, v, more] { compute(p, v, static_cast<float>(more)); });
    return runtime::errc::none;
  }
  void compute(const product& p, const transports::matrix_values& v, float more) {
    if (p.of_c != transports::number::f32) return;
    const auto* const a = reinterpret_cast<const float*>(gpu_.shadow(v.a));
    const auto* const b = reinterpret_cast<const float*>(gpu_.shadow(v.b));
    const auto* const bias = reinterpret_cast<const float*>(gpu_.shadow(v.bias));
    auto* const c = reinterpret_cast<float*>(gpu_.shadow(v.c));
    if (a == nullptr || b == nullptr || c == nullptr) return;  // a test that has ended has freed them
    for (std::size_t x = 0; x < p.batch; ++x)
      for (std::size_t i = 0; i < p.m; ++i)
        for (std::size_t j = 0; j < p.n; ++j) {
          float sum = 0;
          for (std::size_t q = 0; q < p.k; ++q)
            sum += a[x * p.stride_a + (p.trans_a ? i * p.lda + q : q * p.lda + i)] *
                   b[x * p.stride_b + (p.trans_b ? q * p.ldb + j : j * p.ldb + q)];
          float& here = c[x * p.stride_c + j * p.ldc + i];
          const float before = v.beta == 0 ? 0 : static_cast<float>(v.beta) * here;
          here = static_cast<float>(v.alpha) * sum + before + (p.has_bias ? bias[i] : 0) + more;
        }
  }
  fake_cuda& gpu_;
  std::string version_ = "13.1.0";
};

}  // namespace parley::tests
