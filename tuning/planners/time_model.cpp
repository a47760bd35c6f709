#include <parley/tuning/planners/time_model.hpp>

#include <fmt/format.h>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace parley::tuning {

namespace {

constexpr double square(double x) { return x * x; }

// Standard deviations of logarithms, which are about the relative errors of times.
constexpr double of_measuring = 0.03;
constexpr double of_doubling_between = 0.08;  // per doubling of the size, counted from the nearer of two measured sizes
constexpr double of_doubling_beyond = 0.10;
constexpr double of_doubling_from_one = 0.20;  // one size alone does not show how time grows
constexpr double growth_from_one = 0.5;        // between all latency and all bandwidth
constexpr double of_one_kind = 0.05;
constexpr double of_two_kinds = 0.70;  // twice as fast, or half
// How much the ratio of two ranks' times varies from one config to the next.
constexpr double of_configs_in_one_kind = 0.03;
constexpr double of_configs_in_two_kinds = 0.20;
constexpr double deviations_in_nine_of_ten = 1.645;

double logarithm_of(std::uint64_t bytes) { return std::log1p(static_cast<double>(bytes)); }
double doublings_between(std::uint64_t a, std::uint64_t b) {
  return std::abs(logarithm_of(a) - logarithm_of(b)) / std::numbers::ln2;
}

}  // namespace

void time_model::add(const observed_time& seen) {
  if (!std::isfinite(seen.time_ns) || seen.time_ns <= 0) return;
  ranks_[seen.rank][seen.config][seen.bytes] = std::log(seen.time_ns);
}

const std::string& time_model::kind_of(std::uint32_t rank) const {
  static const std::string any;
  return rank < kinds_.size() ? kinds_[rank] : any;
}

time_model::estimate time_model::at(const curve& of, std::uint64_t bytes) {
  const auto above = of.lower_bound(bytes);
  if (above != of.end() && above->first == bytes) return {above->second, square(of_measuring), bytes};
  const bool beyond = above == of.begin() || above == of.end();
  const auto nearest = [&] {
    if (above == of.begin()) return above;
    const auto below = std::prev(above);
    const bool lower =
        above == of.end() || doublings_between(below->first, bytes) < doublings_between(bytes, above->first);
    return lower ? below : above;
  }();
  const double doublings = doublings_between(nearest->first, bytes);
  double growth = growth_from_one;
  if (of.size() > 1) {
    auto upper = above == of.end() ? std::prev(of.end()) : above;
    if (upper == of.begin()) ++upper;
    const auto lower = std::prev(upper);
    const double slope = (upper->second - lower->second) / (logarithm_of(upper->first) - logarithm_of(lower->first));
    growth = beyond ? std::clamp(slope, 0.0, 1.0) : slope;
  }
  const double per_doubling =
      of.size() == 1 ? of_doubling_from_one : (beyond ? of_doubling_beyond : of_doubling_between);
  return {nearest->second + growth * (logarithm_of(bytes) - logarithm_of(nearest->first)),
          square(of_measuring) + square(per_doubling * doublings), nearest->first};
}

time_model::estimate time_model::longer_than(std::uint32_t other, std::uint32_t rank, std::string_view config) const {
  if (other == rank) return {};
  const bool alike = kind_of(other) == kind_of(rank);
  std::vector<double> same_config;
  std::vector<double> all;
  const auto mine = ranks_.find(rank);
  if (mine != ranks_.end()) {
    for (const auto& [name, sizes] : ranks_.at(other)) {
      const auto own = mine->second.find(name);
      if (own == mine->second.end()) continue;
      for (const auto& [bytes, time] : sizes) {
        const auto at_size = own->second.find(bytes);
        if (at_size == own->second.end()) continue;
        all.push_back(at_size->second - time);
        if (name == config) same_config.push_back(all.back());
      }
    }
  }
  if (all.empty()) return {0, square(alike ? of_one_kind : of_two_kinds), 0};
  // The differences of this config at other sizes are better evidence than those of other configs.
  const bool known = !same_config.empty();
  const std::vector<double>& seen = known ? same_config : all;
  const double usual = alike || known ? of_configs_in_one_kind : of_configs_in_two_kinds;
  const auto count = static_cast<double>(seen.size());
  const double mean = std::accumulate(seen.begin(), seen.end(), 0.0) / count;
  // A few differences may agree by chance, so the usual deviation counts like two more differences.
  double squares = 2 * square(usual);
  for (const double d : seen) squares += square(d - mean);
  return {mean, squares / (count + 1) * (1 + 1 / count), 0};
}

outcome<predicted_time> time_model::predict(std::uint32_t rank, std::string_view config, std::uint64_t bytes) const {
  struct reference {
    std::uint32_t rank;
    estimate longer;
    estimate here;  // for `rank`
  };
  std::vector<reference> references;
  for (const auto& [other, measured] : ranks_) {
    const auto of_config = measured.find(config);
    if (of_config == measured.end()) continue;
    const estimate there = at(of_config->second, bytes);
    const estimate longer = longer_than(other, rank, config);
    references.push_back(
        {other, longer, {there.mean + longer.mean, there.variance + longer.variance, there.nearest_bytes}});
  }
  if (references.empty())
    return problem{fault::empty, "no rank has measured " + std::string(config) + ", so its time on rank " +
                                     std::to_string(rank) + " cannot be estimated"};
  const auto own = std::find_if(references.begin(), references.end(),
                                [&](const reference& r) { return r.rank == rank && r.here.nearest_bytes == bytes; });
  const bool measured = own != references.end();
  if (measured) references = {reference(*own)};  // the times of others are not needed
  const auto best = std::min_element(references.begin(), references.end(), [](const reference& a, const reference& b) {
    return a.here.variance < b.here.variance;
  });
  double weights = 0;
  double mean = 0;
  for (const reference& r : references) {
    weights += 1 / r.here.variance;
    mean += r.here.mean / r.here.variance;
  }
  mean /= weights;
  double disagreement = 0;
  for (const reference& r : references) disagreement += square(r.here.mean - mean) / r.here.variance;
  // The predicted measurement would also have noise. References have errors in common, because they share this rank's measurements; if they
  // disagree, it is unknown which is right.
  const auto others = static_cast<double>(references.size() - 1);
  const double doubt = others > 0 ? std::max(1.0, disagreement / others) : 1.0;
  const double deviation =
      std::sqrt((measured ? 0 : square(of_measuring)) + doubt * (best->here.variance + 1 / weights) / 2);

  predicted_time p;
  p.time_ns = std::exp(mean);
  p.low_ns = std::exp(mean - deviations_in_nine_of_ten * deviation);
  p.high_ns = std::exp(mean + deviations_in_nine_of_ten * deviation);
  p.measured = measured;
  p.from = fmt::format("rank {}", best->rank);
  if (!kind_of(best->rank).empty()) p.from += fmt::format(" ({})", kind_of(best->rank));
  p.from += " at " + byte_size_text(best->here.nearest_bytes);
  if (best->rank != rank) p.from += fmt::format(", times {:.2f}", std::exp(best->longer.mean));
  return p;
}

}  // namespace parley::tuning
