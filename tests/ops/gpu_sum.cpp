// Sums on GPUs by NCCL, leased: two ranks that would be processes, over the fakes.
#include "../support/deadline.hpp"
#include "../support/gpu_members.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

namespace {

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

/// Sums, and then sums nothing, which takes longer.
class roundabout final : public symmetric_config {
 public:
  roundabout() : symmetric_config({.name = "roundabout", .wire_class = "roundabout"}) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    auto& world = dynamic_cast<gpu_world&>(*call.over);
    co_await world.run(gpu_sum::by_nccl(data.first(data.size() / 2 / 4 * 4)));
    co_await world.run(gpu_sum::by_nccl(data.subspan(data.size() / 2 / 4 * 4)));
  }
};

TEST_CASE("sums by NCCL are rehearsed on communicators of their own, agreed on, and right in every call") {
  two_members w({std::make_shared<roundabout>(), nccl_sum()});
  std::size_t wrong = 0;
  for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
  CHECK_FALSE(w.winner().empty());
  wrong += w.sum(20);
  CHECK(wrong == 0);
  CHECK(w.library.aborts == 0);
  CHECK(w.library.communicators() == 4);  // two of rehearsals
  w.ranks.clear();
  CHECK(w.library.communicators() == 2);  // and the users' own
}

TEST_CASE("a sum of NCCL's is captured once for each buffer, and only so many are kept") {
  {
    two_members w({std::make_shared<roundabout>(), nccl_graph_sum()});
    std::size_t wrong = 0;
    for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
    CHECK(w.winner() == "nccl_graph_sum");
    wrong += w.sum(20);
    CHECK(wrong == 0);
    w.ranks.clear();
    CHECK(w.gpu.graphs() <= 2);  // the rehearsals' have gone with their communicators
  }
  two_members w({nccl_sum()});
  const auto sum_part = [](two_members& all, rank_id r, std::size_t from) -> task<> {
    auto& world = dynamic_cast<gpu_world&>(*all.worlds[r]);
    co_await world.run(gpu_sum::by_nccl(all.memory[r].bytes().subspan(from, 64)), true);
  };
  for (std::size_t part = 0; part < 100; ++part) {
    for (int again = 0; again < 2; ++again) {
      scope both(w.loop);
      for (rank_id r = 0; r < 2; ++r) both.spawn(sum_part(w, r, part * 4));
      const auto join = [](scope& s) -> task<> { co_await s.join(); };
      runtime::run(w.loop, join(both));
    }
  }
  CHECK(w.gpu.graphs() == 2 * 64);
}

TEST_CASE("a kernel of our own sums over the members' memory, beside NCCL, and nothing stays mapped") {
  {
    two_members w({std::make_shared<roundabout>(), kernel_sum(), nccl_sum()});
    std::size_t wrong = 0;
    for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
    CHECK_FALSE(w.winner().empty());
    CHECK(w.ends[0].end().assigned()->find(two_members::bytes)->excluded.empty());
    wrong += w.sum(20);
    CHECK(wrong == 0);
    CHECK(w.gpu.imported == 4);
    w.ranks.clear();
    w.worlds = {};
    w.sources.clear();
    CHECK(w.gpu.imported == 0);
  }
  CHECK_THROWS_AS(kernel_sum(0), failure);
  CHECK_THROWS_AS(kernel_sum(65), failure);
}

TEST_CASE("what a rank's user masks is agreed on nowhere") {
  two_members w({std::make_shared<roundabout>(), nccl_sum()}, {true, false});
  const auto missing = [&] { return w.ranks[0]->agreements().front().no_common_config; };
  std::size_t wrong = 0;
  for (const deadline limit; missing().empty() && !limit.is_over();) wrong += w.sum(5);
  wrong += w.sum(20);
  CHECK(wrong == 0);
  CHECK(missing().find("rank 1 (member) has roundabout") != std::string::npos);
}

namespace {
/// A call of rank 0 that rank 1 never joins.
task<errc> alone(two_members& w) {
  auto ended = co_await attempt(w.ends[0].run(w.memory[0].bytes(), {.timeout_ns = 50'000'000}));
  co_return ended.code();
}
}  // namespace

