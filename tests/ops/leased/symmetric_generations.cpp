// How ops without headers end and start again: members that die or are fenced, coordinators that throw, generations that end, and leaders
// and members that break their promises.
#include <parley/tests/ops/leased/symmetric_job.hpp>
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/actors/leases/lease_messages.hpp>
#include <parley/error.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>
#include <parley/tuning/key.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::symmetric_jobs;

TEST_CASE("when a member dies, at any stage of the tuning, every call of the others ends with its name") {
  enum class step : std::uint8_t { declared, rehearsing, preparing, scheduled, decided };
  for (const auto when : {step::declared, step::rehearsing, step::preparing, step::scheduled, step::decided}) {
    CAPTURE(static_cast<int>(when));
    job_of job(3);
    auto& coordinator = *job.end(0).lease_coordinator();
    bool dead = false;
    job.links.options().lose = [&](rank_id from, rank_id to, link::channel) { return dead && (from == 2 || to == 2); };
    if (when != step::declared) {
      job.start_on(0, 1'000'000);
      job.start_on(1, 1'000'000);
      job.start_on(2, when == step::rehearsing ? 20 : when == step::decided ? 3000 : 100'000);
      run_until(job.clock, [&] {
        const auto& s = coordinator.statistics();
        return when == step::rehearsing  ? s.rounds == 1
               : when == step::preparing ? s.campaigns == 1
               : when == step::scheduled ? s.scheduled == 1
                                         : job.logs[2].outcomes.size() == 3000;
      });
    }
    dead = true;
    const auto done_by_dead = job.logs[2].outcomes.size();
    for (const rank_id r : {0U, 1U}) job[r].on_lost(2, "killed by signal 9");
    if (when == step::declared) {
      job.start_on(0, 1'000'000);
      job.start_on(1, 1'000'000);
    }
    job.pass(50'000'000);
    for (const rank_id r : {0U, 1U}) {
      REQUIRE(!job.logs[r].outcomes.empty());
      const auto& last = job.logs[r].outcomes.back();
      CHECK(is(last, {.code = errc::peer_failed,
                      .op = "gradients 0->1->2",
                      .rank = r,
                      .peer = 2,
                      .culprit = 2,
                      .quotes = "killed by signal 9"}));
      CHECK((last ? std::nullopt : last.reason().about().invocation).has_value());
      CHECK(job.logs[r].outcomes.size() <= done_by_dead + 3);
    }
    CHECK(job.lib.mismatches() == 0);
    job.calls->cancel();
    job.finish();
  }
}

namespace {

/// When rehearsals ended and calls began, how many runs got no communicator, and how many calls began on a rank that was already fenced.
struct runs_seen {
  std::set<time_ns> ended;
  std::set<time_ns> began;
  int on_nothing = 0;
  bool fenced = false;
  int after_all = 0;
};
class watched_config final : public symmetric_config {
 public:
  watched_config(symmetric_config_ptr real, runs_seen& seen)
      : symmetric_config({.name = real->id(), .wire_class = real->id()}), real_(std::move(real)), seen_(seen) {}
  task<> run(symmetric_call call, std::span<std::byte> data) const override {
    if (call.communicator == nullptr) {
      ++seen_.on_nothing;
      co_return;
    }
    scope& here = co_await this_scope;
    if (call.on == symmetric_call::stream::user) seen_.began.insert(here.where().now());
    const bool goes_on = here.cancelled() == errc::none;
    if (call.on == symmetric_call::stream::user && goes_on) seen_.after_all += seen_.fenced ? 1 : 0;
    co_await real_->run(call, data);
    if (call.on == symmetric_call::stream::rehearsal) seen_.ended.insert(here.where().now());
  }

 private:
  symmetric_config_ptr real_;
  runs_seen& seen_;
};

/// Runs an op on two members until both are fenced at `when`, and `hops` turns of the loop after that. `prepare` starts the calls.
runs_seen runs_until_fenced(time_ns when, int hops, const rank_settings& settings, time_ns span,
                            const std::function<void(job_of&)>& prepare) {
  runs_seen seen;
  std::vector<symmetric_config_ptr> configs;
  for (const auto& real : three()) configs.push_back(std::make_shared<watched_config>(real, seen));
  job_of job(2, configs, trials::rehearsed, settings);
  const auto fence = [](world& w, runs_seen& all, time_ns at, int after) -> task<> {
    auto slept = co_await sleep_until(at);
    for (int i = 0; slept && i < after; ++i) co_await yield;
    for (rank_id r = 0; slept && r < 2; ++r) w[r].on_fenced("it was stopped");
    all.fenced = static_cast<bool>(slept);
  };
  job.calls->spawn(fence(job, seen, when, hops));
  prepare(job);
  job.pass(span);
  job.calls->cancel();
  job.finish();
  return seen;
}

}  // namespace

TEST_CASE("an op that ends just before its next rehearsal or call starts neither") {
  const auto fence_at = [](time_ns when, int hops) {
    return runs_until_fenced(when, hops, roomy(), 20'000'000, [](job_of& job) { job.start(200); });
  };
  const runs_seen all = fence_at(never, 0);
  REQUIRE(all.ended.size() > 3);
  REQUIRE(all.began.size() > 20);
  std::set<time_ns> moments = all.ended;
  moments.insert(all.began.begin(), all.began.end());
  for (const time_ns when : moments) {
    for (int hops = 0; hops < 8; ++hops) {
      CAPTURE(when);
      CAPTURE(hops);
      const runs_seen seen = fence_at(when, hops);
      CHECK(seen.on_nothing == 0);
      CHECK(seen.after_all == 0);
    }
  }
}

TEST_CASE("a call that passes a gate just before its op ends does not run its config") {
  const auto fence_at = [](time_ns when) {
    return runs_until_fenced(when, 0, {}, 200'000'000, [](job_of& job) {
      job.links.options().delay = [&coordinator = *job.end(0).lease_coordinator()](rank_id from, rank_id to,
                                                                                   link::channel) -> time_ns {
        return from == 0 && to == 1 && coordinator.statistics().scheduled == 1 ? 20'000'000 : 0;
      };
      job.start(3000, {5'000, 1'000});
    });
  };
  const runs_seen all = fence_at(never);
  time_ns lifted = 0;
  for (time_ns before = never; const time_ns began : all.began) {
    if (before < began && began - before > 10'000'000) lifted = began;
    before = began;
  }
  REQUIRE(lifted != 0);
  CHECK(fence_at(lifted).after_all == 0);
}

TEST_CASE("a coordinator that throws restarts from the state of its op") {
  job_of job(3);
  job.sources[0]->throws = 1;
  job.start(6000, {500'000, 1'000});
  job.finish();
  CHECK(job.end(0).lease_coordinator()->restarts() == 1);
  CHECK(job.end(0).coordinator()->warm_errors[0].find("no id to be had") != std::string::npos);
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.steady() == "ring");
}

