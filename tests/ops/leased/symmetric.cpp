#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <list>
#include <optional>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

std::vector<symmetric_config_ptr> three() {
  return {takes("library", 40'000), takes("ring", 20'000), takes("tree", 30'000)};
}

struct member_log {
  std::vector<result<>> outcomes;
  std::size_t failed() const {
    return static_cast<std::size_t>(std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) { return !o; }));
  }
};

struct pace {
  time_ns between_ns = 5'000;
  std::uint64_t jitter_ns = 0;
};

task<> call_often(symmetric op, executor& ex, std::vector<std::size_t> sizes, std::size_t times, pace p,
                  random_stream dice, member_log& log) {
  std::vector<std::byte> data(1 << 16);
  for (std::size_t i = 0; i < times; ++i) {
    const auto extra = static_cast<time_ns>(p.jitter_ns == 0 ? 0 : dice.below(p.jitter_ns));
    auto slept = co_await sleep_until(ex.deadline_in(p.between_ns + extra));
    if (!slept) co_return;
    auto part = std::span(data).first(sizes[i % sizes.size()]);
    auto outcome = co_await attempt(op.run(part));
    log.outcomes.push_back(outcome);
    if (!outcome && outcome.code() != errc::config_failed && outcome.code() != errc::timeout) co_return;
  }
}

/// Trials need not be earned first.
rank_settings roomy() {
  rank_settings s;
  s.plan.budget_fraction = 100;
  return s;
}

enum class trials { rehearsed, between_calls, on_calls };

