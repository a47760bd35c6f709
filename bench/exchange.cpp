// Two pinned ranks send to each other and receive at once, one batch after the other, as peers/mpi_exchange.cpp does it with
// MPI_Isend, MPI_Irecv and MPI_Waitall: the median time of a batch, for every fourth power of two of bytes.
//
//     exchange [--up_to 4194304]
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/parley.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

constexpr std::int64_t bytes_in_all = 256 << 20;
constexpr std::int64_t most_repetitions = 4'000;
constexpr std::int64_t to_agree = 600;  // more calls than a campaign needs

parley::task<> measure(parley::rank& self, parley::p2p pairs, std::int64_t up_to) {
  const parley::rank_id other = 1 - self.id();
  for (std::int64_t bytes = 8; bytes <= up_to; bytes *= 4) {
    std::vector<std::byte> out(static_cast<std::size_t>(bytes), std::byte{1});
    std::vector<std::byte> in(out.size());
    parley::scope& here = co_await parley::this_scope;
    parley::dataflow flow(here);
    const std::int64_t repetitions = std::clamp<std::int64_t>(bytes_in_all / bytes, 200, most_repetitions);
    std::vector<double> times;
    for (std::int64_t n = -to_agree; n < repetitions; ++n) {
      const std::int64_t start = now_ns();
      auto both = pairs.start(flow, {parley::p2p::irecv(in, {.from = other}), parley::p2p::isend(out, {.to = other})});
      co_await both;
      if (n >= 0) times.push_back(double(now_ns() - start));
    }
    co_await flow.join();
    if (self.id() == 0) report("exchange_" + std::to_string(bytes), median(std::move(times)), "ns");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  if (!is_rank()) {
    const auto figures = run_ranks(2, argc, argv);
    for (const auto& [name, value] : figures[0]) report(name, value, "ns");
    return 0;
  }
  pin_to_core(int(parley::transports::from_environment().value().rank));
  parley::ops::job_options options;
  options.settings.plan.budget_fraction = 1e3;  // agree as fast as trials can be made
  return parley::run(
      [&](parley::job& here) {
        parley::rank& self = here.self();
        parley::p2p pairs = self.declare(parley::point_to_point{.name = "pairs", .configs = catalogue(4)});
        parley::runtime::run(here.loop(), measure(self, pairs, given.number("up_to", 4 << 20)));
      },
      options);
}
