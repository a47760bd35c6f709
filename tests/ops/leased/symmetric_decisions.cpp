// Decisions of members of an op without headers, and how the members reach them: trials in rehearsals and on calls, their budget,
// times that drift, results files, and the ranks that are told.
#include <parley/tests/ops/leased/symmetric_job.hpp>
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/actors/policy.hpp>
#include <parley/agreement.hpp>
#include <parley/error.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/tuning/planners/statistics.hpp>
#include <parley/tuning/results/results.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::symmetric_jobs;

TEST_CASE("members rehearse, agree by lease and never run one invocation with different configs") {
  for (const rank_id n : {1U, 2U, 3U, 8U}) {
    CAPTURE(n);
    job_of job(n);
    job.start(4000, {5'000, 3'000});
    job.finish();
    expect_ring(job);
    CHECK(job.done() == 4000 * n);
    CHECK(job.gates_met() == 0);
    // On the user's communicator the default ran, then the winner, and no trial.
    CHECK(ran_on(*job.lib.places[0]).size() == 2);
    CHECK(*job.lib.places[0]->meetings().rbegin()->second.digests.begin() == job.campaign()->chosen().digest);
  }
}

namespace {
std::uint64_t control_messages(job_of& job) {
  std::uint64_t n = 0;
  for (rank_id r = 0; r < job.handles.size(); ++r)
    n += job[r].mail().statistics().sent + job[r].mail().statistics().credits_sent;
  return n;
}

/// The control messages during 2,000 calls of each member, after all earlier messages have arrived.
std::uint64_t control_messages_of_calls(job_of& job) {
  job.pass(2'000'000'000);
  const std::uint64_t before = control_messages(job);
  job.start(2000, {5'000, 3'000});
  job.finish();
  return control_messages(job) - before;
}
}  // namespace

TEST_CASE("after the decision a call costs no message") {
  job_of job(4);
  job.start(2000, {5'000, 3'000});
  job.finish();
  REQUIRE(job.steady() == "ring");
  CHECK(control_messages_of_calls(job) == 0);
  CHECK(job.failed() == 0);
}

TEST_CASE("an algorithm that becomes permanently slow is searched again, and until then no message is sent") {
  for (const trials how : {trials::rehearsed, trials::between_calls, trials::on_calls}) {
    CAPTURE(static_cast<int>(how));
    rank_settings settings;
    settings.plan.drift.every = 50;
    settings.plan.drift.pause_ns = 0;
    settings.plan.budget_fraction = 0.5;
    time_ns slower_ns = 0;
    const auto ring = std::make_shared<algorithm>(
        "ring", algorithm_traits{.takes_ns = 20'000, .stalls = [&](const symmetric_call&) { return slower_ns; }});
    job_of job(3, {takes("library", 40'000), ring, takes("tree", 30'000)}, how, settings);
    job.start(4000, {5'000, 3'000});
    job.finish();
    REQUIRE(job.steady() == "ring");
    CHECK(control_messages_of_calls(job) == 0);
    slower_ns = 60'000;
    job.start(6000, {5'000, 3'000});
    job.finish();
    CHECK(job.failed() == 0);
    CHECK(job.lib.mismatches() == 0);
    CHECK(job.campaign()->number() == 2);
    CHECK(job.campaign()->reason().find("its times have drifted: ") == 0);
    CHECK(job.steady() == "tree");
  }
}

TEST_CASE("without rehearsals, trials run by lease: one schedule, which falls back by itself, and one decision") {
  for (const rank_id n : {1U, 2U, 5U}) {
    CAPTURE(n);
    job_of job(n, three(), trials::on_calls);
    job.start(4000, {5'000, 3'000});
    job.finish();
    expect_ring(job);
    CHECK(job.gates_met() == 0);
    const auto& s = job.end(0).lease_coordinator()->statistics();
    CHECK(s.campaigns == 2);  // N2: one for the trials, one for the decision
    CHECK(s.aborted == 0);
    CHECK(s.rounds == 0);
    CHECK(ran_on(*job.lib.places[0]).size() == 3);  // all configs ran there, because trials ran on calls
  }
}

TEST_CASE("members whose clocks are seconds apart and drift decide as on one clock, in every way to try candidates") {
  constexpr time_ns second = 1'000'000'000;
  const machines hosts{{1, 2, 3}, {{}, {.offset_ns = 7 * second, .drift_ppb = 50'000}, {.offset_ns = -3 * second}}};
  for (const trials how : {trials::rehearsed, trials::between_calls, trials::on_calls}) {
    CAPTURE(static_cast<int>(how));
    std::vector<tuning::aggregate> on_one_clock;
    for (const machines& of : {machines{}, hosts}) {
      job_of job(3, three(), how, roomy(), {}, {}, 30 * second, of);
      job.start(4000, {5'000, 3'000});
      job.finish();
      expect_ring(job);
      CHECK(job.gates_met() == 0);
      REQUIRE(job.campaign() != nullptr);
      const auto& times = job.campaign()->aggregates();
      if (of.hosts.empty()) {
        on_one_clock = times;
        continue;
      }
      REQUIRE(times.size() == on_one_clock.size());
      for (std::size_t i = 0; i < times.size(); ++i) {
        CAPTURE(i);
        REQUIRE(times[i].measured());
        CHECK(times[i].clock_error_ns > 0);
        CHECK(times[i].clock_error_ns < 50'000);
        const double off = std::abs(times[i].time_ns - on_one_clock[i].time_ns);
        CHECK(off <= times[i].clock_error_ns + 1e-4 * on_one_clock[i].time_ns);
      }
      // Rank 1 records the times of its calls by its own clock, too.
      for (const auto& noted : job[1].flight().in_order()) CHECK(noted.began_ns >= 7 * second);
    }
  }
}

TEST_CASE("each size has a log of its own, and calls keep their order across sizes") {
  job_of job(3);
  job.start(6000, {2'000, 6'000}, {64, 4096, 60'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  for (const std::uint64_t bytes : {64U, 4096U, 60'000U}) CHECK(job.steady(bytes) == "ring");
}

TEST_CASE("a leased trial of the default that times out is made again") {
  job_of* here = nullptr;
  std::size_t timed_out = 0;
  const auto first_trials = [&](const symmetric_call& call, std::span<std::byte>) {
    if (here == nullptr || call.self != 1) return;
    const auto* log = here->end(0).lease_coordinator()->log_of(4096);
    if (log == nullptr || log->size() != 1) return;
    std::uint64_t to = log->entries().front().from;
    if (call.invocation < to) return;
    for (const auto& s : log->entries().front().segments) to += s.count;
    if (call.invocation >= to) return;
    ++timed_out;
    raise({errc::timeout, "nobody came"});
  };
  auto configs = three();
  configs[0] = std::make_shared<algorithm>("library", algorithm_traits{.takes_ns = 10'000, .computes = first_trials});
  job_of job(3, configs, trials::on_calls);
  here = &job;
  job.start(10'000, {5'000, 1'000});
  job.finish();
  here = nullptr;
  CHECK(timed_out != 0);
  CHECK(job.failed() == timed_out);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.steady() == "library");  // the fastest
  CHECK(job.campaign()->is_decided());
}

TEST_CASE("leased trials of all sizes share one budget") {
  rank_settings settings;
  settings.plan.budget_fraction = 0.001;
  // Nobody has measured `slow` yet, and the leader assumes that such a candidate takes half as long again as the default.
  job_of job(3, {takes("library", 40'000), takes("slow", 60'000), takes("slower", 61'000)}, trials::on_calls, settings);
  job.start(20'000, {50'000, 1'000}, {64, 256, 1024, 4096, 16'384, 65'536});
  job.finish();
  CHECK(job.failed() == 0);
  double lost_ns = 0;
  for (const auto& c : job.end(0).assigned()->searches()) lost_ns += c->cost_ns();
  CHECK(lost_ns > 0);
  CHECK(lost_ns <= 0.00125 * static_cast<double>(job.clock.now()));
}

TEST_CASE("a decided config that fails in a call is given up by one more campaign") {
  auto configs = three();
  configs[1] =
      std::make_shared<algorithm>("ring", algorithm_traits{.takes_ns = 20'000, .fails_on = 1, .fails_from_call = 3000});
  job_of job(3, configs);
  job.start(6000, {5'000, 1'000});
  job.finish();
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.steady() == "library");
  CHECK(job.failed() > 0);
  CHECK(job.failed() < 60);
  for (const auto& o : job.logs[1].outcomes) {
    if (o) continue;
    CHECK(is(o, {.code = errc::config_failed, .rank = 1, .config = "ring"}));
    break;
  }
  CHECK(job.logs[0].failed() + job.logs[2].failed() == 0);
}

TEST_CASE("a config that fails while a campaign is prepared is given up by that campaign, after few failed calls") {
  bool fails = false;
  auto configs = three();
  configs[1] = std::make_shared<algorithm>(
      "ring", algorithm_traits{.takes_ns = 20'000, .computes = [&](const symmetric_call& call, std::span<std::byte>) {
                                 if (fails && call.self == 1 && call.on != symmetric_call::stream::rehearsal)
                                   raise({errc::unavailable, "out of registers"});
                               }});
  job_of job(2, configs, trials::between_calls, roomy());
  job.start(4000, {5'000, 1'000});
  while (job.steady() != "ring") job.pass(1'000'000);
  const auto& counted = job.end(0).lease_coordinator()->statistics();
  const auto before = counted.campaigns;
  // Rank 1 hears of the campaign only after a call on rank 1 has failed.
  job.links.options().lose = [&](rank_id from, rank_id, link::channel on) {
    fails = fails || counted.campaigns > before;
    return on == link::channel::control && from == 0 && fails && job.failed() == 0;
  };
  job.handles[0].agreed().retune();
  job.finish();
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.steady() != "ring");
  CHECK(job.failed() > 0);
  CHECK(job.failed() < 20);
}

TEST_CASE("a leased trial that fails is cut short") {
  auto configs = three();
  configs[1] =
      std::make_shared<algorithm>("ring", algorithm_traits{.takes_ns = 20'000, .fails_on = 1, .fails_from_call = 0});
  job_of job(3, configs, trials::on_calls);
  job.start(10'000, {1'500'000, 100'000});
  job.finish();
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.failed() > 0);
  CHECK(job.failed() < 40);
  CHECK(job.steady() != "ring");
  CHECK(job.campaign()->is_decided());
}

TEST_CASE("a winner from a results file is rehearsed once and scheduled without trials") {
  rank_settings s;
  s.results_path = "results.csv";
  std::string text;
  {
    job_of job(2, three(), trials::rehearsed, s);
    job.start(3000);
    job.finish();
    REQUIRE(job.steady() == "ring");
    job.pass(1'000'000'000);
    text = tuning::write_results(job[0].results());
    CHECK(text.find("gradients/0>1,4KiB,ring,") != std::string::npos);
  }
  job_of again(2, three(), trials::rehearsed, s, {}, text);
  again.start(2000);
  again.finish();
  CHECK(again.steady() == "ring");
  CHECK(again.campaign()->trials() == 0);
  CHECK(again.end(0).lease_coordinator()->statistics().rounds == 1);
  CHECK(again.end(1).leases().statistics().rehearsals == 1);
  CHECK(again.lib.mismatches() == 0);
}

TEST_CASE("tuning that is switched off leaves the default and sends no lease") {
  rank_settings s;
  s.policy = actors::tuning_policy::off;
  job_of job(2, three(), trials::rehearsed, s);
  job.start(500);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady() == "library");
  CHECK(job.end(0).lease_coordinator()->statistics().campaigns == 0);
  CHECK(job.end(0).lease_coordinator()->statistics().rounds == 0);
}

TEST_CASE("the flight recorder names leased ops and their configs, and says why one config won") {
  rank_settings settings;
  settings.flight_dir = "box";
  job_of job(2, three(), trials::rehearsed, settings);
  job.start(2000, {5'000, 3'000});
  job.finish();
  REQUIRE(job.winner() == "ring");
  REQUIRE(job[1].dump_flight("asked"));
  const std::string& text = job.disk[1].files["box/parley-flight-1.json"];
  const std::string title = job.end(1).declaration().title();
  CHECK(text.find("\"op\":\"" + title + "\",\"generation\"") != std::string::npos);
  CHECK(text.find("\"config\":\"ring\"") != std::string::npos);
  const auto decision = text.find(R"({"op":")" + title + R"(","key":"4KiB","config":"ring")");
  REQUIRE(decision != std::string::npos);
  CHECK(text.find("\"ranks\":[{\"rank\":0,\"time_ns\":", decision) != std::string::npos);
  CHECK(text.find(job[1].decisions().front().decision.why, decision) != std::string::npos);
}

TEST_CASE("every member of a leased op has its decisions as values, and a wait ends at once when a member is lost") {
  job_of job(3);
  std::vector<std::optional<result<decision>>> awaited(3);
  scope waiting(job.clock);
  const auto wait = [](agreement with, std::uint64_t bytes, std::optional<result<decision>>& into) -> task<> {
    auto d = co_await attempt(with.decided(bytes, {.timeout = 600s}));
    into = std::move(d);
  };
  for (rank_id r = 0; r < 3; ++r) {
    CHECK_FALSE(job.handles[r].decision(4096).decided);
    CHECK(job.handles[r].decision(4096).config == "library");
    waiting.spawn(wait(job.handles[r].agreed(), 4096, awaited[r]));
  }
  job.start(4000, {5'000, 3'000});
  job.finish();
  job.pass(1'000'000'000);
  for (rank_id r = 0; r < 3; ++r) {
    REQUIRE(awaited[r]);
    REQUIRE(*awaited[r]);
    CHECK((**awaited[r]).config == "ring");
    CHECK((**awaited[r]).evidence.size() == 3);
    CHECK((**awaited[r]).time_ns == job.handles[0].decision(4096).time_ns);
    CHECK((**awaited[r]).time_ns == job.handles[r].decision(4096).time_ns);
    awaited[r].reset();
    waiting.spawn(wait(job.handles[r].agreed(), 1 << 20, awaited[r]));
  }
  CHECK(job.handles[0].decision(1 << 20).why.find("no call of this size") != std::string::npos);
  job.pass(1'000'000);
  CHECK_FALSE(awaited[1]);
  job[1].on_lost(2, "it was killed");
  job.pass(1'000'000);
  REQUIRE(awaited[1]);
  CHECK(awaited[1]->code() == errc::peer_failed);
  waiting.cancel(errc::cancelled);
}

TEST_CASE("a leased op is among its leader's agreements, and is searched again when any member asks") {
  job_of job(3);
  job.start(4000, {5'000, 3'000});
  job.finish();
  REQUIRE(job[0].agreements().size() == 1);
  CHECK(job[1].agreements().empty());
  const edge_agreement agreed = job[0].agreements()[0];
  CHECK(agreed.op == "gradients");
  CHECK(agreed.group == std::vector<rank_id>{0, 1, 2});
  CHECK(agreed.assigned->find(4096)->chosen().config == "ring");
  CHECK(agreed.decisions->size() == 1);
  CHECK(job.campaign()->number() == 1);
  CHECK(job[2].retune("another op") == 0);
  CHECK(job[2].retune("gradients", "the switch was changed") == 1);
  job.start(4000, {5'000, 3'000});
  job.finish();
  CHECK(job.campaign()->number() == 2);
  CHECK(job.campaign()->reason() == "rank 2 asked for it: the switch was changed");
  expect_ring(job);
}
