#include <parley/runtime/timers.hpp>

#include <algorithm>

namespace parley::runtime {

void timer_wheel::make_level(unsigned digit) noexcept { levels_[digit] = std::make_unique<level>(); }

// Levels are in order of time: what differs from the present only in a low digit comes before what differs in a higher one.
bool timer_wheel::first_used(place& found) noexcept {
  for (unsigned l = 0; l < level_count; ++l) {
    while (used_[l] != 0) {
      const auto slot = static_cast<unsigned>(std::countr_zero(used_[l]));
      if ((*levels_[l])[slot].empty()) {
        used_[l] &= used_[l] - 1;
        continue;
      }
      const unsigned shift = l * slot_bits;
      const std::uint64_t above = shift + slot_bits >= 64 ? 0 : current_ >> (shift + slot_bits) << (shift + slot_bits);
      found = {l, slot, above | std::uint64_t{slot} << shift};
      return true;
    }
  }
  return false;
}

time_ns timer_wheel::next() noexcept {
  if (!due_.empty()) return static_cast<time_ns>(current_);
  place first{};
  if (!first_used(first)) return never;
  if (first.level == 0) return static_cast<time_ns>(first.start);
  time_ns earliest = never;
  (*levels_[first.level])[first.slot].for_each([&](const timer& t) { earliest = std::min(earliest, t.when); });
  return earliest;
}

bool timer_wheel::fire(timer_stack& list) noexcept {
  const bool any = !list.empty();
  while (!list.empty()) {
    timer& t = list.pop();
    t.on_time(t);
  }
  return any;
}

bool timer_wheel::fire_due() noexcept {
  timer_stack firing;
  firing.turn_over(due_);
  return fire(firing);
}

bool timer_wheel::advance(time_ns now) noexcept {
  if (due_.empty() && static_cast<std::uint64_t>(now) <= current_) return false;  // asked again at one time
  bool any = fire_due();
  place first{};
  while (first_used(first) && first.start <= static_cast<std::uint64_t>(now)) {
    timer_stack& slot = (*levels_[first.level])[first.slot];
    used_[first.level] &= ~(std::uint64_t{1} << first.slot);
    current_ = first.start;
    // No other timer is between the start of its slot and one that is alone there.
    if (slot.has_one()) current_ = static_cast<std::uint64_t>(std::min(slot.top().when, now));
    timer_stack moving;
    moving.turn_over(slot);
    if (first.level == 0) {
      any = fire(moving) || any;
      continue;
    }
    while (!moving.empty()) {
      timer& t = moving.pop();
      arm(t, t.when);
    }
    any = fire_due() || any;  // those whose time it is now
  }
  current_ = std::max(current_, static_cast<std::uint64_t>(now));
  return any;
}

}  // namespace parley::runtime
