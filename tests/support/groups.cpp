#include <parley/tests/support/groups.hpp>

namespace parley::tests {

ops::rank_settings eager_trials() {
  ops::rank_settings s;
  s.plan.budget_fraction = 1e9;
  return s;
}

ops::collective_options led_by(rank_id leader, std::vector<ops::group_config_ptr> configs) {
  ops::collective_options op;
  op.name = "gradients";
  op.role = [leader](rank_id r) { return r == leader ? ops::role::leader : ops::role::worker; };
  op.configs = std::move(configs);
  return op;
}

std::vector<float> contribution(rank_id r, std::size_t count) {
  std::vector<float> x(count);
  for (std::size_t i = 0; i < count; ++i) x[i] = static_cast<float>(r + 1) * static_cast<float>(i % 7 + 1);
  return x;
}

std::size_t wrong_sums(const std::vector<float>& x, std::size_t world) {
  std::size_t wrong = 0;
  const auto ranks = static_cast<float>(world * (world + 1)) / 2;
  for (std::size_t i = 0; i < x.size(); ++i) wrong += x[i] != ranks * static_cast<float>(i % 7 + 1) ? 1 : 0;
  return wrong;
}

runtime::task<> reduce_one(ops::collective g, std::vector<float>& x, runtime::result<>& outcome) {
  outcome = co_await ops::attempt(g.all_reduce(std::span(x)));
}

runtime::task<> reduce_each(ops::collective g, rank_id me, std::size_t world, std::vector<std::size_t> sizes,
                            std::size_t at_once, group_outcomes& all) {
  runtime::scope& here = co_await runtime::this_scope;
  auto& mine = all.of_rank[me];
  for (std::size_t i = 0; i < sizes.size(); i += at_once) {
    const std::size_t now = std::min(at_once, sizes.size() - i);
    std::vector<std::vector<float>> x;
    std::vector<runtime::result<>> outcomes(now);
    for (std::size_t k = 0; k < now; ++k) x.push_back(contribution(me, sizes[i + k]));
    runtime::scope calls(here);
    for (std::size_t k = 0; k < now; ++k) calls.spawn(reduce_one(g, x[k], outcomes[k]));
    co_await calls.join();
    for (std::size_t k = 0; k < now; ++k) {
      if (outcomes[k] && wrong_sums(x[k], world) != 0) ++all.wrong;
      mine.push_back(outcomes[k]);
    }
  }
}

group_outcomes reduce_all(world& w, const std::vector<ops::collective>& groups, const std::vector<std::size_t>& sizes,
                          std::size_t at_once) {
  group_outcomes all;
  all.of_rank.resize(w.ranks.size());
  runtime::scope working(w.clock);
  for (rank_id r = 0; r < w.ranks.size(); ++r)
    working.spawn(reduce_each(groups[r], r, w.ranks.size(), sizes, at_once, all));
  runtime::run_until(w.clock, [&] { return working.running() == 0; });
  return all;
}

std::vector<ops::collective> declare_all(world& w, const ops::collective_options& op) {
  std::vector<ops::collective> groups;
  for (auto& r : w.ranks) groups.emplace_back(*r, op);
  return groups;
}

group_flights join_group_flights(const std::vector<std::unique_ptr<ops::rank>>& ranks) {
  using key = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint32_t, bool>;
  struct seen {
    std::set<std::uint64_t> digests;
    std::size_t ranks = 0;
    bool timed = false;
  };
  std::map<key, seen> all;
  for (const auto& rank : ranks) {
    for (const auto& r : rank->flight().in_order()) {
      if (!runtime::is_transfer(r.what)) continue;
      auto& s = all[key{r.op, r.generation, r.invocation, r.tag, (r.flags & 4U) != 0}];
      if (r.digest != 0) s.digests.insert(r.digest);
      ++s.ranks;
      s.timed = s.timed || (r.flags & 1U) != 0;
    }
  }
  group_flights f;
  for (const auto& [k, s] : all) {
    f.mismatches += s.digests.size() > 1 ? 1 : 0;
    if (std::get<4>(k)) continue;
    f.invocations += s.ranks == ranks.size() ? 1 : 0;
    f.timed += s.timed ? 1 : 0;
    f.digests.insert(s.digests.begin(), s.digests.end());
  }
  return f;
}

void wait_a_while(world& w, runtime::time_ns span) {
  const auto sleep = [](runtime::time_ns until) -> runtime::task<> {
    auto woken = co_await runtime::sleep_until(until);
    static_cast<void>(woken);
  };
  runtime::run(w.clock, sleep(w.clock.deadline_in(span)));
}

}  // namespace parley::tests
