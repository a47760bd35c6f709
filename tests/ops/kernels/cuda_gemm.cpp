#include <parley/tests/support/devices/fake_cublas.hpp>
#include <parley/tests/support/matrix_problem.hpp>

#include <parley/cuda_gemm.hpp>
#include <parley/cuda_kernels.hpp>
#include <parley/ops/kernels/gemm_algorithms.hpp>
#include <parley/runtime/time/reactor.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <set>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using transports::cuda_memory;
using transports::gemm_algorithm;

namespace {

tunable_context::options enabled() {
  tunable_context::options o;
  o.mine.enabled = true;
  o.mine.max_tuning_duration_ms = 1;
  o.mine.max_tuning_iterations = 2;
  o.mine.rotating_buffer_bytes = 4'096;
  return o;
}

/// A GPU with cuBLAS, and a context.
struct bench {
  explicit bench(tunable_context::options o = enabled()) : context(ex, nullptr, std::move(o)) {}
  fake_cuda gpu;
  fake_cublas blas{gpu};
  transports::cuda_stream stream = gpu.make_stream(0);
  reactor ex;
  tunable_context context;
};

/// A problem whose matrices are in the GPU's memory.
struct on_gpu {
  on_gpu(bench& on, matrix_problem<float>& of)
      : gpu(on.gpu), p(of), a(put(of.a)), b(put(of.b)), c(put(of.c)), bias(put(of.bias)) {
    call = of.call;
    call.a = numbers_in(a), call.b = numbers_in(b), call.c = numbers_in(c), call.bias = numbers_in(bias);
  }
  static std::span<float> numbers_in(const cuda_memory& m) {
    return {reinterpret_cast<float*>(m.bytes().data()), m.bytes().size() / sizeof(float)};
  }
  cuda_memory put(const std::vector<float>& from) {
    cuda_memory m = cuda_memory::on_device(gpu, 0, from.size() * sizeof(float));
    if (!from.empty()) std::memcpy(gpu.shadow(m.bytes().data()), from.data(), m.bytes().size());
    return m;
  }
  void check(const std::string& what) {
    for (int i = 0; i < 1'000; ++i) {
      auto* const e = gpu.make_event(0);
      static_cast<void>(gpu.query(e));  // time passes
      gpu.destroy(e);
    }
    std::vector<float> seen(p.c.size());
    std::memcpy(seen.data(), gpu.shadow(c.bytes().data()), c.bytes().size());
    check_equal(seen, p.expected(), what);
  }
  fake_cuda& gpu;
  matrix_problem<float>& p;
  cuda_memory a, b, c, bias;
  gemm_call<float> call;
};

}  // namespace

TEST_CASE("a product on a GPU is tuned among cuBLAS and the algorithms of cuBLASLt, and is right") {
  for (const matrix_order order : {matrix_order::column_major, matrix_order::row_major})
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true})
        for (const float beta : {0.0F, 2.0F}) {
          bench on;
          on.blas.ticks = [](const gemm_algorithm& g) { return g.id == 2 && g.tile == 5 ? 20U : 60U; };
          cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
          matrix_problem<float> p(gemm_call<float>{.m = 8,
                                                   .n = 4,
                                                   .k = 12,
                                                   .trans_a = trans_a,
                                                   .trans_b = trans_b,
                                                   .beta = beta,
                                                   .batch = 2,
                                                   .order = order});
          on_gpu there(on, p);
          multiply(there.call, on.stream);
          CHECK(multiply.decision(there.call).decided);
          CHECK(multiply.runs(there.call).starts_with("cublaslt(algo=2 cluster=2"));
          CHECK(multiply.runs(there.call).ends_with("tile=5)"));
          there.check("while it was tuned");
          CHECK(on.gpu.instruction_flushes > 0);
        }
}

TEST_CASE("a bias needs cuBLASLt, whose heuristic's choice is then the default") {
  bench on;
  on.context.enable_tunable_op(false);
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  p.add_bias();
  on_gpu there(on, p);
  multiply(there.call, on.stream);
  CHECK(on.blas.ran == std::vector<std::string>{"1/1"});
  there.check("with a bias");
  CHECK(multiply.decision(there.call).title == "GemmAndBiasTunableOp_float_NN, nn_4_4_4");
}

