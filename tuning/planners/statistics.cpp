#include <parley/tuning/planners/statistics.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
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

/// By participant: the possible error of the times of its rows after conversion.
using clock_errors = std::map<std::uint32_t, double>;

/// The rows converted to one clock. The error is infinite for a participant whose clock is not known yet.
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
      if (r.previous_end_ns != 0) r.previous_end_ns = clock.offset->to_ours(r.previous_end_ns).ns;
      error_ns = std::max({error_ns, start.error_ns, end.error_ns});
    }
  }
  return all;
}

/// An error of one participant's clock changes a repetition by at most that error; the errors of two participants may add up.
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
  const auto [fastest, slowest] = std::minmax_element(times_ns.begin(), times_ns.end());
  a.fastest_ns = *fastest;
  a.slowest_ns = *slowest;
  a.status = aggregate_status::measured;
  return a;
}

/// Rows by invocation and participant; `contradicting` has the keys for which a participant reported different rows.
struct table {
  std::map<row_key, row> rows;
  std::map<row_key, int> contradicting;

  explicit table(std::span<const row> all) {
    for (const row& r : all) {
      const row_key key{r.invocation, r.participant};
      const auto [at, inserted] = rows.emplace(key, r);
      // Reports are repeated until they are acknowledged, so a row may arrive twice.
      if (!inserted && !(at->second == r)) contradicting[key] = 1;
    }
  }

  const row* find(std::uint64_t invocation, std::uint32_t participant) const {
    const auto at = rows.find({invocation, participant});
    return at == rows.end() ? nullptr : &at->second;
  }

  /// The last end of an invocation, among the reported ends.
  std::optional<std::int64_t> last_end(std::uint64_t invocation, std::span<const std::uint32_t> participants) const {
    std::optional<std::int64_t> latest;
    for (std::uint32_t p : participants) {
      const row* r = find(invocation, p);
      if (r != nullptr && (!latest || r->end_ns > *latest)) latest = r->end_ns;
    }
    return latest;
  }
};

/// The reason why this row does not count; empty if it counts.
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

/// Hostile rows may hold any integers, so a difference may overflow an integer.
double elapsed_ns(std::int64_t from, std::int64_t to) {
  const bool fits = from >= 0 ? to >= std::numeric_limits<std::int64_t>::min() + from
                              : to <= std::numeric_limits<std::int64_t>::max() + from;
  return fits ? static_cast<double>(to - from) : static_cast<double>(to) - static_cast<double>(from);
}

struct time_span {
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
  double ns() const { return elapsed_ns(start_ns, end_ns); }
};

/// The span from the last start to the last end.
time_span span_of(const table& reported, std::span<const std::uint32_t> participants, std::uint64_t invocation) {
  const row* first = reported.find(invocation, participants.front());
  time_span all{first->start_ns, first->end_ns};
  for (std::uint32_t p : participants) {
    const row* r = reported.find(invocation, p);
    all.start_ns = std::max(all.start_ns, r->start_ns);
    all.end_ns = std::max(all.end_ns, r->end_ns);
  }
  return all;
}

/// The longest time of one participant, from its first start to its last end.
double longest_ns(const table& reported, const repetitions& asked, std::span<const std::uint64_t> together) {
  double longest = 0;
  for (std::uint32_t p : asked.participants) {
    const row* r = reported.find(together.front(), p);
    time_span mine{r->start_ns, r->end_ns};
    for (std::uint64_t invocation : together) {
      r = reported.find(invocation, p);
      mine.start_ns = std::min(mine.start_ns, r->start_ns);
      mine.end_ns = std::max(mine.end_ns, r->end_ns);
    }
    longest = std::max(longest, mine.ns());
  }
  return longest;
}

/// The latest reported end of an earlier invocation. An end after the invocation's own end is ignored: that other invocation was not in a
/// queue ahead of this one.
std::optional<std::int64_t> end_before(const table& reported, std::span<const std::uint32_t> participants,
                                       std::uint64_t invocation, std::int64_t end_ns) {
  auto latest = invocation == 0 ? std::nullopt : reported.last_end(invocation - 1, participants);
  if (latest && *latest >= end_ns) latest.reset();
  for (std::uint32_t p : participants) {
    const std::int64_t previous_ns = reported.find(invocation, p)->previous_end_ns;
    if (previous_ns != 0 && previous_ns < end_ns && (!latest || previous_ns > *latest)) latest = previous_ns;
  }
  return latest;
}

