#pragma once
/// Watches the runs of a simulated program, which all happen in this process. If a signal ends the process, the guard prints the seed and
/// the rank at work, so that the run can be repeated. It also says when the time of the command is over.
///
///     const run_guard guard(60);                    // seconds of real time for all runs; 0: no limit
///     run_guard::plays(seed, &world.stage());       // until `plays(0, nullptr)`
///     if (run_guard::time_is_over()) …              // if nobody asks, because a rank computes without end, the process ends a second later
///
/// A signal that the program or a sanitizer handles itself stays theirs. Construct one guard at a time.
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
  struct replaced {
    int signal;
    struct sigaction before;
  };
  void handle(int signal, void (*function)(int));
  std::vector<replaced> replaced_;
  std::vector<char> stack_;  // of the handlers: the program's own stack may have overflowed
  stack_t stack_before_{};
};

}  // namespace parley::simulation