TEST_CASE("a coordinator that throws now and then continues as long as it makes progress in between") {
  auto configs = three();
  for (const char* name : {"first", "second", "third", "fourth", "fifth"})
    configs.push_back(std::make_shared<algorithm>(
        name, algorithm_traits{.takes_ns = 20'000, .fails_on = 1, .fails_in_rehearsals = true}));
  job_of job(3, configs);
  // Each failed round asks for another communicator, and every other request throws.
  job.sources[0]->every_other_throws = true;
  job.start(60'000, {1'000'000, 1'000}, {64, 4096});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.end(0).lease_coordinator()->restarts() > 4);
  for (const std::uint64_t bytes : {64, 4096}) {
    CHECK(job.winner(bytes) == "ring");
    CHECK(job.steady(bytes) == "ring");
  }
  for (rank_id r = 0; r < 3; ++r) {
    for (const std::uint64_t bytes : {64, 4096}) CHECK(job.end(r).leases().open(bytes));
  }
  CHECK(job[0].warnings().front().find("no id to be had") != std::string::npos);
}

TEST_CASE("when a coordinator throws again and again, tuning of its op ends with the reason, and no call fails") {
  job_of job(3);
  job.sources[0]->throws = 1'000'000;
  job.start(60'000, {1'000'000, 1'000}, {64, 4096});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.end(0).lease_coordinator()->restarts() == 4);
  for (const std::uint64_t bytes : {64, 4096}) {
    REQUIRE(job.winner(bytes) == "library");
    CHECK(job.campaign(bytes)->chosen().why.find("no id to be had") != std::string::npos);
  }
  REQUIRE(job[0].warnings().size() == 2);
  CHECK(job[0].warnings()[1].find("tuning of the op has ended") != std::string::npos);
  CHECK(job.sources[0]->throws == 1'000'000 - 4);
}

