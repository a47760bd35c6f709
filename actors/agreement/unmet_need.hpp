#pragma once
/// A need of a config that is not met for one invocation, so that another config has to run. Only one-sided configs, and configs that move
/// a payload by its pieces, have such needs.
///
///     lacking_config{digest, unmet_need::credit_in_time};
///     name(unmet_need::credit_in_time);                     // "no credit in time"
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace parley::actors {

enum class unmet_need : std::uint8_t {
  payload,             ///< the message has no payload to put or get
  memory_of_receiver,  ///< the receiver has registered no memory
  credit_in_time,      ///< no credit yet, though the receiver has registered memory
  memory_of_sender,    ///< the payload is not in registered memory
  word_in_time,        ///< the receiver has not said yet that it knows the sender's memory
  pieces,              ///< the payload is not in pieces that may be sent one by one
  like_pieces,         ///< the receiver has other pieces
  word_of_pieces,      ///< the receiver has not said yet which pieces it has
  last = word_of_pieces
};
constexpr std::size_t unmet_needs = static_cast<std::size_t>(unmet_need::last) + 1;

/// In a report: `no credit in time`.
constexpr std::string_view name(unmet_need what) noexcept {
  switch (what) {
    case unmet_need::payload: return "no payload";
    case unmet_need::memory_of_receiver: return "no memory registered by the receiver";
    case unmet_need::credit_in_time: return "no credit in time";
    case unmet_need::memory_of_sender: return "payload not in memory registered by the sender";
    case unmet_need::word_in_time: return "no word in time that the receiver knows the sender's memory";
    case unmet_need::pieces: return "payload not in pieces";
    case unmet_need::like_pieces: return "other pieces at the receiver";
    case unmet_need::word_of_pieces: return "no word in time of the receiver's pieces";
  }
  return "unknown";
}

/// True if this need may be met by waiting.
constexpr bool may_come(unmet_need what) noexcept {
  return what == unmet_need::credit_in_time || what == unmet_need::word_in_time;
}

struct lacking_config {
  std::uint64_t digest = 0;
  unmet_need what = unmet_need::memory_of_receiver;
};

}  // namespace parley::actors
