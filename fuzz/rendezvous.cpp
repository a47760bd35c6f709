// Sequences of rendezvous frames, to the host and to a guest: garbage, cut and repeated frames, and right tags on wrong content.
#include "fuzz.hpp"

#include <parley/runtime/wire/incarnations.hpp>
#include <parley/transports/join/loopback.hpp>
#include <parley/transports/join/rendezvous.hpp>
#include <parley/transports/join/rendezvous_wire.hpp>

#include <boost/asio/io_context.hpp>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>

namespace parley::fuzz {

using namespace parley::transports;
using runtime::rank_id;

namespace {

constexpr std::uint64_t job = 42;
constexpr rank_id world = 3;
constexpr std::chrono::seconds patience{5};

const job_key& key() {
  static const job_key made = job_key::generate();
  return made;
}

/// One listening socket for all inputs. `forget` closes the connections that an input has left in its queue.
struct listener : loopback_socket {
  listener() : loopback_socket(listen_on_loopback()) {
    require(fd >= 0, "this machine has loopback");
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  void forget() const {
    for (int left; (left = accept()) >= 0;) ::close(left);
  }
  int accept() const { return ::accept4(fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); }
};

/// A socket that is reset when it is closed, so that a million inputs leave no connections behind.
class raw {
 public:
  explicit raw(int fd) : fd_(fd) {
    const linger at_once{1, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    ::fcntl(fd_, F_SETFL, O_NONBLOCK);
  }
  static std::unique_ptr<raw> to(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(port);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
      if (fd >= 0) ::close(fd);
      return nullptr;
    }
    return std::make_unique<raw>(fd);
  }
  raw(const raw&) = delete;
  raw& operator=(const raw&) = delete;
  ~raw() { ::close(fd_); }

  void send(input bytes) { [[maybe_unused]] const auto sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  const wire::bytes& received() {
    std::byte chunk[4096];
    for (ssize_t got; (got = ::recv(fd_, chunk, sizeof chunk, 0)) > 0;)
      received_.insert(received_.end(), chunk, chunk + got);
    return received_;
  }
  /// The first frame that was received, if it is complete and of that type.
  std::optional<wire::bytes> first(wire::type kind) {
    const auto& all = received();
    wire::scanner in(all);
    const std::size_t length = in.number<std::uint32_t>();
    if (in.number<std::uint8_t>() != static_cast<std::uint8_t>(kind) || in.left() < length) return std::nullopt;
    const auto payload = in.raw(length);
    return wire::bytes(payload.begin(), payload.end());
  }

 private:
  int fd_;
  wire::bytes received_;
};

template <class Condition>
bool run_until(boost::asio::io_context& io, Condition holds) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    io.restart();
    io.run_one_for(std::chrono::milliseconds(1));
  }
  return true;
}
void run_what_is_there(boost::asio::io_context& io) {
  io.restart();
  io.poll();
}

constexpr std::uint32_t most_restarts = 3;

rendezvous_options options_of(rank_id rank, const listener& at, std::uint32_t restarts = 0) {
  rendezvous_options o;
  o.rank = rank;
  o.world_size = world;
  o.job = job;
  o.port = at.port;
  o.join_timeout_ns = 20'000'000'000;
  o.max_restarts = most_restarts;
  o.restarts = restarts;
  if (rank == 0) o.listening_fd = ::dup(at.fd);
  return o;
}

wire::hello greeting_of(rank_id rank) {
  wire::hello said;
  said.job = job;
  said.rank = rank;
  said.world_size = world;
  said.incarnation = 7 + rank;
  return said;
}

struct party {
  party(boost::asio::io_context& io, rank_id rank, const listener& at, std::uint32_t restarts = 0)
      : meeting(std::make_unique<rendezvous>(io, options_of(rank, at, restarts), key().duplicate())) {
    meeting->on_member_restarted([this](const member& m) {
      require(m.rank == 1 || m.rank == 2, "only a rank other than 0 comes back");
      require(runtime::restarts_of(m.incarnation) > last[m.rank], "who comes back is newer than the one before");
      last[m.rank] = runtime::restarts_of(m.incarnation);
    });
    meeting->join(this_process({}), [this](runtime::result<joined> all) { outcome.emplace(std::move(all)); });
  }
  bool in() const { return outcome && *outcome; }
  std::unique_ptr<rendezvous> meeting;
  std::optional<runtime::result<joined>> outcome;
  std::uint32_t last[world] = {};
};

/// A client that can greet and prove itself, and then sends what the input says.
struct client {
  std::unique_ptr<raw> connection;
  wire::bytes said;
  wire::connection_key key{};
  bool challenged = false;
  std::uint64_t sent = 0;

