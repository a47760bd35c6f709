#pragma once
/// One rank of `parley tune`: the hidden command `parley tune-rank`, which the launcher starts once per rank.
///
/// It runs the spec's workload and reports, over the pipe of rank_report.hpp, progress now and then and everything that it
/// knows in the end, also when the workload failed. Status 1 then, after an error with op, rank and what to do.
#include <parley/cli/payload/device_times.hpp>
#include <parley/cli/spec.hpp>
#include <parley/machine.hpp>
#include <parley/simulation/world/weather.hpp>

#include <boost/json/object.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace parley::cli {

/// A test switch: this rank kills itself when it has done that many microbatches, or in the midst of that run of a config.
struct planned_death {
  rank_id rank = 0;
  std::uint64_t after = 0;  ///< microbatches, or runs and this one
  std::string config{};     ///< by its name; empty: whichever run
};

/// Where payloads lie and are computed.
enum class payload_device : std::uint8_t { host, cuda };
/// `one_process`: all ranks share this process and its thread, and with it one GPU or several. `simulated`: the same on virtual
/// links and in virtual time, of which computations take none, or with `cuda` what they take on a GPU.
enum class rank_housing : std::uint8_t { processes, one_process, simulated };

inline constexpr double largest_budget = 1000;

/// What both sides of `parley tune` are told.
struct tune_settings {
  std::string spec_path;
  spec_overrides overrides;
  std::string results_path;           ///< empty: none
  bool trials = true;                 ///< false: what the results file says, else the default
  std::optional<double> budget{};     ///< of wall time, for trials; none: the library's own
  bool mutant_ignores_stamp = false;  ///< test switch: the demo must fail
  std::optional<planned_death> death{};
  payload_device device = payload_device::host;
  rank_housing housing = rank_housing::processes;
  std::uint64_t seed = 1;   ///< of a simulated run
  std::uint64_t seeds = 1;  ///< so many simulated runs, one after the other
  bool weather = false;     ///< of simulated runs: faults, and then none
  std::vector<ops::masked_capability> masked{};
};

/// Throws `text_error` for a mask whose rank the spec has not, or whose capability is neither a machine's nor one of its configs.
void check_masks(const tune_settings& s, const spec& job);

int tune_rank(const tune_settings& s);

/// How ranks that share this process ended: with which error, or none, and which signal interrupted them, or 0.
struct housed_end {
  std::string error;
  int signal = 0;
  std::uint64_t hash = 0;           ///< of a simulated run: equal runs have equal ones
  simulation::coverage messages{};  ///< of a simulated run
};

/// All ranks here, without a launcher: reports come as `tune_rank` sends them. Throws `unavailable` when there is no GPU to use.
using report_handler = std::function<void(rank_id from, boost::json::object&& report)>;
housed_end tune_in_one_process(const spec& job, const tune_settings& s, const report_handler& on_report);
/// The same on virtual ranks, whose links are late by as much as the seed says: a function of spec, settings, seed and, if they are
/// given, of what was measured on a device: computations and copies take as long then. In `weather` links also lose, double and reorder
/// messages and are clogged, and ranks are stopped or slow, until all is healed and everything has to converge. Reads and writes no
/// results.
housed_end tune_simulated(const spec& job, const tune_settings& s, const device_times* measured,
                          const report_handler& on_report);

}  // namespace parley::cli
