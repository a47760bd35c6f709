#include <parley/runtime/time/timers.hpp>

#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

using namespace parley::runtime;

namespace {

struct ring : timer {
  ring(std::vector<int>& l, int n) : timer(&on_ring), log(l), number(n) {}
  static void on_ring(timer& self) noexcept {
    auto& r = static_cast<ring&>(self);
    r.log.push_back(r.number);
    if (r.other != nullptr) timer_wheel::disarm(*r.other);
    if (r.again != nullptr) r.again->arm(r, r.again_at);
  }
  std::vector<int>& log;
  int number;
  timer* other = nullptr;
  timer_wheel* again = nullptr;
  time_ns again_at = 0;
};

constexpr time_ns year = 31'556'952'000'000'000;

}  // namespace

TEST_CASE("timers fire in the order of their times") {
  timer_wheel wheel(1'000'000);
  std::vector<int> log;
  ring a(log, 1), b(log, 2), c(log, 3), d(log, 4);
  wheel.arm(d, 2'000'000'000);
  wheel.arm(b, 1'000'065);
  wheel.arm(a, 1'000'001);
  wheel.arm(c, 5'000'000);
  CHECK(wheel.next() == 1'000'001);
  CHECK(wheel.advance(3'000'000'000));
  CHECK(log == std::vector{1, 2, 3, 4});
  CHECK(wheel.next() == never);
  CHECK_FALSE(wheel.advance(4'000'000'000));
}

TEST_CASE("a timer fires at its nanosecond and not before") {
  timer_wheel wheel;
  std::vector<int> log;
  ring a(log, 1);
  for (time_ns when : {time_ns{1}, time_ns{63}, time_ns{64}, time_ns{4096}, time_ns{4097}, time_ns{1'000'000'007}}) {
    wheel.arm(a, when);
    CHECK(wheel.next() == when);
    wheel.advance(when - 1);
    CHECK(log.empty());
    CHECK(wheel.next() == when);
    CHECK(wheel.advance(when));
    CHECK(log.size() == 1);
    log.clear();
  }
}

TEST_CASE("timers for the same nanosecond fire in the order in which they were armed, however long before") {
  const time_ns when = 5'000'000'000;
  timer_wheel wheel;
  std::vector<int> log;
  std::vector<std::unique_ptr<ring>> rings;
  int number = 0;
  for (time_ns now :
       {time_ns{0}, when - 300'000, when - 4'097, when - 4'096, when - 65, when - 64, when - 63, when - 1}) {
    wheel.advance(now);
    for (int i = 0; i < 2; ++i) wheel.arm(*rings.emplace_back(std::make_unique<ring>(log, number++)), when);
  }
  wheel.advance(when + 100);
  REQUIRE(log.size() == rings.size());
  for (int i = 0; i < number; ++i) CHECK(log[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("a timer for the past fires at the next advance") {
  timer_wheel wheel(100);
  std::vector<int> log;
  ring a(log, 1), b(log, 2), c(log, 3);
  wheel.arm(a, 100);
  wheel.arm(b, 3);
  wheel.arm(c, -7);
  CHECK(wheel.next() == 100);
  CHECK(wheel.advance(100));
  CHECK(log == std::vector{1, 2, 3});
}

TEST_CASE("a timer that arms itself for the past does not hold up the advance") {
  timer_wheel wheel;
  std::vector<int> log;
  ring a(log, 1);
  a.again = &wheel;
  a.again_at = 0;
  wheel.arm(a, 0);
  wheel.advance(0);
  CHECK(log.size() == 1);
  wheel.advance(0);
  CHECK(log.size() == 2);
}

TEST_CASE("a timer that arms itself again while timers fire waits for its new time") {
  timer_wheel wheel;
  std::vector<int> log;
  ring a(log, 1), b(log, 2);
  a.again = &wheel;
  a.again_at = 150;
  wheel.arm(a, 100);
  wheel.arm(b, 120);
  wheel.advance(140);
  CHECK(log == std::vector{1, 2});
  a.again = nullptr;
  wheel.advance(1'000);
  CHECK(log == std::vector{1, 2, 1});
}

TEST_CASE("a disarmed timer does not fire, even if a timer for the same instant disarms it") {
  timer_wheel wheel;
  std::vector<int> log;
  ring a(log, 1), b(log, 2), c(log, 3), d(log, 4);
  a.other = &b;
  wheel.arm(a, 10);
  wheel.arm(b, 10);
  wheel.arm(c, 10);
  wheel.arm(d, 5);
  timer_wheel::disarm(d);
  CHECK(wheel.next() == 10);
  wheel.advance(20);
  CHECK(log == std::vector{1, 3});
}

TEST_CASE("destroying a timer disarms it") {
  timer_wheel wheel;
  std::vector<int> log;
  {
    ring a(log, 1), b(log, 2);
    wheel.arm(a, 10);
    wheel.arm(b, 1'000'000);
  }
  CHECK(wheel.next() == never);
  CHECK_FALSE(wheel.advance(2'000'000));
  CHECK(log.empty());
}

TEST_CASE("timers years away fire to the nanosecond") {
  timer_wheel wheel(7);
  std::vector<int> log;
  ring a(log, 1), b(log, 2), c(log, 3);
  wheel.arm(c, never - 1);
  wheel.arm(b, 200 * year + 1);
  wheel.arm(a, 3 * year);
  CHECK(wheel.next() == 3 * year);
  wheel.advance(3 * year);
  CHECK(log == std::vector{1});
  CHECK(wheel.next() == 200 * year + 1);
  wheel.advance(200 * year);
  CHECK(log == std::vector{1});
  wheel.advance(200 * year + 1);
  CHECK(log == std::vector{1, 2});
  CHECK(wheel.next() == never - 1);
  wheel.advance(never - 1);
  CHECK(log == std::vector{1, 2, 3});
}

TEST_CASE("the wheel agrees with a sorted map over 200,000 random operations, with few timers and with many") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    const int timers = seed % 2 == 0 ? 200 : 7;
    random_stream dice(seed, 0);
    auto now = static_cast<time_ns>(dice.below(1'000'000));
    timer_wheel wheel(now);
    std::vector<int> fired;
    std::vector<std::unique_ptr<ring>> rings;
    std::multimap<time_ns, int> expected;  // a multimap keeps equal keys in insertion order
    std::vector<std::multimap<time_ns, int>::iterator> places;
    for (int i = 0; i < timers; ++i) rings.push_back(std::make_unique<ring>(fired, i));
    places.resize(rings.size());

    for (int step = 0; step < 25'000; ++step) {
      const auto which = static_cast<std::size_t>(dice.below(rings.size()));
      ring& r = *rings[which];
      switch (dice.below(4)) {
        case 0:
        case 1: {
          if (r.linked()) break;
          // Times at every distance, many of them equal. None is due already: it would fire after timers armed for `now`.
          const time_ns when = now + 1 + static_cast<time_ns>(dice.below(std::uint64_t{1} << dice.below(45)));
          wheel.arm(r, when);
          places[which] = expected.emplace(when, static_cast<int>(which));
          break;
        }
        case 2:
          if (r.linked()) {
            timer_wheel::disarm(r);
            expected.erase(places[which]);
          }
          break;
        default: {
          REQUIRE(wheel.next() == (expected.empty() ? never : expected.begin()->first));
          if (dice.below(3) == 0 && !expected.empty()) {
            now = expected.begin()->first;
          } else {
            now += static_cast<time_ns>(dice.below(std::uint64_t{1} << dice.below(40)));
          }
          std::vector<int> due;
          while (!expected.empty() && expected.begin()->first <= now) {
            due.push_back(expected.begin()->second);
            expected.erase(expected.begin());
          }
          fired.clear();
          REQUIRE(wheel.advance(now) == !due.empty());
          REQUIRE(fired == due);
        }
      }
    }
  }
}

TEST_CASE("a short sleep among a few far deadlines allocates nothing, and the wheel gives back its memory") {
  timer_wheel wheel;
  std::vector<int> log;
  ring sleep(log, 0), deadline(log, 1), look(log, 2), answer(log, 3);
  const auto rounds = [&](time_ns from) {
    for (time_ns now = from; now < from + 1'000'000; now += 10'000) {
      wheel.arm(sleep, now + 10'000);
      timer_wheel::disarm(answer);
      wheel.arm(answer, now + 50'000'000);
      wheel.advance(now + 10'000);
    }
  };
  wheel.arm(deadline, 30'000'000'000);
  wheel.arm(look, 1'000'000'000);
  rounds(0);
  const std::size_t before = frame_pool::heap_allocations();
  rounds(1'000'000);
  CHECK(frame_pool::heap_allocations() == before);
  CHECK(log == std::vector(200, 0));

  const auto with_many = [&] {
    timer_wheel other;
    std::vector<std::unique_ptr<ring>> many;
    for (int i = 0; i < 20; ++i) other.arm(*many.emplace_back(std::make_unique<ring>(log, i)), time_ns{1} << i);
    while (other.next() != never) other.advance(other.next());
    return frame_pool::heap_allocations();
  };
#ifndef PARLEY_ADDRESS_SANITIZER  // under it the pool keeps nothing, so that the sanitizer sees every block not freed
  // Every round uses the same levels; blocks that other tests left in the pool would not last for all rounds.
  const std::size_t once = with_many();
  for (int i = 0; i < 200; ++i) CHECK(with_many() == once);
#else
  static_cast<void>(with_many());
#endif
}
