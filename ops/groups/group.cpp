#include <parley/ops/groups/group.hpp>

#include <parley/actors/inquiries.hpp>
#include <parley/actors/rank_list.hpp>
#include <parley/ops/core/call_error.hpp>
#include <parley/ops/core/call_type.hpp>
#include <parley/ops/core/scratch_guard.hpp>
#include <parley/ops/edges/edge_end.hpp>
#include <parley/ops/groups/rehearsed_sums.hpp>
#include <parley/runtime/finally.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace parley::ops {

using actors::group_invocation;
using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::task;

namespace {

// Several pieces in configs with small pieces, and more than UCX's rendezvous threshold.
constexpr std::size_t rehearsal_elements = 20'000;
constexpr std::uint64_t deepest = 256;

std::uint32_t pattern(std::uint64_t digest, std::size_t place, std::size_t at) noexcept {
  return static_cast<std::uint32_t>((digest >> (at % 31)) + (place + 1) * (at + 1));
}

// A call of 0 bytes moves no data, but its messages are sent: the leader receives from all contributors, and replies to all members.
task<> move_nothing(group_call& g) {
  const bool collects = g.what() != collective_kind::broadcast;
  if (g.self() == g.leader()) {
    for (std::size_t p = 0; p < g.size() && collects; ++p) {
      if (p != g.self()) g.receive(p, 0, {});
    }
    co_await g.drain();
    if (collects) co_await g.between();
    for (std::size_t p = 0; p < g.size(); ++p) {
      if (p != g.self()) g.send(p, 0, {});
    }
  } else {
    if (collects) g.send(g.leader(), 0, {});
    g.receive(g.leader(), 0, {});
  }
  co_await g.drain();
}

std::vector<rank_id> ranks_of(const actors::op_declaration& op) {
  std::vector<rank_id> ranks;
  for (const auto& p : op.participants) ranks.push_back(p.rank);
  return ranks;
}

}  // namespace

runtime::result<actors::op_declaration> declaration_of(const group_options& o) {
  const std::string title = "op " + o.name;
  std::vector<rank_id> leaders;
  std::vector<rank_id> all;
  for (const auto& p : o.participants) {
    if (p.role == "leader") leaders.push_back(p.rank);
    all.push_back(p.rank);
    if (p.role != "leader" && p.role != "worker")
      return error{errc::bad_argument, title + ": rank " + std::to_string(p.rank) + " has the role \"" + p.role +
                                           "\"; roles are leader, worker and idle"};
  }
  if (leaders.size() != 1)
    return error{errc::role_conflict,
                 title + ": " + (leaders.empty() ? "no rank leads" : actors::listed(leaders) + " all claim to lead") +
                     " the group of " + actors::listed(all) +
                     "; give exactly one of them the role leader, or list the groups"};
  if (o.depth > deepest || (o.depth == 0 && o.kind != collective_kind::broadcast))
    return error{errc::bad_argument, title + ": a depth of " + std::to_string(o.depth) + " is impossible for " +
                                         std::string(name(o.kind)) + "; take 1 to " + std::to_string(deepest) +
                                         ", or 0 for broadcast, whose first message is the leader's"};
  if (o.configs.empty())
    return error{errc::bad_argument, title + " has an empty catalogue; list at least its default config"};
  for (std::size_t i = 0; i < o.configs.size(); ++i) {
    if (o.configs[i] == nullptr)
      return error{errc::bad_argument, title + ": config " + std::to_string(i) + " of its catalogue is null"};
    if (!o.configs[i]->does(o.kind))
      return error{errc::bad_argument,
                   title + ": config " + o.configs[i]->id() + " does not " + std::string(name(o.kind))};
  }
  auto op = actors::declare_group(o.name, o.participants, o.depth, o.dtype);
  op.scheme += " " + std::string(name(o.kind));
  for (std::size_t i = 1; i < op.participants.size(); ++i) {
    if (op.participants[i].rank == op.participants[i - 1].rank)
      return error{errc::role_conflict,
                   title + ": rank " + std::to_string(op.participants[i].rank) + " is in one group twice"};
  }
  op.default_config = o.configs.front()->id();
  op.default_digest = o.configs.front()->digest();
  return op;
}

