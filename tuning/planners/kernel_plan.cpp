#include <parley/tuning/planners/kernel_plan.hpp>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

constexpr double most_runs = 2147483647.0;

/// The number of runs of `estimate_ns` that fit into the duration, at most 2^31 - 1, the largest setting.
std::size_t runs_within(std::uint32_t duration_ms, double estimate_ns) {
  return static_cast<std::size_t>(std::min(1e6 * duration_ms / estimate_ns, most_runs));
}

}  // namespace

kernel_plan::kernel_plan(std::size_t candidates, const settings& limits, checks c)
    : limits_(limits), checks_(c), tried_(candidates) {
  if (candidates == 0) throw invalid({fault::empty, "a kernel needs at least its default implementation"});
}

void kernel_plan::drop(std::size_t candidate, std::string why) {
  if (candidate != 0) tried_.at(candidate).detail = std::move(why);
}

std::optional<trial> kernel_plan::next() const noexcept {
  if (finished()) return std::nullopt;
  return trial{what_ == trial_kind::reference ? 0 : candidate_, what_};
}

void kernel_plan::begin_phase(trial_kind what) noexcept {
  what_ = what;
  times_ns_.clear();
  switch (what) {
    case trial_kind::probe: runs_left_ = probing_runs; break;
    case trial_kind::reference:
    case trial_kind::check: runs_left_ = 1; break;
    case trial_kind::warm_up: runs_left_ = warm_ups(); break;
    case trial_kind::timed: runs_left_ = timings(); break;
  }
}

void kernel_plan::next_candidate() noexcept {
  do {
    ++candidate_;
  } while (candidate_ != tried_.size() && !tried_[candidate_].detail.empty());
  first_ns_ = spent_ns_ = 0;
  warm_probe_.clear();
  begin_phase(trial_kind::probe);
}

/// A limit of 0 means no limit, but if both are 0, there are no warm-ups.
std::size_t kernel_plan::warm_ups() const noexcept {
  const std::size_t within = runs_within(limits_.max_warmup_duration_ms, estimate_ns_);
  const std::size_t most = limits_.max_warmup_iterations;
  if (limits_.max_warmup_duration_ms == 0) return is_over() ? 0 : most;
  return most == 0 ? within : std::min(most, within);
}

/// 0 if the probe has left no time, and the probe's own times can count instead.
std::size_t kernel_plan::timings() const noexcept {
  const std::size_t within =
      static_cast<std::size_t>(std::clamp((limit_ns() - spent_ns_) / estimate_ns_, 0.0, most_runs));
  const std::size_t most = std::max<std::size_t>(limits_.max_tuning_iterations, 1);
  const std::size_t least = warm_probe_.empty() ? 1 : 0;
  return std::max(std::min(most, within), least);
}

bool kernel_plan::is_over() const noexcept {
  return std::max(spent_ns_, warm_probe_.empty() ? first_ns_ : 0) >= limit_ns();
}

double kernel_plan::best_ns() const noexcept {
  double best = infinite_ns;
  for (const aggregate& a : tried_) best = std::min(best, a.time_ns);
  return best;
}

void kernel_plan::end_candidate() {
  // There are no timed runs if the probe has used up the duration.
  const std::vector<std::vector<double>> one{times_ns_.empty() ? warm_probe_ : times_ns_};
  tried_[candidate_] = aggregate_times(one);
  next_candidate();
}

/// True if this run counts towards the duration.
bool kernel_plan::is_bounded() const noexcept {
  switch (what_) {
    case trial_kind::probe: return first_ns_ != 0;
    case trial_kind::reference:
    case trial_kind::check: return false;
    case trial_kind::warm_up: return limits_.max_warmup_duration_ms == 0;
    case trial_kind::timed: break;
  }
  return true;
}

void kernel_plan::ended(double elapsed_ns) {
  if (is_bounded()) spent_ns_ += elapsed_ns;
  if (what_ == trial_kind::probe && first_ns_ != 0) warm_probe_.push_back(elapsed_ns);
  if (first_ns_ == 0) first_ns_ = std::max(elapsed_ns, 1.0);
  if (what_ == trial_kind::timed) {
    times_ns_.push_back(elapsed_ns);
    ++timed_runs_;
  }
  --runs_left_;
  if (is_bounded() && is_over()) runs_left_ = 0;
  if (runs_left_ != 0) return;
  switch (what_) {
    case trial_kind::probe:
      estimate_ns_ = warm_probe_.empty() ? first_ns_ : *std::min_element(warm_probe_.begin(), warm_probe_.end());
      estimate_ns_ = std::max(estimate_ns_, 1.0);
      if (const double best = best_ns(); estimate_ns_ > hopeless_factor * best && !warm_probe_.empty()) {
        tried_[candidate_].detail = fmt::format(
            "hopeless: about {:.6g} ms in its probe, the best so far takes {:.6g} ms", estimate_ns_ / 1e6, best / 1e6);
        return next_candidate();
      }
      if (checks_ == checks::against_default && candidate_ != 0) return begin_phase(trial_kind::reference);
      [[fallthrough]];
    case trial_kind::check:
      begin_phase(trial_kind::warm_up);
      if (runs_left_ != 0) return;
      [[fallthrough]];
    case trial_kind::warm_up:
      begin_phase(trial_kind::timed);
      if (runs_left_ == 0) end_candidate();
      return;
    case trial_kind::reference: return begin_phase(trial_kind::check);
    case trial_kind::timed: return end_candidate();
  }
}

void kernel_plan::failed(std::string why) {
  aggregate& a = tried_[candidate_];
  a.status = what_ == trial_kind::check ? aggregate_status::wrong_data : aggregate_status::failed;
  a.detail = std::move(why);
  next_candidate();
}

decision kernel_plan::decide(std::span<const std::string> names) const {
  return tuning::decide(tried_, {.names = names});
}

}  // namespace parley::tuning
