#include <parley/ops/leased/shared_trials.hpp>

#include <parley/tuning/planners/decide.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace parley::ops {

using tuning::aggregate;
using tuning::infinite_ns;

namespace {

constexpr double alike_within = 0.15;

double time_of(const contextual_report& r, std::size_t config) {
  return config < r.average_ns.size() ? r.average_ns[config] : infinite_ns;
}

bool may_be_alike(const contextual_reporter& a, const contextual_reporter& b) {
  return *a.machine == *b.machine && a.report->digests == b.report->digests;
}

std::uint32_t next_group(const contextual_share& share) {
  std::uint32_t next = 0;
  for (const std::uint32_t g : share.group)
    if (g != contextual_share::none) next = std::max(next, g + 1);
  return next;
}

using group_members = std::vector<const contextual_reporter*>;

double usual_default_ns(const group_members& group) {
  std::vector<double> times;
  for (const contextual_reporter* m : group) times.push_back(time_of(*m->report, 0));
  return tuning::median(std::move(times));
}

std::map<std::uint32_t, group_members> groups_of(std::span<const contextual_reporter> all,
                                                 const contextual_share& share) {
  std::map<std::uint32_t, group_members> groups;
  for (const contextual_reporter& m : all) groups[share.group.at(m.member)].push_back(&m);
  return groups;
}

/// The group's time of the config with this digest. Infinite if it failed on a member, or if no member has measured it.
aggregate time_in(const group_members& group, double usual_default_ns, std::uint64_t digest) {
  std::vector<aggregate> measured;
  for (const contextual_reporter* m : group) {
    const contextual_report& r = *m->report;
    const auto at = static_cast<std::size_t>(std::find(r.digests.begin(), r.digests.end(), digest) - r.digests.begin());
    const double own_ns = time_of(r, at);
    if (own_ns == left_to_others_ns) continue;
    if (!(own_ns >= 0) || !std::isfinite(own_ns)) return {};
    const double scale = usual_default_ns / time_of(r, 0);
    aggregate a;
    a.status = tuning::aggregate_status::measured;
    a.time_ns = std::max(own_ns * scale, 1.0);
    a.spread_ns = at < r.spread_ns.size() ? r.spread_ns[at] * scale : 0;
    a.count = at < r.counts.size() ? r.counts[at] : 1;
    measured.push_back(std::move(a));
  }
  if (measured.empty()) return {};
  const auto middle = measured.begin() + static_cast<std::ptrdiff_t>(measured.size() / 2);
  std::nth_element(measured.begin(), middle, measured.end(),
                   [](const aggregate& a, const aggregate& b) { return a.time_ns < b.time_ns; });
  return *middle;
}

}  // namespace

void share_out(std::span<const contextual_reporter> all, std::size_t members, contextual_share& share) {
  const bool is_first = share.group.empty();
  share.group.resize(members, contextual_share::none);
  for (const contextual_reporter& one : all) {
    if (share.group[one.member] != contextual_share::none) continue;
    const std::uint32_t group = next_group(share);
    share.group[one.member] = group;
    if (!is_first) continue;
    for (const contextual_reporter& other : all)
      if (may_be_alike(one, other)) share.group[other.member] = group;
  }
}

bool part_unlike(std::span<const contextual_reporter> all, contextual_share& share) {
  if (std::exchange(share.is_checked, true)) return false;
  bool any = false;
  for (const auto& [number, group] : groups_of(all, share)) {
    const double usual_ns = usual_default_ns(group);
    for (const contextual_reporter* m : group) {
      if (std::abs(time_of(*m->report, 0) - usual_ns) <= alike_within * usual_ns || group.size() == 1) continue;
      share.group[m->member] = next_group(share);
      any = true;
    }
  }
  return any;
}

std::optional<contextual_part> part_of(const contextual_share& share, std::size_t member) {
  if (member >= share.group.size() || share.group[member] == contextual_share::none) return std::nullopt;
  contextual_part part{0, 0};
  for (std::size_t i = 0; i < share.group.size(); ++i) {
    if (share.group[i] != share.group[member]) continue;
    if (i < member) ++part.place;
    ++part.of;
  }
  return part;
}

contextual_best merge(std::span<const contextual_reporter> all, const contextual_share& share,
                      std::span<const runtime::rank_id> ranks, std::size_t most_rows) {
  const contextual_report& first = *all.front().report;
  contextual_best best{first.kernel, first.key, 0, infinite_ns, false};
  const auto has_default = [](const contextual_reporter& m) {
    const double ns = time_of(*m.report, 0);
    return ns > 0 && std::isfinite(ns);
  };
  if (!std::all_of(all.begin(), all.end(), has_default)) return best;
  std::vector<std::pair<group_members, double>> groups;  // with the usual time of the default
  for (const auto& [number, group] : groups_of(all, share)) groups.emplace_back(group, usual_default_ns(group));
  std::vector<aggregate> times;
  for (const std::uint64_t digest : first.digests) {
    aggregate longest;
    longest.time_ns = 0;
    for (const auto& [group, usual_ns] : groups) {
      const aggregate here = time_in(group, usual_ns, digest);
      if (here.time_ns > longest.time_ns) longest = here;
    }
    times.push_back(std::move(longest));
  }
  const tuning::decision chosen = tuning::decide(times);
  if (times[chosen.winner].measured()) {
    best.digest = first.digests[chosen.winner];
    best.latency_ns = times[chosen.winner].time_ns;
  }
  for (const contextual_reporter& m : all)
    for (std::size_t i = 0; i < m.report->digests.size() && best.rows.size() < most_rows; ++i) {
      const contextual_report& r = *m.report;
      if (const double ns = time_of(r, i); ns >= 0 && std::isfinite(ns))
        best.rows.push_back({ranks[m.member], r.digests[i], ns, i < r.spread_ns.size() ? r.spread_ns[i] : 0,
                             i < r.counts.size() ? r.counts[i] : 0});
    }
  return best;
}

}  // namespace parley::ops
