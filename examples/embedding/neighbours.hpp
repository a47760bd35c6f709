#pragma once
// Shared by the embedding examples: ranks 0 and 1 exchange rows of numbers in both directions, and check them.
#include <parley/parley.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace neighbours {

using namespace parley::literals;

inline constexpr int steps = 100;
inline constexpr std::size_t numbers = 32'768;  // 256 KiB per step

inline parley::transfer_options rows() {
  return {.name = "rows",
          .edges = {{0, 1}, {1, 0}},
          .configs = {parley::configs::direct(), parley::configs::chunked(64_KiB, /*in_flight=*/4)}};
}

/// Fills `row` with the numbers that `rank` sends in this step.
inline void fill(std::vector<std::uint64_t>& row, parley::rank_id rank, int step) {
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = (std::uint64_t{rank} << 40U) + (std::uint64_t(step) << 20U) + i;
}

/// Throws unless `row` holds the numbers that `rank` sent in this step.
inline void check(const std::vector<std::uint64_t>& row, parley::rank_id rank, int step) {
  std::vector<std::uint64_t> expected(row.size());
  fill(expected, rank, step);
  if (row != expected)
    parley::runtime::raise({parley::errc::config_failed, "step " + std::to_string(step) + " came out wrong"});
}

/// Makes all steps. In each step, the send and the receive are in flight together.
inline parley::task<> exchange(parley::rank& self) {
  parley::transfer transfer(self, rows());
  const parley::rank_id peer = 1 - self.id();
  std::vector<std::uint64_t> mine(numbers);
  std::vector<std::uint64_t> theirs(numbers);
  static_cast<void>(
      co_await parley::sleep_for(1ms));  // gives the host's own loop a turn, no matter how fast the steps are
  for (int step = 0; step < steps; ++step) {
    fill(mine, self.id(), step);
    co_await parley::when_all(transfer.send(mine, {.to = peer}), transfer.receive(theirs, {.from = peer}));
    check(theirs, peer, step);
  }
}

/// Prints the last line of each example. Throws if the host's own loop never ran, because the example must show that
/// it does.
inline void report(parley::rank& self, const char* loop, unsigned long long of_its_own) {
  if (of_its_own == 0) parley::runtime::raise({parley::errc::exception, std::string(loop) + " ran no step of its own"});
  std::printf("rank %u: %d steps exchanged and checked; %s ran %llu steps of its own at the same time\n", self.id(),
              steps, loop, of_its_own);
}

}  // namespace neighbours
