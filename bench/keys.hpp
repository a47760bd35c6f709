#pragma once
/// How far ranks have come in deciding: a key is an op's edge and a size, and only the rank that coordinates it knows of it.
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

/// Of all ops that `self` coordinates, or of one.
inline key_counts keys_of(const ops::rank& self, std::string_view op = {}) {
  key_counts keys;
  for (const auto& agreement : self.agreements()) {
    if (!op.empty() && agreement.op != op) continue;
    for (const auto& c : agreement.assigned->searches()) ++(c->is_decided() ? keys.decided : keys.undecided);
  }
  return keys;
}

}  // namespace parley::bench
