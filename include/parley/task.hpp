#pragma once
/// The type of parley's coroutines. A task starts when it is awaited, runs on its caller's executor, and belongs to its caller's scope. A
/// task must be awaited at the place where it is made, or be given to a scope.
///
///     task<int> answer();
///     task<> ask() {
///       int a = co_await answer();          // an exception of answer() comes out here
///       auto woken = co_await sleep_for(5ms);
///     }
///
/// Cancelling a scope ends the waits inside its tasks at once, with `cancelled` (or `timeout` if a deadline did it); the tasks then return
/// on their own. A task cannot be stored, moved, or awaited twice. A child task runs on its caller's stack until it first waits, unless too
/// many tasks are nested there. The caller continues from the ready queue, so no chain of tasks can exhaust the stack.
#include <parley/runtime/time/executor.hpp>
#include <parley/scope.hpp>

#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <utility>

namespace parley::runtime {

template <class T>
struct [[nodiscard]] task;

namespace detail {

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

  /// For code that runs tasks: returns the frame, which the caller must destroy.
  handle release() && noexcept { return std::exchange(handle_, nullptr); }

 private:
  handle handle_;
};

template <class T>
task<T> detail::promise<T>::get_return_object() noexcept {
  return task<T>(std::coroutine_handle<promise<T>>::from_promise(*this));
}
inline task<void> detail::promise<void>::get_return_object() noexcept {
  return task<void>(std::coroutine_handle<promise<void>>::from_promise(*this));
}

}  // namespace parley::runtime
