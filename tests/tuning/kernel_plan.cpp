#include <parley/kernel_key.hpp>
#include <parley/tuning/planners/kernel_plan.hpp>

#include <doctest/doctest.h>

#include <map>
#include <string>
#include <utility>
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
  std::int64_t now_ns = 1;
  while (const auto step = trials.next()) {
    all.order.push_back(*step);
    ++all.runs[{step->candidate, step->what}];
    const auto fault = m.fails.find(step->candidate);
    if (fault != m.fails.end() && fault->second == step->what) {
      trials.failed("as told");
    } else {
      const std::int64_t began_ns = now_ns;
      now_ns += std::int64_t(m.takes_ns[step->candidate]);
      trials.ended(began_ns, now_ns);
    }
  }
  const std::vector<std::string> names(m.takes_ns.size(), "candidate");
  all.best = trials.decide(names);
  return all;
}

}  // namespace

TEST_CASE("each candidate of a kernel is probed and checked, and then all are timed in turns, forward and backward") {
  settings s;
  s.max_warmup_iterations = 2;
  s.max_tuning_iterations = 9;
  kernel_plan trials(2, s, kernel_plan::checks::against_default);
  const auto all = run_all(trials, {{1.6e6, 1.56e6}});
  std::vector<trial> expected;
  const auto add = [&](std::size_t times, std::size_t candidate, act what) {
    expected.insert(expected.end(), times, trial{candidate, what});
  };
  add(3, 0, act::probe);
  add(3, 1, act::probe);
  add(1, 0, act::reference);
  add(1, 1, act::check);
  add(2, 0, act::warm_up);
  add(2, 0, act::timed);  // 9 runs in 8 turns
  add(2, 1, act::warm_up);
  add(2, 1, act::timed);
  for (int turn = 1; turn < 8; ++turn) {
    add(1, turn % 2, act::timed);
    add(1, 1 - turn % 2, act::timed);
  }
  CHECK(all.order == expected);
  CHECK(trials.timed_runs() == 18);
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
  while (const auto step = trials.next())
    trials.ended(0, step->candidate == 1 ? 2'000'000 : of_default++ == 0 ? 100'000'000 : 1'000'000);
  CHECK(trials.decide(std::vector<std::string>{"default", "other"}).winner == 0);
}

TEST_CASE("a kernel that is shorter than the spinning of other threads begins its turns with runs that do not count") {
  settings s;
  kernel_plan trials(2, s, kernel_plan::checks::none);
  const auto all = run_all(trials, {{1e4, 0.9e4}});
  CHECK(all.best.winner == 1);
  const std::size_t settling = kernel_plan::settling_ns / 9'000;
  CHECK(all.runs.at({1, act::probe}) > settling);
  CHECK(all.runs.at({1, act::warm_up}) > kernel_plan::most_turns * settling);
  CHECK(all.runs.at({1, act::timed}) == 100);
}

