// One sender and one receiver agree on a config while they exchange messages.
//
//     parley run -n 2 ./send_recv [MESSAGES]
//     ./send_recv [MESSAGES] --sim 16             # ranks 2 to 15 are idle
#include "command_line.hpp"

#include <parley/parley.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <vector>

using namespace parley::literals;
namespace configs = parley::configs;

namespace {

int messages = 200;

parley::task<> rank_main(parley::rank& self) {
  parley::transfer acts(self, {.name = "activations",
                               .edges = {{0, 1}},
                               .configs = {configs::direct(), configs::chunked(256_KiB), configs::chunked(1_MiB, 4)}});

  std::vector<std::uint32_t> batch(4_MiB / sizeof(std::uint32_t));
  for (int i = 0; i < messages && !acts.idle(); ++i) {
    if (self.id() == 0) {
      std::fill(batch.begin(), batch.end(), static_cast<std::uint32_t>(i));
      co_await acts.send(batch, {.to = 1});
    } else {
      co_await acts.receive(batch, {.from = 0});
      if (batch.front() != static_cast<std::uint32_t>(i) || batch.back() != static_cast<std::uint32_t>(i))
        parley::runtime::raise({parley::errc::config_failed, "message " + std::to_string(i) + " came out wrong"});
    }
  }

  if (acts.idle()) co_return;
  const auto agreed = acts.decision(4_MiB);  // known to both ranks; `why` says what is missing if undecided
  std::printf("%s %s: %s, %s\n", agreed.op.c_str(), agreed.key.c_str(), agreed.config.c_str(), agreed.why.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  examples::command_line line("One sender, one receiver, and a config that the two agree on while they work.");
  line.count("messages", messages, "how many go from one to the other");
  return line.run(argc, argv, rank_main);
}
