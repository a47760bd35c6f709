// A program that already runs MPI: parley's ranks find each other through its communicator, without a launcher or a
// port.
//
//     mpirun -n 2 ./mpi_bootstrap
//
// parley needs MPI neither to build nor to run; its bootstrap accepts any function that all-gathers bytes. Copy
// `through_mpi` into your program.
#include "neighbours.hpp"

#include <parley/quick_start.hpp>

#include <mpi.h>

#include <span>

namespace {

parley::bootstrap through_mpi(MPI_Comm ranks) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(ranks, &rank);
  MPI_Comm_size(ranks, &size);
  const auto all_gather = [ranks, size](std::span<const std::byte> mine) {
    const auto count = static_cast<std::size_t>(size);
    const int length = static_cast<int>(mine.size());
    std::vector<int> lengths(count);
    MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, ranks);
    std::vector<int> places(count);
    for (std::size_t i = 1; i < count; ++i) places[i] = places[i - 1] + lengths[i - 1];
    std::vector<std::byte> together(static_cast<std::size_t>(places.back() + lengths.back()));
    MPI_Allgatherv(mine.data(), length, MPI_BYTE, together.data(), lengths.data(), places.data(), MPI_BYTE, ranks);
    std::vector<std::vector<std::byte>> everybodys;
    for (std::size_t i = 0; i < count; ++i)
      everybodys.emplace_back(together.begin() + places[i], together.begin() + places[i] + lengths[i]);
    return everybodys;
  };
  return {.rank = static_cast<parley::rank_id>(rank),
          .world_size = static_cast<parley::rank_id>(size),
          .all_gather = all_gather};
}

void serve(parley::job& here) {
  parley::work<> exchanged = parley::start(here.loop(), neighbours::exchange(here.self()));
  // MPI keeps working next to parley: the ranks run reductions until both have finished their exchange.
  unsigned long long reductions = 0;
  for (int anybody = 1; anybody != 0; ++reductions) {
    for (int i = 0; i < 100 && !exchanged.done(); ++i) here.loop().poll();
    const int me = exchanged.done() ? 0 : 1;
    MPI_Allreduce(&me, &anybody, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  }
  exchanged.wait();
  neighbours::report(here.self(), "MPI", reductions);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  const int status = parley::run(serve, {.bootstrap = through_mpi(MPI_COMM_WORLD)});
  MPI_Finalize();
  return status;
}
