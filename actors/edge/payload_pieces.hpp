#pragma once
/// A payload that lies in several pieces of host memory, beside the buffer of its call, which it goes through packed unless its config
/// moves each piece from where it lies to where it belongs.
///
///     payload_pieces rows{.all = {row_0, row_1}, .packed = buffer};       // the buffer of the call: as long as all of them
///     rows.like = payload_pieces::likeness::alike;                        // the other end has said that it cuts the same ones
///     out.send(buffer, {.pieces = &rows});                                // its edge packs it, where that has to be
///
/// Its owner keeps it, and the memory, until the call has ended. It begins with every call: there is one under way at a time.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace parley::actors {

struct payload_pieces {
  std::vector<std::span<std::byte>> all{};  ///< in order; none is empty
  std::span<std::byte> packed{};
  /// Of what is sent: whether the receiver has the same pieces, as it says itself.
  enum class likeness : std::uint8_t { unknown, alike, unlike } like = likeness::unknown;
  std::uint64_t packed_bytes = 0;  ///< of all sends so far

  void gather() noexcept {
    std::byte* to = packed.data();
    for (const std::span<std::byte> each : all) {
      std::memcpy(to, each.data(), each.size());
      to += each.size();
    }
  }
  void scatter() noexcept {
    const std::byte* from = packed.data();
    for (const std::span<std::byte> each : all) {
      std::memcpy(each.data(), from, each.size());
      from += each.size();
    }
  }
};

}  // namespace parley::actors
