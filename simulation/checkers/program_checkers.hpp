#pragma once
/// What must hold in a run of a program, of which nobody has said what it calls and what its configs take: read off the flight
/// recorders of its ranks, and what they told their callers.
///
///     record.usual_ns = usual_times(undisturbed);      // for N1, of a run with the same seed
///     check_program(record, found);                     // beside `check`, which calls it
///
/// | checker | says |
/// |---|---|
/// | L2 | no program waits for what can never come |
/// | N1 | bad luck of control messages makes no invocation of a stamped op slower than twice what it takes without, and 3 ms |
/// | N4 | trials of an edge never cost more than the wall time has earned, by the times that both ends show |
/// | oracle | what an edge has decided is the fastest of what it has tried, by the times that both ends show |
/// | errors | calls fail only where a fault explains it, and say op, rank and invocation |
/// | delivery | what one member of an op has run to its end all others have begun; a message is received once, and was sent |
#include <parley/simulation/world/run_record.hpp>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace parley::simulation {

/// By op and bytes.
std::map<std::pair<std::uint64_t, std::uint64_t>, time_ns> usual_times(const run_record& r);
void check_program(const run_record& r, std::vector<violation>& found);

}  // namespace parley::simulation
