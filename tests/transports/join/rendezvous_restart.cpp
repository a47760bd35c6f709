// Ranks that restart as new processes: who is admitted, what the new process receives, and what the other ranks hear.
#include <parley/tests/transports/join/rendezvous_fixture.hpp>

#include <parley/runtime/time/reactor.hpp>
#include <parley/runtime/wire/incarnations.hpp>

#include <doctest/doctest.h>

#include <poll.h>

using namespace rendezvous_test;
using parley::runtime::restarts_of;

namespace {

constexpr std::uint32_t most = 2;

rendezvous_options may_restart(rank_id rank, rank_id world, const listener& at, std::uint32_t restarts = 0) {
  rendezvous_options o = options_of(rank, world, at);
  o.max_restarts = most;
  o.restarts = restarts;
  // the fixture's addresses have 100 bytes or more
  o.is_address = [](std::span<const std::byte> bytes) { return bytes.size() >= 100; };
  return o;
}

/// A running job.
struct running {
  explicit running(rank_id size) : world(size) {
    for (rank_id r = 0; r < world; ++r) ranks.push_back(std::make_unique<party>(io, may_restart(r, world, at), key));
    REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  }
  std::unique_ptr<party> come(rank_id rank, std::uint32_t restarts) {
    return std::make_unique<party>(io, may_restart(rank, world, at, restarts), key);
  }
  bool ended(const party& p) {
    return run_until(io, [&] { return p.outcome.has_value(); });
  }
  /// Ends `rank`, and waits until all other ranks have declared it lost.
  bool loses(rank_id rank) {
    ranks[rank]->meeting.reset();
    return run_until(io, [&] {
      for (rank_id r = 0; r < world; ++r) {
        if (r != rank && ranks[r]->meeting && ranks[r]->lost.empty()) return false;
      }
      return true;
    });
  }
  bool hears_of_return(rank_id r, std::size_t times = 1) {
    return run_until(io, [&] { return ranks[r]->back.size() == times; });
  }

  asio::io_context io;
  listener at;
  job_key key = job_key::generate();
  rank_id world;
  parties ranks;
};

}  // namespace

TEST_CASE("a dead rank rejoins as a new process, with the job's roster and key, and all other ranks learn of it") {
  running job(3);
  REQUIRE(job.loses(2));
  const auto anew = job.come(2, 1);
  REQUIRE(job.ended(*anew));
  REQUIRE_MESSAGE(anew->in(), anew->text());
  const joined& its = anew->outcome->value();
  const joined& ours = job.ranks[1]->outcome->value();
  CHECK(its.session_key == ours.session_key);
  CHECK(its.roster_digest == ours.roster_digest);
  CHECK(its.authenticated);
  for (const rank_id r : {0U, 1U}) CHECK(its.members[r] == ours.members[r]);
  CHECK(restarts_of(its.members[2].incarnation) == 1);
  CHECK(its.members[2].incarnation != ours.members[2].incarnation);
  for (const rank_id r : {0U, 1U}) {
    REQUIRE(job.hears_of_return(r));
    CHECK(job.ranks[r]->back[0] == its.members[2]);
    CHECK(job.ranks[r]->lost.size() == 1);
  }
  // The new process is watched like any other, and may be replaced in turn.
  anew->meeting.reset();
  CHECK(run_until(job.io, [&] { return job.ranks[0]->lost.size() == 2 && job.ranks[1]->lost.size() == 2; }));
  const auto last = job.come(2, 2);
  REQUIRE(job.ended(*last));
  CHECK(last->in());
  CHECK(job.hears_of_return(1, 2));
}

TEST_CASE("a process that is not newer than the current one is fenced, whether the current one lives or not") {
  running job(3);
  const auto first_again = job.come(2, 0);
  REQUIRE(job.ended(*first_again));
  CHECK(first_again->code() == errc::fenced);
  REQUIRE(job.loses(2));
  const auto anew = job.come(2, 1);
  REQUIRE(job.ended(*anew));
  REQUIRE(anew->in());
  for (const std::uint32_t restarts : {0U, 1U}) {
    const auto old = job.come(2, restarts);
    REQUIRE(job.ended(*old));
    CHECK(old->code() == errc::fenced);
    CHECK_MESSAGE(old->text().find("refused rank 2") != std::string::npos, old->text());
    CHECK(old->text().find("PARLEY_RESTART_COUNT=1 and this one " + std::to_string(restarts)) != std::string::npos);
  }
  REQUIRE(job.hears_of_return(1));
  CHECK(job.ranks[1]->lost.size() == 1);
  CHECK(anew->lost.empty());
}

