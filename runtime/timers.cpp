#include <parley/runtime/timers.hpp>

#include <algorithm>

namespace parley::runtime {

void timer_wheel::put_away(timer& t) noexcept {
  if (made_ == 0) base_ = static_cast<std::uint64_t>(passed_);
  const auto at = static_cast<std::uint64_t>(t.when);
  const auto digit = static_cast<unsigned>(63 - std::countl_zero(at ^ base_)) / slot_bits;
  const auto slot = (at >> (digit * slot_bits)) & slot_mask;
  if (levels_[digit] == nullptr) {
    levels_[digit] = std::make_unique<level>();
    made_ |= 1U << digit;
  }
  levels_[digit]->slots[slot].push(t);
  levels_[digit]->used |= std::uint64_t{1} << slot;
  wheel_from_ = std::min(wheel_from_, t.when);
}

// No timer in the wheel has their time.
void timer_wheel::put_away(moment& m) noexcept {
  timer_stack in_order;
  in_order.turn_over(m.at);
  while (!in_order.empty()) put_away(in_order.pop());
}

// It is before all that are in the wheel.
void timer_wheel::put_at_hand(timer& t) noexcept {
  if (!first_.at.empty() && t.when == first_.when) return first_.put(t);
  if (!second_.at.empty() && t.when == second_.when) return second_.put(t);
  if (!second_.at.empty() && t.when > second_.when) return put_away(t);
  if (!second_.at.empty()) put_away(second_);
  if (t.when > first_.when) return second_.put(t);
  second_.when = first_.when;
  second_.at.take(first_.at);
  first_.put(t);
}

// Levels are in order of time: what differs from the wheel's in a low digit only comes before what differs in a higher one.
bool timer_wheel::first_used(place& found) noexcept {
  while (made_ != 0) {
    const auto l = static_cast<unsigned>(std::countr_zero(made_));
    level& lowest = *levels_[l];
    while (lowest.used != 0) {
      const auto slot = static_cast<unsigned>(std::countr_zero(lowest.used));
      if (lowest.slots[slot].empty()) {
        lowest.used &= lowest.used - 1;
        continue;
      }
      const unsigned shift = l * slot_bits;
      const std::uint64_t above = shift + slot_bits >= 64 ? 0 : base_ >> (shift + slot_bits) << (shift + slot_bits);
      found = {l, slot, static_cast<time_ns>(above | std::uint64_t{slot} << shift)};
      return true;
    }
    levels_[l].reset();
    made_ &= made_ - 1;
  }
  wheel_from_ = never;
  return false;
}

// Nothing is at hand.
bool timer_wheel::bring_forward() noexcept {
  place first{};
  if (!first_used(first)) return false;
  timer_stack& slot = levels_[first.level]->slots[first.slot];
  time_ns earliest = never;
  slot.for_each([&](const timer& t) { earliest = std::min(earliest, t.when); });
  timer_stack in_order;
  in_order.turn_over(slot);
  while (!in_order.empty()) {
    timer& t = in_order.pop();
    if (t.when == earliest) {
      second_.put(t);
    } else {
      slot.push(t);
    }
  }
  wheel_from_ = after(earliest);
  return true;
}

bool timer_wheel::fire(timer_stack& list) noexcept {
  timer_stack firing;
  firing.turn_over(list);
  const bool any = !firing.empty();
  while (!firing.empty()) {
    timer& t = firing.pop();
    t.on_time(t);
  }
  return any;
}

bool timer_wheel::fire_until(time_ns now) noexcept {
  bool any = fire(due_);
  for (;;) {
    moment& earliest = first_.at.empty() ? second_ : first_;
    if (!earliest.at.empty()) {
      if (earliest.when > now) break;
      passed_ = std::max(passed_, earliest.when);
      any = fire(earliest.at) || any;
    } else if (wheel_from_ > now || !turn_wheel(now)) {
      break;
    }
  }
  passed_ = std::max(passed_, now);
  return any;
}

// Nothing is at hand: brings the earliest timers there, or a level down. False when all are later than `now`.
bool timer_wheel::turn_wheel(time_ns now) noexcept {
  place first{};
  if (!first_used(first)) return false;
  if (first.start > now) {
    wheel_from_ = std::max(wheel_from_, first.start);
    return false;
  }
  timer_stack& slot = levels_[first.level]->slots[first.slot];
  levels_[first.level]->used &= ~(std::uint64_t{1} << first.slot);
  // No other timer is between the start of its slot and one that is alone there.
  const time_ns reached = slot.has_one() ? std::min(slot.top().when, now) : first.start;
  base_ = static_cast<std::uint64_t>(reached);
  wheel_from_ = after(reached);
  timer_stack in_order;
  in_order.turn_over(slot);
  while (!in_order.empty()) {
    timer& t = in_order.pop();
    if (t.when == reached) {
      second_.put(t);
    } else {
      put_away(t);
    }
  }
  return true;
}

}  // namespace parley::runtime
