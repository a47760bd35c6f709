#pragma once
/// Runs a long computation outside the actor thread, so that the actor thread can keep the transports moving during the computation.
///
///     double norm = co_await compute([&] { return residual(field); });
///
/// On the reactor the computation runs on a worker thread. In virtual time the computation runs at once and takes `modelled_ns` of that
/// time. The await rethrows an exception of the computation. A computation cannot be cancelled: the await ends when the computation ends.
#include <parley/runtime/time/executor.hpp>
#include <parley/scope.hpp>

#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace parley::runtime {

template <class F>
class [[nodiscard]] compute {
 public:
  using value = std::invoke_result_t<F&>;

  /// `modelled_ns`: how long the computation takes in virtual time.
  explicit compute(F f, time_ns modelled_ns = 0) : job_(std::make_shared<job>(std::move(f), modelled_ns)) {}
  compute(compute&&) = delete;
  /// If the frame is torn down, waits for the computation first, because the computation may still use objects in the frame.
  ~compute() {
    if (!job_->caller) return;
    job_->wait_finished();
    job_->has_ended();
    job_->caller = nullptr;
  }

  bool await_ready() const noexcept { return false; }
  template <class P>
  void await_suspend(std::coroutine_handle<P> caller) {
    job_->where = &caller.promise().home->where();
    job_->caller = caller;
    job_->meter = caller.promise().home->meter();
    if (job_->meter != nullptr) job_->meter->begin_computation();
    job_->running = true;
    job_->where->begin_computation();
    job_->where->submit(job_);
  }
  value await_resume() {
    job_->caller = nullptr;
    if (job_->thrown) std::rethrow_exception(job_->thrown);
    if constexpr (!std::is_void_v<value>) return std::move(*job_->outcome);
  }

 private:
  struct job final : compute_job {
    job(F f, time_ns ns) : function(std::move(f)), modelled(ns) {}
    void run() noexcept override {
      try {
        if constexpr (std::is_void_v<value>) {
          function();
        } else {
          outcome.emplace(function());
        }
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    void on_done() noexcept override {
      if (!caller) return;
      has_ended();
      where->schedule(caller);
    }
    void has_ended() noexcept {
      if (std::exchange(running, false)) where->end_computation();
      if (meter != nullptr) std::exchange(meter, nullptr)->end_computation();
    }
    time_ns modelled_ns() const noexcept override { return modelled; }

    F function;
    time_ns modelled;
    executor* where = nullptr;
    work_meter* meter = nullptr;  // null once the computation has ended
    bool running = false;
    std::coroutine_handle<> caller;  // null: no coroutine waits
    std::optional<std::conditional_t<std::is_void_v<value>, std::monostate, value>> outcome;
    std::exception_ptr thrown;
  };
  std::shared_ptr<job> job_;
};

}  // namespace parley::runtime
