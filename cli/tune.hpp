#pragma once
/// `parley tune SPEC.json`: starts the ranks of the spec, shows how they agree, and keeps their results.
///
/// Status 0 normally. Status 1 when a rank failed, two ranks ran different configs, outputs differ, or the results could not be written.
/// Status 3 when there was no failure but nothing was decided, although trials were allowed: the command says why and what to do, also in
/// `undecided` of the document. PARLEY_RESULTS, PARLEY_TUNING and the other variables for results and tuning in docs/settings.md apply
/// unless an option overrides them. A fault in the spec throws `text_error`, which the command turns into status 2. A results file of
/// another version, machine or world is neither trusted nor overwritten; a message names it.
#include <parley/cli/tune_rank.hpp>

#include <string>

namespace parley::cli {

/// The status of a run that had no failure and decided nothing.
inline constexpr int status_undecided = 3;

enum class output_format : std::uint8_t { table, json };

struct tune_options {
  tune_settings settings;
  output_format format = output_format::table;
  std::string trace_path;  ///< empty: none
};

int tune(const tune_options& o);

}  // namespace parley::cli
