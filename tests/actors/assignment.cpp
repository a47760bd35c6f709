#include <parley/tests/support/leader.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <memory>
#include <set>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

TEST_CASE("the default runs untimed until all ranks have warmed the candidates") {
  leader l;
  for (int i = 0; i < 100; ++i) {
    const auto c = l.invoke();
    CHECK(c.digest == c0);
    CHECK(c.flags == stamp_flags::none);
  }
  CHECK(l.only().trials() == 0);
  CHECK_FALSE(l.assigned.measuring());
}

TEST_CASE("trials are interleaved, losers are dropped, and the fastest wins") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  CHECK(l.invoke().digest == c0);
  CHECK(l.invoke().digest == a);
  CHECK(l.invoke().digest == b);
  CHECK(l.run() < 100);
  CHECK(l.decided());
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().chosen().config == "a");
  CHECK(l.only().chosen().why.find("fastest") != std::string::npos);
  CHECK(l.only().aggregates()[1].time_ns == 500'000);
  CHECK(l.only().invocations_to_agreement() == l.only().invocations());
  CHECK(l.invoke().digest == a);
  CHECK(l.invoke().flags == stamp_flags::none);
  CHECK_FALSE(l.assigned.measuring());
}

TEST_CASE("the default runs while the rows of a round are in flight") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  std::vector<std::pair<rank_id, wire_row>> held;
  l.spoil = [&](rank_id r, wire_row& row) {
    held.emplace_back(r, row);
    return false;
  };
  CHECK(l.invoke().flags == stamp_flags::timed);
  CHECK(l.invoke().flags == stamp_flags::timed);
  CHECK(has(l.invoke().flags, stamp_flags::flush));
  CHECK(l.only().where() == search::stage::collecting);
  for (int i = 0; i < 10; ++i) CHECK(l.invoke().digest == c0);
  for (const auto& [r, row] : held) l.assigned.add_row(r, row);
  l.judge();
  CHECK(l.only().where() == search::stage::trying);
}

TEST_CASE("a candidate that is not faster than the default beyond noise does not replace the default") {
  leader l(tuning_policy::online, without_budget());
  l.cost_ns[a] = l.cost_ns[b] = l.cost_ns[c0];
  l.open();
  l.run();
  CHECK(l.only().chosen().digest == c0);
  l.cost_ns[a] = l.cost_ns[c0] * 99 / 100;  // 1 % faster: within noise
  leader m(tuning_policy::online, without_budget());
  m.cost_ns = l.cost_ns;
  m.open();
  m.run();
  CHECK(m.only().chosen().digest == c0);
}

TEST_CASE("a row of another config than the assigned one breaks S2, blames its sender, and decides nothing (S6)") {
  leader l(tuning_policy::online, without_budget());
  std::set<rank_id> named;
  const breach_watch watch([&](const breach& broken) {
    CHECK(broken.name == "S2");
    named.insert(broken.culprit.value_or(99));
  });
  l.spoil = [](rank_id r, wire_row& row) {
    if (r == 1 && row.digest == a) row.digest = b;
    return true;
  };
  l.open();
  l.run();
  CHECK(l.decided());
  CHECK(l.only().chosen().digest != a);
  CHECK(named == std::set<rank_id>{1});
}

