#include <parley/ops/rank.hpp>

#include <parley/actors/inquiries.hpp>
#include <parley/ops/op_host.hpp>
#include <parley/ops/op_results.hpp>
#include <parley/ops/symmetric.hpp>
#include <parley/runtime/flight_dump.hpp>
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/version.hpp>
#include <parley/tuning/hash.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

constexpr time_ns shortest_between_dumps_ns = 1'000'000'000;
constexpr time_ns shortest_pause_ns = 1'000'000;
constexpr time_ns longest_pause_ns = 20'000'000;

}  // namespace

std::shared_ptr<const rank_settings> rank::complete(rank_settings settings, rank_id world_size) {
  settings.validators.insert(settings.validators.begin(), {{"PARLEY_VERSION", std::string(runtime::version_text)},
                                                           {"PARLEY_WORLD", std::to_string(world_size)}});
  if (!settings.masked.empty()) settings.validators.push_back({"PARLEY_MASK", text_of(settings.masked)});
  return std::make_shared<const rank_settings>(std::move(settings));
}

// `net` is a reference, and stays what it is.
rank::rank(rank_foundation on, rank_settings settings)
    : rank(std::move(on), complete(std::move(settings), on.net.world_size())) {}  // NOLINT(bugprone-use-after-move)

rank::rank(rank_foundation on, std::shared_ptr<const rank_settings> settings)
    : executor_(on.ex), net_(on.net), settings_(settings), kinds_(std::move(on.kinds)),
      host_(std::make_unique<op_host>(*this, std::move(on), std::move(settings))) {}

op_host::op_host(rank& of, rank_foundation on, std::shared_ptr<const rank_settings> settings)
    : self(of), executor_(on.ex), net_(on.net), settings_(std::move(settings)), machine_(std::move(on.has)),
      flight_(settings_->flight_records), mail_(on.ex, on.net, on.mail, on.incarnations), data_(on.net),
      services_{on.ex,
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
      tuning::stable_hash{}.number(tuning::validators_digest(settings_->validators)).text(of.kind_of(id())).digest();
  services_.on_call_failed = [this](const error& why) {
    dump_after_fault(why.what());
    if (self.on_call_failed) self.on_call_failed(why);
  };
  if (!settings_->results_path.empty() && settings_->write_results_soon) {
    services_.on_decided = [this](const actors::participant_state& told, const actors::decision_record& d) {
      keep_decision(told, d);
    };
  }
  machine_.mask(settings_->masked, id());
  services_.warnings = results_.warning_list();
  services_.early_bytes = settings_->early_bytes;
  data_.keep_up_to(services_.early_bytes, [this](const actors::stamp& s) { refuse_early(s); });
  services_.detection_ns = on.detection_ns;
  services_.patience = std::max(settings_->patience, std::uint32_t{1});
  services_.give_up = std::move(on.give_up);
  if (!services_.give_up) {
    services_.give_up = [this](rank_id r, const std::string& why) {
      r == id() ? self.on_fenced(why) : self.on_lost(r, why);
    };
  }
  services_.hear_news = [this, held_dead = std::move(on.held_dead), hear = std::move(on.hear_news)](errc code) {
    if (fenced_) return;
    if (const std::string why = held_dead ? held_dead() : std::string(); !why.empty()) return self.on_fenced(why);
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
    const auto add = [&](const actors::op_declaration& op, bool has) {
      if (has) all.push_back({op.id(), op.title()});
    };
    for (const auto& g : groups_) add(g->declaration(), g->has(other));
    for (const auto& s : symmetrics_) add(s->declaration(), s->has(other));
    return all;
  };
  mine.waiting = [this] { return self.waiting(); };
  mine.progress = [this](std::uint64_t op, rank_id r, std::uint32_t tag) { return progress_in(op, r, tag); };
  mine.leaving = [this] { return leaving_; };
  return mine;
}

std::string op_host::progress_in(std::uint64_t op, rank_id asks, std::uint32_t tag) const {
  const auto of_edge = [&](const edge_end& e) { return e.declaration().id() == op && e.peer() == asks; };
  for (const auto& e : outs_) {
    if (of_edge(*e)) return e->progress_in_words(tag);
  }
  for (const auto& e : ins_) {
    if (of_edge(*e)) return e->progress_in_words(tag);
  }
  for (const auto& g : groups_) {
    if (g->declaration().id() == op)
      return "has made " + std::to_string(g->data_path().next_invocation() - services_.first_invocation) +
             " calls of it";
  }
  for (const auto& s : symmetrics_) {
    if (s->declaration().id() == op) return s->progress_in_words(tag);
  }
  for (const auto& a : attached_) {
    if (a->declaration().id() == op) return a->progress_in_words();
  }
  return {};
}

