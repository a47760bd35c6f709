#include <parley/error.hpp>
#include <parley/runtime/invariant.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace parley::runtime;

TEST_CASE("a kept invariant reports nothing, and a broken one is reported, counted and thrown with its name") {
  std::vector<std::string> told;
  breach_watch watch([&](const breach& b) { told.push_back(b.sentence()); });
  const auto before = breaches();
  CHECK_NOTHROW(invariant(true, {"S1", "fine", {7, 2}}));
  CHECK(holds(true, {"S1", "fine", {7, 2}}));
  CHECK(told.empty());
  std::string thrown;
  try {
    invariant(false, {"S7", "a promise stays", {7, 2}});
  } catch (const failure& f) {
    CHECK(f.code() == errc::invariant_broken);
    thrown = f.what();
  }
  CHECK(told == std::vector<std::string>{"invariant S7 broken, op 0000000000000007, on rank 2: a promise stays"});
  CHECK(thrown.find("invariant_broken: " + told[0]) == 0);
  CHECK_FALSE(holds(false, {"S2", "one wire class", {7, 2}}));
  CHECK(breaches().own == before.own + 2);
  CHECK(breaches().peers == before.peers);
}

TEST_CASE("a peer's breach is reported with the peer's rank, counted separately, and never thrown") {
  std::vector<std::string> told;
  const auto before = breaches();
  {
    breach_watch watch([&](const breach& b) { told.push_back(b.sentence()); });
    {
      breach_watch inner([&](const breach& b) { told.emplace_back(b.name); });
      blame({"S5", "of this job", {7, 2}}, 1);
    }
    blame({"S5", "of this job", {7, 2}}, 1);
  }
  blame({"S5", "of this job", {7, 2}}, 1);  // without a watch the breach is counted, and nothing is printed
  CHECK(told ==
        std::vector<std::string>{"S5", "invariant S5 broken, op 0000000000000007, on rank 2, by rank 1: of this job"});
  CHECK(breaches().peers == before.peers + 3);
  CHECK(breaches().own == before.own);
}
