#pragma once
/// What a program may set of its rank; docs/settings.md has the variables that beat these.
#include <parley/actors/policy.hpp>
#include <parley/machine.hpp>
#include <parley/tuning/constraint.hpp>
#include <parley/tuning/planners/plan_options.hpp>
#include <parley/tuning/results/results.hpp>
#include <parley/tuning/results/settings.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace parley::ops {

struct rank_settings {
  /// Where results are read from and written to; empty: nowhere. Each rank writes a file of its own, with its number in the
  /// name (`results2.csv`), and reads `results_path` itself first, which a launcher may have merged.
  std::string results_path;
  std::string untuned_path;  ///< a list of what ran its default for want of tuning, with the rank's number; empty: none
  std::string spare_folder;  ///< for results that no file of that folder takes; empty: none
  /// What is learned is in its file within a second, whatever ends the process then. False: `write_results` alone writes.
  bool write_results_soon = true;
  bool no_results = false;  ///< somebody has said that there shall be none (PARLEY_RESULTS is empty): for kernels, too
  std::vector<tuning::validator> validators;  ///< what results depend on, besides parley's own version and the world
  actors::tuning_policy policy = actors::tuning_policy::online;
  tuning::plan_options plan{};
  actors::window_limits window{};
  /// What one edge may hold of data that came before its receives, and this rank of what came for ops that it has not declared; the
  /// same on all ranks, as senders keep to their share of the latter (docs/limits.md).
  std::uint64_t early_bytes = actors::most_early_bytes;
  tuning::constraints constraints{};  ///< of every op, beside its own
  /// What ranks are told to do without in all ops (parley/machine.hpp), the same on all of them. PARLEY_MASK wins.
  std::vector<masked_capability> masked{};
  tuning::settings kernels{};  ///< of tunable kernels (parley/tunable_op.hpp); off unless enabled
  tuning::environment_settings kernel_environment{};  ///< which beats them
  std::size_t flight_records = 16384;
  /// A folder for `parley-flight-RANK.json`: what the flight recorder holds when a call fails or a peer is lost, at most once a
  /// second, and when the program asks. Empty: nowhere.
  std::string flight_dir;
  /// How many times as long as it says each op's time-out is, from 1 on; a death is noticed as soon as ever. PARLEY_PATIENCE wins.
  std::uint32_t patience = 1;
  bool mutant_ignores_stamp = false;  ///< test switch, see ops/edges/edge_end.hpp
};

}  // namespace parley::ops
