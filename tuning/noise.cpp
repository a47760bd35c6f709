#include <parley/tuning/noise.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace parley::tuning {

namespace {

constexpr double deviation_by_mad = 1.4826;      // of normal values, many of them
constexpr double median_error_by_mean = 1.2533;  // a median is a little less exact than a mean

/// The median absolute deviation of a few normal values is too small by this, on average. By simulation.
double few_values_factor(std::size_t count) {
  constexpr std::array<double, 10> factors{1, 1, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107};
  if (count < factors.size()) return factors[count];
  return static_cast<double>(count) / (static_cast<double>(count) - 0.8);
}

/// How many standard errors make sure, one side in 200 being wrong: close to Student's distribution.
double sure_factor(std::size_t degrees) {
  const auto d = static_cast<double>(degrees);
  return degrees < 2 ? infinite_ns : 2.6 * d / (d - 1.6);
}

double squared_error(const aggregate& a, const scatter& pooled) {
  if (a.count == 0) return infinite_ns;
  const double deviation = std::max(deviation_ns(a), pooled.relative * a.time_ns);
  const double as_mean = deviation * deviation / static_cast<double>(a.count);
  return a.count < 3 ? as_mean : as_mean * median_error_by_mean * median_error_by_mean;
}

/// What may be chance, and what the clocks may be off by.
double chance_ns(const aggregate& a, const aggregate& b, const scatter& pooled) {
  const double squares = squared_error(a, pooled) + squared_error(b, pooled);
  const double factor = sure_factor(pooled.degrees);
  return (std::isfinite(factor) ? factor * std::sqrt(squares) : infinite_ns) + a.clock_error_ns + b.clock_error_ns;
}

}  // namespace

double deviation_ns(const aggregate& a) {
  return a.count < 2 ? 0 : deviation_by_mad * few_values_factor(a.count) * a.spread_ns;
}

double median_error_ns(const aggregate& a) {
  return a.count < 2 ? 0 : median_error_by_mean * deviation_ns(a) / std::sqrt(static_cast<double>(a.count));
}

scatter scatter_of(std::span<const aggregate> all, std::span<const std::size_t> which) {
  scatter pooled;
  std::vector<double> relative;
  for (std::size_t i : which) {
    const aggregate& a = all[i];
    if (!a.measured() || a.count < 2 || !(a.time_ns > 0)) continue;
    relative.push_back(deviation_ns(a) / a.time_ns);
    pooled.degrees += a.count - 1;
  }
  if (!relative.empty()) pooled.relative = median(std::move(relative));
  return pooled;
}

double significant_ns(const aggregate& a, const aggregate& b, const significance& s) {
  return std::max(s.relative * std::max(a.time_ns, b.time_ns), chance_ns(a, b, s.pooled));
}

bool surely_slower(const aggregate& a, const aggregate& b, const significance& s) {
  return a.time_ns - b.time_ns > significant_ns(a, b, s);
}

bool surely_no_better(const aggregate& a, const aggregate& b, const significance& s) {
  return b.time_ns - a.time_ns + chance_ns(a, b, s.pooled) <= s.relative * std::max(a.time_ns, b.time_ns);
}

}  // namespace parley::tuning
