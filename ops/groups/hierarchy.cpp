#include <parley/hierarchy.hpp>

#include <parley/ops/groups/group.hpp>
#include <parley/rank.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

runtime::result<std::vector<std::vector<rank_id>>> groups_of(const hierarchy_options& op, rank_id world_size) {
  if (op.leads && !op.leads(0))
    return error{errc::role_conflict,
                 "op " + op.name +
                     ": rank 0 does not lead, so the ranks before the first leader are in no group; change `leads`"};
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
  collective_options op_for(level which) const {
    constexpr std::array<std::pair<const char*, collective_kind>, 6> all{
        {{"inside", collective_kind::all_reduce},
         {"between", collective_kind::all_reduce},
         {"up inside", collective_kind::gather},
         {"up between", collective_kind::gather},
         {"down inside", collective_kind::broadcast},
         {"down between", collective_kind::broadcast}}};
    const auto& [words, does] = all[static_cast<std::size_t>(which)];
    const bool inside = is_inside(which);
    collective_options part;
    part.name = op.name + "/" + words;
    part.groups = inside ? several : std::vector<std::vector<rank_id>>{leaders};
    part.kind = does;
    part.configs.clear();
    const bool returns_later = which == level::inside && leaders.size() > 1;
    for (const auto& c : inside ? op.inside : op.between) {
      if (c == nullptr || (c->does(does) && (c->returns_later() || !returns_later))) part.configs.push_back(c);
    }
    if (part.configs.empty() && !(inside ? op.inside : op.between).empty())
      part.configs.push_back(configs::star());                                        // the only one for all kinds
    for (rank_id r = 0; r < self.world_size(); ++r) part.restart_group.push_back(r);  // all ranks start over, or none
    part.depth = op.depth;
    part.can_run = op.can_run;
    part.dtype = op.dtype;
    part.timeout = op.timeout;
    part.constraints = op.constraints;
    part.memory = op.memory;
    return part;
  }

  rank& self;
  hierarchy_options op;
  std::vector<std::vector<rank_id>> several{};  // the groups of more than one rank
  std::vector<rank_id> leaders{};
  std::array<std::optional<collective>, 6> declared{};
};

hierarchy::hierarchy(rank& self, const hierarchy_options& op) {
  name_ = op.name;
  self_ = self.id();
  world_size_ = self.world_size();
  pack_below_ = op.pack_below;
  levels_ = std::make_shared<hierarchy::levels>(hierarchy::levels{self, op});
  if (op.memory == &runtime::host_memory()) levels_->op.memory = nullptr;
  groups_ = groups_of(op, self.world_size()).value();
  for (const auto& group : groups_) {
    largest_ = std::max(largest_, group.size());
    leads_ = leads_ || group.front() == self.id();
    if (std::find(group.begin(), group.end(), self.id()) != group.end()) group_size_ = group.size();
    levels_->leaders.push_back(group.front());
    if (group.size() > 1) levels_->several.push_back(group);
  }
  if (has_group()) at(hierarchy::level::inside);
  if (among_leaders()) at(hierarchy::level::between);
}

collective& hierarchy::at(level which) {
  auto& found = levels_->declared[static_cast<std::size_t>(which)];
  if (found) return *found;
  // All levels restart together: otherwise a level that is declared now would be a call ahead of the others.
  const auto has_ended = [](const auto& part) { return part && !part->idle() && !part->details()->is_current(); };
  if (std::any_of(levels_->declared.begin(), levels_->declared.end(), has_ended))
    runtime::raise({errc::peer_restarted,
                    {.op = name_, .rank = self_},
                    "a rank of it has restarted; call rejoin on all others first"});
  found = collective(levels_->self, levels_->op_for(which));
  return *found;
}

bool hierarchy::rejoin() {
  bool any = false;
  for (auto& part : levels_->declared) any = (part && part->rejoin()) || any;
  return any;
}

// ---- the steps of a call ----------------------------------------------------------------------------------------------

