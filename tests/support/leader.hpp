#pragma once
/// The leader's assignment on a clock of its own, for tests: it runs invocations, reports their rows and judges.
#include <parley/actors/agreement/assignment.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests {

using namespace parley::actors;
using namespace parley::runtime;

constexpr std::uint64_t c0 = 10, a = 11, b = 12;
inline const std::vector<rank_id> both{0, 1};

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
    const auto c = assigned.choose(bytes, tag, next[tag], now, {}, lacking);
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
  /// Starts `messages` messages together. `takes` returns, for the digests that they run, how long after the start each of them ends.
  using batch_times = std::function<std::vector<time_ns>(const std::vector<std::uint64_t>& digests)>;
  std::vector<assignment::choice> invoke_batch(std::size_t messages, const batch_times& takes,
                                               std::uint64_t bytes = 1 << 20) {
    ++batches;
    std::vector<assignment::choice> chosen;
    std::vector<std::uint64_t> digests;
    const std::uint64_t first = next[0];
    for (std::size_t i = 0; i < messages; ++i) {
      chosen.push_back(assigned.choose(bytes, 0, next[0]++, now, {.batch = batches}));
      digests.push_back(chosen.back().digest);
    }
    std::vector<std::pair<time_ns, std::size_t>> in_order;  // sorted by their ends, as participants see them
    for (const time_ns took : takes(digests)) in_order.emplace_back(took, in_order.size());
    std::sort(in_order.begin(), in_order.end());
    time_ns latest_end = now;
    for (const auto& [took, i] : in_order) {
      wire_row row;
      row.invocation = first + i;
      row.digest = digests[i];
      row.start_ns = now;
      row.end_ns = now + took;
      row.previous_end_ns = std::exchange(latest_end, row.end_ns);
      for (const rank_id r : both) {
        wire_row mine = row;
        if (has(chosen[i].flags, stamp_flags::timed) && (!spoil || spoil(r, mine))) assigned.add_row(r, mine);
      }
    }
    now = latest_end;
    judge();
    return chosen;
  }
  void judge() {
    while (search* done = assigned.ready_to_judge(now)) done->judge(now, {});
    assigned.watch_drift(now);
  }
  const search& only() const { return *assigned.searches().front(); }
  bool decided() const { return only().is_decided(); }
  /// Invokes until the search has decided. Returns the number of invocations.
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
  std::uint64_t batches = 0;
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
