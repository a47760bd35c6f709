#pragma once
/// What an op's end does with data of other generations (docs/protocol.md, State and guards). A generation ends when a participant
/// comes back with another incarnation; its op then starts anew, with invocation 0.
///
///     judge(s.generation, mine)      // current: go on; ended: drop it; to_come: keep it until that is joined
///
/// Data may come before the word that its sender, or another rank, has restarted; refused, it would be missing for ever. Generations
/// of one op are in an order (`first_generation`): by how often its ranks have restarted. Of two that know of different restarts
/// the one that knows of fewer can only end, and so can both where they know of as many.
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>

namespace parley::actors {

/// A generation has ended here: the edge's other end ends, too. To the sender of data of such a generation; and to a receiver
/// whose sender has given it up, which may still wait for a put. The envelope says which generation.
struct gen_end {
  static constexpr std::uint16_t message_type = 27;
  std::uint64_t dropped = 0;  ///< parts so far, for whoever reads traces; of a sender's: 0
  std::uint8_t why = 0;       ///< an `errc`, of a sender: what its end has failed with
  PARLEY_FIELDS(dropped, why)
};

/// The restarts that a generation knows of are in the high bits.
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
