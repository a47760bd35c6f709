// How long an MPI rank takes to start: from just before its image is loaded until MPI_Init has returned and the rank
// has exchanged one message with its neighbour. The launcher's own time is not counted.
//
//     mpirun -n 2 mpi_start
#include <mpi.h>
#include <parley/bench/measure.hpp>

int main(int argc, char** argv) {
  using namespace parley::bench;
  const std::int64_t loaded = load_time_ns(argv);
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::int64_t token = rank;
  MPI_Sendrecv_replace(&token, 1, MPI_INT64_T, (rank + 1) % size, 0, (rank + size - 1) % size, 0, MPI_COMM_WORLD,
                       MPI_STATUS_IGNORE);
  const auto mine = double(now_ns() - loaded);
  double slowest = 0;
  MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) report("mpi_start", slowest, "ns");
  MPI_Finalize();
}
