#pragma once
/// The programs of the ranks in these tests, and the steps at which a fault strikes them.
///
/// PARLEY_TEST_FAULT=ACTION:STEP:RANK[:RESTARTS] makes rank RANK kill itself (`kill`), end with status 0 and without a goodbye (`exit`),
/// or stop itself (`stop`) once it comes to STEP. Only the process with restart count RESTARTS (default 0) does so. Commas separate
/// several faults. Only this test program reads the variable; the library has no such switch. The rank checks for a step on every turn
/// of its loop, in the messages that it has sent and in its flight recorder, so the fault strikes at the same place of the protocol in
/// every run.
///
/// Steps of joining come before the rank has a loop (join_steps.cpp):
///
/// | step | |
/// |---|---|
/// | `join` | the process has begun |
/// | `greeted` | it has sent its first frame to rank 0; on rank 0: it has answered the first one |
/// | `presented` | it has proved itself and sent its entry, and waits for the roster |
/// | `admitted` | the roster has arrived and has not been read |
/// | `admits` | on rank 0: it has sent the roster to one rank and to no other |
///
/// PARLEY_TEST_JOIN_S is how many seconds a rank waits for the others to join. PARLEY_TEST_HOLD makes the scenarios that survive a
/// restart (`counting`, `summing`) end only after rank 0's input has ended.
/// PARLEY_TEST_MUTANT=ignores_stamp makes receivers and workers run their default whatever config the leader has stamped.
#include <parley/run.hpp>
#include <parley/runtime/time/poller.hpp>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace fire {

/// The programs of ranks by name; each runs until its input ends or an error ends it.
const std::map<std::string, void (*)(parley::ops::job&)>& scenarios();

/// Steps that only a scenario can detect: called on every turn, returns whether this rank has come to `step`. Empty if it has none.
std::function<bool(const std::string& step)>& own_steps();
/// Called when this rank has come to `step`: a fault that is planned for it strikes now.
void come_to(std::string_view step);

/// Prints a line at once.
void say(const std::string& text);
bool input_has_ended();
/// Prints `it is decided` once, after this rank has learned of its first decision.
void say_when_decided(const parley::ops::rank& self);
parley::runtime::task<> rest_until_input_ends(parley::ops::rank& self);

/// Runs the scenario that the environment names and returns the exit status. A rank that leaves prints its record (records.hpp).
int run_as_rank();

}  // namespace fire
