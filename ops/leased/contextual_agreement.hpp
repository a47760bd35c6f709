#pragma once
/// What ranks that tune a thunk together tell each other after a run of it, and what comes of it.
///
///     std::vector<contextual_report> mine;  …                                   // a line for each kernel and key
///     contextual_verdict v = agree(said_by_rank, members, state).value();       // on the leader
///     v.decided[0].digest;                                                      // the best, for all ranks
///
/// Each config counts with the longest of the ranks' averages; where it failed, or is not there at all, it is +infinity.
/// Configs meet by their digests, never by their places. The order is that of the first rank, equals go to the first.
#include <parley/error.hpp>
#include <parley/runtime/wire/wire.hpp>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::ops {

struct contextual_report {
  std::string kernel;
  std::string key;
  bool complete = false;  ///< every step was taken
  std::uint64_t steps = 0;
  std::vector<std::uint64_t> digests;
  std::vector<double> average_ns;  ///< by config; infinite: failed, or not measured yet
  std::uint64_t remembered = 0;    ///< what this rank's results file says; 0: nothing
  double remembered_ns = 0;
  PARLEY_FIELDS(kernel, key, complete, steps, digests, average_ns, remembered, remembered_ns)
};
struct contextual_said {
  std::string terms;  ///< how its rank has declared the op: iterations, warm-ups, order
  std::vector<contextual_report> reports;
  PARLEY_FIELDS(terms, reports)
};

struct contextual_best {
  std::string kernel;
  std::string key;
  std::uint64_t digest = 0;  ///< 0: each rank's own default
  double latency_ns = 0;     ///< 0: nothing was measured
  bool from_results = false;
  PARLEY_FIELDS(kernel, key, digest, latency_ns, from_results)
};
struct contextual_verdict {
  std::vector<contextual_best> decided;
  bool unfinished = false;  ///< another run with trials is needed
  PARLEY_FIELDS(decided, unfinished)
};

/// What a rank knows of the tuning; the leader knows all of `decided`, for good, as whoever lags behind asks it.
struct contextual_progress {
  std::map<std::pair<std::string, std::string>, contextual_best> decided;
  std::uint64_t steps = 0;  ///< of all ranks, as of this call's round before
  bool any_round = false;
};

/// `declaration_mismatch`, with both, where two ranks have declared it in other ways; ranks are named as `members`, in the order of
/// `by_rank`, says. `config_failed` (`cannot find valid config`) when every config of a kernel and key has failed somewhere. What no rank
/// calls any more is decided by what was measured. What fails decides nothing.
runtime::result<contextual_verdict> agree(std::span<const contextual_said> by_rank,
                                          std::span<const runtime::rank_id> members, contextual_progress& before);

/// Of reports that not all ranks have made: what was decided before. The rest is decided by this: each rank keeps its own default, also one
/// that meets it later (a digest of 0).
contextual_verdict known_of(std::span<const contextual_said> said, contextual_progress& before);

}  // namespace parley::ops
