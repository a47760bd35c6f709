#include <parley/transports/cuda/device_rest.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace {

using namespace std::chrono_literals;
using parley::transports::device_rest;

/// Waits until `over()` holds, long enough even for a machine under load; returns whether it holds.
template <class Over>
bool comes(const Over& over) {
  for (int i = 0; i < 10'000 && !over(); ++i) std::this_thread::sleep_for(1ms);
  return over();
}

TEST_CASE("freeing memory waits until no stream waits for a message, and no stream begins to wait meanwhile") {
  device_rest rest;
  rest.begin_wait();
  rest.begin_wait();
  std::atomic<bool> frees{false};
  std::atomic<bool> may_end{false};
  std::atomic<bool> waits{false};
  std::thread freer([&] {
    const device_rest::quiet now(rest, device_rest::longest);
    CHECK(now.at_rest());
    frees = true;
    CHECK(comes([&] { return may_end.load(); }));
  });
  rest.end_waits(1);
  std::this_thread::sleep_for(20ms);
  CHECK_FALSE(frees);
  rest.begin_wait();  // a stream that is always waiting delays the free
  rest.end_waits(2);
  CHECK(comes([&] { return frees.load(); }));
  std::thread waiter([&] {
    rest.begin_wait();
    waits = true;
  });
  std::this_thread::sleep_for(20ms);
  CHECK_FALSE(waits);
  may_end = true;
  CHECK(comes([&] { return waits.load(); }));
  freer.join();
  waiter.join();
}

TEST_CASE("a stream that waits for ever delays a free only up to the free's limit") {
  device_rest rest;
  rest.begin_wait();
  std::thread freer([&] {
    const device_rest::quiet now(rest, 5ms);
    CHECK_FALSE(now.at_rest());
    const auto began = std::chrono::steady_clock::now();
    rest.begin_wait();  // a free without rest does not delay new waits
    CHECK(std::chrono::steady_clock::now() - began < device_rest::longest / 2);
    rest.end_waits(1);
  });
  freer.join();
  rest.end_waits(1);
}

TEST_CASE("no stream begins to wait before two concurrent frees have both ended") {
  device_rest rest;
  std::atomic<bool> waits{false};
  auto first = std::make_unique<device_rest::quiet>(rest, 0ms);
  auto second = std::make_unique<device_rest::quiet>(rest, 0ms);
  CHECK(second->at_rest());
  first.reset();
  std::thread waiter([&] {
    rest.begin_wait();
    waits = true;
  });
  std::this_thread::sleep_for(20ms);
  CHECK_FALSE(waits);
  second.reset();
  CHECK(comes([&] { return waits.load(); }));
  waiter.join();
}

}  // namespace
