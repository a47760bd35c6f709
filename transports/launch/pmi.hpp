#pragma once
/// The part of the PMI-1 wire protocol that lets rank 0 send a line to all others. MPICH's mpiexec (hydra) and srun
/// --mpi=pmi2 use this protocol with each of their processes over the descriptor PMI_FD.
///
///     auto told = pmi_broadcast(place.pmi_fd, place.rank, "10.0.0.1:4711", 30_s);      // returns rank 0's value on every rank
///
/// All ranks of the job must call it, once: it initialises the connection, puts the value (rank 0), waits at the launcher's
/// barrier, gets the value, and finalises. Afterwards the descriptor cannot be used any more. An MPI library uses the same
/// descriptor, so a program that uses MPI must not call this. This job's processes can read the value, and so can any process
/// that can read the launcher's connections.
///
/// Failure: `timeout`, with the step, if the launcher does not reply or another rank does not arrive; `malformed` if the
/// launcher's reply is invalid; `io` if the descriptor is closed or not a connection; `bad_argument` if the value is too long
/// or not one word.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>

#include <string>

namespace parley::transports {

/// A value must also have no blanks and no newlines, so that it stays one word of the protocol.
inline constexpr std::size_t max_pmi_value_bytes = 255;

runtime::result<std::string> pmi_broadcast(int fd, runtime::rank_id rank, const std::string& value,
                                           runtime::time_ns limit_ns);

}  // namespace parley::transports
