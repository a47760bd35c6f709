// A pipeline of four ranks, and a group of four ranks with a leader, while they agree on configs.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/processes.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/pipeline.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::deadline;
using parley::tests::pattern;
using parley::tests::say_flights;

namespace {

/// Sets `enough` to whether all ranks have seen enough. All ranks learn this in the same call.
task<> tell_of_enough(collective all, std::size_t world, bool& enough) {
  std::array<float, 1> seen{enough ? 1.0F : 0.0F};
  co_await all.all_reduce(std::span<float>(seen));
  enough = seen[0] == static_cast<float>(world);
}
bool has_tried(const rank& self, const std::string& op, std::initializer_list<std::uint64_t> sizes) {
  const auto agreed = self.agreements();
  const auto at = std::find_if(agreed.begin(), agreed.end(), [&](const auto& a) { return a.op.starts_with(op); });
  return at != agreed.end() && std::all_of(sizes.begin(), sizes.end(), [&](std::uint64_t bytes) {
           const actors::search* const c = at->assigned->find(bytes);
           return c != nullptr && c->trials() > 0;
         });
}

struct adding final : pipeline_stage {
  adding(std::size_t s, std::size_t n) : stage(s), last(s + 1 == n) {}
  void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
    if (stage == 0) {
      const auto fresh = pattern(activation.size(), microbatch);
      std::copy(fresh.begin(), fresh.end(), activation.begin());
    }
    for (std::byte& b : activation) b = static_cast<std::byte>(static_cast<unsigned>(b) + stage + 1);
    if (!last) return;
    auto expected = pattern(activation.size(), microbatch);
    for (std::byte& b : expected) b = static_cast<std::byte>(static_cast<unsigned>(b) + (stage + 1) * (stage + 2) / 2);
    same = same && std::equal(expected.begin(), expected.end(), activation.begin());
  }
  std::size_t stage;
  bool last;
  bool same = true;
};
void four_stages(job& here) {
  rank& self = here.self();
  pipeline pipe(self, {.name = "layers", .configs = {direct(), chunked(4_KiB, 2)}});
  collective_options beside;
  beside.name = "enough";
  beside.role = [](rank_id r) { return r == 0 ? role::leader : role::worker; };
  beside.configs = {star()};
  const collective all(self, beside);
  adding stage(pipe.stage(), pipe.stages());
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < 60; ++i) bytes.push_back(i % 2 == 0 ? 200'000 : 8192);
  const auto tried = [&] { return pipe.last() || has_tried(self, "layers", {200'000, 8192}); };
  const deadline limit;
  for (bool enough = false; !enough;) {
    run(here.loop(), pipe.run(bytes, stage));
    enough = tried() || limit.is_over();
    run(here.loop(), tell_of_enough(all, self.world_size(), enough));
  }
  expect(stage.same, "the last stage has what one process computes");
  expect(tried(), "each edge has made trials with both sizes");
  say_flights(self);
}
const scenario as_four_stages{"four_stages", four_stages};

}  // namespace

TEST_CASE("four ranks run a pipeline whose edges tune themselves, and its results are right bit for bit") {
  const job_run run("four_stages", 4);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 3 * 60);
  CHECK(run.joined().second == 0);
}

namespace {

task<> reduce_often(collective g, rank_id self, std::size_t world, std::size_t count) {
  std::vector<float> x(50'000);
  const std::size_t sum_of_ranks = world * (world + 1) / 2;
  const auto sum = static_cast<float>(sum_of_ranks);
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(self + 1) * static_cast<float>(k % 7 + 1);
    co_await g.all_reduce(std::span(x));
    std::size_t wrong = 0;
    for (std::size_t k = 0; k < x.size(); ++k) wrong += x[k] == sum * static_cast<float>(k % 7 + 1) ? 0 : 1;
    expect(wrong == 0, "sum " + std::to_string(i) + " is right");
  }
}
void leader_and_workers(job& here) {
  collective_options op;
  op.name = "gradients";
  op.role = [](rank_id r) { return r == 1 ? role::leader : role::worker; };
  op.configs = {star(), star(16_KiB), chain(16_KiB)};
  rank& self = here.self();
  collective g(self, op);
  const auto tried = [&] { return !g.leads() || has_tried(self, op.name, {200'000}); };
  const deadline limit;
  for (bool enough = false; !enough;) {
    run(here.loop(), reduce_often(g, self.id(), self.world_size(), 100));
    enough = tried() || limit.is_over();
    run(here.loop(), tell_of_enough(g, self.world_size(), enough));
  }
  expect(tried(), "the group has made trials");
  say_searches(here.self());
  say_flights(here.self());
}
const scenario as_leader_and_workers{"leader_and_workers", leader_and_workers};

}  // namespace

TEST_CASE("while four ranks agree on an all-reduce, every sum is right, and all ranks run one config in each call") {
  const job_run run("leader_and_workers", 4);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK(run.joined().first >= 3 * 100);
  CHECK(run.joined().second == 0);
  CHECK_MESSAGE(run.says(1, {"search", "trials"}), run.all);
  CHECK_MESSAGE(run.says(1, {"candidates star"}), run.all);
}
