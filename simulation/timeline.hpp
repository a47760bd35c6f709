#pragma once
/// What virtual links and disks need of whoever moves time: things that happen to a rank at a time.
///
///     struct ring final : event { void happen() override { … } };
///     line.at(line.now() + 1'000, rank, std::make_unique<ring>());
///
/// Events for one nanosecond happen in the order in which they were added. One that has not happened when its timeline ends is
/// only destroyed. `stage` is the timeline of a simulated world; `executor_timeline` runs a network on one executor.
#include <parley/runtime/executor.hpp>
#include <parley/runtime/frame_pool.hpp>
#include <parley/runtime/identifiers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace parley::simulation {

using runtime::rank_id;
using runtime::time_ns;

struct event : runtime::frame_pool::pooled {
  event() = default;
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  virtual ~event() = default;
  virtual void happen() = 0;
};

/// Of events that happen to no rank in particular, such as bytes that a network card writes.
inline constexpr rank_id nobody = static_cast<rank_id>(-1);

class timeline {
 public:
  timeline() = default;
  timeline(const timeline&) = delete;
  timeline& operator=(const timeline&) = delete;
  virtual ~timeline() = default;
  virtual time_ns now() const noexcept = 0;
  virtual void at(time_ns when, rank_id where, std::unique_ptr<event> e) = 0;
};

/// Events by time, and by the order in which they were added.
class event_queue {
 public:
  struct entry {
    time_ns when;
    std::uint64_t order;
    rank_id where;
    std::unique_ptr<event> what;
  };
  bool empty() const noexcept { return heap_.empty(); }
  std::size_t size() const noexcept { return heap_.size(); }
  time_ns next() const noexcept { return heap_.empty() ? runtime::never : heap_.front().when; }
  /// Of the next: what was added before has a smaller one.
  std::uint64_t order() const noexcept { return heap_.empty() ? last_order_ + 1 : heap_.front().order; }
  /// For what happens at a time without being in the queue.
  std::uint64_t take_order() noexcept { return ++last_order_; }
  void push(time_ns when, rank_id where, std::unique_ptr<event> what) {
    heap_.push_back({when, take_order(), where, std::move(what)});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  entry pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    entry first = std::move(heap_.back());
    heap_.pop_back();
    return first;
  }

 private:
  static bool later(const entry& a, const entry& b) noexcept {
    return a.when != b.when ? a.when > b.when : a.order > b.order;
  }
  std::vector<entry> heap_;
  std::uint64_t last_order_ = 0;
};

/// All ranks on one executor: a network for tests that need no faults of whole ranks.
class executor_timeline final : public timeline, private runtime::timer {
 public:
  explicit executor_timeline(runtime::executor& ex) noexcept : timer(&on_time), ex_(ex) {}
  time_ns now() const noexcept override { return ex_.now(); }
  void at(time_ns moment, rank_id where, std::unique_ptr<event> e) override {
    queue_.push(std::max(moment, ex_.now()), where, std::move(e));
    rearm();
  }

 private:
  static void on_time(timer& self) noexcept {
    auto& line = static_cast<executor_timeline&>(self);
    while (line.queue_.next() <= line.ex_.now()) line.queue_.pop().what->happen();
    line.rearm();
  }
  void rearm() noexcept {
    if (queue_.empty() || (linked() && when <= queue_.next())) return;
    runtime::timer_wheel::disarm(*this);
    ex_.arm(*this, queue_.next());
  }
  runtime::executor& ex_;
  event_queue queue_;
};

}  // namespace parley::simulation
