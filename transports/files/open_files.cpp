#include <parley/transports/files/open_files.hpp>

#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace parley::transports {

using runtime::errc;
using runtime::error;

namespace {

// Counted with UCX 1.22: in a job of two ranks on one host each rank opens 21 files. Half as many more allow for files that are open
// only briefly.
constexpr std::size_t files_of_loop_and_transport = 32;
constexpr std::size_t files_per_interface = 3;   // UCX over TCP: a listening socket and its event descriptors
constexpr std::size_t connections_per_peer = 2;  // UCX over TCP: one in each direction
constexpr std::size_t most_files_looked_at = 65'536;

std::size_t interfaces() noexcept {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return 1;
  std::size_t count = 0;
  for (const ifaddrs* i = all; i != nullptr; i = i->ifa_next)
    count += i->ifa_addr != nullptr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) != 0 ? 1 : 0;
  ::freeifaddrs(all);
  return std::max<std::size_t>(count, 1);
}

std::size_t open_now(std::size_t limit) noexcept {
  std::size_t count = 0;
  if (DIR* const open = ::opendir("/proc/self/fd"); open != nullptr) {
    while (const dirent* const entry = ::readdir(open)) count += entry->d_name[0] != '.' ? 1 : 0;
    ::closedir(open);
    return count - 1;  // without the one that reads the folder
  }
  // Perhaps no descriptor is left to open the folder with, so try each one.
  for (int fd = 0; static_cast<std::size_t>(fd) < std::min(limit, most_files_looked_at); ++fd)
    count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

}  // namespace

std::size_t files_of_rank(runtime::rank_id rank, runtime::rank_id world_size, ucx_reach reach) {
  std::size_t files = files_of_loop_and_transport;
  if (rank == 0) files += world_size;  // it hosts the rendezvous
  if (reach == ucx_reach::several_hosts)
    files += files_per_interface * interfaces() + connections_per_peer * std::size_t{world_size};
  return files;
}

runtime::result<> allow_open_files(std::size_t more) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};  // the limit is unknown
  const std::size_t open = open_now(limit.rlim_cur);
  const rlim_t needed = open + more;
  if (limit.rlim_cur >= needed) return {};
  if (limit.rlim_max >= needed) {
    rlimit raised = limit;
    raised.rlim_cur = needed;
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) return {};
  }
  return error{errc::unavailable,
               "this process may have " + std::to_string(limit.rlim_max) + " files open (ulimit -Hn), and needs " +
                   std::to_string(needed) + ", of which " + std::to_string(open) +
                   " are open already; allow at least " + std::to_string(needed) +
                   " where it is started (ulimit -n, LimitNOFILE= of systemd, --ulimit nofile= of a container)"};
}

}  // namespace parley::transports
