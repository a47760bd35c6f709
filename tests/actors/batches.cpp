#include <parley/tests/support/leader.hpp>

#include <doctest/doctest.h>

#include <algorithm>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t eight = 8;

/// The messages of a batch run one after another.
leader::batch_times in_turn(const leader& l) {
  return [&l](const std::vector<std::uint64_t>& digests) {
    std::vector<time_ns> ends;
    time_ns at = 0;
    for (const std::uint64_t d : digests) ends.push_back(at += l.cost_ns.at(d));
    return ends;
  };
}

/// Like `in_turn()`, but in a batch of several configs a message of `a` ends 1 us after the message ahead of it.
leader::batch_times with_overtaking(const leader& l) {
  return [&l](const std::vector<std::uint64_t>& digests) {
    const bool alone = std::all_of(digests.begin(), digests.end(), [](std::uint64_t d) { return d == a; });
    std::vector<time_ns> ends;
    time_ns at = 0;
    for (const std::uint64_t d : digests) ends.push_back(at += d == a && !alone ? 1'000 : l.cost_ns.at(d));
    return ends;
  };
}

bool are_one(const std::vector<assignment::choice>& batch) {
  return std::all_of(batch.begin(), batch.end(), [&](const auto& c) {
    return c.digest == batch[0].digest && has(c.flags, stamp_flags::timed) == has(batch[0].flags, stamp_flags::timed);
  });
}

void run(leader& l, const leader::batch_times& takes, std::size_t messages = eight) {
  for (int i = 0; i < 1000 && (i == 0 || !l.decided()); ++i) CHECK(are_one(l.invoke_batch(messages, takes)));
  REQUIRE(l.decided());
}

}  // namespace

TEST_CASE("all messages of a batch run one config, which gains nothing by overtaking other messages") {
  leader l(tuning_policy::online, without_budget());
  l.cost_ns[a] = 1'400'000;
  l.open();
  run(l, with_overtaking(l));
  CHECK(l.only().chosen().digest == c0);
  CHECK(l.only().aggregates()[0].time_ns == 1'000'000);
  CHECK(l.only().aggregates()[1].time_ns == 1'400'000);
}

TEST_CASE(
    "a batch is one repetition of a trial, and each of its messages is reported and counts for its share of time") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  std::size_t reported = 0;
  l.spoil = [&](rank_id, wire_row&) { return ++reported != 0; };
  run(l, in_turn(l));
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().aggregates()[1].time_ns == 500'000);
  const search& c = l.only();
  CHECK(reported == 2 * eight * c.trials());
  CHECK(c.book().repetitions[1].size() == eight * c.aggregates()[1].count);
  CHECK(c.invocations() == eight * l.batches);
}

TEST_CASE("each message of a round's last batch asks for the rows of the round") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  for (int i = 0; i < 2; ++i) {
    for (const auto& c : l.invoke_batch(eight, in_turn(l))) CHECK(c.flags == stamp_flags::timed);
  }
  for (const auto& c : l.invoke_batch(eight, in_turn(l))) CHECK(c.flags == (stamp_flags::timed | stamp_flags::flush));
}

TEST_CASE("single messages and batches of any length count equally as repetitions") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  for (std::size_t i = 0; i < 1000 && (i == 0 || !l.decided()); ++i) {
    l.invoke();
    CHECK(are_one(l.invoke_batch(1 + i % 5, in_turn(l))));
  }
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().aggregates()[0].time_ns == 1'000'000);
}

TEST_CASE("a batch that began without a trial continues without one") {
  leader l(tuning_policy::online, without_budget());
  const auto alone = [&](std::uint64_t batch) {
    return l.assigned.choose(1 << 20, 0, l.next[0]++, l.now, {.batch = batch});
  };
  CHECK(alone(1).flags == stamp_flags::none);
  l.open();
  CHECK(alone(1).flags == stamp_flags::none);
  CHECK(alone(2).flags == stamp_flags::timed);
  CHECK(alone(2).digest == c0);
  CHECK(alone(3).digest == a);
  CHECK(alone(3).digest == a);
  CHECK(alone(2).flags == stamp_flags::none);  // a late message of batch 2: batch 3 has started since
  CHECK(alone(0).digest == b);
  CHECK(alone(3).flags == stamp_flags::none);
}

