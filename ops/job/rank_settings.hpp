#pragma once
/// The settings of a rank that a program may change. docs/settings.md lists the variables that override them.
#include <parley/actors/policy.hpp>
#include <parley/machine.hpp>
#include <parley/tuning/constraint.hpp>
#include <parley/tuning/planners/plan_options.hpp>
#include <parley/tuning/results/results.hpp>
#include <parley/tuning/results/rules.hpp>
#include <parley/tuning/results/settings.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace parley::ops {

struct rank_settings {
  rank_settings();  // all of these in rank_settings.cpp, or every program would compile them
  rank_settings(const rank_settings&);
  rank_settings(rank_settings&&) noexcept;
  rank_settings& operator=(const rank_settings&);
  rank_settings& operator=(rank_settings&&) noexcept;
  ~rank_settings();

  /// The file that results are read from and written to; empty: none. Each rank writes its own file, with its number in the name
  /// (`results2.csv`). It reads `results_path` itself first, which a launcher may have merged.
  std::string results_path;
  /// What runs, and what must not (tuning/results/rules.hpp). The rules of an op's leader count, and a rank's own for its kernels. The file
  /// of PARLEY_RULES replaces them.
  tuning::rule_file rules{};
  std::string untuned_path;  ///< lists what ran its default untuned; has the rank's number in its name; empty: none
  std::string spare_folder;  ///< for results that cannot be written in their own folder; empty: none
  /// True: results are in the file within a second after they were learned, even if the process is killed. False: only `write_results`
  /// writes.
  bool write_results_soon = true;
  bool no_results = false;  ///< results are switched off (PARLEY_RESULTS is empty), also those of kernels
  /// What results depend on, besides parley's version, the world, and in a job of processes its machine and libraries. If a name is also
  /// one of these, the program's value counts.
  std::vector<tuning::validator> validators;
  /// Names of validators that may differ: the results of such a file are used, and searched again. PARLEY_SOFT_VALIDATORS adds to them.
  std::vector<std::string> soft_validators;
  actors::tuning_policy policy = actors::tuning_policy::online;
  tuning::plan_options plan{};
  actors::window_limits window{};
  /// At most so many bytes may wait on one edge because they arrived before their receives; and at most so many on this rank for ops that
  /// it has not declared. All ranks must have the same value, because each sender limits itself to its share of the latter
  /// (docs/limits.md).
  std::uint64_t early_bytes = actors::most_early_bytes;
  tuning::constraints constraints{};  ///< for every op, in addition to its own
  /// Capabilities that ranks must do without in all ops (parley/machine.hpp), the same on all ranks. PARLEY_MASK overrides it.
  std::vector<masked_capability> masked{};
  tuning::settings kernels{};  ///< of tunable kernels (parley/tunable_op.hpp); off unless enabled
  tuning::environment_settings kernel_environment{};  ///< overrides `kernels`
  /// Called at once with each line that VERBOSE asks for; empty: no lines.
  std::function<void(const std::string& line)> tell{};
  std::size_t flight_records = 16384;
  /// The folder for `parley-flight-RANK.json`, the contents of the flight recorder. The rank writes the file when a call fails or a peer is
  /// lost, at most once a second, and when the program asks for it. Overrides PARLEY_FLIGHT_DIR. Empty: not written.
  std::string flight_dir;
  /// Factor for the timeouts of all ops, at least 1. It does not delay the detection of deaths. PARLEY_PATIENCE overrides it.
  std::uint32_t patience = 1;
  bool mutant_ignores_stamp = false;  ///< test switch, see ops/edges/edge_end.hpp
};

}  // namespace parley::ops
