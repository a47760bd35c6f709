#include <parley/tuning/planners/statistics.hpp>

#include <cmath>

#include <doctest/doctest.h>

#include <parley/tests/tuning/generator.hpp>

using namespace parley::tuning;

namespace {

constexpr std::uint64_t config = 77;
const std::vector<std::uint32_t> pair_of_ranks{0, 1};

aggregate of(const std::vector<row>& rows, const std::vector<std::uint64_t>& invocations,
             clock_kind clock = clock_kind::common) {
  return aggregate_candidate(rows, {config, pair_of_ranks, invocations, clock});
}

/// Rows of two ranks that start together every 100 ns.
std::vector<row> rows_of(const std::vector<std::int64_t>& rank_0, const std::vector<std::int64_t>& rank_1) {
  std::vector<row> rows;
  for (std::size_t i = 0; i < rank_0.size(); ++i) {
    const auto start = static_cast<std::int64_t>(100 * i);
    rows.push_back({0, i, config, start, start + rank_0[i]});
  }
  for (std::size_t i = 0; i < rank_1.size(); ++i) {
    const auto start = static_cast<std::int64_t>(100 * i);
    rows.push_back({1, i, config, start, start + rank_1[i]});
  }
  return rows;
}

}  // namespace

TEST_CASE("a time is the median of the maximum over ranks per repetition: [1,1,9] and [1,9,1] make 9") {
  const std::vector<std::vector<double>> times{{1, 1, 9}, {1, 9, 1}};
  CHECK(aggregate_times(times).time_ns == 9);
  for (clock_kind clock : {clock_kind::common, clock_kind::separate}) {
    const aggregate a = of(rows_of({1, 1, 9}, {1, 9, 1}), {0, 1, 2}, clock);
    CHECK(a.measured());
    CHECK(a.time_ns == 9);
    CHECK(a.count == 3);
    CHECK(a.spread_ns == 0);
  }
}

TEST_CASE("a late partner is not charged to the config") {
  const std::vector<row> rows{{0, 5, config, 1000, 9100}, {1, 5, config, 9000, 9120}};
  CHECK(of(rows, {5}).time_ns == 120);
  CHECK(of(rows, {5}, clock_kind::separate).time_ns == 8100);
}

TEST_CASE("work that a participant did before a late partner began is charged, whichever of the two is late") {
  const std::vector<row> heavy_sender{{0, 5, config, 1000, 1509}, {1, 5, config, 9000, 9015}};
  const std::vector<row> light{{0, 5, config, 1000, 1015}, {1, 5, config, 9000, 9015}};
  const std::vector<row> heavy_receiver{{0, 5, config, 1000, 1015}, {1, 5, config, 9000, 9500}};
  CHECK(of(heavy_sender, {5}).time_ns == 509);
  CHECK(of(light, {5}).time_ns == 15);
  CHECK(of(heavy_receiver, {5}).time_ns == 500);
  SUBCASE("including measured work that it did while the partner began") {
    std::vector<row> rows{{0, 5, config, 1000, 1509}, {1, 5, config, 1400, 1524}};
    CHECK(of(rows, {5}).time_ns == 124);
    rows[0].worked_ns = 500;
    CHECK(of(rows, {5}).time_ns == 500);
    rows[0].worked_ns = 9000;  // more than its whole time, so it is capped at that
    CHECK(of(rows, {5}).time_ns == 509);
    rows[0].worked_ns = -5;
    CHECK(of(rows, {5}).time_ns == 124);
  }
  SUBCASE("except time queued behind its own invocation before") {
    std::vector<row> rows = heavy_sender;
    rows[0].previous_end_ns = 1200;
    CHECK(of(rows, {5}).time_ns == 309);
  }
  SUBCASE("except a possible wait for a third participant that began later") {
    const std::vector<std::uint32_t> three{0, 1, 2};
    const std::vector<std::uint64_t> timed{5};
    const std::vector<row> rows{{0, 5, config, 1000, 7010}, {1, 5, config, 7000, 7012}, {2, 5, config, 9000, 9008}};
    CHECK(aggregate_candidate(rows, {config, three, timed}).time_ns == 12);
  }
  SUBCASE("divided among the invocations of a batch") {
    const std::vector<std::uint64_t> timed{5, 6}, joined{6};
    const std::vector<row> rows{
        {0, 5, config, 1000, 1500}, {0, 6, config, 1000, 1900}, {1, 5, config, 9000, 9010}, {1, 6, config, 9000, 9020}};
    CHECK(aggregate_candidate(rows,
                              {.digest = config, .participants = pair_of_ranks, .invocations = timed, .joined = joined})
              .time_ns == 450);
  }
}

