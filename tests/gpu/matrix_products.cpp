// Products by real cuBLAS and cuBLASLt: those that tests/ops/kernels/cuda_gemm.cpp makes with a fake, in all types.
#include <parley/tests/gpu/must.hpp>
#include <parley/tests/support/matrix_problem.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/contextual.hpp>
#include <parley/cuda_gemm.hpp>
#include <parley/cuda_kernels.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using transports::cublas_library;
using transports::cuda_driver;
using transports::cuda_memory;

namespace {

tunable_context::options enabled() {
  tunable_context::options o;
  o.mine.enabled = true;
  o.mine.max_tuning_duration_ms = 1;
  o.mine.max_search_duration_ms = 100;
  return o;
}

struct gpu_with_blas {
  gpu_with_blas() {
    driver.make_current(0);
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~gpu_with_blas() { cudaStreamDestroy(stream); }
  gpu_with_blas(const gpu_with_blas&) = delete;
  gpu_with_blas& operator=(const gpu_with_blas&) = delete;
  cuda_driver& driver = *transports::cuda_runtime().value();
  cublas_library& blas = *transports::cublas_runtime().value();
  cudaStream_t stream = nullptr;
  reactor ex;
};

template <class N>
class device_numbers {
 public:
  device_numbers(cuda_driver& d, const std::vector<N>& from, std::size_t offset = 0)
      : memory_(cuda_memory::on_device(d, 0, (from.size() + offset) * sizeof(N))), offset_(offset) {
    if (!from.empty())
      must(cudaMemcpy(numbers().data(), from.data(), from.size() * sizeof(N), cudaMemcpyDefault), "cudaMemcpy");
  }
  std::span<N> numbers() const {
    return std::span(reinterpret_cast<N*>(memory_.bytes().data()), memory_.bytes().size() / sizeof(N))
        .subspan(memory_.bytes().empty() ? 0 : offset_);
  }
  std::vector<N> fetched() const {
    std::vector<N> all(numbers().size());
    must(cudaMemcpy(all.data(), numbers().data(), all.size() * sizeof(N), cudaMemcpyDefault), "cudaMemcpy");
    return all;
  }

 private:
  cuda_memory memory_;
  std::size_t offset_;
};

/// Runs the product twice, tuned and then decided, and compares both results.
template <class T, class Out>
void check_product(gpu_with_blas& on, cuda_gemm<T, Out>& multiply, matrix_problem<T, Out> p, std::size_t offset = 0) {
  const std::vector<Out> expected = p.expected();
  for (const char* const when : {"tuned", "decided"}) {
    const device_numbers<T> a(on.driver, p.a, offset), b(on.driver, p.b, offset);
    const device_numbers<Out> c(on.driver, p.c, offset), bias(on.driver, p.bias, offset);
    gemm_call<T, Out> call = p.call;
    call.a = a.numbers(), call.b = b.numbers(), call.c = c.numbers(), call.bias = bias.numbers();
    multiply(call, on.stream);
    must(cudaStreamSynchronize(on.stream), "cudaStreamSynchronize");
    const kernel_entry& e = multiply.decision(call);
    if (offset == 0) CHECK(e.decided);
    check_equal(c.fetched(), expected, e.title + ", " + when + ", by " + multiply.runs(call));
  }
}

template <class T, class Out>
void check_products(cuda_gemm_options o = {}) {
  gpu_with_blas on;
  for (const bool numbers_are_checked : {false, true}) {
    tunable_context::options how = enabled();
    how.mine.check.on = numbers_are_checked;
    tunable_context context(on.ex, nullptr, how);
    o.most_algorithms = 200;
    cuda_gemm<T, Out> multiply(context, on.driver, on.blas, o);
    constexpr bool of_8_bits = sizeof(T) == 1;
    for (const matrix_order order : {matrix_order::column_major, matrix_order::row_major})
      for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true}) {
          // In column-major order, products of 8 bits need A transposed and B not.
          const bool by_rows = order == matrix_order::row_major;
          if (of_8_bits && ((by_rows ? trans_b : trans_a) != true || (by_rows ? trans_a : trans_b) != false)) continue;
          gemm_call<T, Out> call{.m = 48, .n = 32, .k = 16, .trans_a = trans_a, .trans_b = trans_b, .order = order};
          check_product(on, multiply, matrix_problem<T, Out>(call));
          matrix_problem<T, Out> with_bias(call);
          with_bias.add_bias();
          if (!(of_8_bits && sizeof(Out) == 4)) check_product(on, multiply, with_bias);  // there are no such biases
          call.alpha = 2, call.beta = -1;
          check_product(on, multiply, matrix_problem<T, Out>(call));
          call.batch = 3;
          check_product(on, multiply, matrix_problem<T, Out>(call));
          if (of_8_bits) continue;
          gemm_call<T, Out> odd{.m = 7, .n = 5, .k = 3, .trans_a = trans_a, .trans_b = trans_b, .order = order};
          odd.lda = 11, odd.ldb = 13, odd.ldc = 17;
          check_product(on, multiply, matrix_problem<T, Out>(odd));
          check_product(on, multiply, matrix_problem<T, Out>(odd), 1);
          // cuBLASLt has no algorithm for some types and layouts.
          try {
            check_product(on, multiply, with_bias, 1);
          } catch (const failure& f) {
            CHECK(f.reason().text().find("align them to 16") != std::string::npos);
          }
        }
  }
}

}  // namespace

