#pragma once
/// `parley tune SPEC.json`: starts the ranks that the spec asks for, shows how they agree, and keeps what they found.
///
/// Status 0; 1 when a rank failed, two ranks ran different configs, outputs differ, or the results could not be written; 3 when all went
/// well and nothing was decided, although trials were allowed: why, and what to do, is said, and is `undecided` of the document. PARLEY_RESULTS
/// and PARLEY_TUNING count where no option says otherwise, and what docs/settings.md lists for results and tuning besides. What
/// is wrong with the spec comes out as `text_error`, which the command turns into status 2. A results file of another
/// version, machine or world is not trusted, not overwritten, and named.
#include <parley/cli/tune_rank.hpp>

#include <string>

namespace parley::cli {

/// Of a run that went well and decided nothing.
inline constexpr int status_undecided = 3;

enum class output_format : std::uint8_t { table, json };

struct tune_options {
  tune_settings settings;
  output_format format = output_format::table;
  std::string trace_path;  ///< empty: none
};

int tune(const tune_options& o);

}  // namespace parley::cli
