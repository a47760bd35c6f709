#include <parley/ops/rank.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/version.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

std::uint64_t hash_of(const std::vector<tuning::validator>& validators) {
  std::uint64_t h = 1;
  for (const tuning::validator& v : validators) {
    for (const char c : v.name + "\n" + v.value + "\n") h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return runtime::mix(h);
}

// The results file's name of an edge or group; commas and blanks have no place there.
std::string entry_name(const actors::op_declaration& op) {
  constexpr std::size_t shown = 16;  // of a larger group, the first and the last
  const auto& all = op.participants;
  if (all.size() > shown)
    return op.name + "/" + std::to_string(all.front().rank) + ">..>" + std::to_string(all.back().rank) + " of " +
           std::to_string(all.size());
  std::string name = op.name;
  for (const auto& p : all) name += (&p == &all.front() ? "/" : ">") + std::to_string(p.rank);
  return name;
}

// What was measured between machines that differ has their combination in its op's name: `activations/0>1@9f3c…`.
std::string with_machines(const std::string& name, std::uint64_t machines) {
  return machines == 0 ? name : fmt::format("{}@{:016x}", name, machines);
}

std::vector<actors::remembered_best> remembered_of(const tuning::results_file& file, const std::string& name) {
  // A campaign has one key per bucket of sizes. A file may hold any number, and an offer is one message.
  constexpr std::size_t most = 4 * tuning::size_bucket::count;
  std::vector<actors::remembered_best> all;
  for (const auto* r : file.find_all(name + ",")) {
    if (all.size() < most) all.push_back({r->parameters, r->solution, r->time_ms});
  }
  for (const auto* r : file.find_all(name + "@")) {
    std::uint64_t machines = 0;
    const char* const digits = r->op.data() + name.size() + 1;
    const char* const end = r->op.data() + r->op.size();
    const auto [stopped, fault] = std::from_chars(digits, end, machines, 16);
    if (fault == std::errc{} && stopped == end && all.size() < most)
      all.push_back({r->parameters, r->solution, r->time_ms, machines});
  }
  return all;
}

constexpr time_ns shortest_pause_ns = 1'000'000;
constexpr time_ns longest_pause_ns = 20'000'000;

}  // namespace

rank::rank(rank_foundation on, rank_settings settings)
    : executor_(on.ex), net_(on.net), disk_(on.disk), settings_(std::move(settings)), flight_(settings_.flight_records),
      mail_(on.ex, on.net, on.mail), data_(on.net),
      services_{on.ex,
                actors_,
                on.net,
                mail_,
                data_,
                flight_,
                std::move(on.incarnations),
                0,
                actors::clock_book(std::move(on.hosts), on.net.rank(), on.skew)},
      actors_(on.ex) {
  auto& v = settings_.validators;
  v.insert(v.begin(), {{"PARLEY_VERSION", std::string(runtime::version_text)},
                       {"PARLEY_WORLD", std::to_string(net_.world_size())}});
  services_.validators_hash = hash_of(v);
  services_.incarnations.resize(net_.world_size());
  read_results();
}

rank::~rank() = default;

void rank::read_results() {
  if (disk_ == nullptr || settings_.results_path.empty()) return;
  for (const std::string& path : {settings_.results_path, tuning::name_with_ordinal(settings_.results_path, id())}) {
    auto text = disk_->read(path);
    if (!text) {
      if (text.code() != errc::unavailable) warnings_.push_back(text.reason().what());
      continue;
    }
    const auto parsed = tuning::parse_results(*text);
    if (!parsed) {
      warnings_.push_back(path + ": " + parsed.reason().text + "; the file is ignored and kept");
      continue;
    }
    for (const auto& w : parsed->warnings) warnings_.push_back(path + ":" + std::to_string(w.line) + ": " + w.text);
    if (const auto why = tuning::compare_validators(parsed->file.validators(), settings_.validators)) {
      warnings_.push_back(path + ": " + why->text + "; the file is ignored and kept");
      continue;
    }
    for (const auto& entry : parsed->file.entries()) static_cast<void>(remembered_.add(entry));
  }
}

