#include <parley/tuning/warm_start.hpp>

#include <doctest/doctest.h>

#include <array>
#include <vector>

using namespace parley::tuning;

namespace {

const std::vector<std::string> candidates{"direct", "a", "b"};

remembered_best from(std::uint32_t rank, std::string solution, std::uint64_t machines = 0) {
  return {"1MiB", std::move(solution), 1.5, machines, rank};
}
recalled recalled_from(const std::vector<remembered_best>& entries, std::uint64_t machines = 0) {
  return recall("1MiB", entries, candidates, machines);
}

}  // namespace

TEST_CASE("without an entry nothing is recalled and nothing is said") {
  CHECK_FALSE(recalled_from({}).candidate);
  CHECK(recalled_from({}).sentence.empty());
  const auto other_key = recall("2MiB", std::vector{from(0, "a")}, candidates, 0);
  CHECK_FALSE(other_key.candidate);
  CHECK(other_key.sentence.empty());
}

TEST_CASE("the first entry that is a candidate wins, and the others are named") {
  const auto alone = recalled_from({from(1, "a")});
  CHECK(alone.candidate == 1);
  CHECK(alone.proposer == 1);
  CHECK(alone.time_ms == 1.5);
  CHECK(alone.sentence == "rank 1's results file says so");

  const auto differing = recalled_from({from(3, "b"), from(0, "a"), from(1, "b")});
  CHECK(differing.candidate == 2);
  CHECK(differing.proposer == 3);
  CHECK(differing.sentence == "rank 3's results file says so; rank 0's says a; rank 1's agrees");
}

TEST_CASE("what is no candidate is passed over, and alone it is a miss that says why") {
  const auto second = recalled_from({from(0, "gone"), from(1, "b")});
  CHECK(second.candidate == 2);
  CHECK(second.sentence == "rank 1's results file says so; rank 0's says gone, which is no candidate now");
  const auto none = recalled_from({from(0, "gone")});
  CHECK_FALSE(none.candidate);
  CHECK(none.sentence == "rank 0's says gone, which is no candidate now");
}

TEST_CASE("a pin wins, whoever has it") {
  const auto pinned = recalled_from({from(0, "a"), from(1, "Default")});
  CHECK(pinned.candidate == 0);
  CHECK(pinned.pinned);
  CHECK(pinned.proposer == 1);
  CHECK(pinned.sentence == "rank 1's results file pins the default; rank 0's says a");
}

TEST_CASE("what was measured on another combination of machines does not count, a pin neither") {
  const auto elsewhere = recalled_from({from(0, "a"), from(1, "Default")}, 7);
  CHECK_FALSE(elsewhere.candidate);
  CHECK(elsewhere.sentence ==
        "rank 0's has it for other machines than these; rank 1's has it for other machines than these");
  CHECK(recalled_from({from(0, "a"), from(1, "b", 7)}, 7).candidate == 2);
  CHECK(recalled_from({from(0, "a"), from(1, "b", 7)}, 0).candidate == 1);
}

TEST_CASE("machines that are alike have no name, others have one that depends on who is where") {
  CHECK(machines_together(std::array<std::uint64_t, 0>{}) == 0);
  CHECK(machines_together(std::array<std::uint64_t, 3>{5, 5, 5}) == 0);
  const auto one = machines_together(std::array<std::uint64_t, 2>{5, 6});
  CHECK(one != 0);
  CHECK(one == machines_together(std::array<std::uint64_t, 2>{5, 6}));
  CHECK(one != machines_together(std::array<std::uint64_t, 2>{6, 5}));
  CHECK(one != machines_together(std::array<std::uint64_t, 3>{5, 6, 6}));
}
