#include <parley/tests/support/leader.hpp>

#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <set>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

/// A leader that has decided on `a`.
struct decided_leader : leader {
  explicit decided_leader(tuning::plan_options plan = without_budget()) : leader(tuning_policy::online, plan) {
    open();
    run();
    REQUIRE(only().chosen().digest == a);
  }
  /// Invokes until the current search has ended; returns the configs that ran.
  std::set<std::uint64_t> search(int limit = 2000) {
    std::set<std::uint64_t> ran;
    for (int i = 0; i < limit && !decided(); ++i) ran.insert(invoke().digest);
    return ran;
  }
};

}  // namespace

TEST_CASE("a requested search tries all candidates again, and its winner replaces the old one") {
  decided_leader l;
  const auto agreed = l.only().invocations_to_agreement();
  l.cost_ns[a] = 1'500'000;
  l.cost_ns[b] = 300'000;
  CHECK(l.assigned.retune(1 << 20, "rank 1 asked for it", l.now) == 1);
  CHECK(l.assigned.measuring());
  CHECK(l.search() == std::set<std::uint64_t>{c0, a, b});
  CHECK(l.only().chosen().digest == b);
  CHECK(l.only().number() == 2);
  CHECK(l.only().reason() == "rank 1 asked for it");
  CHECK(l.only().invocations_to_agreement() == agreed);
  CHECK_FALSE(l.assigned.measuring());
}

TEST_CASE("the old decision runs while a repeated search waits for its rows") {
  decided_leader l;
  l.assigned.retune({}, "", l.now);
  l.spoil = [](rank_id, const wire_row&) { return false; };
  for (int i = 0; i < 3; ++i) l.invoke();
  REQUIRE(l.only().where() == search::stage::collecting);
  for (int i = 0; i < 20; ++i) CHECK(l.invoke().digest == a);
}

TEST_CASE("a search that measures nothing keeps the old decision, says so, and is repeated at growing intervals") {
  decided_leader l;
  l.spoil = [](rank_id, const wire_row&) { return false; };
  l.assigned.retune({}, "", l.now);
  time_ns pause = 10'000'000'000;
  for (std::uint32_t n = 2; n < 12; ++n) {
    for (int i = 0; i < 100 && !l.decided(); ++i) {
      l.invoke();
      l.now += 10'000'000'000;
      l.judge();
    }
    REQUIRE(l.decided());
    CHECK(l.only().number() == n);
    CHECK(l.only().chosen().digest == a);
    CHECK(l.only().chosen().why.find("no candidate could be measured, so a stays") != std::string::npos);
    CHECK(l.assigned.next_give_up() == l.only().chosen().at_ns + pause);
    l.assigned.retry(l.assigned.next_give_up() - 1);
    CHECK(l.decided());
    l.now = l.assigned.next_give_up();
    l.assigned.retry(l.now);
    CHECK_FALSE(l.decided());
    pause = std::min(2 * pause, time_ns{600'000'000'000});
  }
  l.spoil = nullptr;
  l.search();
  CHECK(l.only().chosen().digest == a);
  CHECK(l.assigned.next_give_up() == never);
}

TEST_CASE("a search that is aborted keeps the old decision, and a new search may be requested") {
  decided_leader l;
  l.cost_ns[b] = 100'000;
  l.assigned.retune({}, "", l.now);
  l.invoke();
  l.invoke();
  CHECK(l.assigned.abort(1 << 20, "rank 1 asked for it", after_abort::stay, l.now) == 1);
  CHECK(l.decided());
  CHECK(l.only().chosen().why == "the search was given up, rank 1 asked for it, so a stays");
  CHECK(l.assigned.next_give_up() == never);
  for (int i = 0; i < 10; ++i) CHECK(l.invoke().digest == a);
  CHECK(l.assigned.abort({}, "", after_abort::stay, l.now) == 0);
  CHECK(l.assigned.retune({}, "", l.now) == 1);
  l.search();
  CHECK(l.only().chosen().digest == b);
}

TEST_CASE("the first search can be aborted as well, and the default stays until the search is repeated") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  l.invoke();
  l.invoke();
  CHECK(l.assigned.abort({}, "a rank leaves", after_abort::try_later, l.now) == 1);
  CHECK(l.only().chosen().digest == c0);
  l.now = l.assigned.next_give_up();
  l.assigned.retry(l.now);
  l.run();
  CHECK(l.only().chosen().digest == a);
}

TEST_CASE("a request to search or to abort that has nothing to act on does nothing") {
  leader l(tuning_policy::online, without_budget());
  CHECK(l.assigned.retune({}, "", l.now) == 0);
  CHECK(l.assigned.abort({}, "", after_abort::stay, l.now) == 0);
  l.invoke();
  l.open();
  CHECK(l.assigned.retune({}, "", l.now) == 0);  // it is already searching
  CHECK(l.assigned.abort(7, "", after_abort::stay, l.now) == 0);
  leader off(tuning_policy::off);
  off.open();
  off.invoke();
  CHECK(off.assigned.retune({}, "", off.now) == 0);
}

TEST_CASE("all searches of an op share its budget, however often they are requested") {
  tuning::plan_options plan;
  plan.budget_fraction = 0.05;
  leader l(tuning_policy::online, plan);
  l.cost_ns[b] = 2'500'000;
  l.open();
  time_ns lost = 0;
  const time_ns began = l.now;
  std::uint32_t searches = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t in_force = l.assigned.searches().empty() ? c0 : l.only().chosen().digest;
    const auto c = l.invoke();
    lost += std::max<time_ns>(0, l.cost_ns[c.digest] - l.cost_ns[in_force]);
    if (l.decided()) searches += static_cast<std::uint32_t>(l.assigned.retune({}, "", l.now));
    REQUIRE(lost <= (l.now - began) / 20 + 20'000'000);
  }
  CHECK(searches > 10);
}