std::vector<hierarchy::step> hierarchy::steps_of(collective_kind does, std::uint64_t bytes, std::uint64_t share) const {
  const step down_between{level::down_between, bytes};
  const step down_inside{level::down_inside, bytes};
  if (does == collective_kind::broadcast) return {down_between, down_inside};
  if (does == collective_kind::gather) {
    const step up_inside{level::up_inside, share * group_size()};
    const step up_between{level::up_between, share * largest_ * groups()};
    return {up_inside, up_between, down_between, down_inside};
  }
  return {{level::inside, bytes}, {level::between, bytes}};
}

// ---- agreement --------------------------------------------------------------------------------------------------------

std::vector<hierarchy::agreed_step> hierarchy::agreed_for(std::uint64_t bytes, collective_kind does) const {
  std::vector<agreed_step> all;
  for (const step& p : steps_of(does, bytes, bytes / world_size_)) {
    if (!has_part_in(p.which)) continue;
    const auto& declared = levels_->declared[static_cast<std::size_t>(p.which)];
    if (!declared)
      runtime::raise({errc::unavailable, "op " + name_ + ": rank " + std::to_string(self_) +
                                             " has made no such call yet, so there is no decision for it"});
    all.push_back({declared->agreed(), p.bytes});
  }
  return all;
}

std::vector<agreement> hierarchy::agreed(collective_kind does) const {
  std::vector<agreement> all;
  for (const agreed_step& p : agreed_for(0, does)) all.push_back(p.with);
  return all;
}

std::vector<decision> hierarchy::decision(std::uint64_t bytes, collective_kind does) const {
  std::vector<ops::decision> all;
  for (const agreed_step& p : agreed_for(bytes, does)) all.push_back(p.with.decision(p.bytes));
  return all;
}

task<std::vector<decision>> hierarchy::until_decided(std::vector<agreed_step> steps, decided_options o) {
  std::vector<ops::decision> all;
  for (const agreed_step& p : steps) {
    auto one = co_await p.with.decided(p.bytes, o);
    all.push_back(std::move(one));
  }
  co_return all;
}

// ---- one call ---------------------------------------------------------------------------------------------------------

/// The turns of one call, on the levels that this rank has a part in. The call takes all of them when it is made. If it took a turn only
/// when the previous level has ended, and groups finished their calls in different orders, the leaders would combine parts of different
/// calls.
class hierarchy::turns {
 public:
  turns(hierarchy& h, collective_call_options o)
      : all_(h), timeout_ns_((o.timeout.count() != 0 ? o.timeout : h.levels_->op.timeout).count()) {
    for (const auto& level : h.levels_->declared)
      if (level) runtime::check_call(h.levels_->self.where(), {"group", level->name_});
  }

  void take(collective_kind does, std::uint64_t bytes, std::uint64_t share, actors::call_type type) {
    for (const step& p : all_.steps_of(does, bytes, share)) take(p.which, p.bytes, type);
  }
  void take(const group_work& work) { take(collective_kind::all_reduce, work.total_bytes, 0, work.type); }
  bool has(level which) { return at(which) != nullptr; }
  /// Throws if a turn could not be taken. Called first inside the `try` block, so that its failure ends the other turns.
  void check() const {
    if (refused_) std::rethrow_exception(refused_);
  }
  task<> run(level which, group_work work) { return has(which) ? at(which)->run(std::move(work)) : nothing(); }
  /// Runs the turn among leaders as a part of the call inside the groups, which wait for it.
  task<> run_between(group_work work) { return at(level::inside)->run_within(*at(level::between), std::move(work)); }
  /// If the call failed here, tells the others on the levels that it has not reached, and throws.
  void end(const std::exception_ptr& thrown) {
    if (!thrown) return;
    actors::group_fault why{.why = errc::none, .culprit = all_.self_};
    try {
      std::rethrow_exception(thrown);
    } catch (const group_failure& f) {
      why = f.what_happened();
      why.why = f.code();
    } catch (...) {
      why.why = runtime::describe(thrown).code();
    }
    for (auto& turn : taken_) {
      if (turn) turn->forgo(why);
    }
    std::rethrow_exception(thrown);
  }

