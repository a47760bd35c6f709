#include <parley/tests/support/leader.hpp>

#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

/// A leader that has decided on `a` (500 us; c0 takes 1 ms and b 2 ms) and checks for drift often.
struct watched_leader : leader {
  explicit watched_leader(tuning::plan_options plan = looks_often()) : leader(tuning_policy::online, plan) {
    open();
    run();
    REQUIRE(only().chosen().digest == a);
  }
  static tuning::plan_options looks_often() {
    tuning::plan_options plan = without_budget();
    plan.drift.every = 20;
    plan.drift.pause_ns = 0;
    plan.drift.search_pause_ns = 1'000'000'000;
    return plan;
  }
  void invoke_many(int n) {
    for (int i = 0; i < n; ++i) timed += has(invoke().flags, stamp_flags::timed) ? 1 : 0;
  }
  std::size_t timed = 0;
};

}  // namespace

TEST_CASE("the leader times short bursts of decided invocations, and starts no search while nothing changes") {
  watched_leader l;
  l.invoke_many(80);
  CHECK(l.timed == 3 * 6);  // per burst: one invocation after which both ends read their clocks, and five samples
  l.invoke_many(5000);
  CHECK(l.only().number() == 1);
  CHECK(l.only().chosen().digest == a);
  CHECK_FALSE(l.assigned.searching());
}

TEST_CASE("when the winner becomes permanently slow, a search begins and another config wins") {
  watched_leader l;
  l.invoke_many(200);
  l.cost_ns[a] = 3'000'000;
  l.invoke_many(300);
  CHECK(l.only().number() == 2);
  CHECK(l.decided());
  CHECK(l.only().chosen().digest == c0);
  CHECK(l.only().reason() == "its times have drifted: 3000 us now, 500 % more than the 500 us before");
  l.invoke_many(5000);
  CHECK(l.only().number() == 2);  // the new search remeasured the times, so they have not drifted
}

TEST_CASE("when the winner becomes faster, a search begins as well, because others may have become faster still") {
  watched_leader l;
  l.cost_ns[a] = 300'000;
  l.cost_ns[b] = 100'000;
  l.invoke_many(300);
  CHECK(l.only().number() == 2);
  CHECK(l.only().chosen().digest == b);
}

TEST_CASE("neither noise nor a temporary slowdown begins a search") {
  watched_leader l;
  random_stream dice(11, 4);
  for (int i = 0; i < 20'000; ++i) {
    l.cost_ns[a] = 400'000 + static_cast<time_ns>(dice.below(200'000));
    if (dice.below(10) == 0) l.cost_ns[a] *= 8;
    if (i % 100 < 10) l.cost_ns[a] = 5'000'000;  // a burst of samples may fall into this
    l.invoke();
  }
  CHECK(l.only().number() == 1);
}

TEST_CASE("time spent waiting for a late partner does not count as drift of the config") {
  watched_leader l;
  l.spoil = [](rank_id r, wire_row& row) {
    if (r == 0) row.start_ns -= 50'000'000;  // the row starts 50 ms early: this rank had waited for its partner
    row.previous_end_ns = 0;
    return true;
  };
  l.invoke_many(3000);
  CHECK(l.only().number() == 1);
}