/// A job of `n` ranks that call one op.
struct job_of : world {
  explicit job_of(rank_id n, const std::vector<symmetric_config_ptr>& configs = three(), trials how = trials::rehearsed,
                  const rank_settings& settings = {}, memory_link_options o = {}, const std::string& results = {},
                  time_ns timeout_ns = 30'000'000'000, const machines& of = {})
      : world(n, settings, std::move(o), of), lib(clock, n), logs(n) {
    for (rank_id r = 0; r < n && !results.empty(); ++r) {
      disk[r].files[settings.results_path] = results;
      ranks[r].reset();
      ranks[r] = std::make_unique<rank>(
          rank_foundation{clock, links[r], &disk[r], std::vector<std::uint64_t>(n, 1000), {}}, settings);
    }
    const auto users = lib.make();
    for (rank_id r = 0; r < n; ++r) {
      symmetric_op op;
      op.name = "gradients";
      op.configs = configs;
      op.timeout_ns = timeout_ns;
      if (settings.allowed.compare_trials) op.dtype = "f32";
      op.over = std::make_shared<library_communicator>(users);
      sources.push_back(std::make_shared<library_source>(lib));
      sources.back()->beside = how == trials::rehearsed;
      if (how != trials::on_calls) op.rehearse = sources.back();
      handles.push_back(ranks[r]->declare(op));
    }
    calls.emplace(clock);
  }
  ~job_of() { calls.reset(); }

  void start(std::size_t times, pace p = {}, const std::vector<std::size_t>& sizes = {4096}) {
    for (rank_id r = 0; r < handles.size(); ++r) start_on(r, times, p, sizes);
  }
  void start_on(rank_id r, std::size_t times, pace p = {}, std::vector<std::size_t> sizes = {4096}) {
    calls->spawn(call_often(handles[r], clock, std::move(sizes), times, p, random_stream(7, r), logs[r]));
  }
  void finish() {
    const auto all = [](scope& s) -> task<> { co_await s.join(); };
    runtime::run(clock, all(*calls));
  }
  void pass(time_ns span) {
    const auto sleep = [](time_ns until) -> task<> {
      auto woken = co_await sleep_until(until);
      static_cast<void>(woken);
    };
    runtime::run(clock, sleep(clock.deadline_in(span)));
  }
  symmetric_end& end(rank_id r) { return handles[r].end(); }
  const actors::search* campaign(std::uint64_t bytes = 4096) { return end(0).assigned()->find(bytes); }
  std::string winner(std::uint64_t bytes = 4096) {
    const auto* c = campaign(bytes);
    return c == nullptr || !c->is_decided() ? "" : c->chosen().config;
  }
  /// What runs for ever by the log, as the leader has it.
  std::string steady(std::uint64_t bytes = 4096) {
    const auto* log = end(0).lease_coordinator()->log_of(bytes);
    if (log == nullptr) return "";
    const auto index = end(0).participant().configs.find(log->tail());
    return end(0).participant().configs[*index].id;
  }
  std::uint64_t gates_met() {
    std::uint64_t n = 0;
    for (rank_id r = 0; r < handles.size(); ++r) n += end(r).leases().statistics().gates_met;
    return n;
  }
  std::size_t failed() const {
    std::size_t n = 0;
    for (const auto& l : logs) n += l.failed();
    return n;
  }
  std::size_t done() const {
    std::size_t n = 0;
    for (const auto& l : logs) n += l.outcomes.size();
    return n;
  }

  library lib;
  std::vector<std::shared_ptr<library_source>> sources;
  std::vector<symmetric> handles;
  std::vector<member_log> logs;
  std::optional<scope> calls;
};

/// When rehearsals ended and calls began, how many were to run on nothing, and how many began though their rank was fenced.
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
    if (call.over == nullptr) {
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

/// What two members run of an op until they are fenced at `when`, `hops` turns after all else that happens then. `prepare`
/// begins the calls.
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

/// Everything that ran on a communicator.
std::set<std::uint64_t> ran_on(const meeting_place& place) {
  std::set<std::uint64_t> all;
  for (const auto& [at, m] : place.meetings()) all.insert(m.digests.begin(), m.digests.end());
  return all;
}

/// All calls went well, every member ran the same, and the fastest candidate is what runs from now on.
void expect_ring(job_of& job) {
  CHECK(job.failed() == 0);
  CHECK(job.winner() == "ring");
  CHECK(job.steady() == "ring");
  CHECK(job.lib.mismatches() == 0);
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

TEST_CASE("members rehearse, agree by lease and never run one invocation with different configs") {
  for (const rank_id n : {1U, 2U, 3U, 8U}) {
    CAPTURE(n);
    job_of job(n);
    job.start(4000, {5'000, 3'000});
    job.finish();
    expect_ring(job);
    CHECK(job.done() == 4000 * n);
    CHECK(job.gates_met() == 0);
    // The user's communicator has seen the default, then the winner, and no trial.
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

/// What 2,000 calls of each member send, once nothing of before is under way.
std::uint64_t control_messages_of_calls(job_of& job) {
  job.pass(2'000'000'000);
  const std::uint64_t before = control_messages(job);
  job.start(2000, {5'000, 3'000});
  job.finish();
  return control_messages(job) - before;
}
}  // namespace

TEST_CASE("what the flight recorder writes names leased ops and their configs, and says why one won") {
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
  const auto decision = text.find("{\"op\":\"" + title + "\",\"key\":\"4KiB\",\"config\":\"ring\"");
  REQUIRE(decision != std::string::npos);
  CHECK(text.find("\"ranks\":[{\"rank\":0,\"time_ns\":", decision) != std::string::npos);
  CHECK(text.find(job[1].decisions().front().decision.why, decision) != std::string::npos);
}

TEST_CASE("after the decision a call costs no message") {
  job_of job(4);
  job.start(2000, {5'000, 3'000});
  job.finish();
  REQUIRE(job.steady() == "ring");
  CHECK(control_messages_of_calls(job) == 0);
  CHECK(job.failed() == 0);
}

TEST_CASE("an algorithm that has become slow is searched for anew, and until then nothing is sent") {
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

TEST_CASE("without rehearsals the trials are leased: one schedule, which falls back by itself, and one decision") {
  for (const rank_id n : {1U, 2U, 5U}) {
    CAPTURE(n);
    job_of job(n, three(), trials::on_calls);
    job.start(4000, {5'000, 3'000});
    job.finish();
    expect_ring(job);
    CHECK(job.gates_met() == 0);
    const auto& s = job.end(0).lease_coordinator()->statistics();
    CHECK(s.campaigns == 2);  // N2
    CHECK(s.aborted == 0);
    CHECK(s.rounds == 0);
    CHECK(ran_on(*job.lib.places[0]).size() == 3);  // trials and all
  }
}

TEST_CASE(
    "members whose clocks are seconds apart and drift decide as on one clock, wherever their candidates are tried") {
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
      // What a rank has noted of its calls is by its own clock, too.
      for (const auto& noted : job[1].flight().in_order()) CHECK(noted.began_ns >= 7 * second);
    }
  }
}

TEST_CASE("rehearsals between calls run beside no call of the user's, and the call that waits for them is the same "
          "everywhere") {
  for (const trials how : {trials::between_calls, trials::rehearsed}) {
    CAPTURE(static_cast<int>(how));
    job_of job(3, three(), how, roomy());
    job.start(4000, {5'000, 3'000});
    job.finish();
    expect_ring(job);
    CHECK((job.lib.book->together() == 0) == (how == trials::between_calls));  // the book can tell
    for (rank_id r = 0; r < 3; ++r) {
      const auto& seen = job.end(r).leases().statistics();
      CHECK(seen.rehearsal_stops == (how == trials::between_calls ? 1 : 0));
      CHECK(seen.gates_met == 0);
    }
    CHECK((job.campaign()->cost_ns() > 0) == (how == trials::between_calls));
    CHECK(ran_on(*job.lib.places[0]).size() == 2);  // no trial on the user's calls
  }
}

TEST_CASE("a rehearsal that fails or hangs on one member costs that candidate alone, wherever it is made") {
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
    // N4: what calls waited for, though it was measured by nobody.
    const bool held_calls_up = what == fault::hangs && how == trials::between_calls;
    CHECK((job.end(0).assigned()->control_ns() >= 5'000'000'000) == held_calls_up);
  }
}

TEST_CASE("a size whose calls have ended keeps no other from being rehearsed, and a program that ends waits for no "
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
  job.start(100, {500'000, 1'000}, {64});  // the size comes back
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady(64) == "ring");
}

TEST_CASE("whichever member leaves first, in the middle of a search, no rehearsal is left that the others would wait "
          "for it in") {
  for (const rank_id first : {0U, 2U}) {
    for (const trials how : {trials::rehearsed, trials::between_calls}) {
      CAPTURE(first);
      CAPTURE(static_cast<int>(how));
      job_of job(3, three(), how, roomy());
      job.start(2, {5'000, 1'000});
      job.finish();
      REQUIRE(job.winner().empty());
      const time_ns before = job.clock.now();
      runtime::run(job.clock, job[first].settle(1'000'000'000));
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
      // It has thought better of it, and its first word of that is lost.
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

TEST_CASE("a member leaves in its time where the leader of its op does not let it go") {
  job_of job(3, three(), trials::rehearsed, roomy());
  job.start(2);
  job.finish();
  job.links.options().lose = [](rank_id from, rank_id to, link::channel) { return from == 0 && to == 2; };
  const time_ns before = job.clock.now();
  runtime::run(job.clock, job[2].settle(1'000'000'000));
  CHECK(job.clock.now() - before >= 1'000'000'000);
  CHECK(job.clock.now() - before < 1'100'000'000);
}

TEST_CASE("a call that waits for a rehearsal ends in its time, and says for what it waited") {
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

TEST_CASE("each size has a log of its own, and calls keep their order across sizes") {
  job_of job(3);
  job.start(6000, {2'000, 6'000}, {64, 4096, 60'000});
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  for (const std::uint64_t bytes : {64U, 4096U, 60'000U}) CHECK(job.steady(bytes) == "ring");
}

TEST_CASE("lost, late and overtaking control messages cost time, never a mismatch") {
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

TEST_CASE("a schedule that is late holds calls at the gate, in order, until it is here") {
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

// Which messages of the decision's campaign are lost, as often as `times`.
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

TEST_CASE("a campaign that a participant does not join in time is aborted, and tried again") {
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

TEST_CASE("a call whose config waits too long for another member says what that one does") {
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
  paired_transfer acts;
  acts.name = "acts";
  acts.edges = {{0, 1}, {1, 0}, {0, 2}};
  std::vector<transfer> ends;
  for (rank_id r = 0; r < 3; ++r) ends.push_back(job.ranks[r]->declare(acts));
  std::vector<std::byte> other(8);
  SUBCASE("which waits in another call") {
    job.calls->spawn(receive(ends[2], other));
    for (const rank_id r : {0U, 1U}) job.calls->spawn(call(job.handles[r], data, outcomes[r]));
    job.pass(5'000'000'000);
    for (const rank_id r : {0U, 1U}) {
      CHECK(is(outcomes[r],
               {.code = errc::timeout, .rank = r, .invocation = 0, .unmet = awaited::config, .config = "library"}));
      const std::string text = outcomes[r].reason().what();
      CAPTURE(text);
      // Who waits in the same call is named after who does not.
      CHECK(says(outcomes[r],
                 "; rank 2 has made 0 calls of it of that size; it waits in: receive of acts 0->2, call 0, tag 7, "));
      CHECK(says(outcomes[r], "; rank " + std::to_string(1 - r) +
                                  " has made 1 calls of it of that size; it waits in: call of gradients"));
      CHECK(text.find("; rank 2 has made") < text.find("; rank " + std::to_string(1 - r) + " has made"));
    }
  }
  SUBCASE("which has not declared the op") {
    symmetric_op alone{.name = "alone",
                       .members = {0, 1},
                       .configs = three(),
                       .over = std::make_shared<library_communicator>(job.lib.make()),
                       .timeout_ns = 4'000'000'000};
    const symmetric only = job.ranks[0]->declare(alone);
    job.calls->spawn(call(only, data, outcomes[0]));
    job.pass(5'000'000'000);
    CHECK(outcomes[0].code() == errc::timeout);
    CHECK(says(outcomes[0], "; rank 1 has not declared this op"));
  }
}

TEST_CASE("a call that waits at a gate too long ends as timeout, which says for whom, and the next ones go on") {
  rank_settings settings;
  settings.flight_dir = "box";
  job_of job(3, three(), trials::rehearsed, settings);
  auto& coordinator = *job.end(0).lease_coordinator();
  bool silent = true;
  bool schedule = false;
  SUBCASE("somebody has not promised") {}
  SUBCASE("the schedule does not come") { schedule = true; }
  job.links.options().lose = [&](rank_id from, rank_id to, link::channel on) {
    if (on != link::channel::control || !silent || coordinator.statistics().campaigns == 0) return false;
    return schedule ? to == 1 && coordinator.statistics().scheduled != 0 : from == 2;
  };
  for (rank_id r = 0; r < 3; ++r) job.start_on(r, 1'000'000, {200'000, 0});
  while (job.end(1).leases().statistics().gates_met == 0) job.pass(1'000'000);
  job.pass(200'000'000);
  std::vector<std::byte> data(4096);
  const auto late = [](symmetric op, std::span<std::byte> d, result<>& into) -> task<> {
    auto outcome = co_await attempt(op.run(d, {.timeout_ns = 100'000'000}));
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
  CHECK(said.find(schedule ? "; rank 0 has not answered in 25 ms what it does"
                           : "; rank 2 has not answered in 25 ms what it does") != std::string::npos);
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

TEST_CASE("when a member dies, at whatever step, every call of the others ends with its name") {
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

TEST_CASE("a config whose rehearsal fails on one member is left out, and the rest goes on over another communicator") {
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

TEST_CASE("a config is blamed for its own rehearsal alone, also where the member that it failed on is heard last") {
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
/// No member waits for another one in it.
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

TEST_CASE(
    "a member that has yet to come to the call before which all rehearse has not failed there before another one") {
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
/// Of every rehearsal of one config on one rank: the first `times` take too long.
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

TEST_CASE("a config whose rehearsal hangs again is out, and a default that does stays") {
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
  // Half of the default more is what is foreseen of a candidate that nobody has measured.
  job_of job(3, {takes("library", 40'000), takes("slow", 60'000), takes("slower", 61'000)}, trials::on_calls, settings);
  job.start(20'000, {50'000, 1'000}, {64, 256, 1024, 4096, 16'384, 65'536});
  job.finish();
  CHECK(job.failed() == 0);
  double lost_ns = 0;
  for (const auto& c : job.end(0).assigned()->searches()) lost_ns += c->cost_ns();
  CHECK(lost_ns > 0);
  CHECK(lost_ns <= 0.00125 * static_cast<double>(job.clock.now()));
}

TEST_CASE("without a communicator to rehearse on the default stays, and it is said why") {
  job_of job(3);
  std::string why = "no more communicators";
  SUBCASE("a member refuses") { job.sources[1]->refuse = true; }
  SUBCASE("a member makes none and does not say so") {
    job.sources[1]->makes_none = true;
    why = "its communicator_source has made no communicator";
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

TEST_CASE("a coordinator that threw begins again from the state of the op") {
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

TEST_CASE("a coordinator that throws now and then goes on as long as it gets further in between") {
  auto configs = three();
  for (const char* name : {"first", "second", "third", "fourth", "fifth"})
    configs.push_back(std::make_shared<algorithm>(
        name, algorithm_traits{.takes_ns = 20'000, .fails_on = 1, .fails_in_rehearsals = true}));
  job_of job(3, configs);
  job.sources[0]->every_other_throws = true;  // each round that fails asks for another communicator
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

TEST_CASE("where a coordinator throws again and again tuning of the op ends, says why, and closes no gate") {
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
  CHECK(job[0].warnings()[1].find("its tuning has ended") != std::string::npos);
  CHECK(job.sources[0]->throws == 1'000'000 - 4);
}

TEST_CASE("when the log is lost the generation ends everywhere, and members that rejoin count from 0") {
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

TEST_CASE("what members rehearsed over is given up with its generation, and the next one connects all of them anew") {
  for (const bool one_is_late : {false, true}) {
    CAPTURE(one_is_late);
    job_of job(3);
    bool held = one_is_late;
    job.links.options().lose = [&](rank_id, rank_id to, link::channel on) {
      return held && on == link::channel::control && to == 2 && job.lib.places.size() > 1;
    };
    for (rank_id r = 0; r < 3; ++r) job.start_on(r, 1'000'000, {5'000, 1'000});
    if (one_is_late) {  // two are in the first run, and the third knows nothing of it
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

TEST_CASE("a member that loses another, or is fenced, once its generation has ended does not rejoin as if it had not") {
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

TEST_CASE("calls of several sizes that are cancelled together while the first waits at a gate end all at once") {
  bool below = false;  // the second one, in a scope of its own below that of both
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

TEST_CASE("after a burst of calls over a slow link a round between calls is not far ahead") {
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

TEST_CASE("a call that is let through a gate just before its op ends begins nothing") {
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

namespace {
/// What this rank sends with it is believed to be its own.
router& mail_of(job_of& job, rank_id r) { return const_cast<router&>(job.ranks[r]->mail()); }

/// Rank 1 gets one entry of the log for 4 KiB as if the leader, rank 0, had appended it after `after` others.
void forge_entry(job_of& job, std::uint64_t after, const actors::lease_entry& entry) {
  actors::lease_schedule m;
  m.key = tuning::size_bucket::of(4096).index();
  m.after = after;
  m.entries.push_back(entry);
  const auto& leader = job.end(0);
  static_cast<void>(mail_of(job, 0).send(1, number_of(leader.declaration().id(), actors::part::participant),
                                         leader.leases().generation(), m));
}
}  // namespace

namespace {
void check_breach(const breach& b, std::string_view name, rank_id on, rank_id by) {
  CHECK(b.name == name);
  CHECK(b.where.rank == on);
  CHECK(b.culprit == by);
}
}  // namespace

TEST_CASE("a leader that contradicts its own log is named by whoever hears it, and calls there end at once") {
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

TEST_CASE("a lease for what was never warmed is its leader's breach, and the call that it covers does not run it") {
  job_of job(3);
  job.start(1'000'000, {5'000, 1'000});
  job.pass(200'000'000);
  REQUIRE(job.steady() == "ring");
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  // What the member knows by then tells the leader's own coordinator that somebody wrote into its log.
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

TEST_CASE("a member that goes back on its promise is named by the leader, and the generation ends") {
  job_of job(3);
  job.start(1'000'000, {5'000, 1'000});
  job.pass(200'000'000);
  REQUIRE(job.steady() == "ring");
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  actors::lease_reply m;
  m.key = tuning::size_bucket::of(4096).index();
  m.known = 1000;  // what was never written
  static_cast<void>(mail_of(job, 2).send(0, number_of(job.end(0).declaration().id(), actors::part::coordinator),
                                         job.end(0).leases().generation(), m));
  job.pass(100'000'000);
  REQUIRE(broken.size() == 1);
  check_breach(broken[0], "S7", 0, 2);
  CHECK(job.end(0).lease_coordinator()->statistics().broken_promises == 1);
  for (const auto& log : job.logs)
    CHECK(is(log.outcomes.back(), {.code = errc::closed, .quotes = "rank 2 went back on what it had promised (S7)"}));
}

TEST_CASE("calls that overlap start in their order on every member, gates or not") {
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

TEST_CASE("what a results file remembers is rehearsed once and scheduled without trials") {
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

TEST_CASE("declarations that cannot work say so") {
  world w(3);
  symmetric_op op;
  op.name = "gradients";
  const auto refused = [&](symmetric_op o, std::string_view why) {
    try {
      w[1].declare(std::move(o));
    } catch (const failure& f) {
      INFO(f.what());
      return std::string(f.what()).find(why) != std::string::npos;
    }
    return false;
  };
  CHECK(refused(op, "empty catalogue"));
  op.configs = {takes("a", 1), nullptr};
  CHECK(refused(op, "config 1 of its catalogue is null"));
  op.configs = three();
  op.members = {0, 3};
  CHECK(refused(op, "member 3 is outside the world"));
  op.members = {1, 1};
  CHECK(refused(op, "listed twice"));
  op.members = {0, 2};
  auto idle = w[1].declare(op);
  CHECK(idle.idle());
  CHECK_THROWS_AS(static_cast<void>(idle.end()), failure);
  static_cast<void>(w[0].declare(op));
  CHECK_THROWS_AS(static_cast<void>(w[0].declare(op)), failure);
}

TEST_CASE("members that list each other in another order, follow another leader or list another default are told so "
          "with both") {
  struct {
    std::vector<rank_id> first, others;
    errc code;
    std::string_view ours, theirs;
  } const cases[] = {
      {{0, 1, 2}, {1, 0, 2}, errc::role_conflict, "leader rank 0", "leader rank 1"},
      {{0, 2, 1}, {0, 1, 2}, errc::declaration_mismatch, "in the order 0 2 1", "scheme lease"},
      {{0, 1, 2}, {0, 1, 2}, errc::declaration_mismatch, "default tree", "default library"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.ours);
    world w(3);
    library lib(w.clock, 3);
    const auto over = lib.make();
    std::vector<symmetric> handles;
    for (rank_id r = 0; r < 3; ++r) {
      symmetric_op op;
      op.name = "gradients";
      op.configs = three();
      if (r == 0 && c.ours == "default tree") std::reverse(op.configs.begin(), op.configs.end());
      op.members = r == 0 ? c.first : c.others;
      op.over = std::make_shared<library_communicator>(over);
      handles.push_back(w[r].declare(op));
    }
    const time_ns began = w.clock.now();
    std::vector<member_log> logs(3);
    {
      scope calls(w.clock);
      for (rank_id r = 0; r < 3; ++r)
        calls.spawn(
            call_often(handles[r], w.clock, {4096}, 5'000, {.between_ns = 1'000'000}, random_stream(7, r), logs[r]));
      const auto all = [](scope& s) -> task<> { co_await s.join(); };
      runtime::run(w.clock, all(calls));
    }
    CHECK(w.clock.now() - began < 5'000'000'000);
    for (rank_id r = 0; r < 3; ++r) {
      REQUIRE(!logs[r].outcomes.empty());
      const auto& last = logs[r].outcomes.back();
      for (const std::string_view said : {c.ours, c.theirs})
        CHECK(is(last, {.code = c.code, .rank = r, .quotes = std::string(said)}));
    }
  }
}

TEST_CASE("4,096 configs are as good as a few, and one more is an error") {
  std::vector<symmetric_config_ptr> many{takes("library", 40'000)};
  while (many.size() < 4'096) many.push_back(takes("ring" + std::to_string(many.size()), 50'000));
  job_of job(2, many);
  job.start(200);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.lib.mismatches() == 0);
  CHECK(job.end(0).assigned()->candidates().size() == 4'096);
  many.push_back(takes("tree", 50'000));
  CHECK_THROWS_AS(job_of(2, many), failure);
}

TEST_CASE("every member of a leased op has its decisions as values, and hears at once when there will be none") {
  job_of job(3);
  std::vector<std::optional<result<decision>>> awaited(3);
  scope waiting(job.clock);
  const auto wait = [](agreement with, std::uint64_t bytes, std::optional<result<decision>>& into) -> task<> {
    auto d = co_await attempt(with.decided(bytes, {.timeout_ns = 600'000'000'000}));
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

TEST_CASE("leased ops are among a rank's agreements, at their leader, and search anew when any member asks") {
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

namespace {

/// Three times its input, but for `off` on rank 2: by so much, relatively.
symmetric_config_ptr triples(std::string name, time_ns takes_ns, float off = 0) {
  algorithm_traits t{.takes_ns = takes_ns};
  t.computes = [off](const symmetric_call& call, std::span<std::byte> data) {
    const float factor = call.self == 2 ? 3 * (1 + off) : 3;
    for (std::size_t at = 0; at + sizeof(float) <= data.size(); at += sizeof(float)) {
      float x = 0;
      std::memcpy(&x, data.data() + at, sizeof x);
      x *= factor;
      std::memcpy(data.data() + at, &x, sizeof x);
    }
  };
  return std::make_shared<algorithm>(std::move(name), std::move(t));
}

rank_settings checked(double rtol) {
  rank_settings s;
  s.allowed.compare_trials = true;
  s.allowed.relative_error = rtol;
  return s;
}

std::vector<symmetric_config_ptr> one_is_off() {
  return {triples("library", 40'000), triples("hasty", 10'000, 1e-3F), triples("ring", 20'000)};
}

}  // namespace

TEST_CASE("a candidate whose numbers are off on one member is out on all of them, by name, before it is timed") {
  const auto configs = one_is_off();
  job_of job(3, configs, trials::rehearsed, checked(1e-4));
  job.start(3000);
  job.finish();
  expect_ring(job);
  const auto* c = job.campaign();
  REQUIRE(c != nullptr);
  REQUIRE(c->excluded().size() == 1);
  CHECK(c->excluded()[0].why.find("on rank 2 its numbers") != std::string::npos);
  CHECK(c->excluded()[0].why.find("its numbers are not the default's: element 0 is ") != std::string::npos);
  CHECK(ran_on(*job.lib.places[0]).count(configs[1]->digest()) == 0);
  for (rank_id r = 0; r < 3; ++r) {
    const auto decisions = job[r].decisions();
    REQUIRE(decisions.size() == 1);
    bool named = false;
    for (const auto& e : decisions[0].decision.evidence) {
      if (e.digest != configs[1]->digest()) continue;
      CHECK(e.repetitions == 0);
      named = e.detail.find("its numbers are not the default's") != std::string::npos;
    }
    CHECK(named);
  }
}

TEST_CASE("numbers that are within the user's tolerance may win, and nothing is compared unless somebody asked") {
  for (const bool asked : {true, false}) {
    CAPTURE(asked);
    job_of job(3, one_is_off(), trials::rehearsed, asked ? checked(1e-2) : rank_settings{});
    job.start(3000);
    job.finish();
    CHECK(job.failed() == 0);
    CHECK(job.winner() == "hasty");
    CHECK(job.campaign()->excluded().empty());
  }
}

TEST_CASE("what results files remember is compared, too, before it runs on the user's communicator") {
  const auto configs = one_is_off();
  std::string results;
  {
    job_of first(3, configs, trials::rehearsed, checked(1e-2));
    first.start(3000);
    first.finish();
    REQUIRE(first.steady() == "hasty");
    results = tuning::write_results(first[0].results());
  }
  REQUIRE(results.find("hasty") != std::string::npos);
  rank_settings s = checked(1e-4);
  s.results_path = "found.csv";
  job_of job(3, configs, trials::rehearsed, s, {}, results);
  job.start(3000);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady() != "hasty");
  CHECK(ran_on(*job.lib.places[0]).count(configs[1]->digest()) == 0);
}

TEST_CASE("an op that cannot compare its candidates runs its default alone, and says what to do") {
  job_of job(2, three(), trials::on_calls, checked(1e-4));
  job.start(500);
  job.finish();
  CHECK(job.failed() == 0);
  CHECK(job.steady() == "library");
  CHECK(ran_on(*job.lib.places[0]).size() == 1);
  for (rank_id r = 0; r < 2; ++r) {
    REQUIRE(job[r].warnings().size() == 1);
    CHECK(job[r].warnings()[0].find("give it a communicator_source") != std::string::npos);
    CHECK(job.end(r).participant().unavailable.size() == 2);
  }
  symmetric_op op;
  op.rehearse = job.sources[0];
  CHECK(why_not_compared(op).find("set symmetric_op::dtype") != std::string::npos);
  op.dtype = "bf16";
  CHECK(why_not_compared(op).empty());
}
