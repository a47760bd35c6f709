#include <parley/cli/payload/host_plane.hpp>
#include <parley/transports/ucx/ucx_link.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::cli {

using runtime::errc;
using runtime::link;

namespace {

using clock = std::chrono::steady_clock;

constexpr std::chrono::seconds for_the_message{5};
constexpr std::chrono::seconds for_all{10};
// These words precede the last text of a process; everything else that the process writes comes from UCX.
constexpr std::string_view fine = "\nFINE ";
constexpr std::string_view failed = "\nFAILED ";

struct first_arrival final : link::handler {
  void on_arrival(runtime::arrival&&) noexcept override { came = true; }
  bool came = false;
};

bool exchange(int with, std::span<const std::byte> mine, std::vector<std::byte>& theirs) {
  const auto length = static_cast<std::uint32_t>(mine.size());
  std::uint32_t expected = 0;
  const auto all = [](auto call, int fd, auto* bytes, std::size_t size) {
    for (std::size_t done = 0; done < size;) {
      const ssize_t n = call(fd, bytes + done, size - done);
      if (n <= 0) return false;
      done += static_cast<std::size_t>(n);
    }
    return true;
  };
  if (!all(::write, with, reinterpret_cast<const char*>(&length), sizeof length) ||
      !all(::write, with, reinterpret_cast<const char*>(mine.data()), mine.size()) ||
      !all(::read, with, reinterpret_cast<char*>(&expected), sizeof expected))
    return false;
  theirs.resize(expected);
  return all(::read, with, reinterpret_cast<char*>(theirs.data()), theirs.size());
}

// Rank 0 sends, rank 1 replies. Prints the outcome on standard output.
void be_one_end(runtime::rank_id rank, int other_end) {
  transports::ucx_link wire({.rank = rank, .world_size = 2});
  const runtime::rank_id peer = 1 - rank;
  const std::vector<std::byte> mine = wire.address();
  std::vector<std::byte> theirs;
  if (!exchange(other_end, mine, theirs)) runtime::raise({errc::io, "the other process ended"});
  wire.connect(rank, mine);
  wire.connect(peer, theirs);
  first_arrival seen;
  wire.listen(link::channel::control, &seen);
  const std::array<std::byte, 8> text{};
  const auto say = [&] {
    if (const errc sent = wire.send(peer, link::channel::control, text, {}, nullptr); sent != errc::none)
      runtime::raise({sent, "the message could not be sent"});
  };
  if (rank == 0) say();
  for (const auto until = clock::now() + for_the_message; !seen.came;) {
    wire.poll();
    if (clock::now() > until) runtime::raise({errc::timeout, "the message did not arrive within 5 s"});
  }
  if (rank == 1) say();
  std::printf("%s%s", fine.data(), wire.description().c_str());
}

struct end {
  pid_t process = -1;
  int output = -1;
  std::string said;
};

end start(runtime::rank_id rank, int other_end, int not_mine) {
  end made;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return made;
  std::fflush(nullptr);
  made.process = ::fork();
  if (made.process == 0) {
    ::close(not_mine);  // so that the death of the other process is noticed
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    ::alarm(static_cast<unsigned>(for_all.count()));
    try {
      be_one_end(rank, other_end);
    } catch (const std::exception& e) {
      std::printf("%s%s", failed.data(), e.what());
    }
    std::fflush(nullptr);
    ::_exit(0);
  }
  ::close(ends[1]);
  made.output = ends[0];
  return made;
}

/// Skips processes that could not be started: `kill(-1, …)` would end every process of the user.
void kill_all(const std::array<end, 2>& both) {
  for (const end& e : both) {
    if (e.process > 0) ::kill(e.process, SIGKILL);
  }
}

/// Reads both outputs to their ends; kills processes that take too long.
void listen_to(std::array<end, 2>& both) {
  const auto until = clock::now() + for_all;
  for (std::array<char, 4096> piece{}; both[0].output >= 0 || both[1].output >= 0;) {
    std::array<pollfd, 2> waiting{{{both[0].output, POLLIN, 0}, {both[1].output, POLLIN, 0}}};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - clock::now()).count();
    if (left <= 0) kill_all(both);
    ::poll(waiting.data(), waiting.size(), static_cast<int>(left <= 0 ? -1 : left));
    for (std::size_t i = 0; i < both.size(); ++i) {
      if (waiting[i].revents == 0) continue;
      const ssize_t n = ::read(both[i].output, piece.data(), piece.size());
      if (n > 0) {
        both[i].said.append(piece.data(), static_cast<std::size_t>(n));
      } else if (n == 0 || errno != EINTR) {
        ::close(std::exchange(both[i].output, -1));
      }
    }
  }
}

/// Extracts the error and its place from a line `parley: UCX: what (file:line)`, which reports an error (transports/ucx/ucx_log.hpp).
std::string complaint_of_ucx(std::string_view said) {
  constexpr std::string_view mark = "parley: UCX: ";
  const auto at = said.find(mark);
  if (at == std::string_view::npos) return "";
  const std::string_view rest = said.substr(at + mark.size());
  return "; UCX says: " + std::string(rest.substr(0, rest.find('\n')));
}

std::string why_not(const end& e, int status) {
  const auto at = e.said.find(failed);
  std::string text = at != std::string::npos ? e.said.substr(at + failed.size())
                     : WIFSIGNALED(status)   ? std::string("it was killed: ") + ::strsignal(WTERMSIG(status))
                                             : "it ended with status " + std::to_string(WEXITSTATUS(status));
  return text + complaint_of_ucx(e.said);
}

}  // namespace

runtime::result<std::string> try_host_plane() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return runtime::error{errc::io, std::string("no socket for two processes: ") + std::strerror(errno)};
  std::array<end, 2> both{start(0, ends[0], ends[1]), start(1, ends[1], ends[0])};
  ::close(ends[0]);
  ::close(ends[1]);
  if (both[0].process < 0 || both[1].process < 0) kill_all(both);
  listen_to(both);
  std::string description;
  std::string reason;
  for (const end& e : both) {
    if (e.process < 0) return runtime::error{errc::io, "two processes could not be started"};
    int status = 0;
    ::waitpid(e.process, &status, 0);
    if (const auto at = e.said.find(fine); at != std::string::npos) {
      description = e.said.substr(at + fine.size());
    } else if (reason.empty() || !complaint_of_ucx(e.said).empty()) {
      reason = why_not(e, status);
    }
  }
  if (reason.empty()) return description;
  return runtime::error{errc::unavailable, "no message can get from one process of this host to another: " + reason};
}

}  // namespace parley::cli
