#include <parley/rank.hpp>

#include <parley/actors/inquiries.hpp>
#include <parley/ops/core/decision_record.hpp>
#include <parley/ops/core/op_host.hpp>
#include <parley/ops/core/op_results.hpp>
#include <parley/ops/job/check_process.hpp>
#include <parley/runtime/version.hpp>
#include <parley/tuning/key.hpp>

#include <algorithm>
#include <charconv>
#include <map>
#include <ranges>
#include <set>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

constexpr time_ns shortest_pause_ns = 1'000'000;
constexpr time_ns longest_pause_ns = 20'000'000;
// A leaving rank asks this number of ops in one round, because a control window always has room for so many questions.
constexpr std::size_t asked_at_once = 32;

}  // namespace

std::shared_ptr<const rank_settings> rank::complete(rank_settings settings, rank_id world_size) {
  settings.validators.insert(settings.validators.begin(), {{"PARLEY_VERSION", std::string(runtime::version_text)},
                                                           {"PARLEY_WORLD", std::to_string(world_size)}});
  if (!settings.masked.empty()) settings.validators.push_back({"PARLEY_MASK", text_of(settings.masked)});
  return std::make_shared<const rank_settings>(std::move(settings));
}

// `net` is a reference, so moving `on` does not change it.
rank::rank(rank_foundation on, rank_settings settings)
    : rank(std::move(on), complete(std::move(settings), on.net.world_size())) {}  // NOLINT(bugprone-use-after-move)

rank::rank(rank_foundation on, std::shared_ptr<const rank_settings> settings)
    : executor_(on.ex), net_(on.net), settings_(settings),
      host_(std::make_unique<op_host>(on_call_failed, std::move(on), std::move(settings))) {}

std::string rank::kind_of(rank_id r) const { return host_->kind_of(r); }
op_host& op_host::of(rank& self) noexcept { return *self.host_; }

const machine& rank::machine() const noexcept { return host_->machine_; }
actors::services& rank::services() noexcept { return host_->services_; }
tunable_context& rank::kernels() const { return host_->kernels_ == nullptr ? host_->make_kernels() : *host_->kernels_; }
std::uint64_t rank::restarts_heard() const noexcept { return host_->restarts_heard_; }
std::uint32_t rank::own_restarts() const { return runtime::restarts_of(host_->services_.incarnations.of(id())); }
const tuning::results_file& rank::remembered() const noexcept { return host_->results_.remembered(); }
const runtime::flight_recorder& rank::flight() const noexcept { return host_->flight_; }
const runtime::router& rank::mail() const noexcept { return host_->mail_; }
const actors::data_hub& rank::data() const noexcept { return host_->data_; }
const std::vector<std::string>& rank::warnings() const noexcept { return host_->results_.warnings(); }

runtime::waiting_list rank::waiting() const { return host_->waiting(); }

runtime::result<std::string> rank::dump_flight(std::string_view why, const std::string& folder) {
  check_process(executor_, "the flight recorder was to be written");
  return host_->dump_flight(why, folder);
}

rank::~rank() = default;

