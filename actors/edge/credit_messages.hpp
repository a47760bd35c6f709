#pragma once
/// The control messages of one-sided transfers on an edge (docs/protocol.md, Edges). None of them holds anybody up on the way
/// to an invocation: a sender without a credit, or whose memory is not known at the other side yet, runs another config.
///
///     receiver                       sender
///       credit   ------------------>          write invocation i here, if you like
///       revoke   ------------------>          no credit up to this number any more …
///                <------------------ revoked  … and this is the next invocation
///                <------------------ exposed  this memory you may read
///       known    ------------------>
///       taken    ------------------>          invocation i was read; its sender asks again when that got lost
///
/// Who reads and who waits for that have a number of their own in each generation (`reader_of`), under which they hear each other
/// until the rank ends: a read does not end with its generation.
///
/// A credit is sent again a few times while its receive is unmatched; one that is lost for good is one that never came.
#include <parley/actors/declaration.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <vector>

namespace parley::actors {

/// How many exposed regions of its sender an edge remembers: the last ones.
inline constexpr std::uint64_t most_regions = 64;

struct credit {
  static constexpr std::uint16_t message_type = 20;
  std::uint64_t stream = 0;
  std::uint64_t index = 0;
  std::uint64_t number = 0;
  std::uint64_t address = 0;
  std::uint64_t capacity = 0;
  std::uint64_t flag = 0;  ///< for the sender's device (`link::set_flag`), or 0
  std::vector<std::uint8_t> key;
  PARLEY_FIELDS(stream, index, number, address, capacity, flag, key)
};

struct revoke {
  static constexpr std::uint16_t message_type = 21;
  std::uint64_t stream = 0;
  std::uint64_t number = 0;
  PARLEY_FIELDS(stream, number)
};
struct revoked {
  static constexpr std::uint16_t message_type = 22;
  std::uint64_t stream = 0;
  std::uint64_t number = 0;
  std::uint64_t next = 0;  ///< invocations below have begun
  PARLEY_FIELDS(stream, number, next)
};

struct exposed {
  static constexpr std::uint16_t message_type = 23;
  std::uint64_t region = 0;  ///< counted by the sender, per edge
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint8_t> key;
  PARLEY_FIELDS(region, address, bytes, key)
};
struct known {
  static constexpr std::uint16_t message_type = 24;
  std::uint64_t region = 0;  ///< 0: none of the sender's; the receiver has registered memory of its own
  PARLEY_FIELDS(region)
};

/// The actor at an edge's `end` that says, or hears, what has been read in one generation.
constexpr std::uint64_t reader_of(std::uint64_t op, std::uint64_t generation, part end) noexcept {
  return number_of(op ^ runtime::mix(generation), end);
}
/// Whose actor that is.
constexpr std::uint64_t op_of_reader(std::uint64_t actor, std::uint64_t generation) noexcept {
  return number_of(actor ^ runtime::mix(generation), part{});
}

struct taken {
  static constexpr std::uint16_t message_type = 25;
  enum class kind : std::uint8_t { report, question, not_yet, last = not_yet };
  kind what = kind::report;
  std::uint64_t stream = 0;
  std::uint64_t invocation = 0;
  std::uint8_t outcome = 0;  ///< an `errc`
  PARLEY_FIELDS(what, stream, invocation, outcome)
};

}  // namespace parley::actors
