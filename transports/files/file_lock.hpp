#pragma once
/// One writer per file, among processes and hosts: a lock file beside it, `results.csv.lock`, gone when nobody holds it.
///
///     auto held = file_lock::take("results.csv", patience_ns);   // waits, bounded
///     if (!held) …                                               // timeout: who holds it; io: it cannot be made here
///
/// The lock file is made whole and then linked to its name, which only one of several can do, on NFS too. It says which
/// host and process holds it. A holder also has it locked (flock), so that a lock whose process died is seen and taken over by
/// others on its host; one of another host is waited for, and never taken over: whether its process lives cannot be
/// known from here. The error then says who holds it since when, and which file to remove if that process is gone.
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
