#include <parley/transports/join/meeting.hpp>
#include <parley/transports/launch/pmi.hpp>

#include <doctest/doctest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

using namespace parley::transports;
using namespace parley::runtime::literals;
using parley::runtime::errc;
using parley::runtime::rank_id;
using parley::runtime::result;

namespace {

/// Stands in for a launcher: speaks PMI-1 with several processes over socket pairs, line by line.
class stand_in {
 public:
  /// `answer` may replace the usual answer; an empty answer closes the connection.
  explicit stand_in(rank_id size, std::function<std::string(const std::string& said, std::string usual)> answer = {})
      : answer_(std::move(answer)) {
    for (rank_id rank = 0; rank < size; ++rank) {
      int pair[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
      theirs_.push_back(pair[0]);
      ours_.push_back(pair[1]);
    }
    serving_ = std::thread([this] { serve(); });
  }
  stand_in(const stand_in&) = delete;
  stand_in& operator=(const stand_in&) = delete;
  ~stand_in() {
    for (const int fd : theirs_) ::close(fd);  // ends the conversation
    serving_.join();
    for (const int fd : ours_) ::close(fd);
  }
  int fd(rank_id rank) const { return theirs_[rank]; }
  int finalized = 0;

 private:
  void serve() {
    std::vector<std::string> buffered(ours_.size());
    std::vector<bool> open(ours_.size(), true);
    for (;;) {
      std::vector<pollfd> waiting;
      for (std::size_t i = 0; i < ours_.size(); ++i) waiting.push_back({open[i] ? ours_[i] : -1, POLLIN, 0});
      bool any = false;
      for (const bool o : open) any = any || o;
      if (!any) return;
      ::poll(waiting.data(), waiting.size(), -1);
      for (std::size_t i = 0; i < ours_.size(); ++i) {
        if (waiting[i].revents == 0) continue;
        char bytes[512];
        const ssize_t got = ::recv(ours_[i], bytes, sizeof bytes, 0);
        if (got <= 0) {
          open[i] = false;
          continue;
        }
        buffered[i].append(bytes, static_cast<std::size_t>(got));
        for (auto end = buffered[i].find('\n'); end != std::string::npos; end = buffered[i].find('\n')) {
          hear(i, buffered[i].substr(0, end));
          buffered[i].erase(0, end + 1);
        }
      }
    }
  }

  void hear(std::size_t from, const std::string& said) {
    if (said == "cmd=init pmi_version=1 pmi_subversion=1") {
      say(from, said, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
    } else if (said == "cmd=get_my_kvsname") {
      say(from, said, "cmd=my_kvsname kvsname=kvs_7_0");
    } else if (said.starts_with("cmd=put kvsname=kvs_7_0 key=parley_meeting value=")) {
      value_ = said.substr(said.rfind('=') + 1);
      say(from, said, "cmd=put_result rc=0 msg=success");
    } else if (said == "cmd=barrier_in") {
      if (++in_barrier_ < ours_.size()) return;
      in_barrier_ = 0;
      for (std::size_t i = 0; i < ours_.size(); ++i) say(i, said, "cmd=barrier_out");
    } else if (said == "cmd=get kvsname=kvs_7_0 key=parley_meeting") {
      say(from, said,
          value_.empty() ? "cmd=get_result rc=-1 msg=key_not_found"
                         : "cmd=get_result rc=0 msg=success value=" + value_);
    } else if (said == "cmd=finalize") {
      ++finalized;
      say(from, said, "cmd=finalize_ack");
    } else {
      say(from, said, "cmd=unknown rc=-1");
    }
  }

  void say(std::size_t to, const std::string& said, const std::string& usual) {
    const std::string line = answer_ ? answer_(said, usual) : usual;
    if (line.empty()) {
      ::shutdown(ours_[to], SHUT_RDWR);
    } else {
      const std::string whole = line == "silence" ? "" : line + "\n";
      [[maybe_unused]] const auto put = ::send(ours_[to], whole.data(), whole.size(), MSG_NOSIGNAL);
    }
  }

  std::function<std::string(const std::string&, std::string)> answer_;
  std::vector<int> theirs_;
  std::vector<int> ours_;
  std::string value_;
  std::size_t in_barrier_ = 0;
  std::thread serving_;
};

std::vector<result<std::string>> all_of(stand_in& launcher, rank_id size) {
  std::vector<result<std::string>> told(size, errc::pending);
  std::vector<std::thread> ranks;
  for (rank_id rank = 0; rank < size; ++rank)
    ranks.emplace_back(
        [&, rank] { told[rank] = pmi_broadcast(launcher.fd(rank), rank, rank == 0 ? "10.0.0.1:7" : "-", 10_s); });
  for (auto& r : ranks) r.join();
  return told;
}

}  // namespace

TEST_CASE("rank 0's PMI message reaches every rank, and all ranks finalize") {
  stand_in launcher(3);
  for (const auto& told : all_of(launcher, 3)) CHECK(told.value() == "10.0.0.1:7");
  CHECK(launcher.finalized == 3);
}

TEST_CASE("a launcher that refuses, answers nonsense, hangs up or stays silent ends the call with the step's name") {
  const auto with = [](const std::string& at, const std::string& instead, parley::runtime::time_ns limit_ns = 10_s) {
    stand_in launcher(
        1, [&](const std::string& said, const std::string& usual) { return said.starts_with(at) ? instead : usual; });
    auto told = pmi_broadcast(launcher.fd(0), 0, "here", limit_ns);
    REQUIRE_FALSE(told);
    const std::string text = told.reason().what();
    CAPTURE(text);
    CHECK(text.find(at) != std::string::npos);
    CHECK(text.find("PARLEY_RENDEZVOUS") != std::string::npos);
    CHECK(text.find('\x1b') == std::string::npos);
    return told.code();
  };
  for (const char* step : {"cmd=init", "cmd=get_my_kvsname", "cmd=put", "cmd=barrier_in", "cmd=get ", "cmd=finalize"}) {
    const std::string at = std::string(step).substr(0, std::string(step).find(' '));
    if (std::string(step) != "cmd=get ") CHECK(with(at, "") == errc::io);
  }
  CHECK(with("cmd=init", "cmd=response_to_init rc=-1") == errc::malformed);
  CHECK(with("cmd=put", "cmd=put_result rc=-1 msg=no") == errc::malformed);
  CHECK(with("cmd=barrier_in", "\x1b[2J") == errc::malformed);
  CHECK(with("cmd=barrier_in", std::string(5000, 'x')) == errc::malformed);
  CHECK(with("cmd=init", "silence", 30_ms) == errc::timeout);  // the timeout of the first step is the whole limit
}

TEST_CASE("a descriptor that is closed, or is no connection, is an error") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  CHECK(pmi_broadcast(ends[1], 0, "here", 1_s).code() == errc::io);
  CHECK(pmi_broadcast(987, 0, "here", 1_s).code() == errc::io);
  CHECK(pmi_broadcast(ends[1], 0, "two words", 1_s).code() == errc::bad_argument);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("ranks that meet through PMI share an address and a fresh key") {
  stand_in launcher(2);
  std::vector<result<meeting>> found;
  found.emplace_back(errc::pending);
  found.emplace_back(errc::pending);
  std::vector<std::thread> ranks;
  for (rank_id rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      placement place;
      place.rank = rank;
      place.world_size = 2;
      place.local_size = 2;
      place.meeting = meeting_kind::pmi;
      place.pmi_fd = launcher.fd(rank);
      found[rank] = find_meeting(place, 10_s);
    });
  }
  for (auto& r : ranks) r.join();
  const auto& host = found[0].value();
  const auto& guest = found[1].value();
  CHECK(guest.place.rendezvous_host == "127.0.0.1");
  CHECK(guest.place.rendezvous_port == host.place.rendezvous_port);
  CHECK(host.place.listening_fd >= 0);
  CHECK(guest.key.secret().size() == 32);
  CHECK(std::equal(guest.key.secret().begin(), guest.key.secret().end(), host.key.secret().begin()));
  ::close(host.place.listening_fd);
}
