#pragma once
/// The terms that all searches of one op share: the participants, the configs that may run, the plan for trials, and their budget.
#include <parley/actors/agreement/trial_budget.hpp>
#include <parley/actors/policy.hpp>
#include <parley/identifiers.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/tuning/planners/plan_options.hpp>
#include <parley/tuning/planners/time_model.hpp>
#include <parley/tuning/results/rules.hpp>
#include <parley/tuning/results/warm_start.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
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

  std::vector<std::uint64_t> candidates;  ///< warmed by all participants, the default first; empty: not yet
  std::vector<std::string> ids;
  std::vector<std::uint64_t> mixtures;      ///< which mixture each candidate is; 0: none
  std::vector<remembered_best> remembered;  ///< entries of results files, in the order in which they count
  std::uint64_t machines = 0;               ///< the combination of machines that the participants run on
  std::vector<candidate_limit> limits;      ///< limits that constraints and memory set
  std::vector<tuning::rule> rules;          ///< the user's, for this op

  std::string why_off;        ///< why tuning is off; empty: a setting switched it off
  std::string why_no_choice;  ///< why the default is the only candidate; empty: no other config may run
  std::string left_out;       ///< candidates whose rehearsals failed

  /// Called on the data path when a search has decided at its beginning, or when a decided config has failed.
  std::function<void()> settled;
  /// True if all participants have begun an invocation. While a participant has not begun it, its rows are not missing yet.
  std::function<bool(std::uint32_t tag, std::uint64_t invocation)> begun;
  /// The shape of a candidate for messages of that size (`op_config::shape`): equal shapes do the same. Empty: not known.
  std::function<std::string(std::uint64_t digest, std::uint64_t bytes)> shape;
  bool calls_alone = false;       ///< calls are compared with earlier calls, not with trials, which run elsewhere
  bool trials_are_extra = false;  ///< the program's calls wait for trials, so the whole time of a trial is its cost

  runtime::noticed_at here;  ///< names the op and rank when an invariant is broken
  trial_budget budget;
  std::map<std::uint64_t, std::uint64_t>
      winners{};  ///< of sizes that trials have decided, by the largest size of the key
  /// The candidates' times in decided searches: those of other sizes, and those of other edges that this rank leads. Each edge is a rank of
  /// the model.
  tuning::time_model own_model;
  tuning::time_model* model = &own_model;
  std::uint32_t place_in_model = 0;
  std::size_t searching = 0;  ///< searches that try or collect
  std::size_t bursts = 0;     ///< decided searches that time calls

  /// The candidate's name in results files and in the model.
  std::string name_of(std::size_t candidate) const { return tuning::name_in_file(ids[candidate], mixtures[candidate]); }
  /// The candidate's index; the number of candidates if it is none.
  std::size_t place_of(std::uint64_t digest) const noexcept {
    return static_cast<std::size_t>(std::find(candidates.begin(), candidates.end(), digest) - candidates.begin());
  }
};

}  // namespace parley::actors