TEST_CASE("lateness of either end is never charged, and never hides the time that an end takes") {
  testing::generator random(5);
  for (int i = 0; i < 2000; ++i) {
    const auto sends = static_cast<std::int64_t>(1 + random.below(1000));
    const auto receives = static_cast<std::int64_t>(1 + random.below(1000));
    const auto sender_begins = static_cast<std::int64_t>(random.below(2000));
    const auto receiver_begins = static_cast<std::int64_t>(random.below(2000));
    const std::int64_t sent = sender_begins + sends;
    const std::int64_t received = std::max(sent, receiver_begins) + receives;
    std::vector<row> rows{{0, 5, config, sender_begins, sent}, {1, 5, config, receiver_begins, received}};
    rows[0].worked_ns = sends;
    rows[1].worked_ns = receives;
    const double time_ns = of(rows, {5}).time_ns;
    CHECK(time_ns >= static_cast<double>(std::max(sends, receives)));
    CHECK(time_ns <= static_cast<double>(sends + receives));
  }
}

TEST_CASE("time queued behind the invocation before is not charged, whether that invocation was measured or not") {
  std::vector<row> rows{{0, 5, config, 1000, 2000}, {1, 5, config, 1000, 2500}};
  CHECK(of(rows, {5}).time_ns == 1500);
  rows.push_back({0, 4, 12, 0, 1900});
  CHECK(of(rows, {5}).time_ns == 600);
  rows.push_back({1, 4, 12, 0, 2200});
  CHECK(of(rows, {5}).time_ns == 300);
}

TEST_CASE("an invocation that overtook the one before is charged as a whole") {
  const std::vector<row> rows{
      {0, 4, 12, 0, 5000}, {1, 4, 12, 0, 5000}, {0, 5, config, 1000, 2000}, {1, 5, config, 1000, 2500}};
  CHECK(of(rows, {5}).time_ns == 1500);
}

TEST_CASE("invocations in flight together are one repetition, and its time is their mean share") {
  const std::vector<std::uint64_t> timed{4, 5, 6, 9}, joined{5, 6};
  const auto together = [&](const std::vector<row>& rows, clock_kind clock = clock_kind::common) {
    return aggregate_candidate(
        rows,
        {.digest = config, .participants = pair_of_ranks, .invocations = timed, .clock = clock, .joined = joined});
  };
  std::vector<row> rows;
  const auto ran = [&](std::uint64_t invocation, std::int64_t start_ns, std::int64_t end_ns) {
    for (const std::uint32_t p : pair_of_ranks) rows.push_back({p, invocation, config, start_ns, end_ns});
  };
  ran(3, 0, 500);
  ran(9, 5000, 5200);
  SUBCASE("one behind the other: the queue ahead of the first one is not charged") {
    ran(4, 100, 800);
    ran(5, 100, 1100);
    ran(6, 100, 1400);
    CHECK(together(rows).count == 2);
    CHECK(together(rows).time_ns == 250);
    CHECK(together(rows, clock_kind::separate).time_ns == (1300.0 / 3 + 200) / 2);
  }
  SUBCASE("invocations that overtake others do not count as faster") {
    ran(4, 100, 1400);
    ran(5, 100, 120);
    ran(6, 100, 130);
    // two messages overtook the one ahead of them, as well
    CHECK(together(rows).time_ns == ((20 + 10 + 900) / 3.0 + 200) / 2);
  }
  SUBCASE("if a later one ends first, neither the queue ahead nor other sizes in between are charged") {
    const auto behind = [&](std::int64_t previous_end_ns) {
      rows[rows.size() - 2].previous_end_ns = rows.back().previous_end_ns = previous_end_ns;
    };
    rows.erase(rows.begin(), rows.begin() + 2);  // the end of the message ahead of the first one is unknown
    ran(4, 100, 1400);
    behind(1300);
    ran(5, 100, 700);
    behind(500);
    ran(6, 100, 1200);
    behind(1100);  // 400 ns went to others
    CHECK(together(rows).time_ns == (400.0 / 3 + 200) / 2);
  }
  SUBCASE("time in which no invocation had started is not charged") {
    ran(4, 500, 800);
    ran(5, 900, 1200);
    ran(6, 1250, 1550);
    CHECK(together(rows).time_ns == 250);
  }
  SUBCASE("one missing invocation makes the time infinite") {
    ran(4, 100, 800);
    ran(5, 100, 1100);
    CHECK(together(rows).status == aggregate_status::missing);
    CHECK(together(rows).detail == "rank 0 reported nothing about invocation 6");
  }
}