TEST_CASE("a library whose threads spin after its calls does not make the others look slow") {
  // For 0.8 ms after a run of candidate 1, every other candidate takes three times as long.
  settings s;
  kernel_plan trials(3, s, kernel_plan::checks::none);
  std::int64_t now_ns = 1, spun_ns = -1'000'000;
  while (const auto step = trials.next()) {
    const std::int64_t alone_ns = step->candidate == 2 ? 8'000 : step->candidate == 1 ? 9'000 : 12'000;
    const bool slowed = step->candidate != 1 && now_ns < spun_ns + 800'000;
    const std::int64_t began_ns = now_ns;
    now_ns += slowed ? 3 * alone_ns : alone_ns;
    if (step->candidate == 1) spun_ns = now_ns;
    trials.ended(began_ns, now_ns);
  }
  CHECK(trials.decide(std::vector<std::string>{"default", "spinning", "fast"}).winner == 2);
  CHECK(trials.result_of(0).time_ns == doctest::Approx(12'000));
}

TEST_CASE("a time of general slowness delays all candidates alike") {
  // From 40 to 100 ms everything takes twice as long. One candidate after the other, the first would meet it alone.
  settings s;
  kernel_plan trials(2, s, kernel_plan::checks::none);
  std::int64_t now_ns = 1;
  while (const auto step = trials.next()) {
    const bool slow = now_ns > 40'000'000 && now_ns < 100'000'000;
    const std::int64_t began_ns = now_ns;
    now_ns += (step->candidate == 1 ? 800'000 : 1'000'000) * (slow ? 2 : 1);
    trials.ended(began_ns, now_ns);
  }
  CHECK(trials.decide(std::vector<std::string>{"default", "faster"}).winner == 1);
}

TEST_CASE("a candidate that is interrupted in each turn pays for it, though most of its runs are fast") {
  settings s;
  kernel_plan trials(2, s, kernel_plan::checks::none);
  std::int64_t now_ns = 1;
  std::size_t runs = 0;
  while (const auto step = trials.next()) {
    const std::int64_t began_ns = now_ns;
    now_ns += step->candidate == 0 ? 10'000 : ++runs % 10 == 0 ? 300'000 : 6'000;
    trials.ended(began_ns, now_ns);
  }
  CHECK(trials.decide(std::vector<std::string>{"default", "interrupted"}).winner == 0);
}

TEST_CASE("a candidate that stalls now and then does not win, however fast it is in between") {
  // Like two threads that wait for each other on one processor: candidate 1 stalls for 8 ms a call, 60 ms out of 400.
  kernel_plan trials(2, settings{}, kernel_plan::checks::none);
  std::int64_t now_ns = 1;
  while (const auto step = trials.next()) {
    const bool stalls = step->candidate == 1 && now_ns % 400'000'000 > 90'000'000 && now_ns % 400'000'000 < 150'000'000;
    // Another program interrupts both candidates for 4 ms, every 8 ms.
    const bool interrupted = now_ns % 8'000'000 < 20'000;
    const std::int64_t began_ns = now_ns;
    now_ns += stalls ? 8'000'000 : (step->candidate == 0 ? 13'000 : 9'000) + (interrupted ? 4'000'000 : 0);
    trials.ended(began_ns, now_ns);
  }
  CHECK(trials.decide(std::vector<std::string>{"default", "stalling"}).winner == 0);
  CHECK(trials.result_of(0).count == kernel_plan::disturbed_turns);
}

TEST_CASE("one long interruption of the faster candidate does not matter") {
  kernel_plan trials(2, settings{}, kernel_plan::checks::none);
  std::int64_t now_ns = 1;
  bool interrupted = false;
  while (const auto step = trials.next()) {
    const std::int64_t began_ns = now_ns;
    now_ns += step->candidate == 0 ? 13'000 : 9'000;
    if (step->candidate == 1 && step->what == act::timed && !std::exchange(interrupted, true)) now_ns += 5'000'000;
    trials.ended(began_ns, now_ns);
  }
  CHECK(trials.decide(std::vector<std::string>{"default", "faster"}).winner == 1);
}

TEST_CASE("a candidate that is surely slower gets no further turns") {
  settings s;
  kernel_plan trials(2, s, kernel_plan::checks::none);
  const auto all = run_all(trials, {{1.2e6, 2e6}});
  CHECK(all.best.winner == 0);
  CHECK(all.runs.at({0, act::timed}) == 23);
  CHECK(all.runs.at({1, act::timed}) < 6);
}

TEST_CASE("a wrong candidate with a long first run is compared all the same") {
  kernel_plan trials(2, settings{}, kernel_plan::checks::against_default);
  std::size_t runs = 0;
  while (const auto step = trials.next()) {
    if (step->what == act::check) {
      trials.failed("wrong");
    } else {
      trials.ended(0, step->candidate == 0 ? 1'000'000 : runs++ == 0 ? 50'000'000 : 500'000);
    }
  }
  CHECK(trials.decide(std::vector<std::string>{"default", "wrong"}).winner == 0);
  CHECK(trials.result_of(1).status == aggregate_status::wrong_data);
}

TEST_CASE("a long first run takes no time from the runs after it") {
  kernel_plan trials(2, settings{}, kernel_plan::checks::none);
  std::size_t runs = 0;
  while (const auto step = trials.next())
    trials.ended(0, step->candidate == 0 ? 1'000'000 : runs++ == 0 ? 50'000'000 : 800'000);
  CHECK(trials.decide(std::vector<std::string>{"default", "compiled late"}).winner == 1);
  CHECK(trials.result_of(1).count > 7);
}

TEST_CASE("a plan ends even if the clock stops in the middle of it") {
  kernel_plan trials(2, settings{}, kernel_plan::checks::none);
  std::int64_t now_ns = 1;
  std::size_t runs = 0;
  while (trials.next()) {
    const std::int64_t began_ns = now_ns;
    if (++runs < 10) now_ns += 1'000'000;
    trials.ended(began_ns, now_ns);
  }
  CHECK(runs < 5'000);
}

TEST_CASE("the default's run for the comparison is no disturbance of a faster candidate") {
  kernel_plan trials(2, settings{}, kernel_plan::checks::against_default);
  const auto all = run_all(trials, {{1e7, 1e6}});
  CHECK(all.best.winner == 1);
  CHECK(trials.result_of(1).count < kernel_plan::disturbed_turns);
}

TEST_CASE("a candidate is timed min(iterations, duration / estimate) times, and has a time in any case") {
  const auto timed_runs = [](std::uint32_t iterations, std::uint32_t duration_ms, double takes_ns) {
    settings s;
    s.max_tuning_iterations = iterations;
    s.max_tuning_duration_ms = duration_ms;
    kernel_plan trials(1, s, kernel_plan::checks::none);
    auto runs = run_all(trials, {{takes_ns}}).runs;
    CHECK(runs[{0, act::probe}] + runs[{0, act::timed}] >= 2);  // a warm run of the probe counts, too
    return runs[{0, act::timed}];
  };
  CHECK(timed_runs(100, 30, 1e6) == 28);  // 28 more after the two of its probe
  CHECK(timed_runs(100, 30, 1e5) == 100);
  CHECK(timed_runs(100, 30, 1e9) == 0);
  CHECK(timed_runs(0, 30, 1e6) == 1);
  CHECK(timed_runs(100, 0, 1e6) == 0);
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

TEST_CASE("on a device, the change of its clock over the rounds is taken out of the times") {
  settings s;
  s.max_tuning_duration_ms = 1;
  kernel_plan trials(4, s, kernel_plan::checks::none, kernel_plan::place::device);
  // The last one is surely slower than the others after a few turns. The clock is still fast then.
  const std::vector<double> takes_ns{20'000, 19'000, 20'000, 21'500};
  std::int64_t now_ns = 1;
  std::size_t turns = 0, before = 9, of_last = 0, of_default = 0;
  while (const auto step = trials.next()) {
    if (step->what == act::timed && step->candidate != before) {
      ++turns;
      of_last += step->candidate == 3 ? 1 : 0;
      of_default += step->candidate == 0 ? 1 : 0;
    }
    before = step->what == act::timed ? step->candidate : 9;
    const double slower = 1 + 0.002 * static_cast<double>(turns);
    const std::int64_t began_ns = now_ns;
    now_ns += std::int64_t(takes_ns[step->candidate] * slower);
    trials.ended(began_ns, now_ns);
  }
  CHECK(of_last < of_default);
  const auto ratio = [&](std::size_t i) { return trials.result_of(i).time_ns / trials.result_of(0).time_ns; };
  CHECK(ratio(1) == doctest::Approx(0.95).epsilon(0.01));
  CHECK(ratio(2) == doctest::Approx(1).epsilon(0.01));
  CHECK(ratio(3) == doctest::Approx(1.075).epsilon(0.01));
  CHECK(trials.decide({}).winner == 1);
}
