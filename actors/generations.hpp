#pragma once
/// What the receiving end of an edge does with data of other generations (docs/protocol.md, State and guards). A generation
/// ends when a participant comes back with another incarnation; its op then starts anew, with invocation 0.
///
///     generations all(first);
///     all.judge(s.generation)      // current: go on; ended: drop it and tell its sender; unknown: keep it
///     all.enter(next);             // what was current has ended
///
/// Data may come before the word that its sender has restarted. So what names a generation that is neither the current one nor
/// one that has ended waits, bounded, until that is joined: refused, it would be missing for ever. Entering another generation
/// instead shows that it is none.
#include <parley/runtime/wire.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace parley::actors {

/// A generation has ended here: the edge's other end ends, too. To the sender of data of such a generation; and to a receiver
/// whose sender has given it up, which may still wait for a put. The envelope says which generation.
struct gen_end {
  static constexpr std::uint16_t message_type = 27;
  std::uint64_t dropped = 0;  ///< parts so far, for whoever reads traces; of a sender's: 0
  PARLEY_FIELDS(dropped)
};

class generations {
 public:
  enum class verdict : std::uint8_t { current, ended, unknown };
  /// Older ones are unknown again; what comes of them is dropped when the next one is entered.
  static constexpr std::size_t most_ended = 16;

  explicit generations(std::uint64_t first) noexcept : current_(first) {}

  std::uint64_t current() const noexcept { return current_; }
  verdict judge(std::uint64_t generation) const noexcept {
    if (generation == current_) return verdict::current;
    return std::find(ended_.begin(), ended_.end(), generation) != ended_.end() ? verdict::ended : verdict::unknown;
  }
  void enter(std::uint64_t next) {
    if (next == current_) return;
    if (ended_.size() >= most_ended) ended_.erase(ended_.begin());
    ended_.push_back(current_);
    std::erase(ended_, next);
    current_ = next;
  }

 private:
  std::uint64_t current_;
  std::vector<std::uint64_t> ended_;  // the last ones
};

}  // namespace parley::actors
