#pragma once
/// Keeps data that cannot be delivered yet, because its op is not declared here, or its generation is not joined.
///
///     undeclared_parts early;
///     early.keep(stamp, std::move(message), room, undeclared_parts::poisons::parts_of_its_stream);      // false: there is no room
///     for (runtime::arrival& m : early.take()) hub.on_arrival(std::move(m));
///
/// A poison drops the kept parts of its invocation: no receive will take them, and their sender gets its buffers back.
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

class undeclared_parts {
 public:
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// The kept parts that a poison drops. In a group a tag holds a lane, so the parts of all tags are dropped. A poison of the leader drops
  /// the parts of all senders.
  enum class poisons : std::uint8_t { parts_of_its_stream, parts_of_its_sender, all_parts };
  /// `room`: how many bytes this object may hold, including the record of each part. Returns false if the message does not fit.
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
