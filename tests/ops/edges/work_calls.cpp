#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

struct started_pair : world {
  started_pair() : world(2) {
    const std::vector configs{direct(), chunked(16_KiB, 2)};
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(configs));
  }
  transfer out, in;
};

}  // namespace

TEST_CASE("started calls move every size, and the wait for the receive drives both ends") {
  started_pair w;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{1} << 20U}) {
    const auto data = pattern(size, size);
    std::vector<std::byte> into(size + 3);
    auto received = w.in.start_receive(into, {.from = 0});
    auto sent = w.out.start_send(data, {.to = 1});
    CHECK(received.wait() == size);
    sent.wait();
    into.resize(size);
    CHECK(into == data);
  }
}

TEST_CASE("a started receive that is destroyed or times out leaves its message to the next receive") {
  started_pair w;
  const auto data = pattern(300, 1);
  std::vector<std::byte> unused(300);
  { const auto given_up = w.in.start_receive(unused, {.from = 0}); }
  auto late = w.in.start_receive(unused, {.from = 0}, {.timeout = 1ms});
  CHECK(late.outcome().code() == errc::timeout);
  auto sent = w.out.start_send(data, {.to = 1});
  std::vector<std::byte> into(300);
  CHECK(w.in.start_receive(into, {.from = 0}).wait() == 300);
  sent.wait();
  CHECK(into == data);
  CHECK(unused == std::vector<std::byte>(300));
}

TEST_CASE("a send to a rank without an edge to it is refused when it is started") {
  started_pair w;
  const auto data = pattern(8, 1);
  CHECK_THROWS_AS(static_cast<void>(w.in.start_send(data, {.to = 0})), failure);
}
