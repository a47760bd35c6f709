#include <parley/simulation/world.hpp>

#include <doctest/doctest.h>

#include <malloc.h>

#include <cstddef>

using namespace parley::simulation;

namespace {

/// Of the heap, for each of so many ranks; 0 where a sanitizer does not say.
std::size_t bytes_of_one_among(rank_id ranks) {
  const auto held = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const std::size_t before = held();
  world_options o;
  o.ranks = ranks;
  o.settings.flight_records = 16;
  world w(o, nullptr);
  w.start_all([](rank_id) {});
  return (held() - before) / ranks;
}

}  // namespace

TEST_CASE("what a simulated rank takes does not grow with the number of the others") {
  const std::size_t among_few = bytes_of_one_among(50);
  CAPTURE(among_few);
  if (among_few == 0) return;
  CHECK(bytes_of_one_among(1'000) <
        2 * among_few);  // a word for each of them would be more; pools may lend to the first
}
