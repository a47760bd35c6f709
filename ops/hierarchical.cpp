#include <parley/ops/hierarchical.hpp>
#include <parley/ops/rank.hpp>

#include <algorithm>
#include <cstring>

namespace parley::ops {

using runtime::errc;
using runtime::error;

runtime::result<std::vector<std::vector<rank_id>>> groups_of(const hierarchical& op, rank_id world_size) {
  if (op.leads && !op.leads(0))
    return error{errc::role_conflict, "op " + op.name +
                                          ": rank 0 does not lead, so that the ranks before the first leader are in no "
                                          "group; change `leads`"};
  std::vector<std::vector<rank_id>> groups;
  for (rank_id r = 0; r < world_size; ++r) {
    if (r == 0 || (op.leads && op.leads(r))) groups.emplace_back();
    groups.back().push_back(r);
  }
  return groups;
}

hierarchy rank::declare(const hierarchical& op) {
  const auto groups = groups_of(op, world_size()).value();
  hierarchy handle;
  handle.name_ = op.name;
  handle.self_ = id();
  handle.world_size_ = world_size();
  handle.groups_ = groups.size();
  std::vector<std::vector<rank_id>> several;
  std::vector<rank_id> leaders;
  for (const auto& group : groups) {
    handle.sizes_.push_back(group.size());
    handle.largest_ = std::max(handle.largest_, group.size());
    handle.leads_ = handle.leads_ || group.front() == id();
    leaders.push_back(group.front());
    if (group.size() > 1) several.push_back(group);
  }
  const auto level = [&](const std::string& which, collective does, const std::vector<std::vector<rank_id>>& members,
                         const std::vector<group_config_ptr>& configs) {
    leader_worker part;
    part.name = op.name + "/" + which;
    part.groups = members;
    part.does = does;
    part.configs.clear();
    for (const auto& c : configs) {
      if (c == nullptr || c->does(does)) part.configs.push_back(c);
    }
    if (part.configs.empty() && !configs.empty()) part.configs.push_back(star());  // the only one that does all
    part.depth = op.depth;
    part.capable = op.capable;
    part.dtype = op.dtype;
    part.timeout_ns = op.timeout_ns;
    part.allowed = op.allowed;
    return members.empty() ? rank_group() : declare(part);
  };
  const std::vector<std::vector<rank_id>> top =
      leaders.size() > 1 ? std::vector<std::vector<rank_id>>{leaders} : std::vector<std::vector<rank_id>>{};
  handle.inside_ = level("inside", collective::all_reduce, several, op.inside);
  handle.between_ = level("between", collective::all_reduce, top, op.between);
  handle.up_inside_ = level("up inside", collective::gather, several, op.inside);
  handle.up_between_ = level("up between", collective::gather, top, op.between);
  handle.down_inside_ = level("down inside", collective::broadcast, several, op.inside);
  handle.down_between_ = level("down between", collective::broadcast, top, op.between);
  return handle;
}

void hierarchy::check_share(std::size_t share, std::size_t all, const char* what) const {
  if (share * world_size_ == all) return;
  runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) + " calls " + what + " with " +
                                          std::to_string(share) + " elements of its own and " + std::to_string(all) +
                                          " in all, which have to be " + std::to_string(world_size_) +
                                          " times as many"});
}

void hierarchy::unpad(std::span<const std::byte> padded, std::span<std::byte> all, std::size_t share_bytes) const {
  std::byte* into = all.data();
  for (std::size_t g = 0; g < sizes_.size(); ++g) {
    const std::size_t bytes = sizes_[g] * share_bytes;
    if (bytes != 0) std::memcpy(into, padded.data() + g * largest_ * share_bytes, bytes);
    into += bytes;
  }
}

}  // namespace parley::ops
