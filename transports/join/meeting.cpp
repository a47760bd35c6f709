#include <parley/transports/join/meeting.hpp>

#include <parley/number_text.hpp>
#include <parley/transports/join/rendezvous.hpp>
#include <parley/transports/launch/pmi.hpp>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <thread>

namespace parley::transports {

using runtime::errc;
using runtime::error;
using runtime::result;

namespace {

constexpr std::size_t max_file_bytes = 512;
// The least time for joining, even if rank 0 was found at the last moment: enough for one reply.
constexpr runtime::time_ns shortest_rest_ns = 10'000'000;

error cannot_meet(const std::string& what, const std::string& path) {
  const int reason = errno;
  return {errc::io,
          what + " " + path + ": " + std::strerror(reason) +
              "; to join without it, set PARLEY_RENDEZVOUS to 127.0.0.1:port and PARLEY_KEY_FILE to a 0600 file "
              "with 32 random bytes, the same on every rank"};
}

/// A descriptor that closes itself.
class descriptor {
 public:
  explicit descriptor(int fd) noexcept : fd_(fd) {}
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }
  int release() noexcept { return std::exchange(fd_, -1); }
  bool open() const noexcept { return fd_ >= 0; }

 private:
  int fd_;
};

bool is_private(const struct stat& found) { return found.st_uid == ::geteuid() && (found.st_mode & 077U) == 0; }

bool is_private_folder(const std::string& path) {
  struct stat found{};
  return path.starts_with('/') && ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) && is_private(found) &&
         ::access(path.c_str(), W_OK | X_OK) == 0;
}

enum class writer : std::uint8_t { lives, is_gone };

/// The writer holds an exclusive lock on its file as long as it lives. The kernel releases the lock when the writer ends, even if it is
/// killed.
writer writer_of(int fd) {
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0) return writer::lives;
  ::flock(fd, LOCK_UN);
  return writer::is_gone;
}

/// The file's text if its writer is alive; nothing if there is no file, or its writer has ended.
result<std::optional<std::string>> read_living(const std::string& path) {
  const descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.open()) {
    if (errno == ENOENT) return std::optional<std::string>();
    return cannot_meet("cannot read the meeting file", path);
  }
  struct stat found{};
  if (::fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode) || !is_private(found))
    return error(errc::unauthenticated, path + " is not a file of mode 0600 that belongs to this user; remove it");
  if (writer_of(file.get()) == writer::is_gone) return std::optional<std::string>();
  std::array<char, max_file_bytes> text{};
  const ssize_t got = ::read(file.get(), text.data(), text.size());
  if (got < 0) return cannot_meet("cannot read the meeting file", path);
  return std::optional<std::string>(std::in_place, text.data(), static_cast<std::size_t>(got));
}

/// Rank 0's message to the others, as one word: `host,port,key`. The key is empty if rank 0 did not make one.
struct notice {
  std::string host;
  std::uint16_t port = 0;
  job_key key;

  std::string text() const { return host + "," + std::to_string(port) + "," + key.hexadecimal(); }

  static result<notice> read(const std::string& text, const std::string& source) {
    notice told;
    const auto first = text.find(',');
    const auto second = first == std::string::npos ? first : text.find(',', first + 1);
    bool good = second != std::string::npos && first > 0;
    if (good) {
      told.host = text.substr(0, first);
      const auto port = std::string_view(text).substr(first + 1, second - first - 1);
      told.port = runtime::read_number<std::uint16_t>(port, {1, 65'535}).value_or(0);
      good = told.port != 0;
    }
    if (good && text.size() > second + 1) {
      auto key = job_key::from_hexadecimal(std::string_view(text).substr(second + 1));
      good = bool(key);
      if (good) told.key = std::move(key).value();
    }
    if (!good)
      return error(errc::malformed,
                   source + " is not in the format that rank 0 writes; all ranks must run the same build of parley");
    return told;
  }
};

/// The local address from which this host would send to another network; empty if there is no route. Nothing is sent.
std::string routed_address() {
  descriptor socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(9);
  ::inet_pton(AF_INET, "192.0.2.1", &at.sin_addr);  // an address that no host has (RFC 5737)
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  socklen_t size = sizeof at;
  if (!socket.open() || ::connect(socket.get(), address, size) != 0 || ::getsockname(socket.get(), address, &size) != 0)
    return {};
  char text[INET_ADDRSTRLEN] = {};
  return ::inet_ntop(AF_INET, &at.sin_addr, text, sizeof text) != nullptr ? text : "";
}

/// An address of this host that others can reach; loopback if there is none. The routed address is tried first, because the interfaces
/// include bridges of container engines.
std::string own_address() {
  if (std::string routed = routed_address(); !routed.empty()) return routed;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "127.0.0.1";
  std::string found[2];
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (at->ifa_addr->sa_family == AF_INET && found[0].empty()) {
      const auto* const v4 = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      found[0] = ::inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text) != nullptr ? text : "";
    } else if (at->ifa_addr->sa_family == AF_INET6 && found[1].empty()) {
      const auto* const v6 = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) continue;  // unusable without the interface's name
      found[1] = ::inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text) != nullptr ? text : "";
    }
  }
  ::freeifaddrs(first);
  return !found[0].empty() ? found[0] : !found[1].empty() ? found[1] : "127.0.0.1";
}

