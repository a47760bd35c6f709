#include <parley/tuning/planners/evidence.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace parley::tuning {

namespace {

aggregate_status status_of(const row& r, std::uint64_t digest) {
  if (r.digest != digest) return aggregate_status::mismatched;
  if (r.status == row_status::failed) return aggregate_status::failed;
  if (r.status == row_status::wrong_data) return aggregate_status::wrong_data;
  return r.end_ns < r.start_ns ? aggregate_status::inconsistent : aggregate_status::measured;
}

using own_rows = std::map<std::uint64_t, const row*>;  // of one participant, by invocation; the first of each

own_rows rows_of(std::uint32_t participant, std::span<const row> rows) {
  own_rows mine;
  for (const row& r : rows) {
    if (r.participant == participant) mine.emplace(r.invocation, &r);
  }
  return mine;
}

/// One invocation's share of the time from the first start to the last end, if all invocations succeeded. `status`: the worst status so
/// far.
std::optional<double> share_ns(const own_rows& mine, std::span<const std::uint64_t> together, std::uint64_t digest,
                               aggregate_status& status) {
  double first_ns = infinite_ns, last_ns = -infinite_ns;
  std::size_t went_well = 0;
  for (const std::uint64_t invocation : together) {
    const auto at = mine.find(invocation);
    if (at == mine.end()) continue;
    const row& r = *at->second;
    const aggregate_status seen = status_of(r, digest);
    if (status == aggregate_status::missing || seen != aggregate_status::measured) status = seen;
    if (seen != aggregate_status::measured) continue;
    ++went_well;
    first_ns = std::min(first_ns, static_cast<double>(r.start_ns));
    last_ns = std::max(last_ns, static_cast<double>(r.end_ns));
  }
  if (went_well != together.size()) return std::nullopt;
  return (last_ns - first_ns) / static_cast<double>(went_well);
}

own_measurement measured_by(std::uint32_t participant, std::span<const row> rows, const repetitions& asked) {
  own_measurement mine{.participant = participant};
  if (asked.invocations.empty()) mine.status = aggregate_status::not_tried;
  const own_rows reported = rows_of(participant, rows);
  std::vector<double> times_ns;
  for (auto rest = asked.invocations; !rest.empty();) {
    const auto together = take_repetition(rest, asked.joined);
    if (const auto share = share_ns(reported, together, asked.digest, mine.status)) times_ns.push_back(*share);
  }
  mine.repetitions = times_ns.size();
  mine.median_ns = median(times_ns);
  if (times_ns.empty()) return mine;
  mine.fastest_ns = *std::min_element(times_ns.begin(), times_ns.end());
  for (double& t : times_ns) t = std::abs(t - mine.median_ns);
  mine.spread_ns = median(std::move(times_ns));
  return mine;
}

}  // namespace

std::vector<own_measurement> measured_by_each(std::span<const row> rows, const repetitions& asked) {
  std::vector<own_measurement> all;
  for (const std::uint32_t p : asked.participants) all.push_back(measured_by(p, rows, asked));
  return all;
}

}  // namespace parley::tuning
