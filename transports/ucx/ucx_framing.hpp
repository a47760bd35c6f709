#pragma once
/// How ucx_link frames a message as an active message of UCX. Internal to transports/.
///
/// A message that fits into an `arrival` is `plain`: its header and its payload. A larger message also names the process
/// that sent it, after its header, because UCX does not say which process a rendezvous comes from. The receiver needs the
/// process when a peer dies, or has died and come back. Each kind has its own AM ids, so that small messages pay
/// nothing for this.
#include <parley/runtime/wire/link.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace parley::transports {

enum class ucx_framing : unsigned { plain, with_origin };

/// The process that sent a message.
struct ucx_origin {
  static constexpr runtime::rank_id nobody = ~runtime::rank_id{0};
  runtime::rank_id rank = nobody;
  std::uint32_t restarts = 0;  // how many processes held that rank's place before it
};

constexpr std::size_t max_framed_header_bytes = runtime::link::max_header_bytes + sizeof(ucx_origin);

constexpr unsigned am_id(runtime::link::channel on, ucx_framing as) {
  return static_cast<unsigned>(on) * 2U + static_cast<unsigned>(as);
}

/// Appends the origin to the first `header_bytes` bytes of `header`; returns the new length.
inline std::size_t append_origin(std::span<std::byte, max_framed_header_bytes> header, std::size_t header_bytes,
                                 const ucx_origin& from) {
  std::memcpy(header.data() + header_bytes, &from, sizeof from);
  return header_bytes + sizeof from;
}

/// Removes the origin from the end of a header and returns it; nothing if the header is too short to have one.
inline std::optional<ucx_origin> take_origin(std::span<const std::byte>& header) {
  ucx_origin from;
  if (header.size() < sizeof from) return std::nullopt;
  std::memcpy(&from, header.last(sizeof from).data(), sizeof from);
  header = header.first(header.size() - sizeof from);
  return from;
}

}  // namespace parley::transports
