#pragma once
/// Bytes to send, in which a shifted, cut or foreign piece shows.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace parley::tests {

inline std::vector<std::byte> pattern(std::size_t length, std::uint64_t seed) {
  std::vector<std::byte> bytes(length);
  std::uint64_t x = seed * 0x9e3779b97f4a7c15U + 1;
  std::size_t at = 0;
  for (; at + sizeof x <= length; at += sizeof x) {
    x = x * 6364136223846793005U + 1442695040888963407U;
    std::memcpy(bytes.data() + at, &x, sizeof x);
  }
  for (; at < length; ++at) bytes[at] = static_cast<std::byte>(at * 7 + seed);
  return bytes;
}

}  // namespace parley::tests
