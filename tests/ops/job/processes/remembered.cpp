// A job that uses the results files of an earlier job, and a variable with an invalid value.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <csignal>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::pair_of;

namespace {

void tuned(job& here) {
  const std::vector configs{direct(), chunked(64_KiB, 2), chunked(32_KiB, 4)};
  tune_with(here, configs, configs);
}
const scenario as_tuned{"tuned", tuned};

/// Removes the mark `thin` from the rows of a results file. A busy machine may leave the mark, and the next job would search again.
void make_firm(const std::filesystem::path& path) {
  std::string rows = text_of(path);
  for (std::size_t at; (at = rows.find(",thin\n")) != std::string::npos;) rows.erase(at, 5);
  std::ofstream(path) << rows;
}

}  // namespace

TEST_CASE("a second job takes its decisions from the results files of the first, whichever rank has a file") {
  const folder kept;
  const std::string file = (kept.path / "results.csv").string();
  const job_run first("tuned", 2, {{"PARLEY_RESULTS", file}});
  CHECK_MESSAGE(first.fine(), first.all);
  CHECK_MESSAGE(first.says(0, {"search 256KiB", " tried decided"}), first.all);
  for (const char* const name : {"results0.csv", "results1.csv"}) make_firm(kept.path / name);
  for (const char* lost : {"", "results0.csv", "results1.csv"}) {
    const folder copy;
    std::filesystem::copy(kept.path, copy.path, std::filesystem::copy_options::recursive);
    if (*lost != '\0') CHECK(std::filesystem::remove(copy.path / lost));
    const job_run again("tuned", 2, {{"PARLEY_RESULTS", (copy.path / "results.csv").string()}});
    CHECK_MESSAGE(again.fine(), again.all);
    CHECK_MESSAGE(again.says(0, {"search 256KiB trials 0 remembered decided"}), again.all);
    CHECK(again.joined().second == 0);
    // A rank that had lost its file has it again.
    for (const char* name : {"results0.csv", "results1.csv"})
      CHECK(text_of(copy.path / name) == text_of(kept.path / name));
  }
}

namespace {

// Both ranks know the decision when this returns.
task<> decide(rank& self, transfer t) {
  co_await move_until_decided(self, t);
  const agreement with = self.id() == 0 ? t.to(1) : t.from(0);
  const auto known = co_await with.decided(200'000, {.timeout = 60s});
  expect(known.decided, "it is known here");
  co_await self.settle(60s);
}
void decide_here(job& here) {
  const transfer t(here.self(), pair_of({direct(), chunked(64_KiB, 2)}));
  run(here.loop(), decide(here.self(), t));
}
// The rank's loop does not run while the rank computes.
void killed_while_it_computes(job& here) {
  decide_here(here);
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(1100);
  while (std::chrono::steady_clock::now() < until) {}
  ::raise(SIGKILL);
}
void throws_after_deciding(job& here) {
  decide_here(here);
  throw std::runtime_error("the engine gives up");
}
const scenario as_killed_while_it_computes{"killed_while_it_computes", killed_while_it_computes};
const scenario as_throws_after_deciding{"throws_after_deciding", throws_after_deciding};

}  // namespace

TEST_CASE("decisions are in the files of ranks that throw at once, or are killed a second later while they compute") {
  for (const char* const scenario : {"throws_after_deciding", "killed_while_it_computes"}) {
    CAPTURE(scenario);
    const folder kept;
    const job_run run(scenario, 2, {{"PARLEY_RESULTS", kept.file("results.csv")}});
    CHECK_FALSE(run.fine());
    for (const char* const name : {"results0.csv", "results1.csv"})
      CHECK_MESSAGE(kept.read(name).find("\nactivations/0>1,256KiB,") != std::string::npos, run.all);
    const job_run again("tuned", 2, {{"PARLEY_RESULTS", kept.file("results.csv")}});
    CHECK_MESSAGE(again.says(0, {"search 256KiB trials 0 remembered decided"}), again.all);
  }
}

TEST_CASE("ranks whose files name different winners run the leader's winner, and both report which rank named which") {
  const folder here;
  const std::vector<std::pair<std::string, std::string>> environment{
      {"PYTORCH_TUNABLEOP_FILENAME", "ignored.csv"},
      {"PARLEY_TUNABLEOP_FILENAME", (here.path / "r%d.csv").string()},
      {"PARLEY_TUNABLEOP_VERBOSE", "2"}};
  const job_run first("tuned", 2, environment);
  CHECK_MESSAGE(first.fine(), first.all);
  for (const char* const name : {"r0.csv", "r1.csv"}) make_firm(here.path / name);
  std::string theirs = text_of(here.path / "r1.csv");
  // Look for the row of 256 KiB: a busy machine may have decided for other keys as well.
  const std::size_t begin = theirs.find("256KiB,") + 7;
  const std::string winner = theirs.substr(begin, theirs.find(',', begin) - begin);
  const std::string other = winner == "direct" ? "chunked(chunk_bytes=65536 in_flight=2)" : "direct";
  theirs.replace(begin, winner.size(), other);
  std::ofstream(here.path / "r1.csv") << theirs;

  const job_run again("tuned", 2, environment);
  CHECK_MESSAGE(again.fine(), again.all);
  CHECK_MESSAGE(again.says(0, {("search 256KiB trials 0 remembered decided " + winner).c_str()}), again.all);
  const std::string evidence = "256KiB: rank 0's results file says so; rank 1's says " + other;
  CHECK(again.joined().second == 0);
  for (const rank_id r : {rank_id{0}, rank_id{1}})
    CHECK_MESSAGE(
        again.all.find("parley: rank " + std::to_string(r) + ": activations 0->1 " + evidence) != std::string::npos,
        again.all);
  CHECK(text_of(here.path / "r0.csv") == text_of(here.path / "r1.csv"));
}

TEST_CASE("every rank names a variable with an invalid value, and no job is started") {
  for (const std::string name : {"PARLEY_TUNABLEOP_TUNING", "PARLEY_UCX_CUDA"}) {
    const job_run run("tuned", 2, {{name, "perhaps"}});
    CHECK(run.end.status == 1);
    for (const rank_id r : {rank_id{0}, rank_id{1}})
      CHECK_MESSAGE(run.says(r, {"malformed", (name + "=perhaps").c_str()}), run.all);
  }
}
