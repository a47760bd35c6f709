#include <parley/transports/join/loopback.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace parley::transports {

loopback_socket listen_on_loopback() noexcept {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return {};
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (::bind(fd, address, size) == 0 && ::listen(fd, SOMAXCONN) == 0 && ::getsockname(fd, address, &size) == 0)
    return {fd, ntohs(at.sin_port)};
  const int reason = errno;
  ::close(fd);
  errno = reason;
  return {};
}

}  // namespace parley::transports
