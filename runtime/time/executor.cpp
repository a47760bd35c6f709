#include <parley/runtime/time/executor.hpp>

namespace parley::runtime {

void ready_queue::grow() {
  const std::size_t room = 2 * (mask_ + 1);
  auto larger = std::make_unique<continuation[]>(room);
  const std::size_t count = size();
  for (std::size_t i = 0; i < count; ++i) larger[i] = ring_[(head_ + i) & mask_];
  many_ = std::move(larger);
  ring_ = many_.get();
  mask_ = room - 1;
  head_ = 0;
  tail_ = count;
}

void ready_queue::remove(continuation c) noexcept {
  std::size_t kept = head_;
  for (std::size_t i = head_; i != tail_; ++i) {
    if (ring_[i & mask_] != c) ring_[kept++ & mask_] = ring_[i & mask_];
  }
  tail_ = kept;
}

executor::~executor() { free_retired(); }

// Reads the ticks first, so that the time between the two reads counts as passed.
void executor::read_clock() noexcept {
  if (!reads_each_time_) ticks_when_read_ = ticks();
  set_now(precise_now());
}

std::size_t executor::run_ready(std::size_t limit) {
  std::size_t count = 0;
  const continuation outer = current_;
  ++resuming_;
  while (count < limit && !ready_.empty()) {
    current_ = ready_.pop();
    current_.resume();
    ++count;
    if (retired_.empty()) continue;
    current_ = {};  // the frame of the entry may be in `retired_`
    free_retired();
  }
  --resuming_;
  current_ = outer;
  resumed_ += count;
  return count;
}

void executor::free_retired() noexcept {
  // Destroying a frame may retire others, so the list is read again each time.
  while (!retired_.empty()) {
    const std::coroutine_handle<> h = retired_.back();
    retired_.pop_back();
    h.destroy();
  }
}

std::uint64_t executor::open_reply(pending_reply& waiting) {
  if (free_replies_.empty()) {
    free_replies_.push_back(static_cast<std::uint32_t>(replies_.size()));
    replies_.emplace_back();
  }
  const std::uint32_t slot = free_replies_.back();
  free_replies_.pop_back();
  replies_[slot].waiting = &waiting;
  return std::uint64_t{replies_[slot].generation} << 32U | slot;
}

void executor::close_reply(std::uint64_t number) noexcept {
  const auto slot = static_cast<std::uint32_t>(number);
  replies_[slot].waiting = nullptr;
  ++replies_[slot].generation;
  free_replies_.push_back(slot);
}

pending_reply* executor::find_reply(std::uint64_t number) noexcept {
  const auto slot = static_cast<std::uint32_t>(number);
  if (slot >= replies_.size() || replies_[slot].generation != number >> 32U) return nullptr;
  return replies_[slot].waiting;
}

}  // namespace parley::runtime
