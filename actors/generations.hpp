#pragma once
/// Decides how an op's end treats data of other generations (docs/protocol.md, State and guards). A generation ends when a participant
/// comes back with another incarnation. The op then starts a new generation at invocation 0.
///
///     judge(s.generation, mine)      // current: go on; ended: drop it; to_come: keep it until that is joined
///
/// Data may arrive before the news that its sender, or another rank, has restarted. If the receiver dropped such data, no rank would send
/// it again. The generations of one op are ordered by the number of restarts of its ranks (`first_generation`). If two generations know of
/// different restarts, the generation that knows of fewer can only end. If both know of equally many, both may end.
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>

namespace parley::actors {

/// Says that a generation has ended here, so that the other end of the edge also ends it. A receiver sends this message to a sender that
/// has sent data of an ended generation. A sender that has given up a generation sends it to a receiver that may still wait for a put. The
/// envelope names the generation.
struct gen_end {
  static constexpr std::uint16_t message_type = 27;
  std::uint64_t dropped = 0;  ///< parts dropped so far, for readers of traces; 0 from a sender
  std::uint8_t why = 0;       ///< from a sender: the `errc` that its end failed with
  PARLEY_FIELDS(dropped, why)
};

/// The high bits of a generation count the restarts that it knows of. This many low bits are a hash.
inline constexpr unsigned generation_hash_bits = 48;
constexpr std::uint64_t generation_of(std::uint64_t hash, std::uint64_t restarts) noexcept {
  return (hash & ((std::uint64_t{1} << generation_hash_bits) - 1)) | restarts << generation_hash_bits;
}

enum class generation_verdict : std::uint8_t { current, ended, to_come };
constexpr generation_verdict judge(std::uint64_t generation, std::uint64_t current) noexcept {
  if (generation == current) return generation_verdict::current;
  const auto ahead =
      static_cast<std::int16_t>((generation >> generation_hash_bits) - (current >> generation_hash_bits));
  return ahead > 0 ? generation_verdict::to_come : generation_verdict::ended;
}

}  // namespace parley::actors
