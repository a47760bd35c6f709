#pragma once
/// Watches the runs of a simulated program, which all happen in this process. If a signal such as SIGSEGV arrives, the guard prints the
/// seed and the rank at work, so that the run can be repeated. Then the signal has its previous effect. The guard also says when the time
/// for the runs is over.
///
///     const run_guard guard(60);                    // seconds of real time for all runs; 0: no limit
///     run_guard::plays(seed, &world.stage());       // until `plays(0, nullptr)`
///     if (run_guard::time_is_over()) …              // if nobody asks, because a rank computes without end, the process ends a second later
///
/// A guard inside another one does nothing.
#include <csignal>
#include <cstdint>
#include <vector>

namespace parley::simulation {

class stage;

class run_guard {
 public:
  static constexpr int status_of_limit = 124;  ///< as that of `parley run --time-limit`

  explicit run_guard(unsigned limit_s);
  ~run_guard();
  run_guard(const run_guard&) = delete;
  run_guard& operator=(const run_guard&) = delete;

  static void plays(std::uint64_t seed, const stage* run) noexcept;
  static bool time_is_over() noexcept;

 private:
  void handle(int signal, void (*function)(int, siginfo_t*, void*));
  bool is_outermost_;
  std::vector<int> replaced_;  // signals
  std::vector<char> stack_;    // of the handlers: the program's own stack may have overflowed
  stack_t stack_before_{};
};

}  // namespace parley::simulation
