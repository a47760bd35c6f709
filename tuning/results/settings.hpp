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
#include <map>
#include <optional>
#include <span>
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
  std::uint32_t max_search_duration_ms = 1000;  ///< for a kernel with very many implementations; 0: all are tried
  bool flush_icache = true;                     ///< ICACHE_FLUSH_ENABLED
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
  max_search_duration_ms,
  last = max_search_duration_ms,
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
  /// The switch of a family of implementations, `openblas`: the value of OPENBLAS_ENABLED. Nothing: it is not set.
  std::optional<bool> family(std::string_view name) const;
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }

 private:
  friend class settings_reader;
  settings values_;
  std::uint32_t given_ = 0;
  std::vector<std::string> warnings_;
  std::map<std::string, bool, std::less<>> families_;  // by variable, without a prefix
};

using variable_lookup = std::function<std::optional<std::string>(const std::string& name)>;

/// The variable that switches a family of implementations, without a prefix: `OPENBLAS_ENABLED` for `openblas`.
std::string family_variable(std::string_view family);

/// `names`: the variables that are set, among which are those that switch families; nobody knows the families yet.
outcome<environment_settings> read_settings(const variable_lookup& lookup, std::span<const std::string> names = {});

}  // namespace parley::tuning
