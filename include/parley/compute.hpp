#pragma once
/// Running a long computation away from the actor thread, which keeps the transports moving meanwhile.
///
///     double norm = co_await compute([&] { return residual(field); });
///
/// On the reactor it runs on a worker thread; in virtual time it runs at once and takes the time that the model gives it.
/// An exception comes out of the await. A computation that has begun is not cancelled: the await ends when it does.
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

  /// `modelled_ns`: how long it takes in virtual time.
  explicit compute(F f, time_ns modelled_ns = 0) : job_(std::make_shared<job>(std::move(f), modelled_ns)) {}
  compute(compute&&) = delete;
  /// A frame that is torn down first waits for the computation, which may still use what the frame holds.
  ~compute() {
    if (!job_->caller) return;
    job_->wait_finished();
    job_->end_metering();
    job_->caller = nullptr;
  }

  bool await_ready() const noexcept { return false; }
  template <class P>
  void await_suspend(std::coroutine_handle<P> caller) {
    job_->where = &caller.promise().home->where();
    job_->caller = caller;
    job_->meter = caller.promise().home->meter();
    if (job_->meter != nullptr) job_->meter->begin_computation();
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
      end_metering();
      where->schedule(caller);
    }
    void end_metering() noexcept {
      if (meter != nullptr) std::exchange(meter, nullptr)->end_computation();
    }
    time_ns modelled_ns() const noexcept override { return modelled; }

    F function;
    time_ns modelled;
    executor* where = nullptr;
    work_meter* meter = nullptr;     // until it has ended
    std::coroutine_handle<> caller;  // null once nobody waits any more
    std::optional<std::conditional_t<std::is_void_v<value>, std::monostate, value>> outcome;
    std::exception_ptr thrown;
  };
  std::shared_ptr<job> job_;
};

}  // namespace parley::runtime
