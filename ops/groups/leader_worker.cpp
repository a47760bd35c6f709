#include <parley/leader_worker.hpp>

#include <parley/ops/core/op_host.hpp>
#include <parley/ops/groups/group.hpp>
#include <parley/rank.hpp>

#include <algorithm>
#include <set>

namespace parley::ops {

using runtime::errc;
using runtime::error;

std::vector<std::vector<rank_id>> groups_of(rank_id size, rank_id world_size) {
  std::vector<std::vector<rank_id>> groups;
  for (rank_id r = 0; r < world_size; ++r) {
    if (groups.empty() || groups.back().size() == std::max<rank_id>(size, 1)) groups.emplace_back();
    groups.back().push_back(r);
  }
  return groups;
}

runtime::result<std::vector<std::vector<actors::op_participant>>> form_groups(const leader_worker& op,
                                                                              rank_id world_size) {
  const std::string title = "op " + op.name;
  auto groups = op.groups;
  if (groups.empty()) {
    if (!op.role) return error{errc::bad_argument, title + " has neither a role function nor groups"};
    groups.emplace_back();
    for (rank_id r = 0; r < world_size; ++r) {
      if (op.role(r) != "idle") groups.back().push_back(r);
    }
    if (groups.back().empty())
      return error{errc::role_conflict, title + ": all ranks are idle; give one of them the role leader"};
  }
  std::set<rank_id> taken;
  std::vector<std::vector<actors::op_participant>> formed;
  for (const auto& group : groups) {
    auto& participants = formed.emplace_back();
    for (const rank_id r : group) {
      if (r >= world_size)
        return error{errc::bad_argument, title + " names rank " + std::to_string(r) + " outside the world of " +
                                             std::to_string(world_size) + "; ranks count from 0"};
      if (!taken.insert(r).second)
        return error{errc::role_conflict, title + ": rank " + std::to_string(r) + " is in two groups"};
      participants.push_back({r, op.role ? op.role(r) : r == group.front() ? "leader" : "worker"});
    }
    group_options check;
    check.name = op.name;
    check.participants = participants;
    check.does = op.does;
    check.configs = op.configs;
    check.depth = op.depth;
    const auto declared = declaration_of(check);
    if (!declared) return declared.reason();
  }
  return formed;
}

bool rank_group::leads() const noexcept { return !idle() && details()->leads(); }

std::size_t rank_group::size() const noexcept { return idle() ? 0 : details()->data_path().members().size(); }

const group_end* rank_group::details() const noexcept { return idle() ? nullptr : &*place_; }

runtime::task<> rank_group::run(collective what, group_work work, group_call_options o) const {
  return end(what).run(std::move(work), o.timeout_ns);
}

group_end& rank_group::end() const {
  if (idle())
    runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) +
                                            " is in no group of it; check the role function and the groups"});
  return *place_;
}

group_end& rank_group::end(collective wanted) const {
  group_end& mine = end();
  if (mine.does() != wanted)
    runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) + " calls " +
                                            std::string(ops::name(wanted)) + ", but the op was declared to " +
                                            std::string(ops::name(mine.does()))});
  return mine;
}

// Between combining and returning.
runtime::task<> rank_group::run_with_pause(group_work work, group_call_options o) const {
  group_end& mine = end(collective::all_reduce);
  for (const auto& config : mine.configs()) {
    if (config->returns_later()) continue;
    return mine.refuse(std::move(work), o.timeout_ns,
                       error::in_words(errc::bad_argument, {.op = name_, .rank = self_, .config = config->id()},
                                       "op " + name_ + ": config " + config->id() +
                                           " leaves nothing to be done in between, as every rank forms the sum itself; "
                                           "take it off the op's configs"));
  }
  return mine.run(std::move(work), o.timeout_ns);
}

agreement rank_group::agreed() const { return end().agreed(); }

bool rank_group::rejoin() { return !idle() && place_.rejoin(); }

group_work rank_group::giving(std::span<std::byte> data, element of) {
  group_work work;
  work.what = collective::broadcast;
  work.data = data;
  work.total_bytes = data.size();
  work.element_bytes = of.bytes;
  work.type = of.type;
  return work;
}

group_work rank_group::gathering(std::span<std::byte> mine, std::span<std::byte> all, element of) const {
  group_work work;
  work.what = collective::gather;
  work.total_bytes = mine.size() * size();
  work.element_bytes = of.bytes;
  work.type = of.type;
  work.data = leads() ? all : mine;
  const bool on_device = details()->device() != nullptr;
  if (leads() && on_device) work.own = mine;
  if (leads()) {
    const auto& members = details()->data_path().members();
    const auto place =
        static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), self_) - members.begin());
    const auto block = all.subspan(place * mine.size(), mine.size());
    if (block.data() != mine.data() && !on_device) std::copy(mine.begin(), mine.end(), block.begin());
  }
  return work;
}

runtime::task<> rank_group::gather(std::span<std::byte> mine, std::span<std::byte> all, element of,
                                   group_call_options o) const {
  group_end& by = end(collective::gather);
  if (leads() && all.size() != mine.size() * size()) {
    group_work refused;
    refused.total_bytes = mine.size() * size();
    refused.type = of.type;
    const runtime::error_facts about{
        .op = name_, .rank = self_, .whole_bytes = refused.total_bytes, .own_bytes = all.size()};
    return by.refuse(
        std::move(refused), o.timeout_ns,
        error::in_words(errc::bad_argument, about,
                        "op " + name_ + ": the leader gathers " + std::to_string(size()) + " times " +
                            std::to_string(mine.size()) + " bytes into a buffer of " + std::to_string(all.size())));
  }
  return by.run(gathering(mine, all, of), o.timeout_ns);
}

rank_group rank::declare(const leader_worker& op) {
  const auto groups = form_groups(op, world_size()).value();
  rank_group handle;
  handle.name_ = op.name;
  handle.self_ = id();
  for (const auto& participants : groups) {
    const auto me = [this](const auto& p) { return p.rank == id(); };
    if (std::none_of(participants.begin(), participants.end(), me)) continue;
    group_options o;
    o.name = op.name;
    o.participants = participants;
    o.does = op.does;
    o.configs = op.configs;
    o.depth = op.depth;
    o.coupled = op.coupled;
    o.capable = op.capable;
    o.dtype = op.dtype;
    o.timeout_ns = op.timeout_ns;
    o.on = &host_->machine_;
    o.allowed = tuning::both(op.allowed, settings_->allowed);
    o.memory = op.memory == &runtime::host_memory() ? nullptr : op.memory;
    const auto declared = declaration_of(o).value();
    host_->check_new(declared);
    o.policy = settings_->policy;
    o.plan = host_->plan_for(o.memory);
    o.window = settings_->window;
    o.mutant_ignores_stamp = settings_->mutant_ignores_stamp;
    o.remembered = host_->remember(declared, o.configs);
    handle.place_ = {*host_, host_->add(std::make_unique<group_end>(host_->services_, std::move(o)))};
    host_->note_group(declared);
    host_->end_if_lost();
  }
  if (handle.idle()) host_->note_idle(op.name);
  return handle;
}

}  // namespace parley::ops
