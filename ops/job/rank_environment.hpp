#pragma once
/// What environment variables make of a rank's settings. They beat what the program set, and are read once, when it starts.
/// docs/settings.md lists these and all others.
///
///     heeded_environment e = heed_environment(mine, lookup);      // throws `malformed`, naming the variable
///
/// | variable | does |
/// |---|---|
/// | PARLEY_RESULTS=FILE | reads and writes results; empty: none |
/// | PARLEY_TUNING=0 | no trials: what is remembered, else the default |
/// | PARLEY_MASK=RANK:CAPABILITY,… | what ranks are told to do without (machine.hpp) |
/// | PARLEY_TUNING_DRIFT=0 | a decision whose times drift is not searched anew (default: 1) |
/// | PARLEY_TUNING_DRIFT_EVERY=512 | calls of one size between two looks at their times |
/// | PARLEY_TUNING_DRIFT_THRESHOLD=0.25 | how much a change that lasts must be, as a part of the smaller time |
/// | PARLEY_PATIENCE=N | the time-outs of all ops are N times as long |
/// | PARLEY_TUNABLEOP_ENABLED=0 | neither results nor trials; =1 names FILENAME's default |
/// | PARLEY_TUNABLEOP_TUNING, FILENAME | the same as the first two, which win |
/// | PARLEY_TUNABLEOP_RECORD_UNTUNED=1 | what had no result and was not tuned is listed in UNTUNED_FILENAME |
/// | PARLEY_TUNABLEOP_MAX_TUNING_ITERATIONS, MAX_TUNING_DURATION_MS, MAX_WARMUP_ITERATIONS | bound each candidate's trials |
/// | PARLEY_TUNABLEOP_NUMERICAL_CHECK=ATOL_RTOL | configs that say they are less accurate than RTOL are excluded from every op |
/// | PARLEY_TUNABLEOP_VERBOSE, VERBOSE_FILENAME | 1: results files, 2: decisions, 3: their evidence |
///
/// All of TunableOp's are understood with the prefix `PYTORCH_TUNABLEOP_` too (tuning/results/settings.hpp).
#include <parley/rank.hpp>
#include <parley/tuning/results/settings.hpp>

#include <optional>
#include <string>
#include <vector>

namespace parley::ops {

struct heeded_environment {
  rank_settings settings;
  tuning::settings told;  ///< for what a rank does not do itself: verbosity
  std::vector<std::string> warnings;
};

heeded_environment heed_environment(rank_settings mine, const tuning::variable_lookup& lookup);
/// PARLEY_DETECTION=SECONDS, or what the program has set. Throws `malformed`, or `bad_argument` of the program's.
runtime::time_ns heed_detection(runtime::time_ns mine, const tuning::variable_lookup& lookup);
/// What a variable that is 0 or 1 says; nothing where it is not set. Throws `malformed`.
std::optional<bool> heed_switch(const char* name, const tuning::variable_lookup& lookup);
/// PARLEY_MASK alone, or what the program has set. Throws `malformed`, also for a capability that is misspelt: what is like one and is none
/// can be masked by the program only, as a config's own name.
std::vector<masked_capability> heed_masks(std::vector<masked_capability> mine, const tuning::variable_lookup& lookup);

/// A warning for each mask of a rank that is not in the world.
std::vector<std::string> masks_of_nobody(const std::vector<masked_capability>& masks, rank_id world_size);

/// Of the names of variables, those that begin with `PARLEY_` and that nothing reads: a warning each, with the known one that is most
/// like it where they differ in three letters or fewer. What tests and benchmarks read begins with `PARLEY_TEST_` or `PARLEY_BENCH_`, and
/// is known.
std::vector<std::string> unknown_variables(const std::vector<std::string>& names);

/// What VERBOSE asks to be told of a rank, a line each; nothing at 0.
std::vector<std::string> verbose_lines(const rank& self, unsigned verbosity);

}  // namespace parley::ops
