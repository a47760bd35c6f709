#include <parley/kernel_key.hpp>
#include <parley/tuning/planners/kernel_plan.hpp>

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <vector>

using namespace parley::tuning;
using act = trial_kind;

namespace {

struct model {
  std::vector<double> takes_ns;
  std::map<std::size_t, act> fails{};  ///< candidate -> the act in which it fails
};

struct outcome_of {
  std::map<std::pair<std::size_t, act>, std::size_t> runs;
  std::vector<trial> order;
  decision best;
};

outcome_of run_all(kernel_plan& trials, const model& m) {
  outcome_of all;
  while (const auto step = trials.next()) {
    all.order.push_back(*step);
    ++all.runs[{step->candidate, step->what}];
    const auto fault = m.fails.find(step->candidate);
    if (fault != m.fails.end() && fault->second == step->what) {
      trials.failed("as told");
    } else {
      trials.ended(m.takes_ns[step->candidate]);
    }
  }
  const std::vector<std::string> names(m.takes_ns.size(), "candidate");
  all.best = trials.decide(names);
  return all;
}

}  // namespace

TEST_CASE("each candidate of a kernel is probed, checked, warmed up and timed before the next one") {
  settings s;
  s.max_warmup_iterations = 2;
  s.max_tuning_iterations = 4;
  kernel_plan trials(2, s, kernel_plan::checks::against_default);
  const auto all = run_all(trials, {{1e6, 5e5}});
  std::vector<trial> expected;
  const auto add = [&](std::size_t times, std::size_t candidate, act what) {
    expected.insert(expected.end(), times, trial{candidate, what});
  };
  add(3, 0, act::probe);
  add(2, 0, act::warm_up);
  add(4, 0, act::timed);
  add(3, 1, act::probe);
  add(1, 0, act::reference);
  add(1, 1, act::check);
  add(2, 1, act::warm_up);
  add(4, 1, act::timed);
  CHECK(all.order == expected);
  CHECK(all.best.winner == 1);
  CHECK(trials.timed_runs() == 8);
}

TEST_CASE("a hopeless candidate costs only its probe") {
  kernel_plan trials(3, settings{}, kernel_plan::checks::against_default);
  const auto all = run_all(trials, {{1e6, 2.1e6, 0.9e6}});
  CHECK(all.runs.at({1, act::probe}) == kernel_plan::probing_runs);
  CHECK(all.runs.count({1, act::timed}) == 0);
  CHECK(all.runs.count({1, act::check}) == 0);
  CHECK(trials.result_of(1).detail.starts_with("hopeless"));
  CHECK(all.best.winner == 2);
}

TEST_CASE("the duration limits everything after a candidate's first run") {
  const auto runs = [](std::uint32_t duration_ms, std::uint32_t warm_ups, double takes_ns) {
    settings s;
    s.max_tuning_duration_ms = duration_ms;
    s.max_warmup_iterations = warm_ups;
    kernel_plan trials(1, s, kernel_plan::checks::none);
    const auto all = run_all(trials, {{takes_ns}});
    CHECK(trials.result_of(0).measured());
    CHECK(trials.result_of(0).time_ns == takes_ns);
    return all.order.size();
  };
  CHECK(runs(5, 0, 40e6) == 2);  // its first run, and the timed one
  CHECK(runs(5, 10, 40e6) == 2);
  CHECK(runs(30, 0, 12e6) == 3);  // after the probe's two warm runs, no time is left for a third timed run
  CHECK(runs(30, 0, 29e6) == 3);
  CHECK(runs(30, 100, 1e6) == 31);
  CHECK(runs(0, 0, 1e3) == 2);
}

TEST_CASE("a slow first run does not decide: the run after it counts") {
  settings s;
  s.max_tuning_duration_ms = 30;
  kernel_plan trials(2, s, kernel_plan::checks::none);
  std::size_t of_default = 0;
  while (const auto step = trials.next()) trials.ended(step->candidate == 1 ? 2e6 : of_default++ == 0 ? 100e6 : 1e6);
  CHECK(trials.decide(std::vector<std::string>{"default", "other"}).winner == 0);
}

