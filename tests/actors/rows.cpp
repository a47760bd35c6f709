#include <parley/actors/agreement/rows.hpp>

#include <parley/runtime/time/virtual_time.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;

namespace {

std::int64_t end_ahead_of(const row_log& rows, std::uint64_t invocation, runtime::time_ns start_ns) {
  wire_row row;
  row.invocation = invocation;
  row.start_ns = start_ns;
  return rows.end_ahead_of(row);
}

}  // namespace

TEST_CASE("a message that overtakes another one does not count as ahead of it") {
  runtime::virtual_time clock;
  row_log rows(clock);
  rows.set_measuring(true);
  rows.ended(0, 0, 10);
  rows.ended(30, 2, 40);  // a small message, which started while 1 was in flight
  wire_row large;
  large.invocation = 1;
  large.start_ns = 20;
  large.end_ns = 50;
  rows.add(large);
  CHECK(rows.take().at(0).previous_end_ns == 10);
  rows.ended(20, 1, 50);
  CHECK(end_ahead_of(rows, 3, 25) == 50);
  CHECK(end_ahead_of(rows, 3, 35) == 50);
}

TEST_CASE("a message counts as ahead of others that began at the same time if its number is lower") {
  runtime::virtual_time clock;
  row_log rows(clock);
  rows.set_measuring(true);
  rows.ended(60, 5, 70);
  CHECK(end_ahead_of(rows, 4, 60) == 0);
  CHECK(end_ahead_of(rows, 6, 60) == 70);
}

TEST_CASE("the latest end is known even without measuring, and the latest few while rows are measured") {
  runtime::virtual_time clock;
  row_log rows(clock);
  rows.ended(1, 1, 2);
  rows.ended(3, 3, 4);
  CHECK(end_ahead_of(rows, 4, 5) == 4);
  CHECK(end_ahead_of(rows, 2, 2) == 0);  // unknown: nothing is remembered while nothing is measured
  rows.set_measuring(true);
  for (int i = 10; i < 20; ++i) rows.ended(i, static_cast<std::uint64_t>(i), 100 + i);
  CHECK(end_ahead_of(rows, 20, 20) == 119);
  CHECK(end_ahead_of(rows, 19, 19) == 118);
  CHECK(end_ahead_of(rows, 17, 17) == 116);
  CHECK(end_ahead_of(rows, 16, 16) == 0);
}
