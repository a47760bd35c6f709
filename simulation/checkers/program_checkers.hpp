#pragma once
/// Checks a run of a program whose calls and config times are not known in advance. The checkers read the flight recorders of the ranks
/// and the errors that their callers got.
///
///     record.usual_ns = usual_times(undisturbed);      // for N1, of a run with the same seed
///     check_program(record, found);                     // called by `check`
///
/// | checker | says |
/// |---|---|
/// | L2 | no program waits for what can never come |
/// | N1 | with faults of control messages, no invocation of a stamped op takes more than twice its usual time and 3 ms |
/// | N4 | trials of an edge never cost more than the wall time has earned, by the times that both ends recorded |
/// | oracle | the decision of an edge is the fastest config that it has tried, by the times that both ends recorded |
/// | errors | a call fails only if a fault explains it, and its error names op, rank and invocation |
/// | delivery | an invocation that one member of an op ran to its end has begun on all others; a message is received once, and was sent |
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
