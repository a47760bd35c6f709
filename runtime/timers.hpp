#pragma once
/// Timers at nanosecond resolution: arming and disarming are O(1), so that every receive can carry a deadline.
///
///     struct ring : timer { ring() : timer(&on_time) {} static void on_time(timer& self) noexcept; };
///     wheel.arm(ring, now + 5_ms);   …   wheel.disarm(ring);
///     wheel.advance(now);            // calls on_time of all that are due, in the order of their times
///
/// The two earliest times are at hand, where looking at them costs a comparison: a short sleep beside a far deadline. All other
/// timers are in a wheel of 11 levels with 64 slots each: a timer waits in the level of the highest digit (base 64) in which its
/// time differs from the wheel's and moves down as that digit is reached. Timers for one nanosecond fire in the order armed. A
/// level has memory while there are timers in it.
#include <parley/runtime/frame_pool.hpp>
#include <parley/runtime/identifiers.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

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
  /// Takes all of `other` as they are, if this one is empty.
  void take(timer_stack& other) noexcept {
    top_ = std::exchange(other.top_, nullptr);
    if (top_ != nullptr) top_->held_by_ = &top_;
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
  explicit timer_wheel(time_ns now = 0) noexcept : passed_(now), base_(static_cast<std::uint64_t>(now)) {}

  /// Fires at the first `advance` to `when` or later. A time that has passed fires at the next `advance`.
  void arm(timer& t, time_ns when) noexcept {
    t.when = when;
    if (when <= passed_) {
      due_.push(t);
    } else if (when >= wheel_from_) {
      put_away(t);
    } else if (first_.at.empty() && (second_.at.empty() || when < second_.when)) {
      first_.put(t);
    } else {
      put_at_hand(t);
    }
  }
  static void disarm(timer& t) noexcept { t.unlink(); }

  /// The time of the earliest timer, or `never`.
  time_ns next() noexcept {
    if (!due_.empty()) return passed_;
    if (!first_.at.empty()) return first_.when;
    if (second_.at.empty() && (wheel_from_ == never || !bring_forward())) return never;
    return second_.when;
  }
  /// Fires everything that is due at `now`. Returns whether anything was.
  bool advance(time_ns now) noexcept {
    if (due_.empty() && now < earliest_possible()) {
      if (now > passed_) passed_ = now;
      return false;
    }
    return fire_until(now);
  }

 private:
  static constexpr unsigned slot_bits = 6;
  static constexpr std::uint64_t slot_mask = 63;
  static constexpr unsigned level_count = 11;
  struct level : frame_pool::pooled {
    std::uint64_t used = 0;  // a set bit may belong to a slot whose timers have all been disarmed
    std::array<timer_stack, 64> slots;
  };
  struct place {
    unsigned level;
    unsigned slot;
    time_ns start;
  };
  // Timers for one time.
  struct moment {
    void put(timer& t) noexcept {
      when = t.when;
      at.push(t);
    }
    timer_stack at;
    time_ns when = never;
  };

  time_ns earliest_possible() const noexcept {
    if (!first_.at.empty()) return first_.when;
    return second_.at.empty() ? wheel_from_ : second_.when;
  }
  static time_ns after(time_ns t) noexcept { return t == never ? never : t + 1; }
  [[gnu::noinline]] void put_away(timer& t) noexcept;
  [[gnu::noinline]] void put_at_hand(timer& t) noexcept;
  [[gnu::noinline]] bool bring_forward() noexcept;
  [[gnu::noinline]] bool fire_until(time_ns now) noexcept;
  void put_away(moment& m) noexcept;
  bool first_used(place& found) noexcept;
  bool turn_wheel(time_ns now) noexcept;
  static bool fire(timer_stack& list) noexcept;

  time_ns passed_;   // of the latest `advance`
  timer_stack due_;  // were armed for a time that had passed
  moment first_;
  moment second_;               // later than the first
  time_ns wheel_from_ = never;  // no timer in the wheel is earlier, and those at hand are
  std::uint64_t base_;      // what the wheel's digits are compared with: no timer in it is earlier, nor is `passed_`
  std::uint32_t made_ = 0;  // which levels there are, as bits
  std::array<std::unique_ptr<level>, level_count> levels_;
};

}  // namespace parley::runtime
