#pragma once
/// Sends a message again until it is answered: a letter, a question, a credit. Every actor that repeats a message uses one of these
/// classes, so that all have the same growing pauses, and `services::repeated` counts all repetitions.
///
/// In the loop of an actor:
///
///     reminder again;                                          // due at once
///     if (again.is_due(services)) { send(…); again.said(services); }
///     next = std::min(next, again.when());                     // wake up then
///
/// By a timer, where no actor waits:
///
///     reminder_timer<&edge_sender::ask_for_room, hurried> again_{*this};
///     again_.begin(services);                                  // the message was sent for the first time
///     again_.go_on(services);                                  // it was sent again, and is still not answered
///     again_.stop();                                           // it is answered
#include <parley/actors/services.hpp>
#include <parley/runtime/time/backoff.hpp>
#include <parley/runtime/time/executor.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

/// The first and the longest pause before a message is sent again.
struct tempo {
  runtime::time_ns first;
  runtime::time_ns longest;
};
inline constexpr tempo patient{.first = 50'000'000, .longest = 1'000'000'000};     ///< no call waits for the answer
inline constexpr tempo hurried{.first = 1'000'000, .longest = 100'000'000};        ///< a call waits for the answer
inline constexpr tempo seldom{.first = 1'000'000'000, .longest = 60'000'000'000};  ///< the answer may never come

template <tempo pace = patient>
class reminder {
 public:
  bool is_due(const services& s) const noexcept { return at_ <= s.ex.now(); }
  /// The time at which the message must be sent next.
  runtime::time_ns when() const noexcept { return at_; }
  /// Makes the message due at once, because its receiver asks for it.
  void hurry() noexcept { at_ = 0; }
  /// The message is answered.
  void stop() noexcept { at_ = runtime::never; }
  /// The message has just been sent.
  void said(services& s) noexcept { at_ = s.ex.deadline_in(pause(s)); }
  /// Another message takes its place, and is due at once. `first`: the first pause, if the time of an answer is known.
  void restart(runtime::time_ns first = pace.first) noexcept {
    pauses_.restart(first);
    at_ = 0;
    again_ = false;
  }
  /// The next pause, for a timer.
  runtime::time_ns pause(services& s) noexcept {
    if (std::exchange(again_, true)) ++s.repeated;
    return pauses_.next(s.jitter);
  }

 private:
  runtime::time_ns at_ = 0;
  runtime::backoff<pace.first, pace.longest> pauses_;
  bool again_ = false;
};

/// Calls `(owner.*say)()` when the message must be sent again.
template <auto say, tempo pace = patient>
class reminder_timer {
 public:
  template <class Owner>
  explicit reminder_timer(Owner& o) noexcept : timer_(o) {}

  bool is_set() const noexcept { return timer_.linked(); }
  /// The message was sent for the first time, or again after progress: the pauses start with the shortest.
  void begin(services& s, runtime::time_ns first = pace.first) noexcept {
    pauses_.restart(first);
    go_on(s);
  }
  /// The message was sent again. The next repetition follows after at most `longest`.
  void go_on(services& s, runtime::time_ns longest = pace.longest) noexcept {
    stop();
    s.ex.arm_in(timer_, std::min(pauses_.pause(s), longest));
  }
  /// From the next pause on, the pauses start again with the shortest.
  void restart() noexcept { pauses_.restart(); }
  void stop() noexcept { runtime::timer_wheel::disarm(timer_); }

 private:
  runtime::timer_of<say> timer_;
  reminder<pace> pauses_;
};

}  // namespace parley::actors
