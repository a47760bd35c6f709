#pragma once
/// A part of a group's invocation that no implementation has asked for yet. Until then it takes up a place, and memory if its payload
/// arrived with the message.
///
///     if (!kept.has_room_for(message)) return refuse();
///     waiting.emplace(key, unclaimed_part(std::move(message), kept));
///     runtime::arrival here = std::move(waiting.extract(key).mapped()).take();
///
/// The room is free again when the part is taken or dropped. The `unclaimed_room` must outlive all its parts.
#include <parley/runtime/wire/link.hpp>

#include <cstdint>
#include <utility>

namespace parley::actors {

/// The limits for all waiting parts of one group: far above the amount that depth and window allow the other members to send.
class unclaimed_room {
 public:
  static constexpr std::uint64_t most_parts = 65'536;
  static constexpr std::uint64_t most_bytes = std::uint64_t{256} << 20U;

  bool has_room_for(const runtime::arrival& message) const noexcept {
    return parts_ < most_parts && message.payload().size() <= most_bytes - bytes_;
  }
  std::uint64_t parts() const noexcept { return parts_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  friend class unclaimed_part;
  std::uint64_t parts_ = 0;
  std::uint64_t bytes_ = 0;
};

class unclaimed_part {
 public:
  unclaimed_part(runtime::arrival&& message, unclaimed_room& room) noexcept
      : message_(std::move(message)), room_(&room), bytes_(message_.payload().size()) {
    ++room.parts_;
    room.bytes_ += bytes_;
  }
  unclaimed_part(unclaimed_part&& other) noexcept
      : message_(std::move(other.message_)), room_(std::exchange(other.room_, nullptr)), bytes_(other.bytes_) {}
  unclaimed_part& operator=(unclaimed_part&& other) noexcept {
    std::swap(message_, other.message_);
    std::swap(room_, other.room_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  unclaimed_part(const unclaimed_part&) = delete;
  unclaimed_part& operator=(const unclaimed_part&) = delete;
  ~unclaimed_part() {
    if (room_ == nullptr) return;
    --room_->parts_;
    room_->bytes_ -= bytes_;
  }

  const runtime::arrival& message() const noexcept { return message_; }
  runtime::arrival take() && noexcept { return std::move(message_); }

 private:
  runtime::arrival message_;
  unclaimed_room* room_;
  std::uint64_t bytes_;
};

}  // namespace parley::actors
