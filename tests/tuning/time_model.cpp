#include <doctest/doctest.h>
#include <parley/tuning/planners/time_model.hpp>

#include <parley/tests/tuning/generator.hpp>

#include <cmath>

using namespace parley::tuning;

namespace {

constexpr std::uint64_t mib = 1 << 20;

const std::vector<std::string> two_kinds{"H100", "H100", "A100", "A100"};

}  // namespace

TEST_CASE("a measured time is predicted as measured, with a narrow range") {
  time_model m(two_kinds);
  m.add({0, "ring", mib, 1000});
  m.add({1, "ring", mib, 5000});
  const auto p = m.predict(0, "ring", mib).value();
  CHECK(p.measured);
  CHECK(p.time_ns == doctest::Approx(1000));
  CHECK(p.low_ns > 900);
  CHECK(p.high_ns < 1100);
  CHECK(p.from == "rank 0 (H100) at 1MiB");
  m.add({0, "ring", mib, 2000});  // a later time replaces the earlier one
  CHECK(m.predict(0, "ring", mib)->time_ns == doctest::Approx(2000));
}

TEST_CASE("without a measurement there is no prediction, and invalid times are ignored") {
  time_model m;
  m.add({0, "ring", mib, 0});
  m.add({0, "ring", mib, -5});
  m.add({0, "ring", mib, INFINITY});
  m.add({0, "ring", mib, NAN});
  const auto p = m.predict(0, "ring", mib);
  REQUIRE_FALSE(p);
  CHECK(p.reason().kind == fault::empty);
  CHECK(p.reason().text.find("ring") != std::string::npos);
}

TEST_CASE("a rank without a time is predicted to be as fast as its kind, and less surely as fast as another kind") {
  time_model m(two_kinds);
  m.add({0, "fused", mib, 8.7e6});
  const auto same = m.predict(1, "fused", mib).value();
  const auto other = m.predict(2, "fused", mib).value();
  CHECK_FALSE(same.measured);
  CHECK(same.time_ns == doctest::Approx(8.7e6));
  CHECK(same.high_ns < 1.15 * same.time_ns);
  CHECK(other.time_ns == doctest::Approx(8.7e6));
  CHECK(other.high_ns > 2 * other.time_ns);
  CHECK(other.from == "rank 0 (H100) at 1MiB, times 1.00");
}

TEST_CASE("a prediction from another kind uses the ratio measured on both kinds, and more ratios narrow its range") {
  time_model m(two_kinds);
  m.add({0, "nccl", mib, 10e6});
  m.add({0, "fused", mib, 8e6});
  const auto before = m.predict(2, "fused", mib).value();
  m.add({2, "nccl", mib, 15e6});
  const auto once = m.predict(2, "fused", mib).value();
  CHECK(once.time_ns == doctest::Approx(12e6));
  CHECK(once.high_ns / once.low_ns < before.high_ns / before.low_ns);
  for (int i = 0; i < 6; ++i) {
    const std::string config = "config " + std::to_string(i);
    m.add({0, config, mib, 10e6});
    m.add({2, config, mib, 15e6});
  }
  const auto often = m.predict(2, "fused", mib).value();
  CHECK(often.time_ns == doctest::Approx(12e6));
  CHECK(often.high_ns / often.low_ns < once.high_ns / once.low_ns);
  CHECK(often.from == "rank 0 (H100) at 1MiB, times 1.50");
}

TEST_CASE("a config's own ratio at other sizes counts more than the ratios of other configs") {
  time_model m(two_kinds);
  for (const std::uint64_t bytes : {mib, 4 * mib}) {
    m.add({0, "nccl", bytes, 10e6});
    m.add({2, "nccl", bytes, 15e6});
  }
  m.add({0, "fused", mib, 8e6});
  m.add({2, "fused", mib, 24e6});
  m.add({0, "fused", 4 * mib, 16e6});
  const auto p = m.predict(2, "fused", 4 * mib).value();
  CHECK(p.time_ns == doctest::Approx(48e6).epsilon(0.05));
}

