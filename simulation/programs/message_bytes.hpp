#pragma once
/// What the messages of simulated programs hold: bytes that say whose they are and which one it is, so that their receiver sees
/// whether all of it came.
///
///     fill(bytes, stream, number);
///     recognise(bytes, stream, most) == number
#include <parley/runtime/random.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace parley::simulation {

/// Message `number` of a stream, by words.
struct message_words {
  message_words(std::uint64_t stream, std::uint64_t number) noexcept
      : name(number << 16U | (stream & 0xffffU)), key(runtime::mix(runtime::mix(stream) ^ number)) {}
  std::uint64_t operator[](std::size_t i) const noexcept {
    const std::uint64_t word = (key + i) * 0x9e3779b97f4a7c15U;
    return i == 0 ? name : word ^ word >> 32U;
  }
  std::uint64_t name;
  std::uint64_t key;
};

/// The bytes of the n-th message from `from` of an op.
void fill(std::span<std::byte> bytes, std::uint64_t stream, std::uint64_t number) noexcept;
/// Which message that is, or -1 where it is none of that stream, whole.
std::int64_t recognise(std::span<const std::byte> bytes, std::uint64_t stream, std::uint64_t most) noexcept;

}  // namespace parley::simulation