TEST_CASE("a rank restarts at most as often as rank 0 allows, and rank 0 never restarts") {
  running job(2);
  REQUIRE(job.loses(1));
  auto options = may_restart(1, 2, job.at, most + 1);
  options.max_restarts = most + 1;
  party eager(job.io, options, job.key);
  REQUIRE(job.ended(eager));
  CHECK(eager.code() == errc::bad_argument);
  CHECK_MESSAGE(eager.text().find("rank 0 has PARLEY_MAX_RESTARTS=2, and this is restart 3") != std::string::npos,
                eager.text());
  const auto last = job.come(1, most);
  REQUIRE(job.ended(*last));
  CHECK(last->in());

  auto zero = options_of(0, 2, job.at);
  zero.listening_fd = -1;
  zero.max_restarts = zero.restarts = 1;
  party usurper(job.io, zero, job.key);
  REQUIRE(job.ended(usurper));
  CHECK(usurper.code() == errc::bad_argument);
}

TEST_CASE("a process without the job's key can neither join a running job, nor learn anything of it") {
  running job(2);
  REQUIRE(job.loses(1));
  party stranger(job.io, may_restart(1, 2, job.at, 1), job_key::generate());
  REQUIRE(job.ended(stranger));
  CHECK(stranger.code() == errc::unauthenticated);
  // A rank is challenged alike, whether it claims the old process's place or a new one's.
  for (const std::uint32_t restarts : {0U, 1U}) {
    auto said = hello_of(1, 2);
    said.incarnation = parley::runtime::incarnation_of(7, restarts);
    raw_client thief(job.at.port);
    thief.send(wire::frame(wire::type::hello, said.encode()));
    REQUIRE(run_until(job.io, [&] { return thief.received().size() >= 83; }));
    CHECK(thief.received()[4] == static_cast<std::byte>(wire::type::challenge));
    thief.send(
        wire::frame(wire::type::proof, {}, wire::connection_key({}, said.encode(), {}), wire::direction::to_host, 0));
    CHECK(run_until(job.io, [&] { return thief.closed(); }));
    CHECK(thief.received().size() == 83);
  }
  CHECK(job.ranks[0]->back.empty());
  const auto anew = job.come(1, 1);
  REQUIRE(job.ended(*anew));
  CHECK(anew->in());
}

TEST_CASE("a job whose ranks may restart needs a key") {
  asio::io_context io;
  const listener at;
  for (const rank_id r : {0U, 1U}) {
    for (const exposure reach : {exposure::loopback_without_key, exposure::insecure}) {
      auto options = may_restart(r, 2, at);
      options.reach = reach;
      party keyless(io, options, job_key());
      REQUIRE(run_until(io, [&] { return keyless.outcome.has_value(); }));
      CHECK(keyless.code() == errc::unauthenticated);
      CHECK(keyless.text().find("PARLEY_KEY_FILE") != std::string::npos);
    }
  }
}

TEST_CASE("each message of a new process wakes a rank 0 that sleeps on its loop's native handle, without a tick") {
  using namespace parley::runtime::literals;
  parley::runtime::reactor loop({.safety_tick_ns = 600_s});
  const listener at;
  const job_key key = job_key::generate();
  asio::io_context elsewhere;
  const party zero(loop.io(), may_restart(0, 2, at), key);
  auto old = std::make_unique<party>(elsewhere, may_restart(1, 2, at), key);
  const auto goes_to_sleep = [&] { return loop.poll() == parley::runtime::reactor::readiness::armed; };
  REQUIRE(run_until(elsewhere, [&] { return goes_to_sleep() && zero.in() && old->in(); }));
  loop.watch([&] { return zero.meeting->descriptors(); });
  old.reset();
  const party anew(elsewhere, may_restart(1, 2, at, 1), key);
  const auto sleeps = [&] {
    pollfd handle{loop.native_handle(), POLLIN, 0};
    return ::poll(&handle, 1, 0) == 0;
  };
  CHECK(run_until(elsewhere, [&] {
    while (!sleeps()) {
      while (!goes_to_sleep()) {}
    }
    return anew.in() && zero.back.size() == 1;
  }));
}

