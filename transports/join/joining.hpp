#pragma once
/// What a rank brings to the rendezvous of its job, and what it gets there (rendezvous.hpp).
#include <parley/identifiers.hpp>
#include <parley/transports/join/exposure.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace parley::transports {

/// A rank's entry in the roster of its job: what every rank knows about every other one once all have joined.
struct member {
  static constexpr std::size_t max_address_bytes = 8 * 1024;
  static constexpr std::size_t max_affinity_words = 128;  // 8,192 processors
  static constexpr std::size_t max_version_bytes = 32;
  static constexpr std::size_t max_kind_bytes = 128;

  runtime::rank_id rank = 0;  ///< set by `join` from the options
  std::uint64_t incarnation =
      0;                   ///< of this process (runtime/wire/incarnations.hpp); set by `join`, but for its chance
  std::uint64_t host = 0;  ///< equal for ranks that share a host
  std::uint32_t pid = 0;
  std::uint64_t pids_of = 0;  ///< equal for ranks of a host that call a process by the same number; 0: unknown
  std::vector<std::uint64_t> affinity;  ///< bit p of word p / 64: processor p may run this rank
  std::vector<std::byte> address;       ///< of the UCX worker, at most `max_address_bytes`
  std::string version;                  ///< of the library, at most `max_version_bytes`
  std::string kind;                     ///< what it computes on: `NVIDIA H200`; at most `max_kind_bytes`

  friend bool operator==(const member&, const member&) = default;
};

struct rendezvous_options {
  runtime::rank_id rank = 0;
  runtime::rank_id world_size = 1;
  std::uint64_t job = 0;
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  int listening_fd = -1;  ///< rank 0 may get a socket that listens already; taken over and closed
  exposure reach = exposure::loopback_without_key;
  std::uint32_t max_restarts = 0;  ///< of each rank but 0; 0: nobody gets in once all have joined
  std::uint32_t restarts = 0;      ///< how many processes have been in this rank's place before
  /// Whether rank 0 takes this address in an entry, of who comes at first and of who comes back; null: it takes any.
  bool (*is_address)(std::span<const std::byte> bytes) = nullptr;
  runtime::time_ns join_timeout_ns = 30'000'000'000;
  runtime::time_ns handshake_timeout_ns = 5'000'000'000;  ///< for one client, from its connection to its member entry
};

struct joined {
  std::vector<member> members;                ///< index = rank
  std::array<std::byte, 32> roster_digest{};  ///< SHA-256 of the first roster as it was sent; the same on every rank
  std::array<std::byte, 16> session_key{};    ///< for tags on control frames; from the job key and the digest
  bool authenticated = false;  ///< false: there was no job key, so only the host's borders protect the job
  bool rejoined = false;       ///< this process has taken a place in a job that ran already
};

}  // namespace parley::transports
