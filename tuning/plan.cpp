#include <parley/tuning/plan.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

trial_planner::trial_planner(std::size_t candidates, plan_options options)
    : options_(options), candidates_(candidates) {
  for (std::size_t c = 0; c < candidates; ++c) survivors_.push_back(c);
  plan_round();
}

std::optional<planned_trial> trial_planner::next() {
  if (finished_ || position_ == sequence_.size()) return std::nullopt;
  return sequence_[position_++];
}

void trial_planner::plan_round() {
  sequence_.clear();
  position_ = 0;
  if (survivors_.size() < 2 || round_ >= options_.maximum_rounds) {
    finished_ = true;
    return;
  }
  const auto add = [&](std::size_t repetitions, trial_kind kind) {
    for (std::size_t i = 0; i < repetitions; ++i) {
      for (std::size_t c : survivors_) sequence_.push_back({c, kind, round_});
    }
  };
  if (round_ == 0) {
    add(options_.warm_up_repetitions, trial_kind::warm_up);
    add(std::max<std::size_t>(options_.probe_repetitions, 1), trial_kind::timed);
    return;
  }
  std::size_t repetitions = std::max<std::size_t>(options_.repetitions, 1);
  for (std::size_t r = 1; r < round_ && repetitions < options_.maximum_repetitions; ++r) repetitions *= 2;
  add(std::min(repetitions, std::max<std::size_t>(options_.maximum_repetitions, 1)), trial_kind::timed);
}

std::vector<std::size_t> trial_planner::ranked_challengers(std::span<const aggregate> aggregates) const {
  double best_ns = infinite_ns;
  for (std::size_t c : survivors_) best_ns = std::min(best_ns, aggregates[c].time_ns);
  const double factor = round_ == 0 ? options_.probe_slow_factor : options_.slow_factor;
  std::vector<std::size_t> ranked;
  for (std::size_t c : survivors_) {
    const aggregate& a = aggregates[c];
    // The spread speaks for a candidate: what may be noise does not throw it out.
    if (c != 0 && a.measured() && a.time_ns - a.spread_ns <= best_ns * factor) ranked.push_back(c);
  }
  // Those within noise of the best come first in their own order, the others by time.
  const auto place = [&](std::size_t c) {
    const double t = aggregates[c].time_ns;
    return std::pair(t <= best_ns * (1 + options_.noise) ? best_ns : t, c);
  };
  std::sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  return ranked;
}

void trial_planner::complete_round(std::span<const aggregate> aggregates) {
  if (finished_) return;
  if (aggregates.size() != candidates_ || position_ != sequence_.size()) {
    throw invalid(
        {fault::malformed, fmt::format("round {} needs all its trials and {} aggregates, not {} trials less and {} "
                                       "aggregates",
                                       round_, candidates_, left_in_round(), aggregates.size())});
  }
  std::vector<std::size_t> kept = ranked_challengers(aggregates);
  if (round_ > 0 && kept.size() > 1) {
    const double share = std::ceil(options_.keep_fraction * static_cast<double>(kept.size()));
    kept.resize(std::clamp<std::size_t>(static_cast<std::size_t>(std::max(share, 1.0)), 1, kept.size()));
  }
  const bool told_apart = kept.size() == 1 && aggregates[kept[0]].count >= options_.enough_repetitions;
  survivors_ = std::move(kept);
  survivors_.push_back(0);
  std::sort(survivors_.begin(), survivors_.end());
  ++round_;
  plan_round();
  finished_ = finished_ || told_apart;
}

void trial_planner::drop(std::size_t candidate) {
  if (candidate == 0) return;
  std::erase(survivors_, candidate);
  const auto planned = sequence_.begin() + static_cast<std::ptrdiff_t>(position_);
  sequence_.erase(
      std::remove_if(planned, sequence_.end(), [&](const planned_trial& t) { return t.candidate == candidate; }),
      sequence_.end());
  if (survivors_.size() < 2) finished_ = true;
}

bool trial_planner::may_continue(std::int64_t spent_ns, std::int64_t wall_ns, std::int64_t expected_ns) const noexcept {
  const double cost_ns = static_cast<double>(spent_ns) + static_cast<double>(std::max<std::int64_t>(expected_ns, 0));
  return cost_ns <= options_.budget_fraction * static_cast<double>(wall_ns);
}

}  // namespace parley::tuning
