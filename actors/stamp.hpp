#pragma once
/// The stamp: the 64-byte header of every data message (docs/protocol.md, Messages). The stamp tells the receiver of a part which
/// invocation the part belongs to, which config the leader assigned to that invocation, and the place of the bytes in the payload.
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
  timed = 1,        ///< this invocation is a trial: both ends report when it began and ended
  flush = 2,        ///< the last invocation of a round: send the rows now
  rehearsal = 4,    ///< not a user's call: scratch data on a separate stream
  poison = 8,       ///< the sender failed; this invocation has no payload
  landed = 16,      ///< the payload was put where a credit allowed it; the data part is empty
  to_be_got = 32,   ///< the receiver reads the payload from the sender's memory; the data part says where
  no_credits = 64,  ///< for now the sender does not put messages like this one
  checked = 128,    ///< `next_digest` is the payload's check (tuning/payload_check.hpp): the receiver compares
};
constexpr stamp_flags operator|(stamp_flags a, stamp_flags b) noexcept {
  return static_cast<stamp_flags>(static_cast<std::uint16_t>(a) | static_cast<std::uint16_t>(b));
}
constexpr bool has(stamp_flags set, stamp_flags one) noexcept {
  return (static_cast<std::uint16_t>(set) & static_cast<std::uint16_t>(one)) != 0;
}
/// True if a rank only has to run such an invocation, while a decision is in force.
constexpr bool is_plain(stamp_flags flags) noexcept {
  return flags == stamp_flags::none || flags == stamp_flags::no_credits;
}

struct stamp {
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  std::uint64_t digest = 0;  ///< the config of this invocation
  /// Look-ahead: the config of invocation + d; 0 on host edges, where d = 0. With `checked`: the payload's check. In an edge's poison: the
  /// reason, an `errc`. In a group's poison to its leader for a wrong size: the size of the sender's own call, plus 1.
  std::uint64_t next_digest = 0;
  std::uint64_t total_bytes = 0;  ///< of the invocation
  std::uint64_t offset = 0;       ///< of this part
  std::uint32_t invocation = 0;   ///< the low 32 bits; `unwrap` finds the rest
  std::uint32_t tag = 0;
  rank_id source = 0;
  stamp_flags flags = stamp_flags::none;
  /// In a group: the bits of the call's type that do not fit into the tag (group_stamp.hpp). On an edge: the type of the elements.
  std::uint16_t more_type = 0;
};
static_assert(sizeof(stamp) == 64, "the stamp fits UCX's short path together with a small payload");

/// A payload up to this size travels with its stamp inside one message.
inline constexpr std::size_t inside_message_bytes = runtime::arrival::inline_bytes - sizeof(stamp);

inline std::span<const std::byte> bytes_of(const stamp& s) noexcept { return std::as_bytes(std::span(&s, 1)); }

/// If `header` is a stamp, copies it to `s` and returns true.
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

/// The digest that a stamp carries for a config that is compared with the default: a rank that learns this digest runs both configs. Ranks
/// learn this digest as early as any other digest. No config has it as its own digest.
constexpr std::uint64_t compared_with_default(std::uint64_t digest) noexcept { return digest ^ 0x6a09e667f3bcc908U; }

/// True if the config that ran an invocation is to blame for this outcome. The config is not to blame if a caller gave up, or if a peer is
/// late or dead.
constexpr bool blames_config(runtime::errc outcome) noexcept {
  using runtime::errc;
  return outcome != errc::none && outcome != errc::cancelled && outcome != errc::timeout &&
         outcome != errc::peer_failed && outcome != errc::peer_restarted && outcome != errc::fenced &&
         outcome != errc::send_failed && outcome != errc::buffer_too_small;
}

/// The error of a call at one end of an edge when the other end has ended its call with `outcome`.
constexpr runtime::errc as_seen_by_other_end(runtime::errc outcome) noexcept {
  using runtime::errc;
  if (outcome == errc::device_failed) return outcome;
  return blames_config(outcome) ? errc::config_failed : errc::send_failed;
}

/// The error at the sender of an edge's poison.
constexpr runtime::errc reason_of(const stamp& poison) noexcept {
  return runtime::errc_of(poison.next_digest, runtime::errc::send_failed);
}

/// The full number of an invocation, from its low 32 bits and a number less than 2^31 away.
constexpr std::uint64_t unwrap(std::uint32_t low, std::uint64_t near) noexcept {
  return near + static_cast<std::uint64_t>(
                    static_cast<std::int64_t>(static_cast<std::int32_t>(low - static_cast<std::uint32_t>(near))));
}

/// Rehearsals have a separate stream.
constexpr std::uint64_t stream_id(std::uint32_t tag, bool rehearsal) noexcept {
  return std::uint64_t{tag} | (rehearsal ? std::uint64_t{1} << 32U : 0);
}
constexpr std::uint32_t tag_of_stream(std::uint64_t id) noexcept { return static_cast<std::uint32_t>(id); }
constexpr bool rehearses(std::uint64_t id) noexcept { return id >> 32U != 0; }

}  // namespace parley::actors
