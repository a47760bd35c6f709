#include <parley/tests/support/fair_stopwatch.hpp>
#include <parley/tests/transports/join/rendezvous_fixture.hpp>

#include <doctest/doctest.h>

#include <linux/filter.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>

using namespace rendezvous_test;

namespace {

/// Forks a process that joins as one rank and then waits to be killed.
pid_t fork_rank(const rendezvous_options& options, const job_key& key) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  {
    asio::io_context io;
    rendezvous meeting(io, options, key.duplicate());
    bool failed = false;
    meeting.join(entry_of(options.rank), [&](const result<joined>& all) { failed = !all; });
    while (!failed) {
      io.restart();
      io.run_for(std::chrono::seconds(1));
    }
  }
  ::_exit(3);
}

void kill_and_reap(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
}

}  // namespace

TEST_CASE("all other ranks learn of a killed rank at once") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  const pid_t victim = fork_rank(options_of(2, 4, at), key);
  parties ranks;
  for (const rank_id rank : {0U, 1U, 3U}) {
    ranks.push_back(std::make_unique<party>(io, options_of(rank, 4, at), key));
  }
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  const parley::tests::fair_stopwatch since;
  kill_and_reap(victim);
  CHECK(run_until(io, [&] {
    for (const auto& rank : ranks) {
      if (rank->lost.empty()) return false;
    }
    return true;
  }));
  CHECK(since.took() < std::chrono::seconds(1));
  for (const auto& rank : ranks) {
    REQUIRE(rank->lost.size() == 1);
    CHECK(rank->lost[0].first == 2);
    CHECK(rank->lost[0].second.find("rank 2 died") != std::string::npos);
  }
}

namespace {

/// Ranks 0 and 1 on one host, 2 and 3 on another.
parties on_two_hosts(asio::io_context& io, const job_key& key, const listener& at) {
  parties ranks;
  for (rank_id rank = 0; rank < 4; ++rank) {
    member me = entry_of(rank);
    me.host = 7 + rank / 2;
    ranks.push_back(std::make_unique<party>(io, options_of(rank, 4, at), key, me));
  }
  return ranks;
}

}  // namespace

TEST_CASE("a rank's report of the death of another rank of its host reaches all ranks, including the reported one") {
  asio::io_context io;
  const listener at;
  const parties ranks = on_two_hosts(io, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  ranks[3]->hold_dead(2, "rank 2 was stopped");
  CHECK(run_until(
      io, [&] { return std::none_of(ranks.begin(), ranks.end(), [](const auto& r) { return r->lost.empty(); }); }));
  for (const auto& rank : ranks) {
    REQUIRE(rank->lost.size() == 1);
    CHECK(rank->lost[0] == std::pair<rank_id, std::string>(2, "rank 2 was stopped"));
  }
}

namespace {

/// Drops all incoming packets of the rank's connections before they are acknowledged, as if its cable were cut.
void cut_off(const party& rank) {
  sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &drop};
  for (const int fd : rank.meeting->descriptors()) {
    REQUIRE(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0);
  }
}

}  // namespace

TEST_CASE("ranks of a host that falls silent are lost together, and all other ranks stay") {
  asio::io_context io;
  const auto key = job_key::generate();
  const auto elsewhere = [&](rank_id first, const listener& at) {
    parties ranks;
    for (rank_id rank = 0; rank < 4; ++rank) {
      member me = entry_of(rank);
      me.host = rank < first ? 7 : 8;
      ranks.push_back(std::make_unique<party>(io, options_of(rank, 4, at), key, me));
    }
    return ranks;
  };
  const listener here;
  const listener there;
  const parties near_0 = elsewhere(1, here);
  const parties far_from_0 = elsewhere(2, there);
  REQUIRE(run_until(io, [&] { return all_in(near_0) && all_in(far_from_0); }));
  for (const auto& rank : far_from_0) cut_off(*rank);
  cut_off(*near_0[1]);
  // Rank 0 hears rank 2 for 2 s longer than rank 1, so the kernel gives it up that much later.
  const parley::tests::fair_stopwatch since;
  run_until(io, [&] { return since.took() > std::chrono::seconds(2); });
  near_0[2]->hold_dead(2, "what a rank says of itself is heard, and counts for nothing");
  run_until(io, [&] { return since.took() > std::chrono::milliseconds(2200); });
  cut_off(*near_0[2]);

  REQUIRE(run_until(io, [&] { return !near_0[3]->lost.empty(); }));
  const parley::tests::fair_stopwatch since_the_first;
  CHECK(run_until(io, [&] { return near_0[3]->lost.size() == 2 && near_0[0]->lost.size() == 2; }));
  CHECK(since_the_first.took() < std::chrono::milliseconds(500));
  for (const rank_id rank : {0U, 3U}) {
    auto lost = near_0[rank]->lost;
    std::sort(lost.begin(), lost.end());
    REQUIRE(lost.size() == 2);
    for (const rank_id gone : {1U, 2U}) {
      CHECK(lost[gone - 1].first == gone);
      CHECK(lost[gone - 1].second.find("rank " + std::to_string(gone) + " died: ") == 0);
    }
  }

  CHECK(run_until(io, [&] {
    return std::all_of(far_from_0.begin() + 1, far_from_0.end(), [](const auto& r) { return !r->lost.empty(); });
  }));
  CHECK(far_from_0[1]->lost.size() == 1);
  for (const rank_id rank : {2U, 3U}) {
    REQUIRE(far_from_0[rank]->lost.size() == 2);
    CHECK(far_from_0[rank]->lost[0].first == 0);
    CHECK(far_from_0[rank]->lost[1].first == 1);
  }
}