void rank::complete(edge_options& o, const actors::op_declaration& op) const {
  const auto same = [&](const auto& e) { return e->declaration().id() == op.id(); };
  if (std::any_of(outs_.begin(), outs_.end(), same) || std::any_of(ins_.begin(), ins_.end(), same))
    runtime::raise({errc::bad_argument, op.title() + " is declared twice on rank " + std::to_string(id()) +
                                            "; give each op a name of its own"});
  o.policy = settings_.policy;
  o.plan = settings_.plan;
  o.plan.budget_fraction /= static_cast<double>(o.budget_sharers);
  o.window = settings_.window;
  o.mutant_ignores_stamp = settings_.mutant_ignores_stamp;
  o.remembered = remembered_of(remembered_, entry_name(op));
}

edge_out& rank::add_out(edge_options o) {
  complete(o, actors::declare_edge(o.name, id(), o.peer, o.dtype));
  const rank_id peer = o.peer;
  edge_out& added = *outs_.emplace_back(std::make_unique<edge_out>(services_, std::move(o)));
  if (std::find(lost_.begin(), lost_.end(), peer) != lost_.end()) on_lost(peer, "it had died before");
  return added;
}

edge_in& rank::add_in(edge_options o) {
  complete(o, actors::declare_edge(o.name, o.peer, id(), o.dtype));
  const rank_id peer = o.peer;
  edge_in& added = *ins_.emplace_back(std::make_unique<edge_in>(services_, std::move(o)));
  if (std::find(lost_.begin(), lost_.end(), peer) != lost_.end()) on_lost(peer, "it had died before");
  return added;
}

transfer rank::declare(const paired_transfer& op) {
  const auto edges = pair_up(op, world_size()).value();
  transfer t;
  t.name_ = op.name;
  t.self_ = id();
  t.where_ = &executor_;
  for (const auto& [from, to] : edges) {
    edge_options o;
    o.name = op.name;
    o.configs = op.configs;
    o.dtype = op.dtype;
    o.timeout_ns = op.timeout_ns;
    if (from == id()) {
      o.peer = to;
      t.outs_.push_back(&add_out(std::move(o)));
    } else if (to == id()) {
      o.peer = from;
      t.ins_.push_back(&add_in(std::move(o)));
    }
  }
  return t;
}

pipeline rank::declare(linear_pipeline op) {
  check_catalogue(op.name, op.configs).value();
  if (op.stages.empty()) {
    for (rank_id r = 0; r < world_size(); ++r) op.stages.push_back(r);
  }
  for (std::size_t i = 0; i < op.stages.size(); ++i) {
    const rank_id r = op.stages[i];
    if (r >= world_size() || std::count(op.stages.begin(), op.stages.end(), r) > 1)
      runtime::raise({errc::bad_argument, "op " + op.name + ": stage " + std::to_string(i) + " is on rank " +
                                              std::to_string(r) + ", which is outside the world of " +
                                              std::to_string(world_size()) + " or has a stage already"});
  }
  pipeline p;
  const auto mine = std::find(op.stages.begin(), op.stages.end(), id());
  if (mine == op.stages.end()) return p;
  p.stage_ = static_cast<std::size_t>(mine - op.stages.begin());
  p.stages_ = op.stages.size();
  edge_options o;
  o.name = op.name;
  o.configs = op.configs;
  o.dtype = op.dtype;
  o.timeout_ns = op.timeout_ns;
  o.budget_sharers = std::max<std::size_t>(p.stages_ - 1, 1);
  if (p.stage_ > 0) {
    o.peer = op.stages[p.stage_ - 1];
    p.in_ = &add_in(o);
  }
  if (p.stage_ + 1 < p.stages_) {
    o.peer = op.stages[p.stage_ + 1];
    p.out_ = &add_out(o);
  }
  return p;
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
    o.dtype = op.dtype;
    o.timeout_ns = op.timeout_ns;
    handle.end_ = &add_group(std::move(o));
  }
  return handle;
}

