#pragma once
/// What a config lacks for one invocation, so that another one has to run: one-sided configs, and those that move a payload by its pieces.
///
///     lacking_config{digest, unmet_need::credit_in_time};
///     name(unmet_need::credit_in_time);                     // "no credit in time"
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace parley::actors {

enum class unmet_need : std::uint8_t {
  payload,             ///< there is nothing to put or get
  memory_of_receiver,  ///< which has registered none
  credit_in_time,      ///< its receiver has registered memory
  memory_of_sender,    ///< what is sent is not in registered memory
  word_in_time,        ///< the receiver has not said yet that it knows the sender's memory
  pieces,              ///< the payload does not lie in pieces that may go by themselves
  like_pieces,         ///< the receiver has others
  word_of_pieces,      ///< which it has, it has not said yet
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

/// Time alone may meet this need, so that a call may wait for it.
constexpr bool may_come(unmet_need what) noexcept {
  return what == unmet_need::credit_in_time || what == unmet_need::word_in_time;
}

struct lacking_config {
  std::uint64_t digest = 0;
  unmet_need what = unmet_need::memory_of_receiver;
};

}  // namespace parley::actors
