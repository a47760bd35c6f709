// A program without coroutines, in the style of MPI's non-blocking calls: start, compute, test, wait.
//
//     parley run -n 2 ./no_coroutines
#include "neighbours.hpp"

namespace {

void iterate(parley::job& here) {
  parley::transfer transfer(here.self(), neighbours::rows());
  const parley::rank_id peer = 1 - here.self().id();
  std::vector<std::uint64_t> mine(neighbours::numbers);
  std::vector<std::uint64_t> theirs(neighbours::numbers);

  unsigned long long computed = 0;
  for (int step = 0; step < neighbours::steps; ++step) {
    neighbours::fill(mine, here.self().id(), step);
    parley::work<std::uint64_t> received = transfer.start_receive(theirs, {.from = peer});
    parley::work<> sent = transfer.start_send(mine, {.to = peer});

    while (!received.test()) ++computed;  // in place of a few inner points; `test` also moves the data on

    const std::uint64_t bytes = received.wait();
    sent.wait();
    if (bytes != theirs.size() * sizeof theirs[0]) parley::runtime::raise({parley::errc::config_failed, "a short row"});
    neighbours::check(theirs, peer, step);
  }
  neighbours::report(here.self(), "the solver", computed);
}

}  // namespace

int main() { return parley::run(iterate); }