runtime::waiting_list rank::waiting() const {
  runtime::waiting_list all;
  for (const auto* ends : {&host_->outs_, &host_->ended_outs_}) {
    for (const auto& e : *ends) e->list_waiting(all);
  }
  for (const auto* ends : {&host_->ins_, &host_->ended_ins_}) {
    for (const auto& e : *ends) e->list_waiting(all);
  }
  for (const auto& p : host_->p2ps_) p->list_waiting(all);
  for (const auto& g : host_->groups_) {
    g->list_waiting(all);
    g.for_each_ended([&](group_end& e) { e.list_waiting(all); });
  }
  for (const auto& s : host_->symmetrics_) {
    s->list_waiting(all);
    s.for_each_ended([&](symmetric_end& e) { e.list_waiting(all); });
  }
  for (const auto& a : host_->attached_) a->list_waiting(all);
  std::stable_sort(all.calls.begin(), all.calls.end(),
                   [](const auto& one, const auto& other) { return one.since_ns < other.since_ns; });
  return all;
}

// Of an op that this rank does not know, more has come than it keeps.
void op_host::refuse_early(const actors::stamp& s) {
  const std::string what = "more than " + std::to_string(services_.early_bytes) + " bytes came to rank " +
                           std::to_string(id()) + " for ops that it has not declared yet";
  actors::op_reject word;
  word.code = static_cast<std::uint8_t>(errc::full);
  word.text = what +
              ", this one among them, and what it was sent before is gone; declare the op there earlier, or send "
              "less, or larger parts, before that";
  static_cast<void>(mail_.send(s.source, actors::number_of(s.op, actors::part::participant), s.generation, word));
  if (!std::exchange(warned_of_early_, true))
    actors::warn(services_, what + ": what rank " + std::to_string(s.source) +
                                " sent is gone, and the calls of its op will fail; declare the op earlier, or send "
                                "less before that");
}

