#pragma once
/// Shared by all measuring programs. A program prints one line per figure, `name value unit`, on stdout and nothing
/// else there; run.py reads those lines.
///
///     const arguments given(argc, argv);
///     const auto messages = given.number("iterations", 1'000'000);
///     pin_to_core(0);
///     const std::int64_t start = now_ns();
///     ...
///     report("caf_pingpong", double(now_ns() - start) / double(messages), "ns");
#include <malloc.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace parley::bench {

/// The monotonic clock, which all processes of one machine share.
inline std::int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

/// Prints one figure.
inline void report(std::string_view name, double value, std::string_view unit) {
  std::printf("%.*s %.4f %.*s\n", int(name.size()), name.data(), value, int(unit.size()), unit.data());
  std::fflush(stdout);
}

/// Calls `f`. If run.py counts the instructions of a part of a program, it counts those inside this function.
template <class F>
[[gnu::noinline]] void counted(F&& f) {
  f();
}

/// Ends the program with a sentence on stderr, which run.py shows in the failed row.
[[noreturn]] inline void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

/// Pins the calling thread, and the threads that it starts later, to one core. Core numbers wrap around on smaller
/// machines.
inline void pin_to_core(int core) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) give_up("sched_getaffinity failed");
  int wanted = core % CPU_COUNT(&allowed);
  for (int candidate = 0; candidate < CPU_SETSIZE; ++candidate) {
    if (!CPU_ISSET(candidate, &allowed) || wanted-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(candidate, &one);
    if (sched_setaffinity(0, sizeof one, &one) != 0) give_up("sched_setaffinity failed");
    return;
  }
}

/// Sends bytes to the process at the other end of a socket pair, then receives `in_size` bytes from it.
inline void exchange(int socket, const void* out, std::size_t out_size, void* in, std::size_t in_size) {
  if (write(socket, out, out_size) != ssize_t(out_size)) give_up("the other process is gone");
  for (std::size_t got = 0; got < in_size;) {
    const ssize_t n = read(socket, static_cast<char*>(in) + got, in_size - got);
    if (n <= 0) give_up("the other process is gone");
    got += std::size_t(n);
  }
}

/// Call in a forked process: it is killed when the measuring program dies, instead of spinning on.
inline void die_with_parent() { prctl(PR_SET_PDEATHSIG, SIGKILL); }

/// Starts a process on each core that never rests.
inline void keep_cores_busy() {
  for (long core = 0; core < sysconf(_SC_NPROCESSORS_ONLN); ++core) {
    if (fork() != 0) continue;
    die_with_parent();
    pin_to_core(int(core));
    for (volatile bool forever = true; forever;) {}
  }
}

/// Bytes that the program has allocated with malloc. This measures every library in the same way.
inline std::size_t heap_bytes() { return mallinfo2().uordblks + mallinfo2().hblkhd; }

inline double median(std::vector<double> values) {
  if (values.empty()) give_up("a median of nothing was asked for");
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// `--name value` pairs.
class arguments {
 public:
  arguments(int argc, char** argv) : words_(argv + 1, argv + argc) {}

  std::string text(std::string_view name, std::string_view otherwise) const {
    for (std::size_t i = 0; i + 1 < words_.size(); i += 2)
      if (words_[i].substr(0, 2) == "--" && words_[i].substr(2) == name) return std::string(words_[i + 1]);
    return std::string(otherwise);
  }
  std::int64_t number(std::string_view name, std::int64_t otherwise) const {
    const std::string given = text(name, "");
    return given.empty() ? otherwise : std::strtoll(given.c_str(), nullptr, 10);
  }

 private:
  std::vector<std::string_view> words_;
};

/// The monotonic time just before this program's image was loaded. The first call starts the program a second time,
/// so that `now_ns` minus this time includes loading, constructors and set-up.
inline std::int64_t load_time_ns(char** argv) {
  constexpr const char* variable = "PARLEY_BENCH_LOAD_TIME";
  if (const char* known = std::getenv(variable)) return std::strtoll(known, nullptr, 10);
  setenv(variable, std::to_string(now_ns()).c_str(), 1);
  execv("/proc/self/exe", argv);
  give_up("the program could not start itself again");
}

}  // namespace parley::bench
