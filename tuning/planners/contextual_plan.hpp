#pragma once
/// The order in which a kernel's configs are tried while the function around it runs again and again.
///
///     contextual_plan plan(3, {.iterations = 2});
///     if (auto step = plan.take()) …run config step->config…; plan.end(*step, elapsed_ns);
///     plan.average_ns(1);                 // +infinity while it was not measured, and when it failed
///
/// Grouped: all iterations of config 0, then of config 1 … (`c0 c0 c1 c1 c2 c2`); interleaved: `c0 c1 c2 c0 c1 c2`. Warm-ups
/// come before the iterations of their config and count for nothing. A config that failed keeps its places in the order, so
/// that ranks which take the same steps try the same config at the same time. Steps that were taken may end in any order.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace parley::tuning {

enum class contextual_order : std::uint8_t { grouped, interleaved };

struct contextual_limits {
  std::size_t iterations = 5;  ///< measured, per config; at least 1
  std::size_t warm_ups = 0;    ///< not measured, per config
  contextual_order order = contextual_order::grouped;
};

class contextual_plan {
 public:
  struct step {
    std::size_t config = 0;
    std::size_t iteration = 0;  ///< among the measured ones of its config
    bool measured = true;
    bool last = false;  ///< of its config
  };
  contextual_plan(std::size_t configs, contextual_limits limits);

  /// Nothing: all have been taken.
  std::optional<step> take() noexcept;
  /// Without a time: something else ran in its place.
  void end(const step& s, std::optional<double> elapsed_ns) noexcept;
  void fail(std::size_t config) { tried_.at(config).failed = true; }

  bool failed(std::size_t config) const { return tried_.at(config).failed; }
  /// The first config that has not failed.
  std::optional<std::size_t> stand_in() const noexcept;
  bool complete() const noexcept { return ended_ == steps(); }
  std::size_t configs() const noexcept { return tried_.size(); }
  std::size_t taken() const noexcept { return taken_; }
  /// The plain average.
  double average_ns(std::size_t config) const;

 private:
  struct tried {
    double sum_ns = 0;
    std::size_t count = 0;
    bool failed = false;
  };
  std::size_t per_config() const noexcept { return limits_.warm_ups + limits_.iterations; }
  std::size_t steps() const noexcept { return tried_.size() * per_config(); }

  contextual_limits limits_;
  std::vector<tried> tried_;
  std::size_t taken_ = 0;
  std::size_t ended_ = 0;
};

}  // namespace parley::tuning
