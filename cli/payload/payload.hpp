#pragma once
/// The computation of the ranks of `parley tune`: an exact product over the payload, so that the last stage's output can be
/// compared bit for bit with the result of one process.
///
///     make_payload(microbatch, activation);             // the first stage
///     multiply(activation, factor_of_stage(2));         // each stage: 16-bit lanes times an odd number
///     digest_of(activation) == reference_digest(microbatch, bytes, /*stages=*/4);
///
/// Each is one pass over memory.
#include <cstddef>
#include <cstdint>
#include <span>

namespace parley::cli {

/// Lane i of a payload holds slope * i + offset, which differs from one payload to the next.
struct payload_ramp {
  std::uint16_t slope = 0;
  std::uint16_t offset = 0;
};
payload_ramp ramp_of(std::uint64_t number) noexcept;
/// The lanes after each was multiplied by `factor`, and the lanes of the sum of two payloads.
payload_ramp operator*(payload_ramp r, std::uint16_t factor) noexcept;
payload_ramp operator+(payload_ramp a, payload_ramp b) noexcept;

void make_payload(std::uint64_t number, std::span<std::byte> into);
void multiply(std::span<std::byte> payload, std::uint16_t factor);
std::uint16_t factor_of_stage(std::size_t stage) noexcept;
/// A hash of all bytes and their order. Every single change changes the hash.
std::uint64_t digest_of(std::span<const std::byte> payload);
/// The result of `digest_of` for a payload with the lanes of that ramp.
std::uint64_t reference_digest(payload_ramp r, std::uint64_t bytes);
/// The digest of payload `number` at the end of a pipeline of so many stages; 0 stages for a payload that is only moved.
std::uint64_t reference_digest(std::uint64_t number, std::uint64_t bytes, std::size_t stages);

}  // namespace parley::cli