namespace {
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

op_host& rank::keep(std::unique_ptr<op_end> op) {
  host_->declare_once(op->declaration());
  host_->add(std::move(op));
  host_->end_if_lost();
  return *host_;
}

std::size_t rank::retune(std::string_view op, std::string_view why) {
  check_process(executor_, "a search was asked for");
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

void rank::on_restarted(rank_id peer, std::uint64_t incarnation) {
  if (peer >= world_size() || peer == id())
    runtime::raise({errc::bad_argument, "rank " + std::to_string(peer) + " cannot be a restarted peer of rank " +
                                            std::to_string(id()) + " in a world of " + std::to_string(world_size())});
  if (host_->fenced_ || host_->services_.incarnations.of(peer) == incarnation) return;
  for (declared_edge& e : host_->declared_edges_) e.before_restart_of(peer);
  host_->end_ops_with({peer,
                       " has restarted; transfers with it continue in a new generation, from their first invocation; "
                       "other ops continue when all their ranks have called rejoin",
                       departure::died,
                       {peer, " has restarted"}},
                      errc::peer_restarted);
  host_->losses_.forget(peer);
  std::erase_if(host_->undelivered_,
                [peer](const auto& u) { return u.first == peer; });  // the program knows of the loss and continues
  host_->services_.incarnations.replace(peer, incarnation);
  host_->mail_.forget(peer, incarnation);
  for (declared_edge& e : host_->declared_edges_) {
    if (e.peer() == peer) e.on_restarted();
  }
  ++host_->restarts_heard_;
}

task<bool> rank::until_restart(std::uint64_t before, std::chrono::nanoseconds limit) {
  check_process(executor_, "a restart was waited for");
  const time_ns until = host_->ranks_come_back_ ? executor_.deadline_in(limit.count()) : executor_.now();
  for (time_ns pause = shortest_pause_ns;
       host_->restarts_heard_ <= before && !host_->fenced_ && executor_.now() < until;
       pause = std::min(2 * pause, longest_pause_ns)) {
    auto slept = co_await runtime::sleep_until(std::min(executor_.deadline_in(pause), until));
    if (!slept) break;
  }
  co_return host_->restarts_heard_ > before && !host_->fenced_;
}

void rank::on_lost(rank_id lost, std::string_view why, departure how) noexcept { host_->lose(lost, why, how); }

void rank::on_ended(rank_id ended, const runtime::root_cause& began_with) noexcept {
  if (host_->fenced_) return;
  host_->end_after(host_->losses_.add_ended(ended, began_with, executor_.precise_now()), began_with.what);
}

void rank::on_fenced(std::string_view why) noexcept { host_->fence(why); }

error rank::traced(const error& why) const { return host_->losses_.traced(why, executor_.now()); }
runtime::root_cause rank::cause_of(const error& why) const { return host_->losses_.cause_of(why); }

task<> rank::settle(std::chrono::nanoseconds limit) {
  check_process(executor_, "the job was to be settled");
  host_->leaving_ = true;
  const time_ns began = executor_.precise_now();
  std::size_t first = 0;
  std::size_t untaken_before = 0;
  for (time_ns pause = shortest_pause_ns;; pause = std::min(2 * pause, longest_pause_ns)) {
    std::vector<op_end*> all = ops();
    // The window has no room for the questions of all ops. Each round begins with other ops, so that no op has to wait because another op
    // gets no reply.
    if (all.size() > asked_at_once) {
      std::rotate(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(first % all.size()), all.end());
      first += asked_at_once;
    }
    bool bound = false;
    for (op_end* const e : all) bound |= !e->may_leave();
    for (const op_end* const e : all) bound = bound || e->owes_messages();
    time_ns waiting_ns = bound ? limit.count() : 0;
    // A receiver may be slow, and messages that it has not received would be lost with this rank.
    std::size_t untaken = 0;
    for (op_end* const e : all) {
      const time_ns its_ns = host_->services_.patient(e->untaken_ns());
      untaken += its_ns != 0 ? 1 : 0;
      waiting_ns = std::max(waiting_ns, its_ns);
    }
    if (executor_.now() - began >= waiting_ns) co_return;
    if (std::exchange(untaken_before, untaken) > untaken) pause = shortest_pause_ns;  // room for more questions
    auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(pause));
    if (!slept) co_return;
  }
}

left_over rank::unfinished() {
  for (op_end& e : host_->ops()) host_->note_undelivered(e);
  left_over all;
  for (auto& [to, line] : std::exchange(host_->undelivered_, {})) all.undelivered.push_back(std::move(line));
  for (const auto& e : host_->ops_) e->list_left_over(all.undelivered);
  if (const std::uint64_t dropped = where().take_dropped(); dropped != 0)
    all.undelivered.push_back(
        std::to_string(dropped) + (dropped == 1 ? " scope or dataflow" : " scopes or dataflows") +
        " ended and dropped unfinished work: `co_await` every `join()` before its scope or dataflow ends");
  for (const actors::participant_state* p : participants()) {
    if (p->rejected) all.rejected.push_back("the declaration was refused: " + p->rejected->what());
  }
  return all;
}

namespace {
// The rank that reports an unused line of a results file. All ranks read a common file, and one report is enough.
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

std::vector<decision> rank::explained() const {
  std::vector<decision> all;
  for (const actors::participant_state* p : participants()) {
    if (p->declaration.leader != id()) continue;
    for (const actors::decision_record& d : p->decisions) {
      const auto entry = entry_of(p->declaration, p->id_of(d.digest), d);
      if (!entry || d.source != actors::decision_source::trials) continue;
      decision& one = all.emplace_back(decision_of(*p, d, id()));
      one.op = entry->op;
      one.key = entry->parameters;
    }
  }
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
    for (const auto& c : p->assigned->searches()) {
      if (c->is_decided() && c->chosen().source == actors::decision_source::tuning_off)
        lines.push_back(entry_name(p->declaration) + "," + c->key());
    }
  }
  if (host_->kernels_ != nullptr)
    lines.insert(lines.end(), host_->kernels_->untuned().begin(), host_->kernels_->untuned().end());
  return lines;
}

runtime::result<std::string> rank::write_results() {
  check_process(executor_, "its results were to be written");
  if (host_->results_.disk() != nullptr && !settings_->untuned_path.empty()) {
    const std::string path = tuning::name_with_ordinal(settings_->untuned_path, id());
    if (const auto written = record_untuned(*host_->results_.disk(), path, untuned()); !written)
      host_->results_.warn({"the list of calls that were not tuned could not be written: " + written.reason().text()});
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
          "`, but this rank has used no such key: compare the op, its ranks and the key with a line that a job wrote");
  }
  return warnings;
}