TEST_CASE("the spread is the median deviation from the median") {
  const aggregate a = of(rows_of({10, 12, 14, 11, 60}, {1, 1, 1, 1, 1}), {0, 1, 2, 3, 4});
  CHECK(a.time_ns == 12);
  CHECK(a.spread_ns == 2);
}

TEST_CASE("a participant without a row makes the time infinite, never 0") {
  std::vector<row> rows = rows_of({10, 10, 10}, {10, 10});
  const aggregate a = of(rows, {0, 1, 2});
  CHECK(std::isinf(a.time_ns));
  CHECK(a.status == aggregate_status::missing);
  CHECK(a.detail == "rank 1 reported nothing about invocation 2");
  CHECK(of({}, {0}).status == aggregate_status::missing);
  CHECK(std::isinf(of({}, {}).time_ns));
  CHECK(of({}, {}).status == aggregate_status::not_tried);
}

TEST_CASE("a failure or wrong data on one side makes the time infinite") {
  std::vector<row> rows = rows_of({10, 10}, {10, 10});
  rows[3].status = row_status::failed;
  CHECK(of(rows, {0, 1}).status == aggregate_status::failed);
  CHECK(std::isinf(of(rows, {0, 1}).time_ns));
  CHECK(of(rows, {0}).measured());
  rows[3].status = row_status::wrong_data;
  CHECK(of(rows, {0, 1}).status == aggregate_status::wrong_data);
}

TEST_CASE("a row of another config makes the time infinite: the assigned config did not run") {
  std::vector<row> rows = rows_of({10}, {10});
  rows[1].digest = 3;
  CHECK(of(rows, {0}).status == aggregate_status::mismatched);
}

TEST_CASE("contradicting rows and impossible times make the time infinite, and repeated rows change nothing") {
  std::vector<row> rows = rows_of({10}, {10});
  rows.push_back(rows[0]);
  CHECK(of(rows, {0}).measured());
  rows.push_back(rows[0]);
  rows.back().end_ns = 20;
  CHECK(of(rows, {0}).status == aggregate_status::inconsistent);
  CHECK(of({{0, 0, config, 10, 5}, {1, 0, config, 0, 5}}, {0}).status == aggregate_status::inconsistent);
  CHECK(of({{0, 0, config, 10, 12}, {1, 0, config, 50, 55}}, {0}).time_ns == 5);
}

TEST_CASE("rows of ranks that take no part are ignored") {
  std::vector<row> rows = rows_of({10}, {10});
  rows.push_back({9, 0, 1, 0, 100000, row_status::failed});
  CHECK(of(rows, {0}).time_ns == 10);
}

TEST_CASE("an interval in which the clock did not tick counts as 1 ns") {
  CHECK(of(rows_of({0}, {0}), {0}).time_ns == 1);
}

TEST_CASE("unequal counts and invalid times make the time infinite") {
  using times = std::vector<std::vector<double>>;
  CHECK(aggregate_times(times{{1, 2}, {1}}).status == aggregate_status::missing);
  CHECK(aggregate_times(times{{1, 0}, {1, 1}}).status == aggregate_status::failed);
  CHECK(aggregate_times(times{{1, NAN}, {1, 1}}).status == aggregate_status::failed);
  CHECK(aggregate_times(times{{1, infinite_ns}, {1, 1}}).status == aggregate_status::failed);
  CHECK(aggregate_times(times{}).status == aggregate_status::not_tried);
  CHECK(aggregate_times(times{{}, {}}).status == aggregate_status::not_tried);
}

