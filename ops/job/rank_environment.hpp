#pragma once
/// Applies environment variables to a rank's settings. They are read once, when the rank starts. They override the program's settings,
/// except PARLEY_FLIGHT_DIR: a folder that the program has set wins. docs/settings.md lists these and all others.
///
///     heeded_environment e = heed_environment(mine, lookup);      // throws `malformed`, naming the variable
///
/// | variable | does |
/// |---|---|
/// | PARLEY_RESULTS=FILE | reads and writes results; empty: none |
/// | PARLEY_TUNING=0 | no trials: a remembered result, else the default |
/// | PARLEY_MASK=RANK:CAPABILITY,… | capabilities that ranks must do without (machine.hpp) |
/// | PARLEY_TUNING_DRIFT=0 | no new search when a decision's times drift (default: 1) |
/// | PARLEY_TUNING_DRIFT_EVERY=512 | calls of one size between two checks of their times |
/// | PARLEY_TUNING_DRIFT_THRESHOLD=0.25 | the smallest lasting change that counts, as a part of the smaller time |
/// | PARLEY_PATIENCE=N | the timeouts of all ops are N times as long |
/// | PARLEY_TUNABLEOP_ENABLED=0 | neither results nor trials; =1: results are in FILENAME, or in its default |
/// | PARLEY_TUNABLEOP_TUNING, FILENAME | like PARLEY_TUNING and PARLEY_RESULTS, which override them |
/// | PARLEY_TUNABLEOP_RECORD_UNTUNED=1 | lists calls without a result that were not tuned, in UNTUNED_FILENAME |
/// | PARLEY_TUNABLEOP_MAX_TUNING_ITERATIONS, MAX_TUNING_DURATION_MS, MAX_WARMUP_ITERATIONS | bound each candidate's trials |
/// | PARLEY_TUNABLEOP_NUMERICAL_CHECK=ATOL_RTOL | excludes from every op the configs that declare a larger error than RTOL |
/// | PARLEY_TUNABLEOP_VERBOSE, VERBOSE_FILENAME | 1: results files, 2: decisions, 3: their evidence |
///
/// All variables of TunableOp can also have the prefix `PYTORCH_TUNABLEOP_` (tuning/results/settings.hpp).
#include <parley/rank.hpp>
#include <parley/tuning/results/settings.hpp>

#include <optional>
#include <string>
#include <vector>

namespace parley::ops {

struct heeded_environment {
  rank_settings settings;
  tuning::settings told;  ///< settings that a rank does not apply itself: verbosity
  std::vector<std::string> warnings;
};

/// A variable of this process.
std::optional<std::string> own_variable(const std::string& name);
/// `names`: the variables that are set (`read_settings`). Throws `malformed`.
heeded_environment heed_environment(rank_settings mine, const tuning::variable_lookup& lookup,
                                    std::span<const std::string> names = {});
/// PARLEY_DETECTION in seconds, else the program's value. Throws `malformed`, or `bad_argument` if the program's value is invalid.
runtime::time_ns heed_detection(runtime::time_ns mine, const tuning::variable_lookup& lookup);
/// The value of a variable that is 0 or 1; nothing if it is not set. Throws `malformed`.
std::optional<bool> heed_switch(const char* name, const tuning::variable_lookup& lookup);
/// The masks of PARLEY_MASK if it is set, else the program's. Throws `malformed`, also for a misspelt capability. A config's own name that
/// resembles a capability counts as misspelt here; only the program can mask it.
std::vector<masked_capability> heed_masks(std::vector<masked_capability> mine, const tuning::variable_lookup& lookup);

/// The names in PARLEY_SOFT_VALIDATORS behind the program's. Throws `malformed`.
std::vector<std::string> heed_soft_validators(std::vector<std::string> mine, const tuning::variable_lookup& lookup);

/// The rules in the file of PARLEY_RULES if it is set and not empty, else the program's. Throws `malformed`, or why the file cannot be read.
tuning::rule_file heed_rules(tuning::rule_file mine, const tuning::variable_lookup& lookup);

/// A warning for each mask of a rank that is not in the world.
std::vector<std::string> masks_of_nobody(const std::vector<masked_capability>& masks, rank_id world_size);

/// Returns a warning for each name that begins with `PARLEY_` and is not a known variable. It suggests the most similar known variable if
/// the two differ in at most three letters. All names that begin with `PARLEY_TEST_` or `PARLEY_BENCH_` are known: tests and benchmarks
/// read them.
std::vector<std::string> unknown_variables(const std::vector<std::string>& names);

/// A warning for each variable `PARLEY_TUNABLEOP_…_ENABLED` that switches no family of this rank's kernels, if these have families.
std::vector<std::string> idle_switches(const std::vector<std::string>& names, const tunable_context& kernels);

/// The lines that VERBOSE asks for at the end of a rank, in addition to those that were told at once (`rank_settings::tell`).
std::vector<std::string> closing_lines(const rank& self, unsigned verbosity);

}  // namespace parley::ops
