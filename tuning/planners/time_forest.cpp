#include <parley/tuning/planners/time_forest.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

namespace parley::tuning {

namespace {

double mean_of(std::span<const std::pair<std::size_t, double>> samples) {
  double sum = 0;
  for (const auto& s : samples) sum += s.second;
  return sum / static_cast<double>(samples.size());
}

}  // namespace

time_forest::time_forest(std::span<const config_identity> configs) {
  std::map<std::string, std::size_t> column_of;
  for (const config_identity& c : configs) {
    for (const parameter& p : c.parameters) column_of.try_emplace(p.name, 0);
  }
  columns_ = 1;
  for (auto& [name, column] : column_of) column = columns_++;
  constexpr double lacking = -1;
  values_.assign(configs.size() * columns_, lacking);
  std::vector<std::map<std::string, double>> numbered(columns_);
  const auto number_of = [&](std::size_t column, const std::string& text) {
    return numbered[column].try_emplace(text, static_cast<double>(numbered[column].size())).first->second;
  };
  std::vector<bool> is_numeric(columns_, true);
  for (const config_identity& c : configs) {
    for (const parameter& p : c.parameters) {
      if (!c.number(p.name)) is_numeric[column_of.at(p.name)] = false;
    }
  }
  for (std::size_t i = 0; i < configs.size(); ++i) {
    values_[i * columns_] = number_of(0, configs[i].name);
    for (const parameter& p : configs[i].parameters) {
      const std::size_t column = column_of.at(p.name);
      values_[i * columns_ + column] =
          is_numeric[column] ? static_cast<double>(*configs[i].number(p.name)) : number_of(column, p.value);
    }
  }
}

void time_forest::learn(std::span<const std::size_t> tried, std::span<const double> log_times, std::uint64_t seed) {
  forest_.clear();
  if (tried.empty()) return;
  for (std::size_t t = 0; t < trees; ++t) {
    draws chance(seed * trees + t);
    samples mine;
    for (std::size_t i = 0; i < tried.size(); ++i) {
      const std::size_t drawn = chance.below(tried.size());  // with repetitions, as usual
      mine.emplace_back(tried[drawn], log_times[drawn]);
    }
    tree& grown = forest_.emplace_back(1);
    grow(grown, 0, std::move(mine), 0, chance);
  }
}

// Splits where the sum of squared deviations becomes smallest, among thresholds of some random columns.
void time_forest::grow(tree& t, std::size_t at, samples mine, std::size_t depth, draws& chance) const {
  t[at].mean = mean_of(mine);
  if (depth == deepest || mine.size() < 2 * smallest_leaf) return;
  double best = -std::numeric_limits<double>::infinity();
  std::optional<std::pair<std::size_t, double>> split;
  const std::size_t looked_at = std::max<std::size_t>(1, (2 * columns_ + 2) / 3);
  for (std::size_t k = 0; k < looked_at; ++k) {
    const std::size_t column = chance.below(columns_);
    std::sort(mine.begin(), mine.end(),
              [&](const auto& a, const auto& b) { return value(a.first, column) < value(b.first, column); });
    const double all = mean_of(mine) * static_cast<double>(mine.size());
    double left = 0;
    for (std::size_t i = 0; i + smallest_leaf < mine.size(); ++i) {
      left += mine[i].second;
      const double here = value(mine[i].first, column), next = value(mine[i + 1].first, column);
      if (i + 1 < smallest_leaf || here == next) continue;
      const auto n = static_cast<double>(i + 1), rest = static_cast<double>(mine.size()) - n;
      const double gain = left * left / n + (all - left) * (all - left) / rest;
      if (gain <= best) continue;
      best = gain;
      split = {column, (here + next) / 2};
    }
  }
  if (!split) return;
  const auto is_left = [&](const auto& s) { return value(s.first, split->first) <= split->second; };
  const auto middle = std::partition(mine.begin(), mine.end(), is_left);
  samples right(middle, mine.end());
  mine.erase(middle, mine.end());
  const std::size_t children = t.size();
  t.resize(children + 2);
  t[at].column = split->first;
  t[at].threshold = split->second;
  t[at].left = children;
  grow(t, children, std::move(mine), depth + 1, chance);
  grow(t, children + 1, std::move(right), depth + 1, chance);
}

time_forest::estimated time_forest::estimate(std::size_t config) const {
  if (forest_.empty()) return {0, std::numeric_limits<double>::infinity()};
  double sum = 0, squares = 0;
  for (const tree& t : forest_) {
    std::size_t at = 0;
    while (t[at].left != 0) at = t[at].left + (value(config, t[at].column) <= t[at].threshold ? 0 : 1);
    sum += t[at].mean;
    squares += t[at].mean * t[at].mean;
  }
  constexpr auto count = static_cast<double>(trees);
  const double mean = sum / count;
  return {mean, std::sqrt(std::max(0.0, squares / count - mean * mean))};
}

std::size_t time_forest::differences(std::size_t a, std::size_t b) const {
  std::size_t different = 0;
  for (std::size_t c = 0; c < columns_; ++c) different += value(a, c) != value(b, c) ? 1 : 0;
  return different;
}

}  // namespace parley::tuning