TEST_CASE("lost or invalid rows begin no search and do not block later bursts") {
  watched_leader l;
  random_stream dice(12, 4);
  l.spoil = [&](rank_id r, wire_row& row) {
    if (dice.below(4) == 0) row.start_ns = -1'000'000'000'000;
    if (dice.below(4) == 0) row.digest = 99;
    if (dice.below(4) == 0) row.status = 200;
    return r == 0 || dice.below(3) != 0;
  };
  l.invoke_many(3000);
  CHECK(l.only().number() == 1);
  l.spoil = nullptr;
  l.cost_ns[a] = 3'000'000;
  l.invoke_many(300);
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("a drift sample that is withdrawn because its size differs is replaced, so that its burst still counts") {
  for (const std::uint64_t which : {1U, 5U}) {  // index of the lost sample in its burst; 5 is the last one
    // invocations before the sample is withdrawn; with 3, the last sample's burst is over by then
    for (const int later : {0, 3}) {
      CAPTURE(which);
      CAPTURE(later);
      watched_leader l;
      l.cost_ns[a] = 3'000'000;
      std::uint64_t latest = 0;
      std::uint64_t place = 0;
      std::optional<std::uint64_t> lost;
      l.spoil = [&](rank_id r, const wire_row& row) {
        if (r == 0) place = row.invocation == latest + 1 ? place + 1 : 0;
        latest = row.invocation;
        if (place == which) lost = row.invocation;
        return place != which;
      };
      for (int i = 0; i < 300 && l.only().number() == 1; ++i) {
        l.invoke_many(1);
        if (!lost) continue;
        l.invoke_many(later);
        l.assigned.withdraw(0, *std::exchange(lost, std::nullopt));
      }
      CHECK(l.only().number() == 2);
    }
  }
}

TEST_CASE("drift bursts end even if every sample is withdrawn because its size differs") {
  watched_leader l;
  std::optional<std::uint64_t> lost;
  l.spoil = [&](rank_id, const wire_row& row) {
    lost = row.invocation;
    return false;
  };
  for (int i = 0; i < 1000; ++i) {
    l.invoke_many(1);
    if (lost) l.assigned.withdraw(0, *std::exchange(lost, std::nullopt));
  }
  CHECK(l.timed < 600);
  CHECK(l.only().number() == 1);
  l.spoil = nullptr;
  l.invoke_many(30);
  CHECK_FALSE(l.assigned.measuring());
}

TEST_CASE("searches that change no decision become rarer and rarer") {
  watched_leader l;
  std::uint64_t searches = 1;
  time_ns last = l.now;
  std::vector<time_ns> gaps;
  for (int i = 0; i < 60'000 && gaps.size() < 5; ++i) {
    // All times alternate between a base and twice that every 40 ms, so the order of the configs stays.
    l.cost_ns[a] = 500'000 + (l.now / 40'000'000) % 2 * 500'000;
    l.cost_ns[c0] = 3 * l.cost_ns[a];
    l.cost_ns[b] = 4 * l.cost_ns[a];
    l.invoke();
    if (l.only().number() == searches) continue;
    searches = l.only().number();
    gaps.push_back(l.now - last);
    last = l.now;
  }
  for (std::size_t i = 2; i < gaps.size(); ++i) CHECK(gaps[i] >= (time_ns{1'000'000'000} << (i - 1)));
  CHECK(l.only().chosen().digest == a);
}

TEST_CASE("after a search confirms the winner with a slower time, drift is measured against that new time") {
  watched_leader l;
  l.invoke_many(200);
  l.cost_ns[a] = 800'000;
  while (l.only().number() == 1 || !l.decided()) l.invoke();
  REQUIRE(l.only().chosen().digest == a);
  l.cost_ns[a] = 3'000'000;  // before the first burst of samples
  l.invoke_many(5000);
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("when calls always take longer than trials, drift begins one more search and no further one") {
  watched_leader l;
  for (int i = 0; i < 10'000; ++i) {
    l.cost_ns[a] = l.decided() ? 900'000 : 500'000;
    l.invoke();
  }
  CHECK(l.only().number() == 2);
  CHECK(l.only().chosen().digest == a);
}

TEST_CASE("drift is not measured if it is switched off or the config is pinned") {
  tuning::plan_options off = watched_leader::looks_often();
  off.drift.on = false;
  watched_leader l(off);
  l.cost_ns[a] = 3'000'000;
  l.invoke_many(1000);
  CHECK(l.timed == 0);
  leader pinned(tuning_policy::online, watched_leader::looks_often());
  pinned.open({{"1MiB_bf16", "Default", 0, 0, 0}});
  for (int i = 0; i < 500; ++i) {
    CHECK_FALSE(has(pinned.invoke().flags, stamp_flags::timed));
    if (i == 250) pinned.cost_ns[c0] *= 9;
  }
  CHECK(pinned.only().number() == 1);
}

TEST_CASE("a search requested in the middle of a drift burst ends the burst") {
  watched_leader l;
  for (int i = 0; i < 100 && !has(l.invoke().flags, stamp_flags::timed); ++i) {}
  CHECK(l.assigned.measuring());
  CHECK(l.assigned.retune({}, "", l.now) == 1);
  l.run();
  CHECK_FALSE(l.assigned.measuring());
  l.invoke_many(1000);
  CHECK(l.only().number() == 2);
}
