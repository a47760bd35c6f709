#pragma once
/// A user's program on virtual ranks, unchanged: its real actors and ops on links, clocks and disks that are simulated.
///
///     int main(int argc, char** argv) { return parley::simulation::run(argc, argv, rank_main); }
///
///     ./program --sim 16 [--seed 7]              # 16 ranks in this process; without --sim it is parley::run
///
/// Computations (`runtime::compute`, steps of a dataflow) run at once and take the time that their `modelled_ns` says; everything
/// else that a rank does takes none. Equal seeds give equal runs. Time is `self.where().precise_now()`, in both worlds. Answers
/// 0, or 1 after printing which rank failed and why; a program that waits for what can never come is named, too.
#include <parley/ops/run.hpp>
#include <parley/simulation/world.hpp>

namespace parley::simulation {

int run(int argc, char** argv, ops::rank_function rank_main);

/// The same without a command line. Prints the virtual time that it took to standard error.
int run_virtual(const world_options& o, ops::rank_function rank_main);

}  // namespace parley::simulation
