#include <parley/tuning/clock_offset.hpp>

#include <cmath>
#include <limits>

#include <doctest/doctest.h>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

constexpr std::int64_t us = 1'000, ms = 1'000'000, s = 1'000'000'000;

/// Two clocks: ours shows the true time; theirs has an offset and another rate.
struct clocks {
  double offset_ns = 0;
  double ppm = 0;
  double theirs_exactly(std::int64_t ours) const {
    return static_cast<double>(ours) + offset_ns + static_cast<double>(ours) * ppm * 1e-6;
  }
  std::int64_t theirs(std::int64_t ours) const { return std::llround(theirs_exactly(ours)); }
  double truth(std::int64_t ours) const { return theirs_exactly(ours) - static_cast<double>(ours); }
  /// A round trip: a question sent at `at` travels for `there`, is answered after `thinking`, and its answer travels for `back` (ns).
  round_trip trip(std::int64_t at, std::int64_t there, std::int64_t back, std::int64_t thinking = 0) const {
    return {at, theirs(at + there), theirs(at + there + thinking), at + there + thinking + back};
  }
};

bool inside(const clock_offset::estimate& e, double truth) { return std::abs(e.offset_ns - truth) <= e.error_ns; }

}  // namespace

TEST_CASE("one round trip gives the offset to within half of its duration") {
  const clocks c{.offset_ns = 3.0 * s};
  clock_offset o;
  CHECK_FALSE(o.at(0));
  CHECK(std::isinf(o.to_ours(5).error_ns));
  CHECK(o.add(c.trip(1 * s, 10 * us, 10 * us)));
  const auto e = o.at(1 * s);
  REQUIRE(e);
  CHECK(e->offset_ns == doctest::Approx(3.0 * s));
  CHECK(e->error_ns == doctest::Approx(10 * us).epsilon(0.01));
  CHECK(inside(*e, c.truth(1 * s)));
}

TEST_CASE("the estimate uses the fastest message of each direction, and a slow round trip does not widen the error") {
  const clocks c{.offset_ns = -5.0 * s};
  clock_offset o;
  o.add(c.trip(1 * s, 900 * us, 20 * us));
  o.add(c.trip(1 * s + 2 * ms, 5 * us, 700 * us));
  const auto e = o.at(1 * s + 2 * ms);
  REQUIRE(e);
  CHECK(e->error_ns < 14 * us);
  CHECK(inside(*e, c.truth(1 * s)));
  o.add(c.trip(1 * s + 3 * ms, 900 * us, 900 * us));  // a slow round trip does not widen the error
  CHECK(o.at(1 * s + 2 * ms)->error_ns <= e->error_ns);
}

TEST_CASE("delays that differ between the directions never put the true offset outside the error bound") {
  testing::generator random(3);
  for (int run = 0; run < 60; ++run) {
    const clocks c{.offset_ns = static_cast<double>(random.below(20 * s)) - 10.0 * s, .ppm = 180 * random.symmetric()};
    clock_offset o;
    auto now = static_cast<std::int64_t>(random.below(100 * s));
    std::vector<std::int64_t> asked{now};
    for (int i = 0; i < 60; ++i) {
      const auto there = static_cast<std::int64_t>(1 * us + random.below(i % 7 == 0 ? 20 * ms : 50 * us));
      const auto back = static_cast<std::int64_t>(1 * us + random.below(i % 5 == 0 ? 20 * ms : 300 * us));
      CHECK(o.add(c.trip(now, there, back, static_cast<std::int64_t>(random.below(1 * s)))));
      now += static_cast<std::int64_t>(random.below(2 * s)) + 2 * s;
      asked.push_back(now);
      for (const std::int64_t when : asked) {
        const auto e = o.at(when);
        REQUIRE(e);
        CHECK(inside(*e, c.truth(when)));
        const clock_reading r = o.to_ours(c.theirs(when));
        CHECK(std::abs(static_cast<double>(r.ns - when)) <= r.error_ns);
      }
      CHECK(o.slowest_ppm() <= c.ppm);
      CHECK(o.fastest_ppm() >= c.ppm);
    }
    CHECK(o.contradictions() == 0);
    CHECK(o.bounds() <= 2 * clock_offset::most_bounds);
    CHECK(o.at(asked[30])->error_ns < 1 * ms);
  }
}