TEST_CASE("the median of an even number of values is the mean of the middle two") {
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({7}) == 7);
  CHECK(std::isinf(median({})));
}

TEST_CASE("any integers in rows give a positive time or infinity, and the order of rows never matters") {
  testing::generator random(11);
  const std::vector<std::int64_t> edges{INT64_MIN, INT64_MIN + 1, -1, 0, 1, INT64_MAX - 1, INT64_MAX};
  for (int round = 0; round < 2000; ++round) {
    std::vector<row> rows;
    for (std::uint32_t p : pair_of_ranks) {
      for (std::uint64_t i = 0; i < 3; ++i) {
        rows.push_back({p, i, config, edges[random.below(edges.size())], edges[random.below(edges.size())]});
      }
    }
    const aggregate a = of(rows, {0, 1, 2});
    CHECK(a.time_ns > 0);
    random.shuffle(rows);
    CHECK(of(rows, {0, 1, 2}) == a);
  }
}

TEST_CASE("times of another clock are converted before they are compared, and the conversion error is kept") {
  // Rank 1's clock is 5 s ahead; a message takes 10 ns each way.
  clock_offset ahead;
  constexpr std::int64_t off = 5'000'000'000;
  REQUIRE(ahead.add({.sent_ns = 0, .received_ns = off + 10, .answered_ns = off + 10, .returned_ns = 20}));
  const std::vector<participant_clock> clocks{{0, nullptr}, {1, &ahead}};
  const std::vector<std::uint64_t> timed{5};
  const auto judged = [&](const std::vector<row>& rows, std::span<const participant_clock> known) {
    return aggregate_candidate(
        rows, {.digest = config, .participants = pair_of_ranks, .invocations = timed, .clocks = known});
  };
  const std::vector<row> rows{{0, 5, config, 1000, 2200}, {1, 5, config, off + 1700, off + 2100}};
  const aggregate a = judged(rows, clocks);
  CHECK(a.time_ns == doctest::Approx(500).epsilon(0.01));  // rank 1 started late; waiting for it is not charged
  CHECK(a.clock_error_ns >= 10);
  CHECK(a.clock_error_ns < 20);
  CHECK(judged(rows, {}).status == aggregate_status::measured);
  CHECK(judged(rows, {}).time_ns != a.time_ns);
}

TEST_CASE("while a clock is unknown a repetition is the longest time that any participant saw") {
  const clock_offset unknown;
  const std::vector<participant_clock> clocks{{1, &unknown}};
  const std::vector<std::uint64_t> timed{5};
  const std::vector<row> rows{{0, 5, config, 1000, 2000}, {1, 5, config, 900'001'700, 900'002'100}};
  const aggregate a = aggregate_candidate(
      rows, {.digest = config, .participants = pair_of_ranks, .invocations = timed, .clocks = clocks});
  CHECK(a.time_ns == 1000);
  CHECK(a.clock_error_ns == 0);
}

TEST_CASE("a repetition that ends before its last start by less than the clock error counts as a short one") {
  clock_offset roughly;
  REQUIRE(roughly.add({.sent_ns = 0, .received_ns = 0, .answered_ns = 0, .returned_ns = 600}));
  const std::vector<participant_clock> clocks{{1, &roughly}};
  const std::vector<std::uint64_t> timed{5};
  const auto of_start = [&](std::int64_t start_ns) {
    const std::vector<row> rows{{0, 5, config, 1000, 1100}, {1, 5, config, start_ns, start_ns}};
    return aggregate_candidate(
        rows, {.digest = config, .participants = pair_of_ranks, .invocations = timed, .clocks = clocks});
  };
  CHECK(of_start(1000).measured());
  CHECK(of_start(1000).time_ns == 1);
  CHECK(of_start(1000).clock_error_ns > 300);
}
