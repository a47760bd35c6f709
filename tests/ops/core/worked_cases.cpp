// The worked cases with exact numbers, from one source: on virtual ranks, in processes over shared memory and over TCP, and on device
// buffers of a fake GPU. tests/gpu runs them on real GPUs.
#include <parley/tests/support/cases/worked/each_config.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/cases/worked_cases.hpp>
#include <parley/tests/support/devices/device_place.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/processes.hpp>

#include <parley/config.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/run.hpp>
#include <parley/scope.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::worked_cases;

namespace {

// Configs that copy from GPU to GPU, which each case tries as well as its own.
const std::vector<config_ptr> by_copies{put(), get(), put(0, 4, {.kernel_blocks = 16})};

constexpr const char* rank_test = "this program as one rank of the worked cases";

void over(const char* transports) {
  for (const rank_id ranks : {2, 4, 8, 16}) {
    CAPTURE(ranks);
    const job_run run(rank_test, "worked cases", ranks, {{"UCX_TLS", transports}});
    CHECK_MESSAGE(run.fine(), run.all);
    CHECK(run.joined().first > 0);
    CHECK(run.joined().second == 0);
  }
}

}  // namespace

TEST_CASE("this program as one rank of the worked cases" * doctest::skip()) {
  if (std::getenv(scenario_variable) == nullptr) return;
  job_options o;
  o.settings.plan.budget_fraction = 1e9;
  o.settle_limit = std::chrono::nanoseconds(here::of_a_busy_machine);
  const int status = ops::run(
      [](job& j) {
        here h(j.self(), on_host());
        h.on_case = [](const std::string& name) { say("case " + name); };
        run(j.loop(), guarded(&h));
        say_flights(j.self());
      },
      o);
  REQUIRE(status == 0);
}

TEST_CASE("the worked cases hold on virtual ranks") {
  for (const rank_id ranks : {2, 4, 8, 16}) {
    CAPTURE(ranks);
    world w(ranks, eager_trials());
    std::vector<std::unique_ptr<here>> all;
    for (auto& r : w.ranks) all.push_back(std::make_unique<here>(*r, on_host()));
    scope running(w.clock);
    for (auto& h : all) running.spawn(guarded(h.get()));
    run_until(w.clock, [&] { return running.running() == 0; });
    CHECK(join_flights(w).mismatches == 0);
    CHECK(join_group_flights(w).mismatches == 0);
  }
}

TEST_CASE("the worked cases hold in processes that share memory") { over("posix,cma,self"); }

TEST_CASE("the worked cases hold in processes over TCP") { over("tcp,self"); }

TEST_CASE(
    "the worked cases hold on device buffers, with two to eight ranks of one process on one GPU, or four on two") {
  struct on_fakes {
    rank_id ranks;
    std::uint64_t ticks;
    int devices;
  };
  for (const auto& [ranks, ticks, devices] : {on_fakes{2, 0, 1}, {2, 200, 1}, {4, 200, 1}, {8, 200, 1}, {4, 200, 2}}) {
    CAPTURE(ranks);
    CAPTURE(ticks);
    CAPTURE(devices);
    fake_cuda gpu(devices);
    fake_nccl nccl(gpu);
    one_process job({.ranks = ranks, .settings = with_long_memory(), .gpu = &gpu});
    std::vector<std::unique_ptr<fake_place>> places;
    std::vector<std::unique_ptr<here>> all;
    for (rank_id r = 0; r < ranks; ++r) {
      places.push_back(std::make_unique<fake_place>(*job.gpu(r), *job.gpu_memory(r), ticks));
      all.push_back(std::make_unique<here>(job[r], *places.back()));
      all.back()->others = by_copies;
      all.back()->until_each_ran = true;
      // Two devices that cannot reach each other's memory have no way to sum.
      if (devices == 1) all.back()->gpu_sums = {job.gpu(r), {.nccl = &nccl}};
    }
    job.run([&](rank& self) { return guarded(all[self.id()].get()); });
  }
}

TEST_CASE(
    "the worked cases hold on device buffers, with ranks that are set up like processes on one GPU or on one each") {
  for (const auto& [ranks, devices] : {std::pair{2, 1}, {4, 1}, {2, 2}, {4, 4}}) {
    CAPTURE(ranks);
    CAPTURE(devices);
    fake_cuda gpu(devices);
    fake_nccl nccl(gpu);
    const bool own_gpus = ranks == devices;  // NCCL accepts one rank per GPU
    two_ranks w(gpu, {direct()}, own_gpus ? &nccl : nullptr, static_cast<rank_id>(ranks));
    std::vector<std::unique_ptr<fake_place>> places;
    std::vector<std::unique_ptr<here>> all;
    scope running(w.loop);
    for (rank_id r = 0; r < w.ranks.size(); ++r) {
      places.push_back(std::make_unique<fake_place>(*w.copies[r], *w.spaces[r]));
      all.push_back(std::make_unique<here>(*w.ranks[r], *places.back()));
      all.back()->others = by_copies;
      if (own_gpus) all.back()->others.push_back(configs::nccl());
      all.back()->until_each_ran = true;
      all.back()->gpu_sums = {w.copies[r].get(), {.nccl = &nccl}};
      running.spawn(guarded(all.back().get()));
    }
    run_until(w.loop, [&] { return running.running() == 0; });
  }
}
