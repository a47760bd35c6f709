#include <parley/runtime/wire/frame.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstring>

namespace parley::runtime {

namespace {

constexpr std::size_t tagged_bytes = offsetof(frame_header, tag);

std::uint64_t tag_of(std::span<const std::byte> header, std::span<const std::byte> body,
                     const frame_seal& seal) noexcept {
  return seal.tag == nullptr ? 0 : seal.tag(seal.context, header.first(tagged_bytes), body);
}

}  // namespace

frame_bytes encode_frame(const frame_header& header, std::span<const std::byte> body, const frame_seal& seal) noexcept {
  frame_bytes bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  const std::uint64_t tag = tag_of(bytes, body, seal);
  std::memcpy(bytes.data() + tagged_bytes, &tag, sizeof tag);
  return bytes;
}

result<frame_header> decode_frame(std::span<const std::byte> header, std::span<const std::byte> body,
                                  const frame_expectation& expected, const frame_seal& seal) {
  if (header.size() != sizeof(frame_header)) return errc::malformed;
  frame_header h;
  std::memcpy(&h, header.data(), sizeof h);
  if (h.magic != frame_magic) return errc::malformed;
  if (h.version != protocol_version)
    return error{errc::protocol_version, "rank " + std::to_string(h.source) + " speaks control protocol " +
                                             std::to_string(h.version) + ", this rank speaks " +
                                             std::to_string(protocol_version) +
                                             "; use one version of parley everywhere"};
  // No field except magic and version is trusted before the tag is checked.
  if (tag_of(header, body, seal) != h.tag) return errc::unauthenticated;
  if (h.body_bytes != body.size() || body.size() > max_body_bytes || h.destination != expected.destination ||
      h.source >= expected.world_size)
    return errc::malformed;
  return h;
}

}  // namespace parley::runtime
