#pragma once
/// Estimates the times of configs that were not tried, from those that were: a random forest over their names and parameters.
///
///     time_forest forest(config_identities);                  // 10 to 100,000 configs of one kernel
///     forest.learn(tried, log_times, seed);                   // the logarithms of their times
///     auto e = forest.estimate(candidate);                    // e.mean and e.deviation, of the logarithm of its time
///
/// A parameter whose values are all numbers is ordered by them; other values, and the configs' names, are numbered. Each tree sees
/// another sample of what was tried, and their disagreement is the deviation. The same arguments give the same estimates everywhere.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <parley/tuning/config.hpp>
#include <parley/tuning/hash.hpp>

namespace parley::tuning {

/// Numbers that look drawn, and are the same on all machines for the same seed.
class draws {
 public:
  explicit draws(std::uint64_t seed) noexcept : state_(seed) {}
  /// A number below `count`, which must not be 0.
  std::size_t below(std::size_t count) noexcept {
    const std::uint64_t drawn = mixed(state_);
    state_ += golden_ratio;
    return static_cast<std::size_t>(drawn % count);
  }

 private:
  std::uint64_t state_;
};

class time_forest {
 public:
  struct estimated {
    double mean = 0;
    double deviation = 0;
  };

  explicit time_forest(std::span<const config_identity> configs);
  void learn(std::span<const std::size_t> tried, std::span<const double> log_times, std::uint64_t seed);
  estimated estimate(std::size_t config) const;
  /// How many of the parameters, with the name, have other values.
  std::size_t differences(std::size_t a, std::size_t b) const;
  std::size_t columns() const noexcept { return columns_; }

 private:
  static constexpr std::size_t trees = 32;
  static constexpr std::size_t deepest = 10;
  static constexpr std::size_t smallest_leaf = 2;
  struct node {
    std::size_t column = 0;
    double threshold = 0;  // smaller or equal: left
    std::size_t left = 0;  // the place of the left child; the right one follows it. 0: a leaf
    double mean = 0;
  };
  using tree = std::vector<node>;
  using samples = std::vector<std::pair<std::size_t, double>>;  // config, logarithm of its time

  double value(std::size_t config, std::size_t column) const { return values_[config * columns_ + column]; }
  void grow(tree& t, std::size_t at, samples mine, std::size_t depth, draws& chance) const;

  std::size_t columns_ = 0;
  std::vector<double> values_;  // of all configs, one row after the other
  std::vector<tree> forest_;
};

}  // namespace parley::tuning
