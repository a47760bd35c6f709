#pragma once
/// What all searches of one op share: who takes part, what may run, how it is tried, and what it may cost.
#include <parley/actors/agreement/trial_budget.hpp>
#include <parley/actors/policy.hpp>
#include <parley/identifiers.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/tuning/planners/plan_options.hpp>
#include <parley/tuning/results/warm_start.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace parley::actors {

using runtime::rank_id;
using runtime::time_ns;

using tuning::remembered_best;

/// A participant cannot or must not run a candidate with messages of more than `largest_bytes`.
struct candidate_limit {
  std::uint64_t digest = 0;
  std::uint64_t largest_bytes = 0;
  std::string why;
};

struct search_terms {
  std::uint64_t default_digest = 0;
  std::string default_id;
  std::string dtype;
  std::vector<rank_id> participants;
  tuning_policy policy = tuning_policy::online;
  tuning::plan_options plan;

  std::vector<std::uint64_t> candidates;  ///< that all participants have warmed, the default first; empty: not yet
  std::vector<std::string> ids;
  std::vector<std::uint64_t> mixtures;      ///< which mixture each is; 0: none
  std::vector<remembered_best> remembered;  ///< what results files have, in the order in which it counts
  std::uint64_t machines = 0;               ///< the combination that the participants run on
  std::vector<candidate_limit> limits;      ///< what constraints and memory forbid

  std::string why_off;        ///< why tuning is off; empty: it is switched off
  std::string why_no_choice;  ///< why there is nothing but the default; empty: nothing else may run
  std::string left_out;       ///< whose rehearsals failed

  /// Called when a search has decided as it begins, on the data path, or what it decided has failed.
  std::function<void()> settled;
  /// Whether all participants have begun an invocation: rows of one that somebody is late for are not missing yet.
  std::function<bool(std::uint32_t tag, std::uint64_t invocation)> begun;
  /// What a candidate is for messages of so many bytes (`op_config::shape`); empty: that is not known.
  std::function<std::string(std::uint64_t digest, std::uint64_t bytes)> shape;
  bool calls_alone = false;       ///< calls are compared with earlier calls, not with trials, which were made elsewhere
  bool trials_are_extra = false;  ///< the program's calls wait for trials, which cost all that they take

  runtime::noticed_at here;  ///< whose invariants these are
  trial_budget budget;
  std::size_t searching = 0;  ///< searches that try or collect
  std::size_t bursts = 0;     ///< decided searches that time calls

  /// As many as there are candidates: it is none.
  std::size_t place_of(std::uint64_t digest) const noexcept {
    return static_cast<std::size_t>(std::find(candidates.begin(), candidates.end(), digest) - candidates.begin());
  }
};

}  // namespace parley::actors
