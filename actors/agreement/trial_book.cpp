#include <parley/actors/agreement/trial_book.hpp>

#include <algorithm>

namespace parley::actors {

namespace {
// No clock shows a later time. With larger times, differences of differences could overflow.
constexpr runtime::time_ns farthest_ns = runtime::time_ns{1} << 60U;
bool possible(runtime::time_ns t) noexcept { return t > -farthest_ns && t < farthest_ns; }
}  // namespace

tuning::row_status keep_row(std::vector<tuning::row>& rows, runtime::rank_id participant, std::uint64_t order,
                            const wire_row& r) {
  const bool measured = possible(r.start_ns) && possible(r.end_ns) && possible(r.previous_end_ns);
  if (!measured) {
    rows.push_back({participant, order, r.digest, 0, 0, tuning::row_status::failed});
    return tuning::row_status::failed;
  }
  const bool known_status = r.status <= 2 || r.status == late_row;
  const auto status = known_status ? static_cast<tuning::row_status>(r.status) : tuning::row_status::failed;
  rows.push_back({participant, order, r.digest, r.start_ns, r.end_ns, status, r.previous_end_ns, r.worked_ns});
  return status;
}

bool is_reported(const std::vector<tuning::row>& rows, runtime::rank_id participant, std::uint64_t order) noexcept {
  return std::any_of(rows.rbegin(), rows.rend(), [&](const tuning::row& seen) {
    return seen.participant == participant && seen.invocation == order;
  });
}

}  // namespace parley::actors
