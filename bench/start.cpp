// How long a rank takes to start: from just before its image is loaded until it has joined its job and exchanged one
// message with its neighbour, on the slower of two ranks. The launcher's own time is not counted.
//
//     start --only start
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/parley.hpp>

#include <array>
#include <cstdint>

namespace {

parley::task<> exchange_one(parley::rank& self) {
  parley::transfer token(self, {.name = "token", .role = {}, .edges = {{0, 1}, {1, 0}}});
  const parley::rank_id other = 1 - self.id();
  const std::array<std::uint64_t, 1> mine{self.id()};
  std::array<std::uint64_t, 1> theirs{};
  co_await token.send(mine, {.to = other});
  co_await token.receive(theirs, {.from = other});
  if (theirs[0] != other) parley::bench::give_up("the token is wrong");
}

}  // namespace

int main(int argc, char** argv) {
  using namespace parley::bench;
  if (!is_rank()) {
    const auto figures = run_ranks(2, argc, argv);
    report("rank_start", std::max(figure(figures[0], "started"), figure(figures[1], "started")), "ns");
    return 0;
  }
  const std::int64_t loaded = load_time_ns(argv);
  return parley::run([&](parley::job& here) {
    parley::runtime::run(here.loop(), exchange_one(here.self()));
    report("started", double(now_ns() - loaded), "ns");
  });
}
