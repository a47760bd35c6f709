// The exchanges of bench/exchange.cpp, made by MPI: the median time of a step for each size, and each rank's times.
//
//     mpirun -n 2 mpi_exchange --only pairs        MPI_Isend and MPI_Irecv, both ways at once, and MPI_Waitall
//     mpirun -n 2 mpi_exchange --only batch        8 of each
//     mpirun -n 2 mpi_exchange --only halo         MPI_Neighbor_alltoallw on a Cartesian grid with subarrays
//     mpirun -n 2 mpi_exchange --only all_reduce   MPI_Allreduce in place
#include <parley/bench/steps.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "mpi_world.hpp"

namespace {

using namespace parley::bench;

template <class Once>
void measure(const mpi_world& world, const std::string& name, step_plan plan, const Once& once) {
  std::vector<double> times;
  for (std::int64_t n = -plan.warm_ups; n < plan.repetitions; ++n) {
    const std::int64_t start = now_ns();
    once();
    if (n >= 0) times.push_back(double(now_ns() - start));
  }
  report_phase(name, unsigned(world.rank), "step", times);
  const double typical = median(std::move(times));
  if (world.rank == 0) report(name, typical, "ns");
}

void pairs(const mpi_world& world, const arguments& given) {
  const int other = world.rank ^ 1;
  for (const std::int64_t bytes : sizes_of("pairs", given)) {
    std::vector<char> out(static_cast<std::size_t>(bytes), 1);
    std::vector<char> in(out.size());
    measure(world, "pairs_" + std::to_string(bytes), plan_for(bytes, unsigned(world.size), given), [&] {
      std::array<MPI_Request, 2> both{};
      MPI_Irecv(in.data(), int(bytes), MPI_BYTE, other, 0, MPI_COMM_WORLD, &both[0]);
      MPI_Isend(out.data(), int(bytes), MPI_BYTE, other, 0, MPI_COMM_WORLD, &both[1]);
      MPI_Waitall(2, both.data(), MPI_STATUSES_IGNORE);
    });
  }
}

void batch(const mpi_world& world, const arguments& given) {
  const int other = world.rank ^ 1;
  for (const std::int64_t bytes : sizes_of("batch", given)) {
    std::vector<char> out(static_cast<std::size_t>(batch_messages * bytes), 1);
    std::vector<char> in(out.size());
    measure(world, "batch_" + std::to_string(bytes), plan_for(batch_messages * bytes, unsigned(world.size), given),
            [&] {
              std::array<MPI_Request, 2 * batch_messages> all{};
              for (int i = 0; i < batch_messages; ++i) {
                MPI_Irecv(in.data() + i * bytes, int(bytes), MPI_BYTE, other, 0, MPI_COMM_WORLD, &all[std::size_t(i)]);
              }
              for (int i = 0; i < batch_messages; ++i) {
                MPI_Isend(out.data() + i * bytes, int(bytes), MPI_BYTE, other, 0, MPI_COMM_WORLD,
                          &all[batch_messages + std::size_t(i)]);
              }
              MPI_Waitall(int(all.size()), all.data(), MPI_STATUSES_IGNORE);
            });
  }
}

// One side of an n x n block of doubles with a rim of one cell: the cells to send, or the ghost cells to receive.
MPI_Datatype side_of(int n, int dimension, bool upper, bool ghosts) {
  const std::array<int, 2> whole{n + 2, n + 2};
  std::array<int, 2> part{n, n};
  std::array<int, 2> from{1, 1};
  part[std::size_t(dimension)] = 1;
  from[std::size_t(dimension)] = upper ? (ghosts ? n + 1 : n) : (ghosts ? 0 : 1);
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Type_create_subarray(2, whole.data(), part.data(), from.data(), MPI_ORDER_C, MPI_DOUBLE, &type);
  MPI_Type_commit(&type);
  return type;
}

void halo(const mpi_world& world, const arguments& given) {
  const std::array<int, 2> blocks{world.size / 2, 2};
  const std::array<int, 2> periodic{0, 0};
  MPI_Comm grid = MPI_COMM_NULL;
  MPI_Cart_create(MPI_COMM_WORLD, 2, blocks.data(), periodic.data(), 0, &grid);
  for (const std::int64_t cells : sizes_of("halo", given)) {
    const int n = int(cells);
    std::vector<double> field(std::size_t(n + 2) * std::size_t(n + 2));
    std::array<MPI_Datatype, 4> out{};
    std::array<MPI_Datatype, 4> in{};
    for (int d = 0; d < 2; ++d) {
      for (int upper = 0; upper < 2; ++upper) {
        const std::size_t side = 2 * std::size_t(d) + std::size_t(upper);
        out[side] = side_of(n, d, upper == 1, false);
        in[side] = side_of(n, d, upper == 1, true);
      }
    }
    constexpr std::array<int, 4> one{1, 1, 1, 1};
    constexpr std::array<MPI_Aint, 4> begin{};
    measure(world, "halo_" + std::to_string(cells), plan_for(cells * 8, unsigned(world.size), given), [&] {
      MPI_Neighbor_alltoallw(field.data(), one.data(), begin.data(), out.data(), field.data(), one.data(), begin.data(),
                             in.data(), grid);
    });
    for (auto* types : {&out, &in}) {
      for (MPI_Datatype& type : *types) MPI_Type_free(&type);
    }
  }
  MPI_Comm_free(&grid);
}

void all_reduce(const mpi_world& world, const arguments& given) {
  for (const std::int64_t bytes : sizes_of("all_reduce", given)) {
    std::vector<float> values(std::size_t(bytes) / sizeof(float));
    measure(world, "all_reduce_" + std::to_string(bytes), plan_for(bytes, unsigned(world.size), given), [&] {
      MPI_Allreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
  }
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const mpi_world world(argc, argv);
  if (world.size % 2 != 0) give_up("mpi_exchange needs an even number of ranks: mpirun -n 2");
  const std::string only = given.text("only", "pairs");
  if (only == "pairs")
    pairs(world, given);
  else if (only == "batch")
    batch(world, given);
  else if (only == "halo")
    halo(world, given);
  else if (only == "all_reduce")
    all_reduce(world, given);
  else
    give_up("--only takes pairs, batch, halo or all_reduce, not " + only);
}
