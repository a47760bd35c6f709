#pragma once
/// The messages that have arrived since the link last delivered. UCX's callbacks put messages in, `poll` hands them to
/// their handlers. Internal to transports/.
///
///     ucx_inbox arrived;
///     arrived.put(on, header, payload);                               // in a callback: makes the `arrival` in place
///     arrived.deliver([&](channel on, arrival&& message) { … });      // from `poll`
///
/// A message stays in its place until its handler returns. Whenever the inbox becomes empty it starts again at its first
/// place, so that a lone message always uses a place that is in the cache. When all places are taken, further messages
/// wait in a queue.
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

namespace parley::transports {

class ucx_inbox {
 public:
  using arrival = runtime::arrival;
  using channel = runtime::link::channel;

  template <class... Parts>
  void put(channel on, const Parts&... parts) {
    if (end_ == limit_) [[unlikely]] {
      queue_up(on, arrival(parts...));
      return;
    }
    place& next = places_[end_++];
    next.on = on;
    std::construct_at(&next.message, parts...);
  }
  bool empty() const noexcept { return first_ == end_; }
  /// Hands over the messages that are here now. Messages that arrive during the call wait for the next call; otherwise a
  /// handler that sends to its own rank could keep this function from ever returning.
  template <class Handler>
  void deliver(Handler&& to) {
    const std::size_t until = end_;
    while (first_ != until) {
      place& oldest = places_[first_];
      to(oldest.on, std::move(oldest.message));
      std::destroy_at(&oldest.message);
      ++first_;
    }
    if (first_ == end_) {
      first_ = end_ = 0;
      if (!overflow_.empty()) [[unlikely]]
        refill();
    }
  }
  /// Drops everything.
  void clear() {
    while (!empty() || !overflow_.empty()) deliver([](channel, arrival&&) {});
  }

 private:
  static constexpr std::size_t capacity = 256;
  struct place {
    place() noexcept {}  // NOLINT: `put` and `deliver` say when there is a message
    ~place() {}          // NOLINT
    channel on;
    union {
      arrival message;
    };
  };
  struct queued {
    channel on;
    arrival message;
  };

  void queue_up(channel on, arrival&& message) {
    overflow_.push_back({on, std::move(message)});
    limit_ = end_;  // later messages must queue up after this one
  }
  void refill() {
    for (; end_ < capacity && !overflow_.empty(); overflow_.pop_front()) {
      place& next = places_[end_++];
      next.on = overflow_.front().on;
      std::construct_at(&next.message, std::move(overflow_.front().message));
    }
    limit_ = overflow_.empty() ? capacity : end_;
  }

  std::size_t first_ = 0;
  std::size_t end_ = 0;
  std::size_t limit_ = capacity;  // lower while messages are in `overflow_`
  std::unique_ptr<place[]> places_ = std::make_unique<place[]>(capacity);
  std::deque<queued> overflow_;
};

}  // namespace parley::transports
