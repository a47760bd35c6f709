#include <parley/simulation/programs/run_guard.hpp>

#include <parley/simulation/world/stage.hpp>

#include <array>
#include <cstring>
#include <string_view>
#include <unistd.h>
#include <utility>

namespace parley::simulation {

namespace {

std::uint64_t seed_now = 0;
const stage* run_now = nullptr;
volatile std::sig_atomic_t time_over = 0;

// Calls only functions that are allowed in a signal handler.
void say(std::string_view text) { static_cast<void>(::write(STDERR_FILENO, text.data(), text.size())); }
void say(std::uint64_t number) {
  std::array<char, 20> digits{};
  std::size_t at = digits.size();
  do {
    digits[--at] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  say(std::string_view(digits.data() + at, digits.size() - at));
}

void say_which_run() {
  say("seed ");
  say(seed_now);
  if (run_now->acting() != nobody) {
    say(", in rank ");
    say(run_now->acting());
  }
}

void say_how_to_repeat() {
  say("; repeat it: the same command with --seed ");
  say(seed_now);
  say(" and without --seeds\n");
}

// The previous action of each signal. The previous handler gets the original signal, so that a sanitizer reports the place of the fault.
std::array<struct sigaction, NSIG> done_before{};

void on_signal(int signal, siginfo_t* about, void* context) {
  if (run_now != nullptr) {
    say_which_run();
    say(": SIG");
    const char* const name = ::sigabbrev_np(signal);
    say(name == nullptr ? "?" : name);
    say(" came");
    say_how_to_repeat();
    run_now = nullptr;
  }
  const struct sigaction& before = done_before[static_cast<std::size_t>(signal)];
  ::sigaction(signal, &before, nullptr);
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, about, context);
  if (before.sa_handler != SIG_DFL) return before.sa_handler(signal);
  ::raise(signal);
}

void on_limit(int, siginfo_t*, void*) {
  if (time_over == 0) {
    time_over = 1;
    ::alarm(1);
    return;
  }
  if (run_now != nullptr) {
    say_which_run();
    say(": the time limit expired, and the rank computes without waiting for anything");
    say_how_to_repeat();
  }
  ::_exit(run_guard::status_of_limit);
}

bool guarded = false;

}  // namespace

run_guard::run_guard(unsigned limit_s) : is_outermost_(!std::exchange(guarded, true)) {
  if (!is_outermost_) return;
  stack_.resize(std::size_t{1} << 16U);
  const stack_t own{.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  ::sigaltstack(&own, &stack_before_);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGINT, SIGTERM}) handle(signal, &on_signal);
  time_over = 0;
  if (limit_s == 0) return;
  handle(SIGALRM, &on_limit);
  ::alarm(limit_s);
}

run_guard::~run_guard() {
  if (!is_outermost_) return;
  guarded = false;
  ::alarm(0);
  for (const int signal : replaced_) ::sigaction(signal, &done_before[static_cast<std::size_t>(signal)], nullptr);
  ::sigaltstack(&stack_before_, nullptr);
}

void run_guard::plays(std::uint64_t seed, const stage* run) noexcept {
  seed_now = seed;
  run_now = run;
}

bool run_guard::time_is_over() noexcept { return time_over != 0; }

void run_guard::handle(int signal, void (*function)(int, siginfo_t*, void*)) {
  struct sigaction& before = done_before[static_cast<std::size_t>(signal)];
  ::sigaction(signal, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;
  struct sigaction own{};
  own.sa_sigaction = function;
  own.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  ::sigaction(signal, &own, nullptr);
  replaced_.push_back(signal);
}

}  // namespace parley::simulation
