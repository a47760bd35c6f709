#pragma once
/// How many keys ranks have decided. A key is a size on an edge of an op; only the rank that coordinates a key knows
/// its state.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/rank.hpp>

#include <cstddef>
#include <string_view>

namespace parley::bench {

struct key_counts {
  std::size_t decided = 0;
  std::size_t undecided = 0;
};

/// Counts the keys of all ops that `self` coordinates, or of the op with that name.
inline key_counts keys_of(const ops::rank& self, std::string_view op = {}) {
  key_counts keys;
  for (const auto& agreement : self.agreements()) {
    if (!op.empty() && agreement.op != op) continue;
    for (const auto& c : agreement.assigned->searches()) ++(c->is_decided() ? keys.decided : keys.undecided);
  }
  return keys;
}

}  // namespace parley::bench
