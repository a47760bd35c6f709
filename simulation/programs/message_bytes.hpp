#pragma once
/// The contents of messages of simulated programs. Their bytes identify the stream and the number, so that a receiver can check that it got
/// one whole message.
///
///     fill(bytes, stream, number);
///     recognise(bytes, stream, most) == number
#include <parley/runtime/random.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace parley::simulation {

/// The words of message `number` of a stream.
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

/// Writes message `number` of a stream.
void fill(std::span<std::byte> bytes, std::uint64_t stream, std::uint64_t number) noexcept;
/// The number of the message, or -1 if the bytes are not one whole message of that stream with a number below `most`.
std::int64_t recognise(std::span<const std::byte> bytes, std::uint64_t stream, std::uint64_t most) noexcept;

}  // namespace parley::simulation
