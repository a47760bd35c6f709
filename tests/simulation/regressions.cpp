#include <parley/simulation/world/job.hpp>

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <string>

using namespace parley::simulation;

namespace {

// Switches off the kinds of faults that were added later: with them, an old seed would be another run.
void without_later_faults(fault_limits& f) {
  f.noise = f.stragglers = f.early_timeouts = 0;
  f.points = false;
}

struct seed_of_a_scenario {
  const char* play;
  std::uint64_t seed;
};

enum class faults : std::uint8_t { all, of_then };

void hold_all(const seed_of_a_scenario& k, faults which) {
  const std::string play = k.play;
  CAPTURE(play);
  CAPTURE(k.seed);
  std::ifstream in(std::string(PARLEY_SCENARIOS) + "/" + play + ".json");
  scenario s = read_scenario(std::string(std::istreambuf_iterator<char>(in), {}));
  if (which == faults::of_then) without_later_faults(s.faults);
  const outcome o = run(s, draw(s, k.seed), k.seed);
  std::string text;
  for (const violation& v : o.violations) text += v.invariant + ": " + v.text + "\n";
  CHECK(text == "");
}

}  // namespace

// Seeds that once failed. Each comment says which checker found the fault, and what the fault was.
TEST_CASE("Seeds that failed once hold all invariants") {
  const seed_of_a_scenario with_later_faults[] = {
      {"failed_winners",
       1},  // quarantine: a config that had failed was scheduled again, because it was in force before the search
      {"late_settles",
       106},  // errors: a group call succeeded on the rank that had reported to the others that the call failed
      {"hasty_leases",
       12},  // quarantine: a decided config that had failed was replaced only a whole margin of calls later
      {"long_gets",
       2},  // leftovers: a sender got its buffer back while a receive that its poison had ended still read it
      {"outlived_gets", 104},    // leftovers: the same, after an op was closed while its receiver still read
      {"rejoined_gets", 2},      // leftovers: the same, after a third rank's restart had ended the generation
      {"rejoined_gets", 255},    // errors: a run after a rejoin was refused, because the failed run was still ending
      {"broken_broadcasts", 1},  // quarantine: a config failed on a worker after its leader had finished the call
      {"late_attention",
       658},              // S8: a block was taken for one that was never sent, and the call of a later rank succeeded
      {"closings", 441},  // L2: data that arrived after its call's poison was kept for ever, with its sender's buffer
      {"closings", 192},  // L2: after the report of a get was lost, the sender asked again only seconds later
      {"overtaken",
       918},  // leftovers: data that arrived after the poison of its rehearsal was kept, and so was its sender's memory
      // errors: a put arrived late, for memory of a generation that its receiver had ended because a third rank had restarted; each end
      // then declared the other dead
      {"program_rejoins", 2602},
      {"unmapped",
       20468},  // S8: a put of a dead sender landed in memory in which a rehearsal had received and which had been given back
      {"late_receives", 9730},  // L2: revokes were resent too rarely after their answers were lost
      {"late_receives", 1361},  // L2: the same, when the pauses between retries grew without a limit
      {"programs",
       239},  // L1: keys that waited for credits used up the calls before their rehearsals had been given up
      {"contention", 1335},  // L1: rounds that noise had lengthened used up the calls
      {"budget", 3046},      // N4: costs were known only as exactly as the other rank's clock
      {"drift", 232},  // oracle: a config had drifted before its first call, in an op that compares calls with calls
      {"drift", 849},  // oracle: a receiver was more than a burst behind, and its rows were dropped for the next burst
      {"bad_leases", 1},  // S2: a config failed on one member before it took part; the others met its next call
  };
  for (const auto& k : with_later_faults) hold_all(k, faults::all);
  const seed_of_a_scenario known[] = {
      {"budget", 92},  // N1: a window was full because reports were lost, which was taken for a wait for agreement
      {"mixed", 374},  // L1: a put never got its credit in time, and the calls were used up before it was given up
      {"mixed", 200},  // L2: receives for messages whose sends had no room in time
      {"deaths", 28},  // fencing: a group that had lost a member kept reporting that, not that its rank is fenced
      {"between_calls", 10278},  // L1: the call of a round lay further ahead than the calls that were made
      {"mixed", 12961},          // L1: those calls were used up before a put that is always late was given up
      {"rejoins", 13954},        // L1: the gate of a process that has been replaced
      {"late_returns", 19147},   // N1: a full window went unnoticed because a fence had brought the stamps
      {"rootless", 8208},        // S6: a generation was counted twice: its rank was fenced before it could rejoin
  };
  for (const auto& k : known) hold_all(k, faults::of_then);
}
