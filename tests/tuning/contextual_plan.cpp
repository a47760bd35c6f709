#include <parley/tuning/outcome.hpp>
#include <parley/tuning/planners/contextual_plan.hpp>
#include <parley/tuning/planners/halving_plan.hpp>
#include <parley/tuning/planners/kernel_plan.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

using namespace parley::tuning;

static_assert(planner<halving_plan> && planner<contextual_plan> && planner<kernel_plan>);

namespace {

std::vector<std::size_t> all_of(contextual_plan& plan) {
  std::vector<std::size_t> order;
  while (const auto t = plan.next()) order.push_back(t->candidate);
  return order;
}

}  // namespace

TEST_CASE("grouped trials finish one config before the next, and interleaved trials take turns") {
  contextual_plan grouped(3, {.iterations = 2});
  CHECK(all_of(grouped) == std::vector<std::size_t>{0, 0, 1, 1, 2, 2});
  contextual_plan interleaved(3, {.iterations = 2, .order = contextual_order::interleaved});
  CHECK(all_of(interleaved) == std::vector<std::size_t>{0, 1, 2, 0, 1, 2});
}

TEST_CASE("warm-ups precede the iterations of their config and do not count") {
  contextual_plan plan(2, {.iterations = 2, .warm_ups = 1});
  std::vector<trial> first;
  for (int i = 0; i < 3; ++i) first.push_back(*plan.next());
  CHECK(first == std::vector<trial>{{0, trial_kind::warm_up, 0}, {0, trial_kind::timed, 0}, {0, trial_kind::timed, 1}});
  CHECK_FALSE(plan.is_last(first[0]));
  CHECK_FALSE(plan.is_last(first[1]));
  CHECK(plan.is_last(first[2]));
  plan.ended(first[0], 100.0);
  CHECK(std::isinf(plan.average_ns(0)));
  plan.ended(first[1], 10.0);
  plan.ended(first[2], 30.0);
  CHECK(plan.average_ns(0) == 20);
}

TEST_CASE("a plan is finished once all its trials have ended, in any order, with a time or without") {
  contextual_plan plan(2, {.iterations = 1});
  const auto first = plan.next();
  const auto second = plan.next();
  CHECK_FALSE(plan.next());
  CHECK(plan.taken() == 2);
  plan.ended(*second, std::nullopt);  // another config ran in its place
  CHECK_FALSE(plan.finished());
  plan.ended(*first, 5.0);
  CHECK(plan.finished());
  CHECK(plan.average_ns(0) == 5);
  CHECK(std::isinf(plan.average_ns(1)));
}

TEST_CASE("a dropped config keeps its places without a time, and the first remaining config stands in for it") {
  contextual_plan plan(3, {.iterations = 1});
  plan.drop(0);
  CHECK(plan.dropped(0));
  CHECK(plan.stand_in() == 1);
  CHECK(all_of(plan) == std::vector<std::size_t>{0, 1, 2});
  plan.drop(1);
  plan.drop(2);
  CHECK_FALSE(plan.stand_in());
  CHECK(std::isinf(plan.average_ns(0)));
}

TEST_CASE("a contextual plan needs a config and an iteration") {
  CHECK_THROWS_AS(contextual_plan(0, {}), invalid);
  CHECK_THROWS_AS(contextual_plan(1, {.iterations = 0}), invalid);
}
