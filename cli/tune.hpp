#pragma once
/// `parley tune SPEC.json`: starts the ranks that the spec asks for, shows how they agree, and keeps what they found.
///
/// Status 0. Status 1 when a rank failed, two ranks ran different configs, outputs differ, or the results could not be written. Status 3
/// when all went well and nothing was decided, although trials were allowed: the command says why and what to do, also as `undecided` of
/// the document. Where no option says otherwise, PARLEY_RESULTS, PARLEY_TUNING and the other variables for results and tuning in
/// docs/settings.md count. A fault in the spec throws `text_error`, which the command turns into status 2. A results file of
/// another version, machine or world is not trusted and not overwritten; a message names it.
#include <parley/cli/tune_rank.hpp>

#include <string>

namespace parley::cli {

/// The status of a run that went well and decided nothing.
inline constexpr int status_undecided = 3;

enum class output_format : std::uint8_t { table, json };

struct tune_options {
  tune_settings settings;
  output_format format = output_format::table;
  std::string trace_path;  ///< empty: none
};

int tune(const tune_options& o);

}  // namespace parley::cli
