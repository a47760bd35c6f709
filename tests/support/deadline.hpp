#pragma once
/// How long a test that runs in real time waits for what must happen, on a machine that may be slow and busy:
///
///     for (const deadline limit; !happened() && !limit.is_over();) go_on();
#include <chrono>

namespace parley::tests {

inline constexpr std::chrono::seconds long_enough{60};

class deadline {
 public:
  bool is_over() const { return std::chrono::steady_clock::now() > at_; }

 private:
  std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now() + long_enough;
};

}  // namespace parley::tests
