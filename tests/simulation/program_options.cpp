// The command line of a program with --sim: its options for links, and unknown words, which are errors.
#include <parley/p2p.hpp>
#include <parley/program.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::simulation;

namespace {

constexpr std::size_t mebibyte = 1U << 20U;
time_ns took_ns = 0;  // virtual time that the latest program has measured

int run_with(rank_function rank_main, std::vector<std::string> words, program_words own = program_words::none) {
  words.insert(words.begin(), "program");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  took_ns = 0;
  return simulation::run(static_cast<int>(words.size()), argv.data(), rank_main, own);
}

task<> returns(rank&) { co_return; }
rank_id ranks_seen = 0;
task<> counts_ranks(rank& self) {
  ranks_seen = self.world_size();
  co_return;
}

// Rank 0 sends to all others at once, or they all send to it. Measures how long it takes until all messages have arrived.
task<> one_with_all(rank& self, std::size_t bytes, bool outwards, int messages) {
  p2p_options op;
  op.name = "star";
  p2p star(self, op);
  scope& here = co_await this_scope;
  std::vector<std::vector<std::byte>> data(self.world_size() * static_cast<std::size_t>(messages),
                                           std::vector<std::byte>(bytes));
  const time_ns began = self.where().now();
  dataflow flow(here);
  std::vector<p2p_operation> batch;
  std::size_t used = 0;
  for (rank_id peer = 0; peer < self.world_size(); ++peer) {
    if (peer == self.id() || (peer != 0 && self.id() != 0)) continue;
    for (int m = 0; m < messages; ++m) {
      auto& buffer = data[used++];
      const bool sends = (self.id() == 0) == outwards;
      batch.push_back(sends ? star.isend(buffer, {.to = peer, .tag = static_cast<std::uint32_t>(m)})
                            : star.irecv(buffer, {.from = peer, .tag = static_cast<std::uint32_t>(m)}));
    }
  }
  auto all = star.start(flow, batch);
  co_await all;
  co_await flow.join();
  took_ns = std::max(took_ns, self.where().now() - began);
}
task<> all_send_to_one(rank& self) { co_await one_with_all(self, mebibyte, false, 1); }
task<> one_sends_to_all(rank& self) { co_await one_with_all(self, mebibyte, true, 1); }
task<> four_messages(rank& self) { co_await one_with_all(self, mebibyte, true, 4); }
task<> small_ones(rank& self) { co_await one_with_all(self, 8, false, 1); }

time_ns of(rank_function program, std::vector<std::string> words) {
  CHECK(run_with(program, std::move(words)) == 0);
  return took_ns;
}

// How a process that ran the program has ended, and what it printed to standard error.
struct ended_process {
  int status = 0;  // as of waitpid
  std::string said;
};
ended_process in_own_process(rank_function program, std::vector<std::string> words) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM})
      std::signal(s, SIG_DFL);  // doctest has handlers
    ::dup2(ends[1], STDERR_FILENO);
    ::_exit(run_with(program, std::move(words)));
  }
  ::close(ends[1]);
  ended_process all;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; (n = ::read(ends[0], part.data(), part.size())) > 0;)
    all.said.append(part.data(), std::size_t(n));
  ::close(ends[0]);
  REQUIRE(::waitpid(child, &all.status, 0) == child);
  return all;
}

std::vector<rank_id> without_sm_90;
task<> notes_sm_90(rank& self) {
  if (!self.machine().has("sm_90")) without_sm_90.push_back(self.id());
  co_return;
}
template <int signal>
task<> rank_1_raises(rank& self) {
  if (self.id() == 1) ::raise(signal);
  co_return;
}
task<> exchanges_for_ever(rank& self) {
  p2p pair(self, {.name = "pair"});
  std::vector<std::byte> mine(8);
  std::vector<std::byte> theirs(8);
  const rank_id peer = 1 - self.id();
  for (;;) co_await pair.exchange(pair.isend(mine, {.to = peer}), pair.irecv(theirs, {.from = peer}));
}
task<> computes_for_ever(rank& self) {
  for (volatile bool on = self.id() == 0; on;) {}
  co_return;
}

}  // namespace