std::vector<std::string> rank::idle_rules() const {
  const auto is_used = [this](const tuning::rule& r) {
    for (const auto& all : {participants(), ended_participants()}) {
      for (const actors::participant_state* p : all) {
        if (entry_name(p->declaration) != r.op) continue;
        for (const actors::decision_record& d : p->decisions) {
          const auto key = tuning::parse_key(r.op, d.key);
          if (key && r.fits(d.key, key->size.largest_bytes())) return true;
        }
      }
    }
    return host_->kernels_ != nullptr && host_->kernels_->has_met(r);
  };
  std::vector<std::string> warnings;
  for (const tuning::rule& r : settings().rules.all()) {
    const bool of_kernel = r.op.find('/') == std::string::npos;
    const bool mine = of_kernel ? id() == 0 : first_rank_of(r.op, world_size()) == id();
    if (mine && r.op.find_first_of("*?") == std::string::npos && !is_used(r))
      warnings.push_back(r.place + " fits nothing that this rank has used: compare its op and key, " + r.op + "," +
                         r.key + ", with a line of a results file");
  }
  return warnings;
}

std::vector<std::string> rank::idle_masks() const {
  std::set<std::string> met;
  for (const auto& all : {participants(), ended_participants()}) {
    for (const actors::participant_state* p : all) {
      for (const tuning::catalogue::entry& c : p->configs.entries()) met.insert(c.identity.name);
    }
  }
  std::vector<std::string> warnings;
  for (const masked_capability& m : settings().masked) {
    const bool mine = m.rank ? *m.rank == id() : id() == 0;
    if (!mine || met.empty() || met.contains(m.name) || machine::is_capability(m.name)) continue;
    warnings.push_back("the mask " + text_of(std::vector{m}) + " hides nothing on rank " + std::to_string(id()) +
                       ": none of its operations has a config of that name; a config's name has no parameters, as in "
                       "`chunked`");
  }
  return warnings;
}

std::vector<edge_agreement> rank::agreements() const {
  std::vector<edge_agreement> all;
  for (const op_end& e : host_->ops()) {
    const actors::participant_state* const p = e.as_participant();
    if (p == nullptr || p->assigned == nullptr) continue;
    const auto* const leads = e.coordinator();
    edge_agreement& one = all.emplace_back();
    one.op = p->declaration.name;
    one.sender = id();
    one.receiver = p->declaration.participants.back().rank;
    one.assigned = p->assigned;
    one.warm_errors = leads == nullptr ? &p->warm_errors : &leads->warm_errors;
    one.no_common_config = p->no_common_config;
    one.decisions = &p->decisions;
    if (!e.is_collective()) continue;
    for (const auto& member : p->declaration.participants) one.group.push_back(member.rank);
  }
  return all;
}

std::vector<edge_decision> rank::decisions() const {
  std::vector<edge_decision> all;
  for (const actors::participant_state* p : participants()) {
    const auto& op = p->declaration;
    for (const auto& d : p->decisions) all.push_back({op.name, op.leader, op.participants.back().rank, d});
  }
  for (const op_end& e : host_->ops()) {
    const auto& op = e.declaration();
    for (const auto& [name, d] : e.decisions())
      all.push_back({name, op.leader, op.participants.back().rank, as_record(op, d, id())});
  }
  return all;
}

runtime::result<tuning::predicted_time> rank::predict(std::string_view op, std::string_view config, std::uint64_t bytes,
                                                      rank_id of) const {
  tuning::time_model model(host_->kinds_);
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
  for (const op_end& e : host_->ops()) {
    if (e.is_collective()) add(*e.as_participant());
  }
  auto p = model.predict(of, config, tuning::size_bucket::of(bytes).largest_bytes());
  if (!p) return error{errc::unavailable, "op " + std::string(op) + ": " + p.reason().text};
  return std::move(p).value();
}

std::vector<op_end*> rank::ops() const {
  std::vector<op_end*> all;
  for (op_end& e : host_->ops()) all.push_back(&e);
  return all;
}

std::vector<const actors::participant_state*> rank::participants() const {
  std::vector<const actors::participant_state*> all;
  for (const op_end& e : host_->ops()) {
    if (const auto* const p = e.as_participant()) all.push_back(p);
  }
  return all;
}

std::vector<const actors::participant_state*> rank::ended_participants() const {
  std::vector<const actors::participant_state*> all;
  for (const auto& e : host_->ops_ | std::views::reverse) {
    const auto* const p = e->has_ended() ? e->as_participant() : nullptr;
    if (p != nullptr) all.push_back(p);
  }
  return all;
}

void rank::abandon_rehearsals() noexcept {
  for (op_end& e : host_->ops()) e.abandon();
}

std::uint64_t rank::flow_messages() const noexcept {
  std::uint64_t count = 0;
  for (const op_end& e : host_->ops()) count += e.flow_messages();
  return count;
}

std::uint64_t rank::repeated_messages() const noexcept { return host_->services_.repeated; }

}  // namespace parley::ops
