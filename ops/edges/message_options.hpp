#pragma once
/// The options of messages (p2p.hpp) for ops that are built on messages.
#include <parley/p2p.hpp>

#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace parley::ops {

/// The `p2p_options` of an op that is built on messages, filled from the options that both ops have.
template <class Op>
p2p_options messages_of(const Op& op, std::vector<rank_id> ranks = {}) {
  p2p_options messages;
  messages.name = op.name;
  messages.configs = op.configs;
  messages.restart_group = ranks;
  messages.ranks = std::move(ranks);
  messages.can_run = op.can_run;
  messages.timeout = op.timeout;
  messages.constraints = op.constraints;
  if constexpr (requires { op.dtype; }) messages.dtype = op.dtype;
  if constexpr (requires { op.memory; }) messages.memory = op.memory;
  return messages;
}

/// Returns `named`, or the first `count` ranks if `named` is empty.
inline std::vector<rank_id> named_or_first(const std::vector<rank_id>& named, std::size_t count) {
  if (!named.empty()) return named;
  std::vector<rank_id> first(count);
  std::iota(first.begin(), first.end(), rank_id{0});
  return first;
}

}  // namespace parley::ops