group_end::leading::leading(const group_options& o, const actors::op_declaration& op, std::vector<rank_id> members)
    : assigned(op.default_digest, op.default_config, o.dtype, std::move(members), o.policy, o.plan) {
  coordinator.declaration = op;
  coordinator.assigned = &assigned;
}

group_end::group_end(actors::services& s, group_options o) : op_end(kind::group), services_(s), options_(std::move(o)) {
  participant_.declaration = declaration_of(options_).value();
  const auto& op = participant_.declaration;
  participant_.generation = actors::first_generation(op, s.incarnations, options_.restart_group);
  participant_.configs = catalogue_of(op.title(), options_.configs);
  auto can =
      capabilities_of(op.title(), s.net.rank(), options_.on, options_.configs, options_.can_run, options_.constraints,
                      [&](const group_config& c) { return c.demands_of(options_.kind, op.participants.size()); });
  participant_.available = std::move(can.available);
  participant_.unavailable = std::move(can.missing);
  participant_.limits = std::move(can.limits);
  participant_.faults = std::move(can.faults);
  participant_.role = op.leader == s.net.rank() ? "leader" : "worker";
  participant_.remembered = options_.remembered;
  participant_.policy = options_.policy;
  participant_.runs = this;
  if (participant_.role == "leader") {
    lead_ = std::make_unique<leading>(options_, op, ranks_of(op));
    participant_.assigned = &lead_->assigned;
    lead_->assigned.ask_shapes([this](std::uint64_t digest, std::uint64_t bytes) {
      const group_config* const config = find(digest);
      return config == nullptr ? std::string() : config->shape(bytes);
    });
    lead_->coordinator.generation = participant_.generation;
    lead_->coordinator.configs = participant_.configs;
    const auto pressure = options_.kind == collective_kind::broadcast ? actors::back_pressure::window
                                                                      : actors::back_pressure::contributions;
    auto leader = std::make_unique<actors::group_leader>(s, op, participant_.generation, lead_->assigned,
                                                         options_.depth, pressure, options_.window);
    if (options_.constraints.compare_trials) leader->compare_trials();
    group_ = std::move(leader);
    lead_->actor = actors::spawn_coordinator(services_, lead_->coordinator);
  } else {
    auto worker = std::make_unique<actors::group_worker>(s, op, participant_.generation, options_.depth);
    if (options_.mutant_ignores_stamp) worker->ignore_stamps();
    group_ = std::move(worker);
  }
  group_->on_late_soon(services_.asked_before(options_.timeout_ns),
                       [this](const std::vector<rank_id>& late) { ask_late(late); });
  participant_.rows = &group_->rows();
  participant_.rows->set_measuring(options_.policy == actors::tuning_policy::online);
  actors::spawn_participant(services_, participant_);
  group_->on_overflow([this] {
    refuse_overflow("more than " + std::to_string(actors::unclaimed_room::most_parts) + " parts, or " +
                    std::to_string(actors::unclaimed_room::most_bytes) +
                    " bytes, arrived for calls that this rank has not begun; begin the calls earlier, or send less, or "
                    "fewer and larger parts, ahead");
  });
  if (services_.data.has_lost(op.id(), participant_.generation))
    refuse_overflow("more than " + std::to_string(services_.early_bytes) +
                    " bytes arrived before this rank declared their ops; declare the ops earlier, or send less, or "
                    "fewer and larger parts, before that declaration");
}

void group_end::refuse_overflow(const std::string& what) {
  const error why{errc::full, about(), what};
  fail(why);
  actors::op_reject word;
  word.code = static_cast<std::uint8_t>(why.code());
  word.text = why.text();
  for (const rank_id r : group_->members()) {
    if (r == services_.net.rank()) continue;
    static_cast<void>(services_.mail.send(r, actors::number_of(declaration().id(), actors::part::participant),
                                          participant_.generation, word));
  }
}

group_end::~group_end() { static_cast<void>(retire()); }

std::vector<runtime::arrival> group_end::retire() noexcept {
  if (!std::exchange(retired_, true)) {
    actors::unbind_participant(services_, participant_);
    participant_.actor.stop();
    if (lead_ != nullptr) {
      actors::unbind_coordinator(services_, lead_->coordinator);
      lead_->actor.stop();
    }
  }
  return group_->retire();
}

