#include <parley/tests/support/cases/mixture_case.hpp>
#include <parley/tests/support/cases/schemes.hpp>
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/groups/group.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/registration.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>
#include <parley/tuning/planners/time_model.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::mixture_case;

namespace {

struct outcome {
  std::string winner;
  std::map<std::string, tuning::aggregate> measured;
  machine_room room;
  std::vector<result<tuning::predicted_time>> foreseen;  // each rank's prediction: h100_optimized on rank 2
};

outcome heterogeneous(const std::string& wire_of_optimized) {
  outcome o;
  world w(4, eager_trials(), {}, {.kinds = {"H100", "H100", "A100", "A100"}});
  collective_options op = led_by(0, {});
  const std::vector<group_config_ptr> configs{
      std::make_shared<timed_star>(o.room, w.clock, "nccl", "wire", everywhere(10'500_us)),
      std::make_shared<timed_star>(o.room, w.clock, "cuda_graph", "wire", everywhere(12'300_us)),
      std::make_shared<timed_star>(o.room, w.clock, "h100_optimized", wire_of_optimized,
                                   std::vector<time_ns>{8'700_us, 8'500_us, 1_s, 1_s})};
  const auto h100 = [](rank_id r) { return std::vector<bool>{true, true, r < 2}; };
  std::vector<collective> groups;
  for (auto& r : w.ranks) groups.push_back(register_heterogeneous_autotuning(*r, op, configs, h100));
  for (int round = 0; round < 5; ++round) {
    const auto all = reduce_all(w, groups, std::vector<std::size_t>(20, 1000));
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    wait_a_while(w, 1_s);
  }
  const auto* c = w[0].agreements().front().assigned->find(4000);
  REQUIRE(c->is_decided());
  o.winner = c->chosen().config;
  const auto& ids = w[0].agreements().front().assigned->ids();
  for (std::size_t i = 0; i < ids.size(); ++i) o.measured[ids[i]] = c->aggregates()[i];
  for (auto& r : w.ranks) o.foreseen.push_back(r->predict("gradients", "h100_optimized", 4000, 2));
  CHECK(w[3].kind_of(0) == "H100");
  CHECK(join_group_flights(w).mismatches == 0);
  CHECK(groups[2].details()->participant().unavailable.size() == 1);
  CHECK(groups[0].details()->participant().unavailable.empty());
  // Every rank files the winner under this combination of device kinds, even where the rank lacks that config.
  for (auto& r : w.ranks) {
    const auto file = r->results();
    const auto filed = file.find_all("gradients/0>1>2>3@");
    REQUIRE(filed.size() == 1);
    CHECK(filed.front()->parameters == "4KiB");
    CHECK(filed.front()->solution == o.winner);
  }
  return o;
}

/// Fails on the ranks at `places`, which no rank knows before the rehearsal.
class breaks_on final : public group_config {
 public:
  breaks_on(std::set<std::size_t> places, group_config_ptr real)
      : group_config(real->identity()), places_(std::move(places)), real_(std::move(real)) {}
  task<> lead(group_call& g) const override { return run(g); }
  task<> work(group_call& g) const override { return run(g); }

 private:
  task<> run(group_call& g) const {
    if (places_.contains(g.self())) throw std::runtime_error("no such instruction");
    if (g.self() == g.leader()) {
      co_await real_->lead(g);
    } else {
      co_await real_->work(g);
    }
  }
  std::set<std::size_t> places_;
  group_config_ptr real_;
};

/// Ranks with results files. nccl is slow on ranks 0 and 1 only.
struct remembering_job {
  explicit remembering_job(std::vector<memory_storage> disks) : w(4, with_files(), {}, {}, std::move(disks)) {}
  void run(const std::vector<bool>& has_h100, const std::set<std::size_t>& breaks = {}) {
    collective_options op = led_by(0, {});
    op.configs = {
        std::make_shared<timed_star>(room, w.clock, "nccl", "wire", std::vector<time_ns>{10_ms, 10_ms, 4_ms, 4_ms}),
        std::make_shared<breaks_on>(
            breaks, std::make_shared<timed_star>(room, w.clock, "h100_optimized", "wire", everywhere(5_ms)))};
    op.can_run = [has_h100](rank_id r) { return std::vector<bool>{true, has_h100[r]}; };
    const auto groups = declare_all(w, op);
    for (int round = 0; round < 5; ++round) {
      CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 1000)).failed() == 0);
      wait_a_while(w, 1_s);
    }
    for (auto& r : w.ranks) CHECK(r->write_results());
  }
  const actors::search& search() { return *w[0].agreements().front().assigned->find(4000); }
  /// The entry that all ranks' files hold now.
  tuning::result_entry filed() {
    std::vector<tuning::result_entry> all;
    for (rank_id r = 0; r < 4; ++r) {
      const auto read = tuning::parse_results(w.disk[r].files.at("results" + std::to_string(r) + ".csv"));
      REQUIRE(read);
      REQUIRE(read->file.entries().size() == 1);
      all.push_back(read->file.entries().front());
      CHECK(all.back() == all.front());
    }
    return all.front();
  }
  static rank_settings with_files() {
    rank_settings s = eager_trials();
    s.results_path = "results.csv";
    return s;
  }
  machine_room room;
  world w;
};

/// The last rank lacks `twin`, with which the other ranks are fast. In its place it can run `fine`, which is listed first, or `coarse`.
struct poor_rank_job : scheme_job {
  explicit poor_rank_job(scheme s) : scheme_job(s, "activations", "fine") {
    mixed = true;
    let_all_have(twin);
    can[poor()][twin] = false;
    configs[fine].takes_ns = {350'000, 350'000, 350'000};
    configs[coarse].takes_ns = {250'000, 250'000, 250'000};
    configs[twin].takes_ns = {90'000, 90'000, 90'000};
  }
  rank_id poor() const { return size - 1; }
  void run_on() {
    for (int round = 0; round < 3; ++round) call(first_calls());
  }
  /// Checks what every rank runs in ten calls: `config` on the poor rank, `twin` on the others.
  void check_that_it_runs(std::size_t config) {
    for (config_state& c : configs) c.runs = {};
    call(10);
    for (rank_id r = 0; r < size; ++r) {
      CAPTURE(r);
      for (std::size_t i = 0; i < configs.size(); ++i)
        CHECK(configs[i].runs[r] == (i == (r == poor() ? config : twin) ? 10 : 0));
    }
  }
};

}  // namespace

TEST_CASE("in one wire class newer ranks run h100_optimized, the others nccl, and the ranks measure that mixture") {
  auto o = heterogeneous("wire");
  // nccl takes 10.5 ms on ranks 2 and 3. Ranks 0 and 1 finish after 8.7 ms and wait for them.
  REQUIRE(o.measured.count("h100_optimized") == 1);
  CHECK(o.measured["h100_optimized"].measured());
  CHECK(o.measured["h100_optimized"].time_ns > 10'500'000);
  CHECK(o.measured["h100_optimized"].time_ns < 10'700'000);
  CHECK(o.measured["cuda_graph"].time_ns > 12'300'000);
  CHECK(o.room.ran["h100_optimized"][0] > 0);
  CHECK(o.room.ran["h100_optimized"][1] == o.room.ran["h100_optimized"][0]);
  CHECK(o.room.ran["h100_optimized"].count(2) == 0);
  CHECK(o.room.ran["h100_optimized"].count(3) == 0);
  CHECK(o.room.ran["nccl"][2] == o.room.ran["nccl"][0] + o.room.ran["h100_optimized"][0]);
  // The mixture is no faster than nccl on all ranks, so the default stays.
  CHECK(o.winner == "nccl");
  // Every rank predicts the same time for a config that rank 2 cannot run. The prediction uses the times of ranks that can run it,
  // and of configs that both kinds of device have run.
  for (const auto& p : o.foreseen) {
    REQUIRE(p);
    CHECK_FALSE(p.value().measured);
    CHECK(p.value().low_ns < p.value().time_ns);
    CHECK(p.value().time_ns > 10'000'000);
    CHECK(p.value().time_ns < 11'000'000);
    CHECK(p.value().high_ns < 1.8 * p.value().low_ns);
    CHECK(p.value().from.find("H100") != std::string::npos);
    CHECK(p.value().time_ns == o.foreseen[0].value().time_ns);
  }
}

TEST_CASE(
    "a prediction counts as measured only if that rank ran that config at that size, and unknown names are refused") {
  machine_room room;
  world w(4, eager_trials());
  collective_options op = led_by(0, {});
  op.configs = {std::make_shared<timed_star>(room, w.clock, "nccl", "wire", everywhere(10_ms)),
                std::make_shared<timed_star>(room, w.clock, "fused", "wire", everywhere(5_ms))};
  op.can_run = [](rank_id r) { return std::vector<bool>{true, r < 2}; };
  CHECK(w[0].predict("gradients", "nccl", 4000, 0).code() == errc::unavailable);  // the op is not declared yet
  const auto groups = declare_all(w, op);
  for (int round = 0; round < 5; ++round) {
    CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 1000)).failed() == 0);
    wait_a_while(w, 1_s);
  }
  for (rank_id r = 0; r < 4; ++r) {
    CAPTURE(r);
    CHECK(w[r].predict("gradients", "nccl", 4000, 2).value().measured);
    CHECK(w[r].predict("gradients", "fused", 4000, 0).value().measured);
    CHECK_FALSE(w[r].predict("gradients", "fused", 4000, 2).value().measured);  // rank 2 ran nccl in its place
    CHECK_FALSE(w[r].predict("gradients", "nccl", 400'000, 2).value().measured);
    CHECK(w[r].predict("gradients", "none", 4000, 2).code() == errc::unavailable);
    CHECK(w[r].predict("nothing", "nccl", 4000, 2).code() == errc::unavailable);
  }
}

TEST_CASE("a mixture that is faster wins, and every rank then runs its own part of it") {
  machine_room room;
  world w(4, eager_trials());
  collective_options op = led_by(0, {});
  // nccl is slow on the first two ranks only.
  const std::vector<group_config_ptr> configs{
      std::make_shared<timed_star>(room, w.clock, "nccl", "wire", std::vector<time_ns>{10_ms, 10_ms, 4_ms, 4_ms}),
      std::make_shared<timed_star>(room, w.clock, "h100_optimized", "wire", everywhere(5_ms))};
  op.configs = configs;
  op.can_run = [](rank_id r) { return std::vector<bool>{true, r < 2}; };
  const auto groups = declare_all(w, op);
  for (int round = 0; round < 5; ++round) {
    CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 1000)).failed() == 0);
    wait_a_while(w, 1_s);
  }
  CHECK(w[0].agreements().front().assigned->find(4000)->chosen().config == "h100_optimized");
  room.ran.clear();
  CHECK(reduce_all(w, groups, {1000, 1000}).failed() == 0);
  CHECK(room.ran["h100_optimized"] == std::map<std::size_t, int>{{0, 2}, {1, 2}});
  CHECK(room.ran["nccl"] == std::map<std::size_t, int>{{2, 2}, {3, 2}});
}

