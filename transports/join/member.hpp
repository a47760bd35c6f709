#pragma once
/// A rank's entry in the roster of a job, which the rendezvous collects and gives to all ranks (rendezvous.hpp).
#include <parley/identifiers.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace parley::transports {

/// What every rank knows about every other one once all have joined.
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

}  // namespace parley::transports
