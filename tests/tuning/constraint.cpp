#include <parley/tuning/constraint.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace parley::tuning;

TEST_CASE("a config without demands breaks no constraint, and without constraints nothing is broken") {
  CHECK(broken_by({}, {.relative_error = 0, .memory_bytes = 0}).empty());
  CHECK(broken_by({.relative_error = 0.5, .memory_bytes = 1 << 30, .memory_per_byte = 8}, {}).empty());
}

TEST_CASE("a config that is less accurate than allowed is excluded at every size") {
  const auto broken = broken_by({.relative_error = 1e-2}, {.relative_error = 1e-3});
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].kind == constraint_kind::accuracy);
  CHECK(broken[0].largest_bytes == 0);
  CHECK(sentence(broken[0]) == "constraint on accuracy: its results are off by up to 0.01, and 0.001 is allowed");
  CHECK(broken_by({.relative_error = 1e-3}, {.relative_error = 1e-3}).empty());
}

TEST_CASE("a memory constraint excludes the sizes that need more than is allowed") {
  const auto broken = broken_by({.memory_bytes = 100, .memory_per_byte = 4}, {.memory_bytes = 500});
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].largest_bytes == 100);
  CHECK(sentence(broken[0]) == "constraint on memory: payloads of more than 100 bytes need at least 504 bytes of extra "
                               "memory, and 500 are allowed");
  CHECK(broken_by({.memory_per_byte = 4, .memory_at_most = 500}, {.memory_bytes = 500}).empty());
  CHECK(broken_by({.memory_per_byte = 4, .memory_at_most = 501}, {.memory_bytes = 500})[0].largest_bytes == 125);
  CHECK(broken_by({.memory_bytes = 501}, {.memory_bytes = 500})[0].largest_bytes == 0);
  CHECK(broken_by({.memory_bytes = 500}, {.memory_bytes = 500}).empty());
  CHECK(broken_by({.relative_error = 1, .memory_bytes = 501}, {.relative_error = 0, .memory_bytes = 500}).size() == 2);
}

TEST_CASE("a demand that is NaN or a negative error counts as the worst possible") {
  const double nan = std::nan("");
  CHECK(broken_by({.relative_error = nan}, {.relative_error = 1}).size() == 1);
  CHECK(broken_by({.relative_error = -1}, {.relative_error = 1}).size() == 1);
  REQUIRE(broken_by({.memory_per_byte = nan}, {.memory_bytes = 500}).size() == 1);
  CHECK(broken_by({.memory_per_byte = nan}, {.memory_bytes = 500})[0].largest_bytes == 0);
  CHECK(broken_by({.memory_per_byte = 1e-300}, {.memory_bytes = 500}).empty());
}
