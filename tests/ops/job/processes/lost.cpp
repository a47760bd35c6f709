// Lost ranks: a rank is killed, a rank cuts its connection to another, or a rank never joins. The tests check what the others report.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/dataflow.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/p2p.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <csignal>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::is;
using parley::tests::pair_of;
using parley::tests::say_error;

namespace {

/// Ranks 0 and 2 both exchange messages with rank 1, until rank 1 is killed.
task<> until_lost(rank& self, transfer t) {
  std::vector<std::byte> data(self.id() == 2 ? std::size_t{1} << 20U : 1000);
  for (std::size_t i = 0;; ++i) {
    if (self.id() == 0) co_await t.send(data, {.to = 1});
    if (self.id() == 2) co_await t.receive(data, {.from = 1});
    if (self.id() != 1) continue;
    co_await t.receive(data, {.from = 0});
    std::vector<std::byte> large(std::size_t{1} << 20U);
    co_await t.send(large, {.to = 2});
    if (i == 5) ::raise(SIGKILL);
  }
}
void killed(job& here) {
  transfer_options op = pair_of({direct(), chunked(64_KiB, 2)});
  op.edges = {{0, 1}, {1, 2}};
  transfer t(here.self(), op);
  run_to_its_error(here, until_lost(here.self(), t));
}
const scenario as_killed{"killed", killed};

}  // namespace

TEST_CASE("when a rank is killed, the others report it within seconds, with op and ranks") {
  const job_run run("killed", 3);
  CHECK(run.end.status == 1);
  CHECK(run.end.ranks[1].kind == transports::rank_end::how::signalled);
  for (const rank_id survivor : {rank_id{0}, rank_id{2}}) {
    CAPTURE(survivor);
    const std::string op = survivor == 0 ? "activations 0->1" : "activations 1->2";
    CHECK_MESSAGE(is(run.error_of(survivor, "last call"),
                     {.code = errc::peer_failed, .op = op, .rank = survivor, .peer = 1, .culprit = 1}),
                  run.all);
    CHECK(run.end.ranks[survivor].kind == transports::rank_end::how::exited);
    CHECK_FALSE(run.end.ranks[survivor].by_launcher);
  }
  CHECK(run.seconds < 20);  // the op's own timeout is 30 s
}

namespace {

/// Ranks 0 to 2 tune a function with a kernel of two configs. In the third run of the kernel the victim is killed, while rank 1 waits
/// in its own third run for something that never comes. The remaining rank has ended that run and waits for the other two.
task<> third_run_kills(rank_id self, rank_id victim, std::size_t run_number, transfer beat) {
  std::vector<std::byte> word(1);
  if (run_number != 3) co_return;
  if (self == victim) {
    co_await beat.receive(word, {.from = 1});
    ::raise(SIGKILL);
  }
  if (self != 1) co_return;
  co_await beat.send(word, {.to = victim});
  auto woken = co_await sleep_until(never - 1);
  if (!woken) raise(woken.reason());
}
task<> tune_until_lost(rank& self, contextual layer, transfer beat, rank_id victim) {
  std::size_t runs = 0;
  const auto config = [&](int) { return third_run_kills(self.id(), victim, ++runs, beat); };
  tunable_op<task<>(int)> kernel(self.kernels(),
                                 {.name = "kernel", .implementations = {{"one", config}, {"other", config}}});
  const auto thunk = [&] { return kernel(8); };
  for (const char* call : {"the call", "the call after it"}) {
    auto outcome = co_await attempt(layer.run(thunk));
    expect(!outcome && layer.end().best("kernel", "all").empty(), "nothing is decided without the rank that is gone");
    say_error(call, outcome.reason());
  }
}
void killed_while_they_tune(job& here, rank_id victim) {
  transfer_options op;
  op.name = "beat";
  op.edges = {{1, victim}};
  transfer beat(here.self(), op);
  contextual layer(here.self(), {.name = "layer", .log_folder = ""});
  run(here.loop(), tune_until_lost(here.self(), layer, beat, victim));
}
void leader_killed_in_search(job& here) { killed_while_they_tune(here, 0); }
void member_killed_in_search(job& here) { killed_while_they_tune(here, 2); }
const scenario as_leader_killed_in_search{"leader_killed_in_search", leader_killed_in_search};
const scenario as_member_killed_in_search{"member_killed_in_search", member_killed_in_search};

}  // namespace

