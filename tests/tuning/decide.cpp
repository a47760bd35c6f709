#include <parley/tuning/planners/decide.hpp>

#include <cmath>

#include <doctest/doctest.h>

#include <parley/tuning/outcome.hpp>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

aggregate took(double time_ns, std::size_t count = 5, double spread_ns = 0) {
  return {time_ns, spread_ns, count, aggregate_status::measured, {}};
}

aggregate failed(const char* detail = "") {
  aggregate a;
  a.status = aggregate_status::failed;
  a.detail = detail;
  return a;
}

using times = std::vector<aggregate>;

}  // namespace

TEST_CASE("the fastest candidate wins, with a sentence and the evidence") {
  const times measured{took(1.63e6), took(2e6), took(1.2e6)};
  const decision d = decide(measured);
  CHECK(d.winner == 2);
  CHECK(d.reason == decision_reason::fastest);
  CHECK(d.sentence ==
        "candidate 2 at 1.2 ms is the fastest; the default takes 1.63 ms, and a difference of 48.9 us would be noise");
  CHECK(d.evidence == measured);
}

TEST_CASE("a decision's sentence calls configs by their names") {
  const std::vector<std::string> names{"direct", "chunked(chunk_bytes=262144 in_flight=4)"};
  CHECK(decide(times{took(2000), took(1000)}, {.names = names}).sentence ==
        "chunked(chunk_bytes=262144 in_flight=4) at 1 us is the fastest; the default takes 2 us, and a difference of "
        "60 ns would be noise");
}

TEST_CASE("a default that is the fastest stays") {
  const decision d = decide(times{took(100), took(150)});
  CHECK(d.winner == 0);
  CHECK(d.reason == decision_reason::default_is_fastest);
  CHECK(d.sentence == "the default is the fastest: the default at 100 ns; the next best is candidate 1 at 150 ns");
}

TEST_CASE("the default stays if no candidate is faster by more than noise") {
  CHECK(decide(times{took(100), took(97.5)}).winner == 0);
  CHECK(decide(times{took(100), took(97.5)}).reason == decision_reason::within_noise_of_default);
  CHECK(
      decide(times{took(100), took(97.5)}).sentence ==
      "candidate 1 at 97.5 ns is faster than the default, the default at 100 ns, but not by more than noise, 3 ns, so "
      "the default stays");
  CHECK(decide(times{took(100), took(96.5)}).winner == 1);
  CHECK(decide(times{took(100), took(96.5)}, {.relative_noise = 0.05}).winner == 0);
}

TEST_CASE("times that scatter must be further apart to beat the default") {
  CHECK(decide(times{took(100, 5, 0), took(90, 5, 0)}).winner == 1);
  CHECK(decide(times{took(100, 5, 10), took(90, 5, 10)}).winner == 0);
  CHECK(decide(times{took(100, 500, 10), took(90, 500, 10)}).winner == 1);
  CHECK(decide(times{took(100, 5, 10), took(90, 5, 10)}, {.spread_factor = 0}).winner == 1);
}

TEST_CASE("among candidates within noise of each other the first in merged order wins") {
  const decision d = decide(times{took(200), took(150), took(101), took(100), took(99)});
  CHECK(d.winner == 2);
  CHECK(d.reason == decision_reason::first_within_noise);
}

TEST_CASE("scatter keeps the default, but does not make faster candidates equal; clock errors do") {
  const times scattered{took(1000, 4, 10), took(133, 4, 30), took(100, 4, 30)};
  CHECK(decide(scattered).winner == 2);
  CHECK(decide(times{took(133, 4, 30), took(100, 4, 30)}).winner == 0);
  times far_apart{took(1000), took(133), took(100)};  // on hosts whose clocks are known to within 20 ns
  for (aggregate& a : far_apart) a.clock_error_ns = 20;
  CHECK(decide(far_apart).winner == 1);
}

TEST_CASE("the first of equal candidates wins only if it beats the default itself") {
  // 98 is within noise of the fastest (95.5) and of the default.
  CHECK(decide(times{took(100), took(98), took(95.5)}).winner == 2);
}

TEST_CASE("a failed candidate never wins, nor does a time that is infinite, zero, negative or NaN") {
  CHECK(decide(times{took(100), failed(), took(50)}).winner == 2);
  aggregate failed_with_a_time = took(1);
  failed_with_a_time.status = aggregate_status::failed;
  CHECK(decide(times{took(100), failed_with_a_time}).winner == 0);
  CHECK(decide(times{took(100), took(0)}).winner == 0);
  CHECK(decide(times{took(100), took(-5)}).winner == 0);
  CHECK(decide(times{took(100), took(NAN)}).winner == 0);
  CHECK(decide(times{took(100), took(infinite_ns)}).winner == 0);
}

