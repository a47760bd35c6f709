#pragma once
/// Random numbers of a simulation. Each number is a pure function of (seed, purpose, who, counter). So if one fault is left out while a
/// failing run is made smaller, all other events stay the same.
///
///     dice luck(seed, purpose::fate, from * ranks + to);
///     if (luck.chance(50)) …                  // 50 in a thousand
///     time_ns later = luck.between(0, 20'000);
#include <parley/identifiers.hpp>
#include <parley/runtime/random.hpp>

#include <cstdint>

namespace parley::simulation {

/// The purpose of a number. Each purpose has its own streams of numbers.
enum class purpose : std::uint64_t { swarm = 1, order, fate, landing, kernel, fault, disk, program, mutant };

class dice {
 public:
  constexpr dice(std::uint64_t seed, purpose p, std::uint64_t who = 0) noexcept
      : key_(runtime::mix(runtime::mix(seed + 0x9e3779b97f4a7c15U * (static_cast<std::uint64_t>(p) + 1)) + who)) {}

  constexpr std::uint64_t next() noexcept { return runtime::mix(key_ + 0x9e3779b97f4a7c15U * ++counter_); }
  /// Uniform in [0, bound); 0 when `bound` is 0.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    __extension__ typedef unsigned __int128 wide;  // NOLINT(modernize-use-using): the extension needs a typedef
    return static_cast<std::uint64_t>((static_cast<wide>(next()) * bound) >> 64U);
  }
  constexpr std::int64_t between(std::int64_t least, std::int64_t most) noexcept {
    return most <= least ? least
                         : least + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most - least) + 1));
  }
  /// Draws a number only if the outcome is open: not for 0, and not for 1000 or more.
  constexpr bool chance(std::uint64_t per_thousand) noexcept {
    return per_thousand != 0 && (per_thousand >= 1000 || below(1000) < per_thousand);
  }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

}  // namespace parley::simulation
