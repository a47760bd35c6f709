#include <parley/tuning/planners/drift.hpp>
#include <parley/tuning/planners/noise.hpp>

#include <algorithm>
#include <cmath>

namespace parley::tuning {

namespace {
// In standard errors: in about one of a few hundred bursts a median is off by more than this.
constexpr double certain_errors = 2.5;
}  // namespace

void drift_detector::start_over() noexcept {
  direction_ = 0;
  others_ = 0;
}

void drift_detector::decided(double time_ns) {
  start_over();
  latest_.clear();
  reference_ns_ = time_ns > 0 && time_ns < infinite_ns ? time_ns : 0;
}

double drift_detector::latest_ns() const { return latest_.empty() ? 0 : median(latest_); }

drift drift_detector::add(const aggregate& burst) {
  if (!burst.measured() || burst.time_ns <= 0) return others_ == 0 ? drift::steady : drift::suspected;
  if (latest_.size() >= options_.sustained) latest_.erase(latest_.begin());
  latest_.push_back(burst.time_ns);
  if (reference_ns_ == 0) {
    if (latest_.size() < options_.sustained) return drift::learning;
    reference_ns_ = median(latest_);
    return drift::steady;
  }
  const double by_ns = burst.time_ns - reference_ns_;
  // Relative to the smaller one, so that half as long and twice as long are the same change.
  const double enough_ns = options_.threshold * std::min(burst.time_ns, reference_ns_);
  if (std::abs(by_ns) <= enough_ns / 2) {
    start_over();
    return drift::steady;
  }
  if (std::abs(by_ns) <= enough_ns + certain_errors * median_error_ns(burst) + burst.clock_error_ns)
    return others_ == 0 ? drift::steady : drift::suspected;
  const int direction = by_ns > 0 ? 1 : -1;
  if (direction != direction_) start_over();
  direction_ = direction;
  return ++others_ >= options_.sustained ? drift::changed : drift::suspected;
}

}  // namespace parley::tuning
