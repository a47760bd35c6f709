#include <parley/ops/hierarchical.hpp>

#include <parley/ops/rank.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;

runtime::result<std::vector<std::vector<rank_id>>> groups_of(const hierarchical& op, rank_id world_size) {
  if (op.leads && !op.leads(0))
    return error{errc::role_conflict, "op " + op.name +
                                          ": rank 0 does not lead, so that the ranks before the first leader are in no "
                                          "group; change `leads`"};
  if (op.leads && op.group_by)
    return error{errc::bad_argument, "op " + op.name + " has both `leads` and `group_by`; give one of them"};
  std::vector<std::vector<rank_id>> groups;
  if (op.group_by) {
    std::map<std::string, std::size_t> places;
    for (rank_id r = 0; r < world_size; ++r) {
      const auto [at, is_new] = places.try_emplace(op.group_by(r), groups.size());
      if (is_new) groups.emplace_back();
      groups[at->second].push_back(r);
    }
    return groups;
  }
  for (rank_id r = 0; r < world_size; ++r) {
    if (r == 0 || (op.leads && op.leads(r))) groups.emplace_back();
    groups.back().push_back(r);
  }
  return groups;
}

struct hierarchy::levels {
  leader_worker op_for(level which) const {
    constexpr std::array<std::pair<const char*, collective>, 6> all{{{"inside", collective::all_reduce},
                                                                     {"between", collective::all_reduce},
                                                                     {"up inside", collective::gather},
                                                                     {"up between", collective::gather},
                                                                     {"down inside", collective::broadcast},
                                                                     {"down between", collective::broadcast}}};
    const auto& [words, does] = all[static_cast<std::size_t>(which)];
    const bool inside = which == level::inside || which == level::up_inside || which == level::down_inside;
    leader_worker part;
    part.name = op.name + "/" + words;
    part.groups = inside ? several : std::vector<std::vector<rank_id>>{leaders};
    part.does = does;
    part.configs.clear();
    for (const auto& c : inside ? op.inside : op.between) {
      if (c == nullptr || c->does(does)) part.configs.push_back(c);
    }
    if (part.configs.empty() && !(inside ? op.inside : op.between).empty())
      part.configs.push_back(star());  // the only one that does all
    part.depth = op.depth;
    part.capable = op.capable;
    part.dtype = op.dtype;
    part.timeout_ns = op.timeout_ns;
    part.allowed = op.allowed;
    return part;
  }

  rank& self;
  hierarchical op;
  std::vector<std::vector<rank_id>> several{};  // the groups of more than one rank
  std::vector<rank_id> leaders{};
  std::array<std::optional<rank_group>, 6> declared{};
};

hierarchy rank::declare(const hierarchical& op) {
  hierarchy handle;
  handle.name_ = op.name;
  handle.self_ = id();
  handle.world_size_ = world_size();
  handle.levels_ = std::make_shared<hierarchy::levels>(hierarchy::levels{*this, op});
  const auto groups = groups_of(op, world_size()).value();
  handle.groups_ = groups;
  for (const auto& group : groups) {
    handle.largest_ = std::max(handle.largest_, group.size());
    handle.leads_ = handle.leads_ || group.front() == id();
    if (std::find(group.begin(), group.end(), id()) != group.end()) handle.group_size_ = group.size();
    handle.levels_->leaders.push_back(group.front());
    if (group.size() > 1) handle.levels_->several.push_back(group);
  }
  if (handle.has_group()) handle.at(hierarchy::level::inside);
  if (handle.among_leaders()) handle.at(hierarchy::level::between);
  return handle;
}

rank_group& hierarchy::at(level which) {
  auto& found = levels_->declared[static_cast<std::size_t>(which)];
  if (!found) found = levels_->self.declare(levels_->op_for(which));
  return *found;
}

void hierarchy::check_share(std::size_t share, std::size_t all, const char* what) const {
  if (share * world_size_ == all) return;
  runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) + " calls " + what + " with " +
                                          std::to_string(share) + " elements of its own and " + std::to_string(all) +
                                          " in all, which have to be " + std::to_string(world_size_) +
                                          " times as many"});
}

void hierarchy::unpad(std::span<const std::byte> padded, std::span<std::byte> all, std::size_t share_bytes) const {
  if (share_bytes == 0) return;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const std::byte* from = padded.data() + g * largest_ * share_bytes;
    for (const rank_id r : groups_[g]) {
      std::memcpy(all.data() + r * share_bytes, from, share_bytes);
      from += share_bytes;
    }
  }
}

}  // namespace parley::ops