TEST_CASE("a rank's claim that a rank of another host, itself, rank 0 or an unknown rank has died is ignored") {
  asio::io_context io;
  const listener at;
  parties ranks = on_two_hosts(io, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  for (const rank_id rank : {0U, 1U, 2U, 3U, 9U}) ranks[1]->hold_dead(rank, "it says so");
  ranks[1]->meeting->leave();  // rank 0 has heard the claims above when it hears that rank 1 leaves
  CHECK(run_until(io, [&] { return !ranks[0]->left.empty() && !ranks[2]->left.empty() && !ranks[3]->left.empty(); }));
  for (const auto& rank : ranks) CHECK(rank->lost.empty());
}

TEST_CASE("every rank learns that rank 0 was killed") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  const pid_t victim = fork_rank(options_of(0, 3, at), key);
  ::close(at.fd);
  parties ranks;
  for (const rank_id rank : {1U, 2U}) ranks.push_back(std::make_unique<party>(io, options_of(rank, 3, at), key));
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  kill_and_reap(victim);
  CHECK(run_until(io, [&] { return !ranks[0]->lost.empty() && !ranks[1]->lost.empty(); }));
  for (const auto& rank : ranks) {
    REQUIRE(rank->lost.size() == 1);
    CHECK(rank->lost[0].first == 0);
  }
}

TEST_CASE("a death of rank 0 during the join ends the join of waiting ranks with peer_failed") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  auto host = std::make_unique<party>(io, options_of(0, 3, at), key);
  party guest(io, options_of(1, 3, at), key);
  // With two descriptors (the listening socket and a connection), rank 0 has a rank 1. It recognises the first before it refuses a second.
  std::optional<party> probe;
  REQUIRE(run_until(io, [&] {
    if (!probe && host->meeting->descriptors().size() == 2) probe.emplace(io, options_of(1, 3, at), key);
    return probe && (probe->outcome || guest.outcome);
  }));
  host.reset();
  party& waiting = probe->outcome ? guest : *probe;
  CHECK(run_until(io, [&] { return waiting.outcome.has_value(); }));
  CHECK(waiting.code() == errc::peer_failed);
}

