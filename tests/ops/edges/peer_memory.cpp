// The examples that move data from GPU to GPU by copy engines, without a kernel: a rank dies, the GPU faults, or memory runs out.
#include <parley/examples/gpu/peer_memory.hpp>

#include <parley/examples/gpu/gathered_shards.hpp>
#include <parley/examples/gpu/scattered_sums.hpp>
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/devices/gpu_ranks.hpp>
#include <parley/tests/support/errors.hpp>

#include <memory>
#include <string>
#include <vector>

namespace {

using namespace parley;
using namespace parley::runtime;
using namespace parley::tests;
using examples::copy_plan;
using examples::copy_way;

constexpr rank_id world = 3;
constexpr std::uint64_t row_bytes = 48;

void enqueue(examples::gathered_shards& a, const copy_plan& plan, transports::cuda_stream s) {
  a.begin(plan, s);
  for (rank_id i = 0; i < world; ++i) {
    for (unsigned c = 0; c < plan.chunks; ++c) a.wait_for(a.source(i), c, s);
  }
  a.end(s);
}
void enqueue(examples::scattered_sums& c, const copy_plan& plan, transports::cuda_stream s) {
  c.begin(plan, s);
  for (rank_id i = 1; i <= world; ++i) {
    for (unsigned chunk = 0; chunk < plan.chunks; ++chunk) c.made(c.target(i), chunk, s);
  }
  for (unsigned chunk = 0; chunk < plan.chunks; ++chunk) c.wait_for(chunk, s);
  c.end(s);
}

template <class Shards>
task<> meet(Shards* all, ops::rank* r, result<>* outcome) {
  *outcome = co_await ops::attempt(all->meet(*r));
}
template <class Shards>
task<> reach(Shards* all, transports::cuda_stream s, std::unique_ptr<result<>>* outcome) {
  auto ended = co_await ops::attempt(all->reached(s));
  *outcome = std::make_unique<result<>>(std::move(ended));
}

template <class Shards>
struct users {
  users() {
    std::vector<result<>> outcomes(world);
    scope all(w.loop);
    for (rank_id r = 0; r < world; ++r) {
      streams.push_back(gpu.make_stream(0));
      shards.push_back(std::make_unique<Shards>(*w.copies[r], *w.spaces[r],
                                                examples::shard_place{r, world, /*rows=*/10, row_bytes}));
      all.spawn(meet(shards[r].get(), w.ranks[r].get(), &outcomes[r]));
    }
    run_until(w.loop, [&] { return all.running() == 0; });
    for (const auto& o : outcomes) CHECK(o);
  }
  users(const users&) = delete;
  users& operator=(const users&) = delete;
  ~users() {
    shards.clear();
    for (const auto s : streams) gpu.destroy(s);
  }
  void call(const copy_plan& plan, const std::vector<rank_id>& by) {
    for (const rank_id r : by) enqueue(*shards[r], plan, streams[r]);
  }
  /// Waits for the calls of ranks 0 and 1, calls `then` in the middle of the wait, and returns how the calls ended.
  template <class Then>
  std::vector<std::unique_ptr<result<>>> outcomes(Then then) {
    std::vector<std::unique_ptr<result<>>> all(2);
    scope waiting(w.loop);
    for (rank_id r = 0; r < 2; ++r) waiting.spawn(reach(shards[r].get(), streams[r], &all[r]));
    int turns = 0;
    const deadline limit;
    run_until(w.loop, [&] {
      if (++turns == 2'000) then();
      return waiting.running() == 0 || limit.is_over();
    });
    CHECK_FALSE(limit.is_over());
    if (turns < 2'000) then();
    return all;
  }
  fake_cuda gpu;
  two_ranks w{gpu, {configs::direct()}, nullptr, world};
  std::vector<transports::cuda_stream> streams;
  std::vector<std::unique_ptr<Shards>> shards;
};

template <class Shards>
void rank_2_dies() {
  for (const copy_way way : {copy_way::pull, copy_way::push}) {
    for (const rank_id step : {1, 2}) {
      CAPTURE(static_cast<int>(way));
      CAPTURE(step);
      users<Shards> all;
      const copy_plan plan{way, 2, step};
      for (int i = 0; i < 3; ++i) all.call(plan, {0, 1, 2});
      for (int i = 0; i < 2; ++i) all.call(plan, {0, 1});  // rank 2 does not join these calls
      const auto outcomes = all.outcomes([&] {
        for (rank_id r = 0; r < 2; ++r) all.w.ranks[r]->on_lost(2, "it was killed");
      });
      for (rank_id r = 0; r < 2; ++r) {
        REQUIRE(outcomes[r] != nullptr);
        CHECK(is(*outcomes[r], {.code = errc::peer_failed, .culprit = 2, .quotes = "it was killed"}));
        if (*outcomes[r]) continue;
        CHECK_THROWS_WITH_AS(all.call(plan, {r}), doctest::Contains("rank 2 is gone"), failure);
      }
    }
  }
}

TEST_CASE(
    "a rank that dies in the middle of calls ends the others' calls with peer_failed, and their streams do not hang") {
  rank_2_dies<examples::gathered_shards>();
  rank_2_dies<examples::scattered_sums>();
}

template <class Shards>
void rank_2_returns() {
  for (const copy_way way : {copy_way::pull, copy_way::push}) {
    users<Shards> all;
    for (int i = 0; i < 3; ++i) all.call({way, 2, 1}, {0, 1, 2});
    runtime::run(all.w.loop, all.shards[2]->reached(all.streams[2]));
    for (rank_id r = 0; r < 2; ++r) all.w.ranks[r]->on_lost(2, "", ops::departure::returned);
    for (const auto& o : all.outcomes([] {})) CHECK((o != nullptr && *o));
    CHECK_THROWS_AS(all.call({way, 2, 1}, {0}), failure);
  }
}

TEST_CASE("a rank that leaves after its last call does not fail that call on the other ranks") {
  rank_2_returns<examples::gathered_shards>();
  rank_2_returns<examples::scattered_sums>();
}

template <class Shards>
void gpu_faults() {
  users<Shards> all;
  all.gpu.break_at_copy = all.gpu.copies() + 7;
  for (int i = 0; i < 2; ++i) all.call({copy_way::push, 2, 1}, {0, 1, 2});
  for (const auto& o : all.outcomes([] {})) {
    REQUIRE(o != nullptr);
    CHECK(is(*o, {.code = errc::device_failed, .quotes = "cudaErrorIllegalAddress"}));
  }
  CHECK_THROWS_WITH_AS(all.call({copy_way::push, 2, 1}, {0}), doctest::Contains("cudaErrorIllegalAddress"), failure);
}

TEST_CASE("a GPU fault in the middle of calls ends them with device_failed and quotes CUDA's error") {
  gpu_faults<examples::gathered_shards>();
  gpu_faults<examples::scattered_sums>();
}

TEST_CASE(
    "a rank without memory for its shards throws CUDA's error, and a rank that waits to meet it gets peer_failed") {
  fake_cuda gpu;
  two_ranks w(gpu, {configs::direct()}, nullptr, 2);
  examples::gathered_shards first(*w.copies[0], *w.spaces[0], {0, 2, 10, row_bytes});
  CHECK_THROWS_WITH_AS(examples::gathered_shards(*w.copies[1], *w.spaces[1], {1, 2, 10, std::uint64_t{1} << 30U}),
                       doctest::Contains("cudaErrorMemoryAllocation"), failure);
  result<> outcome;
  scope waiting(w.loop);
  waiting.spawn(meet(&first, w.ranks[0].get(), &outcome));
  int turns = 0;
  run_until(w.loop, [&] {
    if (++turns == 50) w.ranks[0]->on_lost(1, "cudaErrorMemoryAllocation", ops::departure::failed);
    return waiting.running() == 0;
  });
  CHECK(outcome.code() == errc::peer_failed);
}

}  // namespace
