#pragma once
/// The facts of an error (error.hpp), for programs that act on them: who met it, in which call, what the call waited for, and with which
/// rank the failure began.
///
///     error late(errc::timeout, {.op = "acts 0->1", .rank = 1, .invocation = 12, .peer = 0}, "rank 0 is late");
///     late.about().peer;                                    // 0
///     late.about().unmet;                                   // awaited::none: the error does not say what the call waited for
#include <parley/identifiers.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace parley::runtime {

/// The rank whose end first caused an error. `what` says what happened to that rank, in words that follow the rank's name: ` is gone: …`, `
/// ended with …`. If another rank ends because of that error, it passes the cause on, so that all later errors name the same first rank.
struct root_cause {
  rank_id rank = 0;
  std::string what;

  friend bool operator==(const root_cause&, const root_cause&) = default;
};

/// The thing that a call was waiting for when it ended.
enum class awaited : std::uint8_t {
  none,         ///< nothing, or unknown
  message,      ///< a receive: a message of its tag
  payload,      ///< a receive whose message has begun: the rest of the payload
  receive,      ///< a send: a receive that accepts its payload
  room,         ///< a send: receives for the messages that were sent before
  declaration,  ///< a send: the peer's declaration of the op
  kernels,      ///< a send: kernels of this rank that write its payload
  members,      ///< a call of several ranks: the late ranks
  rehearsals,   ///< a call without headers: the rehearsals that all members make before it
  schedule,     ///< a call without headers: the leader's schedule
  config,       ///< a call: the end of its own config
};

/// `message`, `room`, ...: the name that texts use.
std::string_view name(awaited what) noexcept;

/// The facts of an error. An unknown fact, or a fact that does not apply, is empty.
struct error_facts {
  std::string op{};                           ///< the op's title, such as `acts 0->1`
  std::optional<rank_id> rank{};              ///< the rank that met the error
  std::string role{};                         ///< the role of that rank in the op
  std::optional<std::uint64_t> invocation{};  ///< the number of the op's invocation
  /// True if that invocation had begun. If it had not begun, `invocation` is the number that the call would have received.
  bool begun = true;
  std::optional<rank_id> peer{};               ///< the rank that the call waited for, or that made the call fail
  std::optional<std::uint32_t> tag{};          ///< the tag of the call's messages
  awaited unmet = awaited::none;               ///< what the call waited for
  std::string config{};                        ///< the id of the config that the call ran, or of the refused config
  std::optional<std::uint64_t> done_bytes{};   ///< bytes sent or received when the call ended
  std::optional<std::uint64_t> whole_bytes{};  ///< size of the message, or of the peer's call
  std::optional<std::uint64_t> own_bytes{};    ///< size of this rank's buffer, or of the data of its call

  friend bool operator==(const error_facts&, const error_facts&) = default;
};

/// The words that begin a text: `acts 0->1, invocation 12, on rank 1 (receiver)`. Leaves out an invocation that had not begun.
std::string words_of(const error_facts& about);

}  // namespace parley::runtime