bool group_end::is_current() const {
  return participant_.generation ==
         actors::first_generation(declaration(), services_.incarnations, options_.restart_group);
}

bool group_end::restarts_with(rank_id r) const noexcept {
  return ends_with(r) ||
         std::find(options_.restart_group.begin(), options_.restart_group.end(), r) != options_.restart_group.end();
}

std::unique_ptr<group_end> group_end::next_generation() {
  auto early = retire();
  auto next = std::make_unique<group_end>(services_, options_);
  if (group_->has_lost_unjoined())
    next->refuse_overflow("more messages of this generation arrived than a rank keeps before it joins; rejoin earlier, "
                          "or wait for the other ranks before the first calls");
  for (runtime::arrival& m : early) services_.data.on_arrival(std::move(m));
  return next;
}

bool group_end::ends_with(rank_id r) const noexcept {
  const auto& members = group_->members();
  return std::binary_search(members.begin(), members.end(), r);
}

const group_config* group_end::find(std::uint64_t digest) const noexcept {
  digest = participant_.variant_of(digest);
  for (const auto& c : options_.configs) {
    if (c->digest() == digest) return c.get();
  }
  return nullptr;
}

std::string group_end::progress_in_words(std::uint32_t) const {
  return "has made " + std::to_string(group_->next_invocation() - services_.first_invocation) + " calls of it";
}

void group_end::list_left_over(std::vector<std::string>& lines) {
  if (!settled())
    lines.push_back(declaration().title() + ", on rank " + std::to_string(services_.net.rank()) +
                    ": some of its ranks have not taken all messages that were sent to them; let all ranks run the "
                    "same invocations before they return");
}

void group_end::fail(const error& why) noexcept {
  // `fenced` replaces an earlier error, because this rank's earlier losses no longer count. `peer_restarted` also replaces one, because a
  // new process has come.
  if (failed_ && why.code() != errc::fenced && why.code() != errc::peer_restarted) return;
  failed_ = why;
  participant_.changed.tell();
  group_->fail(why.code(), why.began_with() == nullptr ? services_.net.rank() : why.began_with()->rank);
}

const group_config& group_end::config_for(const group_invocation& inv) const {
  const std::uint64_t digest = inv.config();
  const bool warmed = inv.rehearsal() || participant_.may_run(digest);
  const group_config* config = find(digest);
  if (leads())
    runtime::invariant(config != nullptr && warmed,
                       {"S3", "only what was warmed here is assigned", {group_->op(), services_.net.rank()}});
  if (config == nullptr || !warmed) {  // the poison that follows serves as the nack
    runtime::blame({"S3", "only what was warmed here is stamped", {group_->op(), services_.net.rank()}},
                   group_->leader());
    runtime::raise({errc::config_mismatch, "the stamp names a config that this rank has not warmed"});
  }
  return *config;
}

task<> group_end::role_in(group_call& call, const group_config& config, const group_work& work) const {
  if (work.total_bytes == 0) return move_nothing(call);
  if (leads()) return config.lead(call);
  return config.work(call);
}

void group_end::check_between(const group_call& call, const group_config& config, const group_work& work) const {
  if (leads() && work.between && !call.between_ran())
    runtime::raise({errc::config_failed, "config " + config.id() + " did not run the step between its passes"});
}

void group_end::ask_late(const std::vector<rank_id>& late) const {
  constexpr std::size_t most_asked = 4;
  for (std::size_t i = 0; i < std::min(late.size(), most_asked); ++i)
    actors::ask_what_it_does(services_, declaration(), participant_.generation, late[i], 0);
}

void group_end::list_waiting(runtime::waiting_list& all) {
  runtime::waiting_call of;
  of.what = leads() ? "lead" : "work";
  of.op = declaration().title();
  of.id = declaration().id();
  of.generation = participant_.generation;
  group_->list_waiting(of, all);
}

std::size_t group_end::place() const noexcept {
  const auto& members = group_->members();
  return static_cast<std::size_t>(std::lower_bound(members.begin(), members.end(), services_.net.rank()) -
                                  members.begin());
}

// ---- comparing --------------------------------------------------------------------------------------------------------