  void look_for_challenge() {
    if (challenged || said.empty()) return;
    const auto question = connection->first(wire::type::challenge);
    if (!question) return;
    key = wire::connection_key(fuzz::key().secret(), said, *question);
    challenged = true;
  }
  void send_authentic(wire::type kind, input payload) {
    connection->send(wire::frame(kind, payload, key, wire::direction::to_host, sent++));
  }
  /// Sends a frame of any of the first `types` types, authenticated if the client has the key by then.
  void send_anything(choices& from, std::uint64_t types) {
    look_for_challenge();
    const auto kind = static_cast<wire::type>(from.below(types));
    send_authentic(kind, from.bytes(2000));
  }
  void send_unproven(choices& from, std::uint64_t types) {
    const auto kind = static_cast<wire::type>(from.below(types));
    connection->send(wire::frame(kind, from.bytes(300)));
  }
};

/// One of the clients, perhaps a new one; null: this machine has no connection left for it.
client* one_of(std::vector<client>& clients, choices& from, boost::asio::io_context& io, const listener& at) {
  if (clients.empty() || (clients.size() < 5 && from.below(4) == 0)) {
    auto connection = raw::to(at.port);
    if (!connection) return nullptr;
    clients.push_back({std::move(connection), {}});
    run_what_is_there(io);
  }
  return &clients[from.below(clients.size())];
}

/// Accepts the connection of a guest, after it has greeted.
std::unique_ptr<raw> greeted(boost::asio::io_context& io, const listener& at) {
  std::unique_ptr<raw> host;
  const auto came = [&] {
    const int fd = at.accept();
    if (fd >= 0) host = std::make_unique<raw>(fd);
    return host != nullptr;
  };
  require(run_until(io, came), "a guest comes");
  require(run_until(io, [&] { return host->first(wire::type::hello).has_value(); }), "a guest greets");
  return host;
}

}  // namespace

void rendezvous_frames(input bytes) {
  if (const auto h = wire::hello::decode(bytes); h && h->version == wire::protocol_version)
    require(std::ranges::equal(h->encode(), bytes), "a hello is decoded to what it was");
  if (const auto c = wire::challenge::decode(bytes); c && c->version == wire::protocol_version)
    require(std::ranges::equal(c->encode(), bytes), "a challenge is decoded to what it was");
  wire::scanner in(bytes);
  if (const auto m = wire::decode_member(in)) {
    require(m->address.size() <= member::max_address_bytes && m->affinity.size() <= member::max_affinity_words,
            "an entry is bounded");
    // The version is text for people, and decoding strips what could control a terminal. Encoding and decoding it again changes nothing.
    const auto again = wire::encode_member(*m);
    wire::scanner second(again);
    const auto same = wire::decode_member(second);
    require(again.size() == bytes.size() - in.left() && same && wire::encode_member(*same) == again,
            "a member is decoded to what it was");
  }
  if (const auto all = wire::decode_roster(bytes, job, world)) {
    const auto again = wire::encode_roster(job, *all);
    const auto same = wire::decode_roster(again, job, world);
    require(again.size() == bytes.size() && same && wire::encode_roster(job, *same) == again,
            "a roster is decoded to what it was");
  }
}

void rendezvous_host(input bytes) {
  static const listener at;
  boost::asio::io_context io;
  party host(io, 0, at);
  std::vector<client> clients;
  choices from(bytes);
  for (int step = 0; step < 40 && !from.empty() && !host.outcome; ++step) {
    client* const c = one_of(clients, from, io, at);
    if (c == nullptr) break;
    switch (from.below(6)) {
      case 0: c->connection->send(from.bytes(300)); break;
      case 1: {
        wire::hello said = greeting_of(static_cast<rank_id>(from.below(world + 1)));
        if (from.below(8) == 7) said.world_size += 1;
        c->said = said.encode();
        c->connection->send(wire::frame(wire::type::hello, c->said));
        break;
      }
      case 2:
        c->look_for_challenge();
        c->send_authentic(wire::type::proof, {});
        break;
      case 3: {
        c->look_for_challenge();
        member entry = this_process({});
        entry.rank = static_cast<rank_id>(from.below(world));
        entry.incarnation = 7 + entry.rank;
        auto payload = wire::encode_member(entry);
        if (const auto place = from.byte(); place != 0) payload[place % payload.size()] = std::byte{from.byte()};
        c->send_authentic(wire::type::member, payload);
        break;
      }
      case 4: c->send_anything(from, 12); break;
      default: c->send_unproven(from, 12); break;
    }
    run_what_is_there(io);
  }
  if (!host.outcome) {
    clients.clear();
    run_what_is_there(io);
    // Whatever was sent before, the ranks of the job still meet.
    party one(io, 1, at);
    party two(io, 2, at);
    require(run_until(io, [&] { return host.in() && one.in() && two.in(); }), "the rendezvous goes on for the others");
  }
  host.meeting.reset();
  run_what_is_there(io);
  at.forget();
}

void rendezvous_guest(input bytes) {
  static const listener at;
  boost::asio::io_context io;
  party guest(io, 1, at);
  auto host = greeted(io, at);
  choices from(bytes);
  wire::connection_key tags;
  std::uint64_t sent = 0;
  for (int step = 0; step < 20 && !from.empty() && !guest.outcome; ++step) {
    switch (from.below(5)) {
      case 0: host->send(from.bytes(300)); break;
      case 1: {
        wire::challenge question;
        question.incarnation = 1;
        question.left_ms = static_cast<std::uint32_t>(from.byte()) << 20U;
        auto payload = question.encode();
        if (from.below(4) == 3) payload.resize(from.byte());
        if (const auto said = host->first(wire::type::hello))
          tags = wire::connection_key(fuzz::key().secret(), *said, payload);
        host->send(wire::frame(wire::type::challenge, payload, tags, wire::direction::to_member, sent++));
        break;
      }
      case 2: {
        std::vector<member> members(world);
        for (rank_id r = 0; r < world; ++r) {
          members[r].rank = r;
          members[r].incarnation = 1 + from.below(3);
        }
        auto payload = wire::encode_roster(job, members);
        if (const auto place = from.byte(); place != 0) payload[place % payload.size()] = std::byte{from.byte()};
        host->send(wire::frame(wire::type::roster, payload, tags, wire::direction::to_member, sent++));
        break;
      }
      case 3: {
        const auto kind = static_cast<wire::type>(from.below(12));
        host->send(wire::frame(kind, from.bytes(2000), tags, wire::direction::to_member, sent++));
        break;
      }
      default: host->send(wire::frame(wire::type::reject, from.bytes(100))); break;
    }
    run_what_is_there(io);
  }
  require(!guest.in(), "a roster without this rank's own entry is never taken");
  host.reset();
  guest.meeting.reset();
  run_what_is_there(io);
  at.forget();
}

namespace {

/// A client connects to a running job, with the key or without.
void knock(std::vector<client>& clients, choices& from, boost::asio::io_context& io, const listener& at) {
  client* const c = one_of(clients, from, io, at);
  if (c == nullptr) return;
  switch (from.below(5)) {
    case 0: c->connection->send(from.bytes(300)); break;
    case 1: {
      wire::hello said = greeting_of(static_cast<rank_id>(from.below(world + 1)));
      // The highest restart count that is allowed is kept for the rank that returns in the end.
      said.incarnation = runtime::incarnation_of(7, static_cast<std::uint32_t>(from.below(most_restarts)));
      if (from.below(16) == 15) said.incarnation = runtime::incarnation_of(7, most_restarts + 1);
      c->said = said.encode();
      c->connection->send(wire::frame(wire::type::hello, c->said));
      break;
    }
    case 2: {
      c->look_for_challenge();
      c->send_authentic(wire::type::proof, {});
      const auto said = wire::hello::decode(c->said);
      member entry = this_process({});
      entry.rank = said ? said->rank : 1;
      entry.incarnation = said ? said->incarnation : 7;
      auto payload = wire::encode_member(entry);
      if (const auto place = from.byte(); place != 0) payload[place % payload.size()] = std::byte{from.byte()};
      c->send_authentic(wire::type::member, payload);
      break;
    }
    case 3: c->send_anything(from, 14); break;
    default: c->send_unproven(from, 14); break;
  }
  run_what_is_there(io);
}

/// Sends a frame that a guest, joined or waiting, may get from rank 0.
void tell(raw& guest, const wire::connection_key& tags, std::uint64_t& sent, choices& from, std::uint64_t incarnation) {
  std::vector<member> members(world);
  for (rank_id r = 0; r < world; ++r) {
    members[r].rank = r;
    members[r].incarnation =
        r == 1 ? incarnation : runtime::incarnation_of(5, static_cast<std::uint32_t>(from.below(3)));
  }
  wire::bytes payload;
  auto kind = wire::type::restarted;
  switch (from.below(3)) {
    case 0: {
      kind = wire::type::rejoined;
      payload = wire::writer().raw(wire::digest{}).raw(wire::encode_roster(job, members)).take();
      break;
    }
    case 1: payload = wire::encode_member(members[from.below(world)]); break;
    default: {
      kind = static_cast<wire::type>(from.below(14));
      const auto any = from.bytes(2000);
      payload.assign(any.begin(), any.end());
    }
  }
  const auto place = from.byte();
  if (place != 0 && !payload.empty()) payload[place % payload.size()] = std::byte{from.byte()};
  guest.send(wire::frame(kind, payload, tags, wire::direction::to_member, sent++));
}

void restart_at_host(choices from) {
  static const listener at;
  boost::asio::io_context io;
  party host(io, 0, at);
  party one(io, 1, at);
  auto two = std::make_unique<party>(io, 2, at);
  require(run_until(io, [&] { return host.in() && one.in() && two->in(); }), "a job begins");
  if (from.below(2) == 0) two->meeting.reset();
  std::vector<client> clients;
  for (int step = 0; step < 40 && !from.empty(); ++step) knock(clients, from, io, at);
  clients.clear();
  run_what_is_there(io);
  two = std::make_unique<party>(io, 2, at, most_restarts);
  require(run_until(io, [&] { return two->in(); }), "a rank comes back whoever else has knocked");
  require(run_until(io, [&] { return host.last[2] == most_restarts; }), "rank 0 knows of it");
  two->meeting.reset();
  one.meeting.reset();
  host.meeting.reset();
  run_what_is_there(io);
  at.forget();
}

void restart_at_guest(choices from) {
  static const listener at;
  boost::asio::io_context io;
  party guest(io, 1, at, 1);
  auto host = greeted(io, at);
  const auto said = host->first(wire::type::hello);
  wire::challenge question;
  question.incarnation = 1;
  question.left_ms = 5'000;
  const auto asked = question.encode();
  const wire::connection_key tags(fuzz::key().secret(), *said, asked);
  std::uint64_t sent = 0;
  host->send(wire::frame(wire::type::challenge, asked, tags, wire::direction::to_member, sent++));
  run_what_is_there(io);
  const std::uint64_t incarnation = wire::hello::decode(*said)->incarnation;
  for (int step = 0; step < 20 && !from.empty(); ++step) {
    tell(*host, tags, sent, from, incarnation);
    run_what_is_there(io);
  }
  host.reset();
  guest.meeting.reset();
  run_what_is_there(io);
  at.forget();
}

}  // namespace

void rendezvous_restart(input bytes) {
  choices from(bytes);
  if (from.below(2) == 0) {
    restart_at_host(from);
  } else {
    restart_at_guest(from);
  }
}

}  // namespace parley::fuzz