// Called while the rank is made.
results_store::options op_host::results_options() const {
  return {.path = settings_->results_path,
          .ordinal = id(),
          .validators = settings_->results_path.empty() ? std::vector<tuning::validator>() : settings_->validators,
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
  o.unique = services_.incarnations.of(id());
  o.spare_folder = settings_->spare_folder;
  o.shared = results_.in_use() ? &results_ : nullptr;
  o.no_file = settings_->no_results;
  if (o.shared == nullptr)
    std::erase_if(o.validators, [](const tuning::validator& v) { return v.name == "PARLEY_WORLD"; });
  kernels_ = std::make_unique<tunable_context>(executor_, results_.disk(), std::move(o));
  kernels_->remember(results_.remembered());
  return *kernels_;
}

const machine& rank::on() const noexcept { return host_->machine_; }
actors::services& rank::services() noexcept { return host_->services_; }
tunable_context& rank::kernels() const { return host_->kernels_ == nullptr ? host_->make_kernels() : *host_->kernels_; }
std::uint64_t rank::restarts_heard() const noexcept { return host_->restarts_heard_; }
std::uint32_t rank::own_restarts() const { return runtime::restarts_of(host_->services_.incarnations.of(id())); }
const tuning::results_file& rank::remembered() const noexcept { return host_->results_.remembered(); }
const runtime::flight_recorder& rank::flight() const noexcept { return host_->flight_; }
const runtime::router& rank::mail() const noexcept { return host_->mail_; }
const actors::data_hub& rank::data() const noexcept { return host_->data_; }
const std::vector<std::string>& rank::warnings() const noexcept { return host_->results_.warnings(); }

rank::~rank() = default;

namespace {
runtime::flight_decision as_flown(const actors::participant_state& knows, const actors::decision_record& d) {
  const auto name_of = [&](std::uint64_t digest) {
    const std::string* const id = knows.id_of(digest);
    return id == nullptr ? std::string() : *id;
  };
  runtime::flight_decision all{knows.declaration.title(), d.key, name_of(d.digest), d.why, d.search, {}};
  for (const actors::wire_evidence& e : d.evidence) {
    auto& one = all.candidates.emplace_back();
    one = {
        e.config.empty() ? name_of(e.digest) : e.config, e.time_ns, e.repetitions, e.status, e.detail, e.proposer, {}};
    for (const actors::wire_own_time& own : e.ranks) one.ranks.push_back({own.rank, own.time_ns, own.status});
  }
  return all;
}
// Of an op whose evidence is what this rank has measured.
runtime::flight_decision as_flown(const decision& d, rank_id self) {
  runtime::flight_decision all{d.op, d.key, d.config, d.why, d.search, {}};
  for (const candidate_evidence& e : d.evidence)
    all.candidates.push_back(
        {e.config, e.time_ns, e.repetitions, e.status, e.detail, self, {{self, e.time_ns, e.status}}});
  return all;
}
actors::decision_record as_record(const actors::op_declaration& op, const decision& d, rank_id self) {
  actors::decision_record all;
  all.key = d.key;
  all.digest = d.digest;
  all.why = d.why;
  all.source = d.source;
  all.proposer = op.leader;
  all.version = d.version;
  all.search = d.search;
  for (const auto& p : op.participants) all.participants.push_back(p.rank);
  for (const candidate_evidence& e : d.evidence) {
    actors::wire_evidence& one = all.evidence.emplace_back();
    one.digest = e.digest;
    one.time_ns = e.time_ns;
    one.repetitions = e.repetitions;
    one.status = e.status;
    one.detail = e.detail;
    one.proposer = self;
    one.ranks.push_back({self, e.time_ns, e.repetitions, e.status, e.digest});
  }
  return all;
}
}  // namespace

runtime::result<std::string> rank::dump_flight(std::string_view why, const std::string& folder) {
  const std::string& into = folder.empty() ? settings_->flight_dir : folder;
  if (host_->disk_ == nullptr || into.empty())
    return error{errc::unavailable, "no folder for the flight recorder was named; set PARLEY_FLIGHT_DIR"};
  std::map<std::uint64_t, std::string> ops;
  std::map<std::uint64_t, std::string> configs;
  std::vector<runtime::flight_decision> decisions;
  for (const actors::participant_state* p : participants()) {
    ops[p->declaration.id()] = p->declaration.title();
    for (const auto& c : p->configs.entries()) configs[c.digest] = c.id;
    for (const actors::decision_record& d : p->decisions) decisions.push_back(as_flown(*p, d));
  }
  for (const auto& a : host_->attached_) {
    for (const auto& [name, d] : a->decisions()) {
      for (const candidate_evidence& e : d.evidence) configs[e.digest] = e.config;
      decisions.push_back(as_flown(d, id()));
    }
  }
  const auto look_up = [](const std::map<std::uint64_t, std::string>& names) {
    return [&names](std::uint64_t number) {
      const auto known = names.find(number);
      return known == names.end() ? std::string() : known->second;
    };
  };
  const std::string path = into + "/parley-flight-" + std::to_string(id()) + ".json";
  const auto written = host_->disk_->replace(
      path, runtime::flight_text(host_->flight_, {.op = look_up(ops), .config = look_up(configs)},
                                 {.rank = id(), .now_ns = host_->services_.clocks.local(executor_.now()), .why = why},
                                 decisions, waiting()));
  if (!written) return written.reason();
  return path;
}

// A program that goes on after faults may have many of them; the latest text says most.
void op_host::dump_after_fault(std::string_view why) noexcept {
  if (settings_->flight_dir.empty() || executor_.now() < next_fault_dump_ns_) return;
  next_fault_dump_ns_ = executor_.deadline_in(shortest_between_dumps_ns);
  try {
    const auto dumped = self.dump_flight(why);
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
  results_.learn(std::move(*entry), otherwise ? before : nullptr);
}

template <class Configs>
std::vector<actors::remembered_best> op_host::remember(const actors::op_declaration& op, const Configs& configs) {
  if (results_.remembered().entries().empty()) return {};
  std::vector<std::string> ids;
  for (const auto& c : configs) ids.push_back(c->id());
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
  // What is wrong with it is said now, and the user's code runs now: its first use may be data, where nothing may be thrown.
  static_cast<void>(catalogue_of(op.title(), o.configs));
  o.asked = std::make_shared<const capabilities>(capabilities_of(o, op, net_));
  o.capable = {};
  declare_once(op);
  if (o.memory != nullptr) warn_not_compared(op.title(), o.allowed, "because its payloads lie in a device's memory");
  declared_edge& declared = declared_edges_.emplace_back(*this, std::move(o), which);
  // A few may as well get to know their peers before their first call: conflicts are then found before it.
  constexpr std::size_t made_at_once = 16;
  if (declared_edges_.size() <= made_at_once) declared.make();
  return declared;
}

// Whoever takes this rank for a member shall hear of it.
void op_host::note_idle(const std::string& op) {
  auto& known = groups_declared_[op];
  const auto says_so = [](const actors::declared_by_name& d) { return d.op == 0; };
  if (std::none_of(known.begin(), known.end(), says_so))
    known.push_back({0, "op " + op + ", no part in it for this rank"});
}

void op_host::warn_not_compared(const std::string& op, const tuning::constraints& allowed, std::string_view why) {
  if (allowed.compare_trials)
    results_.warn({op + ": what its trials bring is not compared (NUMERICAL_CHECK), " + std::string(why) +
                   "; what its configs say of their own accuracy counts"});
}

// A first use on a device pins blocks, maps memory or makes communicators, and says nothing about the uses after it. Nor does the one
// after that say enough to give up a config for good: hosts that look late make some messages of streams several times as long or short,
// and often every second one, so that repetitions are made in pairs.
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
  edge_out& added = *outs_.emplace_back(std::make_unique<edge_out>(services_, std::move(o), plan));
  end_if_lost();
  return added;
}

edge_in& op_host::add_in(edge_options o) {
  complete(o, actors::declare_edge(o.name, o.peer, id(), o.dtype));
  edge_in& added = *ins_.emplace_back(std::make_unique<edge_in>(services_, std::move(o)));
  end_if_lost();
  return added;
}

namespace {
template <class End>
void move_to(std::vector<std::unique_ptr<End>>& ended, std::vector<std::unique_ptr<End>>& from, const End& one) {
  const auto at = std::find_if(from.begin(), from.end(), [&](const auto& e) { return e.get() == &one; });
  ended.push_back(std::move(*at));
  from.erase(at);
}
}  // namespace

void op_host::put_aside(const edge_out& ended) { move_to(ended_outs_, outs_, ended); }
void op_host::put_aside(const edge_in& ended) { move_to(ended_ins_, ins_, ended); }

op_place<group_end>& op_host::add_group(group_options o) {
  const auto op = declaration_of(o).value();
  check_new(op);
  o.policy = settings_->policy;
  o.plan = plan_for(o.memory);
  o.window = settings_->window;
  o.mutant_ignores_stamp = settings_->mutant_ignores_stamp;
  o.remembered = remember(op, o.configs);
  auto& added = groups_.emplace_back(std::make_unique<group_end>(services_, std::move(o)), *this);
  note_group(op);
  end_if_lost();
  return added;
}

symmetric rank::declare(symmetric_op op) {
  const auto d = declaration_of(op, world_size()).value();
  symmetric handle;
  handle.name_ = op.name;
  const auto me = [this](const auto& p) { return p.rank == id(); };
  if (std::none_of(d.participants.begin(), d.participants.end(), me)) {
    host_->note_idle(op.name);
    return handle;
  }
  host_->check_new(d);
  op.allowed = tuning::both(op.allowed, settings_->allowed);
  if (const std::string why = why_not_compared(op); op.allowed.compare_trials && !why.empty())
    host_->results_.warn({d.title() + ": NUMERICAL_CHECK is on, and " + why + "; only its default runs"});
  symmetric_settings own{settings_->policy, settings_->plan, host_->remember(d, op.configs), &host_->machine_};
  handle.place_ = &host_->symmetrics_.emplace_back(
      std::make_unique<symmetric_end>(host_->services_, std::move(op), std::move(own)), *host_);
  handle.self_ = id();
  host_->note_group(d);
  host_->end_if_lost();
  return handle;
}

op_place<attached_op>& rank::attach(std::unique_ptr<attached_op> op) {
  host_->declare_once(op->declaration());
  auto& added = host_->attached_.emplace_back(std::move(op), *host_);
  host_->end_if_lost();
  return added;
}

std::size_t rank::retune(std::string_view op, std::string_view why) {
  std::size_t asked = 0;
  const auto is_meant = [op](std::string_view name) {
    return name.starts_with(op) && (name.size() == op.size() || name[op.size()] == '/');
  };
  for (const actors::participant_state* p : participants()) {
    if (!is_meant(p->declaration.name)) continue;
    actors::tuning_request wish;
    wish.every_size = true;
    wish.why = why;
    ask_leader(*p, std::move(wish));
    ++asked;
  }
  return asked;
}

template <class Visit>
void op_host::for_each_end(const Visit& visit) noexcept {
  const auto edge = [&](edge_end& e) {
    const auto has = [&](rank_id r, bool restarted) { return restarted ? e.restarts_with(r) : e.peer() == r; };
    visit(e.declaration(), has, [&](const error& why, rank_id) { e.fail(why); });
  };
  for (auto& e : outs_) edge(*e);
  for (auto& e : ins_) edge(*e);
  for (auto& g : groups_) {
    const auto has = [&](rank_id r, bool restarted) { return restarted ? g->restarts_with(r) : g->has(r); };
    visit(g->declaration(), has, [&](const error& why, rank_id culprit) { g->fail(why, culprit); });
  }
  for (auto& s : symmetrics_) {
    const auto has = [&](rank_id r, bool) { return s->has(r); };
    visit(s->declaration(), has, [&](const error& why, rank_id) { s->fail(why); });
  }
  for (auto& a : attached_) {
    const auto has = [&](rank_id r, bool) { return a->has(r); };
    visit(a->declaration(), has, [&](const error& why, rank_id) { a->fail(why); });
  }
}

void op_host::end_ops_with(const actors::loss& l, errc code) noexcept {
  const auto lacks = [&](const actors::op_declaration& op) -> std::string {
    if (l.how != departure::returned) return "";
    if (op.participants.front().role != "sender") return "; this op cannot go on without it";
    return op.leader == l.who ? "; this receive has no sender" : "; this send has no receiver";
  };
  for_each_end([&](const actors::op_declaration& op, const auto& has, const auto& end) {
    if (!has(l.who, code == errc::peer_restarted)) return;
    runtime::error_facts about = op.about(id());
    about.peer = l.who;
    end(error{code, about, "rank " + std::to_string(l.who) + l.what + lacks(op), &l.began_with}, l.began_with.rank);
  });
}

void rank::on_restarted(rank_id peer, std::uint64_t incarnation) {
  if (peer >= world_size() || peer == id())
    runtime::raise({errc::bad_argument, "rank " + std::to_string(peer) + " cannot restart beside rank " +
                                            std::to_string(id()) + " in a world of " + std::to_string(world_size())});
  if (host_->fenced_ || host_->services_.incarnations.of(peer) == incarnation) return;
  for (declared_edge& e : host_->declared_edges_) e.before_restart_of(peer);
  host_->end_ops_with(
      {peer,
       " has restarted; transfers with it go on in a new generation, from their first invocation, other ops when all "
       "their ranks have called rejoin",
       departure::died,
       {peer, " has restarted"}},
      errc::peer_restarted);
  host_->losses_.forget(peer);
  std::erase_if(host_->undelivered_,
                [peer](const auto& u) { return u.first == peer; });  // the program knows, and goes on
  host_->services_.incarnations.replace(peer, incarnation);
  host_->mail_.forget(peer, incarnation);
  for (declared_edge& e : host_->declared_edges_) {
    if (e.peer() == peer) e.on_restarted();
  }
  ++host_->restarts_heard_;
}

task<bool> rank::until_restart(std::uint64_t before, time_ns limit_ns) {
  const time_ns until = host_->ranks_come_back_ ? executor_.deadline_in(limit_ns) : executor_.now();
  for (time_ns pause = shortest_pause_ns;
       host_->restarts_heard_ <= before && !host_->fenced_ && executor_.now() < until;
       pause = std::min(2 * pause, longest_pause_ns)) {
    auto slept = co_await runtime::sleep_until(std::min(executor_.deadline_in(pause), until));
    if (!slept) break;
  }
  co_return host_->restarts_heard_ > before && !host_->fenced_;
}

void rank::on_lost(rank_id lost, std::string_view why, departure how) noexcept {
  if (host_->fenced_) return;  // it sees the others close their connections
  host_->end_after(host_->losses_.add(lost, why, how, executor_.precise_now()), why);
}

void rank::on_ended(rank_id ended, const runtime::root_cause& began_with) noexcept {
  if (host_->fenced_) return;
  host_->end_after(host_->losses_.add_ended(ended, began_with, executor_.precise_now()), began_with.what);
}

error rank::traced(const error& why) const { return host_->losses_.traced(why, executor_.now()); }
runtime::root_cause rank::cause_of(const error& why) const { return host_->losses_.cause_of(why); }

void op_host::end_after(const actors::loss* gone, std::string_view why) noexcept {
  if (gone == nullptr) return;
  for (const auto& e : outs_) {
    if (e->peer() == gone->who) note_undelivered(*e);
  }
  end_ops_with(*gone, errc::peer_failed);
  if (gone->how == departure::returned) return;  // nothing has gone wrong with it
  runtime::flight_record record;
  record.began_ns = record.ended_ns = services_.clocks.local(executor_.now());
  record.what = runtime::flight_event::peer_lost;
  record.tag = gone->who;
  flight_.add(record);
  dump_after_fault(why);
}

void rank::on_fenced(std::string_view why) noexcept {
  if (!host_->fenced_) host_->fenced_ = why;
  host_->for_each_end([&](const actors::op_declaration& op, const auto&, const auto& end) {
    end(error{errc::fenced, op.about(id()), *host_->fenced_}, id());
  });
}

void op_host::end_if_lost() noexcept {
  for (const actors::loss& l : losses_.all()) end_ops_with(l, errc::peer_failed);
  if (fenced_) self.on_fenced(*fenced_);
}

task<> rank::settle(time_ns limit_ns) {
  host_->leaving_ = true;
  const time_ns began = executor_.precise_now();
  const auto owing = [this] {
    return std::any_of(host_->outs_.begin(), host_->outs_.end(), [](const auto& e) { return e->owes_messages(); }) ||
           std::any_of(host_->ins_.begin(), host_->ins_.end(), [](const auto& e) { return e->owes_messages(); }) ||
           std::any_of(host_->groups_.begin(), host_->groups_.end(),
                       [](const auto& g) { return g->owes_messages(); }) ||
           std::any_of(host_->symmetrics_.begin(), host_->symmetrics_.end(),
                       [](const auto& e) { return e->owes_messages(); }) ||
           std::any_of(host_->attached_.begin(), host_->attached_.end(),
                       [](const auto& e) { return e->owes_messages(); });
  };
  const auto may_leave = [this] {
    bool all = true;
    for (const auto& e : host_->symmetrics_) all &= e->may_leave();
    return all;
  };
  for (time_ns pause = shortest_pause_ns;; pause = std::min(2 * pause, longest_pause_ns)) {
    // A sender that leaves after this rank must know that its last data was taken; later nobody would answer its question.
    for (const auto& e : host_->ins_) e->report_matches();
    // A receiver may be slow, and what it has not matched would be lost with this rank.
    const bool bound = !may_leave();
    time_ns waiting_ns = bound || owing() ? limit_ns : 0;
    for (const auto& e : host_->outs_) {
      if (!e->delivered()) waiting_ns = std::max(waiting_ns, host_->services_.patient(e->timeout_ns()));
    }
    for (const auto& g : host_->groups_) {
      if (!g->settled()) waiting_ns = std::max(waiting_ns, host_->services_.patient(g->timeout_ns()));
    }
    if (executor_.now() - began >= waiting_ns) co_return;
    auto slept = co_await runtime::sleep_for(pause);
    if (!slept) co_return;
  }
}

// What a rank has taken that did not return is not known, and no matter.
void op_host::note_undelivered(edge_out& e) {
  if (e.delivered() || losses_.has_failed(e.peer())) return;
  const auto [sent, unmatched] = e.sender().delivery();
  undelivered_.emplace_back(
      e.peer(), e.declaration().title() + ", on rank " + std::to_string(id()) + ": rank " + std::to_string(e.peer()) +
                    " has not taken " + std::to_string(unmatched) + " of the " + std::to_string(sent) +
                    " messages that were sent to it; let it receive each message before it returns");
}

left_over rank::unfinished() {
  for (const auto& e : host_->outs_) host_->note_undelivered(*e);
  left_over all;
  for (auto& [to, line] : std::exchange(host_->undelivered_, {})) all.undelivered.push_back(std::move(line));
  for (const auto* ends : {&host_->outs_, &host_->ended_outs_}) {
    for (const auto& e : *ends) {
      for (std::string& line : e->untold_refusals()) all.undelivered.push_back(std::move(line));
    }
  }
  for (const auto& g : host_->groups_) {
    if (!g->settled())
      all.undelivered.push_back(g->declaration().title() + ", on rank " + std::to_string(id()) +
                                ": some of its ranks have not taken all that was sent to them; let all run the same "
                                "invocations before they return");
  }
  for (const actors::participant_state* p : participants()) {
    if (p->rejected) all.rejected.push_back("the declaration was refused: " + p->rejected->what());
  }
  return all;
}

namespace {
// Who tells of a line that nothing has used: of a common file all ranks know, and one is enough.
rank_id first_rank_of(std::string_view op, rank_id world_size) {
  const std::size_t slash = op.rfind('/');
  rank_id first = 0;
  if (slash == std::string_view::npos) return 0;
  const std::string_view rest = op.substr(slash + 1);
  const auto [end, fault] = std::from_chars(rest.data(), rest.data() + rest.size(), first);
  return fault == std::errc() && first < world_size ? first : 0;
}
}  // namespace

std::vector<tuning::result_entry> rank::learned() const {
  std::vector<tuning::result_entry> all;
  std::set<std::pair<std::string, std::string>> decided;
  const auto add = [&](const actors::participant_state* p) {
    for (const actors::decision_record& d : p->decisions) {
      auto entry = entry_of(p->declaration, p->id_of(d.digest), d);
      if (entry && decided.emplace(entry->op, entry->parameters).second) all.push_back(std::move(*entry));
    }
  };
  for (const actors::participant_state* p : participants()) add(p);
  for (const actors::participant_state* p : ended_participants()) add(p);
  if (host_->kernels_ != nullptr && host_->kernels_->is_kept_with_rank())
    all.insert(all.end(), host_->kernels_->learned().begin(), host_->kernels_->learned().end());
  return all;
}

tuning::results_file rank::results() const {
  tuning::results_file file;
  for (const tuning::validator& v : settings_->validators) static_cast<void>(file.add(v));
  for (tuning::result_entry& e : learned()) static_cast<void>(file.add(std::move(e)));
  for (const tuning::result_entry& r : host_->results_.remembered().entries()) static_cast<void>(file.add(r));
  return file;
}

std::vector<tuning::result_entry> rank::superseded() const {
  std::vector<tuning::result_entry> all;
  for (const tuning::result_entry& e : learned()) {
    const auto* before = host_->results_.remembered().find(e.op, e.parameters);
    if (before != nullptr && before->solution != e.solution) all.push_back(*before);
  }
  return all;
}

std::vector<std::string> rank::untuned() const {
  std::vector<std::string> lines;
  for (const actors::participant_state* p : participants()) {
    if (p->assigned == nullptr) continue;
    for (const auto& c : p->assigned->campaigns()) {
      if (c->where == actors::campaign::stage::decided && c->source == actors::decision_source::tuning_off)
        lines.push_back(entry_name(p->declaration) + "," + c->key);
    }
  }
  if (host_->kernels_ != nullptr)
    lines.insert(lines.end(), host_->kernels_->untuned().begin(), host_->kernels_->untuned().end());
  return lines;
}

runtime::result<std::string> rank::write_results() {
  if (host_->results_.disk() != nullptr && !settings_->untuned_path.empty()) {
    const std::string path = tuning::name_with_ordinal(settings_->untuned_path, id());
    if (const auto written = record_untuned(*host_->results_.disk(), path, untuned()); !written)
      host_->results_.warn({"the list of what was not tuned is not kept: " + written.reason().text()});
  }
  if (host_->kernels_ != nullptr) host_->kernels_->write_own_file();
  return host_->results_.add(results(), superseded());
}

std::vector<std::string> rank::idle_pins() const {
  std::set<std::string> met;
  const auto add = [&](const actors::participant_state* p) {
    for (const actors::decision_record& d : p->decisions) met.insert(entry_name(p->declaration) + "," + d.key);
  };
  for (const actors::participant_state* p : participants()) add(p);
  for (const actors::participant_state* p : ended_participants()) add(p);
  std::vector<tuning::result_entry> known = host_->results_.remembered().entries();
  if (host_->kernels_ != nullptr && host_->kernels_->has_own_file()) {
    const tuning::results_file of_kernels = host_->kernels_->get_tuning_results();
    known.insert(known.end(), of_kernels.entries().begin(), of_kernels.entries().end());
  }
  const bool tells_of_kernels = id() == 0 || (host_->kernels_ != nullptr && host_->kernels_->has_own_file());
  std::vector<std::string> warnings;
  for (const tuning::result_entry& e : known) {
    const bool mine = e.is_of_kernel() ? tells_of_kernels : first_rank_of(e.op, world_size()) == id();
    if (!e.pins_default() || !mine) continue;
    const std::string name = e.op.substr(0, e.op.find('@'));
    const bool of_kernel = host_->kernels_ != nullptr && host_->kernels_->has_asked_for(e.op, e.parameters);
    if (!of_kernel && !met.contains(name + "," + e.parameters))
      warnings.push_back(
          "the results file pins the default for `" + e.op + "," + e.parameters +
          "`, which nothing here has used: see whether the op, its ranks and the key are written as in " +
          "a line that a job wrote");
  }
  return warnings;
}

std::vector<edge_agreement> rank::agreements() const {
  std::vector<edge_agreement> all;
  for (const auto& e : host_->outs_) {
    all.push_back({e->declaration().name,
                   id(),
                   e->peer(),
                   &e->assigned(),
                   &e->coordinator().warm_errors,
                   e->participant().no_common_config,
                   {},
                   &e->participant().decisions});
  }
  for (const auto& g : host_->groups_) {
    if (!g->leads()) continue;
    const auto& members = g->data_path().members();
    all.push_back({g->declaration().name, id(), members.back(), g->assigned(), &g->coordinator()->warm_errors,
                   g->participant().no_common_config, members, &g->participant().decisions});
  }
  for (const auto& e : host_->symmetrics_) {
    if (!e->leads()) continue;
    std::vector<rank_id> members;
    for (const auto& p : e->declaration().participants) members.push_back(p.rank);
    all.push_back({e->declaration().name, id(), members.back(), e->assigned(), &e->coordinator()->warm_errors,
                   e->participant().no_common_config, members, &e->participant().decisions});
  }
  for (const auto& a : host_->attached_) {
    const actors::participant_state* const p = a->participant();
    if (p == nullptr || p->assigned == nullptr) continue;
    all.push_back({p->declaration.name,
                   id(),
                   p->declaration.participants.back().rank,
                   p->assigned,
                   &p->warm_errors,
                   p->no_common_config,
                   {},
                   &p->decisions});
  }
  return all;
}

std::vector<std::string> rank::attached_titles() const {
  std::vector<std::string> all;
  for (const auto& a : host_->attached_) all.push_back(a->declaration().title());
  return all;
}

std::vector<edge_decision> rank::decisions() const {
  std::vector<edge_decision> all;
  for (const actors::participant_state* p : participants()) {
    const auto& op = p->declaration;
    for (const auto& d : p->decisions) all.push_back({op.name, op.leader, op.participants.back().rank, d});
  }
  for (const auto& a : host_->attached_) {
    const auto& op = a->declaration();
    for (const auto& [name, d] : a->decisions())
      all.push_back({name, op.leader, op.participants.back().rank, as_record(op, d, id())});
  }
  return all;
}

runtime::result<tuning::predicted_time> rank::predict(std::string_view op, std::string_view config, std::uint64_t bytes,
                                                      rank_id of) const {
  tuning::time_model model(kinds_);
  const auto add = [&](const actors::participant_state& known) {
    if (known.declaration.name != op) return;
    for (const actors::decision_record& d : known.decisions) {
      const auto key = tuning::parse_key(op, d.key);
      if (!key) continue;
      for (const actors::wire_evidence& e : d.evidence) {
        for (const actors::wire_own_time& own : e.ranks) {
          if (const std::string* ran = known.id_of(own.ran))
            model.add({own.rank, *ran, key->size.largest_bytes(), own.time_ns});
        }
      }
    }
  };
  for (const auto& g : host_->groups_) add(g->participant());
  for (const auto& e : host_->symmetrics_) add(e->participant());
  auto p = model.predict(of, config, tuning::size_bucket::of(bytes).largest_bytes());
  if (!p) return error{errc::unavailable, "op " + std::string(op) + ": " + p.reason().text};
  return std::move(p).value();
}

std::vector<const actors::participant_state*> rank::participants() const {
  std::vector<const actors::participant_state*> all;
  for (const auto& e : host_->outs_) all.push_back(&e->participant());
  for (const auto& e : host_->ins_) all.push_back(&e->participant());
  for (const auto& g : host_->groups_) all.push_back(&g->participant());
  for (const auto& e : host_->symmetrics_) all.push_back(&e->participant());
  for (const auto& a : host_->attached_) {
    if (const actors::participant_state* const p = a->participant()) all.push_back(p);
  }
  return all;
}

std::vector<const actors::participant_state*> rank::ended_participants() const {
  std::vector<const actors::participant_state*> all;
  for (auto e = host_->ended_outs_.rbegin(); e != host_->ended_outs_.rend(); ++e) all.push_back(&(*e)->participant());
  for (auto e = host_->ended_ins_.rbegin(); e != host_->ended_ins_.rend(); ++e) all.push_back(&(*e)->participant());
  for (const auto& g : host_->groups_) g.for_each_ended([&](const group_end& e) { all.push_back(&e.participant()); });
  for (const auto& s : host_->symmetrics_)
    s.for_each_ended([&](const symmetric_end& e) { all.push_back(&e.participant()); });
  for (const auto& a : host_->attached_) {
    a.for_each_ended([&](const attached_op& e) {
      if (const actors::participant_state* const p = e.participant()) all.push_back(p);
    });
  }
  return all;
}

std::vector<symmetric_end*> rank::ops_without_headers() const {
  std::vector<symmetric_end*> all;
  for (const auto& e : host_->symmetrics_) all.push_back(&*e);
  return all;
}

void rank::abandon_rehearsals() noexcept {
  for (const auto& e : host_->symmetrics_) e->abandon();
}

std::uint64_t rank::flow_messages() const noexcept {
  std::uint64_t count = 0;
  for (const auto& e : host_->outs_) count += e->sender().statistics().questions_sent;
  for (const auto& e : host_->ins_) count += e->receiver().statistics().matched_sent;
  for (const auto& g : host_->groups_) count += g->data_path().statistics().flow_messages;
  return count;
}

}  // namespace parley::ops
