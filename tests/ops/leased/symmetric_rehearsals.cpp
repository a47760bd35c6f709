// Rehearsals of ops without headers, during calls and between them: candidates that fail or hang in one, members that are late or leave.
#include <parley/tests/ops/leased/symmetric_job.hpp>
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/error.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/symmetric.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::symmetric_jobs;

TEST_CASE("rehearsals between calls never overlap a call of the user, and hold up one call on every member") {
  for (const trials how : {trials::between_calls, trials::rehearsed}) {
    CAPTURE(static_cast<int>(how));
    job_of job(3, three(), how, roomy());
    job.start(4000, {5'000, 3'000});
    job.finish();
    expect_ring(job);
    CHECK((job.lib.book->together() == 0) == (how == trials::between_calls));  // counts calls during rehearsals
    for (rank_id r = 0; r < 3; ++r) {
      const auto& seen = job.end(r).leases().statistics();
      CHECK(seen.rehearsal_stops == (how == trials::between_calls ? 1 : 0));
      CHECK(seen.gates_met == 0);
    }
    CHECK((job.campaign()->cost_ns() > 0) == (how == trials::between_calls));
    CHECK(ran_on(*job.lib.places[0]).size() == 2);  // no trial ran on the user's calls
  }
}

TEST_CASE("a rehearsal that fails or hangs on one member excludes its candidate alone, during calls and between them") {
  enum class fault { fails, hangs };
  for (const auto& [what, how] :
       {std::pair(fault::fails, trials::between_calls), std::pair(fault::hangs, trials::between_calls),
        std::pair(fault::fails, trials::rehearsed), std::pair(fault::hangs, trials::rehearsed)}) {
    CAPTURE(static_cast<int>(what));
    CAPTURE(static_cast<int>(how));
    auto configs = three();
    algorithm_traits bad{.takes_ns = 20'000};
    if (what == fault::hangs) {
      bad.stalls = [](const symmetric_call& c) -> time_ns {
        return c.on == symmetric_call::stream::rehearsal && c.self == 2 ? 1'000'000'000'000 : 0;
      };
    } else {
      bad.fails_on = 1;
      bad.fails_in_rehearsals = true;
    }
    configs[1] = std::make_shared<algorithm>("ring", bad);
    job_of job(3, configs, how, roomy());
    job.start(4000, {600'000, 3'000});
    job.finish();
    job.pass(30'000'000'000);
    job.start(30'000, {600'000, 3'000});
    job.finish();
    CHECK(job.failed() == 0);
    CHECK(job.lib.mismatches() == 0);
    CHECK((job.lib.book->together() == 0) == (how == trials::between_calls));
    CHECK(job.steady() == "tree");
    REQUIRE(job.campaign()->excluded().size() == 1);
    CHECK(job.campaign()->excluded()[0].why.find("its rehearsal failed on rank ") != std::string::npos);
    // N4: calls waited for the rehearsal that hung. The budget is charged for that wait, although no trial measured it.
    const bool held_calls_up = what == fault::hangs && how == trials::between_calls;
    CHECK((job.end(0).assigned()->control_ns() >= 5'000'000'000) == held_calls_up);
  }
}

TEST_CASE("a size without further calls keeps no other size from rehearsing, and a program that ends waits for no "
          "rehearsal") {
  job_of job(3, three(), trials::between_calls, roomy());
  job.start(3, {5'000, 1'000}, {64});
  job.finish();
  job.start(4000, {500'000, 1'000}, {4096});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.lib.book->together() == 0);
  CHECK(job.steady(4096) == "ring");
  CHECK(job.steady(64) == "library");
  for (rank_id r = 0; r < 3; ++r) CHECK(!job.end(r).owes_messages());
  job.start(100, {500'000, 1'000}, {64});  // calls of this size start again
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady(64) == "ring");
}

TEST_CASE("when any member leaves during a search, no rehearsal is left in which the others would wait for it") {
  for (const rank_id first : {0U, 2U}) {
    for (const trials how : {trials::rehearsed, trials::between_calls}) {
      CAPTURE(first);
      CAPTURE(static_cast<int>(how));
      job_of job(3, three(), how, roomy());
      job.start(2, {5'000, 1'000});
      job.finish();
      REQUIRE(job.winner().empty());
      const time_ns before = job.clock.now();
      runtime::run(job.clock, job[first].settle(1s));
      CHECK(job.clock.now() - before < 100'000'000);
      const auto rehearsals = [&] {
        std::size_t begun = 0;
        for (const auto& place : job.lib.places) {
          for (const auto& [at, m] : place->meetings()) {
            ++begun;
            CHECK(m.entered == 3);
          }
        }
        return begun;
      };
      const std::size_t all = rehearsals();
      job.pass(1'000'000'000);
      CHECK(rehearsals() == all);
      for (rank_id r = 0; r < 3; ++r) CHECK(!job.end(r).owes_messages());
      // The member that left makes calls again, and its first message about that is lost.
      int losses = 1;
      job.links.options().lose = [&](rank_id from, rank_id to, link::channel on) {
        return from == first && to == 0 && on == link::channel::control && losses-- > 0;
      };
      job.start(4000, {500'000, 1'000});
      job.finish();
      CHECK(job.failed() == 0);
      CHECK(job.steady() == "ring");
    }
  }
}

TEST_CASE("a member leaves within its time limit even if its op's leader cannot reach it") {
  job_of job(3, three(), trials::rehearsed, roomy());
  job.start(2);
  job.finish();
  job.links.options().lose = [](rank_id from, rank_id to, link::channel) { return from == 0 && to == 2; };
  const time_ns before = job.clock.now();
  runtime::run(job.clock, job[2].settle(1s));
  CHECK(job.clock.now() - before >= 1'000'000'000);
  CHECK(job.clock.now() - before < 1'100'000'000);
}

TEST_CASE("a call that waits too long for rehearsals times out, and says that it waited for them") {
  auto configs = three();
  configs[1] = std::make_shared<algorithm>(
      "ring", algorithm_traits{.takes_ns = 20'000, .stalls = [](const symmetric_call& c) -> time_ns {
                                 return c.on == symmetric_call::stream::rehearsal && c.self == 2 ? 1'000'000'000'000
                                                                                                 : 0;
                               }});
  job_of job(3, configs, trials::between_calls, roomy(), {}, {}, 1'000'000'000);
  job.start(4000, {600'000, 3'000});
  job.finish();
  CHECK(job.failed() != 0);
  for (const auto& log : job.logs) {
    for (const auto& o : log.outcomes) {
      if (o) continue;
      CHECK(is(o, {.code = errc::timeout,
                   .unmet = awaited::rehearsals,
                   .own_bytes = 4096,
                   .quotes = "it waited for the rehearsals that all members make before this call"}));
    }
  }
  CHECK(job.lib.mismatches() == 0);
}

TEST_CASE(
    "a config whose rehearsal fails on one member is left out, and the others are tried on another communicator") {
  auto configs = three();
  configs.push_back(std::make_shared<algorithm>(
      "broken", algorithm_traits{.takes_ns = 5'000, .fails_on = 1, .fails_in_rehearsals = true}));
  job_of job(3, configs);
  job.start(8000, {300'000, 1'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.steady() == "ring");
  CHECK(job.end(0).lease_coordinator()->statistics().failed_rounds == 1);
  const auto& errors = job.end(0).coordinator()->warm_errors;
  REQUIRE(errors.size() == 1);
  CHECK(errors[0].find("rank 1: ") == 0);
  CHECK(errors[0].find("out of registers") != std::string::npos);
}

TEST_CASE("a config is blamed for its own rehearsal alone, even if the member on which it failed is heard last") {
  for (const rank_id fails_on : {0U, 1U, 2U}) {
    CAPTURE(fails_on);
    auto configs = three();
    configs.insert(
        configs.begin() + 1,
        std::make_shared<algorithm>(
            "broken", algorithm_traits{.takes_ns = 5'000, .fails_on = fails_on, .fails_in_rehearsals = true}));
    job_of job(3, configs);
    time_ns failed_ns = never;
    job.links.options().lose = [&](rank_id from, rank_id, link::channel on) {
      if (std::any_of(job.lib.places.begin(), job.lib.places.end(), [](const auto& p) { return p->aborted(); }))
        failed_ns = std::min<time_ns>(failed_ns, job.clock.now());
      return on == link::channel::control && from == fails_on && failed_ns != never &&
             job.clock.now() - failed_ns < 1'000'000'000;
    };
    job.start(8000, {300'000, 1'000});
    job.finish();
    CHECK(job.failed() == 0);
    CHECK(job.steady() == "ring");
    CHECK(failed_ns != never);
    REQUIRE(job.campaign()->excluded().size() == 1);
    CHECK(job.campaign()->excluded()[0].why.find("broken: ") == 0);
    CHECK(job.campaign()->excluded()[0].why.find("out of registers") != std::string::npos);
  }
}

namespace {
/// A config in which no member waits for another one.
class on_its_own final : public symmetric_config {
 public:
  on_its_own(const char* name, time_ns takes_ns, bool fails_on_the_first)
      : symmetric_config({.name = name, .wire_class = name}), takes_ns_(takes_ns), fails_(fails_on_the_first) {}
  task<> run(symmetric_call call, std::span<std::byte>) const override {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(takes_ns_));
    if (!slept) raise(slept.reason());
    if (fails_ && call.self == 0 && call.on == symmetric_call::stream::rehearsal)
      raise({errc::unavailable, "out of registers"});
  }

 private:
  time_ns takes_ns_;
  bool fails_;
};
}  // namespace

TEST_CASE("a member that reaches the rehearsals late causes no second failed round and excludes no other config") {
  job_of job(3,
             {std::make_shared<on_its_own>("library", 40'000, false),
              std::make_shared<on_its_own>("broken", 5'000, true), std::make_shared<on_its_own>("ring", 20'000, false)},
             trials::between_calls, roomy(), {}, {}, 100'000'000'000);
  job.start_on(0, 5000, {20'000'000, 3'000});
  job.start_on(1, 5000, {20'000'000, 3'000});
  const auto late = [](job_of& all) -> task<> {
    auto slept = co_await sleep_until(all.clock.deadline_in(40'000'000'000));
    if (slept) all.start_on(2, 5000, {20'000'000, 3'000});
  };
  job.calls->spawn(late(job));
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady() == "ring");
  REQUIRE(job.campaign()->excluded().size() == 1);
  CHECK(job.campaign()->excluded()[0].why.find("broken: ") == 0);
  CHECK(job.end(0).lease_coordinator()->statistics().failed_rounds == 1);
}

namespace {
/// The first `times` rehearsals of this config on rank `on` take 6 s, which is too long.
symmetric_config_ptr stalled(const std::string& name, time_ns takes_ns, rank_id on, int times) {
  auto left = std::make_shared<int>(times);
  return std::make_shared<algorithm>(
      name, algorithm_traits{.takes_ns = takes_ns, .stalls = [left, on](const symmetric_call& call) -> time_ns {
                               if (call.on != symmetric_call::stream::rehearsal || call.self != on || *left == 0)
                                 return 0;
                               --*left;
                               return 6'000'000'000;
                             }});
}
}  // namespace

TEST_CASE("a member that is late in one rehearsal says nothing about the config") {
  for (const char* late : {"library", "ring"}) {
    CAPTURE(late);
    auto configs = three();
    const std::size_t at = std::string_view(late) == "library" ? 0 : 1;
    configs[at] = stalled(late, at == 0 ? 10'000 : 20'000, 1, 1);
    job_of job(3, configs);
    job.start(8000, {3'000'000, 1'000});
    job.finish();
    CHECK(job.failed() == 0);
    CHECK(job.lib.mismatches() == 0);
    CHECK(job.steady() == late);  // the fastest
    CHECK(job.campaign()->excluded().empty());
  }
}

TEST_CASE("a config whose rehearsal hangs repeatedly is excluded, but the default stays") {
  for (const char* late : {"library", "ring"}) {
    CAPTURE(late);
    auto configs = three();
    const std::size_t at = std::string_view(late) == "library" ? 0 : 1;
    configs[at] = stalled(late, 20'000, 1, 1'000'000);
    job_of job(3, configs);
    job.start(12'000, {3'000'000, 1'000});
    job.finish();
    CHECK(job.failed() == 0);
    CHECK(job.lib.mismatches() == 0);
    CHECK(job.steady() == (at == 0 ? "library" : "tree"));
    if (at == 1) CHECK(job.campaign()->excluded().size() == 1);
  }
}

TEST_CASE("without a communicator for rehearsals the default stays, and an error says why") {
  job_of job(3);
  std::string why = "no more communicators";
  SUBCASE("a member refuses") { job.sources[1]->refuse = true; }
  SUBCASE("a member makes none and does not say so") {
    job.sources[1]->makes_none = true;
    why = "its communicator_source returned no communicator";
  }
  job.start(4000, {600'000, 1'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.winner() == "library");
  CHECK(job.steady() == "library");
  const auto& errors = job.end(0).coordinator()->warm_errors;
  REQUIRE(!errors.empty());
  CHECK(errors[0].find("rank 1: ") != std::string::npos);
  CHECK(errors[0].find(why) != std::string::npos);
}

TEST_CASE("after a burst of calls over a slow link a round between calls begins within a few hundred calls") {
  memory_link_options slow;
  slow.latency_ns = 20'000'000;
  job_of job(2, three(), trials::between_calls, roomy(), std::move(slow));
  job.start(40, {0, 0});
  job.finish();
  for (auto& l : job.logs) l.outcomes.clear();
  job.start(400, {100'000'000, 1'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.end(1).leases().statistics().rehearsal_stops != 0);
  CHECK(job.steady() == "ring");
}
