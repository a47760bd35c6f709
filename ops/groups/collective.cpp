#include <parley/collective.hpp>

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

namespace {
/// The options that all ranks of one of the op's groups declare alike.
group_options group_of(const collective_options& op, const std::vector<actors::op_participant>& participants) {
  group_options o;
  o.name = op.name;
  o.participants = participants;
  o.kind = op.kind;
  o.configs = op.configs;
  o.depth = op.depth;
  return o;
}
}  // namespace

runtime::result<std::vector<std::vector<actors::op_participant>>> form_groups(const collective_options& op,
                                                                              rank_id world_size) {
  const std::string title = "op " + op.name;
  if (const auto timed = check_timeout(op.name, op.timeout); !timed) return timed.reason();
  auto groups = op.groups;
  if (groups.empty()) {
    groups.emplace_back();
    for (rank_id r = 0; r < world_size; ++r) {
      if (!op.role || op.role(r) != role::idle) groups.back().push_back(r);
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
      const role its = op.role ? op.role(r) : r == group.front() ? role::leader : role::worker;
      participants.push_back({r, std::string(name(its))});
    }
    const auto declared = declaration_of(group_of(op, participants));
    if (!declared) return declared.reason();
  }
  return formed;
}

bool collective::leads() const noexcept { return !idle() && details()->leads(); }

std::size_t collective::size() const noexcept { return idle() ? 0 : details()->data_path().members().size(); }

const group_end* collective::details() const noexcept { return idle() ? nullptr : &*place_; }

runtime::task<> collective::run(collective_kind what, group_work work, collective_call_options o) const {
  return end(what).run(std::move(work), o.timeout.count());
}

group_end& collective::end() const {
  if (idle())
    runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) +
                                            " is in no group of it; check the role function and the groups"});
  return *place_;
}

group_end& collective::end(collective_kind wanted) const {
  group_end& mine = end();
  if (mine.does() != wanted)
    runtime::raise({errc::bad_argument, "op " + name_ + ": rank " + std::to_string(self_) + " calls " +
                                            std::string(ops::name(wanted)) + ", but the op was declared to " +
                                            std::string(ops::name(mine.does())) + "; set `.kind` in its options"});
  return mine;
}

// Runs an all-reduce with a pause between combining and returning.
runtime::task<> collective::run_with_pause(group_work work, collective_call_options o) const {
  group_end& mine = end(collective_kind::all_reduce);
  for (const auto& config : mine.configs()) {
    if (config->returns_later()) continue;
    return mine.refuse(
        std::move(work), o.timeout.count(),
        error::in_words(errc::bad_argument, {.op = name_, .rank = self_, .config = config->id()},
                        "op " + name_ + ": config " + config->id() +
                            " cannot run a step between its passes, because every rank forms the sum itself; "
                            "remove it from the op's configs"));
  }
  return mine.run(std::move(work), o.timeout.count());
}

agreement collective::agreed() const { return end().agreed(); }

bool collective::rejoin() { return !idle() && place_.rejoin(); }

group_work collective::giving(std::span<std::byte> data, element of) {
  group_work work;
  work.what = collective_kind::broadcast;
  work.data = data;
  work.total_bytes = data.size();
  work.element_bytes = of.bytes;
  work.type = of.type;
  return work;
}

group_work collective::gathering(std::span<std::byte> mine, std::span<std::byte> all, element of) const {
  group_work work;
  work.what = collective_kind::gather;
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

runtime::task<> collective::gather_bytes(std::span<std::byte> mine, std::span<std::byte> all, element of,
                                         collective_call_options o) const {
  group_end& by = end(collective_kind::gather);
  if (leads() && all.size() != mine.size() * size()) {
    group_work refused;
    refused.total_bytes = mine.size() * size();
    refused.type = of.type;
    const runtime::error_facts about{
        .op = name_, .rank = self_, .whole_bytes = refused.total_bytes, .own_bytes = all.size()};
    return by.refuse(
        std::move(refused), o.timeout.count(),
        error::in_words(errc::bad_argument, about,
                        "op " + name_ + ": the leader gathers " + std::to_string(size()) + " times " +
                            std::to_string(mine.size()) + " bytes into a buffer of " + std::to_string(all.size())));
  }
  return by.run(gathering(mine, all, of), o.timeout.count());
}

collective::collective(rank& self, const collective_options& op) {
  op_host& host = op_host::of(self);
  const auto groups = form_groups(op, self.world_size()).value();
  name_ = op.name;
  self_ = self.id();
  for (const auto& participants : groups) {
    const auto me = [&self](const auto& p) { return p.rank == self.id(); };
    if (std::none_of(participants.begin(), participants.end(), me)) continue;
    group_options o = group_of(op, participants);
    o.restart_group = op.restart_group;
    o.can_run = op.can_run;
    o.dtype = op.dtype;
    o.timeout_ns = op.timeout.count();
    o.on = &host.machine_;
    o.constraints = tuning::both(op.constraints, host.settings_->constraints);
    o.memory = op.memory == &runtime::host_memory() ? nullptr : op.memory;
    const auto declared = declaration_of(o).value();
    host.check_new(declared);
    o.policy = host.settings_->policy;
    o.plan = host.plan_for(o.memory);
    o.window = host.settings_->window;
    o.mutant_ignores_stamp = host.settings_->mutant_ignores_stamp;
    o.remembered = host.remember(declared, o.configs);
    place_ = {host, host.add(std::make_unique<group_end>(host.services_, std::move(o)))};
    host.note_group(declared);
    host.end_if_lost();
  }
  if (idle()) host.note_idle(op.name);
}

}  // namespace parley::ops
