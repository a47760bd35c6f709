#pragma once
/// Runs a test as several processes: forks one child per rank, lets the children exchange data, and collects how each ended by a deadline.
///
///     auto outcome = run_processes(2, [](rank_id rank, meeting& all) {
///       auto addresses = all.gather(my_address);
///       PARLEY_EXPECT(addresses.size() == 2);
///     });
///     CHECK_MESSAGE(outcome.fine(), outcome.text());
///
/// The parent must not have started UCX or threads. The outcome names each child that throws, fails an expectation, crashes or is late,
/// with the reason. Children exit without running static destructors; with ASan they check for leaks first.
#include <parley/identifiers.hpp>

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/lsan_interface.h>
#define __SANITIZE_ADDRESS__ 1
#endif
#endif

#define PARLEY_EXPECT(condition)                                                                                  \
  do {                                                                                                            \
    if (!(condition))                                                                                             \
      throw std::runtime_error(std::string(__FILE__ ":") + std::to_string(__LINE__) + ": not true: " #condition); \
  } while (false)

namespace parley::tests {

using runtime::rank_id;
using blob = std::vector<std::byte>;

namespace wire {
enum class kind : std::uint8_t { gather, failed };

inline bool write_all(int fd, const void* from, std::size_t length) {
  const auto* at = static_cast<const char*>(from);
  while (length > 0) {
    const ssize_t n = ::send(fd, at, length, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    length -= static_cast<std::size_t>(n);
  }
  return true;
}
inline bool read_all(int fd, void* into, std::size_t length) {
  auto* at = static_cast<char*>(into);
  while (length > 0) {
    const ssize_t n = ::read(fd, at, length);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    at += n;
    length -= static_cast<std::size_t>(n);
  }
  return true;
}
inline bool write_blob(int fd, std::span<const std::byte> bytes) {
  const auto length = static_cast<std::uint32_t>(bytes.size());
  return write_all(fd, &length, sizeof length) && write_all(fd, bytes.data(), bytes.size());
}
inline std::optional<blob> read_blob(int fd) {
  std::uint32_t length = 0;
  if (!read_all(fd, &length, sizeof length)) return std::nullopt;
  blob bytes(length);
  if (!read_all(fd, bytes.data(), length)) return std::nullopt;
  return bytes;
}
}  // namespace wire

/// A child's connection to the other children.
class meeting {
 public:
  meeting(int fd, rank_id size) : fd_(fd), size_(size) {}
  /// Waits for all living ranks. Returns what each rank brought, in order of rank; empty for a rank that has ended.
  std::vector<blob> gather(std::span<const std::byte> mine) {
    bring(mine);
    return take();
  }
  /// Like `gather()`, for a rank that has other work meanwhile: `take()` does not wait once `brought()` is true.
  void bring(std::span<const std::byte> mine) {
    const auto kind = wire::kind::gather;
    if (!wire::write_all(fd_, &kind, 1) || !wire::write_blob(fd_, mine)) throw std::runtime_error("the parent is gone");
  }
  bool brought() const {
    pollfd answer{fd_, POLLIN, 0};
    return ::poll(&answer, 1, 0) == 1;
  }
  std::vector<blob> take() {
    std::vector<blob> all;
    for (rank_id rank = 0; rank < size_; ++rank) {
      auto bytes = wire::read_blob(fd_);
      if (!bytes) throw std::runtime_error("the parent is gone");
      all.push_back(std::move(*bytes));
    }
    return all;
  }
  void barrier() { gather({}); }

 private:
  int fd_;
  rank_id size_;
};

struct outcomes {
  std::vector<std::string> reasons;  ///< per rank; empty when it ended well
  bool fine() const {
    for (const std::string& reason : reasons)
      if (!reason.empty()) return false;
    return true;
  }
  std::string text() const {
    std::string all;
    for (std::size_t rank = 0; rank < reasons.size(); ++rank)
      if (!reasons[rank].empty()) all += "rank " + std::to_string(rank) + ": " + reasons[rank] + "\n";
    return all;
  }
};

struct process_options {
  std::chrono::seconds within{120};
  std::set<rank_id> killed;  ///< ranks that must end by SIGKILL
};

inline outcomes run_processes(rank_id count, const std::function<void(rank_id, meeting&)>& body,
                              const process_options& chosen = {}) {
  struct child {
    pid_t pid = -1;
    int fd = -1;
    int status = 0;
    std::optional<blob> brought;
  };
  std::vector<child> children(count);
  outcomes ended;
  ended.reasons.resize(count);

  for (rank_id rank = 0; rank < count; ++rank) {
    int pair[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) throw std::runtime_error("socketpair failed");
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("fork failed");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(3);
      ::close(pair[0]);
      for (const child& other : children)
        if (other.fd >= 0) ::close(other.fd);
      for (const int fatal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGTERM, SIGINT}) ::signal(fatal, SIG_DFL);
      int status = 0;
      try {
        meeting all(pair[1], count);
        body(rank, all);
      } catch (const std::exception& e) {
        const auto kind = wire::kind::failed;
        wire::write_all(pair[1], &kind, 1);
        wire::write_blob(pair[1], std::as_bytes(std::span(e.what(), std::strlen(e.what()))));
        status = 1;
      }
#ifdef __SANITIZE_ADDRESS__
      if (status == 0 && __lsan_do_recoverable_leak_check() != 0) status = 4;
#endif
      ::_exit(status);
    }
    ::close(pair[1]);
    children[rank].pid = pid;
    children[rank].fd = pair[0];
  }

  const auto until = std::chrono::steady_clock::now() + chosen.within;
  // Reaps the child at once: UCX looks for the process, and a zombie counts as alive.
  const auto hang_up = [](child& c) {
    ::close(c.fd);
    c.fd = -1;
    ::waitpid(c.pid, &c.status, 0);
  };
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<rank_id> who;
    bool complete = true;
    for (rank_id rank = 0; rank < count; ++rank) {
      if (children[rank].fd < 0) continue;
      waiting.push_back({children[rank].fd, POLLIN, 0});
      who.push_back(rank);
      complete = complete && children[rank].brought.has_value();
    }
    if (waiting.empty()) break;
    if (complete) {
      for (const rank_id rank : who)
        for (const child& from : children) wire::write_blob(children[rank].fd, from.brought.value_or(blob{}));
      for (child& c : children) c.brought.reset();
      continue;
    }
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0) {
      for (const rank_id rank : who) {
        ended.reasons[rank] = "did not end in time";
        ::kill(children[rank].pid, SIGKILL);
      }
      break;
    }
    ::poll(waiting.data(), waiting.size(), static_cast<int>(left.count()));
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      child& from = children[who[i]];
      wire::kind kind{};
      auto bytes = wire::read_all(from.fd, &kind, 1) ? wire::read_blob(from.fd) : std::nullopt;
      if (!bytes) {
        hang_up(from);
      } else if (kind == wire::kind::gather) {
        from.brought = std::move(bytes);
      } else {
        ended.reasons[who[i]].assign(reinterpret_cast<const char*>(bytes->data()), bytes->size());
      }
    }
  }
  for (rank_id rank = 0; rank < count; ++rank) {
    if (children[rank].fd >= 0) hang_up(children[rank]);
    const int status = children[rank].status;
    std::string& reason = ended.reasons[rank];
    if (!reason.empty()) continue;
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (chosen.killed.contains(rank)) {
      if (!killed) reason = "was to be killed and was not";
    } else if (WIFSIGNALED(status)) {
      reason = std::string("ended by signal ") + ::strsignal(WTERMSIG(status));
    } else if (WEXITSTATUS(status) != 0) {
      reason = "ended with status " + std::to_string(WEXITSTATUS(status));
    }
  }
  return ended;
}

}  // namespace parley::tests
