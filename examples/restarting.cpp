// A rank dies, is started again, and the job continues. Rank 0 counts with the help of rank 1, which kills itself
// half-way.
//
//     parley run -n 2 --restarts 1 ./restarting
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

using namespace parley::literals;

namespace {

constexpr std::uint64_t last = 1'000;

parley::transfer declare_counter(parley::rank& self) {
  return parley::transfer(self, {.name = "counter",
                                 .edges = {{0, 1}, {1, 0}},
                                 .configs = {parley::configs::direct(), parley::configs::chunked(64_KiB)}});
}

parley::task<std::uint64_t> next_after(std::uint64_t count, parley::transfer& counter) {
  co_await counter.send(std::span(&count, 1), {.to = 1});
  std::uint64_t next = 0;
  co_await counter.receive(std::span(&next, 1), {.from = 1});
  co_return next;
}

// The two errors that can end a call in flight when its peer restarts: `peer_failed` if the death was noticed before
// the new process arrived, `peer_restarted` otherwise.
bool is_of_a_restart(const parley::error& e) {
  return e.code() == parley::errc::peer_failed || e.code() == parley::errc::peer_restarted;
}

parley::task<> count_with_rank_1(parley::rank& self) {
  parley::transfer counter = declare_counter(self);
  for (std::uint64_t count = 0; count < last;) {
    const std::uint64_t restarts = self.restarts_heard();
    std::string why;
    try {
      count = co_await next_after(count, counter);
    } catch (const parley::failure& ended) {
      if (!is_of_a_restart(ended.reason())) throw;
      why = ended.what();
    }
    if (why.empty()) continue;
    std::printf("at %llu: %s\n", static_cast<unsigned long long>(count), why.c_str());
    const bool back = co_await self.until_restart(restarts, 30s);
    if (!back) parley::runtime::raise({parley::errc::timeout, "rank 1 did not come back: " + why});
    // Transfers between two ranks continue without further calls. A group, a pipeline or another op of more ranks
    // needs a call of its `rejoin` here.
  }
  std::printf("counted to %llu, with %llu restarts\n", static_cast<unsigned long long>(last),
              static_cast<unsigned long long>(self.restarts_heard()));
}

parley::task<> help(parley::rank& self) {
  parley::transfer counter = declare_counter(self);
  for (std::uint64_t count = 0; count < last;) {
    co_await counter.receive(std::span(&count, 1), {.from = 0});
    if (count == last / 2 && self.own_restarts() == 0) std::raise(SIGKILL);
    ++count;
    co_await counter.send(std::span(&count, 1), {.to = 0});
  }
}

parley::task<> rank_main(parley::rank& self) {
  if (self.id() == 0) co_await count_with_rank_1(self);
  if (self.id() == 1) co_await help(self);
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("A rank kills its own process, and the others continue when it comes back.");
  if (const auto status = line.read(argv[0], {argv + 1, argv + argc})) return *status;
  return parley::run(argc, argv, rank_main);
}