group_end& rank::add_group(group_options o) {
  const auto op = declaration_of(o).value();
  const auto same = [&](const auto& e) { return e->declaration().id() == op.id(); };
  if (std::any_of(groups_.begin(), groups_.end(), same) || std::any_of(outs_.begin(), outs_.end(), same) ||
      std::any_of(ins_.begin(), ins_.end(), same))
    runtime::raise({errc::bad_argument, op.title() + " is declared twice on rank " + std::to_string(id()) +
                                            "; give each op a name of its own"});
  o.policy = settings_.policy;
  o.plan = settings_.plan;
  o.window = settings_.window;
  o.mutant_ignores_stamp = settings_.mutant_ignores_stamp;
  o.remembered = remembered_of(remembered_, entry_name(op));
  group_end& added = *groups_.emplace_back(std::make_unique<group_end>(services_, std::move(o)));
  for (const rank_id lost : lost_) {
    if (added.has(lost)) on_lost(lost, "it had died before");
  }
  return added;
}

symmetric rank::declare(symmetric_op op) {
  const auto d = declaration_of(op, world_size()).value();
  symmetric handle;
  handle.name_ = op.name;
  const auto me = [this](const auto& p) { return p.rank == id(); };
  if (std::none_of(d.participants.begin(), d.participants.end(), me)) return handle;
  const auto same = [&](const auto& e) { return e->declaration().id() == d.id(); };
  if (std::any_of(symmetrics_.begin(), symmetrics_.end(), same) || std::any_of(groups_.begin(), groups_.end(), same) ||
      std::any_of(outs_.begin(), outs_.end(), same) || std::any_of(ins_.begin(), ins_.end(), same))
    runtime::raise({errc::bad_argument, d.title() + " is declared twice on rank " + std::to_string(id()) +
                                            "; give each op a name of its own"});
  auto& added = *symmetrics_.emplace_back(std::make_unique<symmetric_end>(
      services_, std::move(op),
      symmetric_settings{settings_.policy, settings_.plan, remembered_of(remembered_, entry_name(d))}));
  for (const rank_id lost : std::vector(lost_)) {
    if (added.has(lost)) on_lost(lost, "it had died before");
  }
  handle.end_ = &added;
  return handle;
}

void rank::on_lost(rank_id lost, std::string_view why) noexcept {
  if (std::find(lost_.begin(), lost_.end(), lost) == lost_.end()) lost_.push_back(lost);
  const auto end = [&](edge_end& e) {
    if (e.peer() != lost) return;
    e.fail(error{errc::peer_failed, e.declaration().title() + ", on rank " + std::to_string(id()) + ": rank " +
                                        std::to_string(lost) + " is gone: " + std::string(why) +
                                        "; restart the job to continue"});
  };
  for (auto& e : outs_) end(*e);
  for (auto& e : ins_) end(*e);
  for (auto& g : groups_) {
    if (!g->has(lost)) continue;
    g->fail(error{errc::peer_failed, g->declaration().title() + ", on rank " + std::to_string(id()) + ": rank " +
                                         std::to_string(lost) + " is gone: " + std::string(why) +
                                         "; restart the job to continue"},
            lost);
  }
  for (auto& s : symmetrics_) {
    if (!s->has(lost)) continue;
    s->fail(error{errc::peer_failed, s->declaration().title() + ", on rank " + std::to_string(id()) + ": rank " +
                                         std::to_string(lost) + " is gone: " + std::string(why) +
                                         "; restart the job to continue"});
  }
}

task<> rank::settle(time_ns limit_ns) {
  const time_ns began = executor_.now();
  // A sender that leaves after this rank must know that its last data was taken; later nobody would answer its question.
  for (const auto& e : ins_) e->report_matches();
  const auto owing = [this] {
    return std::any_of(outs_.begin(), outs_.end(), [](const auto& e) { return e->owes_messages(); }) ||
           std::any_of(ins_.begin(), ins_.end(), [](const auto& e) { return e->owes_messages(); }) ||
           std::any_of(groups_.begin(), groups_.end(), [](const auto& g) { return g->owes_messages(); }) ||
           std::any_of(symmetrics_.begin(), symmetrics_.end(), [](const auto& e) { return e->owes_messages(); });
  };
  for (time_ns pause = shortest_pause_ns;; pause = std::min(2 * pause, longest_pause_ns)) {
    // A receiver may be slow, and what it has not matched would be lost with this rank.
    time_ns waiting_ns = owing() ? limit_ns : 0;
    for (const auto& e : outs_) {
      if (!e->delivered()) waiting_ns = std::max(waiting_ns, e->timeout_ns());
    }
    for (const auto& g : groups_) {
      if (!g->settled()) waiting_ns = std::max(waiting_ns, g->timeout_ns());
    }
    if (executor_.now() - began >= waiting_ns) co_return;
    auto slept = co_await runtime::sleep_until(executor_.now() + pause);
    if (!slept) co_return;
  }
}