/// The sum of `spans`, each counted from the end of the previous one.
double sum_in_order_of_ends(std::vector<time_span>& spans) {
  std::sort(spans.begin(), spans.end(), [](const time_span& a, const time_span& b) {
    return std::tie(a.end_ns, a.start_ns) < std::tie(b.end_ns, b.start_ns);
  });
  double sum_ns = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (i != 0) spans[i].start_ns = std::max(spans[i].start_ns, spans[i - 1].end_ns);
    sum_ns += std::max(spans[i].ns(), 0.0);
  }
  return sum_ns;
}

/// The latest start that one participant may have waited for. Only participants that began before this one ended count, as far as clocks
/// show. A participant that began later did not delay this one.
std::int64_t last_start_before(const table& reported, std::span<const std::uint32_t> participants,
                               std::uint64_t invocation, const row& mine, double error_ns) {
  std::int64_t latest = mine.start_ns;
  for (std::uint32_t p : participants) {
    const std::int64_t start_ns = reported.find(invocation, p)->start_ns;
    if (elapsed_ns(mine.end_ns, start_ns) <= error_ns) latest = std::max(latest, std::min(start_ns, mine.end_ns));
  }
  return latest;
}

/// The time that a participant has surely spent on its own, no matter which participant was late.
double own_ns(const table& reported, const repetitions& asked, std::uint32_t participant,
              std::span<const std::uint64_t> together, double error_ns) {
  std::vector<time_span> spans;
  double worked_ns = 0;
  time_span all{std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()};
  for (std::uint64_t invocation : together) {
    const row& mine = *reported.find(invocation, participant);
    time_span own{last_start_before(reported, asked.participants, invocation, mine, error_ns), mine.end_ns};
    const std::uint32_t only[] = {participant};
    auto before = end_before(reported, only, invocation, mine.end_ns);
    if (!before) before = end_before(reported, asked.participants, invocation, mine.end_ns);  // the best known value
    if (before) own.start_ns = std::max(own.start_ns, *before);
    spans.push_back(own);
    all = {std::min(all.start_ns, mine.start_ns), std::max(all.end_ns, mine.end_ns)};
    worked_ns += std::max(static_cast<double>(mine.worked_ns), 0.0);
  }
  return std::max(sum_in_order_of_ends(spans), std::min(worked_ns, all.ns()));
}

/// The time of one repetition; the mean, if its invocations were in flight together.
double repetition_ns(const table& reported, const repetitions& asked, std::span<const std::uint64_t> together,
                     double error_ns) {
  const auto share = static_cast<double>(together.size());
  if (asked.clock == clock_kind::separate) return longest_ns(reported, asked, together) / share;
  std::vector<time_span> spans;
  for (std::uint64_t invocation : together) {
    time_span one = span_of(reported, asked.participants, invocation);
    const auto before = end_before(reported, asked.participants, invocation, one.end_ns);
    if (before) one.start_ns = std::max(one.start_ns, *before);
    spans.push_back(one);
  }
  double most_ns = sum_in_order_of_ends(spans);
  for (std::uint32_t p : asked.participants)
    most_ns = std::max(most_ns, own_ns(reported, asked, p, together, error_ns));
  return most_ns / share;
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

std::string time_text(double time_ns) {
  if (time_ns >= 1e9) return fmt::format("{:.4g} s", time_ns / 1e9);
  if (time_ns >= 1e6) return fmt::format("{:.4g} ms", time_ns / 1e6);
  if (time_ns >= 1e3) return fmt::format("{:.4g} us", time_ns / 1e3);
  return fmt::format("{:.4g} ns", time_ns);
}

double median(std::vector<double> values) {
  if (values.empty()) return infinite_ns;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const double below = *std::max_element(values.begin(), middle);
  return below + (*middle - below) / 2;
}

std::span<const std::uint64_t> take_repetition(std::span<const std::uint64_t>& rest,
                                               std::span<const std::uint64_t> joined) {
  std::size_t together = 1;
  while (together < rest.size() && std::binary_search(joined.begin(), joined.end(), rest[together])) ++together;
  const auto taken = rest.first(together);
  rest = rest.subspan(together);
  return taken;
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
  for (auto rest = asked.invocations; !rest.empty();) {
    const auto together = take_repetition(rest, asked.joined);
    for (std::uint64_t invocation : together) {
      for (std::uint32_t p : asked.participants) {
        if (auto bad = fault_of(reported, asked, invocation, p)) return *std::move(bad);
      }
      if (compared && -span_of(reported, asked.participants, invocation).ns() > error_ns)
        return infinite(aggregate_status::inconsistent,
                        fmt::format("invocation {} ended before its last start: the clocks disagree", invocation));
    }
    const double time_ns = repetition_ns(reported, comparable, together, error_ns);
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
