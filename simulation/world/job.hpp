#pragma once
/// One run of a scenario with the faults of a tape: real ranks that make real calls, what came of each of them, and what the
/// checkers say.
///
///     outcome o = run(scenario, draw(scenario, seed), seed);
///     o.hash;                          // equal for equal (scenario, tape, seed), whatever compiled it
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
  std::uint64_t decided = 0;  ///< campaigns
  time_ns simulated_ns = 0;
  coverage messages;
  std::vector<violation> violations;
};

/// What a run is made with besides its scenario: a mutant, which breaks something on purpose, and where to write it down.
struct run_options {
  std::string mutant;
  std::ostream* trace = nullptr;  ///< gets every message and call, line by line
};

outcome run(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o = {});

}  // namespace parley::simulation
