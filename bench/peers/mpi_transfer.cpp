// MPI_Send and MPI_Recv between two pinned ranks: the median one-way time of a transfer, by the clock that both
// share, from the later of the two starts to the end of the receive. Both sides reuse the same buffers.
//
//     mpirun -n 2 mpi_transfer [--bytes N] [--repetitions R]
//     mpirun -n 2 mpi_transfer --sweep_to N        half a round trip, for every power of two from 8 bytes up to N
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "mpi_world.hpp"

namespace {

using namespace parley::bench;

double transfer_ns(int rank, std::int64_t bytes, std::int64_t repetitions) {
  std::vector<char> buffer(static_cast<std::size_t>(bytes), char(rank + 1));
  constexpr std::int64_t warm_ups = 5;
  std::vector<double> times;
  for (std::int64_t n = -warm_ups; n < repetitions; ++n) {
    MPI_Barrier(MPI_COMM_WORLD);
    std::int64_t mine[2] = {now_ns(), 0};
    if (rank == 0)
      MPI_Send(buffer.data(), int(bytes), MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    else
      MPI_Recv(buffer.data(), int(bytes), MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    mine[1] = rank == 1 ? now_ns() : 0;
    std::int64_t last[2];
    MPI_Allreduce(mine, last, 2, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    if (n >= 0) times.push_back(double(last[1] - last[0]));
  }
  return median(std::move(times));
}

double half_round_trip_ns(int rank, std::int64_t bytes, std::int64_t repetitions) {
  std::vector<char> buffer(static_cast<std::size_t>(bytes), char(rank + 1));
  std::vector<double> times;
  for (std::int64_t n = 0; n < repetitions; ++n) {
    const std::int64_t start = now_ns();
    if (rank == 0) MPI_Send(buffer.data(), int(bytes), MPI_BYTE, 1, 0, MPI_COMM_WORLD);
    MPI_Recv(buffer.data(), int(bytes), MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) MPI_Send(buffer.data(), int(bytes), MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    times.push_back(double(now_ns() - start) / 2);
  }
  return median(std::move(times));
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const mpi_world world(argc, argv);
  if (world.size != 2) give_up("mpi_transfer needs exactly two ranks: mpirun -n 2");
  const int rank = world.rank;

  const std::int64_t bytes = given.number("bytes", 16 << 20);
  const std::int64_t repetitions = given.number("repetitions", 50);
  const std::int64_t sweep_to = given.number("sweep_to", 0);
  if (sweep_to == 0) {
    const double ns = transfer_ns(rank, bytes, repetitions);
    if (rank == 0) report("mpi_transfer", ns, "ns");
  }
  for (std::int64_t size_now = 8; size_now <= sweep_to; size_now *= 2) {
    const double ns = half_round_trip_ns(rank, size_now, repetitions);
    if (rank == 0) report("mpi_transfer_" + std::to_string(size_now), ns, "ns");
  }
}
