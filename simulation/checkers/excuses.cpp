#include <parley/simulation/checkers/excuses.hpp>

#include <algorithm>
#include <string_view>

namespace parley::simulation {

namespace {

template <class Is>
bool befalls(const run_record& r, const std::vector<rank_id>& members, const Is& is_such) {
  return std::any_of(r.faults->mishaps.begin(), r.faults->mishaps.end(), [&](const mishap& m) {
    return is_such(m) && std::find(members.begin(), members.end(), m.rank) != members.end();
  });
}

}  // namespace

bool deaths(const run_record& r, const std::vector<rank_id>& members) {
  return befalls(r, members, [&](const mishap& m) { return m.is_death(r.play->detection_ns); });
}

bool returns(const run_record& r, const std::vector<rank_id>& members) {
  return befalls(r, members, [](const mishap& m) { return m.what == mishap::kind::restart; });
}

bool parted(const run_record& r, const std::vector<rank_id>& members) {
  if (r.play->link.fence != link_model::fences::fail) return false;
  const auto takes_part = [&](rank_id m) { return std::find(members.begin(), members.end(), m) != members.end(); };
  return std::any_of(r.play->ops.begin(), r.play->ops.end(), [&](const op_spec& op) {
    const auto puts = [](const std::string& config) { return config.starts_with("put"); };
    return std::any_of(op.configs.begin(), op.configs.end(), puts) &&
           std::count_if(op.members.begin(), op.members.end(), takes_part) >= 2;
  });
}

bool deaf(const run_record& r, const std::vector<rank_id>& members) {
  const auto& other = r.play->other_version;
  const auto is_other = [&](rank_id m) { return std::find(other.begin(), other.end(), m) != other.end(); };
  return std::any_of(members.begin(), members.end(), is_other) &&
         !std::all_of(members.begin(), members.end(), is_other);
}

bool may_lose_a_member(const run_record& r, const std::vector<rank_id>& members) {
  return deaths(r, members) || parted(r, members);
}

bool may_disagree(const run_record& r, const std::vector<rank_id>& members) {
  return may_lose_a_member(r, members) || deaf(r, members);
}

bool any_ended(const std::vector<const participant_view*>& members) {
  return std::any_of(members.begin(), members.end(), [](const participant_view* p) { return p->ended; });
}

bool is_broken(const op_spec& op) {
  return std::any_of(op.configs.begin(), op.configs.end(), [](std::string_view config) {
    return config.starts_with("failing") || config.starts_with("corrupting") || config.starts_with("hanging") ||
           config.starts_with("torn");
  });
}

}  // namespace parley::simulation
