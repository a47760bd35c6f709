#pragma once
/// One rank of `parley tune`: the hidden command `parley tune-rank`, which the launcher starts once per rank.
///
/// It runs the spec's workload and reports, over the pipe of rank_report.hpp, progress now and then and everything that it
/// knows in the end, also when the workload failed. Status 1 then, after an error with op, rank and what to do.
#include <parley/cli/spec.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace parley::cli {

/// A test switch: this rank kills itself when it has done that many microbatches.
struct planned_death {
  rank_id rank = 0;
  std::uint64_t after = 0;
};

/// What both sides of `parley tune` are told.
struct tune_settings {
  std::string spec_path;
  spec_overrides overrides;
  std::string results_path;           ///< empty: none
  bool trials = true;                 ///< false: what the results file says, else the default
  bool mutant_ignores_stamp = false;  ///< test switch: the demo must fail
  std::optional<planned_death> death{};
};

int tune_rank(const tune_settings& s);

}  // namespace parley::cli
