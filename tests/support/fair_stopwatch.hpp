#pragma once
/// What has gone by since it was started, less the time for which this machine kept a thread of the test from running:
///
///     const fair_stopwatch since;
///     wait_for(…);
///     CHECK(since.took() < 2s);       // what the library promises, not what a busy machine makes of it
///
/// The thread sleeps and computes in turns, for spans that it knows; what a turn takes beyond them does not count.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace parley::tests {

class fair_stopwatch {
 public:
  using clock = std::chrono::steady_clock;

  fair_stopwatch()
      : began_(clock::now()), turn_began_(began_), watcher_([this](const std::stop_token& enough) {
          while (!enough.stop_requested()) take_turn();
        }) {}
  fair_stopwatch(const fair_stopwatch&) = delete;
  fair_stopwatch& operator=(const fair_stopwatch&) = delete;

  clock::duration took() const {
    const std::lock_guard lock(mutex_);
    const auto now = clock::now();
    return now - began_ - kept_ - beyond_a_turn(now);  // the turn that goes on may be the one that is held up
  }

 private:
  static constexpr std::chrono::microseconds sleeps{4'000};
  static constexpr std::chrono::microseconds computes{1'000};
  static constexpr std::chrono::microseconds late{1'000};  // which a timer may be anywhere

  void take_turn() {
    std::this_thread::sleep_for(sleeps);
    for (const auto until = computed() + computes; computed() < until;) {}
    const std::lock_guard lock(mutex_);
    const auto now = clock::now();
    kept_ += beyond_a_turn(now);
    turn_began_ = now;
  }
  clock::duration beyond_a_turn(clock::time_point now) const {
    return std::max<clock::duration>(now - turn_began_ - sleeps - computes - late, {});
  }
  static std::chrono::nanoseconds computed() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
  }

  mutable std::mutex mutex_;
  clock::time_point began_;
  clock::time_point turn_began_;
  clock::duration kept_{};
  std::jthread watcher_;  // the last one: it uses the others
};

}  // namespace parley::tests