TEST_CASE("when a successor joins, the other ranks first lose the old process, and the old process learns of it") {
  running job(3);
  const auto anew = job.come(2, 1);
  REQUIRE(job.ended(*anew));
  REQUIRE(anew->in());
  for (const rank_id r : {0U, 1U}) {
    REQUIRE(job.hears_of_return(r));
    REQUIRE(job.ranks[r]->lost.size() == 1);
    CHECK(job.ranks[r]->lost[0].second.find("another process was started in its place") != std::string::npos);
  }
  CHECK(run_until(job.io, [&] { return !job.ranks[2]->lost.empty(); }));
  CHECK(job.ranks[2]->lost[0].first == 2);
  job.ranks[2]->meeting.reset();  // ends the old process only
  anew->meeting->leave();
  CHECK(run_until(job.io, [&] { return job.ranks[1]->left.size() == 1; }));
  CHECK(job.ranks[1]->lost.size() == 1);
}

TEST_CASE("rank 0's own report of a death reaches all ranks, including the reported one") {
  running job(3);
  job.ranks[0]->hold_dead(2, "rank 2 died or was stopped");
  CHECK(run_until(job.io, [&] { return !job.ranks[1]->lost.empty() && !job.ranks[2]->lost.empty(); }));
  CHECK(job.ranks[1]->lost[0].first == 2);
  CHECK(job.ranks[2]->lost[0].first == 2);
  job.ranks[0]->hold_dead(2, "again");
  const auto anew = job.come(2, 1);
  REQUIRE(job.ended(*anew));
  CHECK(job.hears_of_return(1));
  CHECK(job.ranks[1]->lost.size() == 1);
}

TEST_CASE("late death reports about a replaced process, from any host, do not affect its successor") {
  running job(4);
  REQUIRE(job.loses(2));
  const auto anew = job.come(2, 1);
  REQUIRE(job.ended(*anew));
  for (const rank_id r : {0U, 1U, 3U}) REQUIRE(job.hears_of_return(r));
  job.ranks[0]->hold_dead(2, "rank 2 died or was stopped");
  job.ranks[1]->hold_dead(2, "rank 2 died or was stopped");
  job.ranks[1]->meeting->leave();  // the ranks have heard the claims above when they hear that rank 1 leaves
  CHECK(run_until(job.io, [&] { return !job.ranks[0]->left.empty() && !job.ranks[3]->left.empty(); }));
  for (const rank_id r : {0U, 3U}) CHECK(job.ranks[r]->lost.size() == 1);
  CHECK(anew->lost.empty());
}

TEST_CASE("a rank that rejoins learns which ranks are gone, and which ranks rejoin later") {
  running job(4);
  REQUIRE(job.loses(1));
  job.ranks[3]->meeting->leave({1, " is gone"}, {});
  REQUIRE(run_until(job.io, [&] { return job.ranks[2]->left.size() == 1; }));
  job.ranks[2]->meeting.reset();
  REQUIRE(run_until(job.io, [&] { return job.ranks[0]->lost.size() == 2; }));
  const auto two = job.come(2, 1);
  REQUIRE(job.ended(*two));
  REQUIRE(two->in());
  CHECK(run_until(job.io, [&] { return two->lost.size() == 1 && two->left.size() == 1; }));
  CHECK(two->lost[0].first == 1);
  CHECK(two->left[0] == std::pair<rank_id, parley::runtime::root_cause>{3, {1, " is gone"}});
  const auto one = job.come(1, 1);
  REQUIRE(job.ended(*one));
  REQUIRE(one->in());
  CHECK(one->outcome->value().members[2] == two->outcome->value().members[2]);
  CHECK(run_until(job.io, [&] { return two->back.size() == 1; }));
  CHECK(two->back[0] == one->outcome->value().members[1]);
  // It hears only of rank 3's end: rank 2, which has ended too, is there again.
  CHECK(run_until(job.io, [&] { return one->left.size() == 1; }));
  CHECK(one->lost.empty());
}

