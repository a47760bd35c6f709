#include <parley/tuning/planners/kernel_plan.hpp>
#include <parley/tuning/planners/noise.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

constexpr double most_runs = 2147483647.0;

/// The number of runs of `estimate_ns` that fit into the duration, at most 2^31 - 1, the largest setting.
std::size_t runs_within(double duration_ns, double estimate_ns) {
  return static_cast<std::size_t>(std::clamp(duration_ns / estimate_ns, 0.0, most_runs));
}

double median_of(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return (all[(all.size() - 1) / 2] + all[all.size() / 2]) / 2;
}

/// If disturbed, the median may be a time that only undisturbed turns take. So the mean counts, without the slowest turn, unless that shows
/// that the candidate may stall.
aggregate repeated(std::vector<double> turns_ns, bool disturbed) {
  const std::vector<std::vector<double>> one{turns_ns};
  aggregate a = aggregate_times(one);
  if (!disturbed || turns_ns.size() < 3 || !a.measured()) return a;
  std::sort(turns_ns.begin(), turns_ns.end());
  if (!is_disturbed(a)) turns_ns.pop_back();
  a.time_ns = std::accumulate(turns_ns.begin(), turns_ns.end(), 0.0) / static_cast<double>(turns_ns.size());
  return a;
}

}  // namespace

kernel_plan::kernel_plan(std::size_t candidates, const settings& limits, checks c, place where)
    : limits_(limits), checks_(c), where_(where), tried_(candidates),
      settling_(where == place::device ? 0 : std::min<double>(settling_ns, limit_ns() / 10)) {
  if (candidates == 0) throw invalid({fault::empty, "a kernel needs at least its default implementation"});
  if (candidates == 1) settling_ = 0;
}

void kernel_plan::drop(std::size_t candidate, std::string why) {
  if (candidate == 0) return;
  tried_.at(candidate).is_out = true;
  tried_[candidate].result.detail = std::move(why);
}

std::optional<trial> kernel_plan::next() const noexcept {
  switch (step_) {
    case step::probe: return trial{candidate_, trial_kind::probe};
    case step::reference: return trial{0, trial_kind::reference};
    case step::check: return trial{candidate_, trial_kind::check};
    case step::warm_up:
    case step::settle: return trial{candidate_, trial_kind::warm_up};
    case step::timed: return trial{candidate_, trial_kind::timed};
    case step::finished: break;
  }
  return std::nullopt;
}

void kernel_plan::ended(std::int64_t began_ns, std::int64_t ended_ns) {
  tried& c = current();
  const double took_ns =
      std::max(static_cast<double>(ended_ns - began_ns), 1.0);  // a clock that did not tick is no proof of zero cost
  if (step_ != step::reference && step_ != step::check) note_disturbance(c, took_ns);
  const bool stands_still = ended_ns == began_ns;  // a clock of virtual time
  if (settled_at_ns_ == 0) settled_at_ns_ = began_ns + static_cast<std::int64_t>(settling_);
  switch (step_) {
    case step::probe:
      if (!std::exchange(c.has_run, true)) return;
      c.spent_ns += took_ns;
      c.probe_ns.push_back(took_ns);
      return end_probe(stands_still || ended_ns >= settled_at_ns_);
    case step::reference: step_ = step::check; return;
    case step::check: return probe_next();
    case step::warm_up:
      if (limits_.max_warmup_duration_ms == 0) c.spent_ns += took_ns;
      c.warm_ups = is_over(c) ? 0 : c.warm_ups - 1;
      if (c.warm_ups != 0) return;
      plan_turns(c);
      return c.turns_left == 0 ? next_turn() : begin_turn();
    case step::settle:
      if (stands_still || ended_ns >= settled_at_ns_) step_ = step::timed;
      return;
    case step::timed:
      c.spent_ns += took_ns;
      turn_ns_ += took_ns;
      ++turn_runs_;
      ++timed_runs_;
      if (is_over(c) || (turn_runs_ >= planned_runs_ && (!disturbed_ || stands_still || is_long_enough(c)))) end_turn();
      return;
    case step::finished: return;
  }
}

void kernel_plan::note_disturbance(tried& c, double took_ns) noexcept {
  if (!c.has_run) return;  // the first run is cold
  c.fastest_ns = std::min(c.fastest_ns, took_ns);
  c.slowest_ns = std::max(c.slowest_ns, took_ns);
  constexpr double part_of_a_time_slice_ns = 500'000;
  if (is_disturbed(c.fastest_ns, c.slowest_ns) && c.slowest_ns - c.fastest_ns > part_of_a_time_slice_ns)
    disturbed_ = true;
}

