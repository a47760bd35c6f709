#include <parley/tuning/results/warm_start.hpp>

#include <doctest/doctest.h>

#include <string>
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

TEST_CASE("without an entry recall returns no candidate and no sentence") {
  CHECK_FALSE(recalled_from({}).candidate);
  CHECK(recalled_from({}).sentence.empty());
  const auto other_key = recall("2MiB", std::vector{from(0, "a")}, candidates, 0);
  CHECK_FALSE(other_key.candidate);
  CHECK(other_key.sentence.empty());
}

TEST_CASE("the first entry that is a candidate wins, and the sentence names the others") {
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

TEST_CASE("an entry that is no candidate is skipped, and without another entry the sentence says why") {
  const auto second = recalled_from({from(0, "gone"), from(1, "b")});
  CHECK(second.candidate == 2);
  CHECK(second.sentence == "rank 1's results file says so; rank 0's says gone, which is not a candidate now");
  const auto none = recalled_from({from(0, "gone")});
  CHECK_FALSE(none.candidate);
  CHECK(none.sentence == "rank 0's says gone, which is not a candidate now");
}

TEST_CASE("a pin wins, whichever rank has it") {
  const auto pinned = recalled_from({from(0, "a"), from(1, "Default")});
  CHECK(pinned.candidate == 0);
  CHECK(pinned.pinned);
  CHECK(pinned.proposer == 1);
  CHECK(pinned.sentence == "rank 1's results file pins the default; rank 0's says a");
}

TEST_CASE(
    "an entry measured on another combination of machines does not count, and neither does a pin for another one") {
  const auto elsewhere = recalled_from({from(0, "a"), from(1, "Default", 8)}, 7);
  const std::string why = " has it for other machines, or for another placement of the ranks on them";
  CHECK_FALSE(elsewhere.candidate);
  CHECK(elsewhere.sentence == "rank 0's" + why + "; rank 1's" + why);
  CHECK(recalled_from({from(0, "a", 7), from(1, "Default")}, 7).pinned);
  CHECK_FALSE(recalled_from({from(0, "a"), from(1, "Default", 7)}, 0).pinned);
  CHECK(recalled_from({from(0, "a"), from(1, "b", 7)}, 7).candidate == 2);
  CHECK(recalled_from({from(0, "a"), from(1, "b", 7)}, 0).candidate == 1);
}

TEST_CASE("machines_together is 0 for equal machines, and otherwise depends on which rank has which machine") {
  using numbers = std::vector<std::uint64_t>;
  const auto on_one_host = [](const numbers& validators) {
    return machines_together(validators, numbers(validators.size(), 1));
  };
  CHECK(on_one_host({}) == 0);
  CHECK(on_one_host({5, 5, 5}) == 0);
  const auto one = on_one_host({5, 6});
  CHECK(one != 0);
  CHECK(one == on_one_host({5, 6}));
  CHECK(one != on_one_host({6, 5}));
  CHECK(one != on_one_host({5, 6, 6}));
}

TEST_CASE("a combination's name depends on which ranks share a host, and not on which hosts they are") {
  using numbers = std::vector<std::uint64_t>;
  const numbers alike(4, 5);
  CHECK(machines_together(alike, numbers{3, 3, 3, 3}) == 0);
  const auto in_pairs = machines_together(alike, numbers{3, 3, 4, 4});
  CHECK(in_pairs != 0);
  CHECK(in_pairs == machines_together(alike, numbers{9, 9, 2, 2}));
  CHECK(in_pairs != machines_together(alike, numbers{3, 4, 3, 4}));
  CHECK(in_pairs != machines_together(alike, numbers{3, 3, 4, 5}));
  CHECK(in_pairs != machines_together(numbers{5, 5, 6, 6}, numbers{3, 3, 4, 4}));
}

TEST_CASE("a mixture has its own name in a file, and is recalled only as that same mixture") {
  CHECK(name_in_file("a", 0) == "a");
  CHECK(name_in_file("a(n=1)", 0xabc) == "a(n=1);mixture=0000000000000abc");
  CHECK(id_in_file(name_in_file("a(n=1)", 0xabc)) == "a(n=1)");
  CHECK(name_in_file(name_in_file("a(n=1)", 0xabc), 0xabc) == name_in_file("a(n=1)", 0xabc));
  CHECK(id_in_file("a") == "a");
  const std::vector<std::string> now{"direct", name_in_file("a", 7), "b"};
  const auto recalled_now = [&](const std::string& solution) {
    return recall("1MiB", std::vector{from(0, solution)}, now, 0);
  };
  CHECK(recalled_now(name_in_file("a", 7)).candidate == 1);
  for (const std::string& other : {name_in_file("a", 8), std::string("a"), name_in_file("b", 7)}) {
    CAPTURE(other);
    CHECK_FALSE(recalled_now(other).candidate);
    CHECK(recalled_now(other).sentence ==
          "rank 0's says " + std::string(id_in_file(other)) + ", for which ranks run other configs now");
  }
}