TEST_CASE("matrix products on a GPU are right in all types and layouts, while they are tuned and afterwards") {
  SUBCASE("float") { check_products<float, float>(); }
  SUBCASE("tf32") { check_products<float, float>({.tf32 = true}); }
  SUBCASE("double") { check_products<double, double>(); }
  SUBCASE("f16") { check_products<f16, f16>(); }
  SUBCASE("bf16") { check_products<bf16, bf16>(); }
  SUBCASE("f8 to float") { check_products<f8_e4m3, float>(); }
  SUBCASE("f8 to f16") { check_products<f8_e4m3, f16>(); }
  SUBCASE("f8 to bf16") { check_products<f8_e4m3, bf16>(); }
}

TEST_CASE("products of 8 bits are multiplied by the scales of A and B") {
  gpu_with_blas on;
  tunable_context context(on.ex, nullptr, enabled());
  cuda_gemm<f8_e4m3, bf16> multiply(context, on.driver, on.blas);
  constexpr std::size_t m = 32, n = 16;
  for (const matrix_order order : {matrix_order::column_major, matrix_order::row_major})
    for (const bool by_row : {false, true}) {
      const bool by_rows = order == matrix_order::row_major;
      matrix_problem<f8_e4m3, bf16> p(
          gemm_call<f8_e4m3, bf16>{.m = m, .n = n, .k = 16, .trans_a = !by_rows, .trans_b = by_rows, .order = order});
      std::vector<float> of_a, of_b;
      for (std::size_t i = 0; i < m; ++i) of_a.push_back(by_row && i % 3 == 1 ? 4.0F : 2.0F);
      for (std::size_t j = 0; j < n; ++j) of_b.push_back(by_row && j % 5 == 2 ? 0.5F : 0.25F);
      const device_numbers<f8_e4m3> a(on.driver, p.a), b(on.driver, p.b);
      const device_numbers<bf16> c(on.driver, p.c);
      const device_numbers<float> scale_a(on.driver, of_a), scale_b(on.driver, of_b);
      gemm_call<f8_e4m3, bf16> call = p.call;
      call.a = a.numbers(), call.b = b.numbers(), call.c = c.numbers();
      call.scale_a = scale_a.numbers().data(), call.scale_b = scale_b.numbers().data(), call.scales_by_row = by_row;
      std::vector<bf16> expected = p.expected();
      for (std::size_t i = 0; i < m; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          bf16& each = expected[by_rows ? i * n + j : j * m + i];
          each = each * of_a[i] * of_b[j];
        }
      for (const char* const when : {"tuned", "decided"}) {
        multiply(call, on.stream);
        must(cudaStreamSynchronize(on.stream), "cudaStreamSynchronize");
        check_equal(c.fetched(), expected, std::string("scaled, ") + when + ", by " + multiply.runs(call));
      }
    }
}