void kernel_plan::failed(std::string why) {
  tried& c = current();
  const bool was_in_turn = step_ == step::warm_up || step_ == step::settle || step_ == step::timed;
  c.is_out = true;
  c.result = {};
  c.result.status = step_ == step::check ? aggregate_status::wrong_data : aggregate_status::failed;
  c.result.detail = std::move(why);
  if (was_in_turn) return next_turn();
  probe_next();
}

// ---- the probe --------------------------------------------------------------------------------------------------------

bool kernel_plan::is_over(const tried& c) const noexcept {
  const double limit = (disturbed_ ? disturbed_duration : 1) * limit_ns();
  return !c.probe_ns.empty() && c.spent_ns >= limit;
}

double kernel_plan::best_estimate_ns() const noexcept {
  double best = infinite_ns;
  for (const tried& c : tried_)
    if (!c.is_out) best = std::min(best, c.estimate_ns);
  return best;
}

bool kernel_plan::is_hopeless(const tried& c) const noexcept {
  return c.estimate_ns > hopeless_factor * best_estimate_ns();
}

void kernel_plan::end_probe(bool settled) {
  tried& c = current();
  c.estimate_ns = c.fastest_ns;
  const std::size_t enough = disturbed_ && is_hopeless(c) ? disturbed_probing_runs : probing_runs;
  const bool is_known = c.probe_ns.size() + 1 >= enough && settled;
  if (!is_known && !is_over(c)) return;
  if (checks_ == checks::against_default && candidate_ != 0 && !is_hopeless(c)) {
    step_ = step::reference;
    return;
  }
  probe_next();
}

void kernel_plan::probe_next() {
  do {
    ++candidate_;
  } while (candidate_ != tried_.size() && current().is_out);
  if (candidate_ == tried_.size()) return begin_timing();
  settled_at_ns_ = 0;
  step_ = step::probe;
}

// ---- the turns --------------------------------------------------------------------------------------------------------

/// A limit of 0 means no limit, but if both are 0, there are no warm-ups.
std::size_t kernel_plan::warm_ups(const tried& c) const noexcept {
  const std::size_t within = runs_within(1e6 * limits_.max_warmup_duration_ms, c.estimate_ns);
  const std::size_t most = limits_.max_warmup_iterations;
  if (limits_.max_warmup_duration_ms == 0) return is_over(c) ? 0 : most;
  return most == 0 ? within : std::min(most, within);
}

/// 0 if the probe has left no time. Then the probe's own times count instead.
std::size_t kernel_plan::timings(const tried& c) const noexcept {
  const std::size_t within = runs_within(limit_ns() - c.spent_ns, c.estimate_ns);
  const std::size_t most = std::max<std::size_t>(limits_.max_tuning_iterations, 1);
  return std::min(most, within);
}

void kernel_plan::plan_turns(tried& c) const {
  c.runs_left = timings(c);
  c.turns_left = std::min(most_turns, c.runs_left);
  const bool as_good_as_turns = where_ == place::processors && c.estimate_ns >= settling_;
  if (!as_good_as_turns && c.runs_left != 0) return;
  c.turns_ns = c.probe_ns;
  c.rounds.assign(c.probe_ns.size(), 0);
}

void kernel_plan::begin_timing() {
  const double best_ns = best_estimate_ns();
  for (std::size_t i = 0; i < tried_.size(); ++i) {
    tried& c = tried_[i];
    if (c.is_out) continue;
    if (i == 0 || !is_hopeless(c)) {
      c.warm_ups = warm_ups(c);
      plan_turns(c);
    } else {
      c.result.detail = fmt::format("hopeless: about {:.6g} ms in its probe, the best takes {:.6g} ms",
                                    c.estimate_ns / 1e6, best_ns / 1e6);
      c.is_out = true;
    }
  }
  begin_round();
}

/// On a device a time means something only beside others of its round. So the default has a turn in each round, and none by itself.
void kernel_plan::keep_default_beside_others() {
  tried& usual = tried_.front();
  const bool has_others =
      std::any_of(tried_.begin() + 1, tried_.end(), [](const tried& c) { return !c.is_out && c.turns_left != 0; });
  if (has_others && usual.turns_left == 0) usual.turns_left = usual.runs_left = 1;
  if (!has_others && rounds_ != 0) usual.turns_left = 0;
}