TEST_CASE("an algorithm of a results file runs without a list of algorithms, unless cuBLASLt does not take it") {
  for (const bool taken : {true, false}) {
    bench on;
    tuning::results_file file;
    REQUIRE(file.add({"GemmTunableOp_float_TN", "tn_4_8_16", "cublaslt(algo=1 cluster=3 tile=4)", 1}));
    on.context.remember(file);
    if (taken) on.blas.exists = [](const gemm_algorithm& g) { return g.cluster == 3; };
    cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
    matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 8, .k = 16, .trans_a = true});
    on_gpu there(on, p);
    multiply(there.call, on.stream);
    const kernel_entry& e = multiply.decision(there.call);
    CHECK((multiply.runs(there.call) == "cublaslt(algo=1 cluster=3 tile=4)") == taken);
    CHECK((on.blas.lists == 0) == taken);
    CHECK((e.why == "remembered") == taken);
    CHECK((e.passed_over.find("is none of its implementations") != std::string::npos) != taken);
  }
}

TEST_CASE("while a stream is captured nothing is tuned") {
  bench on;
  on.blas.ticks = [](const gemm_algorithm&) { return 10; };
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  on_gpu there(on, p);
  REQUIRE(on.gpu.begin_capture(on.stream) == errc::none);
  multiply(there.call, on.stream);
  CHECK(on.gpu.end_capture(on.stream).value() != nullptr);
  CHECK(on.blas.ran == std::vector<std::string>{"cublas"});
  CHECK_FALSE(multiply.decision(there.call).decided);
  CHECK(multiply.decision(there.call).why == "it could not be tuned yet: its stream is being captured");
  multiply(there.call, on.stream);
  CHECK(multiply.decision(there.call).decided);
  CHECK(multiply.runs(there.call) != "cublas");
}

TEST_CASE("a stream that waits for something is not waited for") {
  bench on;
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  on_gpu there(on, p);
  bool over = false;
  on.gpu.launch_until(on.stream, [&] { return over; });
  multiply(there.call, on.stream);
  CHECK(multiply.decision(there.call).why ==
        "it could not be tuned yet: its stream has earlier work that has not ended");
  over = true;
  multiply(there.call, on.stream);
  CHECK(multiply.decision(there.call).decided);
  there.check("after all");
}

TEST_CASE("matrices that are not aligned run the default") {
  bench on;
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  on_gpu there(on, p);
  const cuda_memory room = cuda_memory::on_device(on.gpu, 0, 4'096);
  gemm_call<float> call = there.call;
  call.c = on_gpu::numbers_in(room).subspan(1);
  multiply(call, on.stream);
  CHECK(on.blas.ran == std::vector<std::string>{"cublas"});
  CHECK_FALSE(multiply.decision(call).decided);
}

TEST_CASE("an algorithm that cuBLASLt refuses to run, and one whose numbers are wrong, do not win") {
  for (const bool refused : {true, false}) {
    tunable_context::options o = enabled();
    o.mine.check.on = true;
    bench on(o);
    const auto is_bad = [](const gemm_algorithm& g) { return g.tile == 4; };
    on.blas.ticks = [=](const gemm_algorithm& g) { return is_bad(g) ? 5U : 30U; };
    if (refused) on.blas.refuses = is_bad;
    on.blas.is_wrong = [=](const gemm_algorithm& g) { return !refused && is_bad(g); };
    cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
    matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4, .beta = 1});
    on_gpu there(on, p);
    multiply(there.call, on.stream);
    CHECK(multiply.decision(there.call).decided);
    CHECK(multiply.runs(there.call).find("tile=4") == std::string::npos);
    CHECK(multiply.runs(there.call) != "cublas");
    there.check("beside a bad algorithm");
    bool said = false;
    for (const std::string& w : on.context.warnings())
      said = said || w.find(refused ? "CUBLAS_STATUS_NOT_SUPPORTED" : "wrong numbers") != std::string::npos;
    CHECK(said);
  }
}

TEST_CASE("an algorithm that breaks the GPU is named with the rule that leaves it out, and with that rule the others "
          "are tuned") {
  const auto breaks = [](const gemm_algorithm& g) { return g.tile == 4; };
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  std::string rule;
  {
    bench on;
    on.blas.faults = breaks;
    cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
    on_gpu there(on, p);
    try {
      multiply(there.call, on.stream);
    } catch (const failure& f) {
      CHECK(f.reason().code() == errc::device_failed);
      const std::string text(f.reason().text());
      rule = text.substr(std::min(text.size(), text.find("GemmTunableOp_float_NN,nn_4_4_4,^")));
    }
  }
  REQUIRE(rule.find("tile=4") != std::string::npos);
  tunable_context::options o = enabled();
  o.rules = tuning::rule_file::parse(rule + "\n", "rules").value();
  bench on(o);
  on.blas.faults = [&](const gemm_algorithm& g) { return "^" + id_of(g) == rule.substr(rule.find('^')); };
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  on_gpu there(on, p);
  multiply(there.call, on.stream);
  CHECK(multiply.decision(there.call).decided);
  there.check("beside an algorithm that a rule leaves out");
}

