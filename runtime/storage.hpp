#pragma once
/// What the runtime needs from a disk: whole files, read and replaced. The simulator has one that fails on purpose.
///
/// Each call either does all of what it says or leaves what was there. Paths are the caller's own, never a peer's.
#include <parley/runtime/error.hpp>

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
  /// Adds to the end of the file, which is made when missing.
  virtual result<> append(const std::string& path, std::string_view text) = 0;
};

}  // namespace parley::runtime
