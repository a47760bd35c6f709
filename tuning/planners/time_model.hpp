#pragma once
/// Predicts the time of a call that a rank has not measured, from its own and other ranks' times, and says how certain the prediction is.
///
///     time_model model({"H100", "H100", "A100", "A100"});     // what each rank runs on
///     model.add({.rank = 0, .config = "ring", .bytes = 16 << 20, .time_ns = 8.7e6});
///     …
///     if (auto p = model.predict(2, "fused", 16 << 20))
///       p->time_ns;                                            // in 9 of 10 cases between p->low_ns and p->high_ns
///
/// The prediction combines three things, all as ratios of times: a rank's own times at other sizes, other ranks' times at this size, and
/// the ratio between this rank and the others in cases that both have measured. Without measurements, ranks of one kind count as alike, and
/// nothing is assumed between kinds, so that the first prediction has a wide range. The range narrows with more measurements, but never
/// below the noise of a measurement. Pure bookkeeping, for one op; nothing here waits.
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <parley/tuning/outcome.hpp>

namespace parley::tuning {

struct observed_time {
  std::uint32_t rank = 0;
  std::string config{};
  std::uint64_t bytes = 0;
  double time_ns = 0;
};

struct predicted_time {
  double time_ns = 0;
  double low_ns = 0;   ///< 9 of 10 measurements are expected to be above
  double high_ns = 0;  ///< 9 of 10 measurements are expected to be below
  bool measured = false;
  std::string from;  ///< its main basis: `rank 0 (H100) at 16MiB, times 1.21`
};

class time_model {
 public:
  /// `kinds`: the hardware of each rank, by the rank's number; ranks beyond the list are of one kind.
  explicit time_model(std::vector<std::string> kinds = {}) : kinds_(std::move(kinds)) {}
  /// Adds a rank without a kind, and returns its number.
  std::uint32_t add_rank() {
    kinds_.emplace_back();
    return static_cast<std::uint32_t>(kinds_.size() - 1);
  }

  std::size_t ranks() const noexcept { return kinds_.size(); }
  /// A later time for the same rank, config and size replaces an earlier one. An impossible time is ignored.
  void add(const observed_time& seen);
  /// `empty` if no rank has measured that config.
  outcome<predicted_time> predict(std::uint32_t rank, std::string_view config, std::uint64_t bytes) const;

 private:
  /// An estimate of the logarithm of a time, because products of ratios are sums of logarithms.
  struct estimate {
    double mean = 0;
    double variance = 0;
    std::uint64_t nearest_bytes = 0;  ///< the measured size that it is based on
  };
  using curve = std::map<std::uint64_t, double>;  // size, logarithm of its time
  using curves = std::map<std::string, curve, std::less<>>;
  static estimate at(const curve& of, std::uint64_t bytes);
  /// How much longer `rank` takes than `other`, from cases that both have measured.
  estimate longer_than(std::uint32_t other, std::uint32_t rank, std::string_view config) const;
  const std::string& kind_of(std::uint32_t rank) const;

  std::vector<std::string> kinds_;
  std::map<std::uint32_t, curves> ranks_;
};

}  // namespace parley::tuning
