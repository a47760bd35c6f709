// An engine that owns its loop and polls parley between steps of its own.
//
//     parley run -n 2 ./polling_engine
//
// The engine never blocks in parley: `poll` moves everything on by what is ready at that moment. A real engine would launch
// kernels where this one counts.
#include "neighbours.hpp"

namespace {

void serve(parley::job& here) {
  // The coroutine runs in the turns of the loop; `exchanged` is the engine's handle on it.
  parley::work<> exchanged = parley::start(here.loop(), neighbours::exchange(here.self()));

  unsigned long long engine_steps = 0;
  while (!exchanged.done()) {
    ++engine_steps;
    here.loop().poll();
  }
  exchanged.wait();  // it has ended; this throws what it threw
  neighbours::report(here.self(), "the engine", engine_steps);
}

}  // namespace

int main() { return parley::run(serve); }
