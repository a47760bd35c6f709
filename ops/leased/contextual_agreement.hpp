#pragma once
/// The decisions of ranks that tune a thunk together, from their messages after a run of it.
///
///     std::vector<contextual_report> mine;  …                                   // one for each kernel and key
///     contextual_verdict v = agree(said_by_rank, members, state).value();       // on the leader
///     v.decided[0].digest;                                                      // the best, for all ranks
///
/// The time of a config is the longest of the ranks' averages. It is +infinity if the config failed on a rank, or if the rank lacks it.
/// Configs are matched by their digests, never by their places. If two configs are equally fast, the first one in the first rank's order
/// wins.
#include <parley/error.hpp>
#include <parley/ops/leased/contextual_messages.hpp>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace parley::ops {

/// A rank's knowledge of the tuning. The leader never drops entries of `decided`, because ranks that lag behind ask for them.
struct contextual_progress {
  bool shares_work = false;
  std::map<std::pair<std::string, std::string>, contextual_share> shares{};  ///< of undecided kernels
  std::map<std::pair<std::string, std::string>, contextual_best> decided;
  std::uint64_t steps = 0;  ///< of all ranks, up to the round before, in this call
  bool any_round = false;
};

/// Decides from the reports of all ranks; `members` are the ranks in the order of `by_rank`. `declaration_mismatch`, with both
/// declarations, if two ranks have declared the op differently. `config_failed` (`cannot find valid config`) if every config of a kernel
/// and key has failed somewhere. If no rank calls a kernel any more, the times so far decide. On an error, nothing is decided.
runtime::result<contextual_verdict> agree(std::span<const contextual_said> by_rank,
                                          std::span<const runtime::rank_id> members, contextual_progress& before);

/// For a round in which not all ranks have reported. Returns the earlier decisions about these kernels. Decides the others with a digest
/// of 0: each rank keeps its own default, also a rank that first calls the kernel later.
contextual_verdict known_of(std::span<const contextual_said> said, contextual_progress& before);

}  // namespace parley::ops
