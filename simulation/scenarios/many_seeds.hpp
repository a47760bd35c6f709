#pragma once
/// Tools for runs of many seeds: the coverage of messages, its gaps, and a smaller run that still fails.
///
///     coverage_gaps(counts, scenarios_run::all);         // cells of the table that stayed zero
///     small f = shrink(scenario, tape, seed, "S2");      // fewer faults, ops, calls and ranks, still breaking S2
#include <parley/simulation/world/job.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace parley::simulation {

/// `all`: each type of message must be sent in each usual state of its op. `some`: only some scenarios ran, so only the fates of
/// messages that were sent are checked.
enum class scenarios_run : std::uint8_t { all, some };
/// Gaps such as `offer, warming: was never lost`. Leaves out messages that were sent too rarely, and fates that `allowed` excludes.
std::vector<std::string> coverage_gaps(const coverage& seen, scenarios_run which,
                                       const fault_limits* allowed = nullptr);
std::string coverage_table(const coverage& seen);
/// A line for each type and state, `type,state,sent,lost,doubled,reordered,delayed`: for runs in several parts.
std::string write_coverage(const coverage& seen);
/// Throws `malformed`, naming the line.
coverage read_coverage(std::string_view text);

struct small {
  scenario play;  ///< with its tape
  std::uint64_t runs = 0;
  std::uint64_t fewer = 0;  ///< parts that were left out or halved; 0: it is the same run
};
/// Greedily leaves out and halves parts of the run while it still breaks `invariant` and `read_scenario` accepts it. `calm` stays as it is.
small shrink(const scenario& s, const tape& t, std::uint64_t seed, const std::string& invariant,
             const run_options& o = {});

}  // namespace parley::simulation
