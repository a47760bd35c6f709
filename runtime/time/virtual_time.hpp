#pragma once
/// The executor of tests and simulations: its clock stands still while anything is ready to run, and then jumps to the next timer.
///
///     virtual_time clock(seed);
///     run(clock, scenario());           // a pure function of the code and the seed
///
/// Computing takes no time, unless the code says so: `spend(1_ms)` in a coroutine lets 1 ms pass within its turn, as if the thread had
/// computed for that long. `compute` runs at once and takes the time that its model says. `wait` returns false when no timer is left:
/// suspended coroutines would then wait for ever, which `run` reports.
#include <parley/runtime/time/executor.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <utility>
#include <vector>

namespace parley::runtime {

class virtual_time final : public executor {
 public:
  explicit virtual_time(std::uint64_t seed = 1);
  ~virtual_time() override;

  time_ns precise_now() noexcept override { return std::max<time_ns>(now(), busy_until_); }
  void spend(time_ns span) noexcept override { busy_until_ = deadline_of(precise_now(), span); }
  void post(std::function<void()> f) override { posted_.push_back(std::move(f)); }
  void submit(std::shared_ptr<compute_job> job) override;
  bool turn() override;
  bool wait() override;
  /// Resumes at most `limit` coroutines, so that a test can stop at any step. Returns how many, plus the posted functions that it ran.
  std::size_t step(std::size_t limit = 1);

  // For a simulator, which has one executor for each rank and advances all of them in a common time.

  /// True if `step` would do something now.
  bool ready() const noexcept { return has_ready() || !posted_.empty(); }
  time_ns next_timer() noexcept { return timers().next(); }
  const timer* earliest_timer() noexcept { return timers().earliest(); }
  /// Sets the clock to `t`, unless the clock is already later, and fires the timers that are due. If the clock is held, only `precise_now`
  /// moves.
  void advance_to(time_ns t) {
    if (holds_clock_) {
      busy_until_ = std::max(busy_until_, t);
    } else {
      set_now(t);
      timers().advance(now());
    }
  }
  /// Until this time the thread is busy, because of `spend`.
  time_ns busy_until() const noexcept { return busy_until_; }
  /// Ends the computation of `spend` at `t`, because the computation or its process has ended.
  void end_computing(time_ns t) noexcept { busy_until_ = std::min(busy_until_, t); }
  /// While the clock is held, only `precise_now` moves and no timer fires, as in a loop that has computed for long and first handles
  /// arrivals.
  void hold_clock(bool holds) noexcept { holds_clock_ = holds; }
  bool holds_clock() const noexcept { return holds_clock_; }
  /// From now on `c` chooses the entry of the ready queue that is resumed next, given the number of entries; without `c` it is the first
  /// entry. Tasks that have not begun still begin in the order of their spawning.
  using chooser = std::function<std::size_t(std::size_t ready)>;
  void choose_by(chooser c) { choose_ = std::make_unique<chooser>(std::move(c)); }
  /// For a chooser: the number of the spawned task that the `i`-th ready entry is part of, from 1 on in the order of spawning; 0: none.
  std::uint32_t task_of(std::size_t i) const noexcept;

 private:
  struct modelled_end;
  time_ns busy_until_ = 0;  // includes the time of `spend` in a turn
  bool holds_clock_ = false;
  [[gnu::noinline]] std::size_t run_posted();
  std::size_t in_order_of_spawning(std::size_t chosen) const noexcept;
  std::unique_ptr<chooser> choose_;
  std::vector<std::function<void()>> posted_;
  std::list<std::unique_ptr<modelled_end>> ends_;
};

}  // namespace parley::runtime
