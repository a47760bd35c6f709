#pragma once
/// The number of files that a process may have open. If it is too low, UCX ends the process, or a peer waits for a connection that
/// cannot be made. So a rank makes sure that it may open enough files before it begins.
///
///     allow_open_files(files_of_rank(place.rank, place.world_size, ucx_reach::one_host)).value();
///
/// Failure: `unavailable`, with the limit, the number needed, and how to raise the limit.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/ucx/ucx_worker.hpp>

#include <cstddef>

namespace parley::transports {

/// At most how many files a rank opens until it has met all other ranks, in addition to those that its program has open.
std::size_t files_of_rank(runtime::rank_id rank, runtime::rank_id world_size, ucx_reach reach);

/// Makes sure that this process may open `more` further files. Raises its soft limit (`ulimit -Sn`) if needed, up to the hard limit.
runtime::result<> allow_open_files(std::size_t more);

}  // namespace parley::transports
