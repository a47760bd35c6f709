#include <parley/simulation/world/dice.hpp>
#include <parley/simulation/world/event_queue.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

using namespace parley::simulation;
using parley::runtime::never;

namespace {

struct numbered final : event {
  numbered(std::uint64_t n, int& l) : number(n), living(l) { ++living; }
  ~numbered() override { --living; }
  void happen() override {}
  std::uint64_t number;
  int& living;
};

/// Compares the queue with a sorted set that gets the same events.
class pair_of_queues {
 public:
  explicit pair_of_queues(rank_id ranks) : mine_(ranks), wakes_(ranks, {never, 0}) {}
  void push(time_ns when, rank_id where) {
    expected_.insert({when, ++last_order_, where, false});
    mine_.push(when, where, std::make_unique<numbered>(last_order_, living_));
  }
  void wake(rank_id r, time_ns when) {
    mine_.wake(r, when);
    auto& [time, order] = wakes_[r];
    if (time == when) return;
    expected_.erase({time, order, r, true});
    time = when;
    order = ++last_order_;
    if (when != never) expected_.insert({when, order, r, true});
  }
  time_ns pop() {
    const expectation first = *expected_.begin();
    expected_.erase(expected_.begin());
    REQUIRE(mine_.next() == first.when);
    const auto got = mine_.pop();
    REQUIRE(got.when == first.when);
    REQUIRE(got.where == first.where);
    REQUIRE((got.what == nullptr) == first.wakes);
    if (!first.wakes) REQUIRE(static_cast<const numbered&>(*got.what).number == first.order);
    if (first.wakes) wake(first.where, never);  // whoever handles a wake must disarm it
    return first.when;
  }
  bool empty() {
    REQUIRE((mine_.next() == never) == expected_.empty());
    return expected_.empty();
  }
  int living() const { return living_; }

 private:
  struct expectation {
    time_ns when;
    std::uint64_t order;
    rank_id where;
    bool wakes;
    friend auto operator<=>(const expectation&, const expectation&) = default;
  };
  int living_ = 0;
  event_queue mine_;
  std::set<expectation> expected_;
  std::vector<std::pair<time_ns, std::uint64_t>> wakes_;
  std::uint64_t last_order_ = 0;
};

}  // namespace

TEST_CASE(
    "events and wakes are handled in the order of their times, and at the same time in the order of their insertion") {
  constexpr rank_id ranks = 11;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    pair_of_queues queues(ranks);
    dice luck(seed, purpose::order);
    time_ns now = 0;
    for (int step = 0; step < 50'000; ++step) {
      const auto r = static_cast<rank_id>(luck.below(ranks));
      const time_ns when = now + luck.between(0, time_ns{1} << luck.below(40));
      switch (luck.below(5)) {
        case 0: queues.push(luck.chance(300) ? now + luck.between(0, 3) : when, r); break;
        case 1: queues.wake(r, luck.chance(200) ? never : when); break;
        case 2: queues.wake(r, now + luck.between(0, 3)); break;
        default:
          if (!queues.empty()) now = std::max(now, queues.pop());
      }
    }
    while (!queues.empty()) queues.pop();
    CHECK(queues.living() == 0);
  }
}

TEST_CASE(
    "a rank that asks again for the same wake time is woken before events that were added since its first request") {
  event_queue queue(1);
  int living = 0;
  queue.wake(0, 10);
  queue.push(10, 0, std::make_unique<numbered>(1, living));
  CHECK(queue.pop().what == nullptr);
  queue.wake(0, 10);
  CHECK(queue.pop().what == nullptr);
  queue.wake(0, never);
  CHECK(queue.pop().what != nullptr);
  CHECK(queue.next() == never);
}

TEST_CASE("events that are still in a queue are destroyed with it") {
  int living = 0;
  {
    event_queue queue;
    for (const time_ns when : {5, 6, 40, 70, 5'000, 1'000'000})
      queue.push(when, 0, std::make_unique<numbered>(1, living));
    CHECK(queue.pop().when == 5);
    queue.push(5, 0, std::make_unique<numbered>(1, living));
    CHECK(living == 6);
  }
  CHECK(living == 0);
}
