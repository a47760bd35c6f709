#include <parley/run.hpp>
#include <parley/transfer.hpp>

#include <parley/tests/support/devices/fake_cuda.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/transports/launch/processes.hpp>

#include <parley/transports/join/loopback.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::tests;

namespace {

ops::job_options through(rank_id rank, rank_id size, meeting& all) {
  ops::job_options o;
  o.bootstrap = transports::bootstrap{.rank = rank,
                                      .world_size = size,
                                      .all_gather = [&](std::span<const std::byte> mine) { return all.gather(mine); }};
  return o;
}

ops::transfer_options both_ways() { return {.name = "rows", .edges = {{0, 1}, {1, 0}}, .timeout = 20s}; }

void exchange(ops::transfer& rows, rank_id rank, int step) {
  const std::vector<int> mine(1000, 10 * step + static_cast<int>(rank));
  std::vector<int> theirs(1000);
  auto received = rows.start_receive(theirs, {.from = 1 - rank});
  auto sent = rows.start_send(mine, {.to = 1 - rank});
  received.wait();
  sent.wait();
  PARLEY_EXPECT(theirs == std::vector<int>(1000, 10 * step + static_cast<int>(1 - rank)));
}

}  // namespace

TEST_CASE("processes join through an all-gather of their own, are authenticated, and leave without an error") {
  const auto outcome = run_processes(2, [](rank_id rank, meeting& all) {
    ops::job here(through(rank, 2, all));
    PARLEY_EXPECT(here.authenticated());
    PARLEY_EXPECT(here.self().id() == rank);
    ops::transfer rows(here.self(), both_ways());
    for (int step = 0; step < 20; ++step) exchange(rows, rank, step);
    here.leave();
  });
  CHECK_MESSAGE(outcome.fine(), outcome.text());
}

TEST_CASE(
    "results of a job with a GPU have the validators PARLEY_GPUS and PARLEY_CUDA, even if the program names none") {
  const auto outcome = run_processes(1, [](rank_id rank, meeting& all) {
    fake_cuda gpu;
    for (const bool with_gpu : {true, false}) {
      ops::job_options o = through(rank, 1, all);
      if (with_gpu) o.gpu = &gpu;
      ops::job here(std::move(o));
      const auto file = here.self().results();
      const auto& of = file.validators();
      const auto named = [&](const std::string& name) {
        return std::any_of(of.begin(), of.end(), [&](const auto& v) { return v.name == name; });
      };
      PARLEY_EXPECT(named("PARLEY_PROCESSOR"));
      PARLEY_EXPECT(named("PARLEY_GPUS") == with_gpu);
      PARLEY_EXPECT(named("PARLEY_CUDA") == with_gpu);
      here.leave();
    }
  });
  CHECK_MESSAGE(outcome.fine(), outcome.text());
}

TEST_CASE("a program's validators are added to those of the machine, and its value of a name counts") {
  const auto outcome = run_processes(1, [](rank_id rank, meeting& all) {
    ops::job_options o = through(rank, 1, all);
    o.settings.validators = {{"MY_KERNELS", "7"}, {"PARLEY_UCX", "any"}};
    ops::job here(std::move(o));
    const auto file = here.self().results();
    const auto& of = file.validators();
    const auto count = [&](const std::string& name) {
      return std::count_if(of.begin(), of.end(), [&](const auto& v) { return v.name == name; });
    };
    PARLEY_EXPECT(count("MY_KERNELS") == 1);
    PARLEY_EXPECT(count("PARLEY_PROCESSOR") == 1);
    PARLEY_EXPECT(count("PARLEY_UCX") == 1);
    PARLEY_EXPECT(std::find(of.begin(), of.end(), tuning::validator{"PARLEY_UCX", "any"}) != of.end());
    here.leave();
  });
  CHECK_MESSAGE(outcome.fine(), outcome.text());
}

TEST_CASE("UCX alone notices that a peer was killed after a bootstrap, before the call's timeout") {
  process_options killed;
  killed.killed = {1};
  const auto outcome = run_processes(
      2,
      [](rank_id rank, meeting& all) {
        ops::job here(through(rank, 2, all));
        ops::transfer rows(here.self(), both_ways());
        for (int step = 0; step < 3; ++step) exchange(rows, rank, step);
        if (rank == 1) ::raise(SIGKILL);
        std::vector<int> never_comes(1000);
        auto lost = rows.start_receive(never_comes, {.from = 1}).outcome();
        PARLEY_EXPECT(!lost);
        PARLEY_EXPECT(is(lost, {.code = runtime::errc::peer_failed, .peer = 1, .culprit = 1}));
      },
      killed);
  CHECK_MESSAGE(outcome.fine(), outcome.text());
}

TEST_CASE("without a key, ranks that meet at an address open to other hosts join only if their program allows it") {
  for (const auto reach : {transports::exposure::loopback_without_key, transports::exposure::insecure}) {
    const bool said = reach == transports::exposure::insecure;
    const auto outcome = run_processes(2, [&](rank_id rank, meeting& all) {
      std::uint16_t port = 0;
      if (rank == 0) {
        const transports::loopback_socket free_port = transports::listen_on_loopback();
        ::close(free_port.fd);
        port = free_port.port;
      }
      std::memcpy(&port, all.gather(std::as_bytes(std::span(&port, 1)))[0].data(), sizeof port);
      for (const char* name : {"PARLEY_KEY_FILE", "PARLEY_KEY_FD", "PARLEY_LAUNCHER"}) ::unsetenv(name);
      ::setenv("PARLEY_RANK", std::to_string(rank).c_str(), 1);
      ::setenv("PARLEY_WORLD", "2", 1);
      ::setenv("PARLEY_LOCAL_SIZE", "2", 1);
      ::setenv("PARLEY_RENDEZVOUS", ("0.0.0.0:" + std::to_string(port)).c_str(), 1);
      ops::job_options o;
      o.reach = reach;
      try {
        ops::job here(o);
        PARLEY_EXPECT(said);
        PARLEY_EXPECT(!here.authenticated());
        ops::transfer rows(here.self(), both_ways());
        exchange(rows, rank, 1);
        here.leave();
      } catch (const runtime::failure& f) {
        PARLEY_EXPECT(!said);
        PARLEY_EXPECT(is(f.reason(), {.code = runtime::errc::unauthenticated, .quotes = "job_options::reach"}));
      }
      all.barrier();
    });
    CHECK_MESSAGE(outcome.fine(), outcome.text());
  }
}
