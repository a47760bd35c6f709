#pragma once
/// The coroutine that everything is written in. A task starts when it is awaited, runs on its caller's executor, belongs to
/// its caller's scope, and is awaited where it is made, or given to a scope.
///
///     task<int> answer();
///     task<> ask() {
///       int a = co_await answer();          // an exception of answer() comes out here
///       auto woken = co_await sleep_for(5_ms);
///     }
///
/// Cancelling a scope ends the waits inside its tasks, at once, with `cancelled` (or `timeout` where a deadline did it);
/// the tasks then return on their own. A task cannot be stored, moved, or awaited twice. A child runs on its caller's stack
/// until it first waits, unless too many are nested there, and its caller continues from the ready queue, so that no chain
/// of tasks can exhaust the stack.
#include <parley/runtime/error.hpp>
#include <parley/runtime/executor.hpp>
#include <parley/runtime/frame_pool.hpp>
#include <parley/runtime/intrusive_list.hpp>

#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>

namespace parley::runtime {

class scope;
struct promise_base;

/// Told when a task that was not awaited by a coroutine ends: a scope, an actor, `when_any`.
class task_observer {
 public:
  virtual void on_task_end(promise_base& ended) noexcept = 0;
  /// The task was destroyed where it stood.
  virtual void on_task_destroyed() noexcept {}

 protected:
  ~task_observer() = default;
};

struct promise_base : list_hook {
  /// Whose cancellation and executor this coroutine lives under. Set when it is started.
  scope* home = nullptr;
  std::coroutine_handle<> self;
  continuation caller;
  task_observer* observer = nullptr;
  std::exception_ptr thrown;
  enum class progress : std::uint8_t { fresh, starting, waiting, ended } state = progress::fresh;
  bool begun = false;        // noted by a simulator that resumes coroutines in an order of its own
  std::uint32_t number = 0;  // of one that was spawned: which of its executor's

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

template <class T>
struct [[nodiscard]] task;

/// A task begins, once those that were spawned before it have: it is put into the ready queue.
inline void begin_in_order(executor& ex, promise_base& p) {
  p.state = promise_base::progress::waiting;
  p.number = ex.number_task();
  ex.schedule(p.self);
}

/// What every suspended coroutine of ours has, and that of the task that was spawned, of which it is a part: the outermost, where a
/// call waits for it.
inline promise_base& promise_of(std::coroutine_handle<> part) noexcept;
inline promise_base& promise_of_whole(std::coroutine_handle<> part) noexcept;

namespace detail {

/// Starts a child on its caller's stack, or from the ready queue where that is nested too deeply.
inline void begin_nested(promise_base& child);

template <class T>
struct promise : promise_base {
  std::optional<T> value;
  task<T> get_return_object() noexcept;
  template <class U>
  void return_value(U&& u) {
    value.emplace(std::forward<U>(u));
  }
  T take() {
    if (thrown) std::rethrow_exception(thrown);
    return std::move(*value);
  }
};

template <>
struct promise<void> : promise_base {
  task<void> get_return_object() noexcept;
  void return_void() noexcept {}
  void take() const {
    if (thrown) std::rethrow_exception(thrown);
  }
};

}  // namespace detail

template <class T = void>
struct [[nodiscard]] task {
  using promise_type = detail::promise<T>;
  using handle = std::coroutine_handle<promise_type>;
  using value_type = T;

  explicit task(handle h) noexcept : handle_(h) {
    static_assert(alignof(promise_type) <= alignof(std::max_align_t), "a promise_base lies at one place in all frames");
    h.promise().self = h;
  }
  task(task&&) = delete;
  ~task() {
    if (handle_) handle_.destroy();
  }

  struct awaiter {
    handle child;
    bool await_ready() const noexcept { return false; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      return suspend(*caller.promise().home, caller);
    }
    bool suspend(scope& home, continuation caller) {
      promise_base& p = child.promise();
      p.home = &home;
      p.caller = caller;
      p.state = promise_base::progress::starting;
      detail::begin_nested(p);
      if (p.state == promise_base::progress::ended) return false;
      p.state = promise_base::progress::waiting;
      return true;
    }
    T await_resume() { return child.promise().take(); }
  };
  awaiter operator co_await() && noexcept { return awaiter{handle_}; }

  /// For those who run tasks: the frame, which the caller must destroy.
  handle release() && noexcept { return std::exchange(handle_, nullptr); }

 private:
  handle handle_;
};

inline promise_base& promise_of(std::coroutine_handle<> part) noexcept {
  return std::coroutine_handle<promise_base>::from_address(part.address()).promise();
}
inline promise_base& promise_of_whole(std::coroutine_handle<> part) noexcept {
  promise_base* p = &promise_of(part);
  while (const std::coroutine_handle<> outer = p->caller.coroutine()) p = &promise_of(outer);
  return *p;
}

template <class T>
task<T> detail::promise<T>::get_return_object() noexcept {
  return task<T>(std::coroutine_handle<promise<T>>::from_promise(*this));
}
inline task<void> detail::promise<void>::get_return_object() noexcept {
  return task<void>(std::coroutine_handle<promise<void>>::from_promise(*this));
}

}  // namespace parley::runtime

#include <parley/runtime/scope.hpp>  // a promise's end and every wait need the scope
