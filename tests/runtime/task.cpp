#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

task<int> seven() { co_return 7; }
task<std::unique_ptr<int>> boxed(int n) { co_return std::make_unique<int>(n); }
task<int> seven_later() {
  auto woken = co_await sleep_until(5_ms);
  woken.value();
  co_return 7;
}
task<int> doubled(bool later) {
  if (later) {
    int value = co_await seven_later();
    co_return value * 2;
  }
  int value = co_await seven();
  co_return value * 2;
}
task<> throw_now() {
  throw std::runtime_error("now");
  co_return;
}
task<> throw_later() {
  auto woken = co_await sleep_until(1_ms);
  woken.value();
  throw std::runtime_error("later");
}
task<std::string> caught(bool later) {
  std::string text;
  try {
    if (later) {
      co_await throw_later();
    } else {
      co_await throw_now();
    }
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  co_return text;
}

task<std::uint64_t> sum_of_sevens(int count) {
  std::uint64_t sum = 0;
  for (int i = 0; i < count; ++i) {
    int value = co_await seven();
    sum += static_cast<std::uint64_t>(value);
  }
  co_return sum;
}

task<> yield_once() { co_await yield; }
task<int> many_short_waits(int count) {
  int done = 0;
  for (int i = 0; i < count; ++i) {
    co_await yield_once();
    ++done;
  }
  co_return done;
}

task<int> depth_at_once(int left) {
  if (left == 0) co_return 0;
  int below = co_await depth_at_once(left - 1);
  co_return below + 1;
}
task<int> depth_that_waits(int left) {
  if (left == 0) {
    co_await yield;
    co_return 0;
  }
  int below = co_await depth_that_waits(left - 1);
  co_return below + 1;
}
task<int> depth_that_throws(int left) {
  if (left == 0) throw std::runtime_error("the bottom");
  int below = co_await depth_that_throws(left - 1);
  co_return below + 1;
}

task<> note_around_a_yield(script& play, std::string who) {
  play.say(who + "1");
  co_await yield;
  play.say(who + "2");
}
task<> child_that_waits(script& play, std::string who) {
  play.say(who + "child");
  co_await yield;
  play.say(who + "woken");
}
task<> parent(script& play, std::string who) {
  play.say(who + "calls");
  co_await child_that_waits(play, who);
  play.say(who + "returns");
}

struct guard {
  int& count;
  ~guard() { ++count; }
};
task<> never_awaited(std::shared_ptr<int> held, int& ends) {
  guard g{ends};
  co_await yield;
  ++*held;
}

}  // namespace

TEST_CASE("a task gives its value to the coroutine that awaits it") {
  virtual_time clock;
  CHECK(run(clock, seven()) == 7);
  CHECK(run(clock, doubled(false)) == 14);
  CHECK(clock.now() == 0);
}

TEST_CASE("a task that waits gives its value when the wait is over") {
  virtual_time clock;
  CHECK(run(clock, doubled(true)) == 14);
  CHECK(clock.now() == 5_ms);
}

TEST_CASE("a task may return a move-only value") {
  virtual_time clock;
  auto value = run(clock, boxed(9));
  REQUIRE(value);
  CHECK(*value == 9);
}

TEST_CASE("awaiting a task throws the task's exception, before and after a wait") {
  virtual_time clock;
  CHECK(run(clock, caught(false)) == "now");
  CHECK(run(clock, caught(true)) == "later");
  CHECK_THROWS_WITH_AS(run(clock, throw_later()), "later", std::runtime_error);
}

TEST_CASE("a hundred thousand tasks that complete at once, awaited in a loop, do not overflow the stack") {
  virtual_time clock;
  CHECK(run(clock, sum_of_sevens(100'000)) == 700'000);
}

TEST_CASE("a hundred thousand tasks that wait, awaited in a loop, do not overflow the stack") {
  virtual_time clock;
  CHECK(run(clock, many_short_waits(100'000)) == 100'000);
}

TEST_CASE("a hundred thousand tasks nested in one another do not overflow the stack") {
  virtual_time clock;
  SUBCASE("which complete at once") { CHECK(run(clock, depth_at_once(100'000)) == 100'000); }
  SUBCASE("which wait at the bottom") { CHECK(run(clock, depth_that_waits(100'000)) == 100'000); }
}

TEST_CASE("an exception passes through ten thousand nested tasks") {
  virtual_time clock;
  CHECK_THROWS_WITH_AS(run(clock, depth_that_throws(10'000)), "the bottom", std::runtime_error);
}

TEST_CASE("coroutines are resumed in the order in which they became ready") {
  script play;
  play.stage->spawn(note_around_a_yield(play, "a"));
  play.stage->spawn(note_around_a_yield(play, "b"));
  play.stage->spawn(note_around_a_yield(play, "c"));
  play.finish();
  CHECK(play.log == "a1 b1 c1 a2 b2 c2 ");
}

TEST_CASE("an awaited child runs at once and its caller continues from the ready queue") {
  script play;
  play.stage->spawn(parent(play, "x-"));
  play.stage->spawn(note_around_a_yield(play, "y"));
  play.finish();
  // x's child ends while y is ready, so y runs before x continues.
  CHECK(play.log == "x-calls x-child y1 x-woken y2 x-returns ");
}

TEST_CASE("a task that is never awaited does not start, and frees its arguments") {
  auto held = std::make_shared<int>(0);
  int ends = 0;
  {
    auto unused = never_awaited(held, ends);
    CHECK(held.use_count() == 2);
  }
  CHECK(held.use_count() == 1);
  CHECK(*held == 0);
  CHECK(ends == 0);
}
