#pragma once
/// Starts a call from code that is no coroutine. The code can do something else, test the call now and then, and wait for its end.
///
///     work<> sent = start(loop, transfer.send(batch, {.to = 1}));       // or transfer.start_send(batch, {.to = 1})
///     while (!sent.test()) compute_a_little();
///     sent.wait();                                                     // throws what the call threw
///
/// `start`, `test` and `wait` drive the executor: all other actors of the rank make progress only in these functions, or when the program
/// polls the reactor. So call one of them, or `reactor::poll`, at least every few milliseconds while anything is in progress. `done` does
/// not drive the executor.
///
/// Failure: `wait` throws the exception of the call; `outcome` returns a `failure` as a value. Cancellation: `cancel`, or the timeout given
/// at the start, ends the call's waits. The call still has to be waited for, because a transport may still use its buffers. Destroying a
/// work that has not ended cancels it and waits until it has ended, so buffers may be freed afterwards. The wait lasts until the transport
/// has released the buffers, at most until a dead peer is detected.
///
/// A work must end before its executor does. Inside a coroutine, `co_await` the call instead: `test` and `wait` throw `bad_argument`
/// there.
#include <parley/error.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace parley::runtime {

struct start_options {
  std::chrono::nanoseconds timeout = no_timeout;  ///< from now; the call then ends with `timeout`
  std::function<void()> on_end{};  ///< called from the loop once the call has ended; may destroy the work
};

template <class T = void>
class [[nodiscard]] work {
 public:
  work() noexcept = default;
  work(work&&) noexcept = default;
  work& operator=(work&& other) noexcept {
    if (this != &other) {
      finish();
      running_ = std::move(other.running_);
    }
    return *this;
  }
  ~work() { finish(); }

  /// Starts the call. When `begin` returns, the call has run up to its first wait, unless a coroutine has called `begin`.
  static work begin(executor& ex, task<T>&& call, start_options o) {
    work w;
    w.running_ = std::make_unique<running>(ex, std::move(call), std::move(o));
    if (!ex.resuming()) ex.catch_up();
    return w;
  }

  /// True if the call has ended, with or without an error. A work that was never started, or was moved from, counts as ended.
  bool done() const noexcept { return !running_ || running_->ended; }
  /// Runs one turn of the loop. Returns true if the call has ended.
  bool test() {
    if (done()) return true;
    outside_coroutines("test");
    running_->root.where().catch_up();
    return done();
  }
  /// Drives the loop until the call has ended. Returns the value, which can be taken once, or throws.
  T wait() {
    if (!running_)
      raise({errc::bad_argument, "there is nothing to wait for: this work was never started, or was moved away"});
    if (!done()) {
      outside_coroutines("wait");
      run_until(running_->root.where(), [this] { return running_->ended; });
    }
    return running_->frame.promise().take();
  }
  /// Like `wait`, but returns a `failure` as a value.
  result<T> outcome() {
    try {
      if constexpr (std::is_void_v<T>) {
        wait();
        return {};
      } else {
        return wait();
      }
    } catch (const failure& f) {
      return f.reason();
    }
  }
  /// Ends the call's waits with `why`. The call still has to be waited for.
  void cancel(errc why = errc::cancelled) noexcept {
    if (running_) running_->root.cancel(why);
  }

 private:
  struct running final : task_observer {
    running(executor& ex, task<T>&& call, start_options o)
        : root(ex, {ex.deadline_in(o.timeout.count())}), frame(std::move(call).release()), on_end(std::move(o.on_end)) {
      auto& promise = frame.promise();
      promise.home = &root;
      promise.observer = this;
      begin_in_order(ex, promise);
    }
    running(const running&) = delete;
    running& operator=(const running&) = delete;
    ~running() { frame.destroy(); }
    void on_task_end(promise_base&) noexcept override {
      ended = true;
      // Posted, because it may destroy the frame that is ending here.
      if (on_end) root.where().post(std::move(on_end));
    }

    scope root;  // outlives the frame, whose waits are linked into it
    typename task<T>::handle frame;
    std::function<void()> on_end;
    bool ended = false;
  };

  void outside_coroutines(const char* what) const {
    if (running_->root.where().resuming())
      raise({errc::bad_argument,
             std::string("work::") + what +
                 " was called inside a coroutine and would block all other coroutines; co_await the call instead"});
  }

  void finish() noexcept {
    if (!done()) {
      cancel();
      try {
        run_until(running_->root.where(), [this] { return running_->ended; });
      } catch (...) {  // NOLINT(bugprone-empty-catch): nothing can end it any more, so nothing uses its buffers either
      }
    }
    running_.reset();
  }

  std::unique_ptr<running> running_;
};

/// `call` is a task, or converts to one.
template <class Call>
work<typename Call::value_type> start(executor& ex, Call&& call, start_options o = {}) {
  return work<typename Call::value_type>::begin(ex, std::forward<Call>(call), std::move(o));
}

}  // namespace parley::runtime
