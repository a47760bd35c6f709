#pragma once
/// What the ranks of an op have decided, why, and the evidence.
///
///     decision d = transfer.to(1).decision(16_MiB);
///     d.config;                                          // what runs: the winner, or the default while nothing is decided
///     d.why;                                             // one sentence
///     for (const candidate_evidence& e : d.evidence)
///       for (const rank_time& t : e.ranks) t.median_ns;  // what rank t.rank measured of e.config
///
/// A job that has a results file keeps each decision, with its evidence, in a second file beside it: `results0.csv.evidence`.
/// `parley results explain` prints it (docs/results.md).
///
/// All times are in nanoseconds, as a duration of one call.
#include <parley/actors/policy.hpp>
#include <parley/identifiers.hpp>
#include <parley/tuning/planners/decide.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace parley::ops {

using runtime::rank_id;

/// What one rank has measured of a candidate, by its own clock. It includes the rank's waits for its partners.
struct rank_time {
  rank_id rank = 0;
  double median_ns = std::numeric_limits<double>::infinity();  ///< infinite without a good repetition
  double fastest_ns = 0;                                       ///< 0: not known
  double spread_ns = 0;                                        ///< the median deviation from `median_ns`
  std::uint32_t repetitions = 0;
  std::string status;
  std::string ran;  ///< the config that it ran: in a mixture its own part
};

/// A time that was expected before the trials, from the decisions for other sizes.
struct expected_time {
  double time_ns = 0;  ///< 0: nothing was expected, because the candidate was measured at no other size
  double low_ns = 0;   ///< 9 of 10 times are above
  double high_ns = 0;  ///< 9 of 10 times are below
};

/// The measurements of one candidate, or the reason why there are none.
struct candidate_evidence {
  std::string config;
  std::uint64_t digest = 0;
  double time_ns = std::numeric_limits<double>::infinity();  ///< the median of the repetitions; the slowest rank counts
  std::uint32_t repetitions = 0;
  /// `measured`, `missing`, `failed`, `wrong_data`, `not_tried`, `quarantined`, `excluded`, `same`, `lacking`, `hopeless` or `remembered`.
  std::string status;
  std::string detail;    ///< the reason for the status
  double spread_ns = 0;  ///< the median deviation of the repetitions
  rank_id proposer = 0;  ///< the first rank that has it in its list
  expected_time expected{};
  std::vector<rank_time> ranks{};
};

/// The config that one rank runs.
struct rank_part {
  rank_id rank = 0;
  std::string config;  ///< in a mixture its own part, otherwise the decision's config
};

/// Calls that ran another config than the decided one.
struct other_runs {
  std::string why;  ///< the unmet need of the decided config: `no credit in time`
  std::uint64_t calls = 0;
};

struct decision {
  std::string op;   ///< `activations 0->1`
  std::string key;  ///< the name of the size in results files: `16MiB_bf16`
  bool decided = false;
  std::string config;  ///< the config in force: the winner, or the default while nothing is decided
  std::uint64_t digest = 0;
  double time_ns = 0;  ///< measured time of the winner; 0: not measured
  std::string why;     ///< why this config was chosen, or why there is no decision yet
  actors::decision_source source = actors::decision_source::trials;
  std::vector<candidate_evidence>
      evidence;  ///< includes configs that some rank lacks: `status` is `lacking`, `detail` names the rank and the reason
  std::vector<rank_part> ranks;  ///< each rank of the op with its config; empty before the decision
  std::string here;              ///< the config of this rank
  std::uint64_t calls = 0;       ///< made since the decision; counted by the leader (on an edge, the sender)
  std::vector<other_runs>
      ran_other;  ///< those of `calls` that ran another config, and why; empty: none, or this rank does not lead
  tuning::confidence confidence = tuning::confidence::none;  ///< how well the evidence supports the decision
  std::uint32_t search = 0;                                  ///< number of the search that made the decision, from 1
  std::uint32_t version = 0;                                 ///< grows whenever the decision for this key changes
  std::uint64_t trials = 0;                                  ///< that all searches for this key have made
  double cost_ns =
      0;  ///< how much longer the trials took than calls of the default; of a kernel: the time of its tuning
  std::uint32_t left_out =
      0;  ///< candidates that are not in `evidence`: there was no room for them, or they were not tried
};

}  // namespace parley::ops
