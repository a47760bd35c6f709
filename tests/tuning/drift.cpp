#include <parley/tuning/planners/drift.hpp>

#include <doctest/doctest.h>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

aggregate burst(double time_ns, double spread_ns = 0) {
  return {time_ns, spread_ns, 5, aggregate_status::measured, {}};
}

}  // namespace

TEST_CASE("only a lasting change counts as drift, up or down") {
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

TEST_CASE("halved and doubled times count as equal changes, and opposite changes do not add up") {
  drift_detector d({.threshold = 0.9});
  d.decided(100);
  for (int i = 0; i < 2; ++i) {
    CHECK(d.add(burst(200)) == drift::suspected);
    CHECK(d.add(burst(200)) == drift::suspected);
    CHECK(d.add(burst(50)) == drift::suspected);
    CHECK(d.add(burst(50)) == drift::suspected);
  }
}

TEST_CASE("a burst between half the threshold and the threshold neither starts nor resets the count") {
  drift_detector d;
  d.decided(100);
  CHECK(d.add(burst(120)) == drift::steady);
  CHECK(d.add(burst(140)) == drift::suspected);
  CHECK(d.add(burst(120)) == drift::suspected);
  CHECK(d.add(burst(140)) == drift::suspected);
  CHECK(d.add(burst(140)) == drift::changed);
}

TEST_CASE("a difference within a burst's own scatter is no drift, and an unmeasured burst is ignored") {
  drift_detector d;
  d.decided(100);
  for (int i = 0; i < 10; ++i) {
    CHECK(d.add(burst(150, 60)) == drift::steady);
    CHECK(d.add({}) == drift::steady);
  }
}

TEST_CASE("without a known reference time, the first bursts define it") {
  drift_detector d;
  d.decided(0);
  CHECK(d.add(burst(90)) == drift::learning);
  CHECK(d.add(burst(300)) == drift::learning);
  CHECK(d.add(burst(100)) == drift::steady);
  CHECK(d.reference_ns() == 100);
  for (int i = 0; i < 2; ++i) CHECK(d.add(burst(200)) == drift::suspected);
  CHECK(d.add(burst(200)) == drift::changed);
}

TEST_CASE("noise of 20 %, with every tenth time ten times as long, is no change in a hundred thousand bursts") {
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
