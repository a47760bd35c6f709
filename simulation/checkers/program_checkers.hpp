#pragma once
/// Checks a run of a program with calls and config times that are not known in advance. The checkers read the ranks' flight recorders and
/// the errors that callers got.
///
///     record.usual_ns = usual_times(undisturbed);      // for N1, of a run with the same seed
///     check_program(record, found);                     // called by `check`
///
/// | checker | says |
/// |---|---|
/// | L2 | no program waits for ever |
/// | N1 | with faults of control messages, no invocation of a stamped op takes more than twice its usual time and 3 ms |
/// | N4 | trials of an edge never cost more than the wall time has earned, by the times that both ends recorded |
/// | oracle | the decision of an edge is the fastest config that it has tried, by the times that both ends recorded |
/// | errors | a call fails only if a fault explains it, and its error names op, rank and invocation |
/// | delivery | if one member ran an invocation to its end, all others have begun it; a message is received once, and only if sent |
#include <parley/simulation/world/run_record.hpp>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace parley::simulation {

/// The longest time of an invocation, by op and bytes.
std::map<std::pair<std::uint64_t, std::uint64_t>, time_ns> usual_times(const run_record& r);
void check_program(const run_record& r, std::vector<violation>& found);

}  // namespace parley::simulation
