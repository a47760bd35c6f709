#pragma once
/// The leader's assignment on a clock of its own, for tests: it runs invocations, reports their rows and judges.
#include <parley/actors/assignment.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace parley::tests {

using namespace parley::actors;
using namespace parley::runtime;

constexpr std::uint64_t c0 = 10, a = 11, b = 12;
inline const std::vector<rank_id> both{0, 1};

/// A leader with its assignment: runs invocations, reports their rows and judges, on a clock of its own.
struct leader {
  explicit leader(tuning_policy policy = tuning_policy::online, tuning::plan_options plan = {})
      : assigned(c0, "c0", "bf16", both, policy, plan) {
    cost_ns[c0] = 1'000'000;
    cost_ns[a] = 500'000;
    cost_ns[b] = 2'000'000;
  }
  void open(std::vector<remembered_best> remembered = {}) {
    assigned.open({c0, a, b}, {"c0", "a", "b"}, std::move(remembered), now);
  }
  assignment::choice invoke(std::uint64_t bytes = 1 << 20, std::uint32_t tag = 0,
                            std::span<const lacking_config> lacking = {}) {
    const auto c = assigned.choose(bytes, tag, next[tag], now, pacing::within_budget, lacking);
    wire_row row;
    row.tag = tag;
    row.invocation = next[tag]++;
    row.digest = c.digest;
    row.start_ns = now;
    row.previous_end_ns = now;
    now += cost_ns[c.digest];
    row.end_ns = now;
    if (has(c.flags, stamp_flags::timed)) {
      for (const rank_id r : both) {
        wire_row mine = row;
        if (spoil && !spoil(r, mine)) continue;
        assigned.add_row(r, mine);
      }
    }
    judge();
    return c;
  }
  void judge() {
    while (campaign* done = assigned.ready_to_judge(now)) assigned.judge(*done, now);
    assigned.watch_drift(now);
  }
  const campaign& only() const { return *assigned.campaigns().front(); }
  bool decided() const { return only().where == campaign::stage::decided; }
  /// Invokes until the campaign has decided; answers how many it took.
  std::size_t run(std::size_t limit = 2000) {
    std::size_t count = 0;
    while (count < limit && (count == 0 || !decided())) {
      invoke();
      ++count;
    }
    return count;
  }

  assignment assigned;
  time_ns now = 1'000'000'000;
  std::map<std::uint32_t, std::uint64_t> next;
  std::map<std::uint64_t, time_ns> cost_ns;
  std::function<bool(rank_id, wire_row&)> spoil;  // false: the row is lost
};

inline tuning::plan_options without_budget() {
  tuning::plan_options plan;
  plan.budget_fraction = 1e9;
  return plan;
}

}  // namespace parley::tests