/// The two runs of a compared invocation, with their data.
struct group_end::comparison {
  comparison(const group_work& work, runtime::memory_space* on) : device(on), right(work), tried(work) {}
  runtime::memory_space& memory() const noexcept { return device == nullptr ? runtime::host_memory() : *device; }
  task<> begin(bool leads, std::size_t place, std::size_t members) {
    data.resize(right.data.size());
    co_await memory().copy(data, right.data);
    // Clears the memory for the candidate's result, so that the right data cannot be there by chance.
    const auto blank = [](std::span<std::byte> part) {
      for (std::byte& b : part) b = ~b;
    };
    if (right.what == collective_kind::broadcast && !leads) blank(data);
    if (right.what == collective_kind::gather && leads) {
      const std::size_t block = data.size() / members;
      blank(std::span(data).first(place * block));
      blank(std::span(data).subspan((place + 1) * block));
    }
    tried.data = data;
    if (device == nullptr) co_return;
    there = device->make(data.size());
    tried.data = there->bytes();
    co_await device->copy(tried.data, data);
  }
  /// In the default's run: keeps the combined data, then does the leader's work between combining and returning.
  task<> keep_and_do(std::span<std::byte> brought, const between_function* does) {
    combined.resize(brought.size());
    co_await memory().copy(combined, brought);
    co_await (*does)(brought);
  }
  /// In the candidate's run: compares the combined data with the default's, then replaces it with the result of the leader's work.
  task<> note_and_replace(std::span<std::byte> brought) {
    std::vector<std::byte> came(brought.size());
    co_await memory().copy(came, brought);
    note(came, combined);
    co_await memory().copy(brought, right.data);
  }
  void note(std::span<const std::byte> candidates, std::span<const std::byte> defaults) {
    if (!unlike) unlike = tuning::first_unlike(right.numbers, candidates, defaults, within);
  }
  runtime::memory_space* device;
  std::vector<std::byte> data;                          // the candidate's copy of the caller's buffer
  std::unique_ptr<runtime::memory_space::block> there;  // that copy, on a device
  std::vector<std::byte> combined;  // the default's combined data, before the leader's work in between
  group_work right;
  group_work tried;
  tuning::numerical_check within;
  std::optional<group_call> first;
  std::optional<group_call> second;
  std::optional<tuning::unlike_number> unlike;
};

// Runs the default first, in the caller's buffer: so the caller has the right result even if the candidate fails. The leader's work in
// between is done once, and the candidate's run reuses its result.
task<> group_end::run_both(group_invocation& inv, const group_config& config, comparison& with) {
  const auto& members = group_->members();
  const rank_id me = services_.net.rank();
  if (with.right.between) {
    with.right.between = [&with, does = with.tried.between](std::span<std::byte> data) {
      return with.keep_and_do(data, &does);
    };
    with.tried.between = [&with](std::span<std::byte> data) { return with.note_and_replace(data); };
  }
  const group_config& standard = *options_.configs.front();
  if (with.device != nullptr) co_await bring_in(with.right);
  co_await with.begin(leads(), place(), members.size());
  with.first.emplace(inv, members, me, group_->leader(), with.right, group_call::pass::first, with.device);
  co_await role_in(*with.first, standard, with.right);
  check_between(*with.first, standard, with.right);
  co_await inv.drain();
  inv.begin_timing();
  with.second.emplace(inv, members, me, group_->leader(), with.tried, group_call::pass::second, with.device);
  co_await role_in(*with.second, config, with.tried);
  check_between(*with.second, config, with.tried);
  co_await inv.drain();
  co_await memory().settled(with.tried.data);
  inv.end_timing();
  co_await memory().settled(with.right.data);
}

// The row of this call marks the candidate's data as wrong, so the candidate cannot win. The message to the leader names the wrong number
// and ends the candidate's trials.
task<> group_end::compare(group_invocation& inv, comparison& with) {
  if (with.device == nullptr) {
    with.note(with.data, with.right.data);
  } else {
    std::vector<std::byte> defaults(with.right.data.size());
    co_await with.device->copy(with.data, with.tried.data);
    co_await with.device->copy(defaults, with.right.data);
    with.note(with.data, defaults);
  }
  if (!with.unlike) co_return;
  inv.set_wrong_data();
  actors::nack n;
  n.invocation = inv.index();
  n.digest = inv.config();
  n.bytes = inv.total_bytes();
  n.code = static_cast<std::uint8_t>(errc::config_failed);
  n.text = "its results differ from the default's: " + tuning::sentence(*with.unlike, with.within);
  static_cast<void>(participant_.actor.try_send(std::move(n)));
}

