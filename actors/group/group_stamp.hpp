#pragma once
/// What a stamp in a group says besides what all stamps say: its lane, the type of its call, and, where it is a poison, who
/// failed and how.
#include <parley/actors/call_type.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/error.hpp>

#include <cstdint>

namespace parley::actors {

/// Why an invocation failed, and whose doing it was. Of a `declaration_mismatch`: what the culprit called with, and what it
/// should have been in the eyes of who noticed.
struct group_fault {
  runtime::errc why = runtime::errc::none;
  rank_id culprit = 0;
  call_type came = call_type::any;
  call_type expected = call_type::any;
  static constexpr std::uint64_t no_size = ~std::uint64_t{0};
  /// Of a `bad_argument`: with how many the culprit called; `no_size`: that was not what was wrong. What the leader tells the others is
  /// never its own size.
  std::uint64_t came_bytes = no_size;
  std::uint64_t leader_bytes = no_size;  ///< the same: known to a worker that met it; no other rank is told
};

/// The same as another group is told of it, of which no config is to blame.
constexpr group_fault seen_from_elsewhere(group_fault what) noexcept {
  const bool of_a_config = what.why == runtime::errc::config_failed || what.why == runtime::errc::config_mismatch;
  if (of_a_config) what.why = runtime::errc::exception;
  return what;
}

/// Lanes keep apart what passes between two ranks more than once in one invocation.
inline constexpr std::uint32_t group_lanes = 8192;
static_assert(group_lanes == std::uint32_t{1} << (32 - call_type_tag_bits), "lane and type share a stamp's tag");

/// What a poison in a group says: who failed, and how. The sizes of an invocation that brings nothing need no place.
group_fault poison_of(const stamp& s) noexcept;
/// Makes a stamp a poison.
void write_poison(const group_fault& what, stamp& s) noexcept;

/// What a stamp in a group has for its tag.
constexpr std::uint32_t lane_of(const stamp& s) noexcept { return s.tag % group_lanes; }
constexpr call_type type_of(const stamp& s) noexcept {
  return static_cast<call_type>(std::uint64_t{s.more_type} << call_type_tag_bits | s.tag / group_lanes);
}
constexpr void put_type(call_type type, stamp& s) noexcept {
  s.tag = static_cast<std::uint32_t>(type) * group_lanes;
  s.more_type = static_cast<std::uint16_t>(static_cast<std::uint64_t>(type) >> call_type_tag_bits);
}

}  // namespace parley::actors
