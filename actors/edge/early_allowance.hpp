#pragma once
/// Limits how much a rank may send to a peer before the peer has replied for the op. Until then the peer may not have declared the op or
/// joined its generation, so it must keep the messages that arrive.
///
///     early_allowance& ours = services.allowance_for(peer);
///     if (ours.has_room_for(cost)) ours.take(cost);           // a message leaves for an op that the peer has not answered for
///     ours.give_back(taken);                                 // the peer has answered, or is gone: from here on the windows limit
///
/// All senders share the room that a rank has for such messages, so each sender may use only its share. An edge that has sent nothing may
/// send one message of any size, so that it can begin even with a small share.
#include <parley/identifiers.hpp>
#include <parley/runtime/wire/link.hpp>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace parley::actors {

class early_allowance {
 public:
  explicit early_allowance(std::uint64_t most_bytes) noexcept : most_(most_bytes) {}
  /// The memory that the receiver needs to keep a message. The number of its parts is not known yet, so one part is assumed.
  static constexpr std::uint64_t cost_of(std::uint64_t bytes) noexcept { return bytes + sizeof(runtime::arrival); }
  bool has_room_for(std::uint64_t cost) const noexcept { return cost <= most_ - std::min(taken_, most_); }
  void take(std::uint64_t cost) noexcept { taken_ += cost; }
  void give_back(std::uint64_t cost) noexcept { taken_ -= cost; }
  std::uint64_t most_bytes() const noexcept { return most_; }
  std::uint64_t taken_bytes() const noexcept { return taken_; }

 private:
  std::uint64_t most_;
  std::uint64_t taken_ = 0;
};

class early_allowances {
 public:
  /// The allowance towards `peer`. Its address does not change.
  early_allowance& of(runtime::rank_id peer, std::uint64_t most_bytes) {
    return all_.try_emplace(peer, most_bytes).first->second;
  }

 private:
  std::unordered_map<runtime::rank_id, early_allowance> all_;  // never iterated
};

/// One rank's share of the `room` bytes that each of `world` ranks keeps for early messages. Half of the room is reserved for messages that
/// the shares do not count: the parts of one message that is larger than its sender's share.
constexpr std::uint64_t early_share(std::uint64_t room, std::uint64_t world) noexcept {
  constexpr std::uint64_t most = std::uint64_t{64} << 20U;
  const std::uint64_t others = world > 1 ? world - 1 : 1;
  return std::min(room / 2 / others, most);
}

}  // namespace parley::actors
