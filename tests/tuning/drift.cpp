#include <parley/tuning/planners/drift.hpp>

#include <doctest/doctest.h>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

aggregate burst(double time_ns, double spread_ns = 0) {
  return {time_ns, spread_ns, 5, aggregate_status::measured, {}};
}

}  // namespace

TEST_CASE("a change that lasts is one, up or down, and a shorter one is none") {
  for (const double other : {160.0, 70.0}) {
    drift_detector d;
    d.decided(100);
    CHECK(d.add(burst(other)) == drift::suspected);
    CHECK(d.add(burst(other)) == drift::suspected);
    CHECK(d.add(burst(101)) == drift::steady);  // the times are as before, so the count restarts
    CHECK(d.add(burst(other)) == drift::suspected);
    CHECK(d.add(burst(other)) == drift::suspected);
    CHECK(d.add(burst(other)) == drift::changed);
    CHECK(d.latest_ns() == other);
  }
}

TEST_CASE("half as long and twice as long are equal changes, and opposite ones do not add up") {
  drift_detector d({.threshold = 0.9});
  d.decided(100);
  for (int i = 0; i < 2; ++i) {
    CHECK(d.add(burst(200)) == drift::suspected);
    CHECK(d.add(burst(200)) == drift::suspected);
    CHECK(d.add(burst(50)) == drift::suspected);
    CHECK(d.add(burst(50)) == drift::suspected);
  }
}

TEST_CASE("between half the threshold and the whole nothing is begun and nothing is forgotten") {
  drift_detector d;
  d.decided(100);
  CHECK(d.add(burst(120)) == drift::steady);
  CHECK(d.add(burst(140)) == drift::suspected);
  CHECK(d.add(burst(120)) == drift::suspected);
  CHECK(d.add(burst(140)) == drift::suspected);
  CHECK(d.add(burst(140)) == drift::changed);
}

TEST_CASE("a difference that a burst's own scatter explains is none, nor is what was not measured") {
  drift_detector d;
  d.decided(100);
  for (int i = 0; i < 10; ++i) {
    CHECK(d.add(burst(150, 60)) == drift::steady);
    CHECK(d.add({}) == drift::steady);
  }
}

TEST_CASE("where nobody knows what was usual, the first bursts say it") {
  drift_detector d;
  d.decided(0);
  CHECK(d.add(burst(90)) == drift::learning);
  CHECK(d.add(burst(300)) == drift::learning);
  CHECK(d.add(burst(100)) == drift::steady);
  CHECK(d.reference_ns() == 100);
  for (int i = 0; i < 2; ++i) CHECK(d.add(burst(200)) == drift::suspected);
  CHECK(d.add(burst(200)) == drift::changed);
}

TEST_CASE("noise of a fifth, and every tenth time ten times as long, is no change in a hundred thousand bursts") {
  testing::generator random(3);
  drift_detector d;
  d.decided(100);
  std::size_t changes = 0;
  for (int i = 0; i < 100'000; ++i) {
    std::vector<double> times;
    for (int k = 0; k < 5; ++k) times.push_back((100 + 20 * random.symmetric()) * (random.symmetric() > 0.8 ? 10 : 1));
    if (d.add(aggregate_times(std::span(&times, 1))) == drift::changed) ++changes;
  }
  CHECK(changes == 0);
}
