#pragma once
/// What a participant reports of a trial that did not end in time while it was at it, in groups and in ops without headers.
#include <cstdint>

namespace parley::actors {

/// A `wire_row::status` beside `tuning::row_status` and `cancelled_row`. Somebody may have been late: the trial is made again. The
/// second such one of a config in a search, with all participants at both, has it out for good (`assignment::judge`).
inline constexpr std::uint8_t late_row = 4;

}  // namespace parley::actors