TEST_CASE("a signal that ends a simulated program is reported with its seed and the rank at work") {
  for (const auto& [program, signal] :
       {std::pair(&rank_1_raises<SIGSEGV>, SIGSEGV), {&rank_1_raises<SIGTERM>, SIGTERM}}) {
    CAPTURE(signal);
    const ended_process all = in_own_process(program, {"--sim", "2", "--seed", "7"});
    CHECK(WIFSIGNALED(all.status));
    CHECK(WTERMSIG(all.status) == signal);
    const std::string name = signal == SIGTERM ? "SIGTERM" : "SIGSEGV";
    CHECK(all.said.find("seed 7, in rank 1: " + name + " came; repeat it: the same command with --seed 7") !=
          std::string::npos);
  }
}

TEST_CASE("PARLEY_MASK hides capabilities of virtual ranks as of real ones") {
  CHECK(run_with(notes_sm_90, {"--sim", "3"}) == 0);
  CHECK(without_sm_90.empty());
  ::setenv("PARLEY_MASK", "1:sm_90", 1);
  const int status = run_with(notes_sm_90, {"--sim", "3"});
  ::unsetenv("PARLEY_MASK");
  CHECK(status == 0);
  CHECK(without_sm_90 == std::vector<rank_id>{1});
}

TEST_CASE("a simulated program that does not end has status 124 at its time limit, and its waiting calls are named") {
  const ended_process waits = in_own_process(exchanges_for_ever, {"--sim", "2", "--time-limit", "1"});
  CHECK(WEXITSTATUS(waits.status) == 124);
  CHECK(waits.said.find("the time limit expired in the run of seed 1, after ") != std::string::npos);
  CHECK(waits.said.find("of pair") != std::string::npos);
  CHECK(waits.said.find("--seed 1 and without --seeds") != std::string::npos);
  const ended_process computes = in_own_process(computes_for_ever, {"--sim", "2", "--time-limit", "1"});
  CHECK(WEXITSTATUS(computes.status) == 124);
  CHECK(computes.said.find("seed 1, in rank 0: the time limit expired, and the rank computes without waiting") !=
        std::string::npos);
}

TEST_CASE("messages of a simulated program share the wires of their ranks, unless --sharing none is given") {
  const time_ns one = of(all_send_to_one, {"--sim", "2"});
  CHECK(of(all_send_to_one, {"--sim", "9"}) > 7 * one);
  CHECK(of(one_sends_to_all, {"--sim", "9"}) > 7 * one);
  CHECK(of(four_messages, {"--sim", "2"}) > 3 * one);
  CHECK(of(small_ones, {"--sim", "300"}) > 2 * of(small_ones, {"--sim", "2"}));
  CHECK(of(all_send_to_one, {"--sim", "9", "--sharing", "none"}) < 2 * one);
  CHECK(of(four_messages, {"--sim", "2", "--sharing", "none"}) < 2 * one);
}

TEST_CASE("a simulated wire has the latency and the bandwidth that the options name") {
  const time_ns usual = of(all_send_to_one, {"--sim", "2"});
  const time_ns slow = of(all_send_to_one, {"--sim", "2", "--bandwidth", "1"});
  CHECK(slow > static_cast<time_ns>(mebibyte));  // 1 GB/s: one nanosecond per byte
  CHECK(slow > 5 * usual);
  CHECK(of(all_send_to_one, {"--sim", "2", "--latency", "1000000"}) > 2'000'000);
  CHECK(of(all_send_to_one, {"--sim", "2", "--links", "free"}) == 0);
}

TEST_CASE("ranks of one simulated host do not use the wire among themselves") {
  // Seven of the eight senders are on the receiver's host; in the other run all senders are elsewhere and share one wire.
  const time_ns all_elsewhere = of(all_send_to_one, {"--sim", "9"});
  CHECK(of(all_send_to_one, {"--sim", "9", "--ranks-per-host", "8"}) < all_elsewhere / 4);
  CHECK(of(one_sends_to_all, {"--sim", "9", "--ranks-per-host", "9"}) < all_elsewhere / 4);
}

