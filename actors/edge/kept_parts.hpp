#pragma once
/// Data that nobody can take yet: its op is not declared here, or its generation not joined.
///
///     kept_parts early;
///     early.keep(stamp, std::move(message), room, kept_parts::poisons::parts_of_its_stream);      // false: there is no room
///     for (runtime::arrival& m : early.take()) hub.on_arrival(std::move(m));
///
/// A poison lets go of what came for its invocation: nobody will want that, and its sender gets its buffers back.
#include <parley/actors/stamp.hpp>
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace parley::actors {

inline std::uint64_t bytes_held_by(const runtime::arrival& m) noexcept {
  return sizeof m + (m.remote() ? 0 : m.length());
}

class kept_parts {
 public:
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// What of an invocation a poison lets go. Parts of a group's have lanes for tags, and its leader speaks for all.
  enum class poisons : std::uint8_t { parts_of_its_stream, parts_of_its_sender, all_parts };
  /// `room`: how many bytes all that is kept here may hold, each part's own record among them.
  bool keep(const stamp& s, runtime::arrival&& message, std::uint64_t room, poisons which);
  std::vector<runtime::arrival> take() noexcept {
    bytes_ = 0;
    return std::exchange(parts_, {});
  }

 private:
  void let_go_of(const stamp& poison, poisons which);
  std::vector<runtime::arrival> parts_;
  std::uint64_t bytes_ = 0;
};

}  // namespace parley::actors
