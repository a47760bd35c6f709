#include <parley/ops/core/op_host.hpp>

#include <parley/ops/core/decision_record.hpp>
#include <parley/ops/core/op_results.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/record/flight_dump.hpp>
#include <parley/tuning/hash.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <utility>

namespace parley::ops {

using actors::departure;
using runtime::errc;
using runtime::error;

namespace {
constexpr time_ns shortest_between_dumps_ns = 1'000'000'000;
}  // namespace

op_host::op_host(const std::function<void(const error&)>& on_call_failed, rank_foundation on,
                 std::shared_ptr<const rank_settings> settings)
    : executor_(on.ex), net_(on.net), settings_(std::move(settings)), machine_(std::move(on.has)),
      kinds_(std::move(on.kinds)), flight_(settings_->flight_records), mail_(on.ex, on.net, on.mail, on.incarnations),
      data_(on.net), services_{on.ex,
                               actors_,
                               on.net,
                               mail_,
                               data_,
                               flight_,
                               std::move(on.incarnations),
                               0,
                               actors::clock_book(std::move(on.hosts), on.net.rank(), on.skew)},
      asks_(services_, what_is_known()), results_(on.disk, results_options()), losses_(id(), on.ranks_come_back),
      actors_(on.ex) {
  services_.validators_hash =
      tuning::stable_hash{}.number(tuning::validators_digest(settings_->validators)).text(kind_of(id())).digest();
  services_.on_call_failed = [this, &on_call_failed](const error& why) {
    dump_after_fault(why.what());
    if (on_call_failed) on_call_failed(why);
  };
  if (!settings_->rules.empty())
    services_.rules_of = [this](const actors::op_declaration& op) { return settings_->rules.of(entry_name(op)); };
  services_.on_decided = [this](const actors::participant_state& told, const actors::decision_record& d) {
    if (!settings_->results_path.empty()) keep_decision(told, d);
    if (settings_->tell) tell_of(told, d);
  };
  machine_.mask(settings_->masked, id());
  services_.warnings = results_.warning_list();
  services_.early_bytes = settings_->early_bytes;
  data_.keep_up_to(services_.early_bytes, [this](const actors::stamp& s) { refuse_early(s); });
  services_.detection_ns = on.detection_ns;
  services_.patience = std::max(settings_->patience, std::uint32_t{1});
  services_.give_up = std::move(on.give_up);
  if (!services_.give_up) {
    services_.give_up = [this](rank_id r, const std::string& why) { r == id() ? fence(why) : lose(r, why); };
  }
  services_.hear_news = [this, held_dead = std::move(on.held_dead), hear = std::move(on.hear_news)](errc code) {
    if (fenced_) return;
    if (const std::string why = held_dead ? held_dead() : std::string(); !why.empty()) return fence(why);
    if (hear && (code == errc::peer_failed || code == errc::send_failed)) hear();
  };
  asks_.on_silence(std::move(on.stands_still));
  ranks_come_back_ = on.ranks_come_back;
  disk_ = on.disk;
}

// Called while the rank is made.
actors::inquiries::own_knowledge op_host::what_is_known() {
  actors::inquiries::own_knowledge mine;
  mine.kind = [this](std::uint64_t op) {
    using kind = actors::op_kind;
    if (!declared_.contains(op)) return kind::unknown;
    const auto is_it = [op](const declared_edge& e) { return e.id() == op; };
    const bool edge = std::any_of(declared_edges_.begin(), declared_edges_.end(), is_it);
    return edge ? kind::edge : kind::collective;
  };
  mine.by_name = [this](const std::string& op) {
    const auto known = groups_declared_.find(op);
    return known == groups_declared_.end() ? nullptr : &known->second;
  };
  mine.with = [this](rank_id other) {
    std::vector<actors::declared_by_name> all;
    for (const declared_edge& e : declared_edges_) {
      if (e.peer() == other) all.push_back({e.id(), e.title()});
    }
    for (const op_end& e : ops()) {
      if (e.is_collective() && e.ends_with(other)) all.push_back({e.declaration().id(), e.declaration().title()});
    }
    return all;
  };
  mine.waiting = [this] { return waiting(); };
  mine.progress = [this](std::uint64_t op, rank_id asks, std::uint32_t key) {
    for (const op_end& e : ops()) {
      if (e.ends_with(asks) && e.declaration().id() == op) return e.progress_in_words(key);
    }
    return std::string();
  };
  mine.leaving = [this] { return leaving_; };
  return mine;
}

// More bytes have arrived than this rank keeps for ops that it has not declared. Tells the sender, and warns once.
void op_host::refuse_early(const actors::stamp& s) {
  const std::string self = "rank " + std::to_string(id());
  const std::string what =
      self + " received more than " + std::to_string(services_.early_bytes) + " bytes for ops that it has not declared";
  actors::op_reject word;
  word.code = static_cast<std::uint8_t>(errc::full);
  word.text = what + ", including this op, and dropped this op's messages; declare the op earlier on " + self +
              ", or send less, or fewer and larger parts, before that rank declares it";
  static_cast<void>(mail_.send(s.source, actors::number_of(s.op, actors::part::participant), s.generation, word));
  if (!std::exchange(warned_of_early_, true))
    actors::warn(services_, what + ", and dropped messages of rank " + std::to_string(s.source) +
                                ", so calls of their op will fail; declare the op earlier, or send less before " +
                                self + " declares it");
}

// Called while the rank is made.
results_store::options op_host::results_options() const {
  return {.path = settings_->results_path,
          .ordinal = id(),
          .validators = settings_->results_path.empty() ? std::vector<tuning::validator>() : settings_->validators,
          .soft = settings_->soft_validators,
          .unique = services_.incarnations.of(id()),
          .spare_folder = settings_->spare_folder,
          .ex = settings_->write_results_soon ? &executor_ : nullptr};
}

tunable_context& op_host::make_kernels() const {
  tunable_context::options o;
  o.mine = settings_->kernels;
  if (!settings_->results_path.empty()) o.mine.file = settings_->results_path;
  o.environment = settings_->kernel_environment;
  o.ordinal = id();
  o.validators = settings_->validators;
  o.soft_validators = settings_->soft_validators;
  o.unique = services_.incarnations.of(id());
  o.spare_folder = settings_->spare_folder;
  o.shared = results_.in_use() ? &results_ : nullptr;
  // If the user's file was refused, kernels must not write beside it.
  o.tell = settings_->tell;
  o.rules = settings_->rules;
  o.no_file = settings_->no_results || (!settings_->results_path.empty() && !results_.in_use());
  if (o.shared == nullptr) o.validators = without_world(std::move(o.validators));
  kernels_ = std::make_unique<tunable_context>(executor_, results_.disk(), std::move(o));
  kernels_->remember(results_.remembered());
  return *kernels_;
}

runtime::waiting_list op_host::waiting() const {
  runtime::waiting_list all;
  for (const auto& e : ops_) e->list_waiting(all);
  std::stable_sort(all.calls.begin(), all.calls.end(),
                   [](const auto& one, const auto& other) { return one.since_ns < other.since_ns; });
  return all;
}

runtime::result<std::string> op_host::dump_flight(std::string_view why, const std::string& folder) {
  const std::string& into = folder.empty() ? settings_->flight_dir : folder;
  if (disk_ == nullptr || into.empty())
    return error{errc::unavailable, "no folder for the flight recorder was named; set PARLEY_FLIGHT_DIR"};
  std::map<std::uint64_t, std::string> titles;
  std::map<std::uint64_t, std::string> configs;
  std::vector<std::string> decisions;
  for (const op_end& e : ops()) {
    const actors::participant_state* const p = e.as_participant();
    if (p == nullptr) continue;
    titles[p->declaration.id()] = p->declaration.title();
    for (const auto& c : p->configs.entries()) configs[c.digest] = c.id;
    for (const actors::decision_record& d : p->decisions) decisions.push_back(json_of(decision_of(*p, d, id())));
  }
  for (const op_end& e : ops()) {
    for (const auto& [name, d] : e.decisions()) {
      for (const candidate_evidence& c : d.evidence) configs[c.digest] = c.config;
      decisions.push_back(json_of(d));
    }
  }
  const auto look_up = [](const std::map<std::uint64_t, std::string>& names) {
    return [&names](std::uint64_t number) {
      const auto known = names.find(number);
      return known == names.end() ? std::string() : known->second;
    };
  };
  const std::string path = into + "/parley-flight-" + std::to_string(id()) + ".json";
  const auto written = disk_->replace(
      path, runtime::flight_text(flight_, {.op = look_up(titles), .config = look_up(configs)},
                                 {.rank = id(), .now_ns = services_.clocks.local(executor_.now()), .why = why},
                                 decisions, waiting()));
  if (!written) return written.reason();
  return path;
}

// Writes at most one dump a second: a program that continues after faults may have many of them, and the latest dump contains most.
void op_host::dump_after_fault(std::string_view why) noexcept {
  if (settings_->flight_dir.empty() || executor_.forked() || executor_.now() < next_fault_dump_ns_) return;
  next_fault_dump_ns_ = executor_.deadline_in(shortest_between_dumps_ns);
  try {
    const auto dumped = dump_flight(why);
    if (!dumped) results_.warn({dumped.reason().what()});
  } catch (const std::exception& e) {
    results_.warn({e.what()});
  }
}

void op_host::keep_decision(const actors::participant_state& of, const actors::decision_record& d) {
  auto entry = entry_of(of.declaration, of.id_of(d.digest), d);
  if (!entry) return;
  const auto* const before = results_.remembered().find(entry->op, entry->parameters);
  const bool otherwise = before != nullptr && before->solution != entry->solution;
  if (d.source == actors::decision_source::trials) results_.keep_evidence(*entry, decision_of(of, d, id()));
  results_.learn(std::move(*entry), otherwise ? before : nullptr);
}

void op_host::tell_of(const actors::participant_state& of, const actors::decision_record& d) const {
  const unsigned verbosity = settings_->kernel_environment.over(settings_->kernels).verbosity;
  if (verbosity < 2) return;
  for (const std::string& line : lines_of(decision_of(of, d, id()), verbosity)) settings_->tell(line);
}

std::vector<actors::remembered_best> op_host::remember(const actors::op_declaration& op,
                                                       const std::vector<std::string>& ids) {
  op_memory memory = recall_op(results_.remembered(), op, ids);
  results_.warn(std::move(memory.warnings));
  return std::move(memory.entries);
}

void op_host::check_new(const actors::op_declaration& op) const {
  if (executor_.forked()) runtime::refuse_fork(op.title() + " was declared");
  if (const auto fits = tuning::checked({.op = op.name, .size = {}, .dtype = op.dtype}); !fits)
    runtime::raise(
        {errc::bad_argument, "an op that rank " + std::to_string(id()) + " declares: " + fits.reason().text});
  if (declared_.contains(op.id()))
    runtime::raise({errc::bad_argument, op.title() + " is declared twice on rank " + std::to_string(id()) +
                                            "; give each op a name of its own"});
}

void op_host::declare_once(const actors::op_declaration& op) {
  check_new(op);
  declared_.insert(op.id());
}

void op_host::note_group(const actors::op_declaration& op) {
  declared_.insert(op.id());
  groups_declared_[op.name].push_back({op.id(), op.text()});
}

declared_edge& op_host::declare(edge_options o, declared_edge::end which) {
  const bool leads = which == declared_edge::end::out;
  const auto op = actors::declare_edge(o.name, leads ? id() : o.peer, leads ? o.peer : id(), o.dtype);
  // Errors in the declaration are thrown now, and user code runs now. The first use may be data that arrives, where nothing may be thrown.
  static_cast<void>(catalogue_of(op.title(), o.configs));
  o.asked = std::make_shared<const capabilities>(capabilities_of(o, op, net_));
  o.can_run = {};
  declare_once(op);
  if (o.memory != nullptr)
    warn_not_compared(op.title(), o.constraints, "because its payloads lie in a device's memory");
  declared_edge& declared = declared_edges_.emplace_back(*this, std::move(o), which);
  // The first few edges meet their peers before their first call, so that conflicts are found early.
  constexpr std::size_t made_at_once = 16;
  if (declared_edges_.size() <= made_at_once) declared.make();
  return declared;
}

// Notes that this rank has no part in the op. If another rank considers it a member, that rank gets this as the reply.
void op_host::note_idle(const std::string& op) {
  auto& known = groups_declared_[op];
  const auto says_so = [](const actors::declared_by_name& d) { return d.op == 0; };
  if (std::none_of(known.begin(), known.end(), says_so))
    known.push_back({0, "op " + op + ", no part in it for this rank"});
}

void op_host::warn_not_compared(const std::string& op, const tuning::constraints& allowed, std::string_view why) {
  if (allowed.compare_trials)
    results_.warn({op + ": the results of its trials are not compared (NUMERICAL_CHECK), " + std::string(why) +
                   "; only the accuracy that its configs state counts"});
}

// The first use of a config on a device pins blocks, maps memory or makes communicators, so its time says nothing about later uses. A
// single further measurement is not enough to reject a config permanently: hosts notice the end of device work late, so some messages
// (often every second one) seem several times as long or short as they are. So at least two repetitions are made.
tuning::plan_options op_host::plan_for(const runtime::memory_space* memory) const noexcept {
  tuning::plan_options plan = settings_->plan;
  if (memory == nullptr || !memory->has_streams()) return plan;
  if (plan.warm_up_repetitions == 0) plan.warm_up_repetitions = 1;
  plan.probe_repetitions = std::max<std::size_t>(plan.probe_repetitions, 2);
  plan.repetitions = std::max<std::size_t>(plan.repetitions, 2);
  return plan;
}

void op_host::complete(edge_options& o, const actors::op_declaration& op) {
  o.policy = settings_->policy;
  o.window = settings_->window;
  o.mutant_ignores_stamp = settings_->mutant_ignores_stamp;
  o.remembered = remember(op, o.configs);
}

edge_out& op_host::add_out(edge_options o) {
  complete(o, actors::declare_edge(o.name, id(), o.peer, o.dtype));
  tuning::plan_options plan = plan_for(o.memory);
  plan.budget_fraction /= static_cast<double>(o.budget_sharers);
  edge_out& added = add(std::make_unique<edge_out>(services_, std::move(o), plan));
  end_if_lost();
  return added;
}

edge_in& op_host::add_in(edge_options o) {
  complete(o, actors::declare_edge(o.name, o.peer, id(), o.dtype));
  edge_in& added = add(std::make_unique<edge_in>(services_, std::move(o)));
  end_if_lost();
  return added;
}

void op_host::replace(op_end& ended, std::unique_ptr<op_end> next) {
  const auto at = std::find_if(ops_.begin(), ops_.end(), [&](const auto& e) { return e.get() == &ended; });
  ended.followed_by_ = next.get();
  ended.ended_ = true;
  ops_.insert(at + 1, std::move(next));
  end_if_lost();
}

void replace_on(op_host& host, op_end& ended, std::unique_ptr<op_end> next) { host.replace(ended, std::move(next)); }

bool make_room_on(op_host& host) {
  if (!host.fenced_) host.ops_.reserve(host.ops_.size() + 1);
  return !host.fenced_;
}

void op_host::end_ops_with(const actors::loss& l, errc code) noexcept {
  const auto lacks = [&](const actors::op_declaration& op) -> std::string {
    if (l.how != departure::returned) return "";
    if (op.participants.front().role != "sender") return "; this op cannot continue without that rank";
    return op.leader == l.who ? "; this receive has no sender" : "; this send has no receiver";
  };
  for (op_end& e : ops()) {
    if (!(code == errc::peer_restarted ? e.restarts_with(l.who) : e.ends_with(l.who))) continue;
    runtime::error_facts about = e.declaration().about(id());
    about.peer = l.who;
    e.fail({code, about, "rank " + std::to_string(l.who) + l.what + lacks(e.declaration()), &l.began_with});
  }
}

void op_host::end_after(const actors::loss* gone, std::string_view why) noexcept {
  if (gone == nullptr) return;
  for (op_end& e : ops()) {
    if (e.ends_with(gone->who)) note_undelivered(e);
  }
  end_ops_with(*gone, errc::peer_failed);
  if (gone->how == departure::returned) return;  // a rank that has returned is no fault
  runtime::flight_record record;
  record.began_ns = record.ended_ns = services_.clocks.local(executor_.now());
  record.what = runtime::flight_event::peer_lost;
  record.tag = gone->who;
  flight_.add(record);
  dump_after_fault(why);
}

void op_host::lose(rank_id lost, std::string_view why, departure how) noexcept {
  if (fenced_) return;  // the others close their connections to a fenced rank, which does not count as losing them
  end_after(losses_.add(lost, why, how, executor_.precise_now()), why);
}

void op_host::fence(std::string_view why) noexcept {
  if (!fenced_) fenced_ = why;
  for (op_end& e : ops()) e.fail({errc::fenced, e.declaration().about(id()), *fenced_});
}

void op_host::end_if_lost() noexcept {
  for (const actors::loss& l : losses_.all()) end_ops_with(l, errc::peer_failed);
  if (fenced_) fence(*fenced_);
}

// Skips ranks that failed: it is unknown which messages they had received, and it no longer matters.
void op_host::note_undelivered(op_end& e) {
  std::vector<std::pair<rank_id, std::string>> of_op;
  e.list_undelivered(of_op);
  for (auto& [to, line] : of_op) {
    if (!losses_.has_failed(to)) undelivered_.emplace_back(to, std::move(line));
  }
}

runtime::result<> check_timeout(std::string_view op, std::chrono::nanoseconds timeout) {
  if (timeout.count() > 0) return {};
  return error{errc::bad_argument, "op " + std::string(op) + ": its timeout is " + std::to_string(timeout.count()) +
                                       " ns; give it a positive one, of at most 292 years, or no_timeout"};
}

}  // namespace parley::ops
