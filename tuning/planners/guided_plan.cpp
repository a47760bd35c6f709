#include <parley/tuning/planners/guided_plan.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

namespace parley::tuning {

guided_plan::guided_plan(std::vector<config_identity> candidates, const settings& limits, kernel_plan::checks c,
                         options o)
    : candidates_(std::move(candidates)), limits_(limits), checks_(c), where_(o.where),
      is_guided_(candidates_.size() > most_of_all && limits.max_search_duration_ms != 0), chance_(o.seed),
      seed_(o.seed), results_(candidates_.size()), known_(candidates_.size()) {
  if (!is_guided_) {
    race_.emplace(candidates_.size(), limits_, checks_, where_);
    return;
  }
  forest_.emplace(candidates_);
  for (const std::size_t hint : o.hints) {
    if (hint < candidates_.size()) propose(hint);
  }
  std::reverse(planned_.begin(), planned_.end());
  std::erase(planned_, std::size_t{0});
  known_[0] = true;
  planned_.push_back(0);  // the first of all
}

void guided_plan::drop(std::size_t candidate, std::string why) {
  if (!is_guided_) return race_->drop(candidate, std::move(why));
  if (candidate == 0) return;
  known_.at(candidate) = true;
  std::erase(planned_, candidate);
  results_[candidate].detail = std::move(why);
}

std::optional<trial> guided_plan::next() const noexcept {
  if (!race_) return trial{planned_.back(), trial_kind::probe};
  auto t = race_->next();
  if (t && is_guided_) t->candidate = racing_[t->candidate];
  return t;
}

// ---- exploration ------------------------------------------------------------------------------------------------------

double guided_plan::exploration_ns() const noexcept {
  return part_of_exploration * 1e6 * limits_.max_search_duration_ms;
}

void guided_plan::ended(std::int64_t began_ns, std::int64_t ended_ns) {
  if (race_) {
    race_->ended(began_ns, ended_ns);
    return race_again_if_all_failed();
  }
  const double took_ns = std::max(static_cast<double>(ended_ns - began_ns), 1.0);
  now_ns_ = ended_ns;
  if (runs_ == 0) began_ns_ = began_ns;
  ++runs_;
  ++explored_runs_;
  // The first run is cold. It counts only if a second one would take too much of the time.
  constexpr double much = 0.25;
  const bool is_long = took_ns >= much * exploration_ns();
  if (runs_ > 1 || is_long) run_ns_ = std::min(run_ns_, took_ns);
  const std::int64_t settling_ns = where_ == kernel_plan::place::device ? 0 : kernel_plan::settling_ns;
  const bool settled = ended_ns - began_ns_ >= settling_ns || ended_ns == began_ns;
  if (is_long || (runs_ > 1 && settled)) note(run_ns_);
}

void guided_plan::note(double took_ns) {
  const std::size_t candidate = planned_.back();
  planned_.pop_back();
  tried_.push_back(candidate);
  log_times_.push_back(std::log(took_ns));
  best_log_ = std::min(best_log_, log_times_.back());
  aggregate& a = results_[candidate];
  a.time_ns = took_ns;
  a.fastest_ns = took_ns;
  a.count = runs_;
  explore_next();
}

void guided_plan::failed(std::string why) {
  if (race_) {
    race_->failed(std::move(why));
    return race_again_if_all_failed();
  }
  const std::size_t candidate = planned_.back();
  planned_.pop_back();
  results_[candidate] = {};
  results_[candidate].status = aggregate_status::failed;
  results_[candidate].detail = std::move(why);
  if (!log_times_.empty()) {
    // The model learns that such candidates are of no use.
    tried_.push_back(candidate);
    log_times_.push_back(*std::max_element(log_times_.begin(), log_times_.end()) + 1);
  }
  explore_next();
}

// The default's own exploration is not limited: it runs for the caller in any case.
void guided_plan::explore_next() {
  run_ns_ = infinite_ns;
  runs_ = 0;
  if (explores_since_ns_ == 0) explores_since_ns_ = std::max<std::int64_t>(now_ns_, 1);
  if (static_cast<double>(now_ns_ - explores_since_ns_) >= exploration_ns()) return begin_race();
  if (planned_.empty()) plan_batch();
  if (planned_.empty()) begin_race();
}

void guided_plan::plan_batch() {
  if (tried_.size() < first_at_random)
    return propose_at_random(first_at_random - std::min(first_at_random, tried_.size()));
  constexpr double gain = 0.01;
  batches_without_gain_ = best_log_ < best_before_ - gain ? 0 : batches_without_gain_ + 1;
  best_before_ = std::min(best_before_, best_log_);
  if (batches_without_gain_ > patience) return;
  forest_->learn(tried_, log_times_, seed_ + tried_.size());
  const std::size_t batch = std::max(smallest_batch, tried_.size() / batch_of_tried);
  propose_by_model(batch - batch / at_random);
  propose_at_random(batch / at_random);
}

// Looks at the neighbours of the best ones, which differ in one parameter, and at others at random. A candidate of which the model knows
// little gets the benefit of the doubt.
void guided_plan::propose_by_model(std::size_t count) {
  constexpr std::size_t best_ones = 4;
  std::vector<std::size_t> order(tried_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t top = std::min(best_ones, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top), order.end(),
                    [&](std::size_t a, std::size_t b) { return log_times_[a] < log_times_[b]; });
  std::vector<std::pair<double, std::size_t>> hopeful;
  const auto look_at = [&](std::size_t candidate) {
    const auto e = forest_->estimate(candidate);
    hopeful.emplace_back(e.mean - e.deviation, candidate);
  };
  std::vector<bool> seen(candidates_.size());
  for (std::size_t c = 0; c < candidates_.size(); ++c) {
    if (known_[c]) continue;
    for (std::size_t k = 0; k < top && !seen[c]; ++k) seen[c] = forest_->differences(c, tried_[order[k]]) == 1;
    if (seen[c]) look_at(c);
  }
  const bool all = candidates_.size() <= looked_at;
  for (std::size_t i = 0; i < std::min(looked_at, candidates_.size()); ++i) {
    const std::size_t c = all ? i : chance_.below(candidates_.size());
    if (known_[c] || seen[c]) continue;
    seen[c] = true;
    look_at(c);
  }
  const std::size_t some = std::min(count, hopeful.size());
  std::partial_sort(hopeful.begin(), hopeful.begin() + static_cast<std::ptrdiff_t>(some), hopeful.end());
  for (std::size_t i = 0; i < some; ++i) propose(hopeful[i].second);
}

void guided_plan::propose_at_random(std::size_t count) {
  const std::size_t first = planned_.size();
  for (std::size_t attempts = 0; planned_.size() - first < count && attempts < 8 * count; ++attempts)
    propose(chance_.below(candidates_.size()));
  // Few are left, or bad luck: takes the next ones in order.
  for (std::size_t c = 0; planned_.size() - first < count && c < candidates_.size(); ++c) propose(c);
}

void guided_plan::propose(std::size_t candidate) {
  if (known_[candidate]) return;
  known_[candidate] = true;
  planned_.push_back(candidate);
}

// ---- the finalists ----------------------------------------------------------------------------------------------------

void guided_plan::begin_race() {
  planned_.clear();
  raced_.resize(candidates_.size());
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < tried_.size(); ++i) {
    const std::size_t c = tried_[i];
    if (c != 0 && !raced_[c] && results_[c].status != aggregate_status::failed) order.push_back(i);
  }
  const std::size_t some = std::min(finalists, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(some), order.end(),
                    [&](std::size_t a, std::size_t b) { return log_times_[a] < log_times_[b]; });
  racing_ = {0};
  for (std::size_t i = 0; i < some; ++i) racing_.push_back(tried_[order[i]]);
  std::sort(racing_.begin(), racing_.end());
  for (const std::size_t c : racing_) raced_[c] = true;
  race_.emplace(racing_.size(), limits_, checks_, where_);
  if (some == 0) note_others();
}

