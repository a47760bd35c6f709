#pragma once
/// Messages between ranks that tune a thunk together, sent after a run of it, and the decisions that follow.
///
///     std::vector<contextual_report> mine;  …                                   // one for each kernel and key
///     contextual_verdict v = agree(said_by_rank, members, state).value();       // on the leader
///     v.decided[0].digest;                                                      // the best, for all ranks
///
/// The time of a config is the longest of the ranks' averages. It is +infinity if the config failed on a rank, or if the rank lacks it.
/// Configs are matched by their digests, never by their places. If two configs are equally fast, the first one in the first rank's order
/// wins.
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
  std::uint64_t remembered = 0;    ///< digest of the config in this rank's results file; 0: none
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

/// A rank's knowledge of the tuning. The leader never drops entries of `decided`, because ranks that lag behind ask for them.
struct contextual_progress {
  std::map<std::pair<std::string, std::string>, contextual_best> decided;
  std::uint64_t steps = 0;  ///< of all ranks, up to the round before, in this call
  bool any_round = false;
};

/// Decides from the reports of all ranks; `members` are the ranks in the order of `by_rank`. `declaration_mismatch`, with both
/// declarations, if two ranks have declared the op differently. `config_failed` (`cannot find valid config`) if every config of a kernel
/// and key has failed somewhere. If no rank calls a kernel any more, the times so far decide. On an error, nothing is decided.
runtime::result<contextual_verdict> agree(std::span<const contextual_said> by_rank,
                                          std::span<const runtime::rank_id> members, contextual_progress& before);

/// For a round in which not all ranks have reported. Returns earlier decisions. Decides all other kernels with a digest of 0: each rank
/// keeps its own default, also a rank that first calls the kernel later.
contextual_verdict known_of(std::span<const contextual_said> said, contextual_progress& before);

}  // namespace parley::ops
