#include <parley/simulation/world/job.hpp>

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

// Seeds that found something once, and what.
TEST_CASE("Seeds that failed once hold all invariants") {
  const seed_of_a_scenario with_later_faults[] = {
      {"failed_winners",
       1},  // quarantine: what had failed was scheduled again, as what had been in force before a search
      {"late_settles",
       106},  // errors: a call of a group ended well on the rank that had told the others that it failed
      {"hasty_leases",
       12},  // quarantine: what was decided on and had failed was replaced a whole margin of calls later
      {"long_gets",
       2},  // leftovers: a sender had its buffer back while a receive that its poison had ended still read it
      {"outlived_gets", 104},    // leftovers: the same where an op was closed while its receiver read on
      {"rejoined_gets", 2},      // leftovers: the same where its generation had ended, as a third rank had restarted
      {"broken_broadcasts", 1},  // quarantine: a config that failed on a worker after its leader was done with the call
      {"late_attention",
       658},              // S8: a block took the place of one that was never sent, and a rank further on ended well
      {"closings", 441},  // L2: data of a call that its poison had overtaken was kept for ever, and its sender's buffer
      {"closings", 192},  // L2: a sender asked after a payload that was got, whose report was lost, after seconds only
      {"overtaken",
       918},  // leftovers: data of a rehearsal that its poison had overtaken was kept, and its sender's memory with it
      // errors: a put was late for memory of a generation that its receiver had ended, as a third rank had restarted; both took each other
      // for dead
      {"program_rejoins", 2602},
      {"unmapped",
       20468},  // S8: a put landed in what a rehearsal had received into and given back, from a sender that had died
      {"late_receives", 9730},  // L2: revokes whose answers were lost were sent again too rarely
      {"late_receives", 1361},  // L2: the same once their pauses grew for ever
      {"programs",
       239},  // L1: the calls were used up by keys that waited for credits, before rehearsals had been given up
      {"contention", 1335},  // L1: the calls were used up in rounds that noise had made long
      {"budget", 3046},      // N4: costs were known no better than the other rank's clock
      {"drift", 232},  // oracle: what had drifted before its first call, of an op whose calls are compared with calls
      {"drift", 849},  // oracle: a receiver was behind by more than a burst, whose rows were dropped for the next one
      {"bad_leases", 1},  // S2: a config failed on one member before it took part, so that the others met its next call
  };
  for (const auto& k : with_later_faults) hold_all(k, faults::all);
  const seed_of_a_scenario known[] = {
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
  for (const auto& k : known) hold_all(k, faults::of_then);
}
