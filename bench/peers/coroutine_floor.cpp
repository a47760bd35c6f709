// The lower bound for actor libraries: coroutines that share one queue, with no types, bounds, deadlines or names.
//
//     coroutine_floor [--iterations N]
#include <parley/bench/measure.hpp>

#include <array>
#include <coroutine>
#include <cstdint>
#include <exception>
#include <utility>

namespace {

using namespace parley::bench;

struct ready_queue {
  std::array<std::coroutine_handle<>, 8> slots{};
  std::uint32_t head = 0;
  std::uint32_t tail = 0;
  void push(std::coroutine_handle<> one) { slots[tail++ % slots.size()] = one; }
  void run() {
    while (head != tail) slots[head++ % slots.size()].resume();
  }
};

struct slot {
  ready_queue* queue;
  std::coroutine_handle<> waiting{};
  std::int64_t value = 0;
  bool full = false;

  void put(std::int64_t v) {
    value = v;
    full = true;
    if (waiting) queue->push(std::exchange(waiting, nullptr));
  }
  bool await_ready() const noexcept { return full; }
  void await_suspend(std::coroutine_handle<> self) noexcept { waiting = self; }
  std::int64_t await_resume() noexcept {
    full = false;
    return value;
  }
};

struct routine {
  struct promise_type {
    routine get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<promise_type> handle;
};

routine play(slot& mine, slot& theirs, std::int64_t last) {
  std::int64_t n = 0;
  while (n < last) {
    n = co_await mine;
    theirs.put(n + 1);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::int64_t messages = given.number("iterations", 10'000'000);
  pin_to_core(int(given.number("core", 0)));
  ready_queue queue;
  slot left{&queue};
  slot right{&queue};
  const routine first = play(left, right, messages);
  const routine second = play(right, left, messages);
  queue.push(first.handle);
  queue.push(second.handle);
  left.put(0);
  const std::int64_t start = now_ns();
  queue.run();
  report("floor_pingpong", double(now_ns() - start) / double(messages), "ns");
  first.handle.destroy();
  second.handle.destroy();
}
