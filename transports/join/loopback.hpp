#pragma once
/// A socket that listens on 127.0.0.1, at a port that the kernel chose, for the rendezvous of a job on one host.
///
///     const loopback_socket here = listen_on_loopback();
///     if (here.fd < 0) …                                // `errno` says why
///     options.port = here.port;
#include <cstdint>

namespace parley::transports {

struct loopback_socket {
  int fd = -1;  ///< close-on-exec; the caller closes it
  std::uint16_t port = 0;
};

loopback_socket listen_on_loopback() noexcept;

}  // namespace parley::transports