 private:
  void take(level which, std::uint64_t bytes, actors::call_type type) {
    const bool inside = is_inside(which);
    if (inside ? all_.largest_ < 2 : all_.groups() < 2) return;  // there is no such level
    const time_ns span = timeout_ns_ < runtime::never / 4 ? timeout_ns_ : 0;
    time_ns longer = span / 4 * levels_++;
    if (!all_.has_part_in(which)) return;
    // A worker also waits for everything that its leader waits for. The leader knows which rank is late, so its timeout must come first.
    if (which == level::inside && all_.groups() > 1 && !all_.has_part_in(level::between)) longer = span / 3;
    try {
      at(which) = std::make_unique<group_turn>(*all_.at(which).place_, bytes, type, timeout_ns_ + longer);
    } catch (...) {
      refused_ = std::current_exception();  // thrown by `check`, after other turns are taken
    }
  }
  static task<> nothing() { co_return; }
  std::unique_ptr<group_turn>& at(level which) { return taken_[static_cast<std::size_t>(which)]; }
  hierarchy& all_;
  time_ns timeout_ns_;
  time_ns levels_ = 0;
  std::exception_ptr refused_;
  std::array<std::unique_ptr<group_turn>, 6> taken_;
};

runtime::memory_space& hierarchy::memory() const noexcept {
  auto* const told = levels_->op.memory;
  return told == nullptr ? runtime::host_memory() : *told;
}

task<> hierarchy::copy(std::span<std::byte> to, std::span<const std::byte> from) {
  ++copies_;
  return memory().copy(to, from);
}

void hierarchy::check_place(std::span<const std::byte> buffer, std::size_t alignment) const {
  const auto there = memory().check(buffer, alignment);
  if (!there) runtime::raise({there.code(), "op " + name_ + ": " + there.reason().text()});
}

task<> hierarchy::reduce(group_work work, collective_call_options o, runtime::result<> fits) {
  check_on_device(levels_->op.memory, work, "op " + name_);
  turns mine(*this, o);
  mine.take(work);
  co_await reduce_in(mine, std::move(work), std::move(fits));
}

// All these calls take their turns before any of them starts, so that later calls come after all of them.
task<> hierarchy::reduce_together(std::vector<group_work> all, std::vector<std::span<std::byte>> packed,
                                  collective_call_options o) {
  for (const group_work& work : all) check_on_device(levels_->op.memory, work, "op " + name_);
  for (const auto& part : packed) check_place(part, runtime::bytes_of(all.back().sums));
  for (const auto& part : packed) all.back().total_bytes += part.size();
  runtime::scope& here = co_await runtime::this_scope;
  std::list<turns> taken;
  runtime::scope together(here);
  for (const group_work& work : all) taken.emplace_back(*this, o).take(work);
  auto mine = taken.begin();
  for (group_work& work : all) {
    if (&work == &all.back() && !packed.empty()) {
      together.spawn(reduce_packed(*mine++, std::move(work), std::move(packed)));
      break;
    }
    together.spawn(reduce_in(*mine++, std::move(work), {}));
  }
  co_await together.join();
}

namespace {

/// Copies within one memory space: `parts` into one piece, or back.
enum class packing : std::uint8_t { in, out };
task<> pack(runtime::memory_space* space, std::span<std::byte> one, const std::vector<std::span<std::byte>>* parts,
            packing way) {
  for (const std::span<std::byte> part : *parts) {
    const std::span<std::byte> there = one.first(part.size());
    one = one.subspan(part.size());
    if (way == packing::in) {
      co_await space->copy(there, part);
    } else {
      co_await space->copy(part, there);
    }
  }
}

}  // namespace

task<> hierarchy::reduce_packed(turns& mine, group_work work, std::vector<std::span<std::byte>> parts) {
  std::unique_ptr<runtime::memory_space::block> packed;
  runtime::result<> fits;
  try {
    packed = memory().make(work.total_bytes);
    work.data = packed->bytes();
    co_await pack(&memory(), work.data, &parts, packing::in);
  } catch (...) {
    fits = runtime::describe(std::current_exception());
  }
  const std::span<std::byte> one = work.data;
  co_await reduce_in(mine, std::move(work), std::move(fits));
  co_await pack(&memory(), one, &parts, packing::out);
  copies_ += 2 * parts.size();
}

