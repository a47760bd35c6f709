#include <parley/work.hpp>

#include <parley/runtime/coroutines/mailbox.hpp>
#include <parley/runtime/time/reactor.hpp>
#include <parley/runtime/time/virtual_time.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace parley::runtime;

namespace {

task<int> answer_after(time_ns span, int answer) {
  scope& here = co_await this_scope;
  auto woken = co_await sleep_until(here.where().deadline_in(span));
  woken.value();
  co_return answer;
}
task<> note_start_and_end(std::string& log) {
  log += "begun ";
  auto woken = co_await sleep_until(never - 1);
  log += std::string(name(woken.code())) + " ";
}
task<int> throws() {
  raise({errc::peer_failed, "rank 1 is gone"});
  co_return 0;
}
/// Ends only when its wait in the scope `outside` ends, like a transfer whose buffer a transport still writes.
task<> held(scope& outside, time_ns span, std::string& log) {
  scope letting_go(outside);
  letting_go.spawn([](time_ns s) -> task<> {
    scope& here = co_await this_scope;
    auto woken = co_await sleep_until(here.where().deadline_in(s));
    static_cast<void>(woken);
  }(span));
  co_await letting_go.join();
  log += "let go ";
}

}  // namespace

TEST_CASE("a work runs up to its first wait when it is started, and continues when it is waited for") {
  virtual_time clock;
  std::string log;
  {
    work<> w = start(clock, note_start_and_end(log));
    CHECK(log == "begun ");
    CHECK_FALSE(w.done());
    CHECK_FALSE(w.test());
  }
  CHECK(log == "begun cancelled ");
  CHECK(start(clock, answer_after(5_ms, 7)).wait() == 7);
  CHECK(clock.now() == 5_ms);
}

TEST_CASE("test drives the reactor, and done only reports the state") {
  reactor loop;
  work<int> w = start(loop, answer_after(1_ms, 3));
  const time_ns limit = loop.precise_now() + 10_s;
  const time_ns read = loop.now();
  while (loop.precise_now() < read + 3_ms) {}
  CHECK_FALSE(w.done());
  while (!w.test()) REQUIRE(loop.precise_now() < limit);
  CHECK(w.done());
  CHECK(w.wait() == 3);
}

TEST_CASE("wait throws a call's exception, and outcome returns it as a value") {
  virtual_time clock;
  work<int> w = start(clock, throws());
  CHECK(w.done());
  CHECK_THROWS_AS(w.wait(), failure);
  CHECK(w.outcome().code() == errc::peer_failed);
  work<int> fine = start(clock, answer_after(1_ms, 4));
  CHECK(fine.outcome().value() == 4);
}

TEST_CASE("a timeout and a cancellation end a work's waits with their own errors") {
  virtual_time clock;
  work<int> late = start(clock, answer_after(1_s, 1), {.timeout = 5ms});
  CHECK(late.outcome().code() == errc::timeout);
  CHECK(clock.now() == 5_ms);
  work<int> stopped = start(clock, answer_after(1_s, 1));
  stopped.cancel();
  CHECK(stopped.outcome().code() == errc::cancelled);
  CHECK(clock.now() == 5_ms);
}

TEST_CASE("destroying a work early waits until its transport has released the work") {
  virtual_time clock;
  scope outside(clock);
  std::string log;
  { const work<> w = start(clock, held(outside, 20_ms, log)); }
  CHECK(log == "let go ");
  CHECK(clock.now() == 20_ms);
}

TEST_CASE("a work can be moved, and an assignment first ends the work that it replaces") {
  virtual_time clock;
  std::string first;
  std::string second;
  work<> w = start(clock, note_start_and_end(first));
  work<> other = start(clock, note_start_and_end(second));
  w = std::move(other);
  CHECK(first == "begun cancelled ");
  CHECK(second == "begun ");
  CHECK(other.done());  // NOLINT(bugprone-use-after-move): the moved-from work is empty
  CHECK_THROWS_AS(other.wait(), failure);
  std::vector<work<>> several(3);
  CHECK(several[2].done());
}

TEST_CASE("the loop calls on_end once and on_end may destroy the work") {
  virtual_time clock;
  int called = 0;
  auto w = std::make_unique<work<int>>();
  *w = start(clock, answer_after(1_ms, 1), {.on_end = [&] {
               ++called;
               w.reset();
             }});
  CHECK(called == 0);
  run_until(clock, [&] { return called != 0; });
  CHECK(called == 1);
  CHECK(w == nullptr);
}

TEST_CASE("waiting for a work inside a coroutine is refused, because it would block other coroutines") {
  virtual_time clock;
  work<int> w = start(clock, answer_after(1_ms, 1));
  const auto misuse = [](work<int>& inner) -> task<std::string> {
    try {
      inner.wait();
    } catch (const failure& f) {
      co_return std::string(f.what());
    }
    co_return "";
  };
  CHECK(run(clock, misuse(w)).find("co_await the call instead") != std::string::npos);
  CHECK(w.wait() == 1);
}