tuning::results_file rank::results() const {
  tuning::results_file file;
  for (const tuning::validator& v : settings_.validators) static_cast<void>(file.add(v));
  const auto add = [&](const auto& e) {
    for (const actors::decision_record& d : e.participant().decisions) {
      using actors::decision_source;
      if (d.source == decision_source::only_default || d.source == decision_source::tuning_off) continue;
      const auto& configs = e.participant().configs;
      const auto index = configs.find(d.digest);
      if (!index) continue;
      const bool pinned = d.source == decision_source::pin;
      const auto timed =
          std::find_if(d.evidence.begin(), d.evidence.end(), [&](const auto& v) { return v.digest == d.digest; });
      static_cast<void>(file.add(tuning::result_entry{with_machines(entry_name(e.declaration()), d.machines), d.key,
                                                      pinned ? std::string(tuning::pinned_default) : configs[*index].id,
                                                      timed == d.evidence.end() ? 0 : timed->time_ns / 1e6}));
    }
  };
  for (const auto& e : outs_) add(*e);
  for (const auto& e : ins_) add(*e);
  for (const auto& g : groups_) add(*g);
  for (const auto& e : symmetrics_) add(*e);
  for (const tuning::result_entry& r : remembered_.entries()) static_cast<void>(file.add(r));
  return file;
}

runtime::result<std::string> rank::write_results() {
  if (disk_ == nullptr || settings_.results_path.empty())
    return error{errc::unavailable, "no results file was asked for"};
  const std::string path = tuning::name_with_ordinal(settings_.results_path, id());
  // What was not trusted is not overwritten either.
  if (const auto there = disk_->read(path)) {
    const auto parsed = tuning::parse_results(*there);
    if (!parsed || tuning::compare_validators(parsed->file.validators(), settings_.validators))
      return error{errc::unavailable, path +
                                          " belongs to another version, machine or world and is kept; move it away to "
                                          "have new results written"};
  }
  const auto written = disk_->replace(path, tuning::write_results(results()));
  if (!written) return written.reason();
  return path;
}

std::vector<edge_agreement> rank::agreements() const {
  std::vector<edge_agreement> all;
  for (const auto& e : outs_) {
    all.push_back({e->declaration().name, id(), e->peer(), &e->assigned(), &e->coordinator().warm_errors,
                   e->participant().no_common_config});
  }
  for (const auto& g : groups_) {
    if (!g->leads()) continue;
    const auto& members = g->data_path().members();
    all.push_back({g->declaration().name, id(), members.back(), g->assigned(), &g->coordinator()->warm_errors,
                   g->participant().no_common_config, members});
  }
  return all;
}

std::vector<edge_decision> rank::decisions() const {
  std::vector<edge_decision> all;
  const auto add = [&](const auto& e) {
    const auto& op = e.declaration();
    for (const auto& d : e.participant().decisions)
      all.push_back({op.name, op.participants[0].rank, op.participants.back().rank, d});
  };
  for (const auto& e : outs_) add(*e);
  for (const auto& e : ins_) add(*e);
  for (const auto& e : symmetrics_) add(*e);
  return all;
}

std::uint64_t rank::flow_messages() const noexcept {
  std::uint64_t count = 0;
  for (const auto& e : outs_) count += e->sender().statistics().questions_sent;
  for (const auto& e : ins_) count += e->receiver().statistics().matched_sent;
  for (const auto& g : groups_) count += g->data_path().statistics().flow_messages;
  return count;
}

}  // namespace parley::ops
