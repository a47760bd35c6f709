#pragma once
/// TunableOp's settings, with their conversions to and from text. The environment overrides the program's settings, and is read once.
///
///     const environment_settings env = read_settings(lookup).value();     // at the start of the process
///     settings now = env.over(mine);                                      // mine: what the program asked for
///     if (env.has(setting::file)) …                                       // somebody named a file
///
/// The variables are `PARLEY_TUNABLEOP_ENABLED` and so on. Each also works with the prefix `PYTORCH_TUNABLEOP_`; PARLEY's wins. If the
/// value of a PARLEY variable cannot be read, `read_settings` returns a `problem` that names the variable, its value and the possible
/// values. A bad value of a PYTORCH variable concerns another program: it becomes a warning and counts as unset. An empty value counts as
/// unset.
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

/// Compares a candidate's results with the default's: |a - b| <= atol + rtol * |b|.
struct numerical_check {
  bool on = false;
  double atol = 1e-5;
  double rtol = 1e-5;
  friend bool operator==(const numerical_check&, const numerical_check&) = default;
};

struct settings {
  bool enabled = false;         ///< ENABLED: use results at all
  bool tuning = true;           ///< TUNING: run trials for keys without a result
  bool record_untuned = false;  ///< RECORD_UNTUNED: keep a list of keys without a result that were not tuned
  unsigned verbosity = 0;       ///< VERBOSE: 0 silent, 1 files, 2 decisions, 3 the evidence of decisions
  std::string verbose_file = "err";
  std::string file = "tunableop_results.csv";          ///< FILENAME, without an ordinal
  std::string untuned_file = "tunableop_untuned.csv";  ///< UNTUNED_FILENAME
  numerical_check check{};                             ///< NUMERICAL_CHECK: 0, 1 or atol_rtol
  std::uint32_t max_tuning_duration_ms = 30;           ///< per candidate
  std::uint32_t max_tuning_iterations = 100;
  std::uint32_t max_warmup_duration_ms = 0;
  std::uint32_t max_warmup_iterations = 0;
  bool flush_icache = true;                            ///< ICACHE_FLUSH_ENABLED
  std::optional<std::uint64_t> rotating_buffer_bytes;  ///< ROTATING_BUFFER_SIZE in MiB; nothing: the L2 size, 0: off
  friend bool operator==(const settings&, const settings&) = default;
};

enum class setting : std::uint8_t {
  enabled,
  tuning,
  record_untuned,
  verbosity,
  verbose_file,
  file,
  untuned_file,
  check,
  max_tuning_duration_ms,
  max_tuning_iterations,
  max_warmup_duration_ms,
  max_warmup_iterations,
  flush_icache,
  rotating_buffer_bytes,
};

/// The variable's name without a prefix: `ENABLED`.
std::string_view variable_name(setting which) noexcept;
/// The value as a variable has it: `1`, `results.csv`, `1e-05_0.001`; empty for an L2-sized rotating buffer.
std::string text_of(const settings& from, setting which);

/// The settings that the environment gives, and no others.
class environment_settings {
 public:
  bool has(setting which) const noexcept { return (given_ >> static_cast<unsigned>(which) & 1U) != 0; }
  /// A program's settings, with the values that the environment gives in their place.
  settings over(settings mine) const;
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }

 private:
  friend class settings_reader;
  settings values_;
  std::uint32_t given_ = 0;
  std::vector<std::string> warnings_;
};

using variable_lookup = std::function<std::optional<std::string>(const std::string& name)>;

outcome<environment_settings> read_settings(const variable_lookup& lookup);

}  // namespace parley::tuning
