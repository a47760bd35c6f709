#pragma once
/// What a rank may send to another one before that has answered for the op: it may not have declared it yet, or not joined its
/// generation, and keeps what comes meanwhile.
///
///     early_allowance& ours = services.allowance_for(peer);
///     if (ours.has_room_for(cost)) ours.take(cost);           // a message leaves for an op that the peer has not answered for
///     ours.give_back(taken);                                 // it has answered, or is gone: its windows count from here on
///
/// The room that a rank has for such messages is shared by all who may send to it, so each sender keeps to its share. One that has
/// sent nothing of an edge may send one message of any size, so that no share is too small to go on with.
#include <parley/identifiers.hpp>
#include <parley/runtime/wire/link.hpp>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace parley::actors {

class early_allowance {
 public:
  explicit early_allowance(std::uint64_t most_bytes) noexcept : most_(most_bytes) {}
  /// What a message takes where it is kept. In how many parts it will go is not known.
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
  /// The one towards `peer`; it stays where it is.
  early_allowance& of(runtime::rank_id peer, std::uint64_t most_bytes) {
    return all_.try_emplace(peer, most_bytes).first->second;
  }

 private:
  std::unordered_map<runtime::rank_id, early_allowance> all_;  // only looked up
};

/// Of what each of `world` ranks keeps, `room` bytes, the share of one of the others. Half of it is left for what shares do not
/// count: parts of one message that is larger than its sender's share.
constexpr std::uint64_t early_share(std::uint64_t room, std::uint64_t world) noexcept {
  constexpr std::uint64_t most = std::uint64_t{64} << 20U;
  const std::uint64_t others = world > 1 ? world - 1 : 1;
  return std::min(room / 2 / others, most);
}

}  // namespace parley::actors
