#include <parley/runtime/time/work_meter.hpp>

#include <parley/compute.hpp>

#include <doctest/doctest.h>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

task<> spend(time_ns span) {
  scope& here = co_await this_scope;
  auto woken = co_await sleep_until(here.where().deadline_in(span));
  woken.value();
}

// 3 ms of work, then 5 ms in a call.
task<> work_and_call() {
  co_await spend(3_ms);
  scope& here = co_await this_scope;
  const work_meter::wait in_call(here.meter());
  co_await spend(5_ms);
}

task<time_ns> measure_inside() {
  scope& here = co_await this_scope;
  work_meter meter(here.where());
  scope measured(here, {.meter = &meter});
  measured.spawn(work_and_call());
  co_await measured.join();
  co_return meter.worked_ns();
}

// 2 ms of work and 4 ms of a computation, around `measure_inside()`.
task<> function(time_ns& inner) {
  inner = co_await measure_inside();
  co_await spend(2_ms);
  auto work = [] {};
  co_await compute(work, 4_ms);
}

task<> measure_both(time_ns& inner, time_ns& outer) {
  scope& here = co_await this_scope;
  work_meter meter(here.where());
  scope measured(here, {.meter = &meter});
  measured.spawn(function(inner));
  co_await measured.join();
  outer = meter.worked_ns();
}

}  // namespace

TEST_CASE("a call that waits stops both its own meter and the meter of the enclosing scope") {
  script play;
  time_ns inner = 0;
  time_ns outer = 0;
  play.stage->spawn(measure_both(inner, outer));
  play.until(20_ms);
  CHECK(inner == 3_ms);
  CHECK(outer == 9_ms);
}
