// Campaigns of ops without headers whose messages are lost or late, and calls that wait for the campaigns, at the gate or in a config.
#include <parley/tests/ops/leased/symmetric_job.hpp>
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/error.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::symmetric_jobs;

TEST_CASE("lost, late and reordered control messages delay members, and never make them run different configs") {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U, 5U, 6U}) {
    for (const trials how : {trials::rehearsed, trials::between_calls, trials::on_calls}) {
      CAPTURE(seed);
      CAPTURE(static_cast<int>(how));
      random_stream dice(seed, 99);
      memory_link_options o;
      o.lose = [&](rank_id, rank_id, link::channel on) { return on == link::channel::control && dice.below(100) < 25; };
      o.delay = [&](rank_id, rank_id, link::channel) { return static_cast<time_ns>(dice.below(3'000'000)); };
      job_of job(3, three(), how, {}, o);
      job.start(6000, {1'000, 2'000'000}, {4096, 128});
      job.finish();
      CHECK(job.failed() == 0);
      CHECK(job.lib.mismatches() == 0);
      CHECK(job.steady() == "ring");
      CHECK(job.steady(128) == "ring");
    }
  }
}

TEST_CASE("a late schedule holds calls at the gate, in order, until it arrives") {
  job_of job(3);
  auto& coordinator = *job.end(0).lease_coordinator();
  job.links.options().delay = [&](rank_id from, rank_id to, link::channel) -> time_ns {
    return from == 0 && to == 1 && coordinator.statistics().scheduled == 1 ? 20'000'000 : 0;
  };
  job.start(3000, {5'000, 1'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.gates_met() == 1);
  CHECK(job.end(1).leases().statistics().gate_wait_ns > 10'000'000);
  CHECK(job.steady() == "ring");
}

namespace {

// Loses `times` messages of the decision's campaign between ranks 0 and 1: before or after it is scheduled, from the leader or in answer.
void lose_in_campaign(job_of& job, bool scheduled, bool answers, int times) {
  auto left = std::make_shared<int>(times);
  job.links.options().lose = [&job, scheduled, answers, left](rank_id from, rank_id to, link::channel on) {
    const auto& s = job.end(0).lease_coordinator()->statistics();
    const bool ours = on == link::channel::control && (answers ? from == 1 && to == 0 : from == 0 && to == 1);
    return ours && s.campaigns == 1 && (s.scheduled == 1) == scheduled && (*left)-- > 0;
  };
}

}  // namespace

TEST_CASE("a lost prepare, promise, schedule or acknowledgement is sent again") {
  for (const bool scheduled : {false, true}) {
    for (const bool answers : {false, true}) {
      CAPTURE(scheduled);
      CAPTURE(answers);
      job_of job(3);
      lose_in_campaign(job, scheduled, answers, 2);
      job.start(6000, {5'000, 1'000});
      job.finish();
      CHECK(job.failed() == 0);
      CHECK(job.lib.mismatches() == 0);
      CHECK(job.steady() == "ring");
      CHECK(job.end(0).lease_coordinator()->statistics().aborted == 0);
    }
  }
}

TEST_CASE("a campaign that a participant does not join in time is aborted, and another one is started") {
  job_of job(3);
  auto& coordinator = *job.end(0).lease_coordinator();
  job.links.options().lose = [&](rank_id from, rank_id, link::channel on) {
    return on == link::channel::control && from == 1 && coordinator.statistics().campaigns == 1 &&
           coordinator.statistics().aborted == 0;
  };
  job.start(4000, {2'000'000, 100'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(coordinator.statistics().aborted == 1);
  CHECK(coordinator.statistics().campaigns == 2);
  CHECK(job.steady() == "ring");
}

TEST_CASE("a call whose config waits too long for another member says what that member is doing") {
  job_of job(3, three(), trials::on_calls, {}, {}, {}, 4'000'000'000);
  std::vector<result<>> outcomes(2);
  std::vector<std::byte> data(4096);
  const auto call = [](symmetric op, std::span<std::byte> d, result<>& into) -> task<> {
    auto outcome = co_await attempt(op.run(d));
    into = outcome;
  };
  const auto receive = [](transfer t, std::span<std::byte> into) -> task<> {
    static_cast<void>(co_await attempt(t.receive(into, {.from = 0, .tag = 7})));
  };
  transfer_options acts;
  acts.name = "acts";
  acts.edges = {{0, 1}, {1, 0}, {0, 2}};
  std::vector<transfer> ends;
  for (rank_id r = 0; r < 3; ++r) ends.emplace_back(*job.ranks[r], acts);
  std::vector<std::byte> other(8);
  SUBCASE("the member waits in another call") {
    job.calls->spawn(receive(ends[2], other));
    for (const rank_id r : {0U, 1U}) job.calls->spawn(call(job.handles[r], data, outcomes[r]));
    job.pass(5'000'000'000);
    for (const rank_id r : {0U, 1U}) {
      CHECK(is(outcomes[r],
               {.code = errc::timeout, .rank = r, .invocation = 0, .unmet = awaited::config, .config = "library"}));
      const std::string text = outcomes[r].reason().what();
      CAPTURE(text);
      // The error names ranks that do not wait in this call before ranks that do.
      CHECK(says(outcomes[r],
                 "; rank 2 has made 0 calls of it of that size; it waits in: receive of acts 0->2, call 0, tag 7, "));
      CHECK(says(outcomes[r], "; rank " + std::to_string(1 - r) +
                                  " has made 1 calls of it of that size; it waits in: call of gradients"));
      CHECK(text.find("; rank 2 has made") < text.find("; rank " + std::to_string(1 - r) + " has made"));
    }
  }
  SUBCASE("the member has not declared the op") {
    symmetric_options alone{.name = "alone",
                            .ranks = {0, 1},
                            .configs = three(),
                            .timeout = 4s,
                            .communicator = std::make_shared<library_communicator>(job.lib.make())};
    const symmetric only(*job.ranks[0], alone);
    job.calls->spawn(call(only, data, outcomes[0]));
    job.pass(5'000'000'000);
    CHECK(outcomes[0].code() == errc::timeout);
    CHECK(says(outcomes[0], "; rank 1 has not declared this op"));
  }
}

TEST_CASE("a call that waits too long at a gate times out and names the rank it waits for, and later calls continue") {
  rank_settings settings;
  settings.flight_dir = "box";
  job_of job(3, three(), trials::rehearsed, settings);
  auto& coordinator = *job.end(0).lease_coordinator();
  bool silent = true;
  bool schedule = false;
  SUBCASE("a member has not promised") {}
  SUBCASE("the schedule does not arrive") { schedule = true; }
  job.links.options().lose = [&](rank_id from, rank_id to, link::channel on) {
    if (on != link::channel::control || !silent || coordinator.statistics().campaigns == 0) return false;
    return schedule ? to == 1 && coordinator.statistics().scheduled != 0 : from == 2;
  };
  for (rank_id r = 0; r < 3; ++r) job.start_on(r, 1'000'000, {200'000, 0});
  while (job.end(1).leases().statistics().gates_met == 0) job.pass(1'000'000);
  job.pass(200'000'000);
  std::vector<std::byte> data(4096);
  const auto late = [](symmetric op, std::span<std::byte> d, result<>& into) -> task<> {
    auto outcome = co_await attempt(op.run(d, {.timeout = 100ms}));
    into = outcome;
  };
  result<> outcome;
  runtime::run(job.clock, late(job.handles[1], data, outcome));
  CHECK(is(
      outcome,
      {.code = errc::timeout,
       .op = "gradients 0->1->2",
       .rank = 1,
       .peer = schedule ? 0 : 2,
       .unmet = schedule ? awaited::schedule : awaited::members,
       .quotes = schedule ? "at the gate of campaign 1 for the coordinator on rank 0, which has not sent the schedule"
                          : "at the gate of campaign 1 for rank 2, which has not answered"}));
  const std::string said = outcome ? "" : outcome.reason().what();
  INFO(said);
  CHECK(said.find(schedule ? "; rank 0 has not said in 25 ms what it is doing"
                           : "; rank 2 has not said in 25 ms what it is doing") != std::string::npos);
  const std::string& left = job.disk[1].files["box/parley-flight-1.json"];
  CHECK(left.find("\"why\":\"timeout: gradients") != std::string::npos);
  CHECK(left.find("at the gate of campaign 1") != std::string::npos);
  CHECK(job.disk[0].files.empty());
  CHECK(job.failed() == 0);
  silent = false;
  job.pass(5'000'000'000);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.steady() == "ring");
  CHECK(job.failed() == 0);
}

TEST_CASE("calls of several sizes that are cancelled together while the first waits at a gate end all at once") {
  bool below = false;  // the second call runs in a nested scope
  SUBCASE("in one scope") { below = false; }
  SUBCASE("in nested scopes") { below = true; }
  job_of job(3);
  auto& coordinator = *job.end(0).lease_coordinator();
  job.links.options().lose = [&](rank_id from, rank_id, link::channel on) {
    return on == link::channel::control && from == 2 && coordinator.statistics().campaigns != 0;
  };
  scope own(job.clock);
  for (const rank_id r : {0U, 2U}) job.start_on(r, 1'000'000, {200'000, 0});
  own.spawn(call_often(job.handles[1], job.clock, {4096}, 1'000'000, {200'000, 0}, random_stream(7, 1), job.logs[1]));
  while (job.end(1).leases().statistics().gates_met == 0) job.pass(1'000'000);
  own.cancel();
  job.pass(1'000'000);
  REQUIRE(own.running() == 0);
  std::vector<std::byte> small(4096);
  std::vector<std::byte> large(1 << 16);
  std::list<result<>> ended(2);
  scope together(job.clock);
  const auto call = [](symmetric op, std::span<std::byte> data, result<>& outcome) -> task<> {
    try {
      co_await op.run(data);
    } catch (const failure& f) {
      outcome = f.reason();
    }
  };
  scope nested(together);
  together.spawn(call(job.handles[1], small, ended.front()));
  (below ? nested : together).spawn(call(job.handles[1], large, ended.back()));
  job.pass(1'000'000);
  REQUIRE(together.running() + nested.running() == 2);
  together.cancel();
  job.pass(1'000'000);
  CHECK(together.running() + nested.running() == 0);
  for (const auto& e : ended) CHECK(e.code() == errc::cancelled);
  CHECK(job.end(1).leases().next_invocation(1 << 16) == 0);
  job.calls->cancel();
  job.finish();
}

TEST_CASE("overlapping calls start in the same order on every member, with and without gates") {
  job_of job(3);
  auto& coordinator = *job.end(0).lease_coordinator();
  random_stream dice(5, 5);
  job.links.options().delay = [&](rank_id, rank_id, link::channel) -> time_ns {
    return coordinator.statistics().campaigns != 0 ? static_cast<time_ns>(dice.below(1'000'000)) : 0;
  };
  std::vector<std::byte> data(1 << 16);
  const auto one = [](symmetric op, std::span<std::byte> d, std::size_t& done) -> task<> {
    co_await op.run(d);
    ++done;
  };
  std::size_t done = 0;
  for (std::size_t i = 0; i < 3000; ++i) {
    for (rank_id r = 0; r < 3; ++r)
      job.calls->spawn(one(job.handles[r], std::span(data).first(i % 3 == 0 ? 64 : 4096), done));
    if (i % 7 == 0) job.pass(static_cast<time_ns>(dice.below(300'000)));
  }
  job.finish();
  CHECK(done == 9000);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.gates_met() > 0);
}
