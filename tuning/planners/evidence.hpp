#pragma once
/// Each participant's own measurements of a candidate, kept with the aggregate so that a decision can be questioned.
///
///     for (const own_measurement& m : measured_by_each(rows, asked)) m.median_ns;   // of participant m.participant
///
/// A participant's own times contain its waits for its partners, which the aggregate does not charge; they show who waited. A
/// participant without a single good row has infinity, with the worst status that it reported.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

struct own_measurement {
  std::uint32_t participant = 0;
  double median_ns =
      infinite_ns;  ///< of its own ends less its own starts; for a batch, an equal share of first start to last end
  std::size_t repetitions = 0;  ///< that succeeded here
  aggregate_status status = aggregate_status::missing;
  friend bool operator==(const own_measurement&, const own_measurement&) = default;
};

/// One per participant, in their order. Ignores rows of invocations that were not asked for.
std::vector<own_measurement> measured_by_each(std::span<const row> rows, const repetitions& asked);

}  // namespace parley::tuning
