#pragma once
/// The 64-byte header of every control frame (docs/protocol.md, Messages) and its authentication.
///
///     frame_header h{…};
///     auto bytes = encode_frame(h, body, seal);                  // 64 bytes, the tag over header and body in its last 8
///     result<frame_header> h = decode_frame(bytes, body, expected, seal);
///
/// `decode_frame` returns an error for a frame that has another destination, a wrong length or a wrong tag. The router checks the session.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace parley::runtime {

inline constexpr std::uint32_t frame_magic = 0x594c5250;  // "PRLY"
inline constexpr std::uint16_t protocol_version = 1;

struct frame_header {
  std::uint32_t magic = frame_magic;
  std::uint16_t version = protocol_version;
  std::uint16_t type = 0;
  std::uint32_t body_bytes = 0;
  rank_id source = 0;
  rank_id destination = 0;
  std::uint32_t accepted = 0;  ///< the sender of this frame has accepted the receiver's frames up to this number
  std::uint64_t session = 0;   ///< the job, the process that sends, and the process that it sends to: `session_of`
  std::uint64_t actor = 0;     ///< the actor at the destination: an op and a part in it
  std::uint64_t generation = 0;
  std::uint64_t sequence = 0;
  std::uint64_t tag = 0;
};
static_assert(sizeof(frame_header) == 64);

using frame_bytes = std::array<std::byte, sizeof(frame_header)>;

/// A job and two incarnations as one number. Once another process has taken the place of the sender or of the receiver, the frame is
/// foreign. An unknown incarnation is 0.
constexpr std::uint64_t session_of(std::uint64_t job, std::uint64_t speaker, std::uint64_t listener) noexcept {
  return job ^ speaker ^ std::rotl(listener, 32);
}

/// Computes the tag of a frame. The transport provides it, because the transport owns the cryptography. Null: frames carry no tag.
struct frame_seal {
  using function = std::uint64_t (*)(void* context, std::span<const std::byte> header,
                                     std::span<const std::byte> body) noexcept;
  function tag = nullptr;
  void* context = nullptr;
};

frame_bytes encode_frame(const frame_header& header, std::span<const std::byte> body, const frame_seal& seal) noexcept;

/// The fields that a frame must have for this rank to accept it.
struct frame_expectation {
  rank_id destination = 0;
  rank_id world_size = 0;
};
result<frame_header> decode_frame(std::span<const std::byte> header, std::span<const std::byte> body,
                                  const frame_expectation& expected, const frame_seal& seal);

}  // namespace parley::runtime
