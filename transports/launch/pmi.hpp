#pragma once
/// The part of the PMI-1 wire protocol that lets one rank tell all others a line: MPICH's mpiexec (hydra) and srun
/// --mpi=pmi2 speak it with each of their processes over the descriptor PMI_FD.
///
///     auto told = pmi_broadcast(place.pmi_fd, place.rank, "10.0.0.1:4711", 30_s);      // what rank 0 gave, on every rank
///
/// All ranks of the job call it, once: it says hello, puts, waits at the launcher's barrier, gets, and says goodbye, after
/// which the descriptor is of no more use. So a program that uses MPI, whose library speaks with the same descriptor, must
/// not call it. What is told can be read by this job's processes and by whoever can read the launcher's connections.
///
/// Failure: `timeout` naming the step when the launcher or another rank does not come, `malformed` when the launcher's answer
/// cannot be one, `io` when the descriptor is closed or not a connection at all.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <string>

namespace parley::transports {

/// Without blanks, so that it stays one word of the protocol.
inline constexpr std::size_t max_pmi_value_bytes = 255;

runtime::result<std::string> pmi_broadcast(int fd, runtime::rank_id rank, const std::string& value,
                                           runtime::time_ns limit_ns);

}  // namespace parley::transports
