#include <parley/tuning/statistics.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace parley::tuning {

namespace {

using row_key = std::pair<std::uint64_t, std::uint32_t>;  // invocation, participant

aggregate infinite(aggregate_status status, std::string detail) {
  aggregate a;
  a.status = status;
  a.detail = std::move(detail);
  return a;
}

/// What the times of rows may be off by after they were converted, by participant.
using clock_errors = std::map<std::uint32_t, double>;

/// The rows in one clock. Infinite errors: of a participant whose clock is not known yet.
std::vector<row> converted(std::span<const row> rows, std::span<const participant_clock> clocks, clock_errors& errors) {
  std::vector<row> all(rows.begin(), rows.end());
  for (const participant_clock& clock : clocks) {
    if (clock.offset == nullptr) continue;
    double& error_ns = errors[clock.participant];
    for (row& r : all) {
      if (r.participant != clock.participant) continue;
      const clock_reading start = clock.offset->to_ours(r.start_ns);
      const clock_reading end = clock.offset->to_ours(r.end_ns);
      r.start_ns = start.ns;
      r.end_ns = end.ns;
      error_ns = std::max({error_ns, start.error_ns, end.error_ns});
    }
  }
  return all;
}

/// Moving one participant's times by its error moves a repetition by no more; two can do so in opposite directions.
double largest_two(const clock_errors& errors) {
  double first = 0, second = 0;
  for (const auto& [participant, error_ns] : errors) {
    if (error_ns > first)
      second = std::exchange(first, error_ns);
    else
      second = std::max(second, error_ns);
  }
  return first + second;
}

/// The median of finite times, with its spread.
aggregate summary(const std::vector<double>& times_ns) {
  aggregate a;
  if (times_ns.empty()) return infinite(aggregate_status::not_tried, "no repetition was asked for");
  a.time_ns = median(times_ns);
  std::vector<double> deviations;
  for (double t : times_ns) deviations.push_back(std::abs(t - a.time_ns));
  a.spread_ns = median(std::move(deviations));
  a.count = times_ns.size();
  a.status = aggregate_status::measured;
  return a;
}

/// Rows by invocation and participant; of a participant's contradicting rows, which ones contradict.
struct table {
  std::map<row_key, row> rows;
  std::map<row_key, int> contradicting;

  explicit table(std::span<const row> all) {
    for (const row& r : all) {
      const row_key key{r.invocation, r.participant};
      const auto [at, inserted] = rows.emplace(key, r);
      // Reports are resent until acknowledged, so the same row twice is nothing special.
      if (!inserted && !(at->second == r)) contradicting[key] = 1;
    }
  }

  const row* find(std::uint64_t invocation, std::uint32_t participant) const {
    const auto at = rows.find({invocation, participant});
    return at == rows.end() ? nullptr : &at->second;
  }

  /// The last end of an invocation, as far as it was reported.
  std::optional<std::int64_t> last_end(std::uint64_t invocation, std::span<const std::uint32_t> participants) const {
    std::optional<std::int64_t> latest;
    for (std::uint32_t p : participants) {
      const row* r = find(invocation, p);
      if (r != nullptr && (!latest || r->end_ns > *latest)) latest = r->end_ns;
    }
    return latest;
  }
};

/// What keeps this row from counting, if anything.
std::optional<aggregate> fault_of(const table& reported, const repetitions& asked, std::uint64_t invocation,
                                  std::uint32_t participant) {
  const auto because = [&](aggregate_status status, std::string_view what) {
    return infinite(status, fmt::format("rank {} {} invocation {}", participant, what, invocation));
  };
  const row* r = reported.find(invocation, participant);
  if (r == nullptr) return because(aggregate_status::missing, "reported nothing about");
  if (reported.contradicting.count({invocation, participant}) != 0) {
    return because(aggregate_status::inconsistent, "reported two different rows about");
  }
  if (r->digest != asked.digest) return because(aggregate_status::mismatched, "ran another config in");
  if (r->status == row_status::failed) return because(aggregate_status::failed, "failed in");
  if (r->status == row_status::wrong_data) return because(aggregate_status::wrong_data, "received wrong data in");
  if (r->end_ns < r->start_ns) return because(aggregate_status::inconsistent, "reported an end before the start of");
  return std::nullopt;
}

/// Hostile rows may hold any integers, so the difference may not fit one.
double elapsed_ns(std::int64_t from, std::int64_t to) {
  const bool fits = from >= 0 ? to >= std::numeric_limits<std::int64_t>::min() + from
                              : to <= std::numeric_limits<std::int64_t>::max() + from;
  return fits ? static_cast<double>(to - from) : static_cast<double>(to) - static_cast<double>(from);
}

double repetition_ns(const table& reported, const repetitions& asked, std::uint64_t invocation) {
  const row* first = reported.find(invocation, asked.participants.front());
  std::int64_t last_start = first->start_ns, last_end = first->end_ns;
  double longest_ns = 0;
  for (std::uint32_t p : asked.participants) {
    const row* r = reported.find(invocation, p);
    last_start = std::max(last_start, r->start_ns);
    last_end = std::max(last_end, r->end_ns);
    longest_ns = std::max(longest_ns, elapsed_ns(r->start_ns, r->end_ns));
  }
  if (asked.clock == clock_kind::separate) return longest_ns;
  const auto before = invocation == 0 ? std::nullopt : reported.last_end(invocation - 1, asked.participants);
  // When i-1 ended after i, its end says nothing about a queue ahead of i: all of i is charged.
  if (before && *before > last_start && *before < last_end) last_start = *before;
  return elapsed_ns(last_start, last_end);
}

}  // namespace

