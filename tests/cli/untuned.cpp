// `parley tune --untuned`: results for what a program has listed.
#include <parley/tests/cli/command_folder.hpp>
#include <parley/tests/support/deadline.hpp>

#include <parley/cli/payload/cuda.hpp>
#include <parley/ops/kernels/blas_libraries.hpp>

#include <doctest/doctest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using folder = parley::tests::command_folder;
using parley::tests::deadline;
using parley::tests::has;

namespace {

/// Without a BLAS library there is nothing to choose, and each line is left out. `./dev test` installs some.
bool has_choice() {
  if (!parley::ops::blas_libraries().empty()) return true;
  MESSAGE("there is no BLAS library, so that this test does not run");
  return false;
}

/// A command that runs while the test goes on. It is killed at the latest when the test ends.
class in_background {
 public:
  in_background(const folder& here, const std::string& line) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const std::string all = "cd '" + here.path.string() + "' && exec env " + line + " >out 2>error";
    ::execl("/bin/sh", "sh", "-c", all.c_str(), nullptr);
    ::_exit(127);
  }
  in_background(const in_background&) = delete;
  in_background& operator=(const in_background&) = delete;
  ~in_background() { static_cast<void>(kill()); }
  /// True if the command was still running.
  bool kill() {
    if (pid_ <= 0) return false;
    ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  }

 private:
  pid_t pid_;
};

/// The lines of a results file that are results.
std::vector<std::string> results_in(const std::string& text) {
  std::vector<std::string> all;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Gemm")) all.push_back(line);
  }
  return all;
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

TEST_CASE(
    "tune --untuned that is killed has kept what it had decided, and the next one knows that and tunes the rest") {
  if (!has_choice()) return;
  const folder here;
  // With 2,000 runs of each implementation the small ones take moments, and each of the others many seconds.
  std::vector<std::string> keys;
  for (const char* const small : {"nn_4_4_4", "nn_5_5_5", "nn_6_6_6"}) keys.emplace_back(small);
  for (const char* const large : {"nn_512_512_512", "nn_512_512_513", "nn_512_512_514"}) keys.emplace_back(large);
  std::string list;
  for (const std::string& key : keys) list += "GemmTunableOp_float_NN," + key + "\n";
  here.write("untuned.csv", list);
  const std::string tune = "tune --untuned untuned.csv --results results.csv --json";

  std::vector<std::string> kept;
  {
    const std::string slowly =
        "PARLEY_TUNABLEOP_MAX_TUNING_DURATION_MS=60000 PARLEY_TUNABLEOP_MAX_TUNING_ITERATIONS=2000 "
        "PARLEY_TUNABLEOP_ROTATING_BUFFER_SIZE=0";
    in_background first(here, slowly + " '" PARLEY_COMMAND "' " + tune);
    for (const deadline limit; kept.empty() && !limit.is_over(); kept = results_in(here.read("results0.csv")))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    REQUIRE(first.kill());
  }
  kept = results_in(here.read("results0.csv"));
  REQUIRE(kept.size() > 0);
  REQUIRE(kept.size() < keys.size());

  const auto second = here.parley(tune, "PARLEY_TUNABLEOP_MAX_TUNING_ITERATIONS=1");
  INFO(second.error);
  CHECK(second.status == 0);
  CHECK(second.document().at("known").to_number<std::size_t>() == kept.size());
  CHECK(second.document().at("tuned").to_number<std::size_t>() == keys.size() - kept.size());
  for (const char* const file : {"results0.csv", "results.csv"}) {
    CAPTURE(file);
    const std::string text = here.read(file);
    CHECK(results_in(text).size() == keys.size());
    for (const std::string& line : kept) has(text, line + "\n");
    for (const std::string& key : keys) has(text, "\nGemmTunableOp_float_NN," + key + ",");
  }
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
  has(together.out + together.error, "start one rank on each host");
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
