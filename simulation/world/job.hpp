#pragma once
/// Runs a scenario with the faults of a tape: real ranks make real calls, and the checkers judge the record of the run.
///
///     outcome o = run(scenario, draw(scenario, seed), seed);
///     o.hash;                          // equal for equal (scenario, tape, seed), with any compiler
///     for (const violation& v : o.violations) print(v.invariant, v.text);
#include <parley/simulation/scenarios/scenario.hpp>
#include <parley/simulation/world/run_record.hpp>

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace parley::simulation {

struct outcome {
  std::uint64_t seed = 0;
  std::uint64_t hash = 0;
  std::uint64_t steps = 0;
  std::uint64_t calls = 0;
  std::uint64_t failed_calls = 0;
  std::uint64_t decided = 0;  ///< searches that ended with a decision
  time_ns simulated_ns = 0;
  coverage messages;
  std::vector<violation> violations;
};

/// Options of a run: the name of a mutant, which breaks parley on purpose, and an output for the trace.
struct run_options {
  std::string mutant;
  std::ostream* trace = nullptr;  ///< receives a line for every message and call
};

outcome run(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o = {});

}  // namespace parley::simulation
