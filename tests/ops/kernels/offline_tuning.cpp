#include <parley/tests/support/devices/fake_cublas.hpp>

#include <parley/gemm.hpp>
#include <parley/offline_tuning.hpp>
#include <parley/ops/kernels/blas_libraries.hpp>
#include <parley/runtime/time/virtual_time.hpp>

#include <doctest/doctest.h>

#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;

namespace {

tunable_context::options quick() {
  tunable_context::options o;
  o.mine.rotating_buffer_bytes = 0;
  o.mine.max_tuning_iterations = 1;
  return o;
}

constexpr const char* four = "GemmTunableOp_float_NT,nt_8_6_4\n"
                             "GemmStridedBatchedTunableOp_double_TN,tn_8_6_4_B_3\n"
                             "\r\n"
                             "GemmAndBiasTunableOp_BFloat16_NN,nn_8_6_4_ld_8_4_10\n"
                             "GemmTunableOp_float_NT,nt_8_6_4\n"
                             "GemmTunableOp_float_TT,tt_3_3_3_ld_3_3_3\n";

}  // namespace

TEST_CASE("each listed multiplication is tuned once, of all kinds and types, and none a second time") {
  virtual_time clock;
  tunable_context kernels(clock, nullptr, quick());
  std::vector<std::string> said;
  const auto note = [&](std::size_t done, std::size_t all, const std::string& what) {
    CHECK(all == 4);
    CHECK(done == said.size() + 1);
    said.push_back(what);
  };
  const offline_report first = tune_lines(kernels, four, "untuned.csv", {.on_progress = note});
  CHECK(first.known == 0);
  CHECK(first.tuned + first.left_out.size() == 4);
  if (!blas_libraries().empty()) CHECK(first.tuned == 4);
  REQUIRE(said.size() == 4);
  CHECK(said[1].starts_with("GemmStridedBatchedTunableOp_double_TN tn_8_6_4_B_3: "));
  CHECK_FALSE(kernels.is_tunable_op_enabled());  // as before

  tunable_context later(clock, nullptr, quick());
  later.remember(kernels.get_tuning_results());
  const offline_report second = tune_lines(later, four, "untuned.csv");
  CHECK(second.tuned == 0);
  CHECK(second.known == first.tuned);
}

TEST_CASE("lines that cannot be tuned are left out by number and reason, and the others are tuned") {
  virtual_time clock;
  tunable_context kernels(clock, nullptr, quick());
  const std::string text = "Validator,PT_VERSION,2.2.0\n"
                           "no comma\n"
                           "scale,n=65536\n"
                           "GemmTunableOp_Half_NN,nn_8_8_8\n"
                           "GemmTunableOp_float_NN,nt_8_8_8\n"
                           "GemmTunableOp_float_NN,nn_8_8\n"
                           "GemmTunableOp_float_NN,nn_8_8_0\n"
                           "GemmTunableOp_float_NN,nn_8_8_99999999999999999999\n"
                           "GemmTunableOp_float_NN,nn_8_8_8_ld_7_8_8\n"
                           "GemmTunableOp_float_NN,nn_2147483647_2147483647_1\n"
                           "GemmStridedBatchedTunableOp_float_NN,nn_8_8_8_B_1\n"
                           "GemmTunableOp_float_NN,nn_8_8_8_B_3\n"
                           "GemmTunableOp_float_NN,nn_8_8_8,Default,0.5\n";
  const offline_report report = tune_lines(kernels, text, "f.csv");
  CHECK(report.tuned == (blas_libraries().empty() ? 0 : 1));
  REQUIRE(report.left_out.size() == 12 - report.tuned);
  CHECK(report.left_out[0] == "f.csv, line 2: `no comma` has no comma; a line is an op and a key, as in "
                              "GemmTunableOp_float_NT,nt_25088_4096_64");
  CHECK(report.left_out[1] ==
        "f.csv, line 3: scale,n=65536 is left out: it is not an operation of parley's own; run its "
        "program with tuning on");
  CHECK(report.left_out[2] ==
        "f.csv, line 4: GemmTunableOp_Half_NN,nn_8_8_8 is left out: there are no products of type Half on "
        "processors");
  for (std::size_t i = 3; i < 7; ++i) CHECK(report.left_out[i].ends_with("its key is not like nt_25088_4096_64"));
  CHECK(report.left_out[7].ends_with("gemm: the leading dimension of A is 7, but it must be at least 8"));
  CHECK(report.left_out[9].ends_with("a batch of one has the name GemmTunableOp_ in parley"));
  CHECK(report.left_out[10].ends_with("its key is not like nt_25088_4096_64"));
  CHECK(report.left_out[8].find("its matrices need 1759218604") != std::string::npos);
}