TEST_CASE("a member that never comes ends the call in its time, its communicator is aborted and its memory free") {
  two_members w({nccl_sum()});
  CHECK(w.sum(3) == 0);
  CHECK(runtime::run(w.loop, alone(w)) == errc::timeout);
  CHECK(w.library.communicators() == 1);
  CHECK(w.copies[0]->pending() == 0);
  auto* const world = dynamic_cast<gpu_world*>(w.worlds[0].get());
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, world->run(gpu_sum::by_nccl(w.memory[0].bytes()))),
                       doctest::Contains("was aborted"), failure);
}

TEST_CASE("a kernel whose other members never come is stopped in the call's time") {
  two_members w({kernel_sum()});
  CHECK(w.sum(3) == 0);
  CHECK(runtime::run(w.loop, alone(w)) == errc::timeout);
  CHECK(w.copies[0]->pending() == 0);
}

TEST_CASE("where a member's memory cannot be reached, or it reaches nobody's, only the kernel is lost, on all and with "
          "the reason") {
  for (const bool imports : {false, true}) {
    CAPTURE(imports);
    two_members w({nccl_sum()});
    (imports ? w.gpu.imports_nothing : w.gpu.exports_nothing) = 1;
    runtime::run(w.loop, two_members::connect_both(w, w.sources[0]->make_id()));
    for (rank_id r = 0; r < 2; ++r) {
      auto* const world = dynamic_cast<gpu_world*>(w.worlds[r].get());
      const std::string why =
          std::string("member 1 cannot share memory with the others") + (r == 0    ? ""
                                                                         : imports ? ": cudaErrorInvalidDevice"
                                                                                   : ": cudaErrorNotSupported");
      CHECK_THROWS_WITH_AS(runtime::run(w.loop, world->run(gpu_sum::by_kernel(w.memory[r].bytes(), 8))),
                           doctest::Contains(why.c_str()), failure);
      CHECK_FALSE(world->aborted());
    }
    const auto by_nccl = [](two_members& all, rank_id r) -> task<> {
      co_await dynamic_cast<gpu_world&>(*all.worlds[r]).run(gpu_sum::by_nccl(all.memory[r].bytes()));
    };
    w.put(0, 1);
    w.put(1, 5);
    scope both(w.loop);
    for (rank_id r = 0; r < 2; ++r) both.spawn(by_nccl(w, r));
    const auto join = [](scope& s) -> task<> { co_await s.join(); };
    runtime::run(w.loop, join(both));
    CHECK(w.holds(0, 6));
    CHECK(w.holds(1, 6));
  }
}

TEST_CASE("a kernel that one member lacks is no candidate, and the op agrees on another config") {
  two_members w({std::make_shared<roundabout>(), kernel_sum(), nccl_sum()});
  w.gpu.exports_nothing = 1;
  std::size_t wrong = 0;
  for (const deadline limit; w.winner().empty() && !limit.is_over();) wrong += w.sum(5);
  CHECK(w.winner() == "nccl_sum");
  wrong += w.sum(20);
  CHECK(wrong == 0);
  const auto& excluded = w.ends[0].end().assigned()->find(two_members::bytes)->excluded;
  REQUIRE(excluded.size() == 1);
  CHECK_MESSAGE(excluded.front().why.find("member 1 cannot share memory") != std::string::npos, excluded.front().why);
}

TEST_CASE("floats that are none, and a communicator that cannot be made, are named") {
  two_members w({nccl_sum()});
  auto* const world = dynamic_cast<gpu_world*>(w.worlds[0].get());
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, world->run(gpu_sum::by_nccl(w.memory[0].bytes().first(7)))),
                       doctest::Contains("not 7"), failure);
  w.library.connecting = fake_nccl::connecting_state::refused;
  CHECK_THROWS_WITH_AS(runtime::run(w.loop, w.sources[0]->connect(w.sources[0]->make_id())),
                       doctest::Contains("duplicate GPU"), failure);
  w.library.connecting = fake_nccl::connecting_state::works;
}

}  // namespace
