#include <parley/tuning/evidence.hpp>

#include <algorithm>
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
    std::vector<double> times_ns;
    for (const row& r : rows) {
      const auto& timed = asked.invocations;
      if (r.participant != p || std::find(timed.begin(), timed.end(), r.invocation) == timed.end()) continue;
      const aggregate_status seen = status_of(r, asked.digest);
      if (seen == aggregate_status::measured)
        times_ns.push_back(static_cast<double>(r.end_ns) - static_cast<double>(r.start_ns));
      if (mine.status == aggregate_status::missing || seen != aggregate_status::measured) mine.status = seen;
    }
    mine.repetitions = times_ns.size();
    mine.median_ns = median(std::move(times_ns));
    all.push_back(mine);
  }
  return all;
}

}  // namespace parley::tuning
