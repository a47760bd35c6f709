#include <parley/tuning/evidence.hpp>

#include <algorithm>
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

}  // namespace

std::vector<own_measurement> measured_by_each(std::span<const row> rows, const repetitions& asked) {
  std::vector<own_measurement> all;
  for (const std::uint32_t p : asked.participants) {
    own_measurement mine{.participant = p};
    if (asked.invocations.empty()) mine.status = aggregate_status::not_tried;
    std::map<std::uint64_t, const row*> of_participant;  // by invocation, the first of each
    for (const row& r : rows) {
      if (r.participant == p) of_participant.emplace(r.invocation, &r);
    }
    std::vector<double> times_ns;
    for (auto rest = asked.invocations; !rest.empty();) {
      std::optional<std::pair<double, double>> span_ns;
      std::size_t went_well = 0;
      const auto together = take_repetition(rest, asked.joined);
      for (const std::uint64_t invocation : together) {
        const auto at = of_participant.find(invocation);
        if (at == of_participant.end()) continue;
        const row& r = *at->second;
        const aggregate_status seen = status_of(r, asked.digest);
        if (mine.status == aggregate_status::missing || seen != aggregate_status::measured) mine.status = seen;
        if (seen != aggregate_status::measured) continue;
        ++went_well;
        const std::pair mine_ns{static_cast<double>(r.start_ns), static_cast<double>(r.end_ns)};
        if (!span_ns) span_ns = mine_ns;
        span_ns = {std::min(span_ns->first, mine_ns.first), std::max(span_ns->second, mine_ns.second)};
      }
      if (went_well == together.size()) times_ns.push_back((span_ns->second - span_ns->first) / double(went_well));
    }
    mine.repetitions = times_ns.size();
    mine.median_ns = median(std::move(times_ns));
    all.push_back(mine);
  }
  return all;
}

}  // namespace parley::tuning
