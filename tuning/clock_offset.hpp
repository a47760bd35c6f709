#pragma once
/// Estimates how far another rank's clock is ahead of ours, from messages in both directions, always with an error bound.
///
///     clock_offset theirs;
///     theirs.add({.sent_ns = t0, .received_ns = t1, .answered_ns = t2, .returned_ns = t3});   // t1 and t2 are theirs
///     const clock_reading at = theirs.to_ours(row.start_ns);   // at.ns, off by at most at.error_ns; or not known
///
/// No message arrives before it was sent. If we sent one at t0 and it arrived at their t1, their clock is ahead of ours by at most t1 - t0.
/// If they sent one at t2 and it arrived at our t3, their clock is ahead by at least t2 - t3. So for any two delays the offset lies between
/// these bounds, and the shortest round trip gives the narrowest bounds. The offset moves, because the clocks' rates differ by up to
/// `max_drift_ppm`. Bounds that are far apart in time limit the rate, and with the rate a bound can be used at other times. If a sender's
/// time is too early, or a receiver's time is too late, that only widens a bound.
///
/// The offset is one continuous line between narrow bounds, so times keep their order. Impossible times are refused. If their clock was set
/// to another time, a new bound contradicts the old bounds, which are then dropped; contradictions are counted. Nothing here waits.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace parley::tuning {

/// One message in each direction. The answer may be sent long after the question.
struct round_trip {
  std::int64_t sent_ns = 0;      ///< by our clock
  std::int64_t received_ns = 0;  ///< by theirs
  std::int64_t answered_ns = 0;  ///< by theirs
  std::int64_t returned_ns = 0;  ///< by ours
};

struct clock_reading {
  std::int64_t ns = 0;
  double error_ns = 0;  ///< at most; infinite while the offset is unknown
};

class clock_offset {
 public:
  static constexpr double max_drift_ppm = 200;  ///< between two clocks; quartz is off by 20 to 100
  static constexpr double wander_ppm = 1;       ///< how much the rate itself may change
  static constexpr std::size_t most_bounds = 32;

  /// Ignores an impossible sample and returns false: an answer before its question, or times beyond 36 years.
  bool add(const round_trip& sample);
  /// Like `add`, for one direction alone. Both return false for impossible times.
  bool add_ours_to_theirs(std::int64_t sent_ns, std::int64_t received_ns);
  bool add_theirs_to_ours(std::int64_t sent_ns, std::int64_t received_ns);

  /// Converts a time of their clock to ours.
  clock_reading to_ours(std::int64_t theirs_ns) const noexcept;
  /// How far their clock is ahead at a time of our clock; empty until a message has arrived in each direction.
  struct estimate {
    double offset_ns = 0;
    double error_ns = 0;
  };
  std::optional<estimate> at(std::int64_t ours_ns) const noexcept;
  /// Their clock is faster than ours by a rate between these two, in parts per million.
  double slowest_ppm() const noexcept { return slowest_ * 1e6; }
  double fastest_ppm() const noexcept { return fastest_ * 1e6; }
  std::size_t bounds() const noexcept { return upper_.size() + lower_.size(); }
  /// How often a bound contradicted the others, so that their clock must have been set.
  std::uint64_t contradictions() const noexcept { return contradictions_; }

 private:
  /// At that time of our clock, theirs is ahead by at most (`upper_`) or at least (`lower_`) `offset_ns`.
  struct bound {
    std::int64_t when_ns = 0;
    std::int64_t offset_ns = 0;
  };
  enum class side : std::uint8_t { upper, lower };
  bool add(side s, bound b);
  void keep(std::vector<bound>& list, side s, bound b);
  void narrow_rate() noexcept;
  bool contradicts() const noexcept;
  /// The bound of one side at the time `ours_ns`, and the middle between the bounds of both sides, relative to `base`.
  double limit(side s, std::int64_t ours_ns, std::int64_t base) const noexcept;
  estimate near(std::int64_t ours_ns, std::int64_t base) const noexcept;

  std::vector<bound> upper_, lower_;  // in the order of time
  double slowest_ = -max_drift_ppm * 1e-6;
  double fastest_ = max_drift_ppm * 1e-6;
  std::uint64_t contradictions_ = 0;
};

}  // namespace parley::tuning