TEST_CASE("after a config has failed, the default runs next, and the trial is not repeated") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  CHECK(l.invoke().digest == c0);
  CHECK(l.invoke().digest == a);
  l.assigned.quarantine(1 << 20, a, l.now, "it broke");
  CHECK(l.invoke().digest == c0);
  CHECK(l.invoke().digest == b);
  l.run();
  REQUIRE(l.only().excluded().size() == 1);
  CHECK(l.only().excluded()[0].why == "a: failed: it broke");
}

TEST_CASE("the default replaces a failed winner at once, and the next best config does after a new search") {
  decided_leader l;
  l.cost_ns[b] = 700'000;
  l.assigned.quarantine(1 << 20, a, l.now, "it broke");
  CHECK(l.decided());
  for (int i = 0; i < 10; ++i) CHECK(l.invoke().digest == c0);
  CHECK(l.only().chosen().why == "a: failed: it broke; so the default runs");
  l.now = l.assigned.next_give_up();
  l.assigned.retry(l.now);
  CHECK(l.search() == std::set<std::uint64_t>{c0, b});
  CHECK(l.only().chosen().digest == b);
  // The last candidate besides the default.
  l.assigned.quarantine(1 << 20, b, l.now, "it broke as well");
  CHECK(l.invoke().digest == c0);
  CHECK(l.assigned.next_give_up() == never);
  CHECK(l.assigned.retune({}, "", l.now) == 1);
  CHECK(l.decided());
  CHECK(l.only().chosen().why.find("only the default may run") != std::string::npos);
}

