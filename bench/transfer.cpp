// One transfer of 16 MiB between two pinned ranks, measured as in peers/mpi_transfer.cpp: the median time from the
// later of the two starts to the end of the receive, with the same buffers each time.
//
//     transfer --only agreed [--bytes N] [--repetitions R]     with the config that the ranks agreed on earlier
//     transfer --only direct                                   with the default alone
#include <parley/bench/keys.hpp>
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/parley.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

constexpr std::size_t most_tries = 2'000;
constexpr std::int64_t warm_ups = 5;

// One of the two ranks, the op that it measures, and a second op that synchronizes the ranks.
struct both {
  parley::rank& self;
  parley::transfer bulk;
  parley::transfer beat;
  std::vector<std::byte> buffer;
  bool sends() const { return self.id() == 0; }
};

parley::task<std::int64_t> exchange(both& b, std::int64_t mine) {
  const std::array<std::int64_t, 1> out{mine};
  std::array<std::int64_t, 1> in{};
  const parley::rank_id other = 1 - b.self.id();
  if (b.sends()) {
    co_await b.beat.receive(in, {.from = other});
    co_await b.beat.send(out, {.to = other});
  } else {
    co_await b.beat.send(out, {.to = other});
    co_await b.beat.receive(in, {.from = other});
  }
  co_return in[0];
}

parley::task<> move(both& b) {
  if (b.sends())
    co_await b.bulk.send(b.buffer, {.to = 1});
  else
    co_await b.bulk.receive(b.buffer, {.from = 0});
}

parley::task<> agree(both& b) {
  for (std::size_t n = 0; n < most_tries; ++n) {
    co_await move(b);
    // Only the sender knows of the decision. The ranks exchange it here, so that both leave the loop together.
    const bool mine = keys_of(b.self, "bulk").decided != 0;
    const std::int64_t theirs = co_await exchange(b, mine ? 1 : 0);
    if (mine || theirs == 1) co_return;
  }
  give_up("the ranks did not agree within " + std::to_string(most_tries) + " transfers");
}

parley::task<> measure(both& b, std::int64_t repetitions, bool tuned) {
  if (tuned) co_await agree(b);
  std::vector<double> times;
  for (std::int64_t n = -warm_ups; n < repetitions; ++n) {
    co_await exchange(b, 0);
    const std::int64_t start = now_ns();
    co_await move(b);
    const std::int64_t end = now_ns();
    const std::int64_t their_start = co_await exchange(b, start);
    if (n >= 0) times.push_back(double(end - std::max(start, their_start)));
  }
  if (!b.sends()) report("transfer", median(std::move(times)), "ns");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const bool tuned = given.text("only", "agreed") == "agreed";
  if (!is_rank()) {
    const auto figures = run_ranks(2, argc, argv);
    report(tuned ? "transfer_16MiB" : "transfer_direct", figure(figures[1], "transfer"), "ns");
    return 0;
  }
  return as_rank([&](parley::job& here) {
    parley::rank& self = here.self();
    both b{self,
           parley::transfer(self, {.name = "bulk", .role = {}, .edges = {{0, 1}}, .configs = catalogue(tuned ? 8 : 1)}),
           parley::transfer(self, {.name = "beat", .role = {}, .edges = {{0, 1}, {1, 0}}}),
           std::vector<std::byte>(std::size_t(given.number("bytes", 16 << 20)), std::byte(self.id() + 1))};
    parley::runtime::run(here.loop(), measure(b, given.number("repetitions", 50), tuned));
  });
}
