#pragma once
/// Timers at nanosecond resolution. Arming and disarming are O(1), so that every receive can have a deadline.
///
///     timer_of<&phone::ring> ring_{*this};       // calls `phone::ring() noexcept` of this phone
///     wheel.arm(ring_, now + 5_ms);   …   wheel.disarm(ring_);
///     wheel.advance(now);                        // calls all that are due, in the order of their times
///
/// The few earliest times are kept in order, so that a short sleep among far deadlines costs only a comparison. All other timers are in a
/// wheel of 11 levels with 64 slots each. A timer waits in the level of the highest digit (base 64) in which its time differs from the
/// wheel's, and moves down as the wheel reaches that digit. Timers for one nanosecond fire in the order in which they were armed. The wheel
/// and its levels have memory only while they hold timers.
#include <parley/identifiers.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace parley::runtime {

/// Must not move while armed; its destructor disarms it.
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
  timer** held_by_ = nullptr;  // the pointer that points to this timer
};

namespace detail {
template <class Owner>
Owner owner_of(void (Owner::*)() noexcept);
}  // namespace detail

/// A timer that calls a member function of the object that holds it.
template <auto member>
class timer_of final : public timer {
  using owner = decltype(detail::owner_of(member));

 public:
  explicit timer_of(owner& o) noexcept : timer(&on_due), owner_(o) {}

 private:
  static void on_due(timer& self) noexcept { (static_cast<timer_of&>(self).owner_.*member)(); }
  owner& owner_;
};

/// A stack of timers, the latest on top. The stack does not own its timers; its destructor unlinks the remaining ones.
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
  const timer* look() const noexcept { return top_; }
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
  /// Moves all timers of `other` here, in their order. This stack must be empty.
  void take(timer_stack& other) noexcept {
    top_ = std::exchange(other.top_, nullptr);
    if (top_ != nullptr) top_->held_by_ = &top_;
  }
  /// Moves all timers of `other` here in reverse order, so that the bottom timer of `other` is on top.
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
  explicit timer_wheel(time_ns now = 0) noexcept : passed_(now) {}

  /// The timer fires at the first `advance` to `when` or later. If `when` has passed already, the timer fires at the next `advance`.
  void arm(timer& t, time_ns when) noexcept {
    t.when = when;
    if (when <= passed_) {
      due_.push(t);
    } else if (when >= wheel_from_) {
      put_away(t);
    } else if (at_hand_.front().at.empty() && when < earliest_possible()) {
      at_hand_.front().put(t);
    } else {
      put_at_hand(t);
    }
  }
  static void disarm(timer& t) noexcept { t.unlink(); }
  /// The timers up to this time have fired, or are firing.
  time_ns passed() const noexcept { return passed_; }

  /// The time of the earliest timer, or `never`.
  time_ns next() noexcept {
    if (!due_.empty()) return passed_;
    const time_ns earliest = earliest_possible();
    return earliest < wheel_from_ || earliest == never ? earliest : bring_forward();
  }
  /// The earliest timer if it is in `at_hand_`, else null: for callers that prefetch its memory.
  const timer* earliest() const noexcept {
    for (const moment& m : at_hand_) {
      if (!m.at.empty()) return m.at.look();
    }
    return nullptr;
  }
  /// Fires all timers that are due at `now`. Returns true if there were any.
  bool advance(time_ns now) noexcept {
    if (due_.empty() && now < earliest_possible()) {
      if (now > passed_) passed_ = now;
      return false;
    }
    return fire_until(now);
  }

 private:
  static constexpr std::size_t few = 4;
  static constexpr unsigned slot_bits = 6;
  static constexpr std::uint64_t slot_mask = 63;
  static constexpr unsigned level_count = 11;
  // Timers for one time.
  struct moment {
    void put(timer& t) noexcept {
      when = t.when;
      at.push(t);
    }
    void take(moment& other) noexcept {
      when = other.when;
      at.take(other.at);
    }
    timer_stack at;
    time_ns when = never;
  };
  struct level : frame_pool::pooled {
    std::uint64_t used = 0;  // a set bit may belong to a slot whose timers have all been disarmed
    std::array<timer_stack, 64> slots;
  };
  struct wheel : frame_pool::pooled {
    std::uint64_t base = 0;  // digits are compared with it; timers in the wheel and `passed_` are not earlier
    std::uint32_t made = 0;  // bit i: level i exists
    std::array<std::unique_ptr<level>, level_count> levels;
  };
  struct place {
    unsigned level;
    unsigned slot;
    time_ns start;
  };

  moment* earliest_at_hand() noexcept {
    for (moment& m : at_hand_) {
      if (!m.at.empty()) return &m;
    }
    return nullptr;
  }
  time_ns earliest_possible() noexcept {
    const moment* const m = earliest_at_hand();
    return m != nullptr ? m->when : wheel_from_;
  }
  static time_ns after(time_ns t) noexcept { return t == never ? never : t + 1; }
  [[gnu::noinline]] void put_away(timer& t) noexcept;
  [[gnu::noinline]] void put_at_hand(timer& t) noexcept;
  [[gnu::noinline]] time_ns bring_forward() noexcept;
  [[gnu::noinline]] bool fire_until(time_ns now) noexcept;
  void put_away(moment& m) noexcept;
  bool first_used(place& found) noexcept;
  bool turn_wheel(time_ns now) noexcept;
  static bool fire(timer_stack& list) noexcept;

  time_ns passed_;                   // of the latest `advance`
  timer_stack due_;                  // timers armed for a time that had already passed
  time_ns wheel_from_ = never;       // all timers in the wheel are at or after this time; all in `at_hand_` are before
  std::array<moment, few> at_hand_;  // the used ones are in the order of their times
  std::unique_ptr<wheel> wheel_;
};

}  // namespace parley::runtime
