#pragma once
/// The part of a rank in an op whose ranks do different things. The op's role function returns it for each rank:
///
///     transfer acts(self, {.name = "acts", .role = [](rank_id r) { return r == 0 ? role::sender : role::receiver; }});
///     collective sums(self, {.name = "sums", .role = [](rank_id r) { return r == 0 ? role::leader : role::worker; }});
///
/// All ranks of a job must return the same role for a rank. An idle rank has no part in the op, and exchanges nothing about it.
#include <cstdint>
#include <string_view>

namespace parley::ops {

enum class role : std::uint8_t {
  idle,
  sender,    ///< of a transfer
  receiver,  ///< of a transfer
  leader,    ///< of a collective
  worker,    ///< of a collective
};

std::string_view name(role r) noexcept;

}  // namespace parley::ops