TEST_CASE("a rank on which a variant fails runs its next one, and the ranks warm and measure this mixture") {
  machine_room room;
  world w(4, eager_trials());
  collective_options op = led_by(0, {});
  const auto timed = [&](const std::string& name, time_ns t) {
    return std::make_shared<timed_star>(room, w.clock, name, "wire", everywhere(t));
  };
  op.configs = {
      std::make_shared<timed_star>(room, w.clock, "nccl", "wire", std::vector<time_ns>{10_ms, 10_ms, 4_ms, 4_ms}),
      std::make_shared<breaks_on>(std::set<std::size_t>{2, 3}, timed("h100_optimized", 5_ms)),
      std::make_shared<breaks_on>(std::set<std::size_t>{0, 1, 2, 3}, timed("hopeless", 1_ms))};
  const auto groups = declare_all(w, op);
  for (int round = 0; round < 5; ++round) {
    CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 1000)).failed() == 0);
    wait_a_while(w, 1_s);
  }
  const auto agreed = w[0].agreements().front();
  CHECK(agreed.assigned->ids() == std::vector<std::string>{"nccl", "h100_optimized"});
  CHECK(agreed.assigned->find(4000)->chosen().config == "h100_optimized");
  CHECK(agreed.assigned->find(4000)->excluded().empty());
  CHECK_FALSE(agreed.warm_errors->empty());
  room.ran.clear();
  CHECK(reduce_all(w, groups, {1000, 1000}).failed() == 0);
  CHECK(room.ran["h100_optimized"] == std::map<std::size_t, int>{{0, 2}, {1, 2}});
  CHECK(room.ran["nccl"] == std::map<std::size_t, int>{{2, 2}, {3, 2}});
}

