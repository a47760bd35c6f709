#include <parley/tuning/planners/noise.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

namespace parley::tuning {

namespace {

constexpr double deviation_by_mad = 1.4826;      // for a large number of normally distributed values
constexpr double median_error_by_mean = 1.2533;  // a median is a little less exact than a mean
constexpr double two_thirds = 2.0 / 3.0;

/// The median absolute deviation of a few normal values is too small by this factor, on average. Found by simulation.
double few_values_factor(std::size_t count) {
  constexpr std::array<double, 10> factors{1, 1, 1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107};
  if (count < factors.size()) return factors[count];
  return static_cast<double>(count) / (static_cast<double>(count) - 0.8);
}

/// About how much wider Student's distribution is than the normal one; infinite for fewer than two degrees of freedom.
double student(std::size_t degrees) {
  const auto d = static_cast<double>(degrees);
  return degrees < 2 ? infinite_ns : d / (d - 1.6);
}

double squared_error(const aggregate& a, const scatter& pooled) {
  if (a.count == 0) return infinite_ns;
  const double deviation = std::max(deviation_ns(a), pooled.relative * a.time_ns);
  const double as_mean = deviation * deviation / static_cast<double>(a.count);
  return a.count < 3 ? as_mean : as_mean * median_error_by_mean * median_error_by_mean;
}

/// The part of a difference that may be chance. It shrinks with every repetition.
double luck_ns(const aggregate& a, const aggregate& b, const significance& s) {
  const double squares = squared_error(a, s.pooled) + squared_error(b, s.pooled);
  const double factor = s.standard_errors * student(s.pooled.degrees);
  return std::isfinite(factor) ? factor * std::sqrt(squares) : infinite_ns;
}

/// `luck_ns` plus the possible error of the clocks.
double chance_ns(const aggregate& a, const aggregate& b, const significance& s) {
  return luck_ns(a, b, s) + a.clock_error_ns + b.clock_error_ns;
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

bool is_disturbed(double fastest_ns, double slowest_ns) noexcept {
  constexpr double several_times = 6;  // kernel launches and page faults delay a repetition by less
  return slowest_ns > several_times * fastest_ns;
}

bool is_disturbed(const aggregate& a) noexcept {
  return a.measured() && a.count > 1 && is_disturbed(a.fastest_ns, a.slowest_ns);
}

double significant_ns(const aggregate& a, const aggregate& b, const significance& s) {
  return std::max(s.relative * std::max(a.time_ns, b.time_ns), chance_ns(a, b, s));
}

bool surely_slower(const aggregate& a, const aggregate& b, const significance& s) {
  return a.time_ns - b.time_ns > significant_ns(a, b, s);
}

bool surely_no_better(const aggregate& a, const aggregate& b, const significance& s) {
  return b.time_ns - a.time_ns + chance_ns(a, b, s) <= s.relative * std::max(a.time_ns, b.time_ns);
}

bool known_as_good(const aggregate& a, const aggregate& b, const significance& s) {
  const double luck = luck_ns(a, b, s);
  const double largest_ns = std::max(a.time_ns, b.time_ns);
  return a.time_ns - b.time_ns + luck <= s.relative * largest_ns || luck <= s.relative * largest_ns * two_thirds;
}

}  // namespace parley::tuning
