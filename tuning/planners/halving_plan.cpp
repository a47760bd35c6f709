#include <parley/tuning/planners/halving_plan.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <parley/tuning/outcome.hpp>
#include <parley/tuning/planners/decide.hpp>
#include <parley/tuning/planners/noise.hpp>

namespace parley::tuning {

namespace {
constexpr std::size_t first_halving_round = 3;
constexpr std::size_t fewest_challengers_after_halving = 2;
constexpr double certain_deviations = 3;       // standard deviations of one repetition
constexpr double fair_standard_errors = 1.65;  // one side in 20 is wrong
constexpr double sure_standard_errors = 2.6;   // one in 200
}  // namespace

halving_plan::halving_plan(std::size_t candidates, plan_options options)
    : options_(options), candidates_(candidates), looked_at_again_(candidates) {
  for (std::size_t c = 0; c < candidates; ++c) survivors_.push_back(c);
  plan_round();
}

std::optional<trial> halving_plan::next() {
  if (finished_ || position_ == sequence_.size()) return std::nullopt;
  return sequence_[position_++];
}

void halving_plan::plan_round() {
  sequence_.clear();
  position_ = 0;
  if (survivors_.size() < 2 || round_ >= options_.maximum_rounds) {
    finished_ = true;
    return;
  }
  if (round_ == 0) {
    add_repetitions(options_.warm_up_repetitions, trial_kind::warm_up);
    const std::size_t most = std::max<std::size_t>(options_.maximum_in_all, 1);
    add_repetitions(std::clamp<std::size_t>(options_.probe_repetitions, 1, most), trial_kind::timed);
    return;
  }
  std::size_t repetitions = std::max<std::size_t>(options_.repetitions, 1);
  for (std::size_t r = 1; r < round_ && repetitions < options_.maximum_repetitions; ++r) repetitions *= 2;
  repetitions = std::min(repetitions, std::max<std::size_t>(options_.maximum_repetitions, 1));
  repetitions = std::min(repetitions, repetitions_left());
  add_repetitions(repetitions, trial_kind::timed);
  finished_ = repetitions == 0;
}

void halving_plan::add_repetitions(std::size_t repetitions, trial_kind kind) {
  const bool in_pairs = options_.probe_repetitions % 2 == 0 && options_.repetitions % 2 == 0;
  const std::size_t n = survivors_.size();
  for (std::size_t i = 0; i < repetitions; ++i) {
    const std::size_t first = in_pairs ? (made_ + i) / 2 : 0;
    const bool backwards = in_pairs && i % 2 != 0;
    for (std::size_t k = 0; k < n; ++k) {
      const std::size_t c = survivors_[(first + (backwards ? n - 1 - k : k)) % n];
      if (c != 0 || i == 0 || !default_is_out_) sequence_.push_back({c, kind, round_});
    }
  }
  if (kind == trial_kind::timed) made_ += repetitions;
}

std::size_t halving_plan::repetitions_left() const noexcept {
  auto most = static_cast<double>(options_.maximum_in_all);
  if (slowest_ns_ > 0) most = std::min(most, std::floor(options_.maximum_ns / slowest_ns_));
  const auto whole = static_cast<std::size_t>(std::min(most, 1e9));
  return whole > made_ ? whole - made_ : 0;
}

std::vector<std::size_t> halving_plan::ranked_challengers(std::span<const aggregate> aggregates) const {
  double best_ns = infinite_ns, at_most_ns = infinite_ns;
  for (std::size_t c : survivors_) {
    best_ns = std::min(best_ns, aggregates[c].time_ns);
    at_most_ns = std::min(at_most_ns, aggregates[c].time_ns + aggregates[c].clock_error_ns);
  }
  const double factor = round_ == 0 ? options_.probe_slow_factor : options_.slow_factor;
  std::vector<std::size_t> ranked;
  const auto scatter_ns = [this](const aggregate& a) {
    return disturbed_ || a.count < 3 ? certain_deviations * deviation_ns(a) : a.spread_ns;
  };
  for (std::size_t c : survivors_) {
    const aggregate& a = aggregates[c];
    // The spread counts in favour of a candidate, so that noise or a clock's error does not drop it. One repetition shows no spread.
    const bool hopeless =
        !a.measured() || (a.count > 1 && a.time_ns - scatter_ns(a) - a.clock_error_ns > at_most_ns * factor);
    if (c != 0 && !hopeless && !out_of_the_race(c, aggregates)) ranked.push_back(c);
  }
  // Candidates within noise of the best come first, in merged order; the others are ordered by time.
  const auto place = [&](std::size_t c) {
    const double t = aggregates[c].time_ns;
    return std::pair(t <= best_ns * (1 + options_.noise) ? best_ns : t, c);
  };
  std::sort(ranked.begin(), ranked.end(), [&](std::size_t a, std::size_t b) { return place(a) < place(b); });
  return ranked;
}

// The other candidate may also be out of the race; then a third candidate beats both.
bool halving_plan::out_of_the_race(std::size_t c, std::span<const aggregate> aggregates) const {
  const significance enough{.relative = options_.noise, .pooled = scatter_of(aggregates, survivors_)};
  return std::any_of(survivors_.begin(), survivors_.end(), [&](std::size_t other) {
    if (other == c || !aggregates[other].measured()) return false;
    return surely_slower(aggregates[c], aggregates[other], enough) ||
           (other < c && surely_no_better(aggregates[c], aggregates[other], enough));
  });
}

void halving_plan::complete_round(std::span<const aggregate> aggregates) {
  if (finished_) return;
  if (aggregates.size() != candidates_ || position_ != sequence_.size()) {
    throw invalid(
        {fault::malformed, fmt::format("round {} needs all its trials and {} aggregates, not {} trials less and {} "
                                       "aggregates",
                                       round_, candidates_, left_in_round(), aggregates.size())});
  }
  disturbed_ = disturbed_ || std::any_of(survivors_.begin(), survivors_.end(),
                                         [&](std::size_t c) { return is_disturbed(aggregates[c]); });
  std::vector<std::size_t> kept = ranked_challengers(aggregates);
  // Earlier rounds give too little evidence for a guess. If two candidates are left, neither is dropped by a guess.
  constexpr std::size_t fewest = fewest_challengers_after_halving;
  if (round_ >= first_halving_round && kept.size() > fewest) {
    const double share = std::max(std::ceil(options_.keep_fraction * static_cast<double>(kept.size())), 1.0);
    kept.resize(std::clamp(static_cast<std::size_t>(share), fewest, kept.size()));
  }
  set_aside(kept, aggregates);
  survivors_ = std::move(kept);
  survivors_.push_back(0);
  std::sort(survivors_.begin(), survivors_.end());
  default_is_out_ = out_of_the_race(0, aggregates) && !(disturbed_ && is_thin(aggregates[0]));
  slowest_ns_ = 0;
  for (std::size_t c : survivors_)
    if (aggregates[c].measured()) slowest_ns_ = std::max(slowest_ns_, aggregates[c].time_ns);
  ++round_;
  sequence_.clear();
  position_ = 0;
  finished_ = settled(aggregates);
  if (!finished_) plan_round();
  if (finished_ && look_again(aggregates)) finished_ = false;
}

void halving_plan::set_aside(std::span<const std::size_t> kept, std::span<const aggregate> aggregates) {
  for (std::size_t c : survivors_) {
    const bool stays = c == 0 || std::find(kept.begin(), kept.end(), c) != kept.end();
    if (!stays && is_thin(aggregates[c]) && !looked_at_again_[c]) set_aside_.push_back(c);
  }
}

// Tries each set-aside candidate once more, together with the remaining candidates: disturbances come and go, so only times that were
// measured together can be compared.
bool halving_plan::look_again(std::span<const aggregate> aggregates) {
  const bool once_only = options_.maximum_rounds < 2;  // all trials are planned at once
  if (once_only || !disturbed_ || set_aside_.empty()) return false;
  std::size_t fewest = options_.thorough_repetitions;
  for (std::size_t c : set_aside_) fewest = std::min(fewest, aggregates[c].count);
  const std::size_t repetitions = std::min(options_.thorough_repetitions - fewest, repetitions_left());
  if (repetitions == 0) return false;
  for (std::size_t c : set_aside_) looked_at_again_[c] = true;
  survivors_.insert(survivors_.end(), set_aside_.begin(), set_aside_.end());
  std::sort(survivors_.begin(), survivors_.end());
  set_aside_.clear();
  add_repetitions(repetitions, trial_kind::timed);
  return true;
}

// True if the candidate that would be chosen now is as good as each of the others and, unless it is c0, surely better than c0.
bool halving_plan::settled(std::span<const aggregate> aggregates) const {
  std::vector<aggregate> field(aggregates.size());
  for (std::size_t c : survivors_) field[c] = aggregates[c];
  const std::size_t winner = decide(field, {.relative_noise = options_.noise}).winner;
  const scatter pooled = scatter_of(aggregates, survivors_);
  const double enough = disturbed_ ? sure_standard_errors : fair_standard_errors;
  const bool thin = std::any_of(survivors_.begin(), survivors_.end(), [&](std::size_t c) { return is_thin(field[c]); });
  if (disturbed_ && thin) return false;
  return std::all_of(survivors_.begin(), survivors_.end(), [&](std::size_t c) {
    if (c == winner || !field[c].measured()) return true;
    const double equal = c == 0 ? 0 : options_.noise;
    return known_as_good(field[winner], field[c], {equal, pooled, enough});
  });
}

void halving_plan::drop(std::size_t candidate) {
  if (candidate == 0) return;
  std::erase(survivors_, candidate);
  std::erase(set_aside_, candidate);
  const auto planned = sequence_.begin() + static_cast<std::ptrdiff_t>(position_);
  sequence_.erase(std::remove_if(planned, sequence_.end(), [&](const trial& t) { return t.candidate == candidate; }),
                  sequence_.end());
  if (survivors_.size() < 2) finished_ = true;
}

bool halving_plan::may_continue(std::int64_t spent_ns, std::int64_t wall_ns, std::int64_t expected_ns) const noexcept {
  const double cost_ns = static_cast<double>(spent_ns) + static_cast<double>(std::max<std::int64_t>(expected_ns, 0));
  return cost_ns <= options_.budget_fraction * static_cast<double>(wall_ns);
}

}  // namespace parley::tuning