TEST_CASE("a new process must run on the host and machine kind of the process before it") {
  running job(2);
  REQUIRE(job.loses(1));
  for (const bool moved : {true, false}) {
    member me = entry_of(1);
    if (moved) {
      me.host += 1;
    } else {
      me.kind = "another machine";
    }
    party elsewhere(job.io, may_restart(1, 2, job.at, 1), job.key, me);
    REQUIRE(job.ended(elsewhere));
    CHECK(elsewhere.code() == errc::bad_argument);
    CHECK_MESSAGE(elsewhere.text().find("on the same host and the same kind of machine as the process before it") !=
                      std::string::npos,
                  elsewhere.text());
  }
  CHECK(job.ranks[0]->back.empty());
  const auto anew = job.come(1, 1);
  REQUIRE(job.ended(*anew));
  CHECK(anew->in());
}

TEST_CASE("a new process whose entry has no address is refused, and no other rank learns of it") {
  running job(3);
  REQUIRE(job.loses(2));
  const std::uint64_t before = job.ranks[0]->meeting->dropped_clients();
  const party garbled(job.io, may_restart(2, 3, job.at, 1), job.key, this_process(wire::bytes(4)));
  REQUIRE(job.ended(garbled));
  CHECK_FALSE(garbled.in());
  CHECK(job.ranks[0]->meeting->dropped_clients() == before + 1);
  const auto anew = job.come(2, 1);
  REQUIRE(job.ended(*anew));
  CHECK(anew->in());
  for (const rank_id r : {0U, 1U}) {
    REQUIRE(job.hears_of_return(r));
    CHECK(job.ranks[r]->lost.size() == 1);
    CHECK(job.ranks[r]->back[0].address == anew->outcome->value().members[2].address);
  }
}

TEST_CASE("crowds of idle clients, and their garbage, do no harm to a running job") {
  running job(2);
  REQUIRE(job.loses(1));
  const auto dropped = [&] { return job.ranks[0]->meeting->dropped_clients(); };
  const std::uint64_t before = dropped();
  std::vector<std::unique_ptr<raw_client>> crowd;
  for (int i = 0; i < 7; ++i) crowd.push_back(std::make_unique<raw_client>(job.at.port));
  CHECK(run_until(job.io, [&] { return dropped() == before + 3; }));
  for (auto& client : crowd) client->send(wire::frame(wire::type::restarted, wire::bytes(100)));
  CHECK(run_until(job.io, [&] { return dropped() == before + 7; }));
  const auto anew = job.come(1, 1);
  REQUIRE(job.ended(*anew));
  CHECK(anew->in());
}

TEST_CASE("no rank can join late if restarts are not allowed, or after rank 0 has left") {
  {
    asio::io_context io;
    const listener at;
    const auto key = job_key::generate();
    auto ranks = start_world(io, 2, key, at);
    REQUIRE(run_until(io, [&] { return all_in(ranks); }));
    CHECK_FALSE(raw_client(at.port).connected());
  }
  running job(2);
  REQUIRE(job.loses(1));
  job.ranks[0]->meeting->leave();
  auto options = may_restart(1, 2, job.at, 1);
  options.join_timeout_ns = 300_ms;
  party late(job.io, options, job.key);
  REQUIRE(job.ended(late));
  CHECK(late.code() == errc::timeout);
}

TEST_CASE("a process that restarts while the ranks still join replaces the process before it") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  party host(io, may_restart(0, 3, at), key);
  party old(io, may_restart(1, 3, at), key);
  REQUIRE(run_until(io, [&] { return host.meeting->descriptors().size() == 2; }));
  party anew(io, may_restart(1, 3, at, 1), key);
  CHECK(run_until(io, [&] { return old.outcome.has_value(); }));
  CHECK_FALSE(old.in());
  party two(io, may_restart(2, 3, at), key);
  CHECK(run_until(io, [&] { return host.in() && anew.in() && two.in(); }));
  CHECK(restarts_of(host.outcome->value().members[1].incarnation) == 1);
  CHECK(host.back.empty());
}
