#pragma once
/// What a rank does in an op whose ranks do different things, as the op's role function says it of each rank:
///
///     transfer acts(self, {.name = "acts", .role = [](rank_id r) { return r == 0 ? role::sender : role::receiver; }});
///     collective sums(self, {.name = "sums", .role = [](rank_id r) { return r == 0 ? role::leader : role::worker; }});
///
/// All ranks of a job answer alike for each rank. An idle rank has no part in the op, and exchanges nothing about it.
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
