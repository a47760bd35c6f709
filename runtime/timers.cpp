#include <parley/runtime/timers.hpp>

#include <algorithm>

namespace parley::runtime {

// Levels are in order of time: what differs from the present only in a low digit comes before what differs in a higher one.
bool timer_wheel::first_used(place& found) noexcept {
  for (unsigned l = 0; l < level_count; ++l) {
    while (levels_[l].used != 0) {
      const auto slot = static_cast<unsigned>(std::countr_zero(levels_[l].used));
      if (levels_[l].slots[slot].empty()) {
        levels_[l].used &= levels_[l].used - 1;
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
  levels_[first.level].slots[first.slot].for_each([&](timer& t) { earliest = std::min(earliest, t.when); });
  return earliest;
}

bool timer_wheel::fire(intrusive_list<timer>& list) noexcept {
  const bool any = !list.empty();
  while (!list.empty()) {
    timer& t = list.pop_front();
    t.on_time(t);
  }
  return any;
}

bool timer_wheel::advance(time_ns now) noexcept {
  intrusive_list<timer> firing;
  firing.take_all(due_);
  bool any = fire(firing);
  place first{};
  while (first_used(first) && first.start <= static_cast<std::uint64_t>(now)) {
    level& where = levels_[first.level];
    where.used &= ~(std::uint64_t{1} << first.slot);
    current_ = first.start;
    firing.take_all(where.slots[first.slot]);
    if (first.level == 0) {
      any = fire(firing) || any;
      continue;
    }
    while (!firing.empty()) {
      timer& t = firing.pop_front();
      arm(t, t.when);
    }
    firing.take_all(due_);  // those at the very start of the slot
    any = fire(firing) || any;
  }
  current_ = std::max(current_, static_cast<std::uint64_t>(now));
  return any;
}

}  // namespace parley::runtime
