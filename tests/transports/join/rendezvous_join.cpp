#include <parley/tests/support/open_descriptors.hpp>
#include <parley/tests/transports/join/rendezvous_fixture.hpp>

#include <boost/asio/steady_timer.hpp>
#include <doctest/doctest.h>

using namespace rendezvous_test;
using parley::tests::open_descriptors;

TEST_CASE("members of worlds of 1, 2, 4 and 64 ranks all get the same roster and session key") {
  for (const rank_id world : {1U, 2U, 4U, 64U}) {
    CAPTURE(world);
    asio::io_context io;
    const listener at;
    const auto key = job_key::generate();
    auto ranks = start_world(io, world, key, at);
    REQUIRE(run_until(io, [&] { return all_in(ranks); }));
    const joined& first = ranks[0]->outcome->value();
    CHECK(first.authenticated);
    REQUIRE(first.members.size() == world);
    for (rank_id rank = 0; rank < world; ++rank) {
      const member& entry = first.members[rank];
      CHECK(entry.rank == rank);
      CHECK(entry.incarnation != 0);
      CHECK(entry.host == host_identity());
      CHECK(entry.pid == static_cast<std::uint32_t>(::getpid()));
      CHECK(entry.pids_of == this_process().pids_of);
      CHECK(entry.pids_of != 0);
      CHECK(entry.address == std::vector<std::byte>(100 + rank, static_cast<std::byte>(rank)));
      CHECK_FALSE(entry.affinity.empty());
      CHECK_FALSE(entry.version.empty());
      const joined& mine = ranks[rank]->outcome->value();
      CHECK(mine.members == first.members);
      CHECK(mine.roster_digest == first.roster_digest);
      CHECK(mine.session_key == first.session_key);
    }
    CHECK(ranks[0]->meeting->dropped_clients() == 0);
  }
}

TEST_CASE("two runs of one job have different session keys") {
  const auto key = job_key::generate();
  std::vector<std::array<std::byte, 16>> seen;
  for (int run = 0; run < 2; ++run) {
    asio::io_context io;
    const listener at;
    auto ranks = start_world(io, 2, key, at);
    REQUIRE(run_until(io, [&] { return all_in(ranks); }));
    seen.push_back(ranks[0]->outcome->value().session_key);
  }
  CHECK(seen[0] != seen[1]);
}

TEST_CASE("a world of one joins without a socket") {
  asio::io_context io;
  rendezvous_options options;
  party alone(io, options, job_key());
  CHECK_FALSE(alone.outcome);  // the outcome is never reported from inside the call
  io.poll();
  REQUIRE(alone.in());
  CHECK(alone.meeting->descriptors().empty());
  CHECK_FALSE(alone.outcome->value().authenticated);
}