TEST_CASE("when the log is lost, the generation ends on every member, and members that rejoin count from 0") {
  job_of job(3);
  for (rank_id r = 0; r < 3; ++r) job.start_on(r, 1'000'000, {5'000, 1'000});
  job.pass(200'000'000);
  REQUIRE(job.steady() == "ring");
  const auto before = job.end(1).leases().generation();
  job.end(0).lease_coordinator()->end_generation("the coordinator has lost its log");
  job.pass(100'000'000);
  for (rank_id r = 0; r < 3; ++r) {
    const auto& last = job.logs[r].outcomes.back();
    CHECK(is(last, {.code = errc::closed, .rank = r, .quotes = "the coordinator has lost its log"}));
  }
  const auto again = job.lib.make();
  for (rank_id r = 0; r < 3; ++r) {
    CHECK(job.handles[r].rejoin(std::make_shared<library_communicator>(again)));
    CHECK_FALSE(job.handles[r].rejoin(nullptr));
    CHECK(job.end(r).leases().generation() == actors::generation_after(before));
    CHECK(job.end(r).leases().next_invocation(4096) == 0);
    job.logs[r].outcomes.clear();
  }
  job.start(3000, {5'000, 1'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.steady() == "ring");
}

TEST_CASE(
    "the end of a generation aborts its rehearsal communicators, and the next generation makes one for all members") {
  for (const bool one_is_late : {false, true}) {
    CAPTURE(one_is_late);
    job_of job(3);
    bool held = one_is_late;
    job.links.options().lose = [&](rank_id, rank_id to, link::channel on) {
      return held && on == link::channel::control && to == 2 && job.lib.places.size() > 1;
    };
    for (rank_id r = 0; r < 3; ++r) job.start_on(r, 1'000'000, {5'000, 1'000});
    if (one_is_late) {  // two members are in the first rehearsal, and the third has not heard of it
      while (job.lib.places.size() < 2 || job.lib.places[1]->meetings().empty()) job.pass(1'000'000);
      REQUIRE(job.lib.places[1]->meetings().begin()->second.entered == 2);
    } else {
      job.pass(200'000'000);
      REQUIRE(job.steady() == "ring");
    }
    const std::size_t places = job.lib.places.size();
    auto& coordinator = *job.end(0).lease_coordinator();
    const auto failed = coordinator.statistics().failed_rounds;
    held = false;
    coordinator.end_generation("the coordinator has lost its log");
    job.pass(100'000'000);
    for (std::size_t i = 1; i < places; ++i) CHECK(job.lib.places[i]->aborted());
    const auto again = job.lib.make();
    for (rank_id r = 0; r < 3; ++r) {
      CHECK(job.handles[r].rejoin(std::make_shared<library_communicator>(again)));
      job.logs[r].outcomes.clear();
      job.start_on(r, 100'000, {5'000, 1'000});
    }
    job.pass(1'000'000'000);
    CHECK(coordinator.statistics().failed_rounds == failed);
    CHECK(job.steady() == "ring");
    CHECK(job.lib.places.size() == places + 2);
    CHECK(job.failed() == 0);
    CHECK(job.lib.mismatches() == 0);
  }
}

TEST_CASE(
    "a member that loses another, or is fenced, cannot rejoin, whether its generation ended before or after that") {
  for (const bool fenced : {false, true}) {
    for (const bool ended_first : {true, false}) {
      CAPTURE(fenced);
      CAPTURE(ended_first);
      job_of job(3);
      job.start(1'000'000, {5'000, 1'000});
      job.pass(200'000'000);
      const auto lose = [&] {
        if (fenced) job[1].on_fenced("it was stopped");
        if (!fenced) job[1].on_lost(2, "it was killed");
      };
      if (!ended_first) lose();
      job.end(0).lease_coordinator()->end_generation("the coordinator has lost its log");
      job.pass(100'000'000);
      if (ended_first) lose();
      CHECK_FALSE(job.handles[1].rejoin(std::make_shared<library_communicator>(job.lib.make())));
      job.logs[1].outcomes.clear();
      job.start_on(1, 1);
      job.pass(1'000'000);
      REQUIRE(job.logs[1].outcomes.size() == 1);
      CHECK(job.logs[1].outcomes[0].code() == (fenced ? errc::fenced : errc::peer_failed));
      job.calls->cancel();
      job.finish();
    }
  }
}

namespace {
/// The router of rank `r`. A receiver believes that rank r sent whatever the test sends with it.
router& mail_of(job_of& job, rank_id r) { return const_cast<router&>(job.ranks[r]->mail()); }

/// Sends rank 1 an entry of the log for 4 KiB, as if the leader, rank 0, had appended it after `after` other entries.
void forge_entry(job_of& job, std::uint64_t after, const actors::lease_entry& entry) {
  actors::lease_schedule m;
  m.key = tuning::size_bucket::of(4096).index();
  m.after = after;
  m.entries.push_back(entry);
  const auto& leader = job.end(0);
  static_cast<void>(mail_of(job, 0).send(1, number_of(leader.declaration().id(), actors::part::participant),
                                         leader.leases().generation(), m));
}

void check_breach(const breach& b, std::string_view name, rank_id on, rank_id by) {
  CHECK(b.name == name);
  CHECK(b.where.rank == on);
  CHECK(b.culprit == by);
}
}  // namespace

TEST_CASE("a member that receives a contradiction of the log names its leader, and its calls end at once") {
  job_of job(3);
  job.start(1'000'000, {5'000, 1'000});
  job.pass(200'000'000);
  REQUIRE(job.steady() == "ring");
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  forge_entry(job, 0, {actors::lease_entry::kind::scheduled, 0, {}, job.end(0).declaration().default_digest});
  job.pass(100'000'000);
  REQUIRE(broken.size() == 1);
  check_breach(broken[0], "S1", 1, 0);
  CHECK(job.end(1).leases().statistics().contradictions == 1);
  const auto& last = job.logs[1].outcomes.back();
  CHECK(is(last, {.code = errc::config_mismatch,
                  .rank = 1,
                  .peer = 0,
                  .quotes = "the leader, rank 0, contradicts the log of leases"}));
  CHECK(job.lib.mismatches() == 0);
}

TEST_CASE("a lease for a config that was never warmed is its leader's breach, and the call under that lease does not "
          "run it") {
  job_of job(3);
  job.start(1'000'000, {5'000, 1'000});
  job.pass(200'000'000);
  REQUIRE(job.steady() == "ring");
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  // The member's messages are delayed: they report the forged entry, and would tell the leader's coordinator that its log was written by
  // somebody else.
  job.links.options().delay = [](rank_id from, rank_id, link::channel on) -> time_ns {
    return from == 1 && on == link::channel::control ? 10'000'000'000 : 0;
  };
  const std::uint64_t from = job.end(1).leases().next_invocation(4096) + 5;
  forge_entry(job, job.end(0).lease_coordinator()->log_of(4096)->size(),
              {actors::lease_entry::kind::scheduled, from, {}, 4711});
  job.pass(100'000'000);
  REQUIRE(!broken.empty());
  check_breach(broken[0], "S3", 1, 0);
  const auto& last = job.logs[1].outcomes.back();
  CHECK(is(last, {.code = errc::config_mismatch,
                  .rank = 1,
                  .invocation = from,
                  .quotes = "the lease names a config that was not warmed here"}));
  CHECK(job.lib.mismatches() == 0);
}

TEST_CASE("the leader names a member that breaks its promise, and the generation ends") {
  job_of job(3);
  job.start(1'000'000, {5'000, 1'000});
  job.pass(200'000'000);
  REQUIRE(job.steady() == "ring");
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  actors::lease_reply m;
  m.key = tuning::size_bucket::of(4096).index();
  m.known = 1000;  // more entries than the log has
  static_cast<void>(mail_of(job, 2).send(0, number_of(job.end(0).declaration().id(), actors::part::coordinator),
                                         job.end(0).leases().generation(), m));
  job.pass(100'000'000);
  REQUIRE(broken.size() == 1);
  check_breach(broken[0], "S7", 0, 2);
  CHECK(job.end(0).lease_coordinator()->statistics().broken_promises == 1);
  for (const auto& log : job.logs)
    CHECK(is(log.outcomes.back(), {.code = errc::closed, .quotes = "rank 2 broke its promise (S7)"}));
}
