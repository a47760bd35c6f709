#pragma once
/// The stamp: the 64-byte header of every data message (docs/protocol.md, Messages). Whoever receives a part learns from it
/// which invocation it belongs to, which config the leader assigned to that invocation, and where its bytes go.
///
///     stamp s{.op = id, .digest = config, .total_bytes = 300, .offset = 0, .invocation = 7};
///     link.send(peer, link::channel::data, bytes_of(s), part, &done);
///     result<stamp> seen = read_stamp(message.header());
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace parley::actors {

using runtime::rank_id;

enum class stamp_flags : std::uint16_t {
  none = 0,
  timed = 1,        ///< this invocation is a trial: report when it began and ended
  flush = 2,        ///< the last one of a round: send the rows now
  rehearsal = 4,    ///< not the user's: scratch data on a stream of its own
  poison = 8,       ///< the sender failed; this invocation brings nothing
  landed = 16,      ///< the payload was put where a credit said; the data part is empty
  to_be_got = 32,   ///< the payload is to be got from the sender's memory; the data part says where
  no_credits = 64,  ///< messages like this one are not put for now
  checked = 128,    ///< `next_digest` is the payload's check (tuning/payload_check.hpp): the receiver compares
};
constexpr stamp_flags operator|(stamp_flags a, stamp_flags b) noexcept {
  return static_cast<stamp_flags>(static_cast<std::uint16_t>(a) | static_cast<std::uint16_t>(b));
}
constexpr bool has(stamp_flags set, stamp_flags one) noexcept {
  return (static_cast<std::uint16_t>(set) & static_cast<std::uint16_t>(one)) != 0;
}
/// Whether nothing is asked of who runs such an invocation but to run it, as long as a decision is in force.
constexpr bool is_plain(stamp_flags flags) noexcept {
  return flags == stamp_flags::none || flags == stamp_flags::no_credits;
}

struct stamp {
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  std::uint64_t digest = 0;  ///< the config of this invocation
  std::uint64_t next_digest =
      0;  ///< look-ahead: the config of invocation + d; 0 on host edges, where d = 0. Of a poison: why; to a leader, of a wrong size: its own sender's, plus 1
  std::uint64_t total_bytes = 0;  ///< of the invocation
  std::uint64_t offset = 0;       ///< of this part
  std::uint32_t invocation = 0;   ///< the low 32 bits; `unwrap` finds the rest
  std::uint32_t tag = 0;
  rank_id source = 0;
  stamp_flags flags = stamp_flags::none;
  /// Of the calls' type: in a group, what its tag has no room for (group_invocation.hpp); on an edge, that of the elements.
  std::uint16_t more_type = 0;
};
static_assert(sizeof(stamp) == 64, "the stamp fits UCX's short path together with a small payload");

/// A payload up to this size travels with its stamp inside one message.
inline constexpr std::size_t inside_message_bytes = runtime::arrival::inline_bytes - sizeof(stamp);

inline std::span<const std::byte> bytes_of(const stamp& s) noexcept { return std::as_bytes(std::span(&s, 1)); }

/// Whether `header` is a stamp; then `s` is it.
inline bool read_stamp(std::span<const std::byte> header, stamp& s) noexcept {
  if (header.size() != sizeof s) return false;
  std::memcpy(&s, header.data(), sizeof s);
  constexpr std::uint16_t known = 255;
  return (static_cast<std::uint16_t>(s.flags) & ~known) == 0 && s.offset <= s.total_bytes;
}
inline runtime::result<stamp> read_stamp(std::span<const std::byte> header) {
  stamp s;
  if (!read_stamp(header, s)) return runtime::errc::malformed;
  return s;
}

/// What stands in a stamp for a config that is compared with the default: whoever learns it runs both. It is known as early as
/// any config is, and nobody can take one for the other.
constexpr std::uint64_t compared_with_default(std::uint64_t digest) noexcept { return digest ^ 0x6a09e667f3bcc908U; }

/// Whether an invocation that ended so is the fault of the config that ran it. A caller who gave up, a peer that is late and
/// one that died say nothing about it.
constexpr bool blames_config(runtime::errc outcome) noexcept {
  using runtime::errc;
  return outcome != errc::none && outcome != errc::cancelled && outcome != errc::timeout &&
         outcome != errc::peer_failed && outcome != errc::peer_restarted && outcome != errc::fenced &&
         outcome != errc::send_failed && outcome != errc::buffer_too_small;
}

/// The error of a call at one end of an edge whose other end has ended it with `outcome`.
constexpr runtime::errc as_seen_by_other_end(runtime::errc outcome) noexcept {
  using runtime::errc;
  if (outcome == errc::device_failed) return outcome;
  return blames_config(outcome) ? errc::config_failed : errc::send_failed;
}

/// What a poison says went wrong at its sender.
constexpr runtime::errc reason_of(const stamp& poison) noexcept {
  return runtime::errc_of(poison.next_digest, runtime::errc::send_failed);
}

/// The whole index of an invocation, given its low 32 bits and one that is less than 2^31 away.
constexpr std::uint64_t unwrap(std::uint32_t low, std::uint64_t near) noexcept {
  return near + static_cast<std::uint64_t>(
                    static_cast<std::int64_t>(static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near))));
}

/// Rehearsals have a stream of their own.
constexpr std::uint64_t stream_id(std::uint32_t tag, bool rehearsal) noexcept {
  return std::uint64_t{tag} | (rehearsal ? std::uint64_t{1} << 32U : 0);
}
constexpr std::uint32_t tag_of_stream(std::uint64_t id) noexcept { return static_cast<std::uint32_t>(id); }
constexpr bool rehearses(std::uint64_t id) noexcept { return id >> 32U != 0; }

}  // namespace parley::actors