TEST_CASE("a loopback rendezvous without a key works and reports that it is unauthenticated") {
  asio::io_context io;
  const listener at;
  auto ranks = start_world(io, 3, job_key(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  for (const auto& rank : ranks) CHECK_FALSE(rank->outcome->value().authenticated);
}

TEST_CASE("ranks that start before rank 0 wait for it") {
  asio::io_context io;
  listener at;
  ::close(std::exchange(at.fd, -1));  // a port on which nobody listens yet
  const auto key = job_key::generate();
  parties ranks;
  for (const rank_id rank : {1U, 2U}) ranks.push_back(std::make_unique<party>(io, options_of(rank, 3, at), key));
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  REQUIRE(run_until(io, [&] { return std::chrono::steady_clock::now() > until; }));
  CHECK_FALSE(ranks[0]->outcome);
  ranks.push_back(std::make_unique<party>(io, options_of(0, 3, at), key));
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
}

TEST_CASE("descriptors() lists one socket per other rank on rank 0, and one socket on each other rank") {
  asio::io_context io;
  const listener at;
  auto ranks = start_world(io, 4, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  CHECK(ranks[0]->meeting->descriptors().size() == 3);
  CHECK(ranks[2]->meeting->descriptors().size() == 1);
  for (const int fd : ranks[0]->meeting->descriptors()) CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  for (const int fd : ranks[2]->meeting->descriptors()) CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
}

TEST_CASE("destroying a rendezvous in the middle of a join leaves no descriptor and no work behind") {
  // Stops after every number of steps, so that every state is torn down.
  for (int steps = 0; steps < 60; ++steps) {
    CAPTURE(steps);
    asio::io_context io;
    const listener at;
    { const boost::asio::steady_timer first(io); }  // the first one opens descriptors that stay
    const std::size_t before = open_descriptors();
    auto ranks = start_world(io, 3, job_key::generate(), at);
    for (int i = 0; i < steps; ++i) io.poll_one();
    ranks.clear();
    while (io.poll() > 0) {}
    CHECK(open_descriptors() == before - 1);  // rank 0 has also closed the listening socket, which it took over
    CHECK(io.stopped());
  }
}

TEST_CASE("a rendezvous may be destroyed by its own callback") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  std::vector<std::unique_ptr<rendezvous>> meetings(2);
  int ended = 0;
  for (rank_id rank = 0; rank < 2; ++rank) {
    meetings[rank] = std::make_unique<rendezvous>(io, options_of(rank, 2, at), key.duplicate());
    meetings[rank]->join(entry_of(rank), [&, rank](const result<joined>& all) {
      if (!all) return;
      ++ended;
      meetings[rank].reset();
    });
  }
  REQUIRE(run_until(io, [&] { return ended == 2; }));
}

TEST_CASE("invalid options are errors that name the invalid value") {
  asio::io_context io;
  rendezvous_options options;
  options.rank = 4;
  options.world_size = 4;
  party outside(io, options, job_key());
  rendezvous_options fine;
  fine.world_size = 2;
  rendezvous huge(io, fine, job_key());
  member me;
  me.address.resize(member::max_address_bytes + 1);
  std::string text;
  huge.join(me, [&](const result<joined>& all) { text = all ? "" : all.reason().what(); });
  CHECK_THROWS_AS(huge.join(member(), [](const result<joined>&) {}), parley::runtime::failure);
  io.poll();
  CHECK(outside.code() == errc::bad_argument);
  CHECK(outside.text().find("rank 4 of 4") != std::string::npos);
  CHECK(text.find("8193") != std::string::npos);
}

TEST_CASE("a rendezvous beyond loopback needs a key, on both sides") {
  asio::io_context io;
  for (const rank_id rank : {0U, 1U}) {
    rendezvous_options options;
    options.rank = rank;
    options.world_size = 2;
    options.host = "0.0.0.0";
    options.port = 1;
    party wide(io, options, job_key());
    REQUIRE(run_until(io, [&] { return wide.outcome.has_value(); }));
    CHECK(wide.code() == errc::unauthenticated);
    CHECK(wide.text().find("PARLEY_KEY_FILE") != std::string::npos);
  }
}

TEST_CASE("a rank joins a rendezvous beyond loopback without a key only if its options allow insecure exposure") {
  asio::io_context io;
  listener at;
  ::close(std::exchange(at.fd, -1));  // a free port
  const auto wide = [&](rank_id rank, exposure reach) {
    auto options = options_of(rank, 2, at);
    options.host = "0.0.0.0";
    options.reach = reach;
    return std::make_unique<party>(io, options, job_key());
  };
  parties ranks;
  ranks.push_back(wide(0, exposure::insecure));
  const auto without = wide(1, exposure::loopback_without_key);
  REQUIRE(run_until(io, [&] { return without->outcome.has_value(); }));
  CHECK(without->code() == errc::unauthenticated);
  CHECK(without->text().find("job_options::reach") != std::string::npos);
  CHECK_FALSE(ranks[0]->outcome);
  ranks.push_back(wide(1, exposure::insecure));
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  for (const auto& rank : ranks) CHECK_FALSE(rank->outcome->value().authenticated);
}

TEST_CASE("a port in use is an error with the address") {
  asio::io_context io;
  const listener taken;
  auto options = options_of(0, 2, taken);
  options.listening_fd = -1;
  party second(io, options, job_key());
  REQUIRE(run_until(io, [&] { return second.outcome.has_value(); }));
  CHECK(second.code() == errc::io);
  CHECK(second.text().find("127.0.0.1:" + std::to_string(taken.port)) != std::string::npos);
  ::close(taken.fd);
}

TEST_CASE("an inherited descriptor that does not listen is refused") {
  asio::io_context io;
  rendezvous_options options;
  options.world_size = 2;
  options.listening_fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  party host(io, options, job_key());
  REQUIRE(run_until(io, [&] { return host.outcome.has_value(); }));
  CHECK(host.code() == errc::bad_argument);
  CHECK(host.text().find("PARLEY_RENDEZVOUS_FD") != std::string::npos);
}
