#pragma once
/// What the runtime needs from a disk: whole files, read and replaced. The simulator has one that fails on purpose.
///
///     disk.update("results.csv", [&](const result<std::string>& there) -> std::optional<std::string> {
///       return there ? merged(*there, mine) : mine;                 // several jobs do this at once, and none is lost
///     });
///
/// Each call either does all of what it says or leaves what was there. Paths are the caller's own, never a peer's.
#include <parley/error.hpp>

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace parley::runtime {

class storage {
 public:
  virtual ~storage() = default;
  /// The whole file, at most 64 MiB; `unavailable` when there is none, `io` with path and reason otherwise.
  virtual result<std::string> read(const std::string& path) = 0;
  /// Replaces the file atomically: a reader, also after a crash, sees the old text or the new one.
  virtual result<> replace(const std::string& path, std::string_view text) = 0;
  /// Changes a file that other processes and hosts change too, under a lock that all of them respect. `change` is given what is
  /// there, or why that cannot be read (`unavailable`: nothing is), and answers the new text, or nothing to leave the
  /// file as it is. It may be called again, when somebody without the lock changed the file meanwhile. `timeout`: the lock
  /// was not to be had in time; the text says who has it. Then, as after `io`, the file is what it was.
  using edit = std::function<std::optional<std::string>(const result<std::string>& there)>;
  virtual result<> update(const std::string& path, const edit& change) = 0;
  /// Adds to the end of the file, which is made when missing.
  virtual result<> append(const std::string& path, std::string_view text) = 0;
  /// Whether a call may hold up its thread for long, as those to a real disk may. What can wait is then written by another thread, and
  /// calls may come from several at once.
  virtual bool may_block() const noexcept { return false; }
  /// Whether a plain file may be kept at `path`, and files with names like it: `io` when a device, a pipe or a folder is there.
  virtual result<> place_for_files(const std::string& path) {
    static_cast<void>(path);
    return {};
  }
};

}  // namespace parley::runtime
