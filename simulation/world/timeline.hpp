#pragma once
/// A timeline owns virtual time, and runs events at a given time on a given rank. It is the only clock of virtual links.
///
///     struct ring final : event { void happen() override { … } };
///     line.at(line.now() + 1'000, rank, std::make_unique<ring>());
///
/// Events of one nanosecond happen in the order in which they were added. A timeline that ends destroys its remaining events without
/// running them. `stage` is the timeline of a simulated world; `executor_timeline` runs a network on one executor.
#include <parley/runtime/time/executor.hpp>
#include <parley/simulation/world/event_queue.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace parley::simulation {

class timeline {
 public:
  timeline() = default;
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;
  virtual ~timeline() = default;
  virtual time_ns now() const noexcept = 0;
  virtual void at(time_ns when, rank_id where, std::unique_ptr<event> e) = 0;
};

/// Runs all ranks on one executor, for tests of a network that need no faults of whole ranks.
class executor_timeline final : public timeline {
 public:
  explicit executor_timeline(runtime::executor& ex) noexcept : ex_(ex) {}
  time_ns now() const noexcept override { return ex_.precise_now(); }
  void at(time_ns moment, rank_id where, std::unique_ptr<event> e) override {
    queue_.push(std::max<time_ns>(moment, ex_.now()), where, std::move(e));
    rearm();
  }

 private:
  void go_on() noexcept {
    while (queue_.next() <= ex_.now()) queue_.pop().what->happen();
    rearm();
  }
  void rearm() noexcept {
    const time_ns next = queue_.next();
    if (next == runtime::never || (timer_.linked() && timer_.when <= next)) return;
    runtime::timer_wheel::disarm(timer_);
    ex_.arm(timer_, next);
  }
  runtime::executor& ex_;
  event_queue queue_;
  runtime::timer_of<&executor_timeline::go_on> timer_{*this};
};

}  // namespace parley::simulation