TEST_CASE("a family that is switched off is not tried") {
  bench on;
  on.context.enable_family("cublaslt", false);
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  on_gpu there(on, p);
  on.blas.ticks = [](const gemm_algorithm&) { return 1; };
  multiply(there.call, on.stream);
  CHECK(multiply.runs(there.call) == "cublas");
}

TEST_CASE("an algorithm that a rule names runs for the keys for which cuBLASLt takes it, and the others are tuned") {
  tunable_context::options o = enabled();
  // With its settings in another order than parley writes them.
  o.rules = tuning::rule_file::parse("GemmTunableOp_float_NN,*,cublaslt(tile=4 cluster=2 algo=1)\n", "rules").value();
  bench on(o);
  on.blas.refuses_sizes = [](const fake_cublas::product& p, const gemm_algorithm& g) {
    return p.m == 8 && g.tile == 4;
  };
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  for (const std::size_t m : {4U, 8U}) {
    matrix_problem<float> p(gemm_call<float>{.m = m, .n = 4, .k = 4});
    on_gpu there(on, p);
    multiply(there.call, on.stream);
    CHECK(multiply.decision(there.call).decided);
    CHECK((multiply.runs(there.call) == "cublaslt(algo=1 cluster=2 tile=4)") == (m == 4));
    there.check("by a rule");
  }
}

TEST_CASE("a product with a bias is recorded while tuning is off, and tuned later") {
  tunable_context::options o = enabled();
  o.mine.tuning = false;
  o.mine.record_untuned = true;
  bench on(o);
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  p.add_bias();
  on_gpu there(on, p);
  REQUIRE(on.gpu.begin_capture(on.stream) == errc::none);  // recording does not wait for the stream
  multiply(there.call, on.stream);
  static_cast<void>(on.gpu.end_capture(on.stream));
  CHECK(on.context.untuned() == std::vector<std::string>{"GemmAndBiasTunableOp_float_NN,nn_4_4_4"});
  on.context.enable_tuning(true);
  on.blas.ticks = [](const gemm_algorithm& g) { return g.tile == 2 ? 5U : 50U; };
  multiply(there.call, on.stream);
  CHECK(multiply.runs(there.call).ends_with("tile=2)"));
  there.check("with a bias");
}

TEST_CASE("matrices with a bias that are not aligned run what cuBLASLt chooses for their alignment") {
  bench on;
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  p.add_bias();
  on_gpu there(on, p);
  const cuda_memory room = cuda_memory::on_device(on.gpu, 0, 4'096);
  gemm_call<float> call = there.call;
  call.c = on_gpu::numbers_in(room).subspan(1);
  multiply(call, on.stream);
  CHECK(on.blas.alignments == std::vector<std::uint32_t>{4});
  CHECK_FALSE(multiply.decision(call).decided);
}

TEST_CASE("matrices of a batch that are not aligned run the default, also if their sizes are decided") {
  bench on;
  on.blas.ticks = [](const gemm_algorithm&) { return 5; };
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4, .batch = 2});
  on_gpu there(on, p);
  multiply(there.call, on.stream);
  REQUIRE(multiply.runs(there.call) != "cublas");
  const cuda_memory room = cuda_memory::on_device(on.gpu, 0, 4'096);
  gemm_call<float> call = there.call;
  call.a = on_gpu::numbers_in(room);
  call.stride_a = 17;
  on.blas.ran.clear();
  multiply(call, on.stream);
  CHECK(on.blas.ran == std::vector<std::string>{"cublas"});
}

TEST_CASE("a default that fails leaves C as it was, and the next call tunes") {
  bench on;
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4, .beta = 1});
  p.add_bias();
  on_gpu there(on, p);
  bool fails = true;
  int runs = 0;
  on.blas.refuses = [&](const gemm_algorithm& g) { return fails && g == on.blas.first[0] && ++runs > 1; };
  CHECK_THROWS_AS(multiply(there.call, on.stream), failure);
  CHECK_FALSE(multiply.decision(there.call).being_tuned);
  fails = false;
  multiply(there.call, on.stream);
  CHECK(multiply.decision(there.call).decided);
  there.check("at last");
}

