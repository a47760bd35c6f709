#pragma once
/// A scope owns the tasks spawned into it and joins them: no task outlives its scope. Tasks begin in the order in which they were
/// spawned.
///
///     scope workers(co_await this_scope, {.deadline = ex.deadline_in(1_s)});
///     workers.spawn(fetch(a));
///     workers.spawn(fetch(b));
///     co_await workers.join();         // both have ended; the first exception comes out here
///
/// Cancelling a scope, or passing its deadline, ends every wait in its tasks and in the scopes below it. The first task that throws cancels
/// the others. Always join a scope. If a scope ends unjoined, its tasks are destroyed where they wait, and their work is dropped. If an
/// exception ends the scope, that is intended; otherwise the rank warns of it when its program returns.
///
/// A scope holds a task (task.hpp) by its frame, which begins with a `promise_base`. A wait in a task is a `waiter`.
#include <parley/error.hpp>
#include <parley/runtime/coroutines/promise.hpp>
#include <parley/runtime/coroutines/waiter.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/time/work_meter.hpp>

#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <utility>

namespace parley::runtime {

class implementation;
class inherited_implementation;

class scope final : private list_hook, public task_observer {
 public:
  struct options {
    time_ns deadline = never;
    work_meter* meter = nullptr;             ///< measures what runs in it; null: the parent's, if it has one
    const implementation* inside = nullptr;  ///< op implementation that runs in it; null: the parent's, if it has one
  };

  explicit scope(executor& ex) noexcept : scope(ex, nullptr, {}) {}
  scope(executor& ex, options o) noexcept : scope(ex, nullptr, o) {}
  explicit scope(scope& parent) noexcept : scope(parent.executor_, &parent, {}) {}
  scope(scope& parent, options o) noexcept : scope(parent.executor_, &parent, o) {}
  ~scope();

  /// Starts a task at the next turn. If `also` is given, it is called at the task's end instead of this scope; `also` must then call
  /// `on_task_end` of this scope.
  template <spawnable Task>
  void spawn(Task t, task_observer* also = nullptr) {
    spawn(std::move(t).release().promise(), also);
  }
  /// Like `spawn`, but the task begins at once, like an awaited task. It may have ended when this function returns.
  template <spawnable Task>
  void begin(Task t) {
    begin(std::move(t).release().promise());
  }
  /// Ends all waits in this scope and below with `why`; later waits end at once. Tasks still have to be joined.
  void cancel(errc why = errc::cancelled) noexcept;
  /// `none`, or why it was cancelled.
  errc cancelled() const noexcept { return cancelled_; }

  executor& where() const noexcept { return executor_; }
  time_ns deadline() const noexcept { return deadline_; }
  /// Measures the time of the tasks that run here; null: no meter.
  work_meter* meter() const noexcept { return meter_; }
  /// The innermost op implementation that runs the coroutines of this scope; null: none. See implementation.hpp.
  const implementation* inside() const noexcept { return inside_; }
  std::size_t running() const noexcept { return running_; }

  class [[nodiscard]] joiner : private list_hook {
   public:
    explicit joiner(scope& joined) noexcept : joined_(joined) {}
    bool await_ready() noexcept {
      if (joined_.running_ != 0) return false;
      thrown_ = std::exchange(joined_.thrown_, nullptr);
      return true;
    }
    void await_suspend(std::coroutine_handle<> h) noexcept {
      waiting_ = h;
      joined_.joiners_.push_back(*this);
    }
    // The scope may be destroyed by now: another joiner may have been resumed before this one.
    void await_resume() const {
      if (thrown_) std::rethrow_exception(thrown_);
    }

   private:
    friend class scope;
    friend class intrusive_list<joiner>;
    scope& joined_;
    std::coroutine_handle<> waiting_;
    std::exception_ptr thrown_;
  };
  /// Waits until all tasks have ended, and throws the first exception. Only the first joiner gets the exception. The join itself cannot be
  /// cancelled: cancelling the scope ends the tasks, and so the wait.
  joiner join() noexcept { return joiner(*this); }

  void on_task_end(promise_base& ended) noexcept override;

 private:
  friend struct waiter;
  friend class intrusive_list<scope>;

  scope(executor& ex, scope* parent, options o) noexcept;
  void spawn(promise_base& p, task_observer* also);
  void begin(promise_base& p);
  void mark_cancelled(errc why) noexcept;
  void tell_waiters() noexcept;
  void end_at_deadline() noexcept { cancel(errc::timeout); }
  void take(promise_base& p, task_observer& told) noexcept;

  executor& executor_;
  intrusive_list<waiter> waiters_;
  intrusive_list<scope> inner_;
  intrusive_list<promise_base> tasks_;
  intrusive_list<joiner> joiners_;
  std::exception_ptr thrown_;
  std::size_t running_ = 0;
  time_ns deadline_;
  work_meter* meter_;
  const implementation* inside_;
  std::unique_ptr<inherited_implementation> inherited_;  // only root scopes have one
  errc cancelled_ = errc::none;
  bool untold_ = false;  // cancelled, but its waiters have not been woken yet
  timer_of<&scope::end_at_deadline> deadline_timer_;
};

/// `scope& here = co_await this_scope;`
struct this_scope_t {
  struct awaiter {
    scope* found = nullptr;
    bool await_ready() const noexcept { return false; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) noexcept {
      found = caller.promise().home;
      return false;
    }
    scope& await_resume() const noexcept { return *found; }
  };
  awaiter operator co_await() const noexcept { return {}; }
};
inline constexpr this_scope_t this_scope{};

/// Sleeps until a point in time. The result is an error if the scope was cancelled first. `sleep_for` sleeps for a span.
class [[nodiscard]] sleep_until : private waiter, private timer {
 public:
  explicit sleep_until(time_ns wake_at) noexcept : waiter(&on_cancelled), timer(&on_woken) { when = wake_at; }
  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) noexcept {
    if (!enter(caller)) return false;
    home->where().arm(*this, when);
    return true;
  }
  result<> await_resume() noexcept { return outcome; }

 protected:
  void wake_in(time_ns span, executor& ex) noexcept { when = deadline_of(ex.precise_now(), span); }

 private:
  static void on_woken(timer& self) noexcept { static_cast<sleep_until&>(self).wake(errc::none); }
  static void on_cancelled(waiter& self, errc why) noexcept {
    auto& sleeper = static_cast<sleep_until&>(self);
    timer_wheel::disarm(sleeper);
    sleeper.wake(why);
  }
};

/// `auto woken = co_await sleep_for(5ms);`: sleeps for a span that begins with the await; never shorter than that span.
class [[nodiscard]] sleep_for : public sleep_until {
 public:
  explicit sleep_for(std::chrono::nanoseconds span) noexcept : sleep_until(never), span_(span.count()) {}
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) noexcept {
    wake_in(span_, caller.promise().home->where());
    return sleep_until::await_suspend(caller);
  }

 private:
  time_ns span_;
};

/// Lets everything else that is ready run first.
struct yield_t {
  bool await_ready() const noexcept { return false; }
  template <class P>
  void await_suspend(std::coroutine_handle<P> caller) const noexcept {
    caller.promise().home->where().schedule(caller);
  }
  void await_resume() const noexcept {}
};
inline constexpr yield_t yield{};

}  // namespace parley::runtime

#include <parley/runtime/coroutines/scope.hpp>
