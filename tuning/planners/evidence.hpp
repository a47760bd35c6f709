#pragma once
/// What each participant by itself saw of a candidate: kept beside the aggregate, so that a decision can be questioned.
///
///     for (const own_measurement& m : measured_by_each(rows, asked)) m.median_ns;   // of participant m.participant
///
/// Own times contain what a participant waited for its partners, which the aggregate does not charge; they say who waited. A
/// participant without a single good row has infinity, with the worst that it reported.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <parley/tuning/planners/statistics.hpp>

namespace parley::tuning {

struct own_measurement {
  std::uint32_t participant = 0;
  double median_ns =
      infinite_ns;  ///< of its own ends less its own starts; of a batch from the first start to the last end, a share each
  std::size_t repetitions = 0;  ///< that went well here
  aggregate_status status = aggregate_status::missing;
  friend bool operator==(const own_measurement&, const own_measurement&) = default;
};

/// One per participant, in their order. Rows of other invocations than those asked for are not looked at.
std::vector<own_measurement> measured_by_each(std::span<const row> rows, const repetitions& asked);

}  // namespace parley::tuning