TEST_CASE("a candidate is timed min(iterations, duration / estimate) times, and never 0 times") {
  const auto timed_runs = [](std::uint32_t iterations, std::uint32_t duration_ms, double takes_ns) {
    settings s;
    s.max_tuning_iterations = iterations;
    s.max_tuning_duration_ms = duration_ms;
    kernel_plan trials(1, s, kernel_plan::checks::none);
    return run_all(trials, {{takes_ns}}).runs.at({0, act::timed});
  };
  CHECK(timed_runs(100, 30, 1e6) == 28);  // 28 more after the two of its probe
  CHECK(timed_runs(100, 30, 1e5) == 100);
  CHECK(timed_runs(100, 30, 1e9) == 1);
  CHECK(timed_runs(0, 30, 1e6) == 1);
  CHECK(timed_runs(100, 0, 1e6) == 1);
  CHECK(timed_runs(2147483647, 1, 1e3) == 998);
}

TEST_CASE("a warm-up limit of 0 is no limit, and two limits of 0 mean no warm-up") {
  const auto warm_ups = [](std::uint32_t iterations, std::uint32_t duration_ms) {
    settings s;
    s.max_warmup_iterations = iterations;
    s.max_warmup_duration_ms = duration_ms;
    kernel_plan trials(1, s, kernel_plan::checks::none);
    const auto all = run_all(trials, {{1e6}});
    const auto found = all.runs.find({0, act::warm_up});
    return found == all.runs.end() ? 0 : found->second;
  };
  CHECK(warm_ups(0, 0) == 0);
  CHECK(warm_ups(7, 0) == 7);
  CHECK(warm_ups(0, 5) == 5);
  CHECK(warm_ups(7, 5) == 5);
  CHECK(warm_ups(3, 5) == 3);
}

TEST_CASE("a candidate that throws or is wrong has no time, however fast it was, and gives the reason") {
  for (const act where : {act::probe, act::check, act::timed}) {
    kernel_plan trials(2, settings{}, kernel_plan::checks::against_default);
    const auto all = run_all(trials, {{1e6, 1e3}, {{1, where}}});
    CHECK(all.best.winner == 0);
    CHECK_FALSE(trials.result_of(1).measured());
    CHECK(trials.result_of(1).detail == "as told");
    CHECK((trials.result_of(1).status == aggregate_status::wrong_data) == (where == act::check));
  }
}

TEST_CASE("a dropped candidate is never run, and within noise the default stays") {
  kernel_plan trials(3, settings{}, kernel_plan::checks::none);
  trials.drop(1, "family simd is switched off");
  const auto all = run_all(trials, {{1e6, 1e3, 0.99e6}});
  CHECK(all.runs.count({1, act::probe}) == 0);
  CHECK(all.best.winner == 0);
  CHECK(all.best.reason == decision_reason::within_noise_of_default);
  CHECK_THROWS_AS(kernel_plan(0, settings{}, kernel_plan::checks::none), invalid);
}

TEST_CASE("a kernel's key has one text, whatever the order of its parameters") {
  const std::uint64_t m = 64;
  const kernel_key a{{"m", m}, {"dtype", "f32"}};
  const kernel_key b{{"dtype", "f32"}, {"m", m}};
  CHECK(parameters_text(a).value() == "dtype=f32 m=64");
  CHECK(parameters_text(b).value() == "dtype=f32 m=64");
  CHECK(parameters_text(kernel_key{}).value() == "all");
  CHECK(a == kernel_key{{"m", m}, {"dtype", "f32"}});
  CHECK_FALSE(a == kernel_key{{"m", m + 1}, {"dtype", "f32"}});
  CHECK_FALSE(a == kernel_key{{"m", m}});
  CHECK(a.hash() == kernel_key{{"m", m}, {"dtype", "f32"}}.hash());
  CHECK_FALSE(a.hash() == kernel_key{{"m", m + 1}, {"dtype", "f32"}}.hash());
}

TEST_CASE("a key that a results line cannot hold is refused") {
  const std::uint64_t m = 64;
  CHECK(parameters_text({{"m", m}, {"m", m}}).reason().kind == fault::duplicate);
  CHECK_FALSE(parameters_text({{"m,n", m}}));
  CHECK_FALSE(parameters_text({{"m", "a b"}}));
  CHECK_THROWS_AS(
      (kernel_key{{"a", m}, {"b", m}, {"c", m}, {"d", m}, {"e", m}, {"f", m}, {"g", m}, {"h", m}, {"i", m}}), invalid);
}