TEST_CASE(
    "when a rank is killed while ranks tune a function, the others report it within seconds, wherever they wait") {
  for (const rank_id victim : {rank_id{0}, rank_id{2}}) {
    CAPTURE(victim);
    const job_run run(victim == 0 ? "leader_killed_in_search" : "member_killed_in_search", 3);
    CHECK(run.end.ranks[victim].kind == transports::rank_end::how::signalled);
    for (const rank_id survivor : {rank_id{1}, rank_id{2} - victim}) {
      CAPTURE(survivor);
      for (const char* call : {"the call", "the call after it"}) {
        CAPTURE(call);
        const result<> ended = run.error_of(survivor, call);
        CHECK_MESSAGE(
            is(ended,
               {.code = errc::peer_failed, .op = "layer 0->1->2", .rank = survivor, .begun = true, .culprit = victim}),
            run.all);
        CHECK((!ended && ended.reason().about().invocation));
      }
      CHECK(run.end.ranks[survivor].kind == transports::rank_end::how::exited);
      CHECK_FALSE(run.end.ranks[survivor].by_launcher);
    }
    CHECK(run.seconds < 20);  // a run may take 30 s
  }
}

namespace {

constexpr int first_torn_down = 3;
/// From call 3 on, counted from 0, rank 0 tears a call down while its payload moves. A busy machine may wake rank 0 after the payload
/// has arrived: then rank 0 tears the next call down.
task<> one_call(rank* self, p2p pair, std::span<std::byte> buffer, int call) {
  dataflow flow(co_await this_scope);
  std::vector<p2p_operation> mine;
  if (self->id() == 0) mine.push_back(p2p::isend(buffer, {.to = 1}));
  if (self->id() == 1) mine.push_back(p2p::irecv(buffer, {.from = 0}));
  auto moved = pair.start(flow, mine);
  if (self->id() == 0 && call >= first_torn_down) {
    (void)co_await sleep_for(1ms);
    if (flow.running() > 0) raise({errc::exception, "no more of it"});
  }
  co_await moved;
  co_await flow.join();
}
task<> call_until_it_ends(rank* self, p2p pair) {
  std::vector<std::byte> buffer(std::size_t{64} << 20U);
  for (int call = 0; call < 100; ++call) {
    auto ended = co_await attempt(one_call(self, pair, buffer, call));
    if (ended) continue;
    const bool torn_down = self->id() == 0 && ended.reason().code() == errc::exception;
    say_error(torn_down ? "call torn down" : "last call", ended.reason());
    if (!torn_down) co_return;
  }
}
void goes_on_after_tearing_down(job& here) {
  const p2p pair(here.self(), {.name = "pair"});
  run(here.loop(), call_until_it_ends(&here.self(), pair));
}
const scenario as_goes_on_after_tearing_down{"goes_on_after_tearing_down", goes_on_after_tearing_down};

}  // namespace

TEST_CASE("after a rank tears down a message, the calls of both ranks end in time, and both errors blame that rank") {
  const job_run run("goes_on_after_tearing_down", 2);
  CHECK_MESSAGE(is(run.error_of(0, "call torn down"), {.code = errc::exception, .quotes = "no more of it"}), run.all);
  CHECK_MESSAGE(
      is(run.error_of(0, "last call"), {.code = errc::peer_failed, .op = "pair 0->1", .peer = 1, .culprit = 0}),
      run.all);
  CHECK_MESSAGE(
      is(run.error_of(1, "last call"), {.code = errc::peer_failed, .op = "pair 0->1", .peer = 0, .culprit = 0}),
      run.all);
  CHECK(run.seconds < 20);
}

namespace {

constexpr const char* meeting_point = "PARLEY_TEST_FOLDER";
std::filesystem::path told_by(rank_id rank) {
  return std::filesystem::path(std::getenv(meeting_point)) / ("told" + std::to_string(rank));
}
void stay_away() {
  while (!std::filesystem::exists(told_by(0)) || !std::filesystem::exists(told_by(2)))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}
// Rank 1 never joins: it waits until the others have reported what they miss.
int never_comes(job_options& o) {
  const std::string_view rank = std::getenv("PARLEY_RANK");
  if (rank == "1") {
    stay_away();
    return 0;
  }
  o.join_timeout = 3s;
  const int status = ops::run([](job&) {}, o);
  std::ofstream(told_by(rank == "0" ? 0 : 2)) << status;
  return status;
}
const scenario as_never_comes{"never_comes", never_comes};

}  // namespace

TEST_CASE("when a rank never joins the others time out and rank 0 names that rank") {
  const folder where;
  const job_run run("never_comes", 3, {{meeting_point, where.path.string()}});
  CHECK(run.end.status == 1);
  for (const rank_id waiting : {rank_id{0}, rank_id{2}}) CHECK_MESSAGE(run.says(waiting, {"timeout", "rank"}), run.all);
  CHECK_MESSAGE(run.says(0, {"waiting for rank 1 of 3 to come to "}), run.all);
  CHECK_MESSAGE(run.says(0, {"rank 1 of 3 never came to the rendezvous"}), run.all);
}
