#include <parley/runtime/time/timers.hpp>

#include <algorithm>

namespace parley::runtime {

void timer_wheel::put_away(timer& t) noexcept {
  if (wheel_ == nullptr) {
    wheel_ = std::make_unique<wheel>();
    wheel_->base = static_cast<std::uint64_t>(passed_);
  }
  const auto at = static_cast<std::uint64_t>(t.when);
  const auto digit = static_cast<unsigned>(63 - std::countl_zero(at ^ wheel_->base)) / slot_bits;
  const auto slot = (at >> (digit * slot_bits)) & slot_mask;
  std::unique_ptr<level>& l = wheel_->levels[digit];
  if (l == nullptr) {
    l = std::make_unique<level>();
    wheel_->made |= 1U << digit;
  }
  l->slots[slot].push(t);
  l->used |= std::uint64_t{1} << slot;
  wheel_from_ = std::min(wheel_from_, t.when);
}

// The wheel holds no timer for the same time, so the order of arming is kept.
void timer_wheel::put_away(moment& m) noexcept {
  timer_stack in_order;
  in_order.turn_over(m.at);
  while (!in_order.empty()) put_away(in_order.pop());
}

// `t` is earlier than all timers in the wheel.
void timer_wheel::put_at_hand(timer& t) noexcept {
  std::size_t free = few;  // number of free places at the front, once the others have moved up
  for (std::size_t i = few; i-- != 0;) {
    if (at_hand_[i].at.empty()) continue;
    if (t.when == at_hand_[i].when) return at_hand_[i].put(t);
    if (--free != i) at_hand_[free].take(at_hand_[i]);
  }
  std::size_t behind = few;  // the place behind all earlier times
  while (behind != free && t.when < at_hand_[behind - 1].when) --behind;
  if (free != 0) {
    for (std::size_t i = free; i != behind; ++i) at_hand_[i - 1].take(at_hand_[i]);
    return at_hand_[behind - 1].put(t);
  }
  if (behind == few) return put_away(t);
  put_away(at_hand_.back());
  for (std::size_t i = few - 1; i != behind; --i) at_hand_[i].take(at_hand_[i - 1]);
  at_hand_[behind].put(t);
}

// Levels are in the order of time: a time that differs from the wheel's only in a low digit is before a time that differs in a higher
// digit.
bool timer_wheel::first_used(place& found) noexcept {
  wheel_from_ = never;
  if (wheel_ == nullptr) return false;
  for (wheel& w = *wheel_; w.made != 0; w.made &= w.made - 1) {
    const auto l = static_cast<unsigned>(std::countr_zero(w.made));
    level& lowest = *w.levels[l];
    for (; lowest.used != 0; lowest.used &= lowest.used - 1) {
      const auto slot = static_cast<unsigned>(std::countr_zero(lowest.used));
      if (lowest.slots[slot].empty()) continue;
      const unsigned shift = l * slot_bits;
      const std::uint64_t above = shift + slot_bits >= 64 ? 0 : w.base >> (shift + slot_bits) << (shift + slot_bits);
      found = {l, slot, static_cast<time_ns>(above | std::uint64_t{slot} << shift)};
      wheel_from_ = found.start;
      return true;
    }
    w.levels[l].reset();
  }
  wheel_.reset();
  return false;
}

// Called when `at_hand_` is empty. Moves the earliest timers into it. Returns their time, or `never`.
time_ns timer_wheel::bring_forward() noexcept {
  place first{};
  if (!first_used(first)) return never;
  timer_stack& slot = wheel_->levels[first.level]->slots[first.slot];
  time_ns earliest = never;
  slot.for_each([&](const timer& t) { earliest = std::min(earliest, t.when); });
  timer_stack in_order;
  in_order.turn_over(slot);
  while (!in_order.empty()) {
    timer& t = in_order.pop();
    if (t.when == earliest) {
      at_hand_.back().put(t);
    } else {
      slot.push(t);
    }
  }
  wheel_from_ = after(earliest);
  return earliest;
}

bool timer_wheel::fire(timer_stack& list) noexcept {
  if (list.has_one()) {
    timer& alone = list.pop();
    alone.on_time(alone);
    return true;
  }
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
    if (moment* const earliest = earliest_at_hand(); earliest != nullptr) {
      if (earliest->when > now) break;
      passed_ = std::max(passed_, earliest->when);
      any = fire(earliest->at) || any;
    } else if (wheel_from_ > now || !turn_wheel(now)) {
      break;
    }
  }
  passed_ = std::max(passed_, now);
  return any;
}

// Called when `at_hand_` is empty. Moves the timers of the earliest slot into `at_hand_` or to a lower level. Returns false if every timer
// is due after `now`.
bool timer_wheel::turn_wheel(time_ns now) noexcept {
  place first{};
  if (!first_used(first) || first.start > now) return false;
  level& lowest = *wheel_->levels[first.level];
  timer_stack& slot = lowest.slots[first.slot];
  lowest.used &= ~(std::uint64_t{1} << first.slot);
  // If a timer is alone in its slot, no other timer is between the start of the slot and that timer.
  const time_ns reached = slot.has_one() ? std::min(slot.top().when, now) : first.start;
  wheel_->base = static_cast<std::uint64_t>(reached);
  wheel_from_ = after(reached);
  timer_stack in_order;
  in_order.turn_over(slot);
  while (!in_order.empty()) {
    timer& t = in_order.pop();
    if (t.when == reached) {
      at_hand_.back().put(t);
    } else {
      put_away(t);
    }
  }
  return true;
}

}  // namespace parley::runtime
