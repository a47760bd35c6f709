#include <parley/tuning/planners/evidence.hpp>

#include <cmath>

#include <doctest/doctest.h>

using namespace parley::tuning;

TEST_CASE(
    "measured_by_each returns the median, the fastest, the spread and the status of each participant's own times") {
  constexpr std::uint64_t config = 9;
  const std::vector<std::uint32_t> ranks{0, 1, 2};
  const std::vector<std::uint64_t> timed{4, 6, 8};
  const std::vector<row> rows{
      {0, 4, config, 0, 900},     {0, 6, config, 1000, 1100},
      {0, 8, config, 2000, 2300}, {0, 5, 1, 0, 1},
      {1, 4, config, 100, 200},   {1, 6, config, 1000, 1200, row_status::failed},
      {1, 8, config, 2000, 2050},
  };
  const auto each = measured_by_each(rows, {.digest = config, .participants = ranks, .invocations = timed});
  REQUIRE(each.size() == 3);
  CHECK(each[0] == own_measurement{0, 300, 100, 200, 3, aggregate_status::measured});
  CHECK(each[1] == own_measurement{1, 75, 50, 25, 2, aggregate_status::failed});
  CHECK(each[2].status == aggregate_status::missing);
  CHECK(std::isinf(each[2].median_ns));
  CHECK(measured_by_each(rows, {.digest = config, .participants = ranks})[0].status == aggregate_status::not_tried);
  CHECK(measured_by_each(rows, {.digest = 1, .participants = ranks, .invocations = timed})[0].status ==
        aggregate_status::mismatched);
}

TEST_CASE("for invocations in flight together, a participant's time is their span divided by their number") {
  constexpr std::uint64_t config = 9;
  const std::vector<std::uint32_t> ranks{0, 1};
  const std::vector<std::uint64_t> timed{4, 5, 8}, joined{5};
  const std::vector<row> rows{{0, 4, config, 100, 900},
                              {0, 5, config, 150, 500},
                              {0, 8, config, 2000, 2200},
                              {1, 4, config, 0, 600},
                              {1, 8, config, 2000, 2100}};
  const auto each =
      measured_by_each(rows, {.digest = config, .participants = ranks, .invocations = timed, .joined = joined});
  CHECK(each[0] == own_measurement{0, 300, 200, 100, 2, aggregate_status::measured});
  CHECK(each[1] == own_measurement{1, 100, 100, 0, 1, aggregate_status::measured});
}
