#pragma once
/// Detects a lasting change in the time of a decided config, which is a reason to search again.
///
///     drift_detector seen(options);
///     seen.decided(640'000);                       // what the winner took in its trials; 0: not known, so it is learned
///     if (seen.add(burst) == drift::changed) …     // `burst`: the aggregate of a few invocations in a row
///
/// A burst differs if its median deviates from the reference by more than `threshold`, up or down, and by more than the burst's scatter
/// explains. `sustained` such bursts in a row, all in one direction, are a change. A burst within half of the threshold restarts the count
/// (hysteresis); a burst between half and the whole threshold leaves the count as it is. A burst that was not measured is ignored.
#include <parley/tuning/planners/statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace parley::tuning {

struct drift_options {
  bool on = true;
  std::uint64_t every = 512;            ///< invocations of one size between bursts
  std::int64_t pause_ns = 100'000'000;  ///< shortest time between bursts
  std::size_t samples = 5;              ///< timed invocations, or batches, of a burst
  double threshold = 0.25;              ///< smaller changes are ignored
  std::size_t sustained = 3;            ///< bursts in a row
  std::int64_t search_pause_ns =
      10'000'000'000;  ///< pause between searches; doubles after each search without a change, up to 64 times
};

enum class drift : std::uint8_t { steady, learning, suspected, changed };

class drift_detector {
 public:
  explicit drift_detector(drift_options o = {}) noexcept : options_(o) {}
  /// Sets the reference; 0: the next bursts define it.
  void decided(double time_ns);
  drift add(const aggregate& burst);
  double reference_ns() const noexcept { return reference_ns_; }
  /// The median of the latest bursts; 0 before the first.
  double latest_ns() const;

 private:
  void start_over() noexcept;
  drift_options options_;
  double reference_ns_ = 0;
  int direction_ = 0;  // of the bursts that differed
  std::size_t others_ = 0;
  std::vector<double> latest_;
};

}  // namespace parley::tuning
