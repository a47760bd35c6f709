#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

task<> throw_at(time_ns when, std::string text) {
  auto woken = co_await sleep_until(when);
  if (woken) throw std::runtime_error(text);
}
task<> sleep_twice(script& play) {
  auto first = co_await sleep_until(1_s);
  play.say(std::string(name(first.code())));
  auto second = co_await sleep_until(2_s);
  play.say(std::string(name(second.code())));
}
task<> in_an_inner_scope(script& play, scope::options o) {
  scope& here = co_await this_scope;
  scope inner(here, o);
  inner.spawn(sleep_twice(play));
  co_await inner.join();
  play.say("joined");
}
task<> note_deadline(script& play, time_ns& seen) {
  scope& here = co_await this_scope;
  seen = here.deadline();
  play.say("noted");
}
task<> spawn_in_scope(script& play, scope& outer, time_ns deadline, time_ns& seen) {
  scope inner(outer, {.deadline = deadline});
  inner.spawn(note_deadline(play, seen));
  co_await inner.join();
}
task<> join_and_say(script& play, scope& joined, std::string word) {
  co_await joined.join();
  play.say(word);
}
task<> leave_by_exception(script& play) {
  scope& here = co_await this_scope;
  scope inner(here);
  inner.spawn(sleep_twice(play));
  inner.spawn(in_an_inner_scope(play, {}));
  inner.spawn(say_at(play, 1_ms, "woken"));
  // All three wait; then the frame is left at the same instant at which one of them becomes ready.
  auto woken = co_await sleep_until(1_ms);
  woken.value();
  throw std::runtime_error("left");
}
task<> say_and_sleep(script& play, bool fails) {
  play.say("begins");
  if (fails) throw std::runtime_error("at once");
  co_await say_at(play, 1_s, "woken");
}
task<> begin_one(script& play, bool fails) {
  scope& here = co_await this_scope;
  scope inner(here);
  inner.begin(say_and_sleep(play, fails));
  play.say(inner.running() == 0 ? "ended" : "waits");
  co_await inner.join();
  play.say("joined");
}
task<> spawn_another(script& play, int left) {
  scope& here = co_await this_scope;
  play.say(std::to_string(left));
  if (left > 0) here.spawn(spawn_another(play, left - 1));
}

}  // namespace

TEST_CASE("join waits for all tasks, in virtual time to the nanosecond") {
  script play;
  play.stage->spawn(say_at(play, 7_ms, "b"));
  play.stage->spawn(say_at(play, 3_ms, "a"));
  CHECK(play.stage->running() == 2);
  play.finish();
  CHECK(play.log == "a b ");
  CHECK(play.clock.now() == 7_ms);
  CHECK(play.stage->running() == 0);
}

TEST_CASE("joining an empty scope does not wait") {
  script play;
  play.finish();
  CHECK(play.clock.now() == 0);
}

TEST_CASE("a task may spawn siblings, and join also waits for the siblings") {
  script play;
  play.stage->spawn(spawn_another(play, 3));
  play.finish();
  CHECK(play.log == "3 2 1 0 ");
}

TEST_CASE("a task's first exception cancels its siblings and join throws it") {
  script play;
  play.stage->spawn(sleep_twice(play));
  play.stage->spawn(throw_at(2_ms, "first"));
  play.stage->spawn(throw_at(3_ms, "second"));
  CHECK_THROWS_WITH_AS(play.finish(), "first", std::runtime_error);
  CHECK(play.clock.now() == 2_ms);
  CHECK(play.log == "cancelled cancelled ");
}

TEST_CASE("cancelling a scope also cancels nested scopes and every later wait") {
  script play;
  play.stage->spawn(in_an_inner_scope(play, {}));
  play.until(1_ms);
  play.stage->cancel();
  CHECK(play.stage->cancelled() == errc::cancelled);
  play.finish();
  CHECK(play.log == "cancelled cancelled joined ");
  CHECK(play.clock.now() == 1_ms);
}

TEST_CASE("all scopes below a cancelled one are cancelled before the first waiter is notified, and each waiter is "
          "notified once") {
  virtual_time clock;
  scope outer(clock);
  scope first(outer);
  scope second(outer);
  scope innermost(first);
  struct watcher : waiter {
    explicit watcher(std::vector<scope*> o) : waiter(&on_told), others(std::move(o)) {}
    static void on_told(waiter& self, errc why) noexcept {
      auto& w = static_cast<watcher&>(self);
      ++w.told;
      for (const scope* s : w.others) w.early += s->cancelled() == why ? 0 : 1;
      w.others.back()->cancel(errc::closed);  // it is already cancelled
    }
    std::vector<scope*> others;
    int told = 0;
    int early = 0;
  };
  const std::vector<scope*> all{&outer, &first, &innermost, &second};
  std::vector<std::unique_ptr<watcher>> watchers;
  for (scope* s : all) {
    for (int i = 0; i < 2; ++i) REQUIRE(watchers.emplace_back(std::make_unique<watcher>(all))->enter(*s));
  }
  outer.cancel(errc::timeout);
  for (const auto& w : watchers) {
    CHECK(w->told == 1);
    CHECK(w->early == 0);
  }
  CHECK(second.cancelled() == errc::timeout);
}