// ---- on a device ------------------------------------------------------------------------------------------------------

void check_on_device(runtime::memory_space* device, const group_work& work, const std::string& whose) {
  if (device == nullptr) return;
  const bool sums = work.what == collective_kind::all_reduce;
  for (const std::span<const std::byte> bytes : {std::span<const std::byte>(work.data), work.own}) {
    const auto there = device->check(bytes, sums ? runtime::bytes_of(work.sums) : 1);
    if (!there) runtime::raise({there.code(), whose + ": " + there.reason().text()});
  }
  if (!sums || work.sums != runtime::summand::none) return;
  runtime::raise({errc::bad_argument,
                  whose + ": a device adds up integers, float, double, f16, bf16 and complex numbers (std::plus); for "
                          "other elements and functions declare an op on host memory"});
}

// Waits for the work that the caller has enqueued for the data. The config is not charged for this wait, which ends with the call at the
// latest.
task<> group_end::bring_in(const group_work& work) const {
  const auto over = co_await runtime::until_settled(*options_.memory, work.data);
  if (over.code() == errc::timeout)
    runtime::raise({errc::timeout, "the kernels that this rank enqueued for its data did not end in time"});
  if (!over) runtime::raise(over.reason());
  if (work.own.empty()) co_return;
  const std::span<std::byte> block = work.data.subspan(place() * work.own.size(), work.own.size());
  if (block.data() != work.own.data()) co_await options_.memory->copy(block, work.own);
}

task<> group_end::role_on_device(group_invocation& inv, group_call& call, const group_config& config,
                                 const group_work& work) const {
  co_await bring_in(work);
  inv.begin_timing();
  co_await role_in(call, config, work);
  co_await options_.memory->settled(work.data);
}

// ---- calls ------------------------------------------------------------------------------------------------------------

task<> group_end::implement(group_invocation& inv, const group_work& work) {
  const rank_id me = services_.net.rank();
  // Declared before `parts`: the buffers outlive the parts, also if a config throws while some are in flight. All parts are abandoned
  // together, because abandoning one may progress the others.
  std::optional<group_call> call;
  std::optional<comparison> both;
  const runtime::finally parts([&inv] { inv.abandon(); });
  std::exception_ptr thrown;
  try {
    const group_config& config = config_for(inv);
    runtime::scope& here = co_await runtime::this_scope;
    const runtime::implementation runs(here, title(), config.id());
    runtime::scope own(here, {.inside = &runs});
    inv.ends_with_it(&own);
    const runtime::finally ended([&inv] { inv.ends_with_it(nullptr); });
    if (inv.compared() && work.total_bytes != 0) {
      both.emplace(work, options_.memory);
      both->within = tuning::tolerance_of(options_.constraints);
      own.begin(run_both(inv, config, *both));
    } else {
      call.emplace(inv, group_->members(), me, group_->leader(), work, group_call::pass::first, options_.memory);
      if (options_.memory == nullptr || work.total_bytes == 0) {
        own.begin(role_in(*call, config, work));
      } else {
        own.begin(role_on_device(inv, *call, config, work));
      }
    }
    co_await own.join();
    if (call) check_between(*call, config, work);
  } catch (...) {
    thrown = std::current_exception();
    inv.fail(failure_of_config(thrown), me);
  }
  const actors::group_fault fault = co_await inv.settle();
  if (fault.why != errc::none && call && call->computing())
    static_cast<void>(co_await runtime::until_settled(memory(), work.data));
  if (fault.why == errc::none && inv.leftover()) inv.fail(errc::config_failed, me);
  if (inv.fault().why == errc::config_mismatch) co_await until_compared(inv);
  if (inv.fault().why != errc::none) throw explained(inv, thrown);
  if (both) co_await compare(inv, *both);
}

// Before the members have met, each runs its own default. If the leader's stamp names another config, the declarations differ. The leader
// compares them, and its error names both. This waits for that error, for half of a call's timeout.
task<> group_end::until_compared(const group_invocation& inv) {
  const time_ns until = services_.until(options_.timeout_ns / 2);
  while (!inv.rehearsal() && participant_.candidates.empty() && !failed_) {
    auto woken = co_await participant_.changed.next(until);
    if (!woken) break;
  }
}