TEST_CASE("a rank that leaves is not reported as dead") {
  asio::io_context io;
  const listener at;
  auto ranks = start_world(io, 3, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  ranks[1]->meeting->leave();
  REQUIRE(run_until(io, [&] { return ranks[0]->meeting->descriptors().size() == 1; }));
  ranks[0]->meeting->leave();
  REQUIRE(run_until(io, [&] { return ranks[2]->meeting->descriptors().empty(); }));
  for (const auto& rank : ranks) CHECK(rank->lost.empty());
}

TEST_CASE("all ranks learn of a rank that leaves, with the error that ended it") {
  asio::io_context io;
  const listener at;
  auto ranks = start_world(io, 3, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  ranks[1]->meeting->leave({1, std::string(100'000, 'e')}, {});
  CHECK(run_until(io, [&] { return ranks[0]->left.size() == 1 && ranks[2]->left.size() == 1; }));
  for (const rank_id r : {rank_id{0}, rank_id{2}}) {
    REQUIRE(ranks[r]->left.size() == 1);
    CHECK(ranks[r]->left[0].first == 1);
    CHECK(ranks[r]->left[0].second.rank == 1);
    CHECK(ranks[r]->left[0].second.what.starts_with("eeee"));
    CHECK(ranks[r]->left[0].second.what.size() < 1000);
  }
  ranks[0]->meeting->leave();
  CHECK(run_until(io, [&] { return ranks[2]->left.size() == 2; }));
  CHECK(ranks[2]->left.back().first == 0);
  CHECK(ranks[2]->left.back().second.what.empty());
  for (const auto& rank : ranks) CHECK(rank->lost.empty());
}

TEST_CASE("a leaving rank passes on its root cause, and is notified once all others have received it") {
  asio::io_context io;
  const listener at;
  auto ranks = start_world(io, 4, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  const parley::runtime::root_cause cause{3, " is gone: it was killed"};
  int told = 0;
  ranks[2]->meeting->leave(cause, [&] {
    ++told;
    // The host's messages are in their sockets already.
    io.poll();
    CHECK(ranks[1]->left.size() == 1);
  });
  CHECK(told == 0);
  CHECK(run_until(io, [&] { return told == 1 && ranks[3]->left.size() == 1; }));
  for (const rank_id r : {0U, 1U, 3U}) {
    REQUIRE(ranks[r]->left.size() == 1);
    CHECK(ranks[r]->left[0] == std::pair<rank_id, parley::runtime::root_cause>{2, cause});
  }
  ranks[0]->meeting->leave(cause, [&] { ++told; });  // rank 0 tells all ranks itself
  CHECK(told == 2);
  CHECK(run_until(io, [&] { return ranks[1]->left.size() == 2; }));
  CHECK(ranks[1]->left[1] == std::pair<rank_id, parley::runtime::root_cause>{0, cause});
  ranks[1]->meeting->leave(cause, [&] { ++told; });  // nobody is left who could tell others
  CHECK(told == 3);
  for (const auto& rank : ranks) CHECK(rank->lost.empty());
}

TEST_CASE("a leaving rank that waits for rank 0 to pass on its error is notified, even if rank 0 is gone") {
  asio::io_context io;
  const listener at;
  auto ranks = start_world(io, 2, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  ranks[0]->meeting.reset();
  bool told = false;
  ranks[1]->meeting->leave({1, " ended with timeout"}, [&] { told = true; });
  CHECK(run_until(io, [&] { return told; }));
  CHECK(ranks[1]->lost.empty());
}

TEST_CASE("a rank that is destroyed without leaving counts as dead") {
  asio::io_context io;
  const listener at;
  auto ranks = start_world(io, 3, job_key::generate(), at);
  REQUIRE(run_until(io, [&] { return all_in(ranks); }));
  ranks[1]->meeting.reset();
  CHECK(run_until(io, [&] { return !ranks[0]->lost.empty() && !ranks[2]->lost.empty(); }));
  CHECK(ranks[2]->lost[0].first == 1);
  ranks[0]->meeting.reset();
  CHECK(run_until(io, [&] { return ranks[2]->lost.size() == 2; }));
  CHECK(ranks[2]->lost[1].first == 0);
}

TEST_CASE("the timeout of each rank that arrived names the ranks that never arrived") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  parties ranks;
  for (const rank_id rank : {0U, 2U}) {
    auto options = options_of(rank, 4, at);
    options.join_timeout_ns = 1_s;
    ranks.push_back(std::make_unique<party>(io, options, key));
  }
  REQUIRE(run_until(io, [&] { return ranks[0]->outcome && ranks[1]->outcome; }));
  for (const auto& rank : ranks) {
    CHECK(rank->code() == errc::timeout);
    CHECK(rank->text().find("ranks 1 and 3 of 4 never came") != std::string::npos);
    CHECK(rank->text().find("PARLEY_RENDEZVOUS") != std::string::npos);
  }
}

TEST_CASE("rank 0's timeout says that a client was refused, and how many") {
  asio::io_context io;
  const listener at;
  auto options = options_of(0, 2, at);
  options.join_timeout_ns = 1_s;
  party host(io, options, job_key::generate());
  party stranger(io, options_of(1, 2, at), job_key::generate());
  REQUIRE(run_until(io, [&] { return host.outcome.has_value(); }));
  CHECK(host.text().find("rank 1 of 2 never came") != std::string::npos);
  CHECK(host.text().find("1 client was refused") != std::string::npos);
}

TEST_CASE("a rank's timeout names the address of a missing rank 0") {
  asio::io_context io;
  listener at;
  ::close(std::exchange(at.fd, -1));
  auto options = options_of(1, 2, at);
  options.join_timeout_ns = 60_ms;
  party guest(io, options, job_key::generate());
  REQUIRE(run_until(io, [&] { return guest.outcome.has_value(); }));
  CHECK(guest.code() == errc::timeout);
  CHECK(guest.text().find("rank 1 could not meet rank 0 at 127.0.0.1:" + std::to_string(at.port)) != std::string::npos);
}

TEST_CASE("a rank that dies during the join may join again") {
  asio::io_context io;
  const listener at;
  const auto key = job_key::generate();
  party host(io, options_of(0, 3, at), key);
  auto first = std::make_unique<party>(io, options_of(1, 3, at), key);
  REQUIRE(run_until(io, [&] { return host.meeting->descriptors().size() == 2; }));
  first.reset();
  REQUIRE(run_until(io, [&] { return host.meeting->dropped_clients() == 1; }));
  party again(io, options_of(1, 3, at), key);
  party two(io, options_of(2, 3, at), key);
  CHECK(run_until(io, [&] { return host.in() && again.in() && two.in(); }));
  CHECK(host.outcome->value().members[1].incarnation == again.outcome->value().members[1].incarnation);
}
