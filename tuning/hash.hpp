#pragma once
/// A stable 64-bit hash. The same bytes always give the same number, on every machine and with every compiler, because digests are sent in
/// stamps and stored in files. FNV-1a with a finaliser that spreads the last bytes; not safe against adversaries.
///
///     std::uint64_t d = stable_hash{}.text("direct").number(1).digest();   // never 0, which means "none"
///
/// Texts are hashed with their length, so that ("ab", "c") and ("a", "bc") differ.
#include <cstdint>
#include <string_view>

namespace parley::tuning {

inline constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15U;
/// The step of splitmix64: a number that looks drawn, for each `x`.
constexpr std::uint64_t mixed(std::uint64_t x) noexcept {
  x += golden_ratio;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

class stable_hash {
 public:
  constexpr stable_hash& number(std::uint64_t value) noexcept {
    for (int shift = 0; shift < 64; shift += 8) byte(static_cast<std::uint8_t>(value >> shift));
    return *this;
  }
  constexpr stable_hash& text(std::string_view value) noexcept {
    number(value.size());
    for (char c : value) byte(static_cast<std::uint8_t>(c));
    return *this;
  }
  constexpr std::uint64_t digest() const noexcept {
    std::uint64_t h = state_;
    h = (h ^ (h >> 33U)) * 0xff51afd7ed558ccdULL;
    h = (h ^ (h >> 33U)) * 0xc4ceb9fe1a85ec53ULL;
    h ^= h >> 33U;
    return h == 0 ? 1 : h;
  }

 private:
  constexpr void byte(std::uint8_t value) noexcept { state_ = (state_ ^ value) * 0x100000001b3ULL; }
  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

}  // namespace parley::tuning
