#pragma once
/// A payload that lies in several pieces of host memory. The payload is sent packed, in the call's buffer, unless its config moves each
/// piece directly from its place at the sender to its place at the receiver.
///
///     payload_pieces rows{.all = {row_0, row_1}, .packed = buffer};       // the call's buffer: as long as all pieces together
///     rows.like = payload_pieces::likeness::alike;                        // the receiver has said that it has the same pieces
///     out.send(buffer, {.pieces = &rows});                                // the edge packs the payload if it has to
///
/// The caller keeps this object and its memory until the call has ended, and may use it for one call at a time.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace parley::actors {

struct payload_pieces {
  std::vector<std::span<std::byte>> all{};  ///< in order; none is empty
  std::span<std::byte> packed{};
  /// For a send: whether the receiver has reported that it has the same pieces.
  enum class likeness : std::uint8_t { unknown, alike, unlike } like = likeness::unknown;
  std::uint64_t packed_bytes = 0;  ///< total of all sends so far

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
