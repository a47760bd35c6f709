#pragma once
/// Whether an op is tuned, what its decisions rest on, and what its edges may hold: what settings of a rank and texts name.
#include <cstdint>

namespace parley::actors {

enum class tuning_policy : std::uint8_t {
  online,  ///< trials on real invocations
  off,     ///< what is remembered, else the default
};

/// What a decision rests on.
enum class decision_source : std::uint8_t {
  trials,
  results,       ///< a results file of a participant
  pin,           ///< the same, where a person has pinned the default
  only_default,  ///< there was nothing to choose from
  tuning_off,
  kept,  ///< a search that measured nothing, or was given up: the default stays
  last = kept
};

struct window_limits {
  std::uint64_t invocations = 64;
  std::uint64_t bytes = 4U << 20U;
};

/// What one edge, what one op for generations that are not joined yet, and all ops that are not declared yet may hold of what came
/// before anybody asked for it. A sender's window, and its allowance (early_allowance.hpp), keep it far below that, but for one long
/// send in small pieces.
inline constexpr std::uint64_t most_early_bytes = std::uint64_t{1} << 30U;

}  // namespace parley::actors
