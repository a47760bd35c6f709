#include <parley/tests/support/groups.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns latency = 50'000;

task<> reduce_until(collective g, rank_id me, const bool& over) {
  while (!over) {
    auto x = contribution(me, 1000);
    co_await g.all_reduce(std::span(x));
  }
}

time_ns last_end(world& w, unsigned flag) {
  time_ns last = 0;
  for (auto& r : w.ranks) {
    for (const auto& f : r->flight().in_order()) {
      if ((f.flags & flag) != 0) last = std::max(last, f.ended_ns);
    }
  }
  return last;
}

}  // namespace

TEST_CASE("a group of 4 agrees within 3 round trips beyond its rehearsals and trials, with few messages") {
  memory_link_options wires;
  wires.latency_ns = latency;
  wires.ns_per_byte = 0;
  wires.eager_bytes = 1'000'000;  // every message takes one latency, whatever its size
  world w(4, eager_trials(), wires);
  const auto groups = declare_all(w, led_by(0, {star(), star(1_KiB), chain(1_KiB)}));
  const auto& assigned = *groups[0].details()->assigned();
  run_until(w.clock, [&] { return assigned.opened(); });
  const time_ns opened = w.clock.now();
  // The time of offers, warm-up and answers, without the rehearsals between them.
  time_ns rehearsed_from = opened;
  for (rank_id r = 1; r < 4; ++r) {
    for (const auto& f : w[r].flight().in_order()) {
      if ((f.flags & 4U) != 0) rehearsed_from = std::min(rehearsed_from, f.began_ns);
    }
  }
  CHECK(opened - (last_end(w, 4) - rehearsed_from) <= 3 * latency);

  bool over = false;
  scope working(w.clock);
  for (rank_id r = 0; r < 4; ++r) working.spawn(reduce_until(groups[r], r, over));
  run_until(w.clock, [&] {
    return std::all_of(groups.begin(), groups.end(),
                       [](const auto& g) { return !g.details()->participant().decisions.empty(); });
  });
  const time_ns deciding = w.clock.now() - last_end(w, 1);
  CHECK(deciding <= 2 * latency);
  CHECK(3 * latency + deciding <= 3 * 2 * latency);

  std::uint64_t messages = 0;
  std::uint64_t reports = 0;
  for (auto& r : w.ranks) {
    messages += r->mail().statistics().sent;
    reports += r->mail().sent_by_type()[actors::report::message_type];
  }
  // offer, merged, warm, warmed and decide for each rank, and as many acknowledgements.
  CHECK(messages <= 4 * 5 * 2 + 2 * reports);
  over = true;
  run_until(w.clock, [&] { return working.running() == 0; });
}

TEST_CASE(
    "the last rank of a chain learns the next config from its neighbour, long before the leader's message arrives") {
  memory_link_options wires;
  wires.delay = [](rank_id from, rank_id to, link::channel on) -> time_ns {
    return from == 0 && to == 3 && on == link::channel::data ? 1'000'000'000 : 0;
  };
  world w(4, {}, wires);
  const auto groups = declare_all(w, led_by(0, {chain()}));
  group_outcomes all;
  all.of_rank.resize(4);
  scope working(w.clock);
  const auto call = [&](rank_id r) { working.spawn(reduce_each(groups[r], r, 4, {1000}, 1, all)); };
  const auto last = [&] { return groups[3].details()->data_path().statistics(); };
  for (std::size_t n = 0; n < 5; ++n) {
    CAPTURE(n);
    // Rank 2, the last rank's neighbour, calls last, so that no part of this call can have told the last rank the config.
    for (const rank_id r : {0U, 1U, 3U}) call(r);
    wait_a_while(w, 1'000'000);
    CHECK(last().waited == 0);
    call(2);
    run_until(w.clock, [&] { return working.running() == 0; });
  }
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(w.clock.now() < 500'000'000);
}

TEST_CASE("a group searches again when any of its ranks asks for it by the op's name") {
  world w(3, eager_trials());
  const auto groups = declare_all(w, led_by(0, {star(), chain()}));
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(100, 1000)).failed() == 0);
  wait_a_while(w, 1'000'000'000);
  const auto search = [&] { return w[0].agreements().front().assigned->searches().front()->number(); };
  CHECK(search() == 1);
  CHECK(w[2].retune("gradients", "it is warm now") == 1);
  wait_a_while(w, 1'000'000'000);
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(100, 1000)).failed() == 0);
  CHECK(search() == 2);
  CHECK(w[0].agreements().front().assigned->searches().front()->reason() == "rank 2 asked for it: it is warm now");
}

TEST_CASE("every rank of a group can read or await its decision, with the same config and reason on all ranks") {
  world w(4, eager_trials());
  auto op = led_by(0, {star(), chain()});
  op.role = [](rank_id r) { return r == 0 ? role::leader : r < 3 ? role::worker : role::idle; };
  const auto groups = declare_all(w, op);
  constexpr std::uint64_t bytes = 1000 * sizeof(float);
  std::vector<std::optional<result<decision>>> awaited(3);
  scope waiting(w.clock);
  const auto wait = [](agreement with, std::optional<result<decision>>& into) -> task<> {
    auto d = co_await attempt(with.decided(bytes, {.timeout = 60s}));
    into = std::move(d);
  };
  for (rank_id r = 0; r < 3; ++r) {
    CHECK_FALSE(groups[r].decision(bytes).decided);
    CHECK(groups[r].decision(bytes).config == star()->id());
    waiting.spawn(wait(groups[r].agreed(), awaited[r]));
  }
  CHECK_THROWS_AS(static_cast<void>(groups[3].decision(bytes)), failure);
  group_outcomes all;
  all.of_rank.resize(4);
  scope working(w.clock);
  for (rank_id r = 0; r < 3; ++r)
    working.spawn(reduce_each(groups[r], r, 3, std::vector<std::size_t>(100, 1000), 1, all));
  run_until(w.clock, [&] { return working.running() == 0 && waiting.running() == 0; });
  CHECK(all.failed() == 0);
  for (rank_id r = 0; r < 3; ++r) {
    REQUIRE(awaited[r]);
    REQUIRE(*awaited[r]);
    const decision& d = **awaited[r];
    CHECK(d.config == groups[0].details()->assigned()->find(bytes)->chosen().config);
    CHECK(d.op == "gradients 0->1->2");
    CHECK(d.evidence.size() == 2);
    CHECK(d.why == (**awaited[0]).why);
    CHECK(groups[r].decision(bytes).version == d.version);
  }
  groups[2].agreed().retune(bytes, "the switch was changed");
  waiting.spawn(wait(groups[1].agreed(), awaited[1]));
  wait_a_while(w, 1'000'000);
  CHECK(groups[0].details()->assigned()->find(bytes)->number() == 2);
  // A rank that waits for a decision hears of a death at once.
  const auto wait_longer = [](agreement with, std::optional<result<decision>>& into) -> task<> {
    auto d = co_await attempt(with.decided(bytes, {.timeout = 60s, .after_search = 1}));
    into = std::move(d);
  };
  awaited[1].reset();
  waiting.spawn(wait_longer(groups[1].agreed(), awaited[1]));
  wait_a_while(w, 1'000'000);
  CHECK_FALSE(awaited[1]);
  w[1].on_lost(2, "it was killed");
  wait_a_while(w, 1'000'000);
  REQUIRE(awaited[1]);
  CHECK(awaited[1]->code() == errc::peer_failed);
}