TEST_CASE("between exchanges the error bound grows with possible drift, and shrinks once the rate is known") {
  const clocks c{.offset_ns = 2.0 * s, .ppm = 50};
  clock_offset o;
  o.add(c.trip(0, 5 * us, 5 * us));
  CHECK(o.at(1 * s)->error_ns == doctest::Approx(205 * us).epsilon(0.02));
  CHECK(inside(*o.at(1 * s), c.truth(1 * s)));
  o.add(c.trip(10 * s, 5 * us, 5 * us));
  CHECK(o.fastest_ppm() - o.slowest_ppm() < 5);
  CHECK(o.at(5 * s)->error_ns < 25 * us);
  CHECK(inside(*o.at(5 * s), c.truth(5 * s)));
  CHECK(inside(*o.at(20 * s), c.truth(20 * s)));
  CHECK(o.at(20 * s)->error_ns < 40 * us);
}

TEST_CASE("converted times keep their order") {
  testing::generator random(5);
  const clocks c{.offset_ns = 7.0 * s, .ppm = -120};
  clock_offset o;
  for (int i = 0; i < 40; ++i) {
    o.add(c.trip(i * s / 3, static_cast<std::int64_t>(1 * us + random.below(1 * ms)),
                 static_cast<std::int64_t>(1 * us + random.below(1 * ms))));
  }
  std::int64_t before = o.to_ours(c.theirs(-1 * s)).ns;
  for (std::int64_t when = -1 * s + 1 * us; when < 20 * s; when += 7 * ms + 333) {
    const std::int64_t now = o.to_ours(c.theirs(when)).ns;
    CHECK(now > before);
    before = now;
  }
}

TEST_CASE("a stamp taken too early by its sender or too late by its receiver only widens the error bound") {
  const clocks c{.offset_ns = 1.0 * s};
  clock_offset o;
  CHECK(o.add_ours_to_theirs(1 * s - 3 * ms, c.theirs(1 * s + 4 * us)));
  CHECK(o.add_theirs_to_ours(c.theirs(1 * s + 10 * us) - 2 * ms, 1 * s + 14 * us));
  CHECK(inside(*o.at(1 * s), c.truth(1 * s)));
  CHECK(o.at(1 * s)->error_ns > 2 * ms);
}

TEST_CASE("impossible times are refused, and no times make the error bound invalid") {
  constexpr auto least = std::numeric_limits<std::int64_t>::min(), most = std::numeric_limits<std::int64_t>::max();
  clock_offset o;
  CHECK_FALSE(o.add({.sent_ns = 10, .received_ns = 5, .answered_ns = 6, .returned_ns = 9}));
  CHECK_FALSE(o.add({.sent_ns = 10, .received_ns = 6, .answered_ns = 5, .returned_ns = 11}));
  CHECK_FALSE(o.add({.sent_ns = 0, .received_ns = least, .answered_ns = most, .returned_ns = 1}));
  CHECK_FALSE(o.add_ours_to_theirs(most, least));
  CHECK_FALSE(o.add_theirs_to_ours(most, 0));
  CHECK(o.bounds() == 0);
  testing::generator random(23);
  for (int i = 0; i < 3000; ++i) {
    const auto any = [&] { return static_cast<std::int64_t>(random.next()) >> random.below(64); };
    static_cast<void>(o.add({any(), any(), any(), any()}));
    const clock_reading r = o.to_ours(any());
    CHECK_FALSE(std::isnan(r.error_ns));
    CHECK(r.error_ns >= 0);
    static_cast<void>(o.at(any()));
  }
}

TEST_CASE("a clock that was set is detected, and its offset is learned again") {
  clocks c{.offset_ns = 1.0 * s};
  clock_offset o;
  for (int i = 0; i < 5; ++i) o.add(c.trip(i * s, 5 * us, 5 * us));
  CHECK(o.contradictions() == 0);
  c.offset_ns = 3.0 * s;
  for (int i = 5; i < 8; ++i) o.add(c.trip(i * s, 5 * us, 5 * us));
  CHECK(o.contradictions() == 1);
  CHECK(inside(*o.at(7 * s), c.truth(7 * s)));
  CHECK(o.at(7 * s)->error_ns < 20 * us);
}
