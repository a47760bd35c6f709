#pragma once
/// The counts of many streams of an edge in one message, before a rank leaves (docs/protocol.md, M19). The control window of the
/// leaving rank has no room for a message for each stream, so some counts would never be sent.
///
///     receiver                         sender
///                  <---------------- question    which of these have you matched?
///       report     ---------------->             so many: cumulative counts
///       last_words ---------------->             a receiver that leaves sends the counts unasked …
///                  <---------------- heard       … and repeats them until the sender has heard them
#include <parley/runtime/wire/wire.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace parley::actors {

struct matched_stream {
  std::uint64_t stream = 0;
  std::uint64_t count = 0;  ///< invocations matched so far: cumulative
  PARLEY_FIELDS(stream, count)
};

struct matched_streams {
  static constexpr std::uint16_t message_type = 33;
  /// Streams in one message, which stays so small that the link need not wait for the receiver to fetch it.
  static constexpr std::size_t most = 128;
  enum class kind : std::uint8_t { question, report, last_words, heard, last = heard };
  kind what = kind::question;
  std::uint32_t number = 0;  ///< number of a `last_words` message; `heard` repeats it
  std::vector<matched_stream> streams;
  PARLEY_FIELDS(what, number, streams)
  bool full() const noexcept { return streams.size() == most; }
};

}  // namespace parley::actors
