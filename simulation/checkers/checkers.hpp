#pragma once
/// What must hold in every run, each invariant a checker of its own that is named after it (docs/protocol.md, What always
/// holds).
///
///     std::vector<violation> found = check(record);
///
/// | checker | says |
/// |---|---|
/// | S1 | an invocation has one assignment (also on the wire: watchers.hpp) |
/// | S2 | all who ran an invocation ran one wire class of it, as the leader stamped it |
/// | S3 | nobody ran what it had not warmed, nor what it rehearsed later only |
/// | S4 | what was assigned is inside the intersection |
/// | S5 | nothing of another generation left a trace |
/// | S6 | a decision counts only repetitions that all participants ran to their end |
/// | S7 | a promise stays as it was given (on the wire: watchers.hpp) |
/// | S8 | buffers hold what was sent, and nothing else was written (seen by the programs themselves, payload_book.hpp and guarded_memory.hpp) |
/// | L1 | after healing, every search ends, and no gate holds a process that lives |
/// | L2 | every call ends within one timeout, what its configs take of it, and the detection time |
/// | N1 | bad luck of control messages makes no invocation of a stamped op slower |
/// | N2 | an op without headers has at most two gates a search |
/// | N3 | ranks outside all ops neither send nor receive |
/// | N4 | trials never cost more than the wall time has earned; what the first of a candidate costs is known only after it |
/// | window | an edge stamps nothing that its window has no room for (on the wire: window_book.hpp) |
/// | queues | no rank has more control messages under way to another than its window has room for (on the wire: watchers.hpp) |
/// | agreement | all who know a decision know the same; of one version also those who outlive others |
/// | oracle | the decision is the fastest candidate, within what counts as noise, the noise that there is and unnoticed drift |
/// | errors | a call fails only where a fault explains it, and its text names its op, its rank and, where it had begun, its own invocation, and no rank as gone that is not |
/// | delivery | what was sent well is received, once |
/// | results | what results files have is trusted only where all versions are those of before, and it can be written once disks are healed |
/// | quarantine | a config that failed in a real invocation is not assigned again and again |
/// | leftovers | no program, coroutine, transfer, exposed memory, unanswered message or file outlives its job |
#include <parley/simulation/world/run_record.hpp>

#include <vector>

namespace parley::simulation {

std::vector<violation> check(const run_record& r);

/// Those of S1 to S6 alone, and agreement of decisions of one version, which read nothing but participants, searches, flights and what of
/// these is not there: `play` and `faults` may be null. For records of real ranks, too (rank_views.hpp), of which some have left nothing:
/// what depends on those, as S6 does, is not judged, nor is whether a decision has come to all.
std::vector<violation> check_flights(const run_record& r);

}  // namespace parley::simulation
