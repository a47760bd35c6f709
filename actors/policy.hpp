#pragma once
/// Settings of an op that also appear in texts: its tuning policy, the source of a decision, and the limits of its edges.
#include <cstdint>

namespace parley::actors {

enum class tuning_policy : std::uint8_t {
  online,  ///< trials on real invocations
  off,     ///< no trials: runs a remembered decision, else the default
};

/// The source of a decision.
enum class decision_source : std::uint8_t {
  trials,
  results,       ///< a participant's results file
  pin,           ///< a results file with a `Default` that a person has written
  only_default,  ///< there was no candidate except the default
  tuning_off,
  kept,        ///< the search measured nothing or was given up: the default stays
  rule,        ///< a rule of the user names it
  neighbours,  ///< the next smaller and the next larger decided size run it
  last = neighbours
};

struct window_limits {
  std::uint64_t invocations = 64;
  std::uint64_t bytes = 4U << 20U;
};

/// A limit on early data, which arrives before this rank asks for it. It applies to each edge, to each op's generations that are not joined
/// yet, and to all undeclared ops together. A sender's window and its allowance (early_allowance.hpp) keep early data far below the limit,
/// except for one long send in small pieces.
inline constexpr std::uint64_t most_early_bytes = std::uint64_t{1} << 30U;

}  // namespace parley::actors
