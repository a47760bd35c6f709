#pragma once
/// The state of a peer, as a table: (standing, evidence) -> (standing, effects). The table is a pure function, so that a test can try every
/// pair.
///
///     const step s = next(standing::in_touch, evidence::link_broke);   // -> lost; publish, tell_vanished
///
/// Evidence comes from the link, the heartbeat, the rendezvous, other hosts and the ops, in any order. membership.hpp keeps the standing of
/// each peer and carries out the effects. A fenced rank, which the others have declared dead, ignores all evidence; membership.hpp ensures
/// that, not the table.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace parley::actors {

/// The standing of the process that is in the peer's place.
enum class standing : std::uint8_t {
  in_touch,  ///< nothing is known against it
  leaving,   ///< it has said goodbye; messages that it sent before may still arrive
  returned,  ///< it has said goodbye, and nothing more arrives from it
  ended,     ///< it has ended with an error, and has reported it
  cut_off,   ///< this rank has torn down a message to or from it, so no call reaches it; the process may be healthy
  lost,      ///< this rank has declared it dead
  replaced,  ///< a newer process is in its place, and the link to the old one is not down yet
};
inline constexpr std::size_t standings = 7;

enum class evidence : std::uint8_t {
  said_goodbye,     ///< the rendezvous: its program has returned
  goodbye_is_over,  ///< some time has passed since its goodbye: its last messages have been read
  said_error,       ///< the rendezvous: it ends with an error
  said_dead,        ///< the rendezvous, or a rank of its host: it is dead
  fell_silent,      ///< this host's heartbeat: its loop has stopped turning, or its process is gone
  verdict,          ///< the heartbeat's page: another rank of this host has declared it dead
  found_dead,       ///< an op of this rank: it fails to do something that a living rank must do
  link_broke,       ///< the link: its connection is down
  link_cut,         ///< the link: this rank itself has cut the connection
  newer_process,    ///< the rendezvous: a process with a higher restart count has its place
  no_address,       ///< the newer process has no address that the link can use
};
inline constexpr std::size_t kinds_of_evidence = 11;

/// The effects of a step, in the order in which they are carried out.
enum class effect : std::uint16_t {
  none = 0,
  publish = 1U << 0U,        ///< write its death to the heartbeat's page, and read the verdicts there
  close_link = 1U << 1U,     ///< close its connection
  await_goodbye = 1U << 2U,  ///< receive its last messages for a while; then `goodbye_is_over`
  tell_returned = 1U << 3U,  ///< end its ops: it has returned
  tell_ended = 1U << 4U,     ///< end its ops: it has ended with an error
  tell_cut_off = 1U << 5U,   ///< end its ops: it cannot be reached
  tell_vanished = 1U << 6U,  ///< end its ops: its connection broke, perhaps because another rank was lost
  tell_dead = 1U << 7U,      ///< end its ops: it is dead
  pass_on = 1U << 8U,        ///< report its death to the rendezvous, for the ranks of other hosts
  take_in = 1U << 9U,        ///< connect to the newer process, and let its ops continue
};
constexpr effect operator|(effect a, effect b) noexcept {
  return static_cast<effect>(static_cast<std::uint16_t>(a) | static_cast<std::uint16_t>(b));
}
constexpr bool has(effect all, effect one) noexcept {
  return (static_cast<std::uint16_t>(all) & static_cast<std::uint16_t>(one)) != 0;
}

struct step {
  standing to = standing::in_touch;
  effect does = effect::none;

  friend constexpr bool operator==(const step&, const step&) = default;
};

constexpr step next(standing now, evidence of) noexcept {
  using s = standing;
  using e = effect;
  const step nothing{now, e::none};
  // In every standing the link first closes its connection to the old process; then the newer process is taken in.
  if (of == evidence::newer_process) return {s::replaced, e::close_link};
  switch (now) {
    case s::in_touch:
      switch (of) {
        case evidence::said_goodbye: return {s::leaving, e::await_goodbye};
        case evidence::said_error: return {s::ended, e::close_link | e::tell_ended};
        case evidence::fell_silent: return {s::lost, e::publish | e::close_link | e::tell_dead | e::pass_on};
        case evidence::said_dead:
        case evidence::found_dead: return {s::lost, e::publish | e::close_link | e::tell_dead};
        case evidence::verdict: return {s::lost, e::close_link | e::tell_dead};
        case evidence::link_broke: return {s::lost, e::publish | e::tell_vanished};
        case evidence::link_cut: return {s::cut_off, e::tell_cut_off};
        case evidence::no_address: return {s::lost, e::none};  // the process before it could not be reached, either
        default: return nothing;
      }
    // The peer itself has said goodbye. Its messages are read until its connection is down, or for a while.
    case s::leaving:
      switch (of) {
        case evidence::goodbye_is_over: return {s::returned, e::close_link | e::tell_returned};
        case evidence::link_broke: return {s::returned, e::tell_returned};
        case evidence::found_dead: return {s::returned, e::close_link | e::tell_returned};
        default: return nothing;
      }
    case s::returned: return nothing;
    case s::ended: return of == evidence::fell_silent ? step{now, e::pass_on} : nothing;
    // This rank cut the connection, which is no sign of the peer's death. Other ranks may have found the peer dead.
    case s::cut_off:
      switch (of) {
        case evidence::said_goodbye: return {s::returned, e::none};
        case evidence::said_error: return {s::ended, e::none};
        case evidence::fell_silent: return {s::lost, e::publish | e::close_link | e::pass_on};
        case evidence::said_dead: return {s::lost, e::publish | e::close_link};
        case evidence::verdict: return {s::lost, e::close_link};
        default: return nothing;
      }
    case s::lost: return of == evidence::fell_silent ? step{now, e::pass_on} : nothing;
    // Evidence of the heartbeat and the ops concerns the old process; evidence of the rendezvous concerns the newer one.
    case s::replaced:
      switch (of) {
        case evidence::link_broke: return {s::in_touch, e::take_in};
        case evidence::said_goodbye: return {s::leaving, e::await_goodbye};
        case evidence::said_error: return {s::ended, e::close_link | e::tell_ended};
        case evidence::said_dead: return {s::lost, e::publish | e::close_link | e::tell_dead};
        default: return nothing;
      }
  }
  return nothing;
}

/// `in_touch`, `said_goodbye`; for tests and traces.
constexpr std::string_view name(standing s) noexcept {
  constexpr std::array<std::string_view, standings> names{"in_touch", "leaving", "returned", "ended",
                                                          "cut_off",  "lost",    "replaced"};
  return names[static_cast<std::size_t>(s)];
}
constexpr std::string_view name(evidence e) noexcept {
  constexpr std::array<std::string_view, kinds_of_evidence> names{
      "said_goodbye", "goodbye_is_over", "said_error", "said_dead",     "fell_silent", "verdict",
      "found_dead",   "link_broke",      "link_cut",   "newer_process", "no_address"};
  return names[static_cast<std::size_t>(e)];
}

}  // namespace parley::actors
