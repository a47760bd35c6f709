#include <parley/tests/transports/join/rendezvous_fixture.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <random>

using namespace rendezvous_test;

namespace {

wire::bytes bytes_of(const std::string& text) { return wire::writer().text(text).take(); }

/// Stands in for the link's check.
bool may_be_address(std::span<const std::byte> bytes) { return bytes.size() < 1000; }

/// Rank 0 of a world of two, attacked by a raw client; afterwards the real rank 1 must still be able to join.
struct besieged {
  explicit besieged(parley::runtime::time_ns handshake = 5_s) : key(job_key::generate()) {
    auto options = options_of(0, 2, at);
    options.handshake_timeout_ns = handshake;
    options.is_address = &may_be_address;
    host = std::make_unique<party>(io, options, key);
  }
  bool real_rank_joins() {
    party real(io, options_of(1, 2, at), key);
    return run_until(io, [&] { return real.in() && host->in(); });
  }
  bool drops(raw_client& client) {
    return run_until(io, [&] { return client.closed(); });
  }

  asio::io_context io;
  listener at;
  job_key key;
  std::unique_ptr<party> host;
};

/// A client that has the key and has received the challenge.
struct insider {
  insider(besieged& b, rank_id rank, rank_id world) : client(b.at.port), said(hello_of(rank, world)) {
    client.send(wire::frame(wire::type::hello, said.encode()));
    run_until(b.io, [&] { return client.received().size() >= 5 + 46 + 32 || client.closed(); });
    const auto& got = client.received();
    if (got.size() < 83) return;
    const auto question = std::span<const std::byte>(got).subspan(5, 46);
    key = wire::connection_key(b.key.secret(), said.encode(), question);
    greeted = true;
  }
  void send(wire::type kind, const wire::bytes& payload) {
    client.send(wire::frame(kind, payload, key, wire::direction::to_host, sequence++));
  }
  raw_client client;
  wire::hello said;
  wire::connection_key key;
  std::uint64_t sequence = 0;
  bool greeted = false;
};

}  // namespace

