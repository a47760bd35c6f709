#include <parley/compute.hpp>

#include <parley/runtime/time/reactor.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

task<int> square(int n, time_ns modelled_ns) {
  auto work = [n] { return n * n; };
  int value = co_await compute(work, modelled_ns);
  co_return value;
}
task<> square_and_say(script& play, int n, time_ns modelled_ns) {
  int value = co_await square(n, modelled_ns);
  play.say(std::to_string(value));
}
task<std::unique_ptr<int>> boxed() {
  auto work = [] { return std::make_unique<int>(3); };
  auto value = co_await compute(work);
  co_return value;
}
task<> fail() {
  auto work = [] { throw std::runtime_error("in the worker"); };
  co_await compute(work);
}
task<std::thread::id> where_it_runs() {
  auto work = [] { return std::this_thread::get_id(); };
  auto id = co_await compute(work);
  co_return id;
}
task<> finish_slowly(std::atomic<bool>& begun, std::atomic<bool>& go, std::shared_ptr<int> result) {
  int local = 0;
  auto work = [&begun, &go, &local] {
    begun = true;
    while (!go) std::this_thread::yield();
    local = 5;  // in the coroutine frame, which must still exist
  };
  co_await compute(work);
  *result = local;
}

}  // namespace

TEST_CASE("in virtual time a computation takes its modelled time") {
  script play;
  play.stage->spawn(square_and_say(play, 3, 9_ms));
  play.stage->spawn(square_and_say(play, 2, 4_ms));
  play.stage->spawn(square_and_say(play, 1, 0));
  play.until(4_ms);
  CHECK(play.log == "1 4 ");
  play.finish();
  CHECK(play.log == "1 4 9 ");
  CHECK(play.clock.now() == 9_ms);
}

TEST_CASE("on both executors a computation returns move-only values, and its exception reaches the caller") {
  virtual_time clock;
  reactor loop;
  for (executor* ex : {static_cast<executor*>(&clock), static_cast<executor*>(&loop)}) {
    auto value = run(*ex, boxed());
    CHECK(*value == 3);
    CHECK_THROWS_WITH_AS(run(*ex, fail()), "in the worker", std::runtime_error);
    CHECK(run(*ex, square(7, 1)) == 49);
  }
}

TEST_CASE("the reactor runs all computations on one other thread, always the same one") {
  reactor loop;
  const auto first = run(loop, where_it_runs());
  CHECK(first != std::this_thread::get_id());
  CHECK(run(loop, where_it_runs()) == first);
}

TEST_CASE("destroying a coroutine frame waits for its computation") {
  std::atomic<bool> begun{false};
  std::atomic<bool> go{false};
  auto result = std::make_shared<int>(0);
  reactor loop;
  auto stage = std::make_unique<scope>(loop);
  stage->spawn(finish_slowly(begun, go, result));
  run_until(loop, [&] { return begun.load(); });
  std::thread opener([&] { go = true; });
  stage = nullptr;
  CHECK(go);
  opener.join();
  CHECK(*result == 0);
  CHECK(result.use_count() == 1);
}

TEST_CASE("a reactor and its scope may be destroyed while computations run") {
  std::atomic<bool> begun{false};
  std::atomic<bool> go{true};
  auto result = std::make_shared<int>(0);
  {
    reactor loop;
    scope stage(loop);
    for (int i = 0; i < 20; ++i) stage.spawn(finish_slowly(begun, go, result));
    run_until(loop, [&] { return begun.load(); });
  }
  CHECK(result.use_count() == 1);
}

TEST_CASE("a coroutine that is destroyed during its computation does not continue") {
  script play;
  play.stage->spawn(square_and_say(play, 3, 9_ms));
  play.until(1_ms);
  play.stage = nullptr;
  SUBCASE("and the modelled time passes") { play.until(10_ms); }
  SUBCASE("and the modelled time never passes") {}
  CHECK(play.log == "");
}
