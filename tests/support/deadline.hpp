#pragma once
/// The longest time that a test in real time waits for an event, on a machine that may be slow and busy:
///
///     for (const deadline limit; !happened() && !limit.is_over();) go_on();
#include <chrono>
#include <cstdlib>

namespace parley::tests {

inline constexpr std::chrono::seconds long_enough{60};

/// PARLEY_TEST_SLOWER=N: tests wait N times as long, under a tool that slows everything down.
inline int times_slower() {
  const char* const told = std::getenv("PARLEY_TEST_SLOWER");
  return told == nullptr ? 1 : std::atoi(told);
}

class deadline {
 public:
  bool is_over() const { return std::chrono::steady_clock::now() > at_; }

 private:
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now() + long_enough * times_slower();
};

}  // namespace parley::tests