TEST_CASE("nothing is tuned if the environment forbids it, or if there is no file") {
  virtual_time clock;
  tunable_context::options o = quick();
  o.environment = tuning::read_settings([](const std::string& name) -> std::optional<std::string> {
                    if (name != "PARLEY_TUNABLEOP_TUNING") return std::nullopt;
                    return "0";
                  }).value();
  tunable_context forbidden(clock, nullptr, o);
  CHECK_THROWS_WITH_AS(tune_lines(forbidden, four, "f"), doctest::Contains("PARLEY_TUNABLEOP_TUNING"), failure);
  tunable_context without_disk(clock, nullptr, quick());
  CHECK(tune_in_file(without_disk, "f").code() == errc::unavailable);
}

TEST_CASE("with a GPU, the listed multiplications are tuned there, in its types") {
  virtual_time clock;
  tests::fake_cuda gpu;
  tests::fake_cublas blas(gpu);
  const offline_gpu where{gpu, blas};
  tunable_context kernels(clock, nullptr, quick());
  const offline_report all =
      tune_lines(kernels,
                 "GemmTunableOp_tf32_NT,nt_8_6_4\n"
                 "GemmTunableOp_Half_TN,tn_8_6_4\n"
                 "GemmStridedBatchedTunableOp_double_TN,tn_8_6_4_B_3\n"
                 "GemmAndBiasTunableOp_BFloat16_NN,nn_8_6_4_ld_8_4_10\n"
                 "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_16_16_16_ld_16_16_16_rw_0_bias_None\n"
                 "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_Half_TN,tn_16_16_16_ld_16_16_16_rw_0_bias_Half\n"
                 "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_Half_TN,tn_16_16_16_ld_16_16_16_rw_1_bias_None\n"
                 "ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_Half_TN,tn_16_16_16_ld_16_16_16_rw_2_bias_None\n"
                 "ScaledGemmTunableOp_Float8_e5m2_Float8_e4m3fn_Half_TN,tn_16_16_16_ld_16_16_16_rw_0_bias_None\n"
                 "GemmTunableOp_ComplexFloat_NN,nn_2_2_2\n",
                 "untuned.csv", {.gpu = where});
  CHECK(all.tuned == 7);
  REQUIRE(all.left_out.size() == 3);
  CHECK(all.left_out[0].find("its key is not like tn_4096_16_4096_ld_4096_4096_4096_rw_0_bias_None") !=
        std::string::npos);
  CHECK(all.left_out[1].find("no products of type Float8_e5m2_Float8_e4m3fn_Half on a GPU") != std::string::npos);
  CHECK(all.left_out[2].find("no products of type ComplexFloat on a GPU") != std::string::npos);
  const tuning::results_file results = kernels.get_tuning_results();
  for (const tuning::result_entry& e : results.entries()) CHECK(e.time_ms > 0);
  CHECK(gpu.blocks() == 0);  // nothing is left on the GPU
}

TEST_CASE("processes with a GPU each share the lines, and say once what is wrong with the file") {
  virtual_time clock;
  tests::fake_cuda gpu;
  tests::fake_cublas blas(gpu);
  std::vector<std::string> tuned;
  std::size_t left_out = 0;
  for (std::size_t share = 0; share < 3; ++share) {
    tunable_context kernels(clock, nullptr, quick());
    const offline_report mine =
        tune_lines(kernels,
                   "GemmTunableOp_float_NN,nn_2_2_2\nno comma\nGemmTunableOp_float_NN,nn_2_2_2\n"
                   "GemmTunableOp_float_NN,nn_4_4_4\nGemmTunableOp_float_NN,nn_8_8_8\n"
                   "GemmTunableOp_float_NN,nn_16_16_16\n",
                   "untuned.csv", {.gpu = offline_gpu{gpu, blas}, .share = share, .of = 3});
    left_out += mine.left_out.size();
    const tuning::results_file results = kernels.get_tuning_results();
    for (const tuning::result_entry& e : results.entries()) tuned.push_back(e.parameters);
    CHECK(mine.tuned == (share == 0 ? 2 : 1));
  }
  CHECK(left_out == 1);
  CHECK(tuned == std::vector<std::string>{"nn_2_2_2", "nn_16_16_16", "nn_4_4_4", "nn_8_8_8"});
}
