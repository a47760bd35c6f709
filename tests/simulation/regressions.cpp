#include <parley/simulation/job.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

using namespace parley::simulation;

namespace {

// What seeds may choose since: with it they would be other runs.
void without_later_faults(fault_limits& f) {
  f.noise = f.stragglers = f.early_timeouts = 0;
  f.points = false;
}

}  // namespace

// Seeds that found something once, and what.
TEST_CASE("Seeds that failed once hold all invariants") {
  const struct {
    const char* play;
    std::uint64_t seed;
  } known[] = {
      {"budget", 92},  // N1: a full window, because reports were lost, was taken for a wait for agreement
      {"mixed", 374},  // L1: a put that never had a credit in time; the calls were used up before it was given up
      {"mixed", 200},  // L2: receives of messages whose sends had no room in time
      {"deaths", 28},  // fencing: a group that had lost a member went on to say that, and not that its rank is fenced
      {"between_calls", 10278},  // L1: the call of a round was further ahead than calls were made
      {"mixed", 12961},          // L1: those calls were used up before a put that is always late was given up
      {"rejoins", 13954},        // L1: the gate of a process that another one has replaced
      {"late_returns", 19147},   // N1: a full window was not seen, as a fence had brought the stamps
      {"rootless", 8208},        // S6: a generation was counted twice, as its rank was fenced before it could rejoin
  };
  for (const auto& k : known) {
    const std::string play = k.play;
    CAPTURE(play);
    CAPTURE(k.seed);
    std::ifstream in(std::string(PARLEY_SCENARIOS) + "/" + play + ".json");
    scenario s = read_scenario(std::string(std::istreambuf_iterator<char>(in), {}));
    without_later_faults(s.faults);
    const outcome o = run(s, draw(s, k.seed), k.seed);
    std::string text;
    for (const violation& v : o.violations) text += v.invariant + ": " + v.text + "\n";
    CHECK(text == "");
  }
}
