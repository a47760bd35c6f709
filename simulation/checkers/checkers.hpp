#pragma once
/// The invariants of every run. Each has its own checker with the same name (docs/protocol.md, What always holds).
///
///     std::vector<violation> found = check(record);
///
/// | checker | says |
/// |---|---|
/// | S1 | an invocation has one assignment (also on the wire: watchers.hpp) |
/// | S2 | all ranks that ran an invocation ran configs of one wire class: that of the leader's stamp |
/// | S3 | no rank ran a config before it had warmed or rehearsed it |
/// | S4 | an assigned config is inside the intersection |
/// | S5 | nothing of another generation left a trace |
/// | S6 | a decision counts only repetitions that all participants ran to their end |
/// | S7 | a promise stays as it was given (on the wire: watchers.hpp) |
/// | S8 | buffers hold the bytes that were sent; nothing else was written (programs.cpp, payload_book.hpp, guarded_memory.hpp) |
/// | L1 | after healing, every search ends, and no gate holds a living process |
/// | L2 | every call ends within one timeout, the time of its configs, and the detection time |
/// | N1 | faults of control messages make no invocation of a stamped op slower |
/// | N2 | an op without headers has at most two gates a search |
/// | N3 | ranks outside all ops neither send nor receive |
/// | N4 | trials never cost more than the wall time has earned; the cost of a candidate's first trial is known only after it |
/// | window | an edge stamps an invocation only when its window has room (on the wire: window_book.hpp) |
/// | queues | no rank has more control messages in flight to another than its window has room for (on the wire: watchers.hpp) |
/// | agreement | all ranks that know a decision know the same; for one version this includes ranks that outlive others |
/// | oracle | the decision is the fastest candidate, within the noise limit, the noise of the run and unnoticed drift |
/// | errors | a call fails only if a fault explains it; its error names op, rank and, if begun, invocation, and calls no living rank gone |
/// | delivery | a message that was sent successfully is received, once |
/// | results | results files are trusted only if all versions are those of an earlier job; once disks are healed they can be written |
/// | quarantine | a config that failed in a real invocation is not assigned again and again |
/// | leftovers | no program, coroutine, transfer, exposed memory, unanswered message or file outlives its job |
#include <parley/simulation/world/run_record.hpp>

#include <vector>

namespace parley::simulation {

std::vector<violation> check(const run_record& r);

/// Checks only S1 to S6, and agreement of decisions of one version. These checkers read only participants, searches, flights and lost
/// flights, so `play` and `faults` may be null. They also judge records of real ranks (rank_views.hpp). If some real ranks left no record,
/// the check leaves out invariants that need those records, such as S6, and does not check whether a decision has reached all ranks.
std::vector<violation> check_flights(const run_record& r);

}  // namespace parley::simulation
