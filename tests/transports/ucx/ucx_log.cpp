// What UCX prints about dead peers, in the process of the rank that finds them dead.
#include <parley/tests/transports/ucx/ucx_fixture.hpp>

#include <doctest/doctest.h>

#include <sys/mman.h>
#include <ucs/debug/log_def.h>

#include <csignal>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::tests;

namespace {

/// Collects everything that this process prints from now on, through UCX's streams and ours.
class printed {
 public:
  printed() : file_(::memfd_create("printed", MFD_CLOEXEC)) {
    PARLEY_EXPECT(file_ >= 0 && ::dup2(file_, STDOUT_FILENO) >= 0 && ::dup2(file_, STDERR_FILENO) >= 0);
  }
  std::vector<std::string> lines() const {
    std::fflush(nullptr);
    std::string text(static_cast<std::size_t>(::lseek(file_, 0, SEEK_END)), 0);
    PARLEY_EXPECT(::pread(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    std::vector<std::string> all;
    for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1))
      all.push_back(text.substr(0, end));
    return all;
  }

 private:
  int file_;
};

}  // namespace

TEST_CASE("a rank that contacts dead processes prints one line of each kind, and none in UCX's own format") {
  constexpr rank_id world = 5;
  const auto body = [](rank_id rank, meeting& all) {
    const printed out;
    const ucx_link::options mine{.rank = rank, .world_size = world};
    node first(mine);
    const std::vector<blob> addresses = all.gather(first.wire.address());
    if (rank != 0) ::kill(::getpid(), SIGKILL);
    all.barrier();  // rank 0 alone
    // A new link for each peer: the link before it has noticed by then that a process is gone.
    for (rank_id peer = 1; peer < world; ++peer) {
      node self(mine);
      self.listen();
      self.wire.connect(peer, addresses[peer]);
      self.wire.send(peer, channel::control, bytes_of("x"), {}, nullptr);
      self.until([&] { return !self.failed.peers.empty(); });
    }
    std::string text;
    std::multiset<std::string> places;
    for (const std::string& line : out.lines()) {
      text += "\n" + line;
      if (line.find("UCX  ERROR") != std::string::npos) throw std::runtime_error("a line of UCX: " + text);
      if (line.starts_with("parley: UCX: ")) places.insert(line.substr(line.rfind('(')));
    }
    if (places.empty()) throw std::runtime_error("no line: " + text);
    for (const std::string& p : places) {
      if (places.count(p) != 1) throw std::runtime_error("lines that say the same: " + text);
    }
  };
  const outcomes ended = run_processes(world, body, {.killed = {1, 2, 3, 4}});
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a repeated UCX error is printed the first, the 10th and the 100th time, with its count") {
  const auto body = [](rank_id, meeting&) {
    const printed out;
    const node self({.rank = 0, .world_size = 1});
    for (int i = 0; i < 150; ++i) {
      ucs_log_dispatch("ucx/sources/place.c", 7, "function", UCS_LOG_LEVEL_ERROR, &ucs_global_opts.log_component,
                       "error %d", i);
    }
    const std::vector<std::string> expected{"parley: UCX: error 0 (place.c:7)",
                                            "parley: UCX: error 9 (place.c:7, 10 times so far)",
                                            "parley: UCX: error 99 (place.c:7, 100 times so far)"};
    PARLEY_EXPECT(out.lines() == expected);
  };
  const outcomes ended = run_processes(1, body);
  CHECK_MESSAGE(ended.fine(), ended.text());
}

TEST_CASE("a log level that the user has set for UCX stays in force") {
  const auto body = [](rank_id, meeting&) {
    ::setenv("UCX_LOG_LEVEL", "error", 1);
    const printed out;
    const node self({.rank = 0, .world_size = 1});
    ucs_log_dispatch("place.c", 7, "function", UCS_LOG_LEVEL_ERROR, &ucs_global_opts.log_component, "error");
    const std::vector<std::string> lines = out.lines();
    PARLEY_EXPECT(lines.size() == 1 && lines[0].find("UCX  ERROR") != std::string::npos);
  };
  const outcomes ended = run_processes(1, body);
  CHECK_MESSAGE(ended.fine(), ended.text());
}