task<> hierarchy::reduce_in(turns& mine, group_work work, runtime::result<> fits) {
  std::exception_ptr thrown;
  try {
    mine.check();
    if (!fits) runtime::raise(fits.reason());
    if (mine.has(level::inside) && mine.has(level::between)) {
      work.between = [&mine, with_leaders = work](std::span<std::byte> combined) {
        group_work again = with_leaders;
        again.data = combined;
        return mine.run_between(std::move(again));
      };
    }
    const level first = mine.has(level::inside) ? level::inside : level::between;
    co_await mine.run(first, std::move(work));
  } catch (...) {
    thrown = std::current_exception();
  }
  mine.end(thrown);
}

task<> hierarchy::give(group_work work, collective_call_options o) {
  check_on_device(levels_->op.memory, work, "op " + name_);
  turns mine(*this, o);
  mine.take(collective_kind::broadcast, work.total_bytes, 0, work.type);
  std::exception_ptr thrown;
  try {
    mine.check();
    co_await mine.run(level::down_between, work);
    co_await mine.run(level::down_inside, work);
  } catch (...) {
    thrown = std::current_exception();
  }
  mine.end(thrown);
}

task<> hierarchy::gather(std::span<const std::byte> mine, std::span<std::byte> all, collective::element of,
                         collective_call_options o) {
  check_place(mine);
  check_place(all);
  turns taken(*this, o);
  taken.take(collective_kind::gather, all.size(), mine.size(), of.type);
  std::exception_ptr thrown;
  try {
    taken.check();
    const auto fits = share_fits(mine.size() / of.bytes, all.size() / of.bytes, "all_gather");
    if (!fits) runtime::raise(fits.reason());
    co_await gather_in(taken, mine, all, of);
  } catch (...) {
    thrown = std::current_exception();
  }
  taken.end(thrown);
}

// Leaders gather the data of their groups, padded to the size of the largest group, so that all their blocks are equal.
task<> hierarchy::gather_in(turns& taken, std::span<const std::byte> mine, std::span<std::byte> all,
                            collective::element of) {
  const auto own = memory().make(mine.size());
  const auto group = memory().make(leads_ ? largest_ * mine.size() : 0);
  co_await copy(own->bytes(), mine);
  if (taken.has(level::up_inside)) {
    const std::span<std::byte> of_group = group->bytes().first(leads_ ? group_size() * mine.size() : 0);
    co_await taken.run(level::up_inside, at(level::up_inside).gathering(own->bytes(), of_group, of));
  } else {
    co_await copy(group->bytes().first(mine.size()), mine);
  }
  if (taken.has(level::up_between)) {
    const auto padded = memory().make(self_ == 0 ? groups() * group->bytes().size() : 0);
    co_await taken.run(level::up_between, at(level::up_between).gathering(group->bytes(), padded->bytes(), of));
    if (self_ == 0) co_await unpad(padded->bytes(), all, mine.size());
  } else if (leads_) {
    co_await copy(all, group->bytes().first(all.size()));
  }
  const group_work down = collective::giving(all, of);
  co_await taken.run(level::down_between, down);
  co_await taken.run(level::down_inside, down);
}

runtime::result<> hierarchy::share_fits(std::size_t share, std::size_t all, const char* what) const {
  if (share * world_size_ == all) return {};
  return error::in_words(errc::bad_argument, {.op = name_, .rank = self_},
                         "op " + name_ + ": rank " + std::to_string(self_) + " calls " + what + " with " +
                             std::to_string(share) + " elements of its own and " + std::to_string(all) +
                             " in all, but the latter must be " + std::to_string(world_size_) + " times as many");
}

task<> hierarchy::unpad(std::span<const std::byte> padded, std::span<std::byte> all, std::size_t share_bytes) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    std::size_t from = g * largest_ * share_bytes;
    for (const rank_id r : groups_[g]) {
      co_await copy(all.subspan(r * share_bytes, share_bytes), padded.subspan(from, share_bytes));
      from += share_bytes;
    }
  }
}

}  // namespace parley::ops