TEST_CASE("a config that fails during a repeated search is neither tried again nor kept") {
  decided_leader l;
  l.assigned.retune({}, "", l.now);
  l.invoke();
  l.assigned.quarantine(1 << 20, a, l.now, "it broke");
  const auto ran = l.search();
  CHECK(ran.count(a) == 0);
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("a cancelled trial says nothing about its config and is repeated") {
  for (const rank_id who : {rank_id{0}, rank_id{1}}) {
    for (const bool first : {true, false}) {
      leader l(tuning_policy::online, without_budget());
      int given_up = 0;
      l.spoil = [&](rank_id r, wire_row& row) {
        // The first trials of `a` are cancelled on one side or on both.
        if (row.digest == a && given_up < 6 && (r == who || first)) {
          row.status = cancelled_row;
          ++given_up;
        }
        return true;
      };
      l.open();
      l.run();
      CHECK(given_up == 6);
      REQUIRE(l.decided());
      CHECK(l.only().chosen().digest == a);
      CHECK(l.only().aggregates()[1].measured());
    }
  }
}

TEST_CASE("a campaign ends even if the caller cancels every trial") {
  leader l(tuning_policy::online, without_budget());
  l.spoil = [](rank_id, wire_row& row) {
    row.status = cancelled_row;
    return true;
  };
  l.open();
  CHECK(l.run(200) < 200);
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("a config that a constraint forbids for a size is not tried at that size, and the evidence says why") {
  leader l(tuning_policy::online, without_budget());
  l.assigned.limit({{a, 1 << 16, "needs 2 bytes of memory for each byte"},
                    {c0, 0, "the default may always run"},
                    {99, 0, "of nobody"}});
  l.open({{"2MiB_bf16", "a", 0.1}});
  std::set<std::uint64_t> large, small;
  for (int i = 0; i < 200; ++i) {
    large.insert(l.invoke(1 << 20).digest);
    small.insert(l.invoke(1 << 16).digest);
  }
  CHECK(large == std::set<std::uint64_t>{c0, b});
  CHECK(small == std::set<std::uint64_t>{c0, a, b});
  REQUIRE(l.only().excluded().size() == 1);
  CHECK(l.only().excluded()[0].why == "a: needs 2 bytes of memory for each byte");
  // A results file cannot override this.
  CHECK(l.invoke(1 << 21).digest == c0);
  CHECK_FALSE(l.assigned.searches()[2]->is_decided());
}

TEST_CASE("an entry of a results file with an empty config name does not select a forbidden config") {
  leader l;
  l.assigned.limit({{a, 100, "too inaccurate"}});
  l.open({{"1MiB_bf16", "", 0.1}});  // another rank may send such an entry
  CHECK(l.invoke().digest == c0);
  CHECK_FALSE(l.only().chosen().from_results());
}

TEST_CASE("when constraints leave only the default, the default is decided at once") {
  leader l(tuning_policy::online, without_budget());
  l.assigned.limit({{a, 100, "too inaccurate"}, {b, 100, "too large"}});
  l.open();
  CHECK(l.invoke().flags == stamp_flags::none);
  CHECK(l.decided());
  CHECK(l.only().chosen().why == "only the default may run: b: too large");
}

TEST_CASE("campaigns end even if a participant reports arbitrary rows") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    random_stream dice(seed, 3);
    leader l(tuning_policy::online, {});
    const auto wild = [&]() -> std::int64_t {
      switch (dice.below(5)) {
        case 0: return std::numeric_limits<std::int64_t>::max();
        case 1: return std::numeric_limits<std::int64_t>::min();
        case 2: return -static_cast<std::int64_t>(dice.below(1'000'000'000));
        case 3: return 0;
        default: return static_cast<std::int64_t>(dice.below(std::numeric_limits<std::uint64_t>::max() / 2));
      }
    };
    l.spoil = [&](rank_id r, wire_row& row) {
      if (r == 0) return true;
      for (int i = 0; i < 3; ++i) {
        wire_row lie = row;
        lie.tag += static_cast<std::uint32_t>(dice.below(2));
        lie.invocation += dice.below(3);
        lie.digest = dice.below(2) == 0 ? row.digest : dice.below(14);
        lie.start_ns = wild();
        lie.end_ns = wild();
        lie.previous_end_ns = wild();
        lie.status = static_cast<std::uint8_t>(dice.below(256));
        l.assigned.add_row(static_cast<rank_id>(dice.below(3)), lie);
      }
      return dice.below(2) == 0;
    };
    l.open();
    for (int i = 0; i < 3000 && (i == 0 || !l.decided()); ++i) {
      l.invoke();
      l.now += 50'000'000;
      l.judge();
    }
    REQUIRE(l.decided());
  }
}

TEST_CASE("four thousand candidates are tried within the budget, and the campaign ends with the fastest") {
  tuning::plan_options plan;
  plan.budget_fraction = 0.05;
  leader l(tuning_policy::online, plan);
  constexpr std::uint64_t count = 4096;
  std::vector<std::uint64_t> digests;
  std::vector<std::string> ids;
  for (std::uint64_t i = 0; i < count; ++i) {
    digests.push_back(1000 + i);
    ids.push_back("config" + std::to_string(i));
    l.cost_ns[1000 + i] = 900'000 + static_cast<time_ns>((i * 7919) % count) * 100;
  }
  l.cost_ns[1000] = 1'000'000;
  l.cost_ns[1000 + 1234] = 500'000;
  leader many = std::move(l);
  many.assigned = assignment(1000, "config0", "bf16", both, tuning_policy::online, plan);
  many.assigned.open(digests, ids, {}, many.now);
  time_ns lost = 0;
  const time_ns began = many.now;
  int invocations = 0;
  for (; invocations < 200'000 && (invocations == 0 || !many.decided()); ++invocations)
    lost += std::max<time_ns>(0, many.cost_ns[many.invoke().digest] - many.cost_ns[1000]);
  REQUIRE(many.decided());
  CHECK(many.only().chosen().config == "config1234");
  CHECK(lost <= (many.now - began) / 20 + 20'000'000);
  MESSAGE("decided after ", invocations, " invocations with ", many.only().trials(), " trials");
}

TEST_CASE("a result with little evidence runs at once, and is searched again after some time") {
  leader l(tuning_policy::online, without_budget());
  l.open({{"1MiB_bf16", "a", 0.5, 0, 0, true}});
  CHECK(l.invoke().digest == a);
  REQUIRE(l.decided());
  CHECK(l.only().chosen().source == decision_source::results);
  CHECK(l.only().chosen().confidence == tuning::confidence::thin);
  CHECK(l.only().chosen().why.find("is based on few measurements") != std::string::npos);
  l.assigned.retry(l.now);
  CHECK(l.decided());  // short jobs make no trials
  l.now = l.assigned.next_give_up();
  l.cost_ns[b] = 200'000;
  l.assigned.retry(l.now);
  REQUIRE_FALSE(l.decided());
  l.run();
  REQUIRE(l.decided());
  CHECK(l.only().number() == 2);
  CHECK(l.only().reason().find("is based on few measurements") != std::string::npos);
  CHECK(l.only().chosen().source == decision_source::trials);
  CHECK(l.only().chosen().digest == b);
  CHECK(l.only().chosen().confidence == tuning::confidence::sure);
  CHECK(l.assigned.next_give_up() == runtime::never);
}

TEST_CASE("a result with good evidence stays without a search, and a thin one also stays if tuning is off") {
  for (const bool thin : {false, true}) {
    leader l(thin ? tuning_policy::off : tuning_policy::online, without_budget());
    l.open({{"1MiB_bf16", "a", 0.5, 0, 0, thin}});
    l.invoke();
    CHECK(l.decided());
    CHECK(l.assigned.next_give_up() == runtime::never);
  }
}