std::string_view name(aggregate_status status) noexcept {
  switch (status) {
    case aggregate_status::measured: return "measured";
    case aggregate_status::missing: return "missing";
    case aggregate_status::failed: return "failed";
    case aggregate_status::wrong_data: return "wrong_data";
    case aggregate_status::mismatched: return "mismatched";
    case aggregate_status::inconsistent: return "inconsistent";
    case aggregate_status::not_tried: return "not_tried";
  }
  return "unknown";
}

double median(std::vector<double> values) {
  if (values.empty()) return infinite_ns;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const double below = *std::max_element(values.begin(), middle);
  return below + (*middle - below) / 2;
}

aggregate aggregate_candidate(std::span<const row> rows, const repetitions& asked) {
  if (asked.participants.empty() || asked.invocations.empty()) return summary({});
  clock_errors errors;
  const std::vector<row> in_one_clock = converted(rows, asked.clocks, errors);
  const double error_ns = largest_two(errors);
  repetitions comparable = asked;
  if (!std::isfinite(error_ns)) comparable.clock = clock_kind::separate;
  const bool compared = comparable.clock == clock_kind::common;
  const table reported(in_one_clock);
  std::vector<double> times_ns;
  for (std::uint64_t invocation : asked.invocations) {
    for (std::uint32_t p : asked.participants) {
      if (auto bad = fault_of(reported, asked, invocation, p)) return *std::move(bad);
    }
    const double time_ns = repetition_ns(reported, comparable, invocation);
    if (time_ns < 0 && -time_ns > error_ns) {
      return infinite(aggregate_status::inconsistent,
                      fmt::format("invocation {} ended before its last start: the clocks disagree", invocation));
    }
    times_ns.push_back(std::max(time_ns, 1.0));  // a clock that did not tick is no proof of zero cost
  }
  aggregate a = summary(times_ns);
  if (compared) a.clock_error_ns = error_ns;
  return a;
}

aggregate aggregate_times(std::span<const std::vector<double>> times_ns_by_participant) {
  if (times_ns_by_participant.empty()) return summary({});
  std::vector<double> longest_ns(times_ns_by_participant.front().size(), 0);
  for (std::size_t p = 0; p < times_ns_by_participant.size(); ++p) {
    const std::vector<double>& times = times_ns_by_participant[p];
    if (times.size() != longest_ns.size()) {
      return infinite(aggregate_status::missing, fmt::format("participant {} has {} repetitions, the first one {}", p,
                                                             times.size(), longest_ns.size()));
    }
    for (std::size_t i = 0; i < times.size(); ++i) {
      if (!std::isfinite(times[i]) || times[i] <= 0) {
        return infinite(aggregate_status::failed, fmt::format("participant {} has no time for repetition {}", p, i));
      }
      longest_ns[i] = std::max(longest_ns[i], times[i]);
    }
  }
  return summary(longest_ns);
}

}  // namespace parley::tuning
