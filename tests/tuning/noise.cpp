#include <parley/tuning/planners/noise.hpp>

#include <array>
#include <cmath>

#include <doctest/doctest.h>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

aggregate of(const std::vector<double>& times) { return aggregate_times(std::span(&times, 1)); }

aggregate took(double time_ns, std::size_t count, double spread_ns = 0) {
  return {time_ns, spread_ns, count, aggregate_status::measured, {}};
}

}  // namespace

TEST_CASE("few repetitions show about the same deviation as many") {
  testing::generator random(7);
  for (const std::size_t count : {2U, 3U, 4U, 5U, 8U, 15U, 40U}) {
    double sum = 0;
    constexpr int samples = 4000;
    for (int i = 0; i < samples; ++i) {
      std::vector<double> times;
      for (std::size_t n = 0; n < count; ++n) times.push_back(1000 + 10 * random.normal());
      sum += deviation_ns(of(times));
    }
    CAPTURE(count);
    CHECK(sum / samples == doctest::Approx(10).epsilon(0.12));
  }
  CHECK(deviation_ns(took(100, 1, 0)) == 0);
  CHECK(median_error_ns(took(100, 1, 50)) == 0);
}

TEST_CASE("a field's scatter is the median of its candidates' scatters, so that one outlier does not decide") {
  const std::array<std::size_t, 4> all{0, 1, 2, 3};
  const std::vector<aggregate> field{took(100, 2, 1), took(200, 2, 2), took(100, 2, 90), took(100, 1)};
  const scatter pooled = scatter_of(field, all);
  CHECK(pooled.degrees == 3);
  CHECK(pooled.relative == doctest::Approx(1.4826 * 1.196 * 0.01));
  CHECK(scatter_of(field, std::array<std::size_t, 1>{3}).degrees == 0);
}

TEST_CASE("no candidates are told apart while the scatter is unknown") {
  CHECK_FALSE(surely_slower(took(1e9, 1), took(1, 1), {}));
  CHECK_FALSE(surely_no_better(took(1e9, 1), took(1, 1), {}));
  CHECK(surely_slower(took(104, 2), took(100, 2), {.pooled = {0, 2}}));
  CHECK_FALSE(surely_slower(took(103, 2), took(100, 2), {.pooled = {0, 2}}));
  CHECK(surely_no_better(took(98, 2), took(100, 2), {.pooled = {0, 2}}));
  CHECK_FALSE(surely_no_better(took(96, 2), took(100, 2), {.pooled = {0, 2}}));
}

TEST_CASE("more repetitions separate smaller differences, and fewer degrees of freedom only larger ones") {
  const significance usual{.relative = 0.01, .pooled = {0.03, 20}};
  CHECK_FALSE(surely_slower(took(106, 2), took(100, 2), usual));
  CHECK(surely_slower(took(106, 8), took(100, 8), usual));
  CHECK(significant_ns(took(100, 8), took(100, 8), usual) <
        significant_ns(took(100, 8), took(100, 8), {.relative = 0.01, .pooled = {0.03, 2}}));
}

TEST_CASE("a candidate that scatters more than its field needs a larger difference") {
  const significance usual{.pooled = {0.001, 20}};
  CHECK(surely_slower(took(120, 5, 0), took(100, 5, 0), usual));
  CHECK_FALSE(surely_slower(took(120, 5, 15), took(100, 5, 0), usual));
}

TEST_CASE("equal candidates are told apart by mistake in fewer than one of fifty comparisons") {
  testing::generator random(11);
  for (const std::size_t count : {2U, 4U, 8U}) {
    int mistakes = 0;
    constexpr int comparisons = 3000;
    for (int i = 0; i < comparisons; ++i) {
      std::vector<aggregate> field;
      std::vector<std::size_t> which;
      for (std::size_t c = 0; c < 4; ++c) {
        std::vector<double> times;
        for (std::size_t n = 0; n < count; ++n) times.push_back(1000 * (1 + 0.05 * random.normal()));
        field.push_back(of(times));
        which.push_back(c);
      }
      const significance here{.relative = 0, .pooled = scatter_of(field, which)};
      mistakes += surely_slower(field[0], field[1], here) ? 1 : 0;
    }
    CAPTURE(count);
    CHECK(mistakes < comparisons / 50);
  }
}

TEST_CASE("clock errors add to the difference that chance requires") {
  aggregate a = took(120, 5), b = took(100, 5);
  const significance usual{.pooled = {0, 8}};
  CHECK(surely_slower(a, b, usual));
  a.clock_error_ns = b.clock_error_ns = 9;
  CHECK(surely_slower(a, b, usual));
  a.clock_error_ns = b.clock_error_ns = 11;
  CHECK_FALSE(surely_slower(a, b, usual));
  CHECK_FALSE(surely_no_better(b, a, usual));
}