TEST_CASE("a captured product is right when it is replayed, and is tuned only outside of captures") {
  gpu_with_blas on;
  tunable_context context(on.ex, nullptr, enabled());
  cuda_gemm<bf16> multiply(context, on.driver, on.blas);
  for (const bool decided : {false, true}) {
    matrix_problem<bf16> p(gemm_call<bf16>{.m = 64, .n = 32, .k = 16});
    const device_numbers<bf16> a(on.driver, p.a), b(on.driver, p.b), c(on.driver, p.c);
    gemm_call<bf16> call = p.call;
    call.a = a.numbers(), call.b = b.numbers(), call.c = c.numbers();
    if (decided) multiply(call, on.stream);
    cudaGraph_t captured = nullptr;
    cudaGraphExec_t graph = nullptr;
    must(cudaStreamBeginCapture(on.stream, cudaStreamCaptureModeGlobal), "cudaStreamBeginCapture");
    multiply(call, on.stream);
    must(cudaStreamEndCapture(on.stream, &captured), "cudaStreamEndCapture");
    must(cudaGraphInstantiate(&graph, captured, 0), "cudaGraphInstantiate");
    CHECK(multiply.decision(call).decided == decided);
    must(cudaMemsetAsync(c.numbers().data(), 0xFF, c.numbers().size_bytes(), on.stream), "cudaMemsetAsync");
    must(cudaGraphLaunch(graph, on.stream), "cudaGraphLaunch");
    must(cudaStreamSynchronize(on.stream), "cudaStreamSynchronize");
    check_equal(c.fetched(), p.expected(), "replayed");
    cudaGraphExecDestroy(graph);
    cudaGraphDestroy(captured);
  }
}

TEST_CASE("kernels on a GPU are timed on the GPU, and one whose numbers are wrong does not win") {
  gpu_with_blas on;
  tunable_context::options how = enabled();
  how.mine.check.on = true;
  tunable_context context(on.ex, nullptr, how);
  cuda_kernels gpu(on.ex, on.driver, 0, on.stream);
  constexpr std::size_t count = 1U << 24U;
  const device_numbers<float> from(on.driver, std::vector<float>(count, 3)), into(on.driver, std::vector<float>(count));
  using kernel = tunable_op<void(std::span<const float>, std::span<float>)>;
  const auto copy_by = [&](unsigned blocks) {
    return [&on, blocks](std::span<const float> x, std::span<float> y) {
      return on.driver.copy_by_kernel(y.data(), x.data(), y.size_bytes(), blocks, on.stream);
    };
  };
  kernel copies(context, {.name = "copies",
                          .implementations = {{"one", copy_by(1)},
                                              {"nothing", [](auto, auto) {}},
                                              {"half",
                                               [&on](auto x, auto y) {
                                                 return on.driver.copy(y.data(), x.data(), y.size_bytes() / 2,
                                                                       on.stream);
                                               }},
                                              {"many", copy_by(128)}},
                          .outputs = [](auto, auto y) { return y; },
                          .device = &gpu});
  copies(from.numbers(), into.numbers());
  const kernel_entry& e = copies.decision(from.numbers(), into.numbers());
  CHECK(copies.id_of(e) == "many");
  // 128 MiB are moved: on no GPU is that faster than 10 us or slower than 10 ms.
  CHECK(e.time_ms > 0.01);
  CHECK(e.time_ms < 10);
  CHECK(into.fetched() == std::vector<float>(count, 3));
}