// Numbers are compared only among the finalists. If all of these are wrong, others may be right.
void guided_plan::race_again_if_all_failed() {
  if (!is_guided_ || !race_->finished()) return;
  const auto is_out = [&](std::size_t place) {
    const aggregate_status s = race_->result_of(place).status;
    return s == aggregate_status::failed || s == aggregate_status::wrong_data;
  };
  bool all = racing_.size() > 1;
  for (std::size_t place = 1; place < racing_.size(); ++place) all = all && is_out(place);
  if (!all) return note_others();
  for (std::size_t place = 1; place < racing_.size(); ++place) results_[racing_[place]] = race_->result_of(place);
  explored_runs_ += race_->timed_runs();
  begin_race();
}

// Says of the candidates outside of the race why they have no time.
void guided_plan::note_others() {
  for (std::size_t c = 0; c < candidates_.size(); ++c) {
    aggregate& a = results_[c];
    if (!a.detail.empty() || in_race(c) != racing_.size()) continue;
    a.detail = a.count == 0 ? "not tried: the model expects no gain, or the search was over"
                            : fmt::format("explored: {} is not among the best", time_text(a.time_ns));
    a.time_ns = infinite_ns;
    a.count = 0;
  }
}

std::size_t guided_plan::in_race(std::size_t candidate) const noexcept {
  return static_cast<std::size_t>(std::find(racing_.begin(), racing_.end(), candidate) - racing_.begin());
}

const aggregate& guided_plan::result_of(std::size_t candidate) const {
  if (!is_guided_) return race_->result_of(candidate);
  const std::size_t place = race_ ? in_race(candidate) : racing_.size();
  return place < racing_.size() ? race_->result_of(place) : results_.at(candidate);
}

decision guided_plan::decide(std::span<const std::string> names) const {
  if (!is_guided_) return race_->decide(names);
  std::vector<std::string> racing;
  for (const std::size_t c : racing_) racing.push_back(names.empty() ? std::string() : names[c]);
  decision d = race_->decide(racing);
  d.winner = racing_[d.winner];
  d.sentence += fmt::format("; {} of {} were tried", explored(), candidates_.size());
  d.evidence.clear();
  for (std::size_t c = 0; c < candidates_.size(); ++c) d.evidence.push_back(result_of(c));
  return d;
}

}  // namespace parley::tuning
