#pragma once
/// The interface of a task's frame to scopes and callers. Every task's frame begins with a `promise_base` (task.hpp).
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/time/executor.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <type_traits>
#include <utility>

namespace parley::runtime {

class scope;
struct promise_base;

/// Called at the end of a task that no coroutine awaits. Observers are scopes, actors and `when_any`.
class task_observer {
 public:
  virtual void on_task_end(promise_base& ended) noexcept = 0;
  /// The task was destroyed while it was suspended.
  virtual void on_task_destroyed() noexcept {}

 protected:
  ~task_observer() = default;
};

/// The beginning of every task's frame.
struct promise_base : list_hook {
  /// The scope that can cancel this coroutine and whose executor runs it. Set when the coroutine is started.
  scope* home = nullptr;
  std::coroutine_handle<> self;
  continuation caller;
  task_observer* observer = nullptr;
  std::exception_ptr thrown;
  enum class progress : std::uint8_t { fresh, starting, waiting, ended } state = progress::fresh;
  bool begun = false;        // for a simulator that chooses the order in which coroutines resume
  std::uint32_t number = 0;  // number of a spawned task among all spawned tasks of its executor

  static void* operator new(std::size_t bytes) {
    void* const frame = frame_pool::allocate(bytes);
    ++frame_pool::live_frames;
    return frame;
  }
  static void operator delete(void* frame, std::size_t bytes) noexcept {
    --frame_pool::live_frames;
    frame_pool::release(frame, bytes);
  }

  promise_base() noexcept = default;
  inline ~promise_base();

  std::suspend_always initial_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { thrown = std::current_exception(); }

  struct at_end {
    bool await_ready() noexcept { return false; }
    template <class P>
    void await_suspend(std::coroutine_handle<P> h) noexcept {
      h.promise().end();
    }
    void await_resume() noexcept {}
  };
  at_end final_suspend() noexcept { return {}; }

  void end() noexcept;
};

/// Puts a task into the ready queue: it begins after the tasks that were spawned before it.
inline void begin_in_order(executor& ex, promise_base& p) {
  p.state = promise_base::progress::waiting;
  p.number = ex.number_task();
  ex.schedule(p.self);
}

/// `promise_of` returns the promise of a suspended coroutine. The other function returns the promise of the whole task that the coroutine
/// is a part of: the outermost task, if a chain of calls waits for the coroutine.
inline promise_base& promise_of(std::coroutine_handle<> part) noexcept {
  return std::coroutine_handle<promise_base>::from_address(part.address()).promise();
}
inline promise_base& promise_of_whole(std::coroutine_handle<> part) noexcept {
  promise_base* p = &promise_of(part);
  while (const std::coroutine_handle<> outer = p->caller.coroutine()) p = &promise_of(outer);
  return *p;
}

namespace detail {

/// Starts a child on its caller's stack, or from the ready queue if too many are nested there.
inline void begin_nested(promise_base& child);

}  // namespace detail

/// A task that returns nothing. Code that takes its frame runs and destroys the frame.
template <class Task>
concept spawnable = std::is_void_v<typename Task::value_type> && requires(Task t) {
  { std::move(t).release().promise() } -> std::convertible_to<promise_base&>;
};

}  // namespace parley::runtime
