#pragma once
/// Joins a job through a communicator that the program already has. A program with MPI, or with another way to exchange bytes among all
/// ranks, passes a function that makes this exchange. It needs no launcher environment and no TCP rendezvous.
///
///     bootstrap through{.rank = mine, .world_size = all, .all_gather = [&](std::span<const std::byte> bytes) {
///       …                                        // MPI_Allgather of the sizes, MPI_Allgatherv of the bytes
///       return everybodys;                       // one entry per rank, in the order of ranks
///     }};
///     parley::job here({.bootstrap = through});
///
/// The job's constructor calls `all_gather` twice on every rank, and nothing calls it later, so the communicator may then be freed. The
/// communicator decides which ranks may join and how long they wait for a missing rank. The session key of the control messages is derived
/// from random bytes that the ranks send through `all_gather`. Anyone who can read the communicator's traffic can compute the key.
///
/// Detecting failures: without a rendezvous there are no TCP connections to watch. Ranks of one host notice each other's death by
/// heartbeats (heartbeat.hpp) and tell the ranks of other hosts. The death of a rank that is alone on its host is noticed only by
/// UCX, and only on ranks that have exchanged messages with it (ucx_link.hpp says how soon).
///
/// Failure: throws `failure`: `bad_argument` if `all_gather` is missing or returns wrong entries, or if `rank` is not in the world;
/// `protocol_version` if the ranks run different versions. An exception from `all_gather` passes through.
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
