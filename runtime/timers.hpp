#pragma once
/// Timers at nanosecond resolution: arming and disarming are O(1), so that every receive can carry a deadline.
///
///     struct ring : timer { ring() : timer(&on_time) {} static void on_time(timer& self) noexcept; };
///     wheel.arm(ring, now + 5_ms);   …   wheel.disarm(ring);
///     wheel.advance(now);            // calls on_time of all that are due, in the order of their times
///
/// A wheel of 11 levels with 64 slots each: a timer waits in the level of the highest digit (base 64) in which its time
/// differs from the present and moves down as that digit is reached. Timers for one nanosecond fire in the order armed.
#include <parley/runtime/identifiers.hpp>
#include <parley/runtime/intrusive_list.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace parley::runtime {

/// Stays where it is while armed; its destructor disarms it.
struct timer : list_hook {
  using function = void (*)(timer& self) noexcept;
  explicit timer(function f) noexcept : on_time(f) {}
  function on_time;
  time_ns when = 0;
};

class timer_wheel {
 public:
  explicit timer_wheel(time_ns now = 0) noexcept : current_(static_cast<std::uint64_t>(now)) {}

  /// Fires at the first `advance` to `when` or later. A time that has passed fires at the next `advance`.
  void arm(timer& t, time_ns when) noexcept {
    t.when = when;
    const auto at = static_cast<std::uint64_t>(when);
    if (when <= static_cast<time_ns>(current_)) {
      due_.push_back(t);
      return;
    }
    const auto digit = static_cast<unsigned>(63 - std::countl_zero(at ^ current_)) / slot_bits;
    const auto slot = (at >> (digit * slot_bits)) & slot_mask;
    levels_[digit].slots[slot].push_back(t);
    levels_[digit].used |= std::uint64_t{1} << slot;
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

  struct level {
    std::uint64_t used = 0;  // a set bit may belong to a slot whose timers have all been disarmed
    std::array<intrusive_list<timer>, 64> slots;
  };
  struct place {
    unsigned level;
    unsigned slot;
    std::uint64_t start;
  };
  bool first_used(place& found) noexcept;
  bool fire(intrusive_list<timer>& list) noexcept;

  std::uint64_t current_;
  intrusive_list<timer> due_;
  std::array<level, level_count> levels_;
};

}  // namespace parley::runtime