/// Listens at a free port of `host`, a numeric address, and stores host, port and socket in `place`.
result<> listen_at(const std::string& host, placement& place) {
  sockaddr_storage at{};
  socklen_t size = 0;
  auto* const v4 = reinterpret_cast<sockaddr_in*>(&at);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(&at);
  if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    size = sizeof *v4;
  } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    size = sizeof *v6;
  }
  descriptor socket(::socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  if (!socket.open() || ::bind(socket.get(), address, size) != 0 || ::listen(socket.get(), SOMAXCONN) != 0 ||
      ::getsockname(socket.get(), address, &size) != 0)
    return cannot_meet("rank 0 cannot listen for the other ranks at", host);
  place.rendezvous_host = host;
  place.rendezvous_port = ntohs(at.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
  place.listening_fd = socket.release();
  return {};
}

result<meeting> meet_by_file(meeting found, runtime::time_ns limit_ns) {
  const auto folder = private_folder(found.place.private_folders);
  if (!folder) return folder.reason();
  char name[32];
  std::snprintf(name, sizeof name, "/parley-%016llx", static_cast<unsigned long long>(found.place.job));
  const std::string path = *folder + name;
  const bool fresh = found.key.empty();
  if (found.place.rank == 0) {
    if (const auto listens = listen_at("127.0.0.1", found.place); !listens) return listens.reason();
    if (fresh) found.key = job_key::generate();
    const notice told{found.place.rendezvous_host, found.place.rendezvous_port,
                      fresh ? found.key.duplicate() : job_key()};
    auto file = meeting_file::publish(path, told.text());
    if (!file) {
      ::close(found.place.listening_fd);
      return file.reason();
    }
    found.published = std::move(file).value();
    return found;
  }
  const auto text = meeting_file::await(path, limit_ns);
  if (!text) return text.reason();
  auto told = notice::read(*text, path);
  if (!told) return told.reason();
  found.place.rendezvous_host = told->host;
  found.place.rendezvous_port = told->port;
  if (fresh) found.key = std::move(told->key);
  return found;
}

result<meeting> meet_by_pmi(meeting found, runtime::time_ns limit_ns) {
  if (::dlsym(RTLD_DEFAULT, "MPI_Init") != nullptr)
    return error(
        errc::unavailable,
        "this program is linked with MPI, and MPI's library uses PMI_FD itself; give the job MPI's communicator "
        "(job_options::bootstrap), or set PARLEY_RENDEZVOUS to host:port of rank 0 and PARLEY_KEY_FILE to a 0600 file "
        "with 32 random bytes on every rank");
  std::string line = "-";
  const bool fresh = found.key.empty();
  if (found.place.rank == 0) {
    const bool one_host = found.place.local_size == found.place.world_size;
    if (const auto listens = listen_at(one_host ? "127.0.0.1" : own_address(), found.place); !listens)
      return listens.reason();
    if (fresh) found.key = job_key::generate();
    const notice told{found.place.rendezvous_host, found.place.rendezvous_port,
                      fresh ? found.key.duplicate() : job_key()};
    line = told.text();
  }
  const auto text = pmi_broadcast(found.place.pmi_fd, found.place.rank, line, limit_ns);
  if (!text) {
    if (found.place.rank == 0) ::close(found.place.listening_fd);
    return text.reason();
  }
  if (found.place.rank == 0) return found;
  auto told = notice::read(*text, "the notice from PMI");
  if (!told) return told.reason();
  found.place.rendezvous_host = told->host;
  found.place.rendezvous_port = told->port;
  if (fresh) found.key = std::move(told->key);
  return found;
}

result<meeting> meet(meeting found, runtime::time_ns limit_ns) {
  switch (found.place.meeting) {
    case meeting_kind::file: return meet_by_file(std::move(found), limit_ns);
    case meeting_kind::pmi: return meet_by_pmi(std::move(found), limit_ns);
    default: return found;
  }
}

}  // namespace

