#pragma once
/// Runs scripts in virtual time: a clock, a scope, and a log of events in order.
///
///     script play;
///     play.stage->spawn(part(play));
///     play.until(5_ms);                  // everything up to and including 5 ms has happened
///     CHECK(play.log == "a b ");
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstdint>
#include <memory>
#include <string>

namespace parley::runtime {

struct script {
  explicit script(std::uint64_t seed = 1) : clock(seed) {}
  virtual_time clock;
  std::unique_ptr<scope> stage = std::make_unique<scope>(clock);
  std::string log;

  void say(const std::string& word) { log += word + ' '; }
  /// Runs everything that can run at this instant.
  void settle() {
    while (clock.turn()) {}
  }
  void until(time_ns when) {
    run(clock, wait_until(when));
    settle();
  }
  void finish() { run(clock, join(*stage)); }

 private:
  static task<> wait_until(time_ns when) {
    auto woken = co_await sleep_until(when);
    woken.value();
  }
  static task<> join(scope& s) { co_await s.join(); }
};

/// Logs `word` at `when`, or the name of the error that ended the wait.
inline task<> say_at(script& play, time_ns when, std::string word) {
  auto woken = co_await sleep_until(when);
  play.say(woken ? word : std::string(name(woken.code())));
}

}  // namespace parley::runtime