TEST_CASE("the measured time of a batch does not depend on the order in which its messages end") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  // The messages of `a` end in reverse order, two at a time.
  run(l, [&](const std::vector<std::uint64_t>& digests) {
    std::vector<time_ns> ends = in_turn(l)(digests);
    if (digests[0] != a) return ends;
    std::reverse(ends.begin(), ends.end());
    for (std::size_t i = 0; i + 1 < ends.size(); i += 2) ends[i + 1] = ends[i];
    return ends;
  });
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().aggregates()[1].time_ns == 500'000);
}

TEST_CASE("in a batch of 100 messages, the first 64 are a trial, and the others run the config in force") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  l.invoke_batch(eight, in_turn(l));
  const auto chosen = l.invoke_batch(100, in_turn(l));
  for (std::size_t i = 0; i < chosen.size(); ++i) CHECK(chosen[i].digest == (i < 64 ? a : c0));
  CHECK(chosen[64].flags == stamp_flags::none);
  CHECK(l.only().book().repetitions[1].size() == 64);
  CHECK(l.only().run()->longest_batch() == 64);
}

TEST_CASE("the leader waits for the rows of a batch as long as one message of the batch has not begun") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  bool begun = false;
  l.assigned.ask_begun([&](std::uint32_t, std::uint64_t invocation) { return begun || invocation != 3 * eight - 1; });
  l.spoil = [](rank_id, wire_row& row) { return row.invocation != 3 * eight - 1; };
  for (int i = 0; i < 3; ++i) l.invoke_batch(eight, in_turn(l));
  REQUIRE(l.only().where() == search::stage::collecting);
  for (int i = 0; i < 5; ++i) {
    l.now += 20'000'000'000;
    CHECK(l.assigned.ready_to_judge(l.now) == nullptr);
  }
  begun = true;
  l.now += 20'000'000'000;
  CHECK(l.assigned.ready_to_judge(l.now) != nullptr);
  l.judge();
  CHECK(l.only().aggregates()[2].status == tuning::aggregate_status::missing);
}

TEST_CASE("each size of a batch has a trial of its own") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  const auto choose = [&](std::uint64_t bytes, std::uint64_t batch) {
    return l.assigned.choose(bytes, 0, l.next[0]++, l.now, {.batch = batch}).digest;
  };
  for (const std::uint64_t digest : {c0, a, b}) {
    ++l.batches;
    for (int i = 0; i < 3; ++i) {
      CHECK(choose(1 << 10, l.batches) == digest);
      CHECK(choose(1 << 20, l.batches) == digest);
    }
  }
}

TEST_CASE("a batch in which one message was cancelled is tried again as a whole") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  l.spoil = [&](rank_id, wire_row& row) {
    if (row.invocation == eight + 3) row.status = cancelled_row;  // in the first batch of `a`
    return true;
  };
  run(l, in_turn(l));
  CHECK(l.only().book().cancelled == 1);
  CHECK(l.only().chosen().digest == a);
  CHECK(l.only().aggregates()[1].measured());
  CHECK(l.only().book().repetitions[1].size() == eight * l.only().aggregates()[1].count);
}

TEST_CASE("the remaining messages of a batch run the default after a config has failed in the middle of the batch") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  l.invoke_batch(eight, in_turn(l));
  const std::uint64_t batch = ++l.batches;
  const auto choose = [&] { return l.assigned.choose(1 << 20, 0, l.next[0]++, l.now, {.batch = batch}); };
  CHECK(choose().digest == a);
  CHECK(choose().digest == a);
  l.assigned.quarantine(1 << 20, a, l.now, "it broke");
  CHECK(choose().digest == c0);
  CHECK(choose().flags == stamp_flags::none);
  l.invoke_batch(eight, in_turn(l));
  CHECK(l.only().where() == search::stage::collecting);
  l.now += 60'000'000'000;  // the rows of the two cancelled repetitions never arrive
  l.judge();
  run(l, in_turn(l));
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE(
    "a trial in a batch begins with the first message that can run its config and ends before the next that cannot") {
  leader l(tuning_policy::online, without_budget());
  l.open();
  l.invoke_batch(eight, in_turn(l));
  const std::vector<lacking_config> late{{a, unmet_need::credit_in_time}};
  const auto choose = [&](std::span<const lacking_config> lacking) {
    return l.assigned.choose(1 << 20, 0, l.next[0]++, l.now, {.batch = 100}, lacking);
  };
  CHECK(choose(late).digest == c0);
  CHECK(choose({}).digest == a);
  CHECK(choose({}).flags == stamp_flags::timed);
  CHECK(choose(late).digest == c0);
  CHECK(choose(late).flags == stamp_flags::none);
  CHECK(choose({}).digest == c0);
  CHECK(choose({}).flags == stamp_flags::none);
  CHECK(l.only().book().repetitions[1].size() == 2);
}

