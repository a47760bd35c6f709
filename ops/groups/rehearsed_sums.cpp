#include <parley/ops/groups/rehearsed_sums.hpp>

#include <parley/runtime/narrow_floats.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

namespace parley::ops {
namespace {

template <class T, class Combine>
void combine_each(std::span<std::byte> into, std::span<const std::byte> from, Combine combine) {
  for (std::size_t i = 0; i + sizeof(T) <= into.size(); i += sizeof(T)) {
    T a;
    T b;
    std::memcpy(&a, into.data() + i, sizeof a);
    std::memcpy(&b, from.data() + i, sizeof b);
    a = combine(a, b);
    std::memcpy(into.data() + i, &a, sizeof a);
  }
}

template <class T>
void add(std::span<std::byte> into, std::span<const std::byte> from) {
  combine_each<T>(into, from, [](T a, T b) { return static_cast<T>(a + b); });
}

using way = void (*)(std::span<std::byte>, std::span<const std::byte>);
// A device adds 32-bit integers in a rehearsal; signed integers have the sums of unsigned ones.
constexpr way ways[] = {combine_rehearsed, add<std::uint32_t>, add<float>,         add<double>,      add<runtime::bf16>,
                        add<runtime::f16>, add<std::uint64_t>, add<std::uint16_t>, add<std::uint8_t>};

}  // namespace

// As 16-bit floats its halves lie between 1 and 4 or, for bf16, between 2^-7 and 2^9, with either sign. As wider floats, words are neither
// too small nor too large to be added. The factors are large odd numbers.
std::uint32_t rehearsed_word(std::uint64_t digest, std::size_t place, std::size_t at) noexcept {
  std::uint64_t bits = (digest + (place + 1) * 0x9E3779B97F4A7C15U) ^ ((at + 1) * 0xBF58476D1CE4E5B9U);
  bits = (bits ^ (bits >> 31U)) * 0x94D049BB133111EBU;
  const auto half = [&](unsigned shift) {
    const auto of = static_cast<std::uint32_t>(bits >> shift);
    return (of & 0x8000U) | (0x3C00U + (of & 0x07FFU));
  };
  return half(47) << 16U | half(20);
}

void combine_rehearsed(std::span<std::byte> into, std::span<const std::byte> from) {
  combine_each<std::uint32_t>(into, from, [](std::uint32_t a, std::uint32_t b) {
    const std::uint32_t sum = a + b;
    return (sum ^ (sum >> 15U)) * 0x9E3779B1U;
  });
}

std::optional<std::size_t> wrong_word(std::span<const std::uint32_t> result, std::uint64_t digest, std::size_t places) {
  std::vector<std::uint32_t> expected(result.size());
  std::vector<std::uint32_t> contribution(result.size());
  std::size_t agreeing = 0;  // words from the beginning that agree with some way
  for (const way combine : ways) {
    for (std::size_t place = 0; place < places; ++place) {
      std::vector<std::uint32_t>& into = place == 0 ? expected : contribution;
      for (std::size_t i = 0; i < into.size(); ++i) into[i] = rehearsed_word(digest, place, i);
      if (place != 0) combine(std::as_writable_bytes(std::span(expected)), std::as_bytes(std::span(contribution)));
    }
    const auto differs = std::mismatch(result.begin(), result.end(), expected.begin()).first;
    if (differs == result.end()) return std::nullopt;
    agreeing = std::max(agreeing, static_cast<std::size_t>(differs - result.begin()));
  }
  return agreeing;
}

}  // namespace parley::ops
