// CASES section 3, end: the decisions that every rank knows in the end, and what a rank that takes no part notices of the tuning.
#include <parley/collective.hpp>
#include <parley/compute.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/simulation/mutants.hpp>
#include <parley/simulation/world/dice.hpp>
#include <parley/simulation/world/world.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::simulation;
using runtime::task;

namespace {

/// A star config that first runs a kernel, whose duration has 3 % noise.
class noisy_star final : public group_config {
 public:
  noisy_star(const char* name, double ns_per_kib, time_ns fixed_ns, rank_id self, std::uint64_t number,
             runtime::executor& ex)
      : group_config({.name = name, .wire_class = name}), ns_per_kib_(ns_per_kib), fixed_ns_(fixed_ns),
        luck_(7, purpose::kernel, number * 100 + self), executor_(ex) {}
  task<> lead(group_call& g) const override { return run(g, &group_config::lead); }
  task<> work(group_call& g) const override { return run(g, &group_config::work); }

 private:
  using role = task<> (group_config::*)(group_call& g) const;
  task<> run(group_call& g, role as) const {
    const double usual = static_cast<double>(fixed_ns_) + ns_per_kib_ * static_cast<double>(g.total_bytes()) / 1024;
    const double noise = static_cast<double>(luck_.below(60'001)) / 1e6 - 0.03;
    auto prepared = co_await runtime::sleep_until(executor_.deadline_in(static_cast<time_ns>(usual * (1 + noise))));
    static_cast<void>(prepared);
    co_await (star_.get()->*as)(g);
  }
  double ns_per_kib_;
  time_ns fixed_ns_;
  mutable dice luck_;
  runtime::executor& executor_;
  group_config_ptr star_ = star();
};

constexpr rank_id members = 4;
constexpr std::size_t keys = 20;  // one for each size: 8 B, 16 B, …, 4 MiB
constexpr int rounds = 60;

task<> sums(ops::rank* self) {
  runtime::executor& ex = self->where();
  const auto config = [&](const char* name, double ns_per_kib, time_ns fixed_ns, std::uint64_t number) {
    return std::make_shared<const noisy_star>(name, ns_per_kib, fixed_ns, self->id(), number, ex);
  };
  collective_options op;
  op.name = "sums";
  op.groups = {{0, 1, 2, 3}};
  // The best config changes with the size. Close to each change, two configs are within the noise of each other.
  op.configs = {config("even", 300, 60'000, 0), config("low_latency", 600, 20'000, 1), config("wide", 100, 200'000, 2),
                config("much_like_even", 305, 60'500, 3)};
  collective group(*self, op);
  if (group.idle()) co_return;
  std::vector<std::vector<float>> data;
  for (std::size_t k = 0; k < keys; ++k) data.emplace_back(std::size_t{2} << k);
  for (int round = 0; round < rounds; ++round) {
    for (auto& values : data) {
      std::fill(values.begin(), values.end(), 1.0F);
      co_await group.all_reduce(std::span(values));
      if (values.back() != 4.0F) runtime::raise({runtime::errc::config_failed, "a sum is wrong"});
    }
  }
  co_await self->settle(std::chrono::seconds(1));
}

// Computes for 1 ms again and again, and records how long each round took.
task<> compute_for_ever(ops::rank* self, std::vector<time_ns>* periods) {
  for (;;) {
    const time_ns began = self->where().precise_now();
    auto nothing = [] {};
    co_await runtime::compute(nothing, 1'000'000);
    periods->push_back(self->where().precise_now() - began);
  }
}

time_ns p99(std::vector<time_ns> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() * 99 / 100];
}

world_options one_more_rank(actors::tuning_policy policy) {
  world_options o;
  o.ranks = members + 1;
  o.settings.plan.budget_fraction = 1e9;
  o.settings.policy = policy;
  o.settings.flight_records = 1024;
  return o;
}

// Four ranks sum. One more rank declares the op and then only computes; each event that it handles costs it one microsecond.
struct sums_and_bystander {
  explicit sums_and_bystander(actors::tuning_policy policy, std::string_view mutant = {})
      : wrong(make_mutant(mutant)), w(one_more_rank(policy), &sky) {
    if (wrong) sky.tap(*wrong);
    sky.begin(w.stage());
    w.start_all([this](rank_id r) {
      w.programs_of(r).spawn(sums(&w[r]));
      if (r == members) w.programs_of(r).spawn(compute_for_ever(&w[r], &periods));
    });
    w.set_pace(members, world::pace::slow);
    const auto over = [this] {
      for (rank_id r = 0; r < members; ++r) {
        if (w.programs_of(r).running() != 0) return false;
      }
      return true;
    };
    CHECK(w.stage().run_until(over, 600'000'000'000));
  }
  std::uint64_t received_by_bystander() {
    const auto& all = w.network()[members].statistics().received;
    return std::accumulate(std::begin(all), std::end(all), std::uint64_t{0});
  }
  // How many decisions of rank `r` differ from those of rank 0; all of them if it does not know the same number of keys.
  std::size_t disagreements_of(rank_id r) const {
    const auto known = decisions_of(r);
    const auto right = decisions_of(0);
    if (known.size() != right.size()) return keys;
    return static_cast<std::size_t>(std::count_if(known.begin(), known.end(), [&](const auto& d) {
      const auto at = right.find(d.first);
      return at == right.end() || at->second != d.second;
    }));
  }
  std::map<std::string, std::uint64_t> decisions_of(rank_id r) const {
    std::map<std::string, std::uint64_t> all;
    for (const edge_decision& d : w.find(r)->decisions()) all[d.decision.key] = d.decision.digest;
    return all;
  }
  std::vector<time_ns> periods;  // declared before the world, whose programs append to it
  tape calm;
  weather sky{calm, 1, members + 1};
  std::unique_ptr<wire_tap> wrong;
  world w;
};

}  // namespace

TEST_CASE("with 20 keys on 4 ranks and 3 % noise, every rank knows all 20 decisions, and no two ranks disagree") {
  sums_and_bystander tuned(actors::tuning_policy::online);
  for (rank_id r = 0; r < members; ++r) {
    CAPTURE(r);
    CHECK(tuned.decisions_of(r).size() == keys);
    CHECK(tuned.disagreements_of(r) == 0);
  }
  std::set<std::uint64_t> winners;
  for (const auto& [key, digest] : tuned.decisions_of(0)) winners.insert(digest);
  CHECK(winners.size() >= 3);  // the decisions are not all the same
  const sums_and_bystander lied_to(actors::tuning_policy::online, "old-decision");
  std::size_t disagreements = 0;
  for (rank_id r = 1; r < members; ++r) disagreements += lied_to.disagreements_of(r);
  CHECK(disagreements > 0);

  // The rank that takes no part gets none of these messages, and computes as fast as without tuning.
  CHECK(tuned.received_by_bystander() == 0);
  CHECK(tuned.periods.size() > 200);
  const sums_and_bystander untuned(actors::tuning_policy::off);
  const auto usual_ns = static_cast<double>(p99(untuned.periods));
  CHECK(static_cast<double>(p99(tuned.periods)) <= 1.05 * usual_ns);
  CHECK(usual_ns <= 1.05 * 1e6);
}
