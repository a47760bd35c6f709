#include <parley/tuning/planners/contextual_plan.hpp>

#include <parley/tuning/outcome.hpp>
#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

contextual_plan::contextual_plan(std::size_t configs, contextual_limits limits) : limits_(limits), tried_(configs) {
  if (configs == 0 || limits.iterations == 0)
    throw invalid({fault::empty, "contextual tuning needs a config and at least one iteration of each"});
}

std::optional<trial> contextual_plan::next() noexcept {
  if (taken_ == trials()) return std::nullopt;
  const std::size_t number = taken_++;
  const bool grouped = limits_.order == contextual_order::grouped;
  const std::size_t turn = grouped ? number % per_config() : number / tried_.size();
  trial t;
  t.candidate = grouped ? number / per_config() : number % tried_.size();
  t.what = turn >= limits_.warm_ups ? trial_kind::timed : trial_kind::warm_up;
  t.turn = t.what == trial_kind::timed ? turn - limits_.warm_ups : turn;
  return t;
}

void contextual_plan::ended(const trial& t, std::optional<double> elapsed_ns) noexcept {
  ++ended_;
  if (!elapsed_ns || t.what != trial_kind::timed) return;
  tried_[t.candidate].sum_ns += *elapsed_ns;
  ++tried_[t.candidate].count;
}

std::optional<std::size_t> contextual_plan::stand_in() const noexcept {
  for (std::size_t i = 0; i < tried_.size(); ++i) {
    if (!tried_[i].dropped) return i;
  }
  return std::nullopt;
}

double contextual_plan::average_ns(std::size_t config) const {
  const tried& t = tried_.at(config);
  return t.dropped || t.count == 0 ? infinite_ns : t.sum_ns / static_cast<double>(t.count);
}

}  // namespace parley::tuning
