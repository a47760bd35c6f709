#pragma once
/// Many seeds of a scenario: what was covered, what failed, and the smallest run that still fails.
///
///     coverage_gaps(counts, campaign::whole);            // cells of the table that stayed zero
///     small f = shrink(scenario, tape, seed, "S2");      // fewer faults, ops, calls and ranks, still breaking S2
#include <parley/simulation/world/job.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace parley::simulation {

/// Of all scenarios messages are asked for in each usual state of their op, of some of them only what becomes of those that are sent.
enum class campaign : std::uint8_t { whole, part };
/// `offer, warming: was never lost`. What was sent too rarely to tell is left out, and what `allowed` does not let happen.
std::vector<std::string> coverage_gaps(const coverage& seen, campaign c, const fault_limits* allowed = nullptr);
std::string coverage_table(const coverage& seen);
/// A line for each type and state, `type,state,sent,lost,doubled,reordered,delayed`: for campaigns that are run in parts.
std::string write_coverage(const coverage& seen);
/// Throws `malformed`, naming the line.
coverage read_coverage(std::string_view text);

struct small {
  scenario play;  ///< with its tape
  std::uint64_t runs = 0;
  std::uint64_t fewer = 0;  ///< what was left out or halved; 0: it is the same run
};
/// Leaves out and halves, greedily, as long as `invariant` is still broken and `read_scenario` takes what is left; not `calm`.
small shrink(const scenario& s, const tape& t, std::uint64_t seed, const std::string& invariant,
             const run_options& o = {});

}  // namespace parley::simulation
