#pragma once
/// What the ranks that tune a thunk together send each other after a run of it.
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace parley::ops {

/// In `average_ns`: another rank measures this config.
inline constexpr double left_to_others_ns = -1;

struct contextual_report {
  std::string kernel;
  std::string key;
  bool complete = false;  ///< every step was taken
  std::uint64_t steps = 0;
  std::vector<std::uint64_t> digests;
  std::vector<double> average_ns;  ///< by config; infinite: failed, or not measured yet
  std::uint64_t remembered = 0;    ///< digest of the config in this rank's results file; 0: none
  double remembered_ns = 0;
  std::vector<double> spread_ns{};  ///< by config, as `counts`; empty unless the ranks share the work
  std::vector<std::uint32_t> counts{};
  PARLEY_FIELDS(kernel, key, complete, steps, digests, average_ns, remembered, remembered_ns, spread_ns, counts)
};
struct contextual_said {
  std::string terms;  ///< how its rank has declared the op: iterations, warm-ups, order
  std::vector<contextual_report> reports;
  std::string machine{};  ///< ranks with different texts are not alike
  PARLEY_FIELDS(terms, reports, machine)
};

/// What one rank has measured.
struct contextual_row {
  std::uint32_t rank = 0;
  std::uint64_t digest = 0;
  double time_ns = 0;
  double spread_ns = 0;
  std::uint32_t count = 0;
  PARLEY_FIELDS(rank, digest, time_ns, spread_ns, count)
};
struct contextual_best {
  std::string kernel;
  std::string key;
  std::uint64_t digest = 0;  ///< 0: each rank's own default
  double latency_ns = 0;     ///< 0: nothing was measured
  bool from_results = false;
  std::vector<contextual_row> rows{};  ///< if the ranks share the work, and there are not too many
  PARLEY_FIELDS(kernel, key, digest, latency_ns, from_results, rows)
};
/// Who shares the work on a kernel and key.
struct contextual_share {
  static constexpr std::uint32_t none = 0xffffffff;
  std::string kernel;
  std::string key;
  std::vector<std::uint32_t> group;  ///< by member; members with the same number are alike; `none`: has not met the key
  bool is_checked = false;           ///< the leader has compared the times of the default
  PARLEY_FIELDS(kernel, key, group)
};
struct contextual_verdict {
  std::vector<contextual_best> decided;
  bool unfinished = false;  ///< another run with trials is needed
  std::vector<contextual_share> shares;
  PARLEY_FIELDS(decided, unfinished, shares)
};

}  // namespace parley::ops
