#pragma once
/// What is said of many streams of an edge at once, before a rank leaves (docs/protocol.md, M19). A message for each stream would not
/// fit into the control window of who leaves, and the rest would never be said.
///
///     receiver                         sender
///                  <---------------- question    which of these have you matched?
///       report     ---------------->             so many: cumulative counts
///       last_words ---------------->             the same unasked, by a receiver that leaves …
///                  <---------------- heard       … and says it again until then
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
  /// In one message: so small that a link need not wait for its receiver to fetch it.
  static constexpr std::size_t most = 128;
  enum class kind : std::uint8_t { question, report, last_words, heard, last = heard };
  kind what = kind::question;
  std::uint32_t number = 0;  ///< of last words, and of who has heard them
  std::vector<matched_stream> streams;
  PARLEY_FIELDS(what, number, streams)
  bool full() const noexcept { return streams.size() == most; }
};

}  // namespace parley::actors
