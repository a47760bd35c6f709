#pragma once
/// How long the simulated kernels of a rank take.
///
///     kernel_times times({.noise_per_thousand = 30, .drift_per_second = 5}, dice(seed, purpose::kernel, rank));
///     const time_ns takes = times.draw(20'000, now);
#include <parley/runtime/time/executor.hpp>
#include <parley/simulation/world/dice.hpp>

#include <algorithm>
#include <cstdint>

namespace parley::simulation {

using runtime::rank_id;
using runtime::time_ns;

struct kernel_model {
  std::uint64_t noise_per_thousand = 0;      ///< each run takes up to so many thousandths longer
  std::uint64_t drift_per_second = 0;        ///< of kernels that drift: so many thousandths slower in each second
  std::uint64_t straggler_per_thousand = 0;  ///< how often a kernel takes ten times as long
  time_ns drift_until_ns = runtime::never;   ///< when the drift ends; kernels stay as slow as they are then
  /// By how many thousandths a drifting kernel is slower at time `now`.
  std::int64_t drifted(time_ns now) const noexcept {
    return static_cast<std::int64_t>(drift_per_second) * (std::min(now, drift_until_ns) / 1'000'000) / 1000;
  }
};
enum class steadiness : std::uint8_t { steady, drifting };

class kernel_times {
 public:
  kernel_times(kernel_model m, dice luck) noexcept : model_(m), luck_(luck) {}
  /// The time that a kernel takes at time `now` if it usually takes `usual`. `slowness` adds thousandths to all kernels of the rank.
  time_ns draw(time_ns usual, time_ns now, steadiness how = steadiness::steady) noexcept {
    std::int64_t thousandths = 1000 + static_cast<std::int64_t>(slowness);
    if (model_.noise_per_thousand != 0)
      thousandths += static_cast<std::int64_t>(luck_.below(model_.noise_per_thousand + 1));
    if (how == steadiness::drifting) thousandths += model_.drifted(now);
    if (luck_.chance(model_.straggler_per_thousand)) thousandths *= 10;
    return usual * thousandths / 1000;
  }
  std::uint64_t slowness = 0;

 private:
  kernel_model model_;
  dice luck_;
};

}  // namespace parley::simulation
