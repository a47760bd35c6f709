// Ranks that return: the errors of ranks that wait for a message of such a rank or send to it, and the messages that it leaves behind.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/membership/losses.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::is;
using parley::tests::pair_of;
using parley::tests::pattern;

namespace {

/// The words of errors for a rank whose program has returned. Errors have other words for every other end.
std::string words_of_return(rank_id returned) {
  actors::losses gone(1 - returned, false);
  return "rank " + std::to_string(returned) + gone.add(returned, "", actors::departure::returned, 0)->what;
}

/// Checks that the error of `receiver`'s receive says that rank 1 has returned.
void check_told_of_return(const job_run& run, rank_id receiver, const std::string& op) {
  CHECK_MESSAGE(is(run.error_of(receiver, "last call"), {.code = errc::peer_failed,
                                                         .op = op,
                                                         .rank = receiver,
                                                         .peer = 1,
                                                         .culprit = 1,
                                                         .quotes = words_of_return(1)}),
                run.all);
}

void returns_at_once(job& here) {
  transfer t(here.self(), towards_rank_0());
  if (here.self().id() == 0) run_to_its_error(here, wait_for_a_message(t));
}
const scenario as_returns_at_once{"returns_at_once", returns_at_once};

}  // namespace

TEST_CASE("the error of a receive whose sender has returned says so") {
  const job_run run("returns_at_once", 2);
  check_told_of_return(run, 0, "activations 1->0");
  CHECK(run.end.ranks[1].code == 0);
  CHECK(run.seconds < 20);
}

namespace {

// Rank 0 tells the other ranks who has returned, but it tells them nothing while it computes.
void returns_while_rank_0_computes(job& here) {
  transfer t(here.self(), {.name = "activations", .edges = {{1, 2}}});
  if (here.self().id() == 0) std::this_thread::sleep_for(std::chrono::seconds(4));
  if (here.self().id() == 2) run_to_its_error(here, wait_for_a_message(t));
}
const scenario as_returns_while_rank_0_computes{"returns_while_rank_0_computes", returns_while_rank_0_computes};

}  // namespace

TEST_CASE("the error of a receive whose sender has returned says so, even while rank 0 computes") {
  const job_run run("returns_while_rank_0_computes", 3);
  check_told_of_return(run, 2, "activations 1->2");
  for (const rank_id r : {0U, 1U}) CHECK(run.end.ranks[r].code == 0);
}

namespace {

task<> send_to_rank_1(transfer t) {
  const auto data = pattern(256 << 10, 0);
  co_await t.send(data, {.to = 1});
}

void returns_before_declaring(job& here) {
  if (here.self().id() == 1) return;
  transfer t(here.self(), {.name = "activations", .edges = {{0, 1}}});
  run_to_its_error(here, send_to_rank_1(t));
}
const scenario as_returns_before_declaring{"returns_before_declaring", returns_before_declaring};

}  // namespace

TEST_CASE("a send to a rank that has returned ends, with an error or with a warning that the message was not taken") {
  for (int times = 0; times < 3; ++times) {
    const job_run run("returns_before_declaring", 2);
    // Nobody fetches the message. The transport either completes its send or fails it.
    if (run.end.ranks[0].code == 0) {
      CHECK_MESSAGE(run.says(0, {"warning: activations 0->1, on rank 0: rank 1 has not taken 1 of the 1 messages"}),
                    run.all);
    } else {
      CHECK(run.end.ranks[0].code == 1);
      CHECK_MESSAGE(
          is(run.error_of(0, "last call"), {.code = errc::peer_failed, .op = "activations 0->1", .rank = 0, .peer = 1}),
          run.all);
    }
    CHECK(run.end.ranks[1].code == 0);
    CHECK(run.seconds < 20);
  }
}

namespace {

void takes_nothing(job& here) {
  transfer t(here.self(), pair_of({direct()}));
  if (here.self().id() == 0) run(here.loop(), send_three(t));
}
const scenario as_takes_nothing{"takes_nothing", takes_nothing};

}  // namespace

TEST_CASE("a sender that leaves warns of messages that its receiver has not taken") {
  const job_run run("takes_nothing", 2);
  CHECK_MESSAGE(run.fine(), run.all);
  CHECK_MESSAGE(
      run.says(0, {"warning: activations 0->1, on rank 0: rank 1 has not taken ", " messages that were sent to it"}),
      run.all);
}