TEST_CASE("in a contextual, kernels are timed on the GPU, beside work in another stream, and keep their default while "
          "captured") {
  gpu_with_blas on;
  world one(1);
  cuda_kernels gpu(one.clock, on.driver, 0, on.stream);
  constexpr std::size_t count = 1U << 24U;
  const device_numbers<float> from(on.driver, std::vector<float>(count, 3)), into(on.driver, std::vector<float>(count)),
      other(on.driver, std::vector<float>(count));
  cudaStream_t beside = nullptr;
  must(cudaStreamCreateWithFlags(&beside, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  std::vector<unsigned> ran;
  const auto copy_by = [&](unsigned blocks) {
    return [&on, &from, &into, &ran, blocks] {
      ran.push_back(blocks);
      const errc e = on.driver.copy_by_kernel(into.numbers().data(), from.numbers().data(), into.numbers().size_bytes(),
                                              blocks, on.stream);
      CHECK_MESSAGE(e == errc::none, on.driver.fault());
      return e;
    };
  };
  tunable_op<void()> copies(one[0].kernels(),
                            {.name = "copies",
                             .implementations = {{"one", copy_by(1)}, {"many", copy_by(128)}, {"few", copy_by(4)}},
                             .device = &gpu});
  contextual layer(one[0], {.name = "layer", .iterations = 3, .log_folder = "", .timeout = std::chrono::hours(1)});
  const auto step = [&] {
    must(cudaMemsetAsync(other.numbers().data(), 1, other.numbers().size_bytes(), beside), "cudaMemsetAsync");
    copies();
  };
  const auto call = [&] { run(one.clock, layer.run(step)); };
  must(cudaStreamBeginCapture(on.stream, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  call();
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(on.stream, &graph), "cudaStreamEndCapture");
  cudaGraphDestroy(graph);
  CHECK(ran == std::vector<unsigned>{1});
  CHECK(layer.best("copies", "all").empty());
  call();
  CHECK(layer.best("copies", "all") == "many");
  CHECK(ran.size() == 1 + 3 * 3 + 1);
  const decision d = layer.decision("copies", "all");
  CHECK(d.time_ns > 10'000);
  CHECK(d.time_ns < 10'000'000);
  must(cudaStreamSynchronize(on.stream), "cudaStreamSynchronize");
  CHECK(into.fetched() == std::vector<float>(count, 3));
  must(cudaStreamSynchronize(beside), "cudaStreamSynchronize");
  cudaStreamDestroy(beside);
}

TEST_CASE("tf32 rounds the factors, and float does not") {
  gpu_with_blas on;
  constexpr std::size_t size = 512;  // small products may not be rounded
  for (const bool rounded : {false, true}) {
    tunable_context context(on.ex, nullptr, enabled());
    cuda_gemm<float> multiply(context, on.driver, on.blas, {.tf32 = rounded});
    const device_numbers<float> a(on.driver, std::vector<float>(size * size, 1 + 0x1p-12F)),
        b(on.driver, std::vector<float>(size * size, 1));
    const device_numbers<float> c(on.driver, std::vector<float>(size * size));
    gemm_call<float> call{.m = size, .n = size, .k = size};
    call.a = a.numbers(), call.b = b.numbers(), call.c = c.numbers();
    multiply(call, on.stream);
    must(cudaStreamSynchronize(on.stream), "cudaStreamSynchronize");
    CHECK((c.fetched()[7] == size * (1 + 0x1p-12F)) != rounded);
  }
}

TEST_CASE("streams multiply at the same time, each with a workspace of its own") {
  gpu_with_blas on;
  tunable_context context(on.ex, nullptr, enabled());
  cuda_gemm<bf16> multiply(context, on.driver, on.blas);
  // Long sums, which are split.
  matrix_problem<bf16> p(gemm_call<bf16>{.m = 64, .n = 16, .k = 8'192});
  for (bf16& each : p.a) each = float(each) == 2 ? 1.0F : 0.0F;  // few are not 0
  const device_numbers<bf16> a(on.driver, p.a), b(on.driver, p.b);
  std::vector<cudaStream_t> streams(4);
  std::vector<device_numbers<bf16>> results;
  for (cudaStream_t& s : streams) {
    must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    results.emplace_back(on.driver, p.c);
  }
  gemm_call<bf16> call = p.call;
  call.a = a.numbers(), call.b = b.numbers();
  for (int repeat = 0; repeat < 50; ++repeat)
    for (std::size_t i = 0; i < streams.size(); ++i) {
      call.c = results[i].numbers();
      multiply(call, streams[i]);
    }
  must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const std::vector<bf16> expected = p.expected();
  for (const auto& each : results) check_equal(each.fetched(), expected, "in one of several streams");
  for (cudaStream_t s : streams) cudaStreamDestroy(s);
}
