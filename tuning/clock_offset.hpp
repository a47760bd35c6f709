#pragma once
/// How far another rank's clock is from ours, from messages that went back and forth; always with a bound.
///
///     clock_offset theirs;
///     theirs.add({.sent_ns = t0, .received_ns = t1, .answered_ns = t2, .returned_ns = t3});   // t1 and t2 are theirs
///     const clock_reading at = theirs.to_ours(row.start_ns);   // at.ns, off by at most at.error_ns; or not known
///
/// No message is faster than light: one that we sent at t0 and that came at their t1 says that their clock is ahead of ours
/// by at most t1 - t0, one that they sent at t2 and that came at our t3 says by at least t2 - t3. So whatever the delays of
/// the two ways are, the offset lies between these, and the narrowest round trip says most. It moves, because clocks run at
/// rates that differ by up to `max_drift_ppm`; bounds that lie far apart in time narrow the rate down, which then carries
/// them through the time between. A stamp that was taken too early by a sender or too late by a receiver only widens a bound.
///
/// The offset is one continuous line between narrow bounds, so times keep their order. Times that cannot be are refused; a
/// clock that was set meanwhile contradicts its bounds, which are then forgotten and counted. Nothing here waits.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace parley::tuning {

/// One message there and one back. The answer may be sent long after the question.
struct round_trip {
  std::int64_t sent_ns = 0;      ///< by our clock
  std::int64_t received_ns = 0;  ///< by theirs
  std::int64_t answered_ns = 0;  ///< by theirs
  std::int64_t returned_ns = 0;  ///< by ours
};

struct clock_reading {
  std::int64_t ns = 0;
  double error_ns = 0;  ///< at most; infinite while nothing is known
};

class clock_offset {
 public:
  static constexpr double max_drift_ppm = 200;  ///< between two clocks; quartz is off by 20 to 100
  static constexpr double wander_ppm = 1;       ///< by how much the rate itself may change
  static constexpr std::size_t most_bounds = 32;

  /// False when it cannot be, and is ignored: an answer before its question, times beyond 36 years.
  bool add(const round_trip& sample);
  /// The same of one way alone. False for times that cannot be.
  bool add_ours_to_theirs(std::int64_t sent_ns, std::int64_t received_ns);
  bool add_theirs_to_ours(std::int64_t sent_ns, std::int64_t received_ns);

  /// A time by their clock, by ours.
  clock_reading to_ours(std::int64_t theirs_ns) const noexcept;
  /// How far they are ahead at a time by our clock; nothing before a message has come each way.
  struct estimate {
    double offset_ns = 0;
    double error_ns = 0;
  };
  std::optional<estimate> at(std::int64_t ours_ns) const noexcept;
  /// By how much faster their clock runs, in parts per million: from, to.
  double slowest_ppm() const noexcept { return slowest_ * 1e6; }
  double fastest_ppm() const noexcept { return fastest_ * 1e6; }
  std::size_t bounds() const noexcept { return upper_.size() + lower_.size(); }
  /// How often their clock must have been set.
  std::uint64_t contradictions() const noexcept { return contradictions_; }

 private:
  /// Their clock is ahead by at most (`upper_`) or at least (`lower_`) this, at a time by our clock.
  struct bound {
    std::int64_t when_ns = 0;
    std::int64_t offset_ns = 0;
  };
  enum class side : std::uint8_t { upper, lower };
  bool add(side s, bound b);
  void keep(std::vector<bound>& list, side s, bound b);
  void narrow_rate() noexcept;
  bool contradicts() const noexcept;
  /// The bound of one side at a time, and the middle of both, relative to `base`.
  double limit(side s, std::int64_t ours_ns, std::int64_t base) const noexcept;
  estimate near(std::int64_t ours_ns, std::int64_t base) const noexcept;

  std::vector<bound> upper_, lower_;  // by time
  double slowest_ = -max_drift_ppm * 1e-6;
  double fastest_ = max_drift_ppm * 1e-6;
  std::uint64_t contradictions_ = 0;
};

}  // namespace parley::tuning
