#pragma once
/// Whether the bytes that came are those that were sent: 64 bits of a payload, the same on every machine. Four lanes of eight
/// bytes at a time, so that it runs at the speed of memory; it finds faults, not adversaries.
///
///     s.next_digest = payload_check(data);              // the sender's word
///     payload_check(buffer) == s.next_digest            // and what the receiver has
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace parley::tuning {

inline std::uint64_t payload_check(std::span<const std::byte> data) noexcept {
  constexpr std::uint64_t odd = 0x9e3779b97f4a7c15U;
  std::array<std::uint64_t, 4> lanes{odd, odd * 3, odd * 5, odd * 7};
  const auto mix = [](std::uint64_t& lane, const std::byte* at, std::size_t bytes) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, bytes);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    lane = std::rotl(lane ^ (word * 0xff51afd7ed558ccdU), 29) * odd + 1;
  };
  std::size_t at = 0;
  for (; at + 32 <= data.size(); at += 32) {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) mix(lanes[lane], data.data() + at + 8 * lane, 8);
  }
  for (std::size_t lane = 0; at < data.size(); at += 8, ++lane)
    mix(lanes[lane], data.data() + at, data.size() - at < 8 ? data.size() - at : 8);
  std::uint64_t all = data.size();
  for (const std::uint64_t lane : lanes) {
    all = (all ^ lane) * 0xc4ceb9fe1a85ec53U;
    all ^= all >> 32U;
  }
  return all;
}

}  // namespace parley::tuning