TEST_CASE(
    "a batch costs as much as all of its messages together, and its trial waits until the budget covers that cost") {
  leader l;  // the default budget: 5 % of the time
  l.open();
  const time_ns began = l.now;
  for (int i = 0; i < 2000 && (i == 0 || !l.decided()); ++i) {
    const bool known = i != 0 && l.only().aggregates()[2].measured();
    const double before = known ? l.only().cost_ns() + l.only().pending_ns() : 0;
    const time_ns at = l.now;
    const auto chosen = l.invoke_batch(eight, in_turn(l));
    if (chosen[0].digest != b || !known) continue;
    CHECK(before + 8e6 <= 1.01 * 0.05 * static_cast<double>(at - began));
  }
  REQUIRE(l.decided());
  CHECK(l.only().chosen().digest == a);
  const double of_b = static_cast<double>(l.only().book().repetitions[2].size()) * 1e6;
  CHECK(l.only().cost_ns() == of_b);
  CHECK(l.only().cost_ns() <= 0.05 * static_cast<double>(l.now - began) + 8e6);
}

TEST_CASE("drift of the decided config is measured by whole batches") {
  tuning::plan_options plan = without_budget();
  plan.drift.every = 100;
  plan.drift.pause_ns = 0;
  plan.drift.search_pause_ns = 1'000'000'000;
  leader l(tuning_policy::online, plan);
  l.open();
  run(l, in_turn(l));
  REQUIRE(l.only().chosen().digest == a);
  // The messages overtake one another: the first messages end last.
  const leader::batch_times reversed = [&](const std::vector<std::uint64_t>& digests) {
    std::vector<time_ns> ends = in_turn(l)(digests);
    std::reverse(ends.begin(), ends.end());
    return ends;
  };
  std::size_t timed = 0;
  for (int i = 0; i < 500; ++i) {
    for (const auto& c : l.invoke_batch(eight, reversed)) timed += has(c.flags, stamp_flags::timed) ? 1 : 0;
  }
  CHECK(timed > 5 * eight);
  CHECK(l.only().number() == 1);
  CHECK_FALSE(l.assigned.searching());
  l.cost_ns[a] = 3'000'000;
  for (int i = 0; i < 500; ++i) l.invoke_batch(eight, reversed);
  CHECK(l.only().number() == 2);
  CHECK(l.only().chosen().digest == c0);
}

TEST_CASE("a very long batch does not make a burst of drift samples endless") {
  tuning::plan_options plan = without_budget();
  plan.drift.every = 10;
  plan.drift.pause_ns = 0;
  leader l(tuning_policy::online, plan);
  l.open();
  run(l, in_turn(l));
  l.invoke_batch(5000, in_turn(l));
  l.invoke_batch(5000, in_turn(l));
  CHECK(l.only().drift()->timed() <= 5 * 64);
  for (int i = 0; i < 20; ++i) l.invoke_batch(100, in_turn(l));
  CHECK(l.only().drift()->latest_ns() == 500'000);
}

TEST_CASE("a batch that continues after the last rows of a drift burst does not distort the measurement") {
  tuning::plan_options plan = without_budget();
  plan.drift.every = 10;
  plan.drift.pause_ns = 0;
  plan.drift.samples = 1;
  leader l(tuning_policy::online, plan);
  l.open();
  run(l, in_turn(l));
  for (int i = 0; i < 100; ++i) {
    ++l.batches;
    for (int half = 0; half < 2; ++half) {  // the rows of the first half arrive before the second half starts
      --l.batches;
      l.invoke_batch(3, in_turn(l));
    }
    CHECK(l.only().drift()->latest_ns() <= 500'000);
  }
  CHECK(l.only().number() == 1);
}
