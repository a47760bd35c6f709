#pragma once
/// From the rows that participants report to one time per candidate.
///
///     aggregate a = aggregate_candidate(rows, {.digest = d, .participants = ranks, .invocations = timed});
///     a.time_ns;     // the median, or +infinity with `a.status` and `a.detail` saying why
///
/// On a common clock a repetition takes max(ends) - max(starts, end of the invocation before): neither a late partner
/// nor the queue ahead is charged. It takes no less than what any participant has spent by itself, so that work which was over
/// before a late partner began is charged, too: from the last of its own start, the end of its own invocation before and the latest
/// start of another participant that it may have waited for, to its own end; and no less than what it has measured as its work.
/// So nothing is gained by doing at one end what was done at the other: each end's part is charged whether the other one is late or not,
/// and no one's lateness is. The MAX over participants is taken per repetition, the median only then. Of invocations that are under
/// way together each one adds, in the order in which they end, what it takes beyond the end of the one before, and a repetition takes
/// their mean: whichever of them overtakes others has not been faster for it. Whatever is missing, failed, different on two sides or inconsistent makes
/// +infinity, never 0 (S6).
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <parley/tuning/clock_offset.hpp>

namespace parley::tuning {

inline constexpr double infinite_ns = std::numeric_limits<double>::infinity();

enum class row_status : std::uint8_t { ok, failed, wrong_data };

/// What one participant saw of one invocation.
struct row {
  std::uint32_t participant = 0;
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  row_status status = row_status::ok;
  std::int64_t previous_end_ns = 0;  ///< when what ended before it on this participant did; 0: that is not known
  std::int64_t worked_ns = 0;        ///< of its time, what it did not spend waiting; 0: that is not known
  friend bool operator==(const row&, const row&) = default;
};

enum class aggregate_status : std::uint8_t {
  measured,
  missing,       ///< a participant sent no row, or too few
  failed,        ///< a participant's implementation failed
  wrong_data,    ///< a participant received wrong data
  mismatched,    ///< a row of another config: what was assigned is not what ran
  inconsistent,  ///< two different rows for one repetition, or an end before its start
  not_tried,     ///< no repetition was asked for
};
std::string_view name(aggregate_status status) noexcept;

struct aggregate {
  double time_ns = infinite_ns;  ///< the median over repetitions
  double spread_ns = 0;          ///< median absolute deviation from it
  std::size_t count = 0;         ///< repetitions that the median is made of
  aggregate_status status = aggregate_status::not_tried;
  std::string detail{};       ///< which rank and invocation, when not measured
  double clock_error_ns = 0;  ///< how far the time may be off because clocks of different hosts were compared
  double fastest_ns = 0;      ///< of all repetitions; 0: not known
  double slowest_ns = 0;

  bool measured() const noexcept { return status == aggregate_status::measured; }
  friend bool operator==(const aggregate&, const aggregate&) = default;
};

enum class clock_kind : std::uint8_t {
  common,    ///< starts and ends of different participants can be compared
  separate,  ///< they cannot: each repetition is the longest that any participant saw, late partners included
};

/// How to convert a participant's times to the clock of whoever aggregates. One without an entry shares that clock.
struct participant_clock {
  std::uint32_t participant = 0;
  const clock_offset* offset = nullptr;
};

struct repetitions {
  std::uint64_t digest = 0;                       ///< of the candidate
  std::span<const std::uint32_t> participants{};  ///< all of whom must report
  std::span<const std::uint64_t> invocations{};   ///< the timed ones in their order, no warm-ups
  clock_kind clock = clock_kind::common;
  std::span<const participant_clock> clocks{};
  /// Of the invocations, ascending, those that were under way together with the one before: one repetition, in which each has an equal share.
  std::span<const std::uint64_t> joined{};
};

/// Takes the invocations of the next repetition from the front of `rest`.
std::span<const std::uint64_t> take_repetition(std::span<const std::uint64_t>& rest,
                                               std::span<const std::uint64_t> joined);

/// `rows` may hold those of other candidates and of unmeasured invocations: they say when the one before ended.
aggregate aggregate_candidate(std::span<const row> rows, const repetitions& asked);

/// The same from plain times: one list per participant, one element per repetition. Lists of unequal length are
/// `missing`.
aggregate aggregate_times(std::span<const std::vector<double>> times_ns_by_participant);

/// Of an even number of values: the mean of the middle two. Of none: +infinity.
double median(std::vector<double> values);

}  // namespace parley::tuning
