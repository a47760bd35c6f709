// Detects the step at which a joining rank is (ranks.hpp) by the rendezvous frames that it passes to and gets from the kernel.
#include <parley/tests/fire/ranks.hpp>

#include <parley/transports/join/rendezvous_wire.hpp>

#include <dlfcn.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace fire {
namespace {

namespace wire = parley::transports::wire;

/// The type of the frame that begins at `data`, if one does. The first bytes of a frame are the first bytes of one call of `send` or
/// `recv`. The rest of a frame may have calls of its own, and may look like the head of a frame except for its length.
std::optional<wire::type> frame_of(const void* data, std::size_t size) {
  constexpr std::size_t longest = 1 << 16;  // enough for a roster of a few ranks
  if (size < wire::head_bytes) return std::nullopt;
  wire::scanner head({static_cast<const std::byte*>(data), wire::head_bytes});
  if (head.number<std::uint32_t>() > longest) return std::nullopt;
  return static_cast<wire::type>(head.number<std::uint8_t>());
}

void is_about_to_send(wire::type frame) {
  static int rosters = 0;
  if (frame == wire::type::roster && ++rosters == 2) come_to("admits");
}
void has_sent(wire::type frame) {
  if (frame == wire::type::hello || frame == wire::type::challenge) come_to("greeted");
  if (frame == wire::type::member) come_to("presented");
}
void has_got(wire::type frame) {
  if (frame == wire::type::roster || frame == wire::type::rejoined) come_to("admitted");
}

}  // namespace
}  // namespace fire

// This program's `send` and `recv` take precedence; each calls the one of libc.
extern "C" ssize_t send(int socket, const void* data, std::size_t size, int flags) {
  static const auto really = reinterpret_cast<decltype(&send)>(::dlsym(RTLD_NEXT, "send"));
  const auto frame = fire::frame_of(data, size);
  if (frame) fire::is_about_to_send(*frame);
  const ssize_t sent = really(socket, data, size, flags);
  if (frame && sent > 0) fire::has_sent(*frame);
  return sent;
}
extern "C" ssize_t recv(int socket, void* into, std::size_t size, int flags) {
  static const auto really = reinterpret_cast<decltype(&recv)>(::dlsym(RTLD_NEXT, "recv"));
  const ssize_t got = really(socket, into, size, flags);
  const bool looks_only = (flags & (MSG_PEEK | MSG_TRUNC)) != 0;  // the caller may only ask for a length
  if (got > 0 && !looks_only) {
    if (const auto frame = fire::frame_of(into, static_cast<std::size_t>(got))) fire::has_got(*frame);
  }
  return got;
}