TEST_CASE("the best of the other candidates wins if the default cannot be measured") {
  const decision d = decide(times{failed(), took(100), took(50)});
  CHECK(d.winner == 2);
  CHECK(d.sentence.find("the default could not be measured (failed)") != std::string::npos);
}

TEST_CASE("if nothing was measured the current config stays, and the reason says so") {
  const times all_failed{failed("rank 1 failed in invocation 3"), failed(), failed()};
  const decision d = decide(all_failed, {.current = 2});
  CHECK(d.winner == 2);
  CHECK(d.reason == decision_reason::nothing_measured);
  CHECK(d.sentence ==
        "no candidate could be measured, so candidate 2 stays; the default: failed, rank 1 failed in invocation 3");
  CHECK(decide(all_failed).winner == 0);
  CHECK(decide(all_failed, {.current = 99}).winner == 0);
}

TEST_CASE("a constraint excludes candidates before times decide") {
  const std::vector<std::size_t> inaccurate{2};
  CHECK(decide(times{took(100), took(80), took(10)}, {.excluded = inaccurate}).winner == 1);
  const std::vector<std::size_t> all{1, 2};
  CHECK(decide(times{took(100), took(80), took(10)}, {.excluded = all}).reason == decision_reason::only_default);
  const std::vector<std::size_t> the_default{0};
  CHECK(decide(times{took(100), took(180), took(170)}, {.excluded = the_default}).winner == 2);
  CHECK(decide(times{failed(), failed(), failed()}, {.current = 2, .excluded = inaccurate}).winner == 0);
}

TEST_CASE("a default alone is decided at once, and an empty list of candidates is an error") {
  CHECK(decide(times{took(100)}).reason == decision_reason::only_default);
  CHECK_THROWS_AS(decide({}), invalid);
}

TEST_CASE("the winner is always measured and never slower than a measured default") {
  testing::generator random(17);
  for (int i = 0; i < 5000; ++i) {
    times all;
    for (std::size_t c = 0; c < 1 + random.below(8); ++c) {
      all.push_back(random.below(5) == 0
                        ? failed()
                        : took(900 + static_cast<double>(random.below(200)), 3, static_cast<double>(random.below(20))));
    }
    const decision d = decide(all);
    if (d.reason == decision_reason::nothing_measured || all.size() == 1) continue;
    CHECK(all[d.winner].measured());
    if (all[0].measured()) CHECK(all[d.winner].time_ns <= all[0].time_ns);
  }
}

TEST_CASE("a decision states how well founded it is") {
  const auto took = [](double time_ns, std::size_t count, double spread_ns, double slowest_ns = 0) {
    aggregate a{time_ns, spread_ns, count, aggregate_status::measured, {}};
    a.fastest_ns = time_ns - spread_ns;
    a.slowest_ns = slowest_ns == 0 ? time_ns + spread_ns : slowest_ns;
    return a;
  };
  const auto how = [](const std::vector<aggregate>& all) { return decide(all).confidence; };
  CHECK(how({took(100, 20, 2), took(50, 20, 2)}) == confidence::sure);
  // a candidate that was not measured is no rival
  CHECK(how({took(100, 20, 2), took(50, 20, 2), {}}) == confidence::sure);
  CHECK(how({took(100, 1, 0), took(50, 1, 0)}) == confidence::thin);
  CHECK(how({took(100, 3, 20), took(90, 3, 20)}) == confidence::thin);
  CHECK(how({took(100, 90, 20), took(99, 90, 20)}) == confidence::fair);  // more repetitions would not tell more
  CHECK(how({took(100, 20, 2, 900), took(50, 20, 2), took(400, 2, 1)}) == confidence::thin);
  CHECK(how({took(100, 20, 2)}) == confidence::sure);
  CHECK(how({aggregate{}, aggregate{}}) == confidence::none);
  CHECK(
      decide(std::vector{took(100, 1, 0), took(50, 1, 0)})
          .sentence.find("that is based on few measurements: candidate 1 was repeated 1 times, the default 1 times") !=
      std::string::npos);
}

TEST_CASE("times that do not overlap are apart, however much they scatter, if there are enough and they are known") {
  const auto between = [](double fastest_ns, double time_ns, double slowest_ns, std::size_t count) {
    aggregate a = took(time_ns, count, (slowest_ns - fastest_ns) / 2);
    a.fastest_ns = fastest_ns;
    a.slowest_ns = slowest_ns;
    return a;
  };
  const aggregate slow = between(2'000, 9'000, 16'000, 3);
  CHECK(decide(times{slow, between(500, 600, 700, 3)}).winner == 1);
  CHECK(decide(times{slow, between(500, 600, 2'100, 3)}).winner == 0);
  CHECK(decide(times{slow, between(500, 600, 700, 2)}).winner == 0);
  CHECK(decide(times{slow, took(600, 3)}).winner == 0);
  CHECK(decide(times{took(9'000, 3, 7'000), between(500, 600, 700, 3)}).winner == 0);
}
