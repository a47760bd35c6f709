#include <parley/transports/files/file_lock.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::result;

namespace {

using clock = std::chrono::steady_clock;
constexpr auto shortest_pause = std::chrono::milliseconds(1);
constexpr auto longest_pause = std::chrono::milliseconds(20);

error cannot(const std::string& name, const char* step, int reason) {
  return {errc::io, name + ": cannot " + step + ": " + std::strerror(reason)};
}

/// Identifies this boot of this machine. A host name does not: containers may share one, and one host may have several.
const std::string& this_boot() {
  static const std::string id = [] {
    std::string text;
    std::ifstream in("/proc/sys/kernel/random/boot_id");
    std::getline(in, text);
    return text.empty() ? "unknown" : text;
  }();
  return id;
}

std::string holder_text() {
  std::array<char, HOST_NAME_MAX + 1> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return this_boot() + "\nprocess " + std::to_string(::getpid()) + " on " + host.data() + "\n";
}

struct seen_lock {
  std::string boot;
  std::string holder;  // `process 12 on host`
};

seen_lock look_at(int fd) {
  std::array<char, 512> text{};
  const ssize_t length = ::pread(fd, text.data(), text.size(), 0);
  seen_lock seen{"", "a process that did not say who it is"};
  if (length <= 0) return seen;
  std::string all(text.data(), static_cast<std::size_t>(length));
  for (char& c : all)
    if (c != '\n' && static_cast<unsigned char>(c) < ' ') c = '?';
  const auto first = all.find('\n');
  const auto second = all.find('\n', first + 1);
  if (first == std::string::npos || second == std::string::npos) return seen;
  return {all.substr(0, first), all.substr(first + 1, second - first - 1)};
}

bool is_at(const std::string& name, int fd) {
  struct stat there{};
  struct stat mine{};
  return ::stat(name.c_str(), &there) == 0 && ::fstat(fd, &mine) == 0 && there.st_ino == mine.st_ino &&
         there.st_dev == mine.st_dev;
}

/// Returns the holder that the lock file names; nothing if the lock file no longer exists. If the holder was a process of this host and has
/// died, its flock is gone: this function then locks the file and removes it. A process removes a lock file only while it has locked that
/// file, so this cannot remove another process's new lock file.
std::optional<seen_lock> look_and_clear(const std::string& name) {
  const int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (fd < 0 && errno == ENOENT) return std::nullopt;
  if (fd < 0)
    return seen_lock{"",
                     std::string("an unknown process (the lock file cannot be opened: ") + std::strerror(errno) + ")"};
  std::optional<seen_lock> seen = look_at(fd);
  const bool dead = seen->boot == this_boot() && ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  if (dead && is_at(name, fd)) ::unlink(name.c_str());
  ::close(fd);
  if (dead) return std::nullopt;
  return seen;
}

bool write_text(int fd, const std::string& text) {
  return ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

/// Creates a complete and locked lock file under a temporary name.
int make_fresh(std::string& fresh) {
  const int fd = ::mkostemp(fresh.data(), O_CLOEXEC);
  if (fd < 0) return fd;
  // If flock does not work here, other processes cannot notice this holder's death, and wait for it as for a holder on another host.
  static_cast<void>(::flock(fd, LOCK_EX | LOCK_NB));
  if (::fchmod(fd, 0666) == 0 && write_text(fd, holder_text())) return fd;
  const int reason = errno;
  ::unlink(fresh.c_str());
  ::close(fd);
  errno = reason == 0 ? ENOSPC : reason;
  return -1;
}

}  // namespace

result<file_lock> file_lock::take(const std::string& path, std::int64_t patience_ns) {
  const std::string name = path + ".lock";
  std::string fresh = name + ".XXXXXX";
  const int fd = make_fresh(fresh);
  if (fd < 0) return cannot(name, "make it", errno);
  const auto until = clock::now() + std::chrono::nanoseconds(patience_ns);
  const auto give_up = [&](error why) {
    ::unlink(fresh.c_str());
    ::close(fd);
    return why;
  };
  for (auto pause = shortest_pause;; pause = std::min(2 * pause, longest_pause)) {
    const int reason = ::link(fresh.c_str(), name.c_str()) == 0 ? 0 : errno;
    if (reason == 0 || is_at(name, fd)) break;  // NFS may create the link and still report a failure
    if (reason != EEXIST) return give_up(cannot(name, "make it", reason));
    const auto seen = look_and_clear(name);
    if (clock::now() >= until)
      return give_up({errc::timeout, name + " is held by " + (seen ? seen->holder : "a series of processes") +
                                         "; if that process is gone, remove this file; no other data will be lost"});
    if (seen) std::this_thread::sleep_for(pause);
  }
  ::unlink(fresh.c_str());
  return file_lock(name, fd);
}

file_lock::file_lock(file_lock&& other) noexcept : name_(std::move(other.name_)), fd_(std::exchange(other.fd_, -1)) {}

file_lock::~file_lock() {
  if (fd_ < 0) return;
  if (is_at(name_, fd_)) ::unlink(name_.c_str());
  ::close(fd_);
}

}  // namespace parley::transports
