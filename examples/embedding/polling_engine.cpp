// An engine that owns its loop and polls parley between its own steps.
//
//     parley run -n 2 ./polling_engine
//
// The engine never blocks in parley: `poll` only handles what is ready at that moment. A real engine would launch
// kernels where this one counts.
#include "neighbours.hpp"

namespace {

void serve(parley::job& here) {
  // The coroutine runs inside the engine's calls of `poll`. `exchanged` is the engine's handle to it.
  parley::work<> exchanged = parley::start(here.loop(), neighbours::exchange(here.self()));

  unsigned long long engine_steps = 0;
  while (!exchanged.done()) {
    ++engine_steps;
    here.loop().poll();
  }
  exchanged.wait();  // already done; rethrows what the exchange threw, if anything
  neighbours::report(here.self(), "the engine", engine_steps);
}

}  // namespace

int main() { return parley::run(serve); }
