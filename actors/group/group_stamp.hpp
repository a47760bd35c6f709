#pragma once
/// The additional fields of a group's stamp: its lane, the type of its call and, in a poison, which rank failed and how.
#include <parley/actors/call_type.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/error.hpp>

#include <cstdint>

namespace parley::actors {

/// Why an invocation failed, and which rank caused it. For a `declaration_mismatch`: the culprit's type, and the type expected by the rank
/// that noticed the mismatch.
struct group_fault {
  runtime::errc why = runtime::errc::none;
  rank_id culprit = 0;
  call_type came = call_type::any;
  call_type expected = call_type::any;
  static constexpr std::uint64_t no_size = ~std::uint64_t{0};
  /// For a `bad_argument`: the size of the culprit's call; `no_size`: the error is not about a size. The leader never sends its own size in
  /// this field.
  std::uint64_t came_bytes = no_size;
  std::uint64_t leader_bytes = no_size;  ///< the leader's size, on a worker that knows it; it is not passed on
};

/// The fault as an invocation of another group reports it. No config of that group is to blame, and its calls have other sizes.
constexpr group_fault seen_from_elsewhere(group_fault what) noexcept {
  const bool of_a_config = what.why == runtime::errc::config_failed || what.why == runtime::errc::config_mismatch;
  if (of_a_config) what.why = runtime::errc::exception;
  what.came_bytes = what.leader_bytes = group_fault::no_size;
  return what;
}

/// Lanes distinguish several messages between two ranks in one invocation.
inline constexpr std::uint32_t group_lanes = 8192;
static_assert(group_lanes == std::uint32_t{1} << (32 - call_type_tag_bits), "lane and type share a stamp's tag");

/// The fault that a group's poison reports. It uses the fields for sizes, which an invocation without a payload does not need.
group_fault poison_of(const stamp& s) noexcept;
/// Turns a stamp into a poison.
void write_poison(const group_fault& what, stamp& s) noexcept;

/// The lane and the type in a group's stamp.
constexpr std::uint32_t lane_of(const stamp& s) noexcept { return s.tag % group_lanes; }
constexpr call_type type_of(const stamp& s) noexcept {
  return static_cast<call_type>(std::uint64_t{s.more_type} << call_type_tag_bits | s.tag / group_lanes);
}
constexpr void put_type(call_type type, stamp& s) noexcept {
  s.tag = static_cast<std::uint32_t>(type) * group_lanes;
  s.more_type = static_cast<std::uint16_t>(static_cast<std::uint64_t>(type) >> call_type_tag_bits);
}

}  // namespace parley::actors