TEST_CASE("garbage of any kind is dropped and the rendezvous continues") {
  std::mt19937 random(1);
  besieged b;
  const wire::bytes zeros(300);
  wire::bytes noise(4096);
  for (auto& byte : noise) byte = static_cast<std::byte>(random());
  const wire::bytes samples[] = {bytes_of("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
                                 noise,
                                 zeros,
                                 wire::frame_head(wire::type::hello, 0xffffffffU),
                                 wire::frame_head(wire::type::member, 100),
                                 wire::frame(wire::type::hello, bytes_of("not a greeting")),
                                 wire::frame(wire::type::bye, {})};
  std::uint64_t dropped = 0;
  for (const auto& sample : samples) {
    CAPTURE(dropped);
    raw_client client(b.at.port);
    client.send(sample);
    CHECK(b.drops(client));
    CHECK(client.received().empty());
    CHECK(run_until(b.io, [&] { return b.host->meeting->dropped_clients() == dropped + 1; }));
    ++dropped;
  }
  CHECK(b.real_rank_joins());
}

TEST_CASE("clients that close after every possible prefix of a greeting do no harm") {
  besieged b;
  const auto greeting = wire::frame(wire::type::hello, hello_of(1, 2).encode());
  for (std::size_t cut = 0; cut <= greeting.size(); ++cut) {
    raw_client client(b.at.port);
    client.send(wire::bytes(greeting.begin(), greeting.begin() + static_cast<long>(cut)));
  }
  CHECK(b.real_rank_joins());
}

TEST_CASE("a slow client is dropped at its timeout") {
  besieged b(30_ms);
  raw_client silent(b.at.port);
  raw_client stuck(b.at.port);
  stuck.send(bytes_of("1234"));
  CHECK(b.drops(silent));
  CHECK(b.drops(stuck));
  CHECK(b.real_rank_joins());
}

TEST_CASE("a recognised client that never sends its entry loses its seat") {
  besieged b(200_ms);
  insider late(b, 1, 2);
  REQUIRE(late.greeted);
  late.send(wire::type::proof, {});
  CHECK(b.drops(late.client));
  CHECK(b.real_rank_joins());
}

TEST_CASE("a client that is not recognised yet is dropped for an excessive length before its bytes arrive") {
  besieged b(60_s);
  raw_client greedy(b.at.port);
  greedy.send(wire::frame_head(wire::type::hello, wire::max_unauthenticated_bytes / 2 + 1));
  CHECK(b.drops(greedy));
  insider polite(b, 1, 2);
  REQUIRE(polite.greeted);
  polite.client.send(wire::frame_head(wire::type::proof, 1));
  CHECK(b.drops(polite.client));
  CHECK(b.real_rank_joins());
}

TEST_CASE("rank 0 keeps at most twice as many unrecognised connections as the world has ranks") {
  besieged b(60_s);
  std::vector<std::unique_ptr<raw_client>> crowd;
  for (int i = 0; i < 7; ++i) crowd.push_back(std::make_unique<raw_client>(b.at.port));
  CHECK(run_until(b.io, [&] { return b.host->meeting->dropped_clients() == 3; }));
  int closed = 0;
  for (auto& client : crowd) closed += client->closed() ? 1 : 0;
  CHECK(closed == 3);
  crowd.clear();
  CHECK(b.real_rank_joins());
}

TEST_CASE("a client with a wrong key or none gets unauthenticated, and the right key still joins") {
  besieged b;
  party stranger(b.io, options_of(1, 2, b.at), job_key::generate());
  REQUIRE(run_until(b.io, [&] { return stranger.outcome.has_value(); }));
  CHECK(stranger.code() == errc::unauthenticated);
  CHECK(stranger.text().find("rank 1") != std::string::npos);
  party keyless(b.io, options_of(1, 2, b.at), job_key());
  REQUIRE(run_until(b.io, [&] { return keyless.outcome.has_value(); }));
  CHECK(keyless.code() == errc::unauthenticated);
  CHECK(b.real_rank_joins());
}

TEST_CASE("a proof recorded from another connection gets no seat") {
  besieged b(60_s);
  insider honest(b, 1, 2);
  REQUIRE(honest.greeted);
  const auto recorded = wire::frame(wire::type::proof, {}, honest.key, wire::direction::to_host, 0);
  raw_client thief(b.at.port);
  thief.send(wire::frame(wire::type::hello, honest.said.encode()));  // the recorded nonce, but rank 0 uses a fresh one
  REQUIRE(run_until(b.io, [&] { return thief.received().size() >= 83; }));
  thief.send(recorded);
  CHECK(b.drops(thief));
  CHECK(b.real_rank_joins());
}

TEST_CASE("a client that sends frames out of order is dropped") {
  besieged b;
  insider hasty(b, 1, 2);
  REQUIRE(hasty.greeted);
  hasty.send(wire::type::member, wire::encode_member(this_process()));  // before the proof
  CHECK(b.drops(hasty.client));
  insider repeating(b, 1, 2);
  repeating.send(wire::type::proof, {});
  repeating.send(wire::type::proof, {});
  CHECK(b.drops(repeating.client));
  CHECK(b.real_rank_joins());
}

TEST_CASE("an insider whose entry is malformed, oversized, without an address or another rank's is dropped") {
  const std::function<wire::bytes(insider&)> entries[] = {
      [](insider&) { return bytes_of("nonsense"); },
      [](insider&) { return wire::bytes(wire::max_member_bytes + 1); },
      [](insider& i) {
        member me = this_process();
        me.rank = 0;
        me.incarnation = i.said.incarnation;
        return wire::encode_member(me);
      },
      [](insider& i) {
        member me = this_process();
        me.rank = i.said.rank;
        me.incarnation = i.said.incarnation + 1;
        return wire::encode_member(me);
      },
      [](insider& i) {
        member me = this_process(wire::bytes(1000));
        me.rank = i.said.rank;
        me.incarnation = i.said.incarnation;
        return wire::encode_member(me);
      },
  };
  for (const auto& entry : entries) {
    besieged b;
    insider i(b, 1, 2);
    REQUIRE(i.greeted);
    i.send(wire::type::proof, {});
    i.send(wire::type::member, entry(i));
    CHECK(b.drops(i.client));
    CHECK(b.real_rank_joins());
  }
}

TEST_CASE("a client of another protocol version is refused with that reason") {
  besieged b;
  auto said = hello_of(1, 2);
  said.version = 9;
  raw_client future(b.at.port);
  auto greeting = said.encode();
  greeting.resize(greeting.size() + 20);  // a later version's greeting may be longer than ours
  future.send(wire::frame(wire::type::hello, greeting));
  CHECK(b.drops(future));
  const auto& got = future.received();
  REQUIRE(got.size() == 10);
  CHECK(got[4] == static_cast<std::byte>(wire::type::reject));
  CHECK(got[5] == static_cast<std::byte>(wire::refusal::version));
  CHECK(b.real_rank_joins());
}

TEST_CASE("a refused rank learns the reason at once") {
  // A rank 0 that answers every greeting with the same refusal.
  const std::pair<wire::refusal, errc> answers[] = {{wire::refusal::version, errc::protocol_version},
                                                    {wire::refusal::world_size, errc::malformed},
                                                    {wire::refusal::rank, errc::malformed},
                                                    {wire::refusal::duplicate, errc::malformed}};
  for (const auto& [reason, expected] : answers) {
    asio::io_context io;
    const listener at;
    party guest(io, options_of(1, 2, at), job_key::generate());
    int accepted = -1;
    ::fcntl(at.fd, F_SETFL, O_NONBLOCK);
    REQUIRE(run_until(io, [&] { return (accepted = ::accept4(at.fd, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; }));
    const auto reject = wire::frame(
        wire::type::reject, wire::writer().number(static_cast<std::uint8_t>(reason)).number(std::uint32_t{9}).take());
    REQUIRE(::send(accepted, reject.data(), reject.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(reject.size()));
    CHECK(run_until(io, [&] { return guest.outcome.has_value(); }));
    CHECK(guest.code() == expected);
    ::close(accepted);
    ::close(at.fd);
  }
}

TEST_CASE("a duplicate rank, another world size and a rank out of range are refused, and the job completes") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  party host(io, options_of(0, 3, at), key);
  party one(io, options_of(1, 3, at), key);
  // From outside, only the refusal of a second rank 1 shows that the first one has its seat.
  std::optional<party> second;
  REQUIRE(run_until(io, [&] {
    if (!second) second.emplace(io, options_of(1, 3, at), key);
    return second->outcome.has_value() || one.outcome.has_value();
  }));
  party& refused = second->outcome ? *second : one;
  party& accepted = second->outcome ? one : *second;
  CHECK(refused.code() == errc::malformed);
  CHECK(refused.text().find("rank 1 already") != std::string::npos);
  party wrong_world(io, options_of(1, 2, at), key);
  REQUIRE(run_until(io, [&] { return wrong_world.outcome.has_value(); }));
  CHECK(wrong_world.code() == errc::malformed);
  CHECK(wrong_world.text().find("expects 3 ranks and this one 2") != std::string::npos);
  raw_client outside(at.port);
  outside.send(wire::frame(wire::type::hello, hello_of(3, 3).encode()));
  CHECK(run_until(io, [&] { return outside.closed(); }));
  raw_client usurper(at.port);
  usurper.send(wire::frame(wire::type::hello, hello_of(0, 3).encode()));
  CHECK(run_until(io, [&] { return usurper.closed(); }));
  party two(io, options_of(2, 3, at), key);
  CHECK(run_until(io, [&] { return host.in() && two.in() && accepted.in(); }));
}

TEST_CASE("a client of another job keeps trying until its timeout and the error names another job") {
  besieged b;
  auto options = options_of(1, 2, b.at);
  options.job = 43;
  options.join_timeout_ns = 1_s;
  party foreign(b.io, options, b.key);
  REQUIRE(run_until(b.io, [&] { return foreign.outcome.has_value(); }));
  CHECK(foreign.code() == errc::timeout);
  CHECK(foreign.text().find("another job") != std::string::npos);
  CHECK(b.real_rank_joins());
}

TEST_CASE("a listener without the key gets neither proof nor address from a joining rank") {
  asio::io_context io;
  const listener at;
  party guest(io, options_of(1, 2, at), job_key::generate());
  ::fcntl(at.fd, F_SETFL, O_NONBLOCK);
  int accepted = -1;
  REQUIRE(run_until(io, [&] { return (accepted = ::accept4(at.fd, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; }));
  wire::challenge question;
  question.incarnation = 1;
  const auto payload = question.encode();
  const wire::connection_key guess({}, {}, payload);
  const auto sent = wire::frame(wire::type::challenge, payload, guess, wire::direction::to_member, 0);
  REQUIRE(::send(accepted, sent.data(), sent.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(sent.size()));
  CHECK(run_until(io, [&] { return guest.outcome.has_value(); }));
  CHECK(guest.code() == errc::unauthenticated);
  std::byte got[1024];
  CHECK(::recv(accepted, got, sizeof got, 0) == 5 + 66);  // the greeting and nothing else
  ::close(accepted);
  ::close(at.fd);
}
