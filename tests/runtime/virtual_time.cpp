#include <parley/runtime/time/virtual_time.hpp>

#include <parley/runtime/coroutines/mailbox.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

task<> wait_for_ever(script& play) {
  mailbox<int> box(play.clock);
  auto m = co_await box.receive();
  play.say(std::string(name(m.code())));
}
task<> sleep_for_ever() {
  auto woken = co_await sleep_until(never);
  static_cast<void>(woken);
}
task<> wander(script& play, int who) {
  random_stream dice(play.clock.seed(), static_cast<std::uint64_t>(who));
  for (int i = 0; i < 20; ++i) {
    auto woken = co_await sleep_for(std::chrono::nanoseconds(static_cast<time_ns>(dice.below(5))));
    woken.value();
    play.say(std::to_string(who));
  }
}
std::string order_with(std::uint64_t seed) {
  script play(seed);
  for (int who = 0; who < 8; ++who) play.stage->spawn(wander(play, who));
  play.finish();
  return play.log + std::to_string(play.clock.now());
}

template <class Point>
concept adds_spans = requires(Point p, time_ns span) { p + span; } || requires(Point p, time_ns span) { span + p; };
template <class Point>
concept becomes_a_deadline = requires(Point p, time_ns span) { deadline_of(p, span); };
using present = decltype(std::declval<executor&>().now());

}  // namespace

TEST_CASE("no wait can count from the time that a loop has read: a span cannot be added to that time") {
  CHECK_FALSE(adds_spans<present>);
  CHECK_FALSE(becomes_a_deadline<present>);
  CHECK(adds_spans<time_ns>);
  virtual_time clock;
  clock.advance_to(5);
  const time_ns noted = clock.now();
  CHECK(noted == 5);
  CHECK(clock.now() - noted == 0);
  CHECK(clock.now() >= noted);
}

TEST_CASE("time stands still while anything is ready and then jumps to exactly the next timer") {
  script play;
  CHECK(play.clock.now() == 0);
  play.stage->spawn(say_at(play, 123'456'789'012, "b"));
  play.stage->spawn(say_at(play, 17, "a"));
  play.settle();
  CHECK(play.clock.now() == 0);
  CHECK(play.clock.wait());
  CHECK(play.clock.now() == 17);
  CHECK(play.clock.wait());  // a coroutine is ready
  CHECK(play.clock.now() == 17);
  play.settle();
  CHECK(play.log == "a ");
  CHECK(play.clock.wait());
  CHECK(play.clock.now() == 123'456'789'012);
  CHECK(play.clock.precise_now() == 123'456'789'012);
  play.settle();
  CHECK_FALSE(play.clock.wait());
}

TEST_CASE("two runs with one seed have one order, and another seed gives another order") {
  CHECK(order_with(5) == order_with(5));
  CHECK(order_with(5) != order_with(6));
}

TEST_CASE("posted handlers run in their order, before time passes") {
  script play;
  play.stage->spawn(say_at(play, 5, "timer"));
  play.settle();
  play.clock.post([&] {
    play.say("first");
    play.clock.post([&] { play.say("third"); });
  });
  play.clock.post([&] { play.say("second"); });
  CHECK(play.clock.wait());
  CHECK(play.clock.now() == 0);
  play.finish();
  CHECK(play.log == "first second third timer ");
}

TEST_CASE("run reports a wait that can never end, and destroys the waiting coroutine") {
  script play;
  try {
    run(play.clock, wait_for_ever(play));
    FAIL("must throw");
  } catch (const failure& f) {
    CHECK(f.code() == errc::closed);
    CHECK(std::string(f.what()).find("nothing can end this wait") != std::string::npos);
  }
  CHECK_THROWS_AS(run(play.clock, sleep_for_ever()), failure);
  CHECK(play.log == "");
}

TEST_CASE("run_until stops as soon as its condition holds") {
  script play;
  for (time_ns t = 1; t <= 10; ++t) play.stage->spawn(say_at(play, t, "x"));
  run_until(play.clock, [&] { return play.log.size() == 6; });
  CHECK(play.clock.now() == 3);
  CHECK_THROWS_AS(run_until(play.clock, [] { return false; }), failure);
}

TEST_CASE("step resumes at most as many coroutines as asked") {
  script play;
  for (int i = 0; i < 5; ++i) play.stage->spawn(say_at(play, 0, "x"));
  CHECK(play.clock.step(2) == 2);
  CHECK(play.clock.resumed() == 2);
  CHECK(play.clock.step(100) == 5);  // three start, and the first two resume from their sleep
}

TEST_CASE("time spent inside a turn advances the precise clock at once, and the loop's clock at its next turn") {
  script play;
  auto& clock = play.clock;
  play.stage->spawn([](script& p) -> task<> {
    p.clock.spend(5'000);
    CHECK(p.clock.now() == 0);
    CHECK(p.clock.precise_now() == 5'000);
    p.clock.spend(2'000);
    CHECK(p.clock.precise_now() == 7'000);
    auto slept = co_await sleep_for(1us);
    slept.value();
    CHECK(p.clock.now() == 8'000);
  }(play));
  play.finish();
  CHECK(clock.now() == 8'000);
}

TEST_CASE("a deadline counts from the current time, and a deadline past the end of time is never") {
  virtual_time clock;
  CHECK(clock.deadline_in(7) == 7);
  clock.spend(100);
  CHECK(clock.deadline_in(7) == 107);
  CHECK(clock.now() == 100);
  CHECK(clock.deadline_in(never) == never);
  CHECK(clock.deadline_in(never - 100) == never);
  CHECK(clock.deadline_in(never - 101) == never - 1);
  clock.spend(never);
  CHECK(clock.precise_now() == never);
}
