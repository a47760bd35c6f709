#include <parley/tuning/planners/guided_plan.hpp>
#include <parley/tuning/planners/time_forest.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <string>
#include <vector>

using namespace parley::tuning;

namespace {

constexpr std::size_t tiles = 12, unrolls = 6, orders = 4;

/// A space of 12 * 12 * 6 * 4 = 3,456 configs: two tile sizes, an unrolling, and an order of loops.
std::vector<config_identity> space() {
  std::vector<config_identity> all;
  for (std::size_t m = 0; m < tiles; ++m) {
    for (std::size_t n = 0; n < tiles; ++n) {
      for (std::size_t u = 0; u < unrolls; ++u) {
        for (std::size_t o = 0; o < orders; ++o)
          all.push_back({.name = "tiled",
                         .parameters = {{"m", std::uint64_t{8} << (m / 2)},
                                        {"n", 8 * (n + 1)},
                                        {"unroll", u + 1},
                                        {"order", std::string(1, static_cast<char>('a' + o))}}});
      }
    }
  }
  return all;
}

/// A time with one best place, some cliffs, and interactions. `shape` moves the best place.
double time_of(const config_identity& c, double shape = 0) {
  const auto m = std::log2(static_cast<double>(*c.number("m"))), n = static_cast<double>(*c.number("n")) / 8,
             u = static_cast<double>(*c.number("unroll"));
  const bool good_order = c.find("order") == "c";
  double ns = 20'000 + 4'000 * std::abs(m - 5 - shape) + 3'000 * std::abs(n - 7 + shape) + 2'000 * std::abs(u - m + 2);
  if (!good_order) ns *= 1.5;
  if (m * n > 50) ns *= 2;  // it does not fit into a cache
  return ns;
}

struct outcome_of_search {
  decision best;
  std::size_t explored = 0;
  double spent_ns = 0;
  std::vector<std::size_t> order;
};

outcome_of_search search(guided_plan& plan, const std::function<double(std::size_t)>& takes_ns) {
  outcome_of_search done;
  std::int64_t now = 1'000'000;
  std::vector<std::string> names;
  while (const auto next = plan.next()) {
    REQUIRE(done.order.size() < 2'000'000);
    done.order.push_back(next->candidate);
    const auto took = static_cast<std::int64_t>(takes_ns(next->candidate));
    plan.ended(now, now + took);
    now += took + 100;
    done.spent_ns += static_cast<double>(took);
  }
  done.best = plan.decide(names);
  done.explored = plan.explored();
  return done;
}

}  // namespace

TEST_CASE("a forest orders configs that it has not seen, by the parameters that matter") {
  const auto all = space();
  time_forest forest(all);
  CHECK(forest.columns() == 5);
  draws chance(3);
  std::vector<std::size_t> tried;
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    tried.push_back(chance.below(all.size()));
    times.push_back(std::log(time_of(all[tried.back()])));
  }
  forest.learn(tried, times, 7);
  int right = 0, pairs = 0;
  for (int i = 0; i < 2000; ++i) {
    const std::size_t a = chance.below(all.size()), b = chance.below(all.size());
    const double difference = std::log(time_of(all[a]) / time_of(all[b]));
    if (std::abs(difference) < 0.2) continue;
    ++pairs;
    right += (forest.estimate(a).mean - forest.estimate(b).mean) * difference > 0 ? 1 : 0;
  }
  CHECK(right > pairs * 85 / 100);
  time_forest again(all);
  again.learn(tried, times, 7);
  CHECK(again.estimate(17).mean == forest.estimate(17).mean);
  CHECK(forest.differences(0, 1) == 1);  // the order of loops
}

TEST_CASE("a guided search finds a config within 5 % of the best of 3,456 by exploring less than a fifth of them") {
  const auto all = space();
  settings s;
  s.max_search_duration_ms = 1'000'000;  // only the model ends the exploration
  std::vector<double> regret;
  std::size_t most = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const double shape = static_cast<double>(seed % 5) - 2;
    double best_ns = infinite_ns;
    for (const auto& c : all) best_ns = std::min(best_ns, time_of(c, shape));
    guided_plan plan(all, s, kernel_plan::checks::none, {.seed = seed});
    const auto found = search(plan, [&](std::size_t c) { return time_of(all[c], shape); });
    regret.push_back(time_of(all[found.best.winner], shape) / best_ns - 1);
    most = std::max(most, found.explored);
  }
  std::sort(regret.begin(), regret.end());
  INFO("median " << regret[10] << ", worst " << regret.back() << ", explored at most " << most);
  CHECK(regret[10] <= 0.02);
  CHECK(regret.back() <= 0.05);
  CHECK(most < all.size() / 5);
}

TEST_CASE("a guided search ends when its time is over, and it repeats itself exactly") {
  const auto all = space();
  settings s;
  s.max_search_duration_ms = 50;
  const auto takes = [&](std::size_t c) { return time_of(all[c]); };
  guided_plan one(all, s, kernel_plan::checks::none, {}), other(all, s, kernel_plan::checks::none, {});
  const auto first = search(one, takes), second = search(other, takes);
  CHECK(first.order == second.order);
  CHECK(first.best.winner == second.best.winner);
  CHECK(first.explored < 100);
  CHECK(first.spent_ns < 0.7 * 50e6 + 9 * (30e6 + 5e6) + 5e6);
  CHECK(first.best.sentence.find(" of 3456 were tried") != std::string::npos);
}

