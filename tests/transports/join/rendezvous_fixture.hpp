#pragma once
/// Ranks of a rendezvous in one io_context, raw clients that send invalid data, and waiting without sleeps.
#include <parley/tests/support/deadline.hpp>

#include <parley/transports/join/loopback.hpp>
#include <parley/transports/join/rendezvous.hpp>
#include <parley/transports/join/rendezvous_wire.hpp>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rendezvous_test {

namespace asio = boost::asio;
using namespace parley::transports;
using namespace parley::runtime::literals;
using parley::runtime::errc;
using parley::runtime::rank_id;
using parley::runtime::result;

/// Runs the context until the condition holds; returns false if it does not hold in time.
template <class Condition>
bool run_until(asio::io_context& io, Condition holds) {
  const parley::tests::deadline limit;
  while (!holds()) {
    if (limit.is_over()) return false;
    io.restart();
    io.run_one_for(std::chrono::milliseconds(5));
  }
  return true;
}

struct listener : loopback_socket {
  listener() : loopback_socket(listen_on_loopback()) {}
};

inline rendezvous_options options_of(rank_id rank, rank_id world, const listener& at) {
  rendezvous_options options;
  options.rank = rank;
  options.world_size = world;
  options.job = 42;
  options.port = at.port;
  if (rank == 0) options.listening_fd = at.fd;
  return options;
}

inline member entry_of(rank_id rank) {
  member me = this_process(std::vector<std::byte>(100 + rank, static_cast<std::byte>(rank)));
  return me;
}

/// One rank and the events that it has heard of.
struct party {
  party(asio::io_context& io, const rendezvous_options& options, const job_key& key)
      : party(io, options, key, entry_of(options.rank)) {}
  party(asio::io_context& io, const rendezvous_options& options, const job_key& key, const member& me)
      : meeting(std::make_unique<rendezvous>(io, options, key.duplicate())) {
    meeting->on_member_lost([this](rank_id rank, const std::string& why) { lost.emplace_back(rank, why); });
    meeting->on_member_left(
        [this](rank_id rank, const parley::runtime::root_cause& why) { left.emplace_back(rank, why); });
    meeting->on_member_restarted([this](const member& anew) { back.push_back(anew); });
    meeting->join(me, [this](result<joined> all) { outcome.emplace(std::move(all)); });
  }
  party(const party&) = delete;
  party& operator=(const party&) = delete;
  bool in() const { return outcome && *outcome; }
  errc code() const { return outcome ? outcome->code() : errc::pending; }
  std::string text() const { return outcome && !*outcome ? outcome->reason().what() : ""; }
  /// Declares dead the process that was in that place when this rank joined.
  void hold_dead(rank_id rank, const std::string& why) const {
    member dead;
    if (rank < outcome->value().members.size()) dead = outcome->value().members[rank];
    dead.rank = rank;
    meeting->hold_dead(dead, why);
  }

  std::unique_ptr<rendezvous> meeting;
  std::optional<result<joined>> outcome;
  std::vector<std::pair<rank_id, std::string>> lost;
  std::vector<std::pair<rank_id, parley::runtime::root_cause>> left;
  std::vector<member> back;
};

using parties = std::vector<std::unique_ptr<party>>;

inline bool all_in(const parties& ranks) {
  for (const auto& rank : ranks) {
    if (!rank->in()) return false;
  }
  return true;
}

/// Starts all ranks of a world, in order of rank.
inline parties start_world(asio::io_context& io, rank_id world, const job_key& key, const listener& at) {
  parties ranks;
  for (rank_id rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<party>(io, options_of(rank, world, at), key));
  }
  return ranks;
}

/// A client that sends any bytes.
class raw_client {
 public:
  explicit raw_client(std::uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
    ::fcntl(fd_, F_SETFL, O_NONBLOCK);
  }
  raw_client(const raw_client&) = delete;
  raw_client& operator=(const raw_client&) = delete;
  ~raw_client() { ::close(fd_); }

  bool connected() const { return connected_; }
  void send(const wire::bytes& data) {
    [[maybe_unused]] const auto put = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
  }
  /// Receives what has arrived; returns true once the other side has closed.
  bool closed() {
    std::byte chunk[4096];
    ssize_t got = 0;
    while ((got = ::recv(fd_, chunk, sizeof chunk, 0)) > 0) received_.insert(received_.end(), chunk, chunk + got);
    return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
  const wire::bytes& received() {
    closed();
    return received_;
  }

 private:
  int fd_;
  bool connected_ = false;
  wire::bytes received_;
};

inline wire::hello hello_of(rank_id rank, rank_id world) {
  wire::hello said;
  said.job = 42;
  said.rank = rank;
  said.world_size = world;
  said.incarnation = 7;
  wire::randomise(said.nonce);
  return said;
}

}  // namespace rendezvous_test
