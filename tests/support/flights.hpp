#pragma once
/// Joins the flight recorders of all ranks by invocation, to compare the configs that both ends ran.
#include <parley/tests/support/world.hpp>

#include <map>
#include <tuple>

namespace parley::tests {

struct joined_flights {
  std::size_t pairs = 0;       ///< invocations that both ends ran
  std::size_t mismatches = 0;  ///< of those, with different configs
  std::size_t timed = 0;       ///< of those, trials
};

/// False for the record of a call that failed before it had a config.
bool has_config(const runtime::flight_record& r);

joined_flights join_flights(world& w);

}  // namespace parley::tests
