// The simulated link under the other tests of puts and credits: a put lands late, and a fence waits for it.
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/edges.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::runtime;
using namespace parley::tests;

TEST_CASE("a put lands when the test says so, and a fence ends only then") {
  memory_link_options o;
  o.landing_ns = never;
  edge_pair e({}, std::move(o));
  std::vector<std::byte> memory(1000);
  const auto exposed = e.links[1].expose(memory).value();
  const remote_place at{exposed.key, reinterpret_cast<std::uint64_t>(memory.data()) + 10};
  const auto data = pattern(900, 1);
  parley::tests::awaited put;
  parley::tests::awaited fence;
  CHECK(e.links[0].put(1, at, data, &put) == errc::pending);
  CHECK(e.links[0].fence(1, &fence) == errc::pending);
  e.pass();
  CHECK(put.outcome == errc::none);
  CHECK(fence.calls == 0);
  CHECK(memory[10] == std::byte{0});
  CHECK(e.links.land());
  e.pass();
  CHECK(fence.outcome == errc::none);
  CHECK(std::equal(data.begin(), data.end(), memory.begin() + 10));

  parley::tests::awaited beyond;
  CHECK(e.links[0].put(1, {exposed.key, at.address + 91}, data, &beyond) == errc::bad_argument);
  CHECK(e.links.puts().outside == 1);
  e.links[1].withdraw(exposed);
  std::fill(memory.begin(), memory.end(), std::byte{0});
  CHECK(e.links[0].put(1, at, data, &put) == errc::pending);
  e.pass();
  CHECK(e.links.land());
  CHECK(e.links.puts().nowhere == 1);
  CHECK(memory[10] == std::byte{0});
}