TEST_CASE("rows that never arrive count as infinitely slow after a bounded wait") {
  leader l(tuning_policy::online, without_budget());
  l.spoil = [](rank_id r, const wire_row& row) { return !(r == 1 && row.digest == a); };
  l.open();
  for (int i = 0; i < 3; ++i) l.invoke();
  CHECK(l.only().where() == search::stage::collecting);
  CHECK(l.assigned.next_give_up() == l.now - l.cost_ns[b] + 10'000'000'000);
  l.judge();
  CHECK(l.only().where() == search::stage::collecting);
  l.now = l.assigned.next_give_up();
  l.judge();
  CHECK_FALSE(l.only().aggregates()[1].measured());
  CHECK(std::isinf(l.only().aggregates()[1].time_ns));
  for (int i = 0; i < 200 && !l.decided(); ++i) {
    l.invoke();
    l.now += 10'000'000'000;
    l.judge();
  }
  CHECK(l.decided());
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("assigning a config to one invocation a second time breaks S1") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  std::uint64_t n = 0;
  while (!has(l.assigned.choose(1 << 20, 0, n, l.now).flags, stamp_flags::timed)) ++n;
  std::string name;
  breach_watch watch([&](const breach& seen) { name = seen.name; });
  CHECK_THROWS_AS(static_cast<void>(l.assigned.choose(1 << 20, 0, n, l.now)), failure);
  CHECK(name == "S1");
}

TEST_CASE("in every build, opening a campaign that has no config to settle on, not even the default, breaks S4") {
  leader l;
  l.invoke();
  std::string name;
  breach_watch watch([&](const breach& seen) { name = seen.name; });
  CHECK_THROWS_AS(l.assigned.open({}, {}, {}, l.now), failure);
  CHECK(name == "S4");
}

TEST_CASE("the leader waits without limit for the rows of an invocation that a rank has not begun") {
  leader l(tuning_policy::online, without_budget());
  bool begun = false;
  l.assigned.ask_begun([&](std::uint32_t, std::uint64_t) { return begun; });
  l.spoil = [](rank_id r, const wire_row& row) { return !(r == 1 && row.digest == a); };
  l.open();
  for (int i = 0; i < 3; ++i) l.invoke();
  for (int i = 0; i < 5; ++i) {
    l.now = l.assigned.next_give_up();
    l.judge();
    REQUIRE(l.only().where() == search::stage::collecting);
  }
  begun = true;
  l.now = l.assigned.next_give_up();
  l.judge();
  CHECK(l.only().where() != search::stage::collecting);
  CHECK_FALSE(l.only().aggregates()[1].measured());
}

TEST_CASE("the next search tries a candidate again that the last search excluded for an unmet need") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  const std::vector<lacking_config> lacking{{a, unmet_need::memory_of_receiver}};
  for (int i = 0; i < 1000 && (i == 0 || !l.decided()); ++i) l.invoke(1 << 20, 0, lacking);
  REQUIRE(l.decided());
  CHECK(l.only().chosen().digest == c0);
  REQUIRE(l.only().excluded().size() == 1);
  CHECK(l.only().excluded().front().kind == exclusion::reason::unmet);
  l.assigned.retune({}, "memory was registered", l.now);
  l.run();
  CHECK(l.only().excluded().empty());
  CHECK(l.only().chosen().digest == a);
}

TEST_CASE("the reason for giving up a candidate names the one need that was unmet and, where possible, the remedy") {
  const std::pair<unmet_need, const char*> causes[] = {
      {unmet_need::payload, "a: messages have no payload"},
      {unmet_need::memory_of_receiver, "a: rank 1 has registered no memory for this config to write into; register"},
      {unmet_need::credit_in_time,
       "before a credit from rank 1 had arrived, although that rank has registered memory; post"},
      {unmet_need::memory_of_sender, "not in memory that rank 0 has registered; register"},
      {unmet_need::word_in_time, "before rank 1 had confirmed that it knows the memory that rank 0 has registered"},
      {unmet_need::pieces, "a: messages lie in one piece, or in too many"},
      {unmet_need::like_pieces,
       "a: rank 1 receives into other pieces than rank 0 sends; give both sides the same shape"},
      {unmet_need::word_of_pieces, "before rank 1 had said which pieces it has"},
  };
  for (const auto& [what, words] : causes) {
    leader l(tuning_policy::online, without_budget());
    l.cost_ns[c0] = 20'000'000;
    l.open();
    for (int i = 0; i < 1000 && (i == 0 || !l.decided()); ++i)
      l.invoke(1 << 20, 0, std::vector<lacking_config>{{a, what}});
    REQUIRE(l.only().excluded().size() == 1);
    CHECK_MESSAGE(l.only().excluded().front().why.find(words) != std::string::npos, l.only().excluded().front().why);
  }
}

