#pragma once
/// Whether what has been decided still takes as long as it did: a change that lasts is a reason to search anew.
///
///     drift_detector seen(options);
///     seen.decided(640'000);                       // what the winner took in its trials; 0: not known, so it is learned
///     if (seen.add(burst) == drift::changed) …     // `burst`: the aggregate of a few invocations in a row
///
/// A burst counts as other when its median differs from the reference by more than `threshold`, up or down, and by more than
/// its own scatter may do. So many in a row, all in one direction, are a change; one that is back within half of the
/// threshold begins the count anew (hysteresis), and one in between changes nothing. What was not measured says nothing.
#include <parley/tuning/planners/statistics.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace parley::tuning {

struct drift_options {
  bool on = true;
  std::uint64_t every = 512;            ///< invocations of one size between bursts
  std::int64_t pause_ns = 100'000'000;  ///< and the least time between them
  std::size_t samples = 5;              ///< timed invocations, or batches, of a burst
  double threshold = 0.25;              ///< a smaller change is none
  std::size_t sustained = 3;            ///< bursts in a row
  std::int64_t search_pause_ns =
      10'000'000'000;  ///< between searches; doubles while they change nothing, up to 64 times
};

enum class drift : std::uint8_t { steady, learning, suspected, changed };

class drift_detector {
 public:
  explicit drift_detector(drift_options o = {}) noexcept : options_(o) {}
  /// The reference; 0: the next bursts say what it is.
  void decided(double time_ns);
  drift add(const aggregate& burst);
  double reference_ns() const noexcept { return reference_ns_; }
  /// The median of the latest bursts; 0 before the first.
  double latest_ns() const;

 private:
  void start_over() noexcept;
  drift_options options_;
  double reference_ns_ = 0;
  int direction_ = 0;  // of the bursts that were other
  std::size_t others_ = 0;
  std::vector<double> latest_;
};

}  // namespace parley::tuning