TEST_CASE("a rank that lacks a config runs the next one of the same wire class, chosen once for all calls") {
  machine_room room;
  world w(4, eager_trials());
  const auto timed = [&](const std::string& name, const std::string& wire, std::vector<time_ns> times) {
    return std::make_shared<timed_star>(room, w.clock, name, wire, std::move(times));
  };
  collective_options op = led_by(0, {});
  // Ranks 2 and 3 lack h100_optimized. They run cuda_graph in its place: nccl has another wire class, and `plain` is listed later.
  op.configs = {timed("nccl", "other", everywhere(10_ms)), timed("h100_optimized", "wire", {5_ms, 5_ms, 1_s, 1_s}),
                timed("cuda_graph", "wire", {9_ms, 9_ms, 4_ms, 4_ms}), timed("plain", "wire", everywhere(20_ms))};
  std::array<int, 4> asked{};
  op.can_run = [&asked](rank_id r) {
    ++asked[r];
    return std::vector<bool>{true, r < 2, true, true};
  };
  const auto groups = declare_all(w, op);
  const auto call = [&](std::size_t elements) {
    for (int round = 0; round < 5; ++round) {
      const auto all = reduce_all(w, groups, std::vector<std::size_t>(20, elements));
      CHECK(all.failed() == 0);
      CHECK(all.wrong == 0);
      wait_a_while(w, 1_s);
    }
  };
  const auto said = [&](rank_id r) {
    const auto& sent = w[r].mail().sent_by_type();
    return sent[actors::offer::message_type] + sent[actors::warmed::message_type];
  };
  call(1000);
  CHECK(w[0].agreements().front().assigned->find(4000)->chosen().config == "h100_optimized");
  const std::array<std::uint64_t, 2> said_before{said(2), said(3)};
  // Calls of another size are tried on their own, with the same result.
  call(100'000);
  CHECK(w[0].agreements().front().assigned->find(400'000)->chosen().config == "h100_optimized");
  CHECK(room.ran["h100_optimized"].size() == 2);
  room.ran.clear();
  CHECK(reduce_all(w, groups, {1000, 100'000, 1000}).failed() == 0);
  CHECK(room.ran == std::map<std::string, std::map<std::size_t, int>>{{"h100_optimized", {{0, 3}, {1, 3}}},
                                                                      {"cuda_graph", {{2, 3}, {3, 3}}}});
  CHECK(asked == std::array{1, 1, 1, 1});
  CHECK(said(2) == said_before[0]);
  CHECK(said(3) == said_before[1]);
  CHECK(join_group_flights(w).mismatches == 0);
}

TEST_CASE(
    "for every kind of op, a rank replaces a config that it lacks by its fastest in trials, even if listed last") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    poor_rank_job j(how);
    j.configs[scheme_job::coarse].takes_ns[j.poor()] = 100'000;
    j.configs[scheme_job::fine].takes_ns[j.poor()] = 300'000;
    j.run();
    j.run_on();
    CHECK(j.failed == 0);
    CHECK(j.assigned().ids().size() == 5);
    const std::string winner = j.search().chosen().config;
    CHECK(tuning::id_in_file(winner) == "twin");
    CHECK(winner != "twin");  // `twin` alone names the mixture with `fine`
    CHECK(j.running() == winner);
    const auto agreed = j.decision();
    CHECK(agreed.source == actors::decision_source::trials);
    CHECK(agreed.search == 2);
    // The mixture was measured with the configs that it runs, so its time contains no wait for `fine`.
    const auto& measured = j.search().aggregates();
    REQUIRE(measured.size() == 5);
    CHECK(measured[4].time_ns < 250'000);
    CHECK(measured[3].time_ns >= 300'000);
    const auto may_run = [](const auto& e) { return e.status != "lacking"; };
    REQUIRE(std::count_if(agreed.evidence.begin(), agreed.evidence.end(), may_run) == 5);
    CHECK(agreed.evidence[4].proposer == 0);
    for (const auto& own : agreed.evidence[4].ranks) {
      const std::string* const ran = j.ranks[own.rank]->participants().front()->id_of(own.ran);
      REQUIRE(ran != nullptr);
      CHECK(*ran == (own.rank == j.poor() ? "coarse" : "twin"));
    }
    j.check_that_it_runs(scheme_job::coarse);
    CHECK(j.configs[scheme_job::twin].runs[j.poor()] == 0);

    // The next job reads the mixture from the results files, and makes no trial.
    CHECK(j.learned_config() == winner);
    for (const auto& r : j.ranks) CHECK(r->write_results());
    j.run();
    CHECK(j.failed == 0);
    CHECK(j.search().trials() == 0);
    CHECK(j.search().chosen().config == winner);
    CHECK(j.decision().source == actors::decision_source::results);
    j.check_that_it_runs(scheme_job::coarse);
  }
}

TEST_CASE("a group agrees on its faster mixture although control messages are lost, and every rank knows its name") {
  for (std::size_t every = 2; every < 6; ++every) {
    CAPTURE(every);
    memory_link_options o;
    std::size_t sent = 0;
    o.lose = [&](rank_id, rank_id, link::channel on) { return on == link::channel::control && ++sent % every == 0; };
    machine_room room;
    world w(4, eager_trials(), o);
    const auto timed = [&](const std::string& name, std::vector<time_ns> times) {
      return std::make_shared<timed_star>(room, w.clock, name, "wire", std::move(times));
    };
    collective_options op = led_by(0, {});
    op.configs = {timed("nccl", {10_ms, 10_ms, 9_ms, 9_ms}), timed("h100_optimized", {5_ms, 5_ms, 1_s, 1_s}),
                  timed("cuda_graph", {9_ms, 9_ms, 4_ms, 4_ms})};
    op.can_run = [](rank_id r) { return std::vector<bool>{true, r < 2, true}; };
    const auto groups = declare_all(w, op);
    for (int round = 0; round < 8; ++round) {
      CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 1000)).failed() == 0);
      wait_a_while(w, 5_s);
    }
    const auto& agreed = *w[0].agreements().front().assigned;
    REQUIRE(agreed.ids().size() == 4);
    CHECK(agreed.find(4000)->chosen().config == agreed.ids()[3]);
    CHECK(agreed.ids()[3] == tuning::name_in_file("h100_optimized", agreed.mixture_of(3)));
    for (auto& r : w.ranks) {
      const auto file = r->results();
      REQUIRE(file.entries().size() == 1);
      CHECK(file.entries().front().solution == agreed.ids()[3]);
    }
    room.ran.clear();
    CHECK(reduce_all(w, groups, {1000, 1000}).failed() == 0);
    CHECK(room.ran == std::map<std::string, std::map<std::size_t, int>>{{"h100_optimized", {{0, 2}, {1, 2}}},
                                                                        {"cuda_graph", {{2, 2}, {3, 2}}}});
    CHECK(join_group_flights(w).mismatches == 0);
  }
}

TEST_CASE(
    "for every kind of op, a rank whose first choice is as fast as any other adds no other mixture and no message") {
  for (const scheme how : all_schemes) {
    for (const time_ns takes : {90'000, 298'000}) {
      CAPTURE(name(how));
      CAPTURE(takes);
      poor_rank_job j(how);
      j.configs[scheme_job::fine].takes_ns = {300'000, 300'000, 300'000};
      j.configs[scheme_job::fine].takes_ns[j.poor()] = takes;
      j.configs[scheme_job::coarse].takes_ns = {299'000, 299'000, 299'000};
      j.run();
      j.run_on();
      CHECK(j.failed == 0);
      CHECK(j.assigned().ids() == std::vector<std::string>{"plain", "fine", "coarse", "twin"});
      CHECK(j.decision().search == 1);
      const auto& sent = j.ranks[j.leader]->mail().sent_by_type();
      CHECK(sent[actors::merged::message_type] == j.size - 1);
      CHECK(sent[actors::warm::message_type] == j.size - 1);
    }
  }
}

TEST_CASE("a mixture that fails in its rehearsal is not tried, and the mixture of first choices stays a candidate") {
  for (const scheme how : {scheme::edge, scheme::group}) {
    CAPTURE(name(how));
    poor_rank_job j(how);
    j.configs[scheme_job::fine].takes_ns = {380'000, 380'000, 380'000};
    j.configs[scheme_job::fine].takes_ns[j.poor()] = 300'000;
    j.configs[scheme_job::coarse].takes_ns = {340'000, 340'000, 340'000};
    j.configs[scheme_job::coarse].takes_ns[j.poor()] = 100'000;
    const auto is_decided = [&] { return !j.assigned().searches().empty() && j.decided(); };
    j.start();
    j.call_and_when(j.first_calls(), is_decided, [&] { j.configs[scheme_job::coarse].ill = j.poor(); });
    CHECK(j.failed == 0);
    CHECK(j.assigned().ids() == std::vector<std::string>{"plain", "fine", "coarse", "twin"});
    CHECK(j.search().number() == 1);
    CHECK(j.search().chosen().config == "twin");
    j.configs[scheme_job::coarse].ill = nobody;
    j.pass(200'000'000'000);
    j.run_on();
    CHECK(j.failed == 0);
    CHECK(j.decision().search == 2);
    CHECK(j.search().chosen().config == tuning::name_in_file("twin", j.assigned().mixture_of(4)));
    j.check_that_it_runs(scheme_job::coarse);
  }
}

TEST_CASE("a remembered mixture counts only for the same mixture; a different one with its name is tried again") {
  remembering_job first({});
  first.run({true, true, false, false});
  CHECK(first.search().chosen().config == "h100_optimized");
  const auto best = first.filed();
  CHECK(best.solution.starts_with("h100_optimized;mixture="));
  CHECK(best.time_ms < 6);

  remembering_job same(first.w.disk);
  same.run({true, true, false, false});
  CHECK(same.search().trials() == 0);
  CHECK(same.search().chosen().config == "h100_optimized");
  CHECK(same.filed() == best);

  std::vector<bool> has{true, true, false, false};
  std::set<std::size_t> breaks;
  std::string winner = "nccl";
  SUBCASE("rank 1 lacks h100_optimized now, and the mixture is as slow as nccl alone") { has[1] = false; }
  SUBCASE("h100_optimized fails on rank 1 in its rehearsal, and rank 1 runs nccl in its place") { breaks = {1}; }
  SUBCASE("all ranks have h100_optimized now, so that there is no mixture") {
    has = {true, true, true, true};
    winner = "h100_optimized";
  }
  remembering_job other(first.w.disk);
  other.run(has, breaks);
  CHECK(other.search().trials() > 0);
  CHECK(other.search().chosen().source == actors::decision_source::trials);
  CHECK(other.search().chosen().config == winner);
  CHECK(other.search().missed().find("rank 0's says h100_optimized, for which ranks run other configs now") !=
        std::string::npos);
  const auto now = other.filed();
  CHECK(now.solution == winner);
  CHECK((now.time_ms > 9.9) == (winner == "nccl"));

  // The name without a mixture means that all ranks run the config. It does not match a mixture.
  remembering_job again(other.w.disk);
  again.run({true, true, false, false});
  CHECK((again.search().trials() == 0) == (winner == "nccl"));
}

TEST_CASE("all ranks run nccl if h100_optimized has another wire class") {
  auto o = heterogeneous("other");
  CHECK(o.winner == "nccl");
  CHECK(o.measured.count("h100_optimized") == 0);
  CHECK(o.room.ran.count("h100_optimized") == 0);
}

TEST_CASE("the ends of an edge run different configs of one wire class, if one end lacks the other's config") {
  for (const rank_id lacks : {0U, 1U}) {
    world w(2, eager_trials());
    const std::vector<config_ptr> configs{direct(), chunked(16_KiB, 1), chunked(16_KiB, 4)};
    const auto capable = [lacks](rank_id r) { return std::vector<bool>{true, true, r != lacks}; };
    auto out = register_heterogeneous_autotuning(w[0], pair_of({}), configs, capable);
    auto in = register_heterogeneous_autotuning(w[1], pair_of({}), configs, capable);
    const auto all = move_each(w, out, in, std::vector<std::size_t>(100, 100'000));
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    const auto agreed = w[0].agreements();
    CHECK(agreed.front().assigned->ids().size() == 3);
    for (const auto& a : agreed.front().assigned->find(100'000)->aggregates()) CHECK(a.measured());
    CHECK(join_flights(w).mismatches == 0);
  }
}

TEST_CASE("configs without a wire class, or of different ones, never replace each other") {
  world w(2, eager_trials());
  const auto whole = [](const std::string& name) {
    return paired(
        {.name = name}, [](part_sender& o, std::span<const std::byte> d) -> task<> { co_await o.send(0, d); },
        [](part_receiver& i, std::span<std::byte> d) -> task<> { co_await i.receive(0, d); });
  };
  auto op = pair_of({whole("plain"), whole("special"), chunked(16_KiB, 1), chunked(8_KiB, 1)});
  op.can_run = [](rank_id r) { return std::vector<bool>{true, r == 0, r == 0, r == 1}; };
  transfer out(w[0], op);
  transfer in(w[1], op);
  CHECK(move_each(w, out, in, std::vector<std::size_t>(50, 100'000)).failed() == 0);
  CHECK(w[0].agreements().front().assigned->ids() == std::vector<std::string>{"plain"});
  CHECK_FALSE(w[0].agreements().front().no_common_config.empty());
}

TEST_CASE("a rank whose capability function throws has only its default, with the reason; a wrong length is an error") {
  world w(3, eager_trials());
  auto op = led_by(0, {star(), chain()});
  op.can_run = [](rank_id r) -> std::vector<bool> {
    if (r == 1) throw std::runtime_error("the driver does not answer");
    return {true, true};
  };
  const auto groups = declare_all(w, op);
  const auto all = reduce_all(w, groups, std::vector<std::size_t>(50, 1000));
  CHECK(all.failed() == 0);
  CHECK(w[0].agreements().front().assigned->ids() == std::vector<std::string>{"star"});
  const auto& why = groups[1].details()->participant().unavailable;
  REQUIRE(why.size() == 1);
  CHECK(why.front().find("the driver does not answer") != std::string::npos);

  op.name = "another";
  op.can_run = [](rank_id) { return std::vector<bool>{true, true, true}; };
  const auto refused = thrown_by([&] { static_cast<void>(collective(w[0], op)); });
  CHECK(is(refused, {.code = errc::bad_argument, .quotes = "another"}));  // wording.cpp checks the sentence

  // Rank 1's capability function returns the wrong length, so rank 1 has no such op.
  // The calls of the other ranks time out, and name rank 1 as missing.
  op.name = "a third";
  op.timeout = 1s;
  op.can_run = [](rank_id r) { return std::vector<bool>(r == 1 ? 3 : 2, true); };
  std::vector<collective> others(3);
  for (rank_id r = 0; r < 3; ++r) {
    if (r == 1) CHECK_THROWS_AS(static_cast<void>(collective(w[r], op)), failure);
    if (r != 1) others[r] = collective(w[r], op);
  }
  group_outcomes missing;
  missing.of_rank.resize(3);
  scope calling(w.clock);
  for (const rank_id r : {rank_id{0}, rank_id{2}}) calling.spawn(reduce_each(others[r], r, 3, {1000}, 1, missing));
  run_until(w.clock, [&] { return calling.running() == 0; });
  for (const rank_id r : {rank_id{0}, rank_id{2}}) CHECK(missing.of_rank[r].at(0).code() == errc::timeout);
  CHECK(is(missing.of_rank[0][0], {.peer = 1, .unmet = awaited::members}));
}

TEST_CASE("if one rank's capability function returns a wrong length, the call at the other end of the edge times out") {
  for (const rank_id wrong : {0U, 1U}) {
    CAPTURE(wrong);
    world w(2);
    auto op = pair_of({direct(), chunked(8_KiB, 2)});
    op.timeout = 1s;
    op.can_run = [&](rank_id r) { return std::vector<bool>(r == wrong ? 1 : 2, true); };
    const auto refused = thrown_by([&] { static_cast<void>(transfer(w[wrong], op)); });
    CHECK(is(refused, {.code = errc::bad_argument, .quotes = "activations"}));  // wording.cpp checks the sentence
    const transfer other(w[1 - wrong], op);
    call_outcomes all;
    if (wrong == 1)
      run(w.clock, send_each(other, {100'000}, all));
    else
      run(w.clock, receive_each(other, {100'000}, 0, all));
    CHECK(w.clock.now() <= 1'100'000'000);
    const result<>& told = wrong == 1 ? all.sent.at(0) : all.received.at(0);
    CHECK(is(told, {.code = errc::timeout, .op = "activations 0->1", .rank = 1 - wrong, .peer = wrong}));
  }
}

TEST_CASE("if one member's capability function returns a wrong length, the others' calls without headers time out") {
  world w(3);
  library lib(w.clock, 3);
  const auto users = lib.make();
  std::vector<result<>> told(3);
  const auto call = [](symmetric op, result<>& into) -> task<> {
    std::vector<std::byte> data(4096);
    auto outcome = co_await attempt(op.run(data));
    into = outcome;
  };
  scope calling(w.clock);
  for (rank_id r = 0; r < 3; ++r) {
    symmetric_options op;
    op.name = "gradients";
    op.configs = {takes("library", 40'000), takes("ring", 20'000)};
    op.communicator = std::make_shared<library_communicator>(users);
    op.rehearse = std::make_shared<library_source>(lib);
    op.timeout = 1s;
    op.can_run = [](rank_id self) { return std::vector<bool>(self == 1 ? 3 : 2, true); };
    if (r == 1) CHECK_THROWS_AS(static_cast<void>(symmetric(w[r], op)), failure);
    if (r != 1) calling.spawn(call(symmetric(w[r], op), told[r]));
  }
  run_until(w.clock, [&] { return calling.running() == 0; });
  CHECK(w.clock.now() <= 1'100'000'000);
  for (const rank_id r : {rank_id{0}, rank_id{2}}) {
    CHECK(is(told[r],
             {.code = errc::timeout, .op = "gradients 0->1->2", .rank = r, .invocation = 0, .unmet = awaited::config}));
  }
}

TEST_CASE("a group needs at least one config and accepts 4,096, and the order of a config's parameters means nothing") {
  world w(2);
  CHECK_THROWS_AS(collective(w[0], led_by(0, {})), failure);

  std::vector<group_config_ptr> many{star()};
  for (std::uint64_t i = 1; i < 4096; ++i) many.push_back(star(i * 4));
  const auto groups = declare_all(w, led_by(0, many));
  CHECK(reduce_all(w, groups, {1000, 1000}).failed() == 0);
  wait_a_while(w, 30_s);
  const auto all = reduce_all(w, groups, std::vector<std::size_t>(20, 1000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w[0].agreements().front().assigned->ids().size() == 4096);
  many.push_back(star(4096 * 4));
  auto too_many = led_by(0, many);
  too_many.name = "too many";
  CHECK_THROWS_AS(collective(w[0], too_many), failure);

  const auto of = [](std::vector<tuning::parameter> parameters) {
    const group_function same = [](group_call& g) -> task<> {
      if (g.self() == g.leader())
        co_await star()->lead(g);
      else
        co_await star()->work(g);
    };
    return grouped({.name = "two", .parameters = std::move(parameters), .wire_class = "two"}, same, same);
  };
  world v(2, eager_trials());
  auto mine = led_by(0, {star(), of({{"a", "1"}, {"b", "2"}})});
  auto theirs = led_by(0, {star(), of({{"b", "2"}, {"a", "1"}})});
  const std::vector<collective> both{collective(v[0], mine), collective(v[1], theirs)};
  CHECK(reduce_all(v, both, std::vector<std::size_t>(50, 1000)).failed() == 0);
  CHECK(v[0].agreements().front().assigned->ids().size() == 2);
}

TEST_CASE("ranks of a group that disagree about its leader all get role_conflict, with both leaders") {
  for (const bool two_leaders : {true, false}) {
    CAPTURE(two_leaders);
    world w(4);
    std::vector<collective> groups;
    for (rank_id r = 0; r < 4; ++r) {
      const bool astray = two_leaders ? r == 1 : r == 2;
      groups.emplace_back(w[r], led_by(astray ? 1 : 0, {star()}));
    }
    const time_ns began = w.clock.now();
    const auto all = reduce_all(w, groups, {100, 100});
    CHECK(w.clock.now() - began < 5_s);
    for (rank_id r = 0; r < 4; ++r) {
      for (const auto& outcome : all.of_rank[r]) {
        for (const char* leader : {"leader rank 0", "leader rank 1"})
          CHECK(is(outcome, {.code = errc::role_conflict, .rank = r, .quotes = leader}));
      }
    }
  }
}
