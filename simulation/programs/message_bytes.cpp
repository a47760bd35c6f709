#include <parley/simulation/programs/message_bytes.hpp>

#include <cstring>

namespace parley::simulation {

// A message begins with its number and stream; all other bytes are computed from these two.
void fill(std::span<std::byte> bytes, std::uint64_t stream, std::uint64_t number) noexcept {
  const message_words words(stream, number);
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    const std::uint64_t word = words[i / 8];
    std::memcpy(bytes.data() + i, &word, 8);
  }
  const std::uint64_t last = words[i / 8];
  if (i < bytes.size()) std::memcpy(bytes.data() + i, &last, bytes.size() - i);
}

std::int64_t recognise(std::span<const std::byte> bytes, std::uint64_t stream, std::uint64_t most) noexcept {
  if (bytes.size() < 8) return -1;
  std::uint64_t word = 0;
  std::memcpy(&word, bytes.data(), sizeof word);
  const std::uint64_t number = word >> 16U;
  if (number >= most || (word & 0xffffU) != (stream & 0xffffU)) return -1;
  const message_words words(stream, number);
  std::size_t i = 8;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::memcpy(&word, bytes.data() + i, 8);
    if (word != words[i / 8]) return -1;
  }
  const std::uint64_t last = words[i / 8];
  if (std::memcmp(bytes.data() + i, &last, bytes.size() - i) != 0) return -1;
  return static_cast<std::int64_t>(number);
}

}  // namespace parley::simulation
