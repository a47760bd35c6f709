// Ranks that throw: how such a rank ends, and that each of the other ranks hears of it.
#include <parley/tests/ops/job/processes/scenarios.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/processes.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/dataflow.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/p2p.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <csignal>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests::processes;
using parley::tests::is;
using parley::tests::pair_of;

namespace {

// Rank 0 sends from memory of the frame that throws. Rank 1 is busy meanwhile, so the messages queue up at rank 0.
task<> throw_amid_sends(rank& self, transfer t) {
  std::vector<std::byte> hello(100);
  scope& here = co_await this_scope;
  if (self.id() == 0) {
    co_await t.send(hello, {.to = 1});
    const std::vector<std::byte> large(2'000'000);
    scope sends(here);
    sends.spawn(t.send(large, {.to = 1}));
    co_await rest(self.where(), 20_ms);
    throw std::runtime_error("the engine gives up");
  }
  const auto got = co_await t.receive(hello, {.from = 0});
  static_cast<void>(got);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
}
void throws_amid_sends(job& here) {
  transfer t(here.self(), pair_of({chunked(4'000, 1'000)}));
  run(here.loop(), throw_amid_sends(here.self(), t));
}
const scenario as_throws_amid_sends{"throws_amid_sends", throws_amid_sends};

}  // namespace

TEST_CASE("a rank that throws while it sends ends with its own exception, though its payload is gone") {
  const job_run run("throws_amid_sends", 2);
  CHECK(run.end.status == 1);
  for (const auto& rank : run.end.ranks)
    CHECK_MESSAGE((rank.kind == transports::rank_end::how::exited || rank.by_launcher), run.all);
  CHECK_MESSAGE(run.says(0, {"rank 0", "the engine gives up"}), run.all);
}

namespace {

constexpr rank_id throws = 1;
constexpr int last_round = 10;
void compute(std::chrono::milliseconds span) { std::this_thread::sleep_for(span); }
/// `busy`: rank 2 comes late to the last round, so that it still has to receive when the connection ends. Rank 0, which tells the others
/// how rank 1 ended, computes meanwhile.
task<> around(rank& self, p2p ring, std::size_t bytes, bool busy) {
  const rank_id ranks = self.world_size();
  const rank_id next = (self.id() + 1) % ranks;
  const rank_id previous = (self.id() + ranks - 1) % ranks;
  const std::vector<std::byte> mine(bytes);
  std::vector<std::byte> came(mine.size());
  for (int round = 0;; ++round) {
    dataflow flow(co_await this_scope);
    if (busy && round == last_round && self.id() == 2) compute(std::chrono::milliseconds(100));
    auto both = ring.start(flow, {p2p::isend(mine, {.to = next}), p2p::irecv(came, {.from = previous})});
    if (round == last_round && self.id() == throws) throw std::runtime_error("planted in the engine");
    if (busy && round == last_round && self.id() == 0) compute(std::chrono::milliseconds(500));
    co_await both;
    co_await flow.join();
  }
}
void throws_in_a_ring(job& here, std::size_t bytes, bool busy = false) {
  const p2p ring(here.self(), {.name = "ring"});
  run(here.loop(), around(here.self(), ring, bytes, busy));
}
void throws_in_a_large_ring(job& here) { throws_in_a_ring(here, std::size_t{8} << 20U); }  // UCX moves the data
void throws_in_a_ring_that_lends(job& here) {
  throws_in_a_ring(here, std::size_t{1} << 20U);
}  // the receivers read the data
void throws_while_rank_0_computes(job& here) { throws_in_a_ring(here, std::size_t{8} << 20U, true); }
const scenario as_throws_in_a_large_ring{"throws_in_a_large_ring", throws_in_a_large_ring};
const scenario as_throws_in_a_ring_that_lends{"throws_in_a_ring_that_lends", throws_in_a_ring_that_lends};
const scenario as_throws_while_rank_0_computes{"throws_while_rank_0_computes", throws_while_rank_0_computes};

}  // namespace

