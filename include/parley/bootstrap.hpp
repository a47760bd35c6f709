#pragma once
/// Joining a job through somebody else's communicator: a program that has MPI, or any other way in which all ranks can
/// exchange bytes, hands that over instead of a launcher's environment and a TCP rendezvous.
///
///     bootstrap through{.rank = mine, .world_size = all, .all_gather = [&](std::span<const std::byte> bytes) {
///       …                                        // MPI_Allgather of the sizes, MPI_Allgatherv of the bytes
///       return everybodys;                       // one entry per rank, in the order of ranks
///     }};
///     parley::job here({.bootstrap = through});
///
/// `all_gather` is called twice, by all ranks alike, in the job's constructor and never again; the communicator may go
/// afterwards. Who may take part, and how long a missing rank is waited for, is the communicator's business; the session
/// key of the control messages follows from random bytes of all ranks, so whoever can read the communicator can read it.
///
/// Nobody watches a TCP connection then. Ranks of one host still notice each other's death by heartbeats (heartbeat.hpp), and tell
/// those of other hosts; of a rank that is alone on another host UCX alone notices the end, if this rank has exchanged messages with it
/// (ucx_link.hpp says how soon).
///
/// Failure: throws `failure`: `bad_argument` when `all_gather` does not give what it should, `protocol_version` when the
/// ranks run different versions. What `all_gather` throws passes through.
#include <parley/identifiers.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace parley::transports {

struct bootstrap {
  using bytes = std::vector<std::byte>;

  runtime::rank_id rank = 0;
  runtime::rank_id world_size = 1;
  std::function<std::vector<bytes>(std::span<const std::byte> mine)> all_gather{};
};

}  // namespace parley::transports