TEST_CASE("a scope's begin runs a task up to its first wait, or to its end, before the caller continues") {
  script play;
  play.stage->spawn(begin_one(play, false));
  play.until(1_ms);
  CHECK(play.log == "begins waits ");
  play.stage->cancel();
  play.finish();
  CHECK(play.log == "begins waits cancelled joined ");

  script other;
  other.stage->spawn(begin_one(other, true));
  CHECK_THROWS_WITH(other.finish(), "at once");
  CHECK(other.log == "begins ended ");
}

TEST_CASE("a scope created in a cancelled scope is cancelled") {
  script play;
  play.stage->cancel();
  play.stage->spawn(in_an_inner_scope(play, {}));
  play.finish();
  CHECK(play.log == "cancelled cancelled joined ");
}

TEST_CASE("a task spawned in a cancelled scope starts and its waits end at once") {
  script play;
  play.stage->cancel();
  play.stage->spawn(sleep_twice(play));
  play.finish();
  CHECK(play.log == "cancelled cancelled ");
  CHECK(play.clock.now() == 0);
}

TEST_CASE("a scope's deadline ends its waits with timeout at exactly that time") {
  script play;
  play.stage->spawn(in_an_inner_scope(play, {.deadline = 40_ms}));
  play.finish();
  CHECK(play.log == "timeout timeout joined ");
  CHECK(play.clock.now() == 40_ms);
  CHECK(play.stage->cancelled() == errc::none);
}

TEST_CASE("nested scopes inherit a deadline, and the earlier of two deadlines wins") {
  script play;
  scope outer(play.clock, {.deadline = 10_ms});
  time_ns longer = 0;
  time_ns shorter = 0;
  play.stage->spawn(spawn_in_scope(play, outer, 20_ms, longer));
  play.stage->spawn(spawn_in_scope(play, outer, 5_ms, shorter));
  play.finish();
  CHECK(longer == 10_ms);
  CHECK(shorter == 5_ms);

  scope below(outer, {.deadline = 20_ms});
  below.spawn(sleep_twice(play));
  run(play.clock, join_and_say(play, below, "end"));
  CHECK(play.log == "noted noted timeout timeout end ");
  CHECK(play.clock.now() == 10_ms);
}

TEST_CASE("a second cancellation does not change a scope's reason") {
  virtual_time clock;
  scope s(clock);
  s.cancel(errc::peer_failed);
  s.cancel(errc::timeout);
  CHECK(s.cancelled() == errc::peer_failed);
}

TEST_CASE("a scope that is left by an exception destroys its waiting tasks") {
  script play;
  play.stage->spawn(leave_by_exception(play));
  CHECK_THROWS_WITH_AS(play.finish(), "left", std::runtime_error);
  play.until(3_s);
  CHECK((play.log == "" || play.log == "woken "));
}

TEST_CASE("a scope that is destroyed while its tasks wait leaves nothing behind") {
  script play;
  play.stage->spawn(in_an_inner_scope(play, {.deadline = 50_ms}));
  play.stage->spawn(say_at(play, 1_ms, "one"));
  play.until(1_ms);
  play.stage->spawn(say_at(play, 1_ms, "not begun"));
  play.stage = nullptr;
  play.until(5_s);
  CHECK(play.log == "one ");
}

TEST_CASE("a coroutine that waits to join a scope may be destroyed before the scope") {
  script play;
  scope joined(play.clock);
  joined.spawn(say_at(play, 2_ms, "worker"));
  play.stage->spawn(join_and_say(play, joined, "joined"));
  play.until(1_ms);
  play.stage = nullptr;
  play.until(3_ms);
  CHECK(play.log == "worker ");
}

TEST_CASE("a scope may be destroyed before a coroutine that waits to join it") {
  script play;
  auto joined = std::make_unique<scope>(play.clock);
  joined->spawn(say_at(play, 2_ms, "worker"));
  play.stage->spawn(join_and_say(play, *joined, "joined"));
  play.until(1_ms);
  joined = nullptr;
  play.until(3_ms);
  play.stage = nullptr;
  CHECK(play.log == "");
}

TEST_CASE("several coroutines may join one scope") {
  script play;
  scope joined(play.clock);
  joined.spawn(say_at(play, 2_ms, "worker"));
  play.stage->spawn(join_and_say(play, joined, "a"));
  play.stage->spawn(join_and_say(play, joined, "b"));
  play.finish();
  CHECK(play.log == "worker a b ");
}