TEST_CASE("times between measured sizes are interpolated, and times beyond them are less sure the farther away") {
  time_model m;
  m.add({0, "direct", 1 * mib, 1e6});
  m.add({0, "direct", 16 * mib, 16e6});
  const auto between = m.predict(0, "direct", 4 * mib).value();
  CHECK(between.time_ns == doctest::Approx(4e6).epsilon(0.01));
  CHECK_FALSE(between.measured);
  const auto beyond = m.predict(0, "direct", 64 * mib).value();
  CHECK(beyond.time_ns == doctest::Approx(64e6).epsilon(0.01));
  const auto far = m.predict(0, "direct", 1024 * mib).value();
  CHECK(beyond.high_ns / beyond.low_ns > between.high_ns / between.low_ns);
  CHECK(far.high_ns / far.low_ns > beyond.high_ns / beyond.low_ns);
  // Sizes of 0 bytes and of 1 byte are valid sizes.
  m.add({0, "direct", 0, 500});
  m.add({0, "direct", 1, 500});
  CHECK(m.predict(0, "direct", 2)->time_ns < 2000);
}

namespace {

struct tally {
  std::size_t predictions = 0;
  std::size_t held = 0;
  std::size_t useful = 0;  // predictions within a factor of 1.5
};

// Ranks of two kinds; each config suits each kind differently, and all times scatter by 3 %. The model sees one in `of`, or all others.
enum class seen { one, all_but_one };
tally predict_unseen(seen which, std::uint64_t of) {
  tally t;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    testing::generator random(seed);
    std::vector<double> rank_by(8);
    for (double& r : rank_by) r = 0.02 * random.normal();
    const double kind_by = 0.3 * random.normal();
    time_model m({"a", "a", "a", "a", "b", "b", "b", "b"});
    std::vector<observed_time> unseen;
    for (int c = 0; c < 6; ++c) {
      const double latency = 20e3 * std::exp(0.5 * random.normal());
      const double per_byte = 0.1 * std::exp(0.3 * random.normal());
      const double suits = 0.1 * random.normal();
      for (std::uint32_t r = 0; r < 8; ++r) {
        for (const std::uint64_t bytes : {mib / 16, mib / 4, mib, 4 * mib, 16 * mib}) {
          const double kind = r < 4 ? 0 : kind_by + suits;
          const double time =
              (latency + per_byte * static_cast<double>(bytes)) * std::exp(rank_by[r] + kind + 0.03 * random.normal());
          const observed_time now{r, "config " + std::to_string(c), bytes, time};
          if ((random.below(of) == 0) == (which == seen::one)) {
            m.add(now);
          } else {
            unseen.push_back(now);
          }
        }
      }
    }
    for (const observed_time& u : unseen) {
      const auto p = m.predict(u.rank, u.config, u.bytes);
      if (!p) continue;  // no prediction, because no rank has measured it
      ++t.predictions;
      t.held += p->low_ns <= u.time_ns && u.time_ns <= p->high_ns ? 1 : 0;
      t.useful += p->high_ns < 1.5 * p->low_ns ? 1 : 0;
    }
  }
  MESSAGE(t.held, " of ", t.predictions, " held, ", t.useful, " within a factor of 1.5");
  return t;
}

}  // namespace

TEST_CASE("in random worlds 90 % of predictions from many times hold, 85 % from few, and most are narrow") {
  const tally much = predict_unseen(seen::all_but_one, 6);
  CHECK(much.held > much.predictions * 90 / 100);
  CHECK(much.useful > much.predictions * 95 / 100);
  const tally little = predict_unseen(seen::one, 4);
  CHECK(little.held > little.predictions * 85 / 100);
  CHECK(little.useful > little.predictions * 60 / 100);
}
