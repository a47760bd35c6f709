#include <parley/simulation/mutants.hpp>
#include <parley/simulation/scenarios/many_seeds.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <string>

using namespace parley::simulation;

namespace {

scenario scenario_named(std::string_view name) {
  std::ifstream in(std::string(PARLEY_SCENARIOS) + "/" + std::string(name) + ".json");
  return read_scenario(std::string(std::istreambuf_iterator<char>(in), {}));
}

// The first seed for which one of the checkers listed for the mutant reports a violation; 0: no seed.
std::uint64_t caught_at(const mutant_info& m, std::string& by) {
  const scenario s = scenario_named(m.scenario);
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const outcome o = run(s, draw(s, seed), seed, {.mutant = std::string(m.name)});
    for (const violation& v : o.violations) {
      if (std::find(m.caught_by.begin(), m.caught_by.end(), v.invariant) == m.caught_by.end()) continue;
      by = v.invariant;
      return seed;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("every mutant is caught by one of the checkers that are listed for it") {
  for (const mutant_info& m : mutants()) {
    CAPTURE(m.name);
    std::string by;
    CHECK(caught_at(m, by) != 0);
  }
}

TEST_CASE("a failing run is made smaller, and the smaller run still breaks the same invariant") {
  const scenario s = scenario_named("mixed");
  const run_options o{.mutant = "look-ahead-late"};
  const tape t = draw(s, 1);
  const outcome whole = run(s, t, 1, o);
  REQUIRE_FALSE(whole.violations.empty());
  const small f = shrink(s, t, 1, "S2", o);
  CHECK(f.play.ops.size() == 1);
  CHECK(f.play.ranks <= s.ranks);
  CHECK(f.play.saved->mishaps.empty());
  const scenario saved = read_scenario(write_scenario(f.play));
  const outcome again = run(saved, draw(saved, 1), 1, o);
  CHECK(again.steps < whole.steps);
  CHECK(std::any_of(again.violations.begin(), again.violations.end(),
                    [](const violation& v) { return v.invariant == "S2"; }));
}

TEST_CASE("the smaller run of a mutant holds all invariants without the mutant, with each of 100 seeds") {
  const mutant_info& no_gate = *find_mutant("no-gate");
  const scenario s = scenario_named(no_gate.scenario);
  std::string by;
  const std::uint64_t seed = caught_at(no_gate, by);
  REQUIRE(seed != 0);
  const small f = shrink(s, draw(s, seed), seed, by, {.mutant = "no-gate"});
  REQUIRE(f.fewer != 0);
  for (std::uint64_t other = 1; other <= 100; ++other) {
    CAPTURE(other);
    CHECK(run(f.play, *f.play.saved, other).violations.empty());
  }
}

TEST_CASE(
    "a run that was made smaller can be written and read again, and making it smaller once more changes nothing") {
  const scenario s = scenario_named("pair");
  const run_options o{.mutant = "stamp-ignored"};
  tape t = draw(s, 1);
  t.starved = s.ranks - 1;  // a rank that takes no part in any op
  const small f = shrink(s, t, 1, "S2", o);
  CHECK(f.fewer != 0);
  CHECK(f.play.ranks < s.ranks);
  const scenario saved = read_scenario(write_scenario(f.play));
  const small again = shrink(saved, draw(saved, 1), 1, "S2", o);
  CHECK(again.fewer == 0);
  CHECK(write_scenario(again.play) == write_scenario(f.play));
}

TEST_CASE("a message that a campaign of runs never lost, or never sent, is a gap; a message that is rare is none") {
  const auto in = [](op_state s) { return static_cast<std::size_t>(s); };
  coverage seen;
  seen["offer"][in(op_state::offering)] = {.sent = 5000, .lost = 0, .doubled = 3, .reordered = 1, .delayed = 9};
  seen["offer"][in(op_state::warming)] = {.sent = 3};
  seen["data"][in(op_state::running)] = {.sent = 5000, .lost = 0, .doubled = 3, .reordered = 1, .delayed = 9};
  CHECK(coverage_gaps(seen, scenarios_run::some) == std::vector<std::string>{"offer, offering: was never lost"});
  // For messages that are rare in each single state, the counts of all states are summed. Every message must have a row of its own.
  seen["tuning_request"][in(op_state::idle)] = {.sent = 600, .lost = 2, .doubled = 0, .reordered = 1, .delayed = 9};
  seen["tuning_request"][in(op_state::running)] = {.sent = 600, .lost = 0, .doubled = 0, .reordered = 0, .delayed = 4};
  seen["round_said"][in(op_state::idle)] = {.sent = 600};
  seen["other control"][in(op_state::idle)] = {.sent = 1};
  const auto whole = coverage_gaps(seen, scenarios_run::all);
  const auto names = [&](const char* gap) { return std::find(whole.begin(), whole.end(), gap) != whole.end(); };
  CHECK(names("offer, running: was never sent"));
  CHECK(names("data, idle: was never sent"));
  CHECK(names("credit, idle: was never sent"));
  CHECK_FALSE(names("offer, warming: was never sent"));
  CHECK_FALSE(names("offer, preparing: was never sent"));  // an offer is rare in that state
  CHECK(names("tuning_request: was never doubled"));
  CHECK_FALSE(names("tuning_request: was never lost"));
  CHECK_FALSE(names("round_said: was never lost"));  // too few were sent to expect a loss
  CHECK(names("other control: has no row of its own in simulation/world/weather.cpp"));
}
