#pragma once
/// Turns the rows that participants report into one time per candidate.
///
///     aggregate a = aggregate_candidate(rows, {.digest = d, .participants = ranks, .invocations = timed});
///     a.time_ns;     // the median, or +infinity with `a.status` and `a.detail` saying why
///
/// On a common clock a repetition takes max(ends) - max(starts, end of the invocation before): neither a late partner nor the queue ahead
/// is charged. A repetition takes at least the time that each participant has spent on its own, so that work which ended before a late
/// partner began is also charged. A participant's own time is its end minus the latest of three times: its own start, the end of its own
/// invocation before, and the latest start of another participant that it may have waited for. It is at least the time that the participant
/// has measured as its work. So a config gains nothing if it moves work from one end to the other: the work of each end is charged, whether
/// the other end is late or not, and lateness is never charged. For each repetition the maximum over participants counts, and the result is
/// the median of these maxima. If invocations are in flight together, they are taken in the order in which they end. Each adds its time
/// after the end of the one before, and the repetition takes the mean: an invocation that overtakes others does not count as faster. If
/// anything is missing, failed, different on two sides or inconsistent, the result is +infinity, never 0 (S6).
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

/// One participant's record of one invocation.
struct row {
  std::uint32_t participant = 0;
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  row_status status = row_status::ok;
  std::int64_t previous_end_ns = 0;  ///< end of the invocation that ended before it on this participant; 0: not known
  std::int64_t worked_ns = 0;        ///< the time without its waits; 0: not known
  friend bool operator==(const row&, const row&) = default;
};

enum class aggregate_status : std::uint8_t {
  measured,
  missing,       ///< a participant sent no row, or too few
  failed,        ///< a participant's implementation failed
  wrong_data,    ///< a participant received wrong data
  mismatched,    ///< a row of another config: the assigned config is not the one that ran
  inconsistent,  ///< two different rows for one repetition, or an end before its start
  not_tried,     ///< no repetition was requested
};
std::string_view name(aggregate_status status) noexcept;

struct aggregate {
  double time_ns = infinite_ns;  ///< the median over repetitions
  double spread_ns = 0;          ///< median absolute deviation from `time_ns`
  std::size_t count = 0;         ///< repetitions that the median is made of
  aggregate_status status = aggregate_status::not_tried;
  std::string detail{};       ///< which rank and invocation, when not measured
  double clock_error_ns = 0;  ///< possible error, because clocks of different hosts were compared
  double fastest_ns = 0;      ///< of all repetitions; 0: not known
  double slowest_ns = 0;

  bool measured() const noexcept { return status == aggregate_status::measured; }
  friend bool operator==(const aggregate&, const aggregate&) = default;
};

enum class clock_kind : std::uint8_t {
  common,    ///< starts and ends of different participants can be compared
  separate,  ///< they cannot: the longest time of any participant counts, with its waits for late partners
};

/// Converts a participant's times to the clock of the rank that aggregates. A participant without an entry shares that clock.
struct participant_clock {
  std::uint32_t participant = 0;
  const clock_offset* offset = nullptr;
};

struct repetitions {
  std::uint64_t digest = 0;                       ///< of the candidate
  std::span<const std::uint32_t> participants{};  ///< all of them must report
  std::span<const std::uint64_t> invocations{};   ///< the timed ones in their order, no warm-ups
  clock_kind clock = clock_kind::common;
  std::span<const participant_clock> clocks{};
  /// The invocations, ascending, that were in flight together with the previous invocation. Both belong to one repetition, in which each
  /// invocation has an equal share.
  std::span<const std::uint64_t> joined{};
};

/// Takes the invocations of the next repetition from the front of `rest`.
std::span<const std::uint64_t> take_repetition(std::span<const std::uint64_t>& rest,
                                               std::span<const std::uint64_t> joined);

/// `rows` may also hold other candidates and unmeasured invocations: they show when the invocation before ended.
aggregate aggregate_candidate(std::span<const row> rows, const repetitions& asked);

/// Like `aggregate_candidate`, from plain times: one list per participant, one element per repetition. Lists of unequal length are
/// `missing`.
aggregate aggregate_times(std::span<const std::vector<double>> times_ns_by_participant);

/// `1.262 ms`, for people.
std::string time_text(double time_ns);
/// The mean of the middle two for an even number of values; +infinity for none.
double median(std::vector<double> values);

}  // namespace parley::tuning
