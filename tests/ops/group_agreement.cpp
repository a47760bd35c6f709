#include "../support/groups.hpp"

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns latency = 50'000;

task<> reduce_until(rank_group g, rank_id me, const bool& over) {
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
  // Offers, warm-up and the answers, apart from the rehearsals between them.
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

TEST_CASE("a group searches anew when any of its ranks asks for it by the op's name") {
  world w(3, eager_trials());
  const auto groups = declare_all(w, led_by(0, {star(), chain()}));
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(100, 1000)).failed() == 0);
  wait_a_while(w, 1'000'000'000);
  const auto search = [&] { return w[0].agreements().front().assigned->campaigns().front()->search; };
  CHECK(search() == 1);
  CHECK(w[2].retune("gradients", "it is warm now") == 1);
  wait_a_while(w, 1'000'000'000);
  CHECK(reduce_all(w, groups, std::vector<std::size_t>(100, 1000)).failed() == 0);
  CHECK(search() == 2);
  CHECK(w[0].agreements().front().assigned->campaigns().front()->search_reason ==
        "rank 2 asked for it: it is warm now");
}