TEST_CASE(
    "a candidate that needs pieces is given up after a few messages, one that waits for word of them after many") {
  for (const auto& [what, most] :
       {std::pair{unmet_need::pieces, 10}, {unmet_need::like_pieces, 10}, {unmet_need::word_of_pieces, 1'000}}) {
    leader l(tuning_policy::online, without_budget());
    l.cost_ns[c0] = 20'000'000;
    l.open();
    int lacked = 0;
    for (; lacked < 1'000 && (lacked == 0 || l.only().excluded().empty()); ++lacked)
      l.invoke(1 << 20, 0, std::vector<lacking_config>{{a, what}});
    CHECK(lacked <= most + 10);
    CHECK(lacked >= (most == 10 ? 8 : 50));
  }
}

TEST_CASE("a candidate with late credits is given up neither after many messages nor after a long time") {
  const std::vector<lacking_config> late{{a, unmet_need::credit_in_time}};
  struct {
    time_ns apart_ns;
    int times;
    int again;
  } const cases[] = {{1'000, 10'000, 3}, {100'000'000, 60, 1}};  // many calls in a short time; few calls in a long time
  for (const auto& c : cases) {
    CAPTURE(c.apart_ns);
    leader l(tuning_policy::online, without_budget());
    l.cost_ns = {{c0, c.apart_ns}, {a, c.apart_ns / 2}, {b, 2 * c.apart_ns}};
    l.open();
    l.invoke();
    for (int again = 0; again < c.again; ++again) {
      for (int i = 0; i < c.times; ++i) CHECK(l.invoke(1 << 20, 0, late).digest != a);
      CHECK(l.only().excluded().empty());
      // `a` now has its credit in time; after that the search returns to c0
      for (const std::uint64_t next : {a, c0}) {
        for (int i = 0; i < 100 && l.invoke().digest != next; ++i) {}
      }
    }
    l.run();
    CHECK(l.only().chosen().digest == a);
  }
}

TEST_CASE("a search waits for a candidate that can run now and then, but not for one that hardly ever can") {
  const std::vector<lacking_config> late{{a, unmet_need::credit_in_time}};
  for (const int one_in : {4, 50}) {
    CAPTURE(one_in);
    leader l(tuning_policy::online, without_budget());
    l.cost_ns = {{c0, 15'000'000}, {a, 7'500'000}, {b, 30'000'000}};
    l.open();
    int calls = 0;
    for (; calls < 1'000 && (calls == 0 || !l.decided()); ++calls) {
      if (calls % one_in == 0) {
        l.invoke();
      } else {
        l.invoke(1 << 20, 0, late);
      }
    }
    CHECK(l.decided());
    CHECK(l.only().chosen().digest == (one_in == 4 ? a : c0));
    CHECK(calls < 300);
  }
}

TEST_CASE("a call may wait for its decided config as long as the config that would run instead is known to be slower") {
  const std::vector<lacking_config> late{{a, unmet_need::credit_in_time}};
  const std::vector<lacking_config> with_default_alone{{a, unmet_need::credit_in_time},
                                                       {b, unmet_need::credit_in_time}};
  leader l(tuning_policy::online, without_budget());
  l.cost_ns = {{c0, 900'000}, {a, 500'000}, {b, 800'000}};
  l.open();
  l.invoke();
  CHECK(l.only().worth_waiting_ns(late) == 0);  // there is no decision yet, so nothing is worth waiting for
  l.run();
  REQUIRE(l.only().chosen().digest == a);
  CHECK(l.only().worth_waiting_ns(late) == 300'000);
  CHECK(l.only().worth_waiting_ns(with_default_alone) == 400'000);

  leader remembers;
  remembers.open({{"1MiB_bf16", "a", 0.25}});
  remembers.invoke();
  REQUIRE(remembers.only().chosen().digest == a);
  CHECK(remembers.only().worth_waiting_ns(late) == 250'000);  // up to as long as the remembered config itself takes

  leader untimed;
  untimed.open({{"1MiB_bf16", "a", 0}});
  untimed.invoke();
  REQUIRE(untimed.only().chosen().digest == a);
  CHECK(untimed.only().worth_waiting_ns(late) == 0);

  leader slow(tuning_policy::online, without_budget());
  slow.cost_ns = {{c0, 9'000'000'000}, {a, 1'000'000}, {b, 9'000'000'000}};
  slow.open();
  slow.run();
  REQUIRE(slow.only().chosen().digest == a);
  CHECK(slow.only().worth_waiting_ns(late) == 1'000'000'000);
}

TEST_CASE("calls that run another config than the decided one are counted since the decision, by the unmet need") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  const auto lost = [](unmet_need what) { return std::vector<lacking_config>{{a, what}}; };
  const auto count = [&](unmet_need what) { return l.only().ran_others(what); };
  l.invoke(1 << 20, 0, lost(unmet_need::credit_in_time));  // before the decision, so it is not counted
  l.run();
  REQUIRE(l.only().chosen().digest == a);
  for (int i = 0; i < 3; ++i) CHECK(l.invoke(1 << 20, 0, lost(unmet_need::credit_in_time)).digest == c0);
  l.invoke(1 << 20, 0, lost(unmet_need::memory_of_sender));
  l.invoke(1 << 20, 0, std::vector<lacking_config>{{b, unmet_need::credit_in_time}});
  l.invoke();
  CHECK(count(unmet_need::credit_in_time) == 3);
  CHECK(count(unmet_need::memory_of_sender) == 1);
  CHECK(l.only().calls_since_decision() == 6);
  l.assigned.retune({}, "again", l.now);
  l.run();
  CHECK(count(unmet_need::credit_in_time) == 0);
}

TEST_CASE("a config that failed on one side never wins") {
  leader l(tuning_policy::online, without_budget());
  l.spoil = [](rank_id r, wire_row& row) {
    if (r == 1 && row.digest == a) row.status = static_cast<std::uint8_t>(tuning::row_status::failed);
    return true;
  };
  l.open();
  l.run();
  REQUIRE(l.decided());
  CHECK(l.only().chosen().digest == c0);
  CHECK(l.only().aggregates()[1].status == tuning::aggregate_status::failed);
}

TEST_CASE("the leader does not wait for the other side's row of a trial that failed on one side") {
  leader l(tuning_policy::online, without_budget());
  l.spoil = [](rank_id r, wire_row& row) {
    if (row.digest != b) return true;
    row.status = static_cast<std::uint8_t>(tuning::row_status::failed);
    return r == 0;  // the receiver got a poison, so it has no row
  };
  l.open();
  l.run(100);
  CHECK(l.decided());
  CHECK(l.only().chosen().digest == a);
}

TEST_CASE("a row of another config than the assigned one does not count as a measurement") {
  leader l(tuning_policy::online, without_budget());
  l.spoil = [](rank_id r, wire_row& row) {
    if (r == 1 && row.digest == a) row.digest = c0;
    return true;
  };
  l.open();
  l.run();
  CHECK(l.only().chosen().digest == c0);
  CHECK(l.only().aggregates()[1].status == tuning::aggregate_status::mismatched);
}

TEST_CASE("a row that is reported twice counts once, and rows of invocations that were no trials change nothing") {
  leader l(tuning_policy::online, without_budget());
  l.spoil = [&](rank_id r, wire_row& row) {
    l.assigned.add_row(r, row);
    l.assigned.add_row(r, row);
    wire_row stray = row;
    stray.invocation += 1000;
    l.assigned.add_row(r, stray);
    return true;
  };
  l.open();
  l.run();
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().aggregates()[0].count >= 2);
}

TEST_CASE("a config that fails in a real invocation is not tried again and never wins") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  l.invoke();
  CHECK(l.invoke().digest == a);
  l.assigned.quarantine(1 << 20, a, l.now, "it broke");
  std::set<std::uint64_t> later;
  while (!l.decided()) later.insert(l.invoke().digest);
  CHECK(later.count(a) == 0);
  // `a` was the fastest config measured before it failed.
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("a campaign still ends when all remaining candidates of its round are quarantined") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  CHECK(l.invoke().digest == c0);
  l.assigned.quarantine(1 << 20, a, l.now, "it broke");
  l.assigned.quarantine(1 << 20, b, l.now, "it broke");
  CHECK(l.run(10) <= 2);
  CHECK(l.decided());
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("a winner that fails later is replaced by the default, for its key only") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  l.run();
  while (l.invoke(8192).digest != a || !l.assigned.searches()[1]->is_decided()) {}
  l.assigned.quarantine(1 << 20, a, l.now, "it broke");
  CHECK(l.invoke().digest == c0);
  CHECK(l.only().chosen().why.find("failed") != std::string::npos);
  CHECK(l.invoke(8192).digest == a);
  l.assigned.quarantine(1 << 20, c0, l.now, "it broke");  // the default cannot be quarantined
  CHECK(l.invoke().digest == c0);
}

TEST_CASE("a config that a results file remembers runs without a trial") {
  leader l;
  l.open({{"1MiB_bf16", "b", 1.5}, {"1MiB_bf16", "a", 0.5}, {"8KiB_bf16", "a", 0.1}});
  CHECK(l.invoke().digest == b);  // the first entry for a key wins
  CHECK(l.only().chosen().from_results());
  CHECK(l.only().trials() == 0);
  CHECK(l.invoke(8192).digest == a);
  CHECK(l.invoke(100).digest == c0);  // the results file has no entry for this key
  CHECK(l.assigned.searches()[2]->where() == search::stage::trying);
}

TEST_CASE("an entry of a results file whose config is no candidate is skipped, and the next entry of its key applies") {
  leader l;
  l.open({{"1MiB_bf16", "gone", 0.1}, {"1MiB_fp32", "b", 0.1}});
  CHECK(l.invoke().digest == c0);
  CHECK_FALSE(l.only().chosen().from_results());
  CHECK(l.only().where() == search::stage::trying);
  leader m;
  m.open({{"1MiB_bf16", "gone", 0.1}, {"1MiB_bf16", "a", 0.1}});
  CHECK(m.invoke().digest == a);
}

TEST_CASE("Default in a results file pins the default") {
  leader l;
  l.open({{"1MiB_bf16", "Default", 0}});
  for (int i = 0; i < 20; ++i) CHECK(l.invoke().digest == c0);
  CHECK(l.only().trials() == 0);
  CHECK(l.only().chosen().why == "rank 0's results file pins the default");
  CHECK(l.only().chosen().source == decision_source::pin);
}

TEST_CASE("invocations before the candidates are ready count in the campaign of their size") {
  leader l;
  l.invoke();
  l.invoke();
  l.open({{"1MiB_bf16", "a", 0.5}});
  CHECK(l.decided());
  CHECK(l.only().invocations_to_agreement() == 2);
  CHECK(l.invoke().digest == a);
}

TEST_CASE("with tuning off, the remembered config runs, otherwise the default, and nothing is timed") {
  leader l(tuning_policy::off);
  l.open({{"1MiB_bf16", "a", 0.5}});
  CHECK(l.invoke().digest == a);
  const auto c = l.invoke(100);
  CHECK(c.digest == c0);
  CHECK(c.flags == stamp_flags::none);
  CHECK(l.assigned.searches()[1]->chosen().why == "tuning is switched off");
}

TEST_CASE("the default is decided without a trial if it is the only config") {
  leader l;
  l.assigned.open({c0}, {"c0"}, {}, l.now);
  CHECK(l.invoke().flags == stamp_flags::none);
  CHECK(l.decided());
  CHECK(l.only().chosen().why == "only the default may run");
}

TEST_CASE("trials wait until the program has run long enough for the budget to cover their cost") {
  tuning::plan_options plan;
  plan.budget_fraction = 0.05;
  leader l(tuning_policy::online, plan);
  l.cost_ns[b] = 2'500'000;  // slow, but not so slow that the probe drops it
  l.cost_ns[a] = 1'200'000;
  l.open();
  time_ns lost = 0;
  time_ns worst = 0;
  const time_ns began = l.now;
  for (int i = 0; i < 3000 && (i == 0 || !l.decided()); ++i) {
    const auto c = l.invoke();
    lost += l.cost_ns[c.digest] - l.cost_ns[c0];
    // A round may start within the budget and end beyond it.
    worst = std::max(worst, lost - (l.now - began) / 20);
  }
  CHECK(l.decided());
  CHECK(l.only().chosen().digest == c0);
  CHECK(worst <= 20'000'000);
  CHECK(l.only().cost_ns() == doctest::Approx(static_cast<double>(lost)));
}

TEST_CASE("a slow first use of a config does not keep it from winning, and counts as cost if it was a warm-up") {
  for (const std::size_t warm_ups : {0U, 1U}) {
    CAPTURE(warm_ups);
    tuning::plan_options plan = without_budget();
    plan.warm_up_repetitions = warm_ups;
    leader l(tuning_policy::online, plan);
    l.open();
    bool used = false;
    l.spoil = [&](rank_id r, wire_row& row) {
      if (row.digest != a || used) return true;
      row.end_ns += 9'000'000;
      if (r == both.back()) l.now += 9'000'000;
      return true;
    };
    for (int i = 0; i < 200 && (i == 0 || !l.decided()); ++i) used = l.invoke().digest == a || used;
    REQUIRE(l.decided());
    CHECK(l.only().chosen().digest == a);
    if (warm_ups == 0) {  // a single long repetition counts as a disturbance, so the plan adds repetitions
      CHECK(l.only().aggregates()[1].count >= 7);
    } else {
      CHECK(l.only().aggregates()[1].count == 2);
      // the three uses of `b` cost 1 ms more each
      CHECK(l.only().cost_ns() == doctest::Approx(8'500'000 + 3 * 1'000'000));
    }
  }
}

TEST_CASE("a warm-up that is cancelled or withdrawn is not repeated") {
  tuning::plan_options plan = without_budget();
  plan.warm_up_repetitions = 1;
  leader l(tuning_policy::online, plan);
  l.open();
  l.spoil = [&](rank_id, wire_row& row) {
    if (row.invocation == 1) row.status = cancelled_row;
    return row.invocation != 2;
  };
  for (int i = 0; i < 3; ++i) l.invoke();
  l.assigned.withdraw(0, 2);
  l.run();
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().aggregates()[0].count == 2);
  CHECK(l.only().aggregates()[1].count == 2);
}

TEST_CASE(
    "trials begin only when the budget covers the cost of the agreement itself, which is that of the costliest rank") {
  tuning::plan_options plan;
  plan.budget_fraction = 0.05;
  leader l(tuning_policy::online, plan);
  l.open();
  l.assigned.note_control(3'000'000);
  // another participant's cost: they work in parallel, so only the larger cost counts
  l.assigned.note_control(2'000'000);
  const time_ns began = l.now;
  time_ns first_trial = runtime::never;
  for (int i = 0; i < 3000 && (i == 0 || !l.decided()); ++i) {
    const time_ns now = l.now;
    if (l.invoke().digest != c0 && first_trial == runtime::never) first_trial = now - began;
  }
  CHECK(l.decided());
  CHECK(first_trial >= 60'000'000);
  CHECK(first_trial < 80'000'000);
  CHECK(l.assigned.control_ns() == 3'000'000);
}

TEST_CASE("several sizes and tags are tuned at the same time, each size by itself") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  const std::vector<std::uint64_t> sizes{0, 1, 100, 8192, 1 << 20, 16 << 20};
  for (int i = 0; i < 200; ++i) {
    for (const std::uint64_t s : sizes) l.invoke(s, static_cast<std::uint32_t>(s % 3));
  }
  REQUIRE(l.assigned.searches().size() == sizes.size());
  std::set<std::string> keys;
  for (const auto& c : l.assigned.searches()) {
    CHECK(c->is_decided());
    CHECK(c->chosen().digest == a);
    CHECK(c->invocations() == 200);
    keys.insert(c->key());
  }
  CHECK(keys == std::set<std::string>{"0B_bf16", "1B_bf16", "128B_bf16", "8KiB_bf16", "1MiB_bf16", "16MiB_bf16"});
}

namespace {
std::vector<tuning::rule> rules_in(const std::string& text) {
  return tuning::rule_file::parse(text, "rules.csv").value().of("edge/0>1");
}
}  // namespace

TEST_CASE(
    "a rule names the config that runs for its sizes, without a trial, also if a results file knows another one") {
  leader l(tuning_policy::online, without_budget());
  l.assigned.heed(rules_in("other/*,*,c0\nedge/*,512KiB-2MiB,b\n*,*,a\n*,4MiB,Default"));
  l.open({{.parameters = "1MiB_bf16", .solution = "a", .time_ms = 1}});
  for (int i = 0; i < 10; ++i) CHECK(l.invoke().digest == b);
  CHECK(l.only().trials() == 0);
  CHECK(l.only().chosen().source == decision_source::rule);
  CHECK(l.only().chosen().why == "rules.csv:2 names it");
  CHECK(l.invoke(4 << 20).digest == a);  // the first rule that fits
}

TEST_CASE("a rule excludes candidates for its sizes, and one that names no candidate leaves the choice to trials") {
  leader l(tuning_policy::online, without_budget());
  l.assigned.heed(rules_in("*,1MiB,^a\n*,2MiB,nothing"));
  l.open();
  CHECK(l.run() < 100);
  CHECK(l.only().chosen().digest == c0);
  REQUIRE(l.only().excluded().size() == 1);
  CHECK(l.only().excluded()[0].why == "a: rules.csv:1 excludes it");
  for (int i = 0; i < 100; ++i) l.invoke(2 << 20);
  const search& other = *l.assigned.find(2 << 20);
  CHECK(other.chosen().digest == a);
  CHECK(other.chosen().source == decision_source::trials);
  CHECK(other.chosen().why.find("rules.csv:2 names nothing, which is none of the configs that all ranks can run") !=
        std::string::npos);
}

TEST_CASE("no later search overrides a rule, and its config runs as soon as it is a candidate") {
  leader l(tuning_policy::online, without_budget());
  l.assigned.heed(rules_in("*,*,b"));
  l.assigned.open({c0, a}, {"c0", "a"}, {}, l.now);
  CHECK(l.run() < 100);
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().chosen().why.find("rules.csv:1 names b, which is none of the configs that all ranks can run") !=
        std::string::npos);
  l.open();  // b has come back
  CHECK(l.invoke().digest == b);
  CHECK(l.only().chosen().why == "rules.csv:1 names it");
  l.assigned.retune(1 << 20, "the user asks", l.now);
  for (int i = 0; i < 50; ++i) CHECK(l.invoke().digest == b);
  CHECK(l.only().chosen().source == decision_source::rule);
  l.assigned.postpone(1 << 20, "it cannot be rehearsed now", l.now);
  CHECK(l.invoke().digest == c0);
  l.now += 20'000'000'000;
  l.assigned.retry(l.now);
  CHECK(l.invoke().digest == b);
  l.assigned.quarantine(1 << 20, b, l.now, "it broke");
  CHECK(l.invoke().digest == c0);
}

TEST_CASE("rules also hold while tuning is off") {
  leader l(tuning_policy::off);
  l.assigned.heed(rules_in("*,*,a"));
  l.open();
  CHECK(l.invoke().digest == a);
}

TEST_CASE("a size between two decided sizes with one winner runs that winner, if the user wants that") {
  for (const bool wanted : {true, false}) {
    tuning::plan_options plan = without_budget();
    plan.interpolate = wanted;
    leader l(tuning_policy::online, plan);
    l.open();
    const auto decide = [&](std::uint64_t bytes) -> const search& {
      for (int i = 0; i < 200; ++i) l.invoke(bytes);
      REQUIRE(l.assigned.find(bytes)->is_decided());
      return *l.assigned.find(bytes);
    };
    CHECK(decide(64 << 10).chosen().digest == a);
    CHECK(decide(4 << 20).chosen().source == decision_source::trials);
    const search& between = decide(1 << 20);
    CHECK(between.chosen().digest == a);
    CHECK((between.chosen().source == decision_source::neighbours) == wanted);
    CHECK((between.trials() == 0) == wanted);
    CHECK(between.drift() != nullptr);
    CHECK(decide(16 << 20).chosen().source == decision_source::trials);  // beyond them
    l.cost_ns[a] = 3'000'000;                                            // from here on the default is the fastest
    l.assigned.retune(16 << 20, "the user asks", l.now);
    CHECK(decide(16 << 20).chosen().digest == c0);
    CHECK(decide(256 << 10).chosen().source ==
          (wanted ? decision_source::neighbours : decision_source::trials));  // between 64 KiB and 4 MiB
    CHECK(decide(8 << 20).chosen().source == decision_source::trials);        // the neighbours disagree
  }
}

TEST_CASE("a candidate whose times for other sizes show that it cannot win is tried only by a later search") {
  leader l(tuning_policy::online, without_budget());
  l.cost_ns[b] = 20'000'000;
  l.open();
  constexpr std::uint64_t first = 1 << 20, second = 2 << 20;
  CHECK(l.run() < 100);
  CHECK(l.only().excluded().empty());
  CHECK(l.only().book().expected[2].time_ns == 0);
  for (int i = 0; i < 100; ++i) CHECK(l.invoke(second).digest != b);
  const search& next = *l.assigned.find(second);
  REQUIRE(next.is_decided());
  CHECK(next.chosen().digest == a);
  REQUIRE(next.excluded().size() == 1);
  CHECK(next.excluded()[0].candidate == 2);
  CHECK(next.excluded()[0].kind == exclusion::reason::hopeless);
  CHECK(next.excluded()[0].why.find("it is expected to take at least") != std::string::npos);
  CHECK(next.excluded()[0].told);
  const tuning::predicted_time& expected = next.book().expected[2];
  CHECK(expected.time_ns > 20e6);
  CHECK(expected.time_ns < 40e6);
  CHECK(expected.low_ns < expected.time_ns);
  CHECK(next.aggregates()[2].status == tuning::aggregate_status::not_tried);

  l.assigned.retune(second, "the user asks", l.now);
  std::set<std::uint64_t> ran;
  for (int i = 0; i < 100; ++i) ran.insert(l.invoke(second).digest);
  CHECK(ran.contains(b));
  CHECK(next.excluded().empty());
  CHECK(l.assigned.find(first)->chosen().digest == a);
}

TEST_CASE("an edge does not try what was far slower on an edge with which it shares its times") {
  tuning::time_model times;
  const auto edge = [&] {
    auto made = std::make_unique<leader>(tuning_policy::online, without_budget());
    made->cost_ns[b] = 20'000'000;
    made->assigned.share_times(times);
    made->open();
    CHECK(made->run() < 200);
    CHECK(made->only().chosen().digest == a);
    return made;
  };
  const auto first = edge();
  CHECK(first->only().excluded().empty());
  const auto alike = edge();
  REQUIRE(alike->only().excluded().size() == 1);
  CHECK(alike->only().excluded()[0].candidate == 2);
  CHECK(alike->only().excluded()[0].kind == exclusion::reason::hopeless);
  CHECK(alike->only().book().expected[2].time_ns == doctest::Approx(20e6).epsilon(0.01));
  CHECK(alike->only().trials() < first->only().trials());
}

TEST_CASE("if times are not as another edge's, what seemed hopeless is tried after all") {
  tuning::time_model times;
  leader first(tuning_policy::online, without_budget());
  first.cost_ns[b] = 20'000'000;
  first.assigned.share_times(times);
  first.open();
  CHECK(first.run() < 200);
  leader second(tuning_policy::online, without_budget());
  second.cost_ns[b] = 100'000;  // the edges are not alike, and here it is the fastest
  second.cost_ns[a] = 4'000'000;
  second.assigned.share_times(times);
  second.open();
  CHECK(second.run() < 200);
  CHECK(second.only().excludes(2));
  CHECK(second.only().is_asked_again());
  CHECK(second.only().chosen().digest == c0);
  second.assigned.retry(second.now);
  CHECK(second.run() < 200);
  CHECK(second.only().excluded().empty());
  CHECK(second.only().chosen().digest == b);
  CHECK(second.only().chosen().why.find("b") != std::string::npos);
}

TEST_CASE("candidates that seemed hopeless beside a winner are tried again after the winner has failed") {
  for (const bool in_trials : {false, true}) {
    leader l(tuning_policy::online, without_budget());
    l.cost_ns[c0] = 100'000'000;
    l.cost_ns[b] = 20'000'000;
    l.open();
    CHECK(l.run() < 200);
    constexpr std::uint64_t second = 2 << 20;
    if (!in_trials) {
      for (int i = 0; i < 100; ++i) l.invoke(second);
      REQUIRE(l.assigned.find(second)->chosen().digest == a);
    } else {
      for (int i = 0; i < 3; ++i) l.invoke(second);
    }
    REQUIRE(l.assigned.find(second)->excludes(2));
    l.assigned.quarantine(second, a, l.now, "it broke");
    l.now += 20'000'000'000;
    l.assigned.retry(l.now);
    for (int i = 0; i < 100; ++i) {
      l.invoke(second);
      l.assigned.retry(l.now);
    }
    CHECK(l.assigned.find(second)->chosen().digest == b);
  }
}

TEST_CASE("the most promising of the other candidates is tried even if the default is expected to be far faster") {
  leader l(tuning_policy::online, without_budget());
  l.cost_ns[c0] = 50'000;
  l.cost_ns[a] = 10'000'000;
  l.cost_ns[b] = 20'000'000;
  l.open();
  CHECK(l.run() < 100);
  std::set<std::uint64_t> ran;
  for (int i = 0; i < 100; ++i) ran.insert(l.invoke(2 << 20).digest);
  CHECK(ran == std::set<std::uint64_t>{c0, a});
  CHECK(l.assigned.find(2 << 20)->chosen().source == decision_source::trials);
}

TEST_CASE("a candidate is tried if its expected time may be the shortest") {
  leader l(tuning_policy::online, without_budget());
  l.cost_ns[b] = 900'000;
  l.open();
  CHECK(l.run() < 2000);
  l.cost_ns[b] = 100'000;  // for the next size it is the fastest
  for (int i = 0; i < 100; ++i) l.invoke(64 << 20);
  CHECK(l.assigned.find(64 << 20)->chosen().digest == b);
}

TEST_CASE("every campaign ends although rows are lost or spoilt at random, and no quarantined config wins") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream dice(seed, 3);
    leader l(tuning_policy::online, without_budget());
    const std::uint64_t spoilt = dice.below(2) == 0 ? a : b;
    l.spoil = [&](rank_id, wire_row& row) {
      if (row.digest == spoilt && dice.below(2) == 0) row.status = static_cast<std::uint8_t>(dice.below(5));
      return dice.below(10) != 0;
    };
    l.open();
    bool spoilt_failed = false;
    for (int i = 0; i < 400 && (i == 0 || !l.decided()); ++i) {
      const auto c = l.invoke();
      if (c.digest == spoilt && dice.below(4) == 0) {
        l.assigned.quarantine(1 << 20, spoilt, l.now, "it broke");
        spoilt_failed = true;
      }
      l.now += 1'000'000'000;
      l.judge();
    }
    REQUIRE(l.decided());
    if (spoilt_failed) CHECK(l.only().chosen().digest != spoilt);
  }
}

TEST_CASE("rows with times that no clock can show count as failed, and their config does not win") {
  for (const std::int64_t far : {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max(),
                                 std::int64_t{1} << 60, -(std::int64_t{1} << 60)}) {
    for (const int field : {0, 1, 2}) {
      CAPTURE(far);
      CAPTURE(field);
      leader l(tuning_policy::online, without_budget());
      l.open();
      l.spoil = [&](rank_id r, wire_row& row) {
        if (r == 1 && row.digest == a)
          (field == 0 ? row.start_ns : field == 1 ? row.end_ns : row.previous_end_ns) = far;
        return true;
      };
      CHECK(l.run() < 200);
      CHECK(l.decided());
      CHECK(l.only().chosen().digest != a);
      CHECK(l.only().aggregates()[1].status == tuning::aggregate_status::failed);
    }
  }
}

TEST_CASE("candidates that do the same for all sizes of a key count as one, under the name of the first") {
  // Up to 1 MiB, `b` does the same as c0; above 1 MiB, the same as `a`.
  const auto shape = [](std::uint64_t digest, std::uint64_t bytes) -> std::string {
    if (digest == b) return bytes <= 1 << 20 ? "whole" : "in pieces";
    return digest == c0 ? "whole" : "in pieces";
  };
  SUBCASE("the others are not tried, and the evidence says why") {
    for (const auto& [bytes, same_as] : {std::pair{1U << 20U, "c0"}, {1U << 22U, "a"}}) {
      leader l(tuning_policy::online, without_budget());
      l.assigned.ask_shapes(shape);
      l.open();
      for (int i = 0; i < 50; ++i) CHECK(l.invoke(bytes).digest != b);
      CHECK(l.decided());
      REQUIRE(l.only().excluded().size() == 1);
      CHECK(l.only().excluded()[0].kind == exclusion::reason::same);
      CHECK(l.only().excluded()[0].why == "b: for these sizes it is the same as " + std::string(same_as));
    }
  }
  SUBCASE("not if they do the same for only some of the sizes") {
    leader l(tuning_policy::online, without_budget());
    l.assigned.ask_shapes([&](std::uint64_t digest, std::uint64_t bytes) { return shape(digest, bytes + 1000); });
    l.open();
    std::set<std::uint64_t> ran;
    for (int i = 0; i < 50; ++i) ran.insert(l.invoke(1U << 20U).digest);
    CHECK(ran.count(b) == 1);
  }
  SUBCASE("an entry of a results file for one of the others applies to the first") {
    leader l;
    l.assigned.ask_shapes(shape);
    l.open({{"1MiB_bf16", "b", 0.5}});
    CHECK(l.invoke().digest == c0);
    CHECK(l.decided());
    CHECK(l.only().chosen().source == decision_source::results);
  }
  SUBCASE("nothing is tried if all candidates do the same") {
    leader l;
    l.assigned.ask_shapes([](std::uint64_t, std::uint64_t) { return std::string("whole"); });
    l.open();
    CHECK(l.invoke().digest == c0);
    CHECK(l.decided());
    CHECK(l.only().trials() == 0);
    CHECK(l.only().chosen().why.find("there is only the default to try") == 0);
  }
}
