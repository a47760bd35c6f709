#pragma once
/// Timers at nanosecond resolution: arming and disarming are O(1), so that every receive can carry a deadline.
///
///     struct ring : timer { ring() : timer(&on_time) {} static void on_time(timer& self) noexcept; };
///     wheel.arm(ring, now + 5_ms);   …   wheel.disarm(ring);
///     wheel.advance(now);            // calls on_time of all that are due, in the order of their times
///
/// A wheel of 11 levels with 64 slots each: a timer waits in the level of the highest digit (base 64) in which its time
/// differs from the present and moves down as that digit is reached. Timers for one nanosecond fire in the order armed.
/// A level takes memory from its first timer on: of thousands of wheels in one process each has those that it uses.
#include <parley/runtime/identifiers.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace parley::runtime {

/// Stays where it is while armed; its destructor disarms it.
struct timer {
  using function = void (*)(timer& self) noexcept;
  explicit timer(function f) noexcept : on_time(f) {}
  timer(const timer&) = delete;
  timer& operator=(const timer&) = delete;
  ~timer() { unlink(); }

  bool linked() const noexcept { return held_by_ != nullptr; }
  void unlink() noexcept {
    if (held_by_ == nullptr) return;
    *held_by_ = below_;
    if (below_ != nullptr) below_->held_by_ = held_by_;
    held_by_ = nullptr;
  }
  function on_time;
  time_ns when = 0;

 private:
  friend class timer_stack;
  timer* below_ = nullptr;
  timer** held_by_ = nullptr;  // what points to it
};

/// Timers, the latest on top. It does not own them; those that are left when it ends are unlinked.
class timer_stack {
 public:
  timer_stack() noexcept = default;
  timer_stack(const timer_stack&) = delete;
  timer_stack& operator=(const timer_stack&) = delete;
  ~timer_stack() {
    while (!empty()) pop();
  }

  bool empty() const noexcept { return top_ == nullptr; }
  bool has_one() const noexcept { return top_ != nullptr && top_->below_ == nullptr; }
  timer& top() noexcept { return *top_; }
  void push(timer& t) noexcept {
    t.below_ = top_;
    t.held_by_ = &top_;
    if (top_ != nullptr) top_->held_by_ = &t.below_;
    top_ = &t;
  }
  timer& pop() noexcept {
    timer& t = *top_;
    t.unlink();
    return t;
  }
  /// Takes all of `other`, whose first is then on top.
  void turn_over(timer_stack& other) noexcept {
    while (!other.empty()) push(other.pop());
  }
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const timer* t = top_; t != nullptr; t = t->below_) visit(*t);
  }

 private:
  timer* top_ = nullptr;
};

class timer_wheel {
 public:
  explicit timer_wheel(time_ns now = 0) noexcept : current_(static_cast<std::uint64_t>(now)) {}

  /// Fires at the first `advance` to `when` or later. A time that has passed fires at the next `advance`.
  void arm(timer& t, time_ns when) noexcept {
    t.when = when;
    if (when <= static_cast<time_ns>(current_)) {
      due_.push(t);
      return;
    }
    const auto at = static_cast<std::uint64_t>(when);
    const auto digit = static_cast<unsigned>(63 - std::countl_zero(at ^ current_)) / slot_bits;
    const auto slot = (at >> (digit * slot_bits)) & slot_mask;
    if (levels_[digit] == nullptr) [[unlikely]]
      make_level(digit);
    (*levels_[digit])[slot].push(t);
    used_[digit] |= std::uint64_t{1} << slot;
  }
  static void disarm(timer& t) noexcept { t.unlink(); }

  /// The time of the earliest timer, or `never`.
  time_ns next() noexcept;
  /// Fires everything that is due at `now`. Returns whether anything was.
  bool advance(time_ns now) noexcept;

 private:
  static constexpr unsigned slot_bits = 6;
  static constexpr std::uint64_t slot_mask = 63;
  static constexpr unsigned level_count = 11;
  using level = std::array<timer_stack, 64>;

  struct place {
    unsigned level;
    unsigned slot;
    std::uint64_t start;
  };
  [[gnu::noinline, gnu::cold]] void make_level(unsigned digit) noexcept;
  bool first_used(place& found) noexcept;
  static bool fire(timer_stack& list) noexcept;
  bool fire_due() noexcept;

  std::uint64_t current_;
  timer_stack due_;
  std::array<std::uint64_t, level_count> used_{};  // a set bit may belong to a slot whose timers have all been disarmed
  std::array<std::unique_ptr<level>, level_count> levels_;
};

}  // namespace parley::runtime
