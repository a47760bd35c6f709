#pragma once
/// The runtime's interface to a disk: it reads and replaces whole files. The simulator's disk fails on purpose.
///
///     disk.update("results.csv", [&](const result<std::string>& there) -> std::optional<std::string> {
///       return there ? merged(*there, mine) : mine;                 // several jobs do this at once, and none is lost
///     });
///
/// A call succeeds completely, or leaves the file as it was. Paths are the caller's own, never a peer's.
#include <parley/error.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace parley::runtime {

class storage {
 public:
  virtual ~storage() = default;
  /// The whole file, at most 64 MiB. `unavailable` if there is no file; other errors are `io` with path and reason.
  virtual result<std::string> read(const std::string& path) = 0;
  /// Replaces the file atomically: a reader sees the old text or the new one, even after a crash.
  virtual result<> replace(const std::string& path, std::string_view text) = 0;
  /// Changes a file that other processes and hosts also change, under a lock that all of them respect. `change` receives the text, or the
  /// error of the read (`unavailable`: there is no file), and returns the new text, or nothing to leave the file as it is. `change` may be
  /// called again if a process without the lock changed the file between the read and the write. `timeout`: another process held the lock
  /// for too long; the error's text names it. After `timeout` or `io` the file is unchanged.
  using edit = std::function<std::optional<std::string>(const result<std::string>& there)>;
  virtual result<> update(const std::string& path, const edit& change) = 0;
  /// Appends to the file, and makes it if it is missing.
  virtual result<> append(const std::string& path, std::string_view text) = 0;
  /// True if a call may block its thread for long, as a real disk may. Writes that can wait are then made by another thread, and
  /// several threads may call at once.
  virtual bool may_block() const noexcept { return false; }
  /// Checks that a plain file, and files with names like it, can be kept at `path`: `io` when a device, a pipe or a folder is there.
  virtual result<> place_for_files(const std::string& path) {
    static_cast<void>(path);
    return {};
  }
};

}  // namespace parley::runtime
