#include <parley/cli/payload/payload.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace parley::cli {

namespace {

constexpr std::size_t lane_bytes = sizeof(std::uint16_t);
constexpr std::size_t block_bytes = 16'384;
constexpr std::uint64_t prime = 0x9e3779b97f4a7c15U;

void make_from(payload_ramp r, std::size_t first_lane, std::span<std::byte> into) {
  const std::size_t lanes = into.size() / lane_bytes;
  auto value = static_cast<std::uint16_t>(r.slope * first_lane + r.offset);
  for (std::size_t i = 0; i < lanes; ++i) {
    std::memcpy(into.data() + i * lane_bytes, &value, lane_bytes);
    value = static_cast<std::uint16_t>(value + r.slope);
  }
  if (into.size() % lane_bytes != 0) into.back() = static_cast<std::byte>(value);
}

class hasher {
 public:
  // Every piece but the last must be a multiple of 32 bytes long.
  void add(std::span<const std::byte> piece) noexcept {
    std::size_t at = 0;
    for (; at + 32 <= piece.size(); at += 32) {
      std::array<std::uint64_t, 4> words{};
      std::memcpy(words.data(), piece.data() + at, 32);
      for (std::size_t k = 0; k < 4; ++k) lanes_[k] = std::rotl((lanes_[k] ^ words[k]) * prime, 29);
    }
    for (; at < piece.size(); ++at) mix(std::to_integer<std::uint64_t>(piece[at]));
    bytes_ += piece.size();
  }
  std::uint64_t finish() noexcept {
    mix(bytes_);
    for (std::size_t k = 1; k < 4; ++k) mix(lanes_[k]);
    return lanes_[0] ^ (lanes_[0] >> 32U);
  }

 private:
  void mix(std::uint64_t word) noexcept { lanes_[0] = std::rotl((lanes_[0] ^ word) * prime, 29); }
  std::array<std::uint64_t, 4> lanes_{1, 2, 3, 4};
  std::uint64_t bytes_ = 0;
};

}  // namespace

payload_ramp ramp_of(std::uint64_t number) noexcept {
  const std::uint64_t mixed = (number + 1) * prime;
  return {static_cast<std::uint16_t>((mixed >> 40U) | 1U), static_cast<std::uint16_t>(mixed >> 20U)};
}

payload_ramp operator*(payload_ramp r, std::uint16_t factor) noexcept {
  return {static_cast<std::uint16_t>(std::uint32_t{r.slope} * factor),
          static_cast<std::uint16_t>(std::uint32_t{r.offset} * factor)};
}
payload_ramp operator+(payload_ramp a, payload_ramp b) noexcept {
  return {static_cast<std::uint16_t>(a.slope + b.slope), static_cast<std::uint16_t>(a.offset + b.offset)};
}

void make_payload(std::uint64_t number, std::span<std::byte> into) { make_from(ramp_of(number), 0, into); }

void multiply(std::span<std::byte> payload, std::uint16_t factor) {
  const std::size_t lanes = payload.size() / lane_bytes;
  for (std::size_t i = 0; i < lanes; ++i) {
    std::uint16_t value = 0;
    std::memcpy(&value, payload.data() + i * lane_bytes, lane_bytes);
    value = static_cast<std::uint16_t>(static_cast<unsigned>(value) * factor);
    std::memcpy(payload.data() + i * lane_bytes, &value, lane_bytes);
  }
  if (payload.size() % lane_bytes != 0)
    payload.back() = static_cast<std::byte>(std::to_integer<unsigned>(payload.back()) * factor);
}

std::uint16_t factor_of_stage(std::size_t stage) noexcept { return static_cast<std::uint16_t>(2 * stage * 1'000 + 3); }

std::uint64_t digest_of(std::span<const std::byte> payload) {
  hasher h;
  h.add(payload);
  return h.finish();
}

std::uint64_t reference_digest(payload_ramp r, std::uint64_t bytes) {
  // In blocks that stay in the cache; the result is the same as that of whole passes.
  std::array<std::byte, block_bytes> block{};
  hasher h;
  for (std::uint64_t at = 0; at < bytes; at += block_bytes) {
    const std::span piece = std::span(block).first(std::min<std::uint64_t>(block_bytes, bytes - at));
    make_from(r, at / lane_bytes, piece);
    h.add(piece);
  }
  return h.finish();
}

std::uint64_t reference_digest(std::uint64_t number, std::uint64_t bytes, std::size_t stages) {
  payload_ramp r = ramp_of(number);
  for (std::size_t s = 0; s < stages; ++s) r = r * factor_of_stage(s);
  return reference_digest(r, bytes);
}

}  // namespace parley::cli
