#pragma once
/// How ranks share the trials of one kernel and key (`contextual_options::share`). Pure functions, used by the leader.
///
///     share_out(reporters, members, share);                     // after all have met the kernel
///     if (part_unlike(reporters, share)) …                      // after each has measured the default and its part of the configs
///     contextual_best best = merge(reporters, share, ranks, most_rows);
///
/// Members whose machines have the same text, and whose configs are the same, form a group. In a group with g members, the member at
/// place p measures the default, and each g-th config from p + 1 on. If the default takes over 15 % longer or shorter on a member than
/// usual in its group, that member is not like the others: it leaves the group, and all of them measure what they lack. A time counts
/// relative to the default of its rank. The time of a config is the longest of the groups' times, +infinity if it failed on a member, or
/// if a group has no time of it. Then `decide` chooses, so the default stays if no config is faster by more than noise.
#include <parley/identifiers.hpp>
#include <parley/ops/kernels/kernel_core.hpp>
#include <parley/ops/leased/contextual_messages.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace parley::ops {

/// A member that has met the kernel and key.
struct contextual_reporter {
  std::size_t member = 0;
  const std::string* machine = nullptr;
  const contextual_report* report = nullptr;
};

/// Puts members without a group into groups. A member that comes late is alone in its group.
void share_out(std::span<const contextual_reporter> all, std::size_t members, contextual_share& share);

/// Moves members out of groups that they are not like. True if it has moved some, so that parts have changed. Only the first call does that.
bool part_unlike(std::span<const contextual_reporter> all, contextual_share& share);

/// A member's part of the configs; nothing if it has no group.
std::optional<contextual_part> part_of(const contextual_share& share, std::size_t member);

/// The digest is 0 if each config has failed, or if a member has not measured the default, so that nothing can be compared. `ranks` are the
/// members' ranks. `most_rows` limits the rows of the result.
contextual_best merge(std::span<const contextual_reporter> all, const contextual_share& share,
                      std::span<const runtime::rank_id> ranks, std::size_t most_rows);

}  // namespace parley::ops
