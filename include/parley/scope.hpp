#pragma once
/// A scope owns the tasks spawned into it and joins them: no task outlives its scope. Tasks begin in the order in which they were
/// spawned.
///
///     scope workers(co_await this_scope, {.deadline = ex.deadline_in(1_s)});
///     workers.spawn(fetch(a));
///     workers.spawn(fetch(b));
///     co_await workers.join();         // both have ended; the first exception comes out here
///
/// Cancelling a scope, or passing its deadline, ends every wait in its tasks and in the scopes below it. The first task that throws
/// cancels the others. Always join a scope. If a scope ends unjoined, its tasks are destroyed where they wait, and their work is dropped.
/// An exception does that on purpose; otherwise the rank warns of it when its program returns.
///
/// A scope holds a task (task.hpp) by its frame, which begins with a `promise_base`.
#include <parley/error.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/time/work_meter.hpp>

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

namespace parley::runtime {

class scope;
class implementation;
class inherited_implementation;
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

/// Every task's frame begins with one.
struct promise_base : list_hook {
  /// The scope that can cancel this coroutine and whose executor runs it. Set when the coroutine is started.
  scope* home = nullptr;
  std::coroutine_handle<> self;
  continuation caller;
  task_observer* observer = nullptr;
  std::exception_ptr thrown;
  enum class progress : std::uint8_t { fresh, starting, waiting, ended } state = progress::fresh;
  bool begun = false;        // for a simulator that resumes coroutines in an order of its own
  std::uint32_t number = 0;  // of a spawned task, among those of its executor

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

/// The promise of a suspended coroutine, and that of the whole task that the coroutine is a part of: the outermost one, if a chain of
/// calls waits for the coroutine.
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

/// A wait that a scope can cancel. It lies in the frame of the coroutine that waits. Its destructor takes it out of all lists, so that
/// the frame can be destroyed at any time.
struct waiter : list_hook {
  using function = void (*)(waiter& self, errc why) noexcept;
  explicit waiter(function f) noexcept : on_cancel(f) {}

  /// Enters the caller's scope. Returns false, and sets `outcome`, if that scope has been cancelled already.
  template <class P>
  bool enter(std::coroutine_handle<P> caller) noexcept;
  /// Like the other `enter`, for a continuation in a scope that the caller names.
  bool enter(scope& s, continuation who) noexcept {
    next = who;
    return enter(s);
  }
  /// For a waiter without a continuation: cancelling the scope only calls `on_cancel`.
  bool enter(scope& s) noexcept;
  /// Leaves the scope, and schedules the continuation with the outcome `why`.
  void wake(errc why) noexcept;

  function on_cancel;
  continuation next;
  scope* home = nullptr;
  errc outcome = errc::none;
};

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

  /// Starts a task at the next turn. `also`, if given, is called at its end in place of this scope; it must then call `on_task_end` of
  /// this scope.
  template <spawnable Task>
  void spawn(Task t, task_observer* also = nullptr) {
    spawn(std::move(t).release().promise(), also);
  }
  /// Like `spawn`, but the task begins here and now, as an awaited one does. It may have ended when this returns.
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
  /// Measures the time of what runs here; null: nothing does.
  work_meter* meter() const noexcept { return meter_; }
  /// The innermost op implementation that the coroutines of this scope are a part of; null: none. See implementation.hpp.
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
    // The scope may be gone by now: another joiner may have been resumed before this one.
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
  /// Waits until all tasks have ended, and throws the first exception. Only the first joiner gets it. Not cancellable: cancelling the
  /// scope ends the wait.
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
  void take(promise_base& p, task_observer& told) noexcept;

  struct deadline_timer : timer {
    explicit deadline_timer(scope& s) noexcept : timer(&on_deadline), owner(s) {}
    static void on_deadline(timer& self) noexcept { static_cast<deadline_timer&>(self).owner.cancel(errc::timeout); }
    scope& owner;
  };

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
  bool untold_ = false;  // cancelled, but its waiters have not been told yet
  deadline_timer deadline_timer_;
};

inline bool waiter::enter(scope& s) noexcept {
  home = &s;
  if (s.cancelled_ != errc::none) {
    outcome = s.cancelled_;
    return false;
  }
  s.waiters_.push_back(*this);
  return true;
}

template <class P>
bool waiter::enter(std::coroutine_handle<P> caller) noexcept {
  return enter(*caller.promise().home, caller);
}

inline void waiter::wake(errc why) noexcept {
  unlink();
  outcome = why;
  home->executor_.schedule(next);
}

inline void promise_base::end() noexcept {
  const progress before = std::exchange(state, progress::ended);
  if (observer != nullptr) {
    observer->on_task_end(*this);
  } else if (before == progress::waiting) {
    home->where().schedule(caller);
  }
}

inline void detail::begin_nested(promise_base& child) {
  executor& ex = child.home->where();
  if (!ex.resume_nested(child.self)) ex.schedule(child.self);
}

inline promise_base::~promise_base() {
  if (state == progress::starting || state == progress::waiting) home->where().forget(self);
}

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

/// `auto woken = co_await sleep_for(5ms);`: sleeps for a span that begins when it is awaited; never too short.
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
