// The usual way to tune an operation across ranks, written over MPI as its users write it: gather all ranks' lists of
// configs, then for each config a barrier, warm-ups, timed runs, and a MAX all-reduce over the world. The program
// computes nothing during that phase. Ranks 2k and 2k+1 share an edge on which 2k sends. A config is a chunk size and
// a number of chunks in flight.
//
// The whole wall time of the phase is lost, because its transfers carry no data of the program. The program then runs
// `--microbatches` of compute and a transfer with the winner, and prints the share of the loss.
//
//     mpirun -n 2 mpi_tuning [--bytes N] [--configs 8] [--warm_ups 1] [--repetitions 5] [--microbatches 200]
//                            [--compute_us 5000] [--keys 1]
//
// `--keys` tunes that many sizes one after the other: bytes, bytes / 2, bytes / 4, ...
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "mpi_world.hpp"

namespace {

using namespace parley::bench;

struct chunking {
  std::int64_t chunk_bytes;  // 0: the whole transfer in one message
  std::size_t in_flight;
};

// The first is the default. The catalogue is the same as on parley's side of this row (ranks.hpp).
constexpr std::array<chunking, 12> catalogue{{{0, 1},
                                              {64 << 10, 2},
                                              {128 << 10, 2},
                                              {256 << 10, 2},
                                              {256 << 10, 4},
                                              {512 << 10, 2},
                                              {1 << 20, 2},
                                              {1 << 20, 4},
                                              {2 << 20, 2},
                                              {4 << 20, 2},
                                              {128 << 10, 8},
                                              {64 << 10, 16}}};

struct edge {
  int rank;
  bool sends() const { return rank % 2 == 0; }
  int partner() const { return sends() ? rank + 1 : rank - 1; }
};

void transfer(const edge& on, std::vector<char>& buffer, std::int64_t bytes, const chunking& how) {
  const std::int64_t chunk = how.chunk_bytes == 0 ? bytes : how.chunk_bytes;
  std::vector<MPI_Request> flying(how.in_flight, MPI_REQUEST_NULL);
  std::size_t slot = 0;
  for (std::int64_t offset = 0; offset < bytes; offset += chunk) {
    MPI_Wait(&flying[slot], MPI_STATUS_IGNORE);
    const int count = int(std::min(chunk, bytes - offset));
    char* const at = buffer.data() + offset;
    if (on.sends())
      MPI_Isend(at, count, MPI_BYTE, on.partner(), 0, MPI_COMM_WORLD, &flying[slot]);
    else
      MPI_Irecv(at, count, MPI_BYTE, on.partner(), 0, MPI_COMM_WORLD, &flying[slot]);
    slot = (slot + 1) % how.in_flight;
  }
  MPI_Waitall(int(flying.size()), flying.data(), MPI_STATUSES_IGNORE);
}

struct settings {
  std::int64_t configs;
  std::int64_t warm_ups;
  std::int64_t repetitions;
};

std::size_t tune(const edge& on, std::vector<char>& buffer, std::int64_t bytes, const settings& with) {
  std::array<char, 512> mine{};  // names of eight configs
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<char> everyones(mine.size() * std::size_t(size));
  MPI_Allgather(mine.data(), int(mine.size()), MPI_CHAR, everyones.data(), int(mine.size()), MPI_CHAR, MPI_COMM_WORLD);

  std::size_t best = 0;
  double best_ns = std::numeric_limits<double>::infinity();
  for (std::size_t config = 0; config < std::size_t(with.configs); ++config) {
    MPI_Barrier(MPI_COMM_WORLD);
    for (std::int64_t n = 0; n < with.warm_ups; ++n) transfer(on, buffer, bytes, catalogue[config]);
    std::vector<double> times;
    for (std::int64_t n = 0; n < with.repetitions; ++n) {
      const std::int64_t start = now_ns();
      transfer(on, buffer, bytes, catalogue[config]);
      times.push_back(double(now_ns() - start));
    }
    const double mine_ns = median(std::move(times));
    double slowest_ns = 0;
    MPI_Allreduce(&mine_ns, &slowest_ns, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (slowest_ns < best_ns) {
      best = config;
      best_ns = slowest_ns;
    }
  }
  return best;
}

void compute(std::int64_t duration_us) {
  const std::int64_t end = now_ns() + duration_us * 1000;
  while (now_ns() < end) {}
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const mpi_world world(argc, argv);
  const edge on{world.rank};
  if (world.size % 2 != 0) give_up("mpi_tuning needs an even number of ranks: mpirun -n 2");

  const std::int64_t bytes = given.number("bytes", 16 << 20);
  const std::int64_t keys = given.number("keys", 1);
  const std::int64_t microbatches = given.number("microbatches", 200);
  const std::int64_t compute_us = given.number("compute_us", 5000);
  const settings with{given.number("configs", 8), given.number("warm_ups", 1), given.number("repetitions", 5)};
  if (with.configs < 1 || with.configs > std::int64_t(catalogue.size())) give_up("--configs takes 1 to 12");
  std::vector<char> buffer(std::size_t(bytes), char(on.rank + 1));

  MPI_Barrier(MPI_COMM_WORLD);
  const std::int64_t start = now_ns();
  std::size_t best = 0;
  for (std::int64_t key = keys; key-- > 0;) best = tune(on, buffer, bytes >> key, with);
  const std::int64_t tuned = now_ns();
  for (std::int64_t n = 0; n < microbatches; ++n) {
    compute(compute_us);
    transfer(on, buffer, bytes, catalogue[best]);
  }
  const std::int64_t end = now_ns();

  double lost[2] = {double(tuned - start), double(end - start)};
  double slowest[2];
  MPI_Reduce(lost, slowest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (on.rank == 0) {
    report("mpi_tuning_time_lost", slowest[0], "ns");
    if (microbatches > 0) report("mpi_tuning_cost", 100 * slowest[0] / slowest[1], "percent");
    report("mpi_tuning_winner", double(best), "index");
  }
}
