#include <parley/simulation/world/world.hpp>

#include <doctest/doctest.h>

#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

using namespace parley::simulation;

namespace {

/// Bytes of the heap in use; constant under a sanitizer that does not report them.
std::size_t held() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

/// Heap bytes for one rank in a world of `ranks` ranks.
std::size_t bytes_of_one_among(rank_id ranks) {
  const std::size_t before = held();
  world_options o;
  o.ranks = ranks;
  o.settings.flight_records = 16;
  world w(o, nullptr);
  w.start_all([](rank_id) {});
  return (held() - before) / ranks;
}

}  // namespace

TEST_CASE("the memory of one simulated rank does not grow with the number of the other ranks") {
  const std::size_t among_few = bytes_of_one_among(50);
  CAPTURE(among_few);
  if (among_few == 0) return;
  CHECK(bytes_of_one_among(1'000) <
        2 * among_few);  // one word for each of the others would exceed this; the first rank may pay for the pools
}

TEST_CASE("a rank whose timers are armed and disarmed again and again leaves nothing behind on the stage") {
  stage s(1, {});
  struct bell final : parley::runtime::timer {
    bell() : timer([](parley::runtime::timer& self) noexcept { ++static_cast<bell&>(self).rung; }) {}
    int rung = 0;
  } near, far;
  const auto work = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      s.as(0, [&] {
        s.clock(0).arm(near, s.now() + 10);
        far.unlink();
        s.clock(0).arm(far, s.now() + 1'000'000'000);
      });
      s.run_to(s.now() + 10);
    }
  };
  work(100);
  const std::size_t before = held();
  work(20'000);
  CHECK(held() < before + 20'000);  // less than one byte for each round
  CHECK(near.rung == 20'100);
  s.run_to(s.now() + 2'000'000'000);
  CHECK(far.rung == 1);
}