TEST_CASE("arguments that have no meaning are refused") {
  bench on;
  cuda_gemm<float> multiply(on.context, on.gpu, on.blas);
  matrix_problem<float> p(gemm_call<float>{.m = 4, .n = 4, .k = 4});
  on_gpu there(on, p);
  gemm_call<float> call = there.call;
  const float one = 1;
  call.scale_a = &one;
  CHECK_THROWS_AS(multiply(call, on.stream), failure);
  CHECK_THROWS_AS((cuda_kernels(on.ex, on.gpu, 7)), failure);
}

TEST_CASE("products of 8 bits have the names and keys of TunableOp") {
  bench on;
  on.context.enable_tunable_op(false);
  cuda_gemm<f8_e4m3, bf16> multiply(on.context, on.gpu, on.blas);
  gemm_call<f8_e4m3, bf16> call{.m = 64, .n = 16, .k = 32, .trans_a = true};
  CHECK(multiply.decision(call).title == "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN, "
                                         "tn_64_16_32_ld_32_32_64_rw_0_bias_None");
  std::vector<bf16> bias(64);
  call.bias = bias;
  CHECK(multiply.decision(call).parameters == "tn_64_16_32_ld_32_32_64_rw_0_bias_BFloat16");
  call.scales_by_row = true;
  CHECK(multiply.decision(call).parameters == "tn_64_16_32_ld_32_32_64_rw_1_bias_BFloat16");
  call.bias = {};
  CHECK(multiply.decision(call).parameters == "tn_64_16_32_ld_32_32_64_rw_1_bias_None");
  cuda_gemm<float> rounded(on.context, on.gpu, on.blas, {.tf32 = true});
  CHECK(rounded.decision(gemm_call<float>{.m = 2, .n = 2, .k = 2}).title == "GemmTunableOp_tf32_NN, nn_2_2_2");
}

TEST_CASE("the list of algorithms begins with cuBLASLt's guesses, has their neighbours, and names each once") {
  bench on;
  const transports::matrix_product p{.m = 4, .n = 4, .k = 4};
  const std::vector<gemm_algorithm> all = algorithms_for(on.blas, p, on.blas.guesses(p, 1, 64), 1, 1'000);
  REQUIRE(all.size() > 4);
  CHECK(all[0] == on.blas.first[0]);
  CHECK(all[1] == on.blas.first[1]);
  std::set<std::string> ids;
  for (const gemm_algorithm& g : all) {
    CHECK(on.blas.exists(g));
    ids.insert(id_of(g));
    CHECK(algorithm_of(id_of(g)) == g);
  }
  CHECK(ids.size() == all.size());
  CHECK(ids.contains("cublaslt(algo=1 cluster=2 tile=4)"));
  CHECK(ids.contains("cublaslt(algo=1 cluster=2 custom=1 tile=1)"));
  CHECK(ids.contains("cublaslt(algo=2 cluster=2 reduction=2 splitk=4 tile=3)"));
  CHECK(algorithms_for(on.blas, p, on.blas.guesses(p, 1, 64), 1, 1'000) == all);
  CHECK(algorithms_for(on.blas, p, on.blas.guesses(p, 1, 64), 1, 3).size() == 3);
  for (const std::size_t k : {1, 3, 32}) {
    const transports::matrix_product of_few_terms{.m = 4, .n = 4, .k = k};
    int most_parts = 0;
    for (const gemm_algorithm& g : algorithms_for(on.blas, of_few_terms, {}, 1, 1'000))
      most_parts = std::max(most_parts, g.split_k);
    CHECK(most_parts == static_cast<int>(k));  // a sum is not split into more parts than it has terms
  }
  const gemm_algorithm by_itself{.id = 43, .split_k = -1};
  CHECK(id_of(by_itself) == "cublaslt(algo=43 splitk=auto)");
  CHECK(algorithm_of(id_of(by_itself)) == by_itself);
  for (const char* const bad :
       {"cublas", "cublaslt", "cublaslt(tile=4)", "cublaslt(algo=x)", "cublaslt(algo=1 tiles=4)", "cublaslt("})
    CHECK_FALSE(algorithm_of(bad).has_value());
}
