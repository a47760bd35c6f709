// The worked cases on real GPUs, from the source that tests/ops runs without one. They run as many ranks of one process on one GPU, and
// with one process per rank, on the GPUs of the host in turn. Without a GPU nothing runs, and ctest reports that.
#define DOCTEST_CONFIG_IMPLEMENT
#include <parley/tests/gpu/kernels_on_gpu.hpp>
#include <parley/tests/gpu/must.hpp>

#include <parley/tests/support/cases/worked/each_config.hpp>
#include <parley/tests/support/cases/worked/here.hpp>
#include <parley/tests/support/cases/worked_cases.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/device_place.hpp>
#include <parley/tests/support/processes.hpp>

#include <parley/config.hpp>
#include <parley/cuda_runtime.hpp>
#include <parley/cuda_space.hpp>
#include <parley/nccl_runtime.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/run.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::worked_cases;

namespace {

class gpu_place final : public device_place {
 public:
  gpu_place(transports::cuda_copies& copies, transports::cuda_space& memory)
      : device_place(copies, memory), device_(copies.device()) {
    must(cudaSetDevice(device_), "cudaSetDevice");
    must(launch_case_kernels_once(static_cast<transports::cuda_stream>(stream())), "first launches");
  }

 private:
  void launch(const kernels::any& kernel, std::size_t count, transports::cuda_stream s) override {
    must(cudaSetDevice(device_), "cudaSetDevice");
    must(launch_case_kernel(kernel, count, s), "a kernel");
  }
  int device_;
};

// PARLEY_TEST_RANKS=N replaces the usual numbers of ranks by N.
std::vector<rank_id> worlds(std::vector<rank_id> usual) {
  if (const char* const told = std::getenv("PARLEY_TEST_RANKS")) usual = {static_cast<rank_id>(std::atoi(told))};
  return usual;
}
rank_settings settings() {
  rank_settings s = with_long_memory();
  s.patience = static_cast<std::uint32_t>(times_slower());
  return s;
}
time_ns patience() { return here::of_a_busy_machine * times_slower(); }

std::function<void(const std::string&)> told_with_time() {
  return [began = std::chrono::steady_clock::now()](const std::string& name) {
    const std::chrono::duration<double> after = std::chrono::steady_clock::now() - began;
    say(fmt::format("case {}, after {:.1f} s", name, after.count()));
  };
}

here::sums_on_gpus sums_on(transports::cuda_copies& copies) {
  here::sums_on_gpus s{.copies = &copies};
  if (const auto nccl = transports::nccl_runtime()) {
    s.with.nccl = *nccl;
  } else {
    s.with.no_nccl = nccl.reason().text();
  }
  return s;
}

// Copies from GPU to GPU, in addition to the configs that each case tries.
const std::vector<config_ptr> by_copies{put(), get(), put(0, 4, {.kernel_blocks = 16})};

// NCCL does not accept two ranks on one GPU.
bool has_gpu_of_its_own(rank& self) {
  return transports::cuda_runtime().value()->devices().size() >= self.world_size();
}

constexpr const char* rank_test = "this program as one rank of the worked cases on a GPU";

}  // namespace

TEST_CASE("this program as one rank of the worked cases on a GPU" * doctest::skip()) {
  if (std::getenv(scenario_variable) == nullptr) return;
  job_options o;
  o.settings = settings();
  o.settle_limit = std::chrono::nanoseconds(patience());
  o.gpu = transports::cuda_runtime().value();
  const auto nccl = transports::nccl_runtime();
  if (nccl) o.planes.nccl = *nccl;
  const int status = ops::run(
      [&](job& j) {
        gpu_place at(*j.gpu(), *j.gpu_memory());
        here h(j.self(), at, patience());
        h.gpu_sums = sums_on(*j.gpu());
        h.others = by_copies;
        if (nccl && has_gpu_of_its_own(j.self())) h.others.push_back(configs::nccl());
        h.until_each_ran = true;
        h.on_case = told_with_time();
        run(j.loop(), guarded(&h));
        say_flights(j.self());
      },
      o);
  REQUIRE(status == 0);
}

TEST_CASE("the worked cases hold on a GPU, with many ranks of one process") {
  for (const rank_id ranks : worlds({2, 4, 8})) {
    CAPTURE(ranks);
    one_process job({.ranks = ranks, .settings = settings(), .gpu = transports::cuda_runtime().value()});
    std::vector<std::unique_ptr<gpu_place>> places;
    std::vector<std::unique_ptr<here>> all;
    for (rank_id r = 0; r < ranks; ++r) {
      places.push_back(std::make_unique<gpu_place>(*job.gpu(r), *job.gpu_memory(r)));
      all.push_back(std::make_unique<here>(job[r], *places.back(), patience()));
      all.back()->gpu_sums = sums_on(*job.gpu(r));
      all.back()->others = by_copies;
      all.back()->until_each_ran = true;
    }
    all.front()->on_case = told_with_time();
    job.run([&](rank& self) { return guarded(all[self.id()].get()); });
  }
}

TEST_CASE("the worked cases hold with a process for each rank, on the GPUs of this host in turn") {
  for (const rank_id ranks : worlds({2, 4})) {
    CAPTURE(ranks);
    const job_run run(rank_test, "worked cases", ranks);
    CHECK_MESSAGE(run.fine(), run.all);
    CHECK(run.joined().first > 0);
    CHECK(run.joined().second == 0);
  }
}

int main(int argc, char** argv) {
  constexpr int skipped = 77;
  if (const auto gpu = transports::cuda_runtime(); !gpu) {
    std::fprintf(stderr, "no GPU, so that no test runs: %s\n", gpu.reason().what().c_str());
    return skipped;
  }
  return doctest::Context(argc, argv).run();
}