TEST_CASE("a word that a simulated program does not read is an error") {
  CHECK(run_with(returns, {"--sim", "2"}) == 0);
  CHECK(run_with(returns, {"--sim", "2", "--wether"}) == 2);
  CHECK(run_with(returns, {"--wether", "--sim", "2"}) == 2);
  CHECK(run_with(returns, {"--sim", "2", "many"}) == 2);
  CHECK(run_with(returns, {"--sim", "2", "many"}, program_words::own) == 0);
  CHECK(run_with(returns, {"--sim", "2", "--strict"}) == 0);
}

TEST_CASE("a repeated option, a number out of range and a seed beyond the last one are errors") {
  CHECK(run_with(returns, {"--sim", "2", "--seed", "1", "--seed", "2"}) == 2);
  CHECK(run_with(returns, {"--sim", "2", "--weather", "--weather"}) == 2);
  CHECK(run_with(returns, {"--sim", "2", "--seed", "18446744073709551616"}) == 2);
  CHECK(run_with(returns, {"--sim", "2", "--seed", "5", "--seeds", "18446744073709551615"}) == 2);
  ranks_seen = 0;
  CHECK(run_with(counts_ranks, {"--sim", "2", "--seed", "18446744073709551615"}) == 0);
  CHECK(ranks_seen == 2);
  for (const world_options& o : {world_options{.ranks = 0}, world_options{.ranks = 2, .detection_ns = 0}})
    CHECK_THROWS_AS(status_of_virtual(o, returns), failure);
  CHECK_THROWS_AS(status_of_virtual({.ranks = 2}, nullptr), failure);
  CHECK_THROWS_AS(status_of_virtual({.ranks = 2}, returns, {.time_limit = std::chrono::seconds(-1)}), failure);
  CHECK_THROWS_AS(status_of_virtual({.ranks = 2}, returns, {.what = static_cast<befalls>(9)}), failure);
}

TEST_CASE("a word that a program does not read is an error, even without virtual ranks") {
  CHECK(run_with(returns, {}) == 0);
  CHECK(run_with(returns, {"--strict"}) == 0);
  CHECK(run_with(returns, {"--wether"}) == 2);
  CHECK(run_with(returns, {"--sim2"}) == 2);
  CHECK(run_with(returns, {"many"}) == 2);
  CHECK(run_with(returns, {"many"}, program_words::own) == 0);
  CHECK(run_with(returns, {"--seed=3"}, program_words::own) == 2);
  CHECK(run_with(returns, {"--weather"}, program_words::own) == 2);
}

TEST_CASE("the value of an option may follow an equals sign") {
  ranks_seen = 0;
  CHECK(run_with(counts_ranks, {"--sim=3"}) == 0);
  CHECK(ranks_seen == 3);
  CHECK(run_with(counts_ranks, {"--sim=2", "--seed=7", "--links=free"}, program_words::own) == 0);
  CHECK(ranks_seen == 2);
  CHECK(run_with(returns, {"--sim="}) == 2);
  CHECK(run_with(returns, {"--sim=two"}) == 2);
  CHECK(run_with(returns, {"--sim=2", "--weather=1"}) == 2);
  const char* const words[] = {"program", "--sim=2", "--steps=3", "--seed", "7", "--strict"};
  CHECK(own_words(6, words) == std::vector<std::string>{"--steps=3"});
}

TEST_CASE("a program that is asked for help ends with status 0, and no rank runs") {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--help"}, {"-h"}, {"--sim", "2", "--help"}}) {
    ranks_seen = 0;
    CHECK(run_with(counts_ranks, words) == 0);
    CHECK(ranks_seen == 0);
  }
}

TEST_CASE("invalid options for links are refused") {
  using words = std::vector<std::string>;
  for (const words& wrong :
       {words{"--sharing", "some"}, words{"--sharing"}, words{"--bandwidth", "0"}, words{"--bandwidth", "-1"},
        words{"--bandwidth", "nan"}, words{"--bandwidth", "1e3"}, words{"--bandwidth", " 1"}, words{"--bandwidth", ""},
        words{"--latency", "-1"}, words{"--latency", "2us"}, words{"--latency", "1000000001"},
        words{"--ranks-per-host", "0"}, words{"--links", "free", "--latency", "5"}, words{"--links", "cheap"}}) {
    CAPTURE(wrong.front());
    CAPTURE(wrong.back());
    words all{"--sim", "2"};
    all.insert(all.end(), wrong.begin(), wrong.end());
    CHECK(run_with(returns, all) == 2);
  }
}
