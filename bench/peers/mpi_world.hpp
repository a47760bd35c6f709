#pragma once
/// Initializes MPI, finalizes it at the end of the block, and pins each rank to a core.
///
///     const mpi_world world(argc, argv);
///     if (world.size != 2) give_up("mpi_transfer needs exactly two ranks: mpirun -n 2");
#include <mpi.h>
#include <parley/bench/measure.hpp>

namespace parley::bench {

struct mpi_world {
  mpi_world(int& argc, char**& argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    pin_to_core(rank);
  }
  mpi_world(const mpi_world&) = delete;
  mpi_world& operator=(const mpi_world&) = delete;
  ~mpi_world() { MPI_Finalize(); }

  int rank = 0;
  int size = 0;
};

}  // namespace parley::bench
