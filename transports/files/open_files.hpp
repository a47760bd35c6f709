#pragma once
/// Files that a process may have open. Where they do not suffice, UCX ends the process, or a peer waits for a connection that cannot be
/// made; so a rank asks for what it needs before it begins.
///
///     allow_open_files(files_of_rank(place.rank, place.world_size, ucx_reach::one_host)).value();
///
/// Failure: `unavailable`, with the limit, what is needed, and how to raise it.
#include <parley/error.hpp>
#include <parley/identifiers.hpp>
#include <parley/transports/ucx/ucx_worker.hpp>

#include <cstddef>

namespace parley::transports {

/// How many files a rank opens at most until it has met all others, beside those that its program has open already.
std::size_t files_of_rank(runtime::rank_id rank, runtime::rank_id world_size, ucx_reach reach);

/// Sees to it that this process may open so many more: raises its soft limit (`ulimit -Sn`) as far as needed, which its hard limit bounds.
runtime::result<> allow_open_files(std::size_t more);

}  // namespace parley::transports
