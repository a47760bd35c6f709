// How many calls may start while an answer is in flight, judged by earlier calls: the margin of a promise.
#include <parley/actors/leases/lease_participant.hpp>

#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using namespace parley::actors;
using namespace parley::runtime::literals;
using parley::runtime::time_ns;

namespace {

struct history {
  void start(time_ns at) {
    rate.note(at);
    all.push_back(at);
  }
  /// The most starts within any period of length `span`.
  std::uint64_t most_within(time_ns span) const {
    std::size_t most = 0;
    for (std::size_t first = 0, last = 0; last < all.size(); ++last) {
      while (all[last] - all[first] > span) ++first;
      most = std::max(most, last - first + 1);
    }
    return most;
  }
  start_rate rate;
  std::vector<time_ns> all;
};

}  // namespace

TEST_CASE("at a steady pace, the counted calls are never fewer than the actual ones, and at most a quarter more") {
  history h;
  for (int i = 0; i < 300'000; ++i) {
    h.start(i * 10_us);
    if (i != 1 && i != 15 && i != 16 && i != 100 && i != 5'000 && i != 299'999) continue;
    for (const time_ns span : {1_us, 10_us, 95_us, 1_ms, 50_ms, 1_s}) {
      CAPTURE(i);
      CAPTURE(span);
      const std::uint64_t most = h.most_within(span);
      CHECK(h.rate.most_within(span) >= most);
      CHECK(h.rate.most_within(span) <= most + most / 4);
    }
  }
}

TEST_CASE("a burst counts as the calls that it had, and not as a lasting rate") {
  history h;
  CHECK(h.rate.most_within(1_s) == 0);
  h.start(0);
  h.start(1);
  CHECK(h.rate.most_within(200_ms) == 2);
  for (int burst = 1; burst < 2'000; ++burst) {
    for (int i = 0; i < 40; ++i) h.start(burst * 100_ms + i * 1_us);
  }
  CHECK(h.most_within(200_ms) == 81);
  CHECK(h.rate.most_within(200_ms) >= 81);
  CHECK(h.rate.most_within(200_ms) <= 81 + 81 / 4);
}

TEST_CASE("with random pauses, the counted calls are never fewer than in any remembered period of that length") {
  parley::runtime::random_stream dice(7, 1);
  for (int round = 0; round < 40; ++round) {
    history h;
    time_ns now = 0;
    for (int i = 0; i < 200; ++i)
      h.start(now += static_cast<time_ns>(1 + dice.below(std::uint64_t{1} << dice.below(30))));
    for (const time_ns span : {100_us, 10_ms, 1_s}) {
      // The rate log surely remembers the last 16 starts.
      history latest;
      for (auto at = h.all.end() - 16; at != h.all.end(); ++at) latest.start(*at);
      CHECK(h.rate.most_within(span) >= latest.most_within(span));
      CHECK(h.rate.most_within(span) <= h.all.size());
    }
  }
}
