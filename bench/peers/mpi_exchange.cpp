// MPI_Isend and MPI_Irecv between two pinned ranks, both ways at once: the median time until both have ended.
//
//     mpirun -n 2 mpi_exchange [--up_to 4194304]
#include <mpi.h>
#include <parley/bench/measure.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

constexpr std::int64_t bytes_in_all = 256 << 20;
constexpr std::int64_t most_repetitions = 4'000;
constexpr std::int64_t warm_ups = 600;

double exchange_ns(int rank, std::int64_t bytes) {
  std::vector<char> out(static_cast<std::size_t>(bytes), 1);
  std::vector<char> in(out.size());
  const std::int64_t repetitions = std::clamp<std::int64_t>(bytes_in_all / bytes, 200, most_repetitions);
  std::vector<double> times;
  for (std::int64_t n = -warm_ups; n < repetitions; ++n) {
    const std::int64_t start = now_ns();
    MPI_Request both[2];
    MPI_Irecv(in.data(), int(bytes), MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &both[0]);
    MPI_Isend(out.data(), int(bytes), MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, &both[1]);
    MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
    if (n >= 0) times.push_back(double(now_ns() - start));
  }
  return median(std::move(times));
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size != 2) give_up("mpi_exchange needs exactly two ranks: mpirun -n 2");
  pin_to_core(rank);
  for (std::int64_t bytes = 8; bytes <= given.number("up_to", 4 << 20); bytes *= 4) {
    const double ns = exchange_ns(rank, bytes);
    if (rank == 0) report("exchange_" + std::to_string(bytes), ns, "ns");
  }
  MPI_Finalize();
}
