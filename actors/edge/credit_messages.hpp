#pragma once
/// The control messages of one-sided transfers on an edge (docs/protocol.md, Edges). No invocation waits for them: a sender runs another
/// config if it has no credit, or if its receiver does not know its memory yet.
///
///     receiver                       sender
///       credit   ------------------>          you may write invocation i here
///       revoke   ------------------>          credits up to this number are void …
///                <------------------ revoked  … and this is my next invocation
///                <------------------ exposed  you may read this memory
///       known    ------------------>
///       taken    ------------------>          invocation i was read; the sender asks again if this message is lost
///
/// The reader of a payload and the sender that waits for the reader have a separate actor number in each generation (`reader_of`). They
/// exchange messages under that number until the rank ends, because a read does not end with its generation.
///
/// A credit is sent again a few times while its receive is unmatched. If all copies are lost, the sender has no credit.
#include <parley/actors/declaration.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <vector>

namespace parley::actors {

/// An edge remembers this many of its sender's exposed regions, the latest ones.
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
  std::uint64_t next = 0;  ///< all invocations below this one have begun
  PARLEY_FIELDS(stream, number, next)
};

struct exposed {
  static constexpr std::uint16_t message_type = 23;
  std::uint64_t region = 0;  ///< number of the memory region; the edge's sender numbers its regions
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::vector<std::uint8_t> key;
  PARLEY_FIELDS(region, address, bytes, key)
};
struct known {
  static constexpr std::uint16_t message_type = 24;
  std::uint64_t region = 0;  ///< 0: no region; the message says that the receiver has registered memory
  PARLEY_FIELDS(region)
};

/// The number of the actor at `end` of an edge that sends or receives reports of payloads that were read, for one generation.
constexpr std::uint64_t reader_of(std::uint64_t op, std::uint64_t generation, part end) noexcept {
  return number_of(op ^ runtime::mix(generation), end);
}
/// The op of an actor with a number from `reader_of`.
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
