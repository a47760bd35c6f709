#pragma once
/// Says a word again until it is answered: a letter, a question, a credit. Every actor that repeats a message uses one of these, so that all
/// have the same growing pauses, and `services::repeated` counts how often anything was said again.
///
/// In the loop of an actor:
///
///     reminder again;                                          // due at once
///     if (again.is_due(services)) { send(…); again.said(services); }
///     next = std::min(next, again.when());                     // wake then
///
/// By a timer, where no actor waits:
///
///     reminder_timer<&edge_sender::ask_for_room, hurried> again_{*this};
///     again_.begin(services);                                  // it has been said for the first time
///     again_.go_on(services);                                  // it was said again, and is still not answered
///     again_.stop();                                           // it is answered
#include <parley/actors/services.hpp>
#include <parley/runtime/time/backoff.hpp>
#include <parley/runtime/time/executor.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

/// How soon a word is said again at first, and at the latest.
struct tempo {
  runtime::time_ns first;
  runtime::time_ns longest;
};
inline constexpr tempo patient{.first = 50'000'000,
                               .longest = 1'000'000'000};  ///< while it is lost, nobody waits in a call
inline constexpr tempo hurried{.first = 1'000'000, .longest = 100'000'000};        ///< somebody does
inline constexpr tempo seldom{.first = 1'000'000'000, .longest = 60'000'000'000};  ///< what it waits for may never come

template <tempo pace = patient>
class reminder {
 public:
  bool is_due(const services& s) const noexcept { return at_ <= s.ex.now(); }
  /// When to say it next.
  runtime::time_ns when() const noexcept { return at_; }
  /// It is due at once: its receiver asks for it.
  void hurry() noexcept { at_ = 0; }
  /// It is answered.
  void stop() noexcept { at_ = runtime::never; }
  /// It has just been said.
  void said(services& s) noexcept { at_ = s.ex.deadline_in(pause(s)); }
  /// Another word takes its place, which is due at once. `first`: where it is known how long an answer takes.
  void restart(runtime::time_ns first = pace.first) noexcept {
    pauses_.restart(first);
    at_ = 0;
    again_ = false;
  }
  /// The next pause, where a timer counts it.
  runtime::time_ns pause(services& s) noexcept {
    if (std::exchange(again_, true)) ++s.repeated;
    return pauses_.next(s.jitter);
  }

 private:
  runtime::time_ns at_ = 0;
  runtime::backoff<pace.first, pace.longest> pauses_;
  bool again_ = false;
};

namespace detail {
template <class Owner>
Owner owner_of(void (Owner::*)() noexcept);
}  // namespace detail

/// Calls `(owner.*say)()` when the word is to be said again.
template <auto say, tempo pace = patient>
class reminder_timer final : private runtime::timer {
  using owner = decltype(detail::owner_of(say));

 public:
  explicit reminder_timer(owner& o) noexcept : timer(&on_time), owner_(o) {}

  bool is_set() const noexcept { return timer::linked(); }
  /// The word was said, for the first time or after there was progress: the pauses are short again.
  void begin(services& s, runtime::time_ns first = pace.first) noexcept {
    pauses_.restart(first);
    go_on(s);
  }
  /// It was said once more; at most `longest` passes until the next time.
  void go_on(services& s, runtime::time_ns longest = pace.longest) noexcept {
    stop();
    s.ex.arm_in(*this, std::min(pauses_.pause(s), longest));
  }
  /// The pauses are short again, from the next one on.
  void restart() noexcept { pauses_.restart(); }
  void stop() noexcept { runtime::timer_wheel::disarm(*this); }

 private:
  static void on_time(runtime::timer& self) noexcept { (static_cast<reminder_timer&>(self).owner_.*say)(); }

  owner& owner_;
  reminder<pace> pauses_;
};

}  // namespace parley::actors
