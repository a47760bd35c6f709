#include <parley/runtime/time/executor.hpp>

#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/random.hpp>

#include <doctest/doctest.h>

#include <array>
#include <coroutine>
#include <cstdint>
#include <vector>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool pool_steps_aside = true;
#elif defined(__has_feature)
constexpr bool pool_steps_aside = __has_feature(address_sanitizer);
#else
constexpr bool pool_steps_aside = false;
#endif

struct block {
  std::array<char, 8> bytes;
};
std::coroutine_handle<> handle_of(block& b) { return std::coroutine_handle<>::from_address(&b); }

task<> nothing() { co_return; }
task<> call_often(int count) {
  for (int i = 0; i < count; ++i) co_await nothing();
}

}  // namespace

TEST_CASE("the ready queue is first in, first out, while it grows and wraps around") {
  ready_queue queue;
  std::vector<block> blocks(1000);
  std::size_t in = 0;
  std::size_t out = 0;
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 90; ++i) queue.push(handle_of(blocks[in++]));
    for (int i = 0; i < 50; ++i) REQUIRE(queue.pop() == handle_of(blocks[out++]));
  }
  CHECK(queue.size() == 400);
  while (!queue.empty()) REQUIRE(queue.pop() == handle_of(blocks[out++]));
  CHECK(out == in);
}

TEST_CASE("an entry removed from the ready queue is gone and the rest keeps its order") {
  ready_queue queue;
  std::vector<block> blocks(60);
  for (int i = 0; i < 40; ++i) queue.push(handle_of(blocks[0]));
  for (int i = 0; i < 40; ++i) queue.pop();
  for (block& b : blocks) queue.push(handle_of(b));  // the ring buffer wraps around
  queue.remove(handle_of(blocks[3]));
  queue.remove(handle_of(blocks[59]));
  queue.remove(handle_of(blocks[3]));
  CHECK(queue.size() == 58);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i != 3 && i != 59) REQUIRE(queue.pop() == handle_of(blocks[i]));
  }
  CHECK(queue.empty());
}

TEST_CASE("ready calls run in turn with coroutines, unless they are removed") {
  struct counting : ready_call {
    explicit counting(std::vector<int>& l, int n) : ready_call(&on_turn), log(l), number(n) {}
    static void on_turn(ready_call& self) noexcept {
      auto& mine = static_cast<counting&>(self);
      mine.log.push_back(mine.number);
    }
    std::vector<int>& log;
    int number;
  };
  script play;
  std::vector<int> log;
  counting first(log, 1);
  counting removed(log, 3);
  counting last(log, 4);
  const auto says = [](std::vector<int>& l) -> task<> {
    l.push_back(2);
    co_return;
  };
  play.clock.schedule(first);
  play.stage->spawn(says(log));
  play.clock.schedule(removed);
  play.clock.schedule(last);
  play.clock.schedule(first);
  play.clock.forget(removed);
  play.finish();
  CHECK(log == std::vector{1, 2, 4, 1});
}

TEST_CASE("random numbers are a pure function of seed, stream and counter") {
  virtual_time clock(7);
  random_stream a = clock.rng(streams::jitter);
  random_stream b(7, static_cast<std::uint64_t>(streams::jitter));
  random_stream c = clock.rng(streams::order);
  random_stream d(8, static_cast<std::uint64_t>(streams::jitter));
  const std::uint64_t first = a.next();
  CHECK(first == b.next());
  CHECK(first != c.next());
  CHECK(first != d.next());
  // The same value on every compiler and machine.
  CHECK(random_stream(0, 0).next() == 0x568a9b0b1a2c05ecU);
}

TEST_CASE("below(n) returns all numbers below n about equally often, and 0 for a bound of 0 or 1") {
  random_stream dice(1, 1);
  std::array<int, 10> seen{};
  for (int i = 0; i < 10'000; ++i) ++seen[dice.below(10)];
  for (int count : seen) {
    CHECK(count > 850);
    CHECK(count < 1150);
  }
  CHECK(dice.below(0) == 0);
  CHECK(dice.below(1) == 0);
}

TEST_CASE("coroutine calls take no memory from the heap once the pool is warm") {
  virtual_time clock;
  run(clock, call_often(10));
  const std::size_t before = frame_pool::heap_allocations();
  run(clock, call_often(1000));
  CHECK((pool_steps_aside || frame_pool::heap_allocations() == before));
}

TEST_CASE("the pool gives out blocks of every size, and no two blocks overlap") {
  std::vector<std::pair<unsigned char*, std::size_t>> blocks;
  for (std::size_t size = 1; size < 5000; size += 37) {
    auto* p = static_cast<unsigned char*>(frame_pool::allocate(size));
    for (std::size_t i = 0; i < size; ++i) p[i] = static_cast<unsigned char>(size);
    blocks.emplace_back(p, size);
  }
  for (auto [p, size] : blocks) {
    for (std::size_t i = 0; i < size; ++i) REQUIRE(p[i] == static_cast<unsigned char>(size));
    frame_pool::release(p, size);
  }
}