result<std::string> private_folder(const std::vector<std::string>& candidates) {
  for (const std::string& path : candidates) {
    if (is_private_folder(path)) return path;
  }
  const std::string own = "/tmp/parley-" + std::to_string(::geteuid());
  if (::mkdir(own.c_str(), 0700) != 0 && errno != EEXIST) return cannot_meet("cannot make the folder", own);
  if (!is_private_folder(own))
    return error(errc::unauthenticated,
                 own + " is not a folder of mode 0700 that belongs to this user alone, so it must not hold a key; "
                       "remove it, or set XDG_RUNTIME_DIR to a folder that is");
  return own;
}

meeting_file& meeting_file::operator=(meeting_file&& other) noexcept {
  if (this != &other) {
    remove();
    path_ = std::exchange(other.path_, {});
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

result<meeting_file> meeting_file::publish(const std::string& path, const std::string& content) {
  auto there = read_living(path);
  if (!there) return there.reason();
  if (*there)
    return error(errc::bad_argument, "another process is rank 0 of this job already (" + path +
                                         "); give each process a rank of its own, and each job an identity of its own");
  const std::string fresh = path + "." + std::to_string(::getpid());
  ::unlink(fresh.c_str());
  descriptor file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.open()) return cannot_meet("rank 0 cannot write the meeting file", fresh);
  // Lock the file before the rename makes it visible.
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0 ||
      ::write(file.get(), content.data(), content.size()) != static_cast<ssize_t>(content.size()) ||
      ::rename(fresh.c_str(), path.c_str()) != 0) {
    auto fault = cannot_meet("rank 0 cannot write the meeting file", path);
    ::unlink(fresh.c_str());
    return fault;
  }
  meeting_file made;
  made.path_ = path;
  made.fd_ = file.release();
  return made;
}

result<std::string> meeting_file::await(const std::string& path, runtime::time_ns limit_ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limit_ns);
  auto pause = std::chrono::milliseconds(1);
  for (;;) {
    auto there = read_living(path);
    if (!there) return there.reason();
    if (*there) return std::move(**there);
    if (std::chrono::steady_clock::now() >= until) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(20));
  }
  return error(errc::timeout,
               "rank 0 has not written " + path + " within " + std::to_string(limit_ns / 1'000'000) +
                   " ms; see whether it was started and shares this host's folders, or set "
                   "PARLEY_RENDEZVOUS to host:port of rank 0 and PARLEY_KEY_FILE to a 0600 file with 32 random "
                   "bytes on every rank");
}

void meeting_file::remove() noexcept {
  if (fd_ < 0) return;
  struct stat mine{};
  struct stat named{};
  // Leave the file if a later job has replaced it by its own.
  if (::fstat(fd_, &mine) == 0 && ::stat(path_.c_str(), &named) == 0 && mine.st_ino == named.st_ino &&
      mine.st_dev == named.st_dev)
    ::unlink(path_.c_str());
  ::close(std::exchange(fd_, -1));
}

result<meeting> find_meeting(placement place, runtime::time_ns limit_ns) {
  const auto began = std::chrono::steady_clock::now();
  auto key = read_key(place);
  if (!key) return key.reason();
  auto found = meet(meeting{std::move(place), std::move(key).value(), {}}, limit_ns);
  if (found) {
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - began;
    found->left_ns = std::max(limit_ns - runtime::time_ns{took.count()}, shortest_rest_ns);
  }
  return found;
}

rendezvous_options options_for(const meeting& found) {
  rendezvous_options o = options_for(found.place);
  o.join_timeout_ns = found.left_ns;
  return o;
}

}  // namespace parley::transports
