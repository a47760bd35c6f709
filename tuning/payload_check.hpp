#pragma once
/// A 64-bit check of a payload, the same on every machine, to find out whether the received bytes equal the sent bytes. It mixes four lanes
/// of eight bytes at a time, so that it runs at the speed of memory. It detects faults, not attacks.
///
///     s.next_digest = payload_check(data);              // the sender's word
///     payload_check(buffer) == s.next_digest            // and what the receiver has
///
///     running_payload_check all;                        // the same of a payload that lies in pieces, however it is cut
///     for (auto piece : pieces) all.add(piece);
///     all.value()
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace parley::tuning {

class running_payload_check {
 public:
  void add(std::span<const std::byte> data) noexcept {
    total_ += data.size();
    if (held_ != 0) {
      const std::size_t more = std::min(data.size(), block_.size() - held_);
      if (more != 0) std::memcpy(block_.data() + held_, data.data(), more);
      held_ += more;
      data = data.subspan(more);
      if (held_ < block_.size()) return;
      mix_block(lanes_, block_.data());
      held_ = 0;
    }
    std::size_t at = 0;
    std::array<std::uint64_t, 4> lanes = lanes_;  // a local copy, which the data cannot alias
    for (; at + block_.size() <= data.size(); at += block_.size()) mix_block(lanes, data.data() + at);
    lanes_ = lanes;
    held_ = data.size() - at;
    if (held_ != 0) std::memcpy(block_.data(), data.data() + at, held_);
  }
  std::uint64_t value() const noexcept {
    std::array<std::uint64_t, 4> lanes = lanes_;
    for (std::size_t lane = 0; 8 * lane < held_; ++lane)
      mix(lanes[lane], block_.data() + 8 * lane, std::min<std::size_t>(8, held_ - 8 * lane));
    std::uint64_t all = total_;
    for (const std::uint64_t lane : lanes) {
      all = (all ^ lane) * 0xc4ceb9fe1a85ec53U;
      all ^= all >> 32U;
    }
    return all;
  }

 private:
  static constexpr std::uint64_t odd = 0x9e3779b97f4a7c15U;
  static void mix(std::uint64_t& lane, const std::byte* at, std::size_t bytes) noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, at, bytes);
    if constexpr (std::endian::native == std::endian::big) word = __builtin_bswap64(word);
    lane = std::rotl(lane ^ (word * 0xff51afd7ed558ccdU), 29) * odd + 1;
  }
  static void mix_block(std::array<std::uint64_t, 4>& lanes, const std::byte* block) noexcept {
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) mix(lanes[lane], block + 8 * lane, 8);
  }
  std::array<std::uint64_t, 4> lanes_{odd, odd * 3, odd * 5, odd * 7};
  std::array<std::byte, 32> block_{};  // the block that is not full yet
  std::size_t held_ = 0;
  std::uint64_t total_ = 0;
};

inline std::uint64_t payload_check(std::span<const std::byte> data) noexcept {
  running_payload_check all;
  all.add(data);
  return all.value();
}
/// The check of a payload in pieces, the same as if it lay in one.
inline std::uint64_t check_of_pieces(std::span<const std::span<std::byte>> pieces) noexcept {
  running_payload_check all;
  for (const std::span<std::byte> each : pieces) all.add(each);
  return all.value();
}

}  // namespace parley::tuning
