#pragma once
/// One writer per file, among processes and hosts: a lock file next to it, `results.csv.lock`, which exists while a process holds
/// the lock.
///
///     auto held = file_lock::take("results.csv", patience_ns);   // waits up to patience_ns
///     if (!held) …                                               // timeout: names the holder; io: cannot make a lock file here
///
/// `take` creates the complete lock file under a temporary name and then links it to its final name. Only one of several processes
/// succeeds, on NFS too. The lock file names the host and process of its holder. The holder also locks it (flock), so that other
/// processes on its host notice when it died, and take the lock over. A lock held on another host is never taken over, because this
/// host cannot know whether the process there lives: `take` waits for it. The `timeout` error names the holder, and the file to
/// remove if that process is gone.
#include <parley/error.hpp>

#include <cstdint>
#include <string>

namespace parley::transports {

class file_lock {
 public:
  static runtime::result<file_lock> take(const std::string& path, std::int64_t patience_ns);
  file_lock(file_lock&& other) noexcept;
  file_lock& operator=(file_lock&&) = delete;
  ~file_lock();

 private:
  file_lock(std::string name, int fd) noexcept : name_(std::move(name)), fd_(fd) {}
  std::string name_;
  int fd_;
};

}  // namespace parley::transports
