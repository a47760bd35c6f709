#include <parley/ops/rank_environment.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

std::string text_of_time(double time_ns) { return time_ns > 0 ? fmt::format("{:.6g} ms", time_ns / 1e6) : "not timed"; }

}  // namespace

heeded_environment heed_environment(rank_settings mine, const tuning::variable_lookup& lookup) {
  auto read = tuning::read_settings(lookup);
  if (!read) runtime::raise({errc::malformed, read.reason().text});
  const tuning::environment_settings env = std::move(read).value();
  heeded_environment all{std::move(mine), env.over({}), env.warnings()};
  rank_settings& s = all.settings;

  if (env.has(setting::file) || (env.has(setting::enabled) && all.told.enabled)) s.results_path = all.told.file;
  if (const auto path = lookup("PARLEY_RESULTS")) s.results_path = *path;
  if (const auto folder = lookup("PARLEY_FLIGHT_DIR"); folder && s.flight_dir.empty()) s.flight_dir = *folder;

  if (env.has(setting::tuning)) s.policy = all.told.tuning ? actors::tuning_policy::online : actors::tuning_policy::off;
  if (const auto tuning = lookup("PARLEY_TUNING"); tuning && !tuning->empty()) {
    if (*tuning != "0" && *tuning != "1")
      runtime::raise({errc::malformed, "PARLEY_TUNING=" + *tuning + ": must be 0 or 1; correct it or unset it"});
    s.policy = *tuning == "1" ? actors::tuning_policy::online : actors::tuning_policy::off;
  }
  if (env.has(setting::enabled) && !all.told.enabled) {
    s.results_path.clear();
    s.policy = actors::tuning_policy::off;
  }
  if (all.told.record_untuned) s.untuned_path = all.told.untuned_file;
  limit_trials(s.plan, env, all.told);
  return all;
}

std::vector<std::string> verbose_lines(const rank& self, unsigned verbosity) {
  std::vector<std::string> lines;
  if (verbosity == 0) return lines;
  const auto& file = self.remembered();
  lines.push_back(fmt::format("{} results were remembered, {} are known now", file.entries().size(),
                              self.results().entries().size()));
  if (verbosity < 2) return lines;
  for (const edge_decision& e : self.decisions()) {
    const auto& d = e.decision;
    lines.push_back(fmt::format("{} {}->{} {}: {}", e.op, e.sender, e.receiver, d.key, d.why));
    if (verbosity < 3) continue;
    for (const auto& v : d.evidence)
      lines.push_back(fmt::format("  config {:016x}: {}, {} repetitions, {}", v.digest, text_of_time(v.time_ns),
                                  v.repetitions, v.status));
  }
  return lines;
}

}  // namespace parley::ops
