#pragma once
/// What the ranks of these tests do, and where a fault strikes them.
///
/// PARLEY_TEST_FAULT=ACTION:STEP:RANK[:RESTARTS] makes rank RANK kill itself (`kill`), end without a goodbye, with status 0 (`exit`),
/// or stop itself (`stop`) once it has come to STEP, as the process before which so many others (default: none) were in its place;
/// several are parted by commas. Only this test program reads it; the library has no such switch. A step is looked for on every
/// turn of the rank's loop, in what the rank has sent and in its flight recorder, so that it strikes at the same place of the
/// protocol in every run.
///
/// Steps of joining come before there is a loop (join_steps.cpp):
///
/// | step | |
/// |---|---|
/// | `join` | the process has begun |
/// | `greeted` | it has said its first word to rank 0; of rank 0: it has answered the first one |
/// | `presented` | it has proved itself and sent its entry, and waits for the roster |
/// | `admitted` | the roster has come, and is not read yet |
/// | `admits` | of rank 0: one rank has been sent the roster, and no other |
///
/// PARLEY_TEST_JOIN_S is how many seconds a rank waits for the others to join. PARLEY_TEST_HOLD has what goes on with a rank that
/// comes back (`counting`, `summing`) end only once rank 0's input has.
/// PARLEY_TEST_MUTANT=ignores_stamp has receivers and workers run their default whatever the leader has stamped.
#include <parley/run.hpp>
#include <parley/runtime/time/poller.hpp>

#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace fire {

/// What a rank does until its input ends, or an error ends it.
const std::map<std::string, void (*)(parley::ops::job&)>& scenarios();

/// Steps that only a scenario can tell: whether it has come to one, on every turn.
std::function<bool(const std::string& step)>& own_steps();
/// This very rank has come to that step: the fault that is planned for it there strikes now.
void come_to(std::string_view step);

/// What a rank of these tests prints, at once.
void say(const std::string& text);
bool input_has_ended();
/// `it is decided`, once this rank has learned of a first decision.
void say_when_decided(const parley::ops::rank& self);
parley::runtime::task<> rest_until_input_ends(parley::ops::rank& self);

/// Runs the scenario that the environment names; the exit status. Whoever leaves prints what it knows (records.hpp).
int run_as_rank();

}  // namespace fire