time_ns group_end::deadline_in(time_ns timeout_ns) const noexcept {
  time_ns span = timeout_ns != 0 ? timeout_ns : options_.timeout_ns;
  // A worker waits longer, because the leader knows who is missing and should speak first.
  if (!leads() && span < runtime::never / 2) span += span / 8;
  return services_.deadline_of(span);
}

task<> group_end::run(group_work work, time_ns timeout_ns, group_turn* turn) {
  if (turn == nullptr) runtime::check_call(services_.ex, title());
  runtime::scope& here = co_await runtime::this_scope;
  const runtime::work_meter::wait uncharged(here.meter());
  std::optional<group_invocation> own;
  if (turn == nullptr) check_on_device(options_.memory, work, participant_.declaration.title());
  if (turn == nullptr) own.emplace(*group_, work.total_bytes, deadline_in(timeout_ns), work.type);
  group_invocation& inv = turn == nullptr ? *own : turn->invocation_;
  auto digest = co_await inv.begin();
  if (!digest) {
    if (digest.code() == errc::config_mismatch) co_await until_compared(inv);
    group_->end(inv);
    throw explained(inv, nullptr);
  }
  if (turn != nullptr) inv.begin_timing();  // the config is not charged for the time before
  if (find(*digest) == nullptr && find(actors::compared_with_default(*digest)) != nullptr) inv.set_compared();
  std::exception_ptr thrown;
  try {
    co_await implement(inv, work);
  } catch (...) {
    thrown = std::current_exception();
  }
  group_->end(inv);
  if (thrown) std::rethrow_exception(thrown);
  if (inv.fault().why != errc::none)
    throw explained(inv, nullptr);  // it failed at its deadline, after it had settled; the others have the news
  if (services_.watcher != nullptr) show_payload(inv, work);
}

task<> group_end::refuse(group_work work, time_ns timeout_ns, error why) {
  runtime::check_call(services_.ex, title());
  group_turn place(*this, work.total_bytes, work.type, timeout_ns);
  place.forgo({.why = why.code(), .culprit = services_.net.rank()});
  runtime::raise(std::move(why));
  co_return;
}

void group_end::show_payload(const group_invocation& inv, const group_work& work) const {
  using what = actors::payload_seen::what;
  const auto show = [&](what end, std::size_t place_of_it, std::span<const std::byte> bytes) {
    services_.watcher->on_payload(services_.net.rank(), {end, group_->op(), group_->generation(),
                                                         static_cast<std::uint32_t>(place_of_it), inv.index(), bytes});
  };
  if (work.what != collective_kind::gather) return show(what::agreed, 0, work.data);
  if (!leads()) return show(what::contributed, place(), work.data);
  const std::size_t members = group_->members().size();
  for (std::size_t i = 0, size = work.data.size() / members; i < members; ++i) {
    if (i != place()) show(what::gathered, i, work.data.subspan(i * size, size));  // no other rank reports that block
  }
}

// Asks at once to begin, so that the leader sees the sizes of its calls in their order and can predict the next one.
group_turn::group_turn(group_end& end, std::uint64_t bytes, actors::call_type type, time_ns timeout_ns)
    : end_(end), invocation_(*end.group_, bytes, end.deadline_in(timeout_ns), type) {
  static_cast<void>(invocation_.begin().await_ready());
}

task<> group_turn::run(group_work work) {
  used_ = true;
  return end_.run(std::move(work), 0, this);
}

task<> group_turn::run_within(group_turn& other, group_work work) {
  invocation_.takes_along(&other.invocation_);
  const runtime::finally ended([this] { invocation_.takes_along(nullptr); });
  co_await other.run(std::move(work));
}

void group_turn::forgo(actors::group_fault why) noexcept {
  if (std::exchange(used_, true)) return;
  invocation_.fail(actors::seen_from_elsewhere(why));
  end_.group_->end(invocation_);
}