void kernel_plan::begin_round() {
  if (where_ == place::device) keep_default_beside_others();
  for (std::size_t i = tried_.size(); i-- > 0;)
    if (!tried_[i].is_out && tried_[i].turns_left != 0) round_.push_back(i);
  if (std::exchange(backward_, !backward_)) std::reverse(round_.begin(), round_.end());
  ++rounds_;
  if (round_.empty()) {
    end_round();
    step_ = step::finished;
    return;
  }
  next_turn();
}

void kernel_plan::next_turn() {
  if (round_.empty()) {
    end_round();
    return begin_round();
  }
  candidate_ = round_.back();
  round_.pop_back();
  const tried& c = current();
  if (c.warm_ups == 0) return begin_turn();
  step_ = step::warm_up;
}

void kernel_plan::begin_turn() {
  const tried& c = current();
  planned_runs_ = (c.runs_left + c.turns_left - 1) / c.turns_left;
  turn_ns_ = 0;
  turn_runs_ = 0;
  settled_at_ns_ = 0;
  step_ = c.estimate_ns < settling_ ? step::settle : step::timed;
}

/// An interruption lasts about as long as a time slice. The turn goes on until that is a part of it only, unless the candidate stalls.
bool kernel_plan::is_long_enough(const tried& c) const noexcept {
  const double undisturbed_ns = static_cast<double>(turn_runs_) * c.fastest_ns;
  return (turn_ns_ >= long_turn_ns && undisturbed_ns >= long_turn_ns / 2) || turn_ns_ >= 4 * long_turn_ns;
}

void kernel_plan::end_turn() {
  tried& c = current();
  c.turns_ns.push_back(turn_ns_ / static_cast<double>(turn_runs_));
  c.rounds.push_back(rounds_);
  c.runs_left -= std::min(c.runs_left, planned_runs_);
  --c.turns_left;
  if (c.turns_left == 0 && disturbed_ && c.turns_ns.size() < disturbed_turns) c.turns_left = 1;
  if (is_over(c)) c.turns_left = 0;
  next_turn();
}

/// Their times, without what is shared by a round of a device. Alternately, each candidate's time is the median over its rounds, and each
/// round's share is the median over its candidates.
std::vector<std::vector<double>> kernel_plan::turns_of_all() const {
  std::vector<std::vector<double>> all;
  for (const tried& c : tried_) all.push_back(c.turns_ns);
  if (where_ != place::device) return all;
  constexpr int passes = 4;
  std::vector<double> share(rounds_ + 1, 0);  // logarithms; round 0 has the probes
  for (int pass = 0; pass < passes; ++pass) {
    std::vector<std::vector<double>> of_round(share.size());
    for (const tried& c : tried_) {
      std::vector<double> level;
      for (std::size_t k = 0; k < c.turns_ns.size(); ++k) level.push_back(std::log(c.turns_ns[k]) - share[c.rounds[k]]);
      if (level.empty()) continue;
      const double mine = median_of(level);
      for (std::size_t k = 0; k < c.turns_ns.size(); ++k)
        of_round[c.rounds[k]].push_back(std::log(c.turns_ns[k]) - mine);
    }
    for (std::size_t r = 0; r < share.size(); ++r) share[r] = of_round[r].empty() ? 0 : median_of(of_round[r]);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = 0; k < all[i].size(); ++k) all[i][k] *= std::exp(-share[tried_[i].rounds[k]]);
  return all;
}

/// Ends the turns of candidates that have lost.
void kernel_plan::end_round() {
  const std::size_t few = disturbed_ ? 4 : 3;
  std::vector<aggregate> results;
  std::vector<std::size_t> timed;
  const std::vector<std::vector<double>> turns_ns = turns_of_all();
  for (std::size_t i = 0; i < tried_.size(); ++i) {
    tried& c = tried_[i];
    if (!c.is_out && !c.turns_ns.empty()) {
      c.result = repeated(turns_ns[i], disturbed_);
      timed.push_back(i);
    }
    results.push_back(c.result);
  }
  const scatter usual = scatter_of(results, timed);
  for (const std::size_t i : timed)
    for (const std::size_t other : timed) {
      const aggregate &mine = results[i], &its = results[other];
      if (std::min(mine.count, its.count) < few) continue;
      const bool lost = disturbed_ ? mine.fastest_ns > its.time_ns : surely_slower(mine, its, {.pooled = usual});
      if (lost) tried_[i].turns_left = 0;
    }
}

decision kernel_plan::decide(std::span<const std::string> names) const {
  std::vector<aggregate> results;
  for (const tried& c : tried_) results.push_back(c.result);
  return tuning::decide(results, {.names = names});
}

}  // namespace parley::tuning