TEST_CASE("hints are explored right after the default, so a search that knows a good neighbour needs no luck") {
  const auto all = space();
  settings s;
  s.max_search_duration_ms = 3;
  std::size_t best = 0;
  for (std::size_t c = 0; c < all.size(); ++c) {
    if (time_of(all[c]) < time_of(all[best])) best = c;
  }
  guided_plan plan(all, s, kernel_plan::checks::none, {.hints = {best, 0, 5'000'000}});
  CHECK(plan.next()->candidate == 0);
  CHECK(search(plan, [&](std::size_t c) { return time_of(all[c]); }).best.winner == best);
}

TEST_CASE("candidates that fail, are left out or give wrong numbers never win a guided search") {
  const auto all = space();
  settings s;
  s.max_search_duration_ms = 200;
  guided_plan plan(all, s, kernel_plan::checks::against_default, {});
  for (std::size_t c = 1; c < all.size(); ++c) {
    if (all[c].find("order") == "c") plan.drop(c, "it is forbidden");
  }
  std::int64_t now = 1'000'000;
  std::set<std::size_t> ran;
  while (const auto next = plan.next()) {
    const std::size_t c = next->candidate;
    ran.insert(c);
    const bool fails = all[c].find("order") == "b";
    const bool wrong = next->what == trial_kind::check && all[c].number("unroll") == 4U;
    if (c != 0 && (fails || wrong)) {
      plan.failed(fails ? "it throws" : "wrong numbers");
      continue;
    }
    const auto took = static_cast<std::int64_t>(time_of(all[c]));
    plan.ended(now, now + took);
    now += took;
  }
  const decision d = plan.decide({});
  CHECK(all[d.winner].find("order") != "c");
  CHECK(all[d.winner].find("order") != "b");
  CHECK(all[d.winner].number("unroll") != 4U);
  for (const std::size_t c : ran) {
    if (c != 0) CHECK(all[c].find("order") != "c");
  }
  REQUIRE(d.evidence.size() == all.size());
  for (const std::size_t c : ran) {
    if (all[c].find("order") == "b") CHECK(plan.result_of(c).status == aggregate_status::failed);
  }
  CHECK(plan.result_of(2).detail == "it is forbidden");
}

TEST_CASE("neither a slow default nor slow first runs keep a guided search from finding a fast candidate") {
  const auto all = space();
  settings s;
  s.max_search_duration_ms = 200;
  guided_plan plan(all, s, kernel_plan::checks::none, {});
  std::set<std::size_t> warm;
  const auto found = search(plan, [&](std::size_t c) {
    const double compiling_ns = warm.insert(c).second ? 2e6 : 0;
    return (c == 0 ? 800e6 : time_of(all[c])) + compiling_ns;
  });
  CHECK(found.best.winner != 0);
  CHECK(found.explored > 20);
  CHECK(time_of(all[found.best.winner]) < 2 * time_of(all[1306]));
}

TEST_CASE("if all finalists of a guided search give wrong numbers, the next best ones follow") {
  const auto all = space();
  settings s;
  s.max_search_duration_ms = 500;
  guided_plan plan(all, s, kernel_plan::checks::against_default, {});
  std::int64_t now = 1'000'000;
  std::set<std::size_t> wrong;
  while (const auto next = plan.next()) {
    // The first sixteen that are checked are wrong.
    if (next->what == trial_kind::check && (wrong.contains(next->candidate) || wrong.size() < 16)) {
      wrong.insert(next->candidate);
      plan.failed("wrong numbers");
      continue;
    }
    const auto took = static_cast<std::int64_t>(next->candidate == 0 ? 500'000 : time_of(all[next->candidate]));
    plan.ended(now, now + took);
    now += took;
  }
  CHECK(wrong.size() == 16);
  const decision d = plan.decide({});
  CHECK(d.winner != 0);
  CHECK_FALSE(wrong.contains(d.winner));
  for (const std::size_t c : wrong) CHECK(plan.result_of(c).status == aggregate_status::wrong_data);
}

TEST_CASE("with few candidates, or without a limit for the search, all are tried") {
  const auto all = space();
  settings s;
  guided_plan few({all.begin(), all.begin() + 64}, s, kernel_plan::checks::none, {});
  CHECK(few.explored() == 64);
  const auto found = search(few, [&](std::size_t c) { return time_of(all[c]); });
  CHECK(std::set<std::size_t>(found.order.begin(), found.order.end()).size() == 64);
  s.max_search_duration_ms = 0;
  guided_plan without({all.begin(), all.begin() + 100}, s, kernel_plan::checks::none, {});
  const auto exhaustive = search(without, [&](std::size_t c) { return time_of(all[c]); });
  CHECK(std::set<std::size_t>(exhaustive.order.begin(), exhaustive.order.end()).size() == 100);
}

TEST_CASE("if all but the default fail, a guided search keeps the default") {
  const auto all = space();
  guided_plan plan(all, {}, kernel_plan::checks::none, {});
  std::int64_t now = 1;
  std::size_t runs = 0;
  while (const auto next = plan.next()) {
    REQUIRE(++runs < 100'000);
    if (next->candidate != 0) {
      plan.failed("it throws");
      continue;
    }
    plan.ended(now, now + 50'000);
    now += 50'000;
  }
  CHECK(plan.decide({}).winner == 0);
}