// Without a size, the culprit refused the call for another reason, which the error on that rank names.
std::string group_end::wrong_argument(const group_invocation& inv, const std::string& culprit) const {
  const actors::group_fault& fault = inv.fault();
  constexpr std::uint64_t no_size = actors::group_fault::no_size;
  const rank_id self = services_.net.rank();
  const std::string leader = "rank " + std::to_string(group_->leader());
  const auto bytes = [](std::uint64_t n) { return std::to_string(n) + " bytes"; };
  if (fault.came_bytes == no_size && fault.culprit == self)
    return culprit + " refused the call: its config sent or asked for a part that this call does not have";
  if (fault.came_bytes == no_size) return culprit + " refused the call; the error on that rank says why";
  const std::string ours = "; this rank has " + bytes(inv.total_bytes());
  // This worker and another one have different sizes. This rank does not know which of the two agrees with the leader.
  if (fault.culprit != self && !leads() && !inv.told_by_leader())
    return culprit + " called with " + bytes(fault.came_bytes) + ours +
           ": one of them called with another size than the others";
  // The culprit has this rank's size, and the leader has another.
  if (fault.culprit != self && fault.came_bytes == inv.total_bytes())
    return leader + " called with another size than the others; " + culprit + " has " + bytes(fault.came_bytes) + ours;
  return (fault.culprit == self ? "this rank called with another size than the others"
                                : culprit + " called with another size than the others, " + bytes(fault.came_bytes)) +
         ours + (fault.leader_bytes == no_size ? "" : ", and " + leader + " has " + bytes(fault.leader_bytes));
}

runtime::error_facts group_end::about() const {
  runtime::error_facts facts = declaration().about(services_.net.rank());
  facts.role = participant_.role;
  return facts;
}

group_failure group_end::explained(const group_invocation& inv, const std::exception_ptr& thrown) const {
  services_.about_to_fail(inv.fault().why);
  group_failure why = in_words(inv, thrown);
  services_.call_failed(why.reason());
  return why;
}

group_failure group_end::in_words(const group_invocation& inv, const std::exception_ptr& thrown) const {
  const actors::group_fault& fault = inv.fault();
  const group_config* const config = find(inv.config());
  runtime::error_facts about = this->about();
  about.invocation = inv.index();
  about.own_bytes = inv.total_bytes();
  if (config != nullptr) about.config = config->id();
  const bool by_itself = fault.culprit == services_.net.rank() && !said_by(options_.memory, fault.why, {}).empty();
  if (failed_ && !by_itself) {  // the culprit may have ended because another rank died
    actors::group_fault whose = fault;
    if (const auto* const first = failed_->began_with(); first != nullptr && fault.why == errc::peer_failed)
      whose.culprit = first->rank;
    return {while_in_flight(*failed_, about), whose};
  }
  about.peer = fault.culprit;
  const std::string thrown_in = thrown ? runtime::describe(thrown).about().op : std::string();
  const bool of_another_op = !thrown_in.empty() && thrown_in != about.op;
  std::string text;
  const std::string culprit = actors::listed(inv.late().empty() ? std::vector{fault.culprit} : inv.late());
  const std::string which = config == nullptr ? "its config" : "config " + config->id();
  switch (fault.why) {
    case errc::timeout:
      about.unmet = runtime::awaited::members;
      text += culprit + " did not join the call in time; see what holds it up, or allow more time";
      text +=
          actors::said_by_peers(services_, declaration(), inv.late().empty() ? std::vector{fault.culprit} : inv.late());
      break;
    case errc::peer_failed: text += culprit + " is gone; restart the job to continue"; break;
    case errc::cancelled: text += culprit + " gave up the call"; break;
    case errc::bad_argument:
      if (fault.came_bytes != actors::group_fault::no_size) about.whole_bytes = fault.came_bytes;
      text += of_another_op ? "the step between its passes failed" : wrong_argument(inv, culprit);
      break;
    case errc::declaration_mismatch:
      text += culprit + " calls with " + words_of(fault.came) + " where another rank has " + words_of(fault.expected) +
              "; give all ranks the same type and the same function that combines";
      break;
    case errc::config_mismatch:
      if (participant_.candidates.empty())
        return {{errc::declaration_mismatch, about,
                 culprit + " does not run the default config of the others; this rank's default is " +
                     options_.configs.front()->id() + "; the first config of the list must be the same on all ranks"},
                {.why = errc::declaration_mismatch, .culprit = fault.culprit}};
      text += culprit + " cannot run " + which + " with the others";
      break;
    case errc::config_failed: text += which + " failed on " + culprit; break;
    case errc::device_failed: text += "the device of " + culprit + " failed in " + which; break;
    default: text += culprit + " failed"; break;
  }
  if (thrown && fault.why != errc::peer_failed) {
    const error own = runtime::describe(thrown);
    if (own.code() != fault.why || !own.text().empty()) text += "; " + own.what();
  }
  if (fault.culprit == services_.net.rank()) text += said_by(options_.memory, fault.why, text);
  const runtime::root_cause cause{fault.culprit, " is gone; restart the job to continue"};
  return {{fault.why, about, text, fault.why == errc::peer_failed ? &cause : nullptr}, fault};
}

