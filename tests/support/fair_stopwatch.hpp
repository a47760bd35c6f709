#pragma once
/// Measures the time since its construction, less the time for which this machine kept a thread of the test from running:
///
///     const fair_stopwatch since;
///     wait_for(…);
///     CHECK(since.took() < 2s);       // checks the library's promise, however busy the machine is
///
/// A thread sleeps and computes in turns of known length. The time that a turn takes beyond that does not count.
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
    return now - began_ - kept_ - beyond_a_turn(now);  // the current turn may be held up, too
  }

 private:
  static constexpr std::chrono::microseconds sleeps{4'000};
  static constexpr std::chrono::microseconds computes{1'000};
  static constexpr std::chrono::microseconds late{1'000};  // a timer may be so late on any machine

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
  std::jthread watcher_;  // the last member, because it uses the others
};

}  // namespace parley::tests
