#pragma once
/// The data that a rank gives to the rendezvous of its job, and the data that it gets there (rendezvous.hpp).
#include <parley/identifiers.hpp>
#include <parley/transports/join/exposure.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace parley::transports {

/// A rank's entry in the roster of its job. After the join every rank has the entries of all.
struct member {
  static constexpr std::size_t max_address_bytes = 8 * 1024;
  static constexpr std::size_t max_affinity_words = 128;  // 8,192 processors
  static constexpr std::size_t max_version_bytes = 32;
  static constexpr std::size_t max_kind_bytes = 128;

  runtime::rank_id rank = 0;  ///< set by `join` from the options
  std::uint64_t incarnation =
      0;  ///< identifies the process (runtime/wire/incarnations.hpp); `join` sets the restart count in it
  std::uint64_t host = 0;  ///< equal for ranks that share a host
  std::uint32_t pid = 0;
  std::uint64_t pids_of = 0;  ///< pid namespace: equal for ranks of a host that see the same process ids; 0: unknown
  std::vector<std::uint64_t> affinity;  ///< bit p of word p / 64: processor p may run this rank
  std::vector<std::byte> address;       ///< of the UCX worker, at most `max_address_bytes`
  std::string version;                  ///< of the library, at most `max_version_bytes`
  std::string kind;                     ///< of its hardware, such as `NVIDIA H200`; at most `max_kind_bytes`

  friend bool operator==(const member&, const member&) = default;
};

struct rendezvous_options {
  runtime::rank_id rank = 0;
  runtime::rank_id world_size = 1;
  std::uint64_t job = 0;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int listening_fd = -1;  ///< rank 0 may be given a listening socket; the rendezvous takes it over and closes it
  exposure reach = exposure::loopback_without_key;
  std::uint32_t max_restarts = 0;  ///< of each rank except rank 0; 0: no process can join once all have joined
  std::uint32_t restarts = 0;      ///< how many processes held this rank's place before
  /// Rank 0 checks the address in each entry with this, at the join and after restarts, and drops a client if it returns false; null:
  /// rank 0 accepts any address.
  bool (*is_address)(std::span<const std::byte> bytes) = nullptr;
  runtime::time_ns join_timeout_ns = 30'000'000'000;
  runtime::time_ns handshake_timeout_ns = 5'000'000'000;  ///< for one client, from its connection to its member entry
};

struct joined {
  std::vector<member> members;                ///< index = rank
  std::array<std::byte, 32> roster_digest{};  ///< SHA-256 of the first roster as it was sent; the same on every rank
  std::array<std::byte, 16> session_key{};    ///< for tags on control frames; derived from the job key and the digest
  bool authenticated = false;  ///< false: there was no job key, so any process that could reach rank 0 could join
  bool rejoined = false;       ///< this process has taken a place in a running job
};

}  // namespace parley::transports
