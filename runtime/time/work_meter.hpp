#pragma once
/// Measures the working time of a function: its time without the waits in calls that exchange data with other ranks.
///
///     work_meter meter(ex);
///     scope measured(here, {.meter = &meter});
///     measured.spawn(stage(data));
///     co_await measured.join();
///     time_ns span = meter.worked_ns();
///
/// The meter pauses while a call that the function awaits is suspended, unless part of the function runs in `compute`. Everything else
/// counts: the function's code on its thread, `compute`, and sleeping. A call that waits pauses the meter even if the function does
/// something else on its thread during that wait. Steps of a flow run concurrently with the function, so only awaiting their works pauses
/// the meter. If a measured function runs inside the measured scope of another function, both meters pause and resume together.
#include <parley/runtime/time/executor.hpp>

#include <cstddef>
#include <utility>

namespace parley::runtime {

class work_meter {
 public:
  explicit work_meter(executor& ex) noexcept : executor_(ex), since_ns_(ex.precise_now()) {}
  work_meter(const work_meter&) = delete;
  work_meter& operator=(const work_meter&) = delete;

  /// The time worked so far.
  time_ns worked_ns() noexcept {
    note();
    return worked_ns_;
  }

  /// Sets the meter of the scope around this meter's scope; null: none.
  void lies_in(work_meter* outer) noexcept { outer_ = outer; }

  /// A call holds one `wait` while it is suspended. With a null meter a `wait` does nothing.
  class wait {
   public:
    wait() noexcept = default;
    explicit wait(work_meter* of) noexcept { begin(of); }
    wait(const wait&) = delete;
    wait& operator=(const wait&) = delete;
    ~wait() { end(); }
    void begin(work_meter* of) noexcept {
      if (of == nullptr) return;
      of_ = of;
      of->change(&work_meter::waiting_, 1);
    }
    void end() noexcept {
      if (of_ != nullptr) of_->change(&work_meter::waiting_, -1);
      of_ = nullptr;
    }

   private:
    work_meter* of_ = nullptr;
  };

  void begin_computation() noexcept { change(&work_meter::computing_, 1); }
  void end_computation() noexcept { change(&work_meter::computing_, -1); }

 private:
  void note() noexcept {
    const time_ns now = executor_.precise_now();
    if (computing_ != 0 || waiting_ == 0) worked_ns_ += now - since_ns_;
    since_ns_ = now;
  }
  void change(std::ptrdiff_t work_meter::* count, std::ptrdiff_t by) noexcept {
    note();
    this->*count += by;
    if (outer_ != nullptr) outer_->change(count, by);
  }

  executor& executor_;
  work_meter* outer_ = nullptr;
  time_ns since_ns_;
  time_ns worked_ns_ = 0;
  std::ptrdiff_t waiting_ = 0;
  std::ptrdiff_t computing_ = 0;
};

}  // namespace parley::runtime
