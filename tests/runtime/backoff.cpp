#include <doctest/doctest.h>
#include <parley/runtime/time/backoff.hpp>

#include <set>

using namespace parley::runtime;

namespace {

TEST_CASE("pauses double up to the longest, and start over after progress") {
  random_stream jitter(1, 2);
  backoff<100, 1'000> pauses;
  for (const time_ns whole : {100, 200, 400, 800, 1'000, 1'000}) {
    const time_ns pause = pauses.next(jitter);
    CHECK(pause <= whole);
    CHECK(pause > whole / 2);
  }
  pauses.restart();
  CHECK(pauses.next(jitter) <= 100);
  pauses.restart(600);
  CHECK(pauses.next(jitter) > 300);
}

TEST_CASE("two waiters with different jitter never ask at the same moment") {
  random_stream first(1, 0);
  random_stream second(1, 1);
  std::set<time_ns> moments;
  for (random_stream* const jitter : {&first, &second}) {
    backoff<1'000'000, 100'000'000> pauses;
    time_ns now = 0;
    for (int i = 0; i < 10; ++i) moments.insert(now += pauses.next(*jitter));
  }
  CHECK(moments.size() == 20);
}

}  // namespace
