#pragma once
/// Collects each participant's own measurements of a candidate. They are kept with the aggregate, so that people can check a decision.
///
///     for (const own_measurement& m : measured_by_each(rows, asked)) m.median_ns;   // of participant m.participant
///
/// A participant's own times include its waits for its partners, which do not count in the aggregate; so they show which participant
/// waited. A participant without a good row has the time infinity, with the worst status that it reported.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

struct own_measurement {
  std::uint32_t participant = 0;
  double median_ns =
      infinite_ns;  ///< median of its own ends minus starts; in a batch: an equal share of first start to last end
  double fastest_ns = 0;        ///< 0: no repetition succeeded
  double spread_ns = 0;         ///< median absolute deviation from `median_ns`
  std::size_t repetitions = 0;  ///< repetitions that succeeded on this participant
  aggregate_status status = aggregate_status::missing;
  friend bool operator==(const own_measurement&, const own_measurement&) = default;
};

/// Returns one entry per participant, in their order. Ignores rows of other invocations than those in `asked`.
std::vector<own_measurement> measured_by_each(std::span<const row> rows, const repetitions& asked);

}  // namespace parley::tuning
