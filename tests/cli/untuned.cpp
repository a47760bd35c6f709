// `parley tune --untuned`: results for what a program has listed.
#include <parley/tests/cli/command_folder.hpp>

#include <parley/cli/payload/cuda.hpp>
#include <parley/ops/kernels/blas_libraries.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <string>

using folder = parley::tests::command_folder;
using parley::tests::has;

namespace {

/// Without a BLAS library there is nothing to choose, and each line is left out. `./dev test` installs some.
bool has_choice() {
  if (!parley::ops::blas_libraries().empty()) return true;
  MESSAGE("there is no BLAS library, so that this test does not run");
  return false;
}

}  // namespace

TEST_CASE("tune --untuned adds a result for each listed multiplication, and goes on where an earlier run was") {
  if (!has_choice()) return;
  const folder here;
  here.write("untuned.csv", "GemmTunableOp_float_NT,nt_12_10_8\nGemmTunableOp_double_NN,nn_6_6_6\n");
  const auto first = here.parley("tune --untuned untuned.csv --results results.csv --json");
  INFO(first.error);
  CHECK(first.status == 0);
  const auto count = [](const folder::ended& e, const char* what) { return e.document().at(what).to_number<int>(); };
  REQUIRE(count(first, "tuned") == 2);
  has(here.read("results0.csv"), "\nGemmTunableOp_float_NT,nt_12_10_8,");
  // The ranks of any job read this file.
  const std::string common = here.read("results.csv");
  has(common, "\nGemmTunableOp_float_NT,nt_12_10_8,");
  CHECK(common.find("PARLEY_WORLD") == common.npos);

  here.write("more.csv", "GemmTunableOp_float_NN,nn_5_5_5\n");
  const auto second = here.parley("tune --untuned untuned.csv more.csv --results results.csv --json");
  CHECK(second.status == 0);
  CHECK(count(second, "known") == 2);
  CHECK(count(second, "tuned") == 1);

  const auto in_words = here.parley("tune --untuned more.csv --results results.csv");
  has(in_words.out, "[1/1] GemmTunableOp_float_NN nn_5_5_5: ");
  has(in_words.out, "0 tuned, 1 known before, 0 left out\n");
}

TEST_CASE("tune --untuned names each line and file that it cannot tune, and tunes the others") {
  const folder here;
  here.write("untuned.csv", "scale,n=65536\nGemmTunableOp_float_NN,nn_4_4_4\n");
  const auto one_left = here.parley("tune --untuned untuned.csv --no-results");
  CHECK(one_left.status == 1);
  has(one_left.error, "untuned.csv, line 1: scale,n=65536 is left out: it is not an operation of parley's own");
  has(one_left.out, "1 left out\n");
  const auto no_file = here.parley("tune --untuned missing.csv untuned.csv --no-results");
  CHECK(no_file.status == 2);
  has(no_file.error, "missing.csv");
  has(no_file.out, "1 left out\n");
  const auto both = here.parley("tune spec.json --untuned untuned.csv");
  CHECK(both.status == 2);
  has(both.error, "SPEC excludes --untuned");
  for (const char* other : {"--sim", "-n 4", "--no-tuning"})
    CHECK(here.parley(std::string("tune --untuned untuned.csv ") + other).status == 2);
  const auto neither = here.parley("tune");
  CHECK(neither.status != 0);
  has(neither.error, "SPEC is required");
  const auto forbidden = here.parley("tune --untuned untuned.csv --no-results", "PARLEY_TUNABLEOP_TUNING=0");
  CHECK(forbidden.status == 1);
  has(forbidden.error, "set PARLEY_TUNABLEOP_ENABLED and PARLEY_TUNABLEOP_TUNING to 1");
  CHECK(std::filesystem::exists(here.path / "tunableop_results0.csv") == false);
}

TEST_CASE("tune --untuned keeps results where its options say, whatever the environment says, or ends with status 1") {
  if (!has_choice()) return;
  const folder here;
  here.write("untuned.csv", "GemmTunableOp_float_NN,nn_4_4_4\n");
  const std::string environment = "PARLEY_RESULTS=other.csv PARLEY_TUNABLEOP_ENABLED=1";
  CHECK(here.parley("tune --untuned untuned.csv --no-results", environment).status == 0);
  CHECK_FALSE(std::filesystem::exists(here.path / "other0.csv"));
  CHECK_FALSE(std::filesystem::exists(here.path / "other.csv"));
  CHECK(here.parley("tune --untuned untuned.csv --results mine.csv", environment).status == 0);
  CHECK(std::filesystem::exists(here.path / "mine0.csv"));
  CHECK_FALSE(std::filesystem::exists(here.path / "other0.csv"));
  const auto nowhere = here.parley("tune --untuned untuned.csv --results no/folder.csv");
  CHECK(nowhere.status == 1);
  has(nowhere.error, "no results were kept");
  std::filesystem::create_directory(here.path / "folder");
  CHECK(here.parley("tune --untuned untuned.csv --results folder").status == 1);
  CHECK_FALSE(std::filesystem::exists(here.path / "folder0"));
  const auto together = here.parley("run -n 2 -- '" PARLEY_COMMAND "' tune --untuned untuned.csv");
  CHECK(together.status == 1);
  has(together.out + together.error, "start it without `parley run`, once per host");
}

TEST_CASE("tune --untuned --device cuda tunes on the GPU, or says why it cannot") {
  const folder here;
  here.write("untuned.csv", "GemmTunableOp_BFloat16_TN,tn_64_32_16\n");
  const auto ran = here.parley("tune --untuned untuned.csv --device cuda --no-results");
  if (parley::cli::find_cuda() && parley::cli::find_cublas()) {
    CHECK(ran.status == 0);
    has(ran.out, "1 tuned, 0 known before, 0 left out\n");
  } else {
    CHECK(ran.status == 1);
    has(ran.error, "parley: --device cuda: unavailable: ");
  }
}