task<> group_end::rehearse(std::uint64_t digest) {
  std::optional<actors::busy_until_end> control(std::in_place, services_, participant_.control_ns);
  const std::size_t place = this->place();
  const std::size_t members = group_->members().size();
  const bool gathers = options_.kind == collective_kind::gather;
  const std::size_t mine = gathers && leads() ? rehearsal_elements * members : rehearsal_elements;
  std::vector<std::uint32_t> data(mine);
  runtime::memory_space& space = options_.memory != nullptr ? *options_.memory : runtime::host_memory();
  std::unique_ptr<runtime::memory_space::block> block;
  std::optional<scratch_guard> guard;
  const std::size_t first = gathers && leads() ? place * rehearsal_elements : 0;
  if (options_.kind != collective_kind::broadcast || leads()) {
    const auto word = options_.kind == collective_kind::all_reduce ? rehearsed_word : pattern;
    for (std::size_t i = 0; i < rehearsal_elements; ++i) data[first + i] = word(digest, place, i);
  }
  group_work work;
  work.what = options_.kind;
  work.total_bytes = rehearsal_elements * sizeof(std::uint32_t) * (gathers ? members : 1);
  work.element_bytes = sizeof(double);  // so that no piece ends within a number of the program's type
  work.combine = combine_rehearsed;
  work.sums = runtime::summand::i32;
  group_invocation inv(*group_, work.total_bytes, services_.until(options_.timeout_ns), digest);
  control.reset();
  std::exception_ptr thrown;
  bool begun = false;
  try {
    const std::span<std::byte> here = std::as_writable_bytes(std::span(data));
    block = space.make(here.size() + guard_bytes);
    guard.emplace(space, block->bytes());
    work.data = guard->buffer();
    co_await guard->set();
    co_await space.copy(work.data, here);
    begun = true;
    co_await implement(inv, work);
    co_await space.copy(here, work.data);
  } catch (...) {
    thrown = std::current_exception();
    if (!begun) inv.fail(errc::config_failed, services_.net.rank());  // also tells the others
  }
  group_->end(inv);
  const bool of_the_config = inv.fault().why == errc::config_failed || inv.fault().why == errc::bad_argument;
  if (thrown && of_the_config && inv.fault().culprit == services_.net.rank())
    participant_.failed_here.push_back(digest);
  if (thrown) std::rethrow_exception(thrown);
  control.emplace(services_, participant_.control_ns);
  try {
    co_await guard->check();
  } catch (...) {
    participant_.failed_here.push_back(digest);
    throw;
  }
  const auto leader =
      static_cast<std::size_t>(std::lower_bound(group_->members().begin(), group_->members().end(), group_->leader()) -
                               group_->members().begin());
  std::optional<std::size_t> wrong;
  if (options_.kind == collective_kind::all_reduce) {
    wrong = wrong_word(data, digest, members);
  } else {
    for (std::size_t i = 0; i < mine && (leads() || !gathers) && !wrong; ++i) {
      const std::uint32_t expected =
          gathers ? pattern(digest, i / rehearsal_elements, i % rehearsal_elements) : pattern(digest, leader, i);
      if (data[i] != expected) wrong = i;
    }
  }
  if (!wrong) co_return;
  std::string text = "the rehearsal brought wrong data at element " + std::to_string(*wrong);
  if (options_.kind == collective_kind::all_reduce)
    text += "; a config combines the contributions in the order of the places, with `combine`, or adds them as numbers";
  runtime::raise(error::in_words(errc::config_failed, {.rank = services_.net.rank()}, text));
}

}  // namespace parley::ops
