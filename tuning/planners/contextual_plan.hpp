#pragma once
/// The order in which a kernel's configs are tried while the function around it runs again and again.
///
///     contextual_plan plan(3, {.iterations = 2});
///     if (auto next = plan.next()) …run config next->candidate…; plan.ended(*next, elapsed_ns);
///     plan.average_ns(1);                 // +infinity while it was not measured, and when it was dropped
///
/// Grouped: all iterations of config 0, then of config 1 … (`c0 c0 c1 c1 c2 c2`); interleaved: `c0 c1 c2 c0 c1 c2`. Warm-ups come before
/// the iterations of their config and do not count. A dropped config keeps its places in the order, so that ranks at the same trial try the
/// same config. Trials may end in any order.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <parley/tuning/planners/planner.hpp>

namespace parley::tuning {

enum class contextual_order : std::uint8_t { grouped, interleaved };

struct contextual_limits {
  std::size_t iterations = 5;  ///< measured, per config; at least 1
  std::size_t warm_ups = 0;    ///< not measured, per config
  contextual_order order = contextual_order::grouped;
};

class contextual_plan {
 public:
  contextual_plan(std::size_t configs, contextual_limits limits);

  /// The next trial; empty once all trials have been given out.
  std::optional<trial> next() noexcept;
  /// A trial has ended. Without a time: another config ran instead.
  void ended(const trial& t, std::optional<double> elapsed_ns) noexcept;
  /// True for the last trial of its config.
  bool is_last(const trial& t) const noexcept {
    return t.what == trial_kind::timed && t.turn + 1 == limits_.iterations;
  }
  void drop(std::size_t config) { tried_.at(config).dropped = true; }

  bool dropped(std::size_t config) const { return tried_.at(config).dropped; }
  /// The first config that was not dropped; empty: all were dropped.
  std::optional<std::size_t> stand_in() const noexcept;
  /// True when all trials have ended.
  bool finished() const noexcept { return ended_ == trials(); }
  std::size_t configs() const noexcept { return tried_.size(); }
  std::size_t taken() const noexcept { return taken_; }
  /// The mean of the config's measured times; +infinity if it has none or was dropped.
  double average_ns(std::size_t config) const;

 private:
  struct tried {
    double sum_ns = 0;
    std::size_t count = 0;
    bool dropped = false;
  };
  std::size_t per_config() const noexcept { return limits_.warm_ups + limits_.iterations; }
  std::size_t trials() const noexcept { return tried_.size() * per_config(); }

  contextual_limits limits_;
  std::vector<tried> tried_;
  std::size_t taken_ = 0;
  std::size_t ended_ = 0;
};

}  // namespace parley::tuning
