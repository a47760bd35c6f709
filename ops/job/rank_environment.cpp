#include <parley/ops/job/rank_environment.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/number_text.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/job/results_store.hpp>
#include <parley/transports/files/file_storage.hpp>
#include <parley/transports/join/heartbeat.hpp>
#include <parley/transports/launch/environment.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tuning/text.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::ops {

using runtime::errc;
using tuning::setting;

namespace {

void limit_trials(tuning::plan_options& plan, const tuning::environment_settings& env, const tuning::settings& told) {
  if (env.has(setting::max_tuning_iterations))
    plan.maximum_in_all = std::max<std::size_t>(told.max_tuning_iterations, 1);
  if (env.has(setting::max_tuning_duration_ms)) plan.maximum_ns = 1e6 * told.max_tuning_duration_ms;
  if (env.has(setting::max_warmup_iterations)) plan.warm_up_repetitions = told.max_warmup_iterations;
}

template <class Number>
void heed_number(const tuning::variable_lookup& lookup, const char* name, Number& into,
                 runtime::number_range<Number> within) {
  const auto text = lookup(name);
  if (!text) return;
  const auto number = runtime::read_number<Number>(*text, within);
  if (!number)
    runtime::raise({errc::malformed, std::string(name) + "=" + *text + ": must be " + runtime::words_of(within) +
                                         "; correct it or unset it"});
  into = *number;
}

void heed_drift(tuning::drift_options& drift, const tuning::variable_lookup& lookup) {
  if (const auto on = heed_switch("PARLEY_TUNING_DRIFT", lookup)) drift.on = *on;
  heed_number(lookup, "PARLEY_TUNING_DRIFT_EVERY", drift.every, {1, std::uint64_t{1} << 40U});
  heed_number(lookup, "PARLEY_TUNING_DRIFT_THRESHOLD", drift.threshold, {0.01, 100.0});
}

constexpr const char* own_variables[] = {"PARLEY_RESULTS",
                                         "PARLEY_TUNING",
                                         "PARLEY_TUNING_DRIFT",
                                         "PARLEY_TUNING_DRIFT_EVERY",
                                         "PARLEY_TUNING_DRIFT_THRESHOLD",
                                         "PARLEY_TUNING_INTERPOLATE",
                                         "PARLEY_MASK",
                                         "PARLEY_SOFT_VALIDATORS",
                                         "PARLEY_RULES",
                                         "PARLEY_UCX_CUDA",
                                         "PARLEY_FLIGHT_DIR",
                                         "PARLEY_DETECTION",
                                         "PARLEY_PATIENCE",
                                         "PARLEY_STRICT"};

std::vector<std::string> known_variables() {
  std::vector<std::string> all(std::begin(own_variables), std::end(own_variables));
  all.insert(all.end(), transports::variable::all.begin(), transports::variable::all.end());
  for (unsigned s = 0; s <= static_cast<unsigned>(setting::last); ++s)
    all.push_back("PARLEY_TUNABLEOP_" + std::string(tuning::variable_name(static_cast<setting>(s))));
  return all;
}

const std::string family_prefix = "PARLEY_TUNABLEOP_";
const std::string icache_flush = "PARLEY_TUNABLEOP_ICACHE_FLUSH_ENABLED";

/// True for `PARLEY_TUNABLEOP_OPENBLAS_ENABLED` and the like. Which families there are is known once the program has made its kernels.
bool is_family_variable(const std::string& name) {
  const std::vector<std::string> known = known_variables();
  return name.starts_with(family_prefix) && name.ends_with("_ENABLED") &&
         std::find(known.begin(), known.end(), name) == known.end();
}

// A name that differs in more letters does not count as misspelt.
constexpr std::size_t most_slips = 3;

// The number of letters to insert, leave out or change to turn one text into the other.
std::size_t unlike(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// For names such as NVLink or peer-access: small letters, and `_` instead of `-`.
std::string in_small_letters(std::string_view name) {
  std::string small;
  for (const char c : name) small += c == '-' ? '_' : static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return small;
}

// The capability that a misspelt name probably means; empty: there is none. A mask with the misspelt name would hide nothing.
std::string capability_meant_by(std::string_view name) {
  if (std::ranges::find(machine::named, name) != machine::named.end() || machine::is_numbered(name)) return {};
  const std::string small = in_small_letters(name);
  for (const std::string_view prefix : machine::numbered) {
    const std::string_view word = prefix.substr(0, prefix.size() - 1);
    if (!small.starts_with(word)) continue;
    const std::string_view rest =
        std::string_view(small).substr(small.starts_with(prefix) ? prefix.size() : word.size());
    const bool begins_a_number = rest.empty() ? small != word : rest.front() >= '0' && rest.front() <= '9';
    if (begins_a_number) return std::string(prefix) + "N";
  }
  constexpr std::size_t short_name = 4;
  for (const std::string_view known : machine::named) {
    if (unlike(small, known) <= (known.size() <= short_name ? 1U : 2U)) return std::string(known);
  }
  return {};
}

[[noreturn]] void refuse_empty(const std::string& name, const std::string& what) {
  runtime::raise({errc::malformed, name + "=: must be " + what + "; correct it or unset it"});
}

}  // namespace

time_ns heed_detection(time_ns mine, const tuning::variable_lookup& lookup) {
  constexpr double ns_per_s = 1e9;
  constexpr double longest_s = 3600;
  constexpr double shortest_s = transports::heartbeat::shortest_detection_ns / ns_per_s;
  const auto told = lookup("PARLEY_DETECTION");
  if (!told) {
    if (mine != 0 && mine < transports::heartbeat::shortest_detection_ns)
      runtime::raise({errc::bad_argument, "job_options::detection is " + std::to_string(mine) +
                                              " ns: it must be 0 (never) or at least " +
                                              std::to_string(transports::heartbeat::shortest_detection_ns)});
    return mine;
  }
  const auto seconds = runtime::read_number<double>(*told, {0, longest_s});
  if (!seconds || (*seconds != 0 && *seconds < shortest_s))
    runtime::raise({errc::malformed, "PARLEY_DETECTION=" + *told + ": must be 0 (never), or seconds from " +
                                         runtime::number_words(shortest_s) + " to " + runtime::number_words(longest_s) +
                                         "; correct it or unset it"});
  return static_cast<time_ns>(*seconds * ns_per_s);
}

std::optional<bool> heed_switch(const char* name, const tuning::variable_lookup& lookup) {
  const auto told = lookup(name);
  if (!told) return std::nullopt;
  if (*told != "0" && *told != "1")
    runtime::raise({errc::malformed, std::string(name) + "=" + *told + ": must be 0 or 1; correct it or unset it"});
  return *told == "1";
}

std::vector<masked_capability> heed_masks(std::vector<masked_capability> mine, const tuning::variable_lookup& lookup) {
  const auto told = lookup("PARLEY_MASK");
  if (!told) return mine;
  if (told->empty()) refuse_empty("PARLEY_MASK", "[RANK:]CAPABILITY,…");
  auto read = parse_masks(*told);
  if (!read)
    runtime::raise(
        {errc::malformed, "PARLEY_MASK=" + *told + ": " + read.reason().text() + "; correct it or unset it"});
  for (const masked_capability& m : *read) {
    const std::string meant = capability_meant_by(m.name);
    if (meant.empty()) continue;
    runtime::raise({errc::malformed, "PARLEY_MASK=" + *told + ": \"" + m.name +
                                         "\" is not a capability, and too similar to " + meant +
                                         " to be a config's own name; a mask names " + machine::what_there_is() +
                                         ", or a config; correct it or unset it"});
  }
  return std::move(read).value();
}

std::vector<std::string> heed_soft_validators(std::vector<std::string> mine, const tuning::variable_lookup& lookup) {
  const auto told = lookup("PARLEY_SOFT_VALIDATORS");
  if (!told) return mine;
  if (told->empty()) refuse_empty("PARLEY_SOFT_VALIDATORS", "names of validators, NAME,…");
  std::string_view rest = *told;
  while (!rest.empty()) {
    if (const std::string_view name = tuning::take_until(',', rest); !name.empty()) mine.emplace_back(name);
  }
  return mine;
}

tuning::rule_file heed_rules(tuning::rule_file mine, const tuning::variable_lookup& lookup) {
  const auto path = lookup("PARLEY_RULES");
  if (!path) return mine;
  if (path->empty()) return {};
  transports::file_storage disk;
  const auto text = disk.read(*path);
  if (!text) runtime::raise({text.code(), "the rules of PARLEY_RULES could not be read: " + text.reason().text()});
  auto rules = tuning::rule_file::parse(*text, *path);
  if (!rules) runtime::raise({errc::malformed, rules.reason().text});
  return std::move(rules).value();
}

std::vector<std::string> masks_of_nobody(const std::vector<masked_capability>& masks, rank_id world_size) {
  std::vector<std::string> warnings;
  for (const masked_capability& m : masks) {
    if (!m.rank || *m.rank < world_size) continue;
    warnings.push_back(fmt::format("the mask {} hides nothing, because there is no rank {} in a world of {}; correct "
                                   "PARLEY_MASK, or the program's own masks",
                                   text_of(std::vector{m}), *m.rank, world_size));
  }
  return warnings;
}

std::optional<std::string> own_variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

heeded_environment heed_environment(rank_settings mine, const tuning::variable_lookup& lookup,
                                    std::span<const std::string> names) {
  auto read = tuning::read_settings(lookup, names);
  if (!read) runtime::raise({errc::malformed, read.reason().text});
  const tuning::environment_settings env = std::move(read).value();
  heeded_environment all{std::move(mine), env.over({}), env.warnings()};
  rank_settings& s = all.settings;

  if (env.has(setting::file) || (env.has(setting::enabled) && all.told.enabled)) s.results_path = all.told.file;
  if (const auto path = lookup("PARLEY_RESULTS")) s.results_path = *path;
  const bool none = s.results_path == no_file;
  if (none) s.results_path.clear();
  s.no_results = none || (s.results_path.empty() && lookup("PARLEY_RESULTS"));
  s.rules = heed_rules(std::move(s.rules), lookup);
  s.soft_validators = heed_soft_validators(std::move(s.soft_validators), lookup);
  if (const auto folder = lookup("PARLEY_FLIGHT_DIR")) {
    if (folder->empty()) refuse_empty("PARLEY_FLIGHT_DIR", "the name of a folder");
    if (s.flight_dir.empty()) s.flight_dir = *folder;
  }

  if (env.has(setting::tuning)) s.policy = all.told.tuning ? actors::tuning_policy::online : actors::tuning_policy::off;
  if (const auto on = heed_switch("PARLEY_TUNING", lookup))
    s.policy = *on ? actors::tuning_policy::online : actors::tuning_policy::off;
  if (env.has(setting::enabled) && !all.told.enabled) {
    s.results_path.clear();
    s.policy = actors::tuning_policy::off;
  }
  heed_drift(s.plan.drift, lookup);
  if (const auto on = heed_switch("PARLEY_TUNING_INTERPOLATE", lookup)) s.plan.interpolate = *on;
  heed_number(lookup, "PARLEY_PATIENCE", s.patience, {1, 1000});
  s.masked = heed_masks(std::move(s.masked), lookup);
  if (env.has(setting::check) && all.told.check.on) {
    s.constraints.relative_error = std::min(s.constraints.relative_error, all.told.check.rtol);
    s.constraints.absolute_error = all.told.check.atol;
    s.constraints.compare_trials = true;
  }
  s.kernel_environment = env;
  if (s.policy == actors::tuning_policy::off) s.kernels.tuning = false;
  if (all.told.record_untuned) s.untuned_path = all.told.untuned_file;
  limit_trials(s.plan, env, all.told);
  return all;
}

std::vector<std::string> unknown_variables(const std::vector<std::string>& names) {
  const std::vector<std::string> known = known_variables();
  std::vector<std::string> warnings;
  for (const std::string& name : names) {
    const bool other =
        !name.starts_with("PARLEY_") || name.starts_with("PARLEY_TEST_") || name.starts_with("PARLEY_BENCH_");
    if (other || std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (is_family_variable(name) && unlike(name, icache_flush) > most_slips) continue;
    const auto& nearest = *std::min_element(
        known.begin(), known.end(),
        [&](const std::string& a, const std::string& b) { return unlike(name, a) < unlike(name, b); });
    warnings.push_back("parley knows no environment variable " + name +
                       (unlike(name, nearest) <= most_slips ? "; the most similar known variable is " + nearest
                                                            : "; docs/settings.md lists the known variables"));
  }
  return warnings;
}

namespace {
// How many calls since the decision ran another config, and why. Empty except on the rank that leads the op.
std::string calls_of_others(const actors::participant_state& p, std::string_view key) {
  if (p.assigned == nullptr) return {};
  for (const auto& c : p.assigned->searches()) {
    if (c->key() != key) continue;
    std::uint64_t all = 0;
    std::string causes;
    for (const auto& [need, calls] : c->runs_of_others()) {
      all += calls;
      causes += fmt::format("{}{} for {}", causes.empty() ? "" : ", ", calls, need);
    }
    if (all != 0)
      return fmt::format("{} of {} calls since then ran another config: {}", all, c->calls_since_decision(), causes);
  }
  return {};
}
}  // namespace

std::vector<std::string> closing_lines(const rank& self, unsigned verbosity) {
  std::vector<std::string> lines;
  if (verbosity == 0) return lines;
  lines.push_back(fmt::format("{} results are known now", self.results().entries().size()));
  if (verbosity < 2) return lines;
  for (const actors::participant_state* p : self.participants()) {
    for (const actors::decision_record& d : p->decisions) {
      if (const std::string others = calls_of_others(*p, d.key); !others.empty())
        lines.push_back(fmt::format("{} {}: {}", p->declaration.title(), d.key, others));
    }
  }
  return lines;
}

std::vector<std::string> idle_switches(const std::vector<std::string>& names, const tunable_context& kernels) {
  std::set<std::string> used;
  std::string all;
  for (const auto& [family, switched] : kernels.families()) {
    used.insert(family_prefix + tuning::family_variable(family));
    all += (all.empty() ? "" : ", ") + tuning::family_variable(family);
  }
  std::vector<std::string> warnings;
  if (all.empty()) return warnings;  // another rank may have kernels
  for (const std::string& name : names) {
    if (is_family_variable(name) && !used.contains(name))
      warnings.push_back(
          name + " switches nothing on this rank, because none of its kernels has such a family; its kernels know " +
          all);
  }
  return warnings;
}

}  // namespace parley::ops