TEST_CASE("when one rank of a ring throws, every other rank reports it, even one that heard of it from a neighbour") {
  for (const char* ring : {"throws_in_a_large_ring", "throws_in_a_ring_that_lends"}) {
    for (int again = 0; again < 5; ++again) {
      const job_run run(ring, 4);
      CHECK(run.end.status == 1);
      for (const rank_id r : {rank_id{0}, rank_id{1}, rank_id{2}, rank_id{3}})
        CHECK_MESSAGE(run.says(r, {"parley: rank", "planted in the engine"}), run.all);
    }
  }
}

TEST_CASE("a rank whose connection ends before the reason arrives waits for the reason, and reports it") {
  const job_run run("throws_while_rank_0_computes", 4);
  CHECK(run.end.status == 1);
  for (const rank_id r : {rank_id{0}, rank_id{1}, rank_id{2}, rank_id{3}})
    CHECK_MESSAGE(run.says(r, {"parley: rank", "planted in the engine"}), run.all);
}

namespace {

void throws_a_number(job& here) {
  transfer t(here.self(), towards_rank_0());
  if (here.self().id() == 1) throw 42;
  run_to_its_error(here, wait_for_a_message(t));
}
const scenario as_throws_a_number{"throws_a_number", throws_a_number};

}  // namespace

TEST_CASE(
    "a rank that throws no std::exception exits with an error that says so, and the other rank quotes that error") {
  const job_run run("throws_a_number", 2);
  CHECK(run.end.ranks[1].kind == transports::rank_end::how::exited);
  // The library writes this sentence only for a rank that throws an object that is not a std::exception.
  const std::string said =
      "exception: the program threw an object that is not a std::exception; throw a std::exception, so that its "
      "text can be shown";
  CHECK_MESSAGE(run.says(1, {("rank 1: " + said).c_str()}), run.all);
  CHECK_MESSAGE(
      is(run.error_of(0, "last call"),
         {.code = errc::peer_failed, .op = "activations 1->0", .rank = 0, .peer = 1, .culprit = 1, .quotes = said}),
      run.all);
}

namespace {

/// Stops this process after 150 ms, for 500 ms.
void stop_soon() {
  const pid_t me = ::getpid();
  if (::fork() != 0) return;
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  ::kill(me, SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  ::kill(me, SIGCONT);
  ::_exit(0);
}
/// So many messages that some arrive after the refusal.
constexpr int many = 100;
task<> receive_many(transfer t) {
  std::vector<std::byte> buffer(200'000);
  for (int i = 0; i < many; ++i) co_await t.receive(buffer, {.from = 0});
}
task<> send_many(transfer t) {
  const std::vector<std::byte> buffer(200'000);
  for (int i = 0; i < many; ++i) co_await t.send(buffer, {.to = 1});
}
/// Rank 0 refuses the declaration of rank 1, and ends, while rank 1 is stopped.
void ends_after_a_refusal(job& here) {
  auto op = pair_of({direct()});
  if (here.self().id() == 1) {
    op.dtype = "fp32";
    stop_soon();
    run_to_its_error(here, receive_many(transfer(here.self(), op)));
  } else {
    run(here.loop(), rest(here.loop(), 350_ms));
    run_to_its_error(here, send_many(transfer(here.self(), op)));
  }
}
const scenario as_ends_after_a_refusal{"ends_after_a_refusal", ends_after_a_refusal};

}  // namespace

// By chance the news of rank 0's end may still be heard first. It has the same words, and no config is blamed.
TEST_CASE("when a rank refuses an op and ends at once, both ranks report the difference, and neither blames a config") {
  for (int again = 0; again < 5; ++again) {
    const job_run run("ends_after_a_refusal", 2, {{"PARLEY_DETECTION", "10"}});
    for (const rank_id r : {rank_id{0}, rank_id{1}}) {
      CHECK_MESSAGE(run.says(r, {"parley: rank", "rank 1 declares dtype fp32"}), run.all);
      CHECK_MESSAGE(run.error_of(r, "last call").code() != errc::config_failed, run.all);
    }
  }
}
