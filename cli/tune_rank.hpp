#pragma once
/// One rank of `parley tune`: the hidden command `parley tune-rank`, which the launcher starts once per rank.
///
/// It runs the spec's workload. Over the pipe of rank_report.hpp it reports its progress from time to time and, in the end, everything that
/// it knows, even if the workload failed. If it failed, the rank prints an error with op, rank and remedy, and ends with status 1.
#include <parley/cli/payload/device_times.hpp>
#include <parley/cli/spec/spec.hpp>
#include <parley/machine.hpp>
#include <parley/simulation/world/weather.hpp>

#include <boost/json/object.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace parley::cli {

/// A test switch: this rank kills itself after that many microbatches, or in the middle of that run of a config.
struct planned_death {
  rank_id rank = 0;
  std::uint64_t after = 0;  ///< microbatches; with a config: the number of the run, from 1
  std::string config{};     ///< by its name; empty: `after` counts microbatches
};

/// The memory that holds the payloads; the processor or the GPU computes them there.
enum class payload_device : std::uint8_t { host, cuda };
/// `one_process`: all ranks share this process and its thread, and its GPUs. `simulated`: all ranks share this process, with virtual
/// links and virtual time. Computations then take no time, or with `cuda` the time that they take on a GPU.
enum class rank_housing : std::uint8_t { processes, one_process, simulated };

inline constexpr double largest_budget = 1000;

/// The settings of `parley tune`, for the command and for its ranks.
struct tune_settings {
  std::string spec_path;
  spec_overrides overrides;
  std::string results_path;           ///< empty: none
  bool trials = true;                 ///< false: run the config that the results file names, else the default
  std::optional<double> budget{};     ///< for trials, as a part of wall time; nothing: the library's own
  bool mutant_ignores_stamp = false;  ///< test switch: the demo must fail
  std::optional<planned_death> death{};
  payload_device device = payload_device::host;
  rank_housing housing = rank_housing::processes;
  std::uint64_t seed = 1;   ///< of a simulated run
  std::uint64_t seeds = 1;  ///< number of simulated runs, one after the other
  bool weather = false;     ///< faults in simulated runs, which are healed later
  std::vector<ops::masked_capability> masked{};
};

/// Throws `text_error` if the spec has an op that `parley tune` cannot run on the device.
void check_device(const tune_settings& s, const spec& job);
/// Throws `text_error` for a mask of a rank that the spec does not have, or of a name that is neither a machine's capability nor one of the
/// spec's configs.
void check_masks(const tune_settings& s, const spec& job);

int tune_rank(const tune_settings& s);

/// How ranks that share this process ended: the error, or empty, and the signal that interrupted them, or 0.
struct housed_end {
  std::string error;
  int signal = 0;
  std::uint64_t hash = 0;           ///< of a simulated run: equal runs have equal hashes
  simulation::coverage messages{};  ///< of a simulated run
};

/// Runs all ranks here, without a launcher; reports are those of `tune_rank`. Throws `unavailable` when there is no GPU to use.
using report_handler = std::function<void(rank_id from, boost::json::object&& report)>;
housed_end tune_in_one_process(const spec& job, const tune_settings& s, const report_handler& on_report);
/// Like `tune_in_one_process`, on virtual ranks; the seed determines the delays of their links. The outcome depends only on spec, settings,
/// seed and, if given, on `measured`: computations and copies then take as long as on that device. With `weather`, links also lose,
/// double, reorder and block messages, and ranks are stopped or slow, until all faults are healed and everything must converge. Neither
/// reads nor writes results files.
housed_end tune_simulated(const spec& job, const tune_settings& s, const device_times* measured,
                          const report_handler& on_report);

}  // namespace parley::cli
