#include <parley/simulation/observer.hpp>

#include <parley/simulation/op_programs.hpp>
#include <parley/simulation/op_states.hpp>

#include <boost/container_hash/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <optional>
#include <tuple>

namespace parley::simulation {

// Counts who talks to whom.
class observer::census final : public wire_tap {
 public:
  void on_send(const parcel& p, const fate&) override { ++counts_[{op_of(p), p.from, p.to}]; }
  void add_to(run_record& r) {
    for (const auto& [what, n] : counts_) {
      const auto& [op, from, to] = what;
      r.between[{from, to}] += n;
      if (op) r.of_op[{*op, from, to}] += n;
    }
    counts_.clear();
  }

 private:
  using way = std::tuple<std::optional<std::uint64_t>, rank_id, rank_id>;
  boost::unordered_flat_map<way, std::uint64_t, boost::hash<way>> counts_;
};

lease_view gates_of(std::size_t job, rank_id r, ops::symmetric_end& end) {
  lease_view v;
  v.job = job;
  v.rank = r;
  v.op = end.declaration().name;
  v.title = end.declaration().title();
  v.gates_met = end.leases().statistics().gates_met;
  v.leads = end.leads();
  if (!v.leads) return v;
  v.led = end.lease_coordinator()->statistics();
  for (const auto& k : end.assigned()->campaigns()) {
    v.searches += k->search;
    v.excluded += k->excluded.size();
  }
  return v;
}

observer::observer(run_record& into, world& w, actors::window_limits window, std::uint32_t control_window,
                   std::uint64_t first_invocation)
    : record_(into), world_(w), census_(std::make_unique<census>()),
      watchers_([this](std::string_view invariant,
                       std::string text) { record_.at_once.push_back({std::string(invariant), std::move(text)}); },
                control_window),
      windows_(w.stage(), window, first_invocation),
      breaches_([this](const runtime::breach& b) { record_.at_once.push_back({std::string(b.name), b.sentence()}); }) {
  record_.windows = &windows_;
  world_.before_end = [this](rank_id r) { look_at(r); };
  world_.before_meeting = [this](rank_id who, rank_id peer) { look_at_pairs(who, peer); };
}

observer::~observer() {
  world_.before_end = nullptr;
  world_.before_meeting = nullptr;
  world_.end_job();
}

void observer::listen(weather& sky, wire_tap* mutant) {
  sky.tap(*census_);
  if (mutant != nullptr) sky.tap(*mutant);
  sky.tap(watchers_);
  sky.tap(windows_);
}

void observer::end_job(ending how) {
  ending_ = true;
  cutting_ = how == ending::cut_short;
  if (!cutting_) {
    record_.pending_left += world_.network().pending();
    record_.exposed_left += world_.network().exposed();
  }
  world_.end_job();
  census_->add_to(record_);
  ending_ = cutting_ = false;
}

participant_view observer::view_of(rank_id r, const actors::participant_state& p, bool ended) const {
  participant_view v;
  v.job = world_.job();
  v.rank = r;
  v.ended = ended;
  v.op = p.declaration.name;
  v.title = p.declaration.title();
  v.id = p.declaration.id();
  v.generation = p.generation;
  v.c0 = p.declaration.default_digest;
  v.leads = p.declaration.leader == r;
  v.edge = p.declaration.participants.front().role == "sender";
  for (const auto& m : p.declaration.participants) v.members.push_back(m.rank);
  v.candidates = p.candidates;
  v.ready = p.ready;
  v.instead = p.instead;
  v.ids = p.ids;
  for (std::size_t i = 0; i < p.configs.size(); ++i) {
    v.classes[p.configs[i].digest] = p.configs[i].identity.wire_class;
    if (p.available.test(i)) v.available.insert(p.configs[i].digest);
  }
  if (!cutting_) v.decisions = p.decisions;
  if (ending_ && !cutting_) v.owed = p.owed;
  return v;
}

// Whose generation ends because a peer has come back, and which go on by themselves.
void observer::look_at_pairs(rank_id who, rank_id peer) {
  const auto rejoins = [this](const std::string& name) {
    return std::any_of(record_.play->ops.begin(), record_.play->ops.end(), [&](const op_spec& op) {
      return (op.what == op_spec::kind::pipeline || is_program(op.what)) && is_of(name, op.name);
    });
  };
  look_at_ended(who, [&](const actors::op_declaration& d) {
    const auto is_peer = [&](const auto& m) { return m.rank == peer; };
    return d.participants.front().role == "sender" && !rejoins(d.name) &&
           std::any_of(d.participants.begin(), d.participants.end(), is_peer);
  });
}

void observer::look_at_ended(rank_id who, const std::function<bool(const actors::op_declaration&)>& which) {
  for (const actors::participant_state* p : world_.find(who)->participants()) {
    if (!which(p->declaration)) continue;
    record_.participants.push_back(view_of(who, *p, true));
    generations_ended_ = true;
  }
}

// A generation that was to end goes on where its rank was fenced before it could rejoin: it is looked at once more.
void observer::forget_ends_that_were_none(rank_id r) {
  if (!generations_ended_) return;
  const std::vector<const actors::participant_state*> there = world_.find(r)->participants();
  std::erase_if(record_.participants, [&](const participant_view& v) {
    return v.ended && v.job == world_.job() && v.rank == r &&
           std::any_of(there.begin(), there.end(),
                       [&](const auto* p) { return p->declaration.id() == v.id && p->generation == v.generation; });
  });
}

// Everything that checkers want to know of a rank, before it ends.
void observer::look_at(rank_id r) {
  const ops::rank& self = *world_.find(r);
  forget_ends_that_were_none(r);
  const std::size_t first = record_.participants.size();
  for (const actors::participant_state* p : self.participants())
    record_.participants.push_back(view_of(r, *p, !ending_));
  if (!cutting_) look_at_campaigns(self, first);
  if (record_.play->ops.empty()) {
    for (ops::symmetric_end* end : self.ops_without_headers())
      record_.leases.push_back(gates_of(static_cast<std::size_t>(world_.job()), r, *end));
  }
  if (on_end) on_end(r);
  const std::vector<runtime::flight_record> flights = self.flight().in_order();
  record_.flights_lost += self.flight().total() - flights.size();
  for (const runtime::flight_record& f : flights) {
    if (runtime::is_transfer(f.what)) record_.flights.push_back({static_cast<std::size_t>(world_.job()), r, f});
  }
}

void observer::look_at_campaigns(const ops::rank& self, std::size_t first_participant) {
  each_campaign(self, [&](const ops::edge_agreement& a, const actors::campaign& c) {
    campaign_view v;
    v.job = world_.job();
    v.title = a.op + " " + std::to_string(a.sender) + "->" + std::to_string(a.receiver);
    for (std::size_t i = first_participant; i < record_.participants.size(); ++i) {
      const participant_view& p = record_.participants[i];
      if (p.leads && p.op == a.op && (!a.group.empty() || p.members.back() == a.receiver)) {
        v.op = p.id;
        v.generation = p.generation;
      }
    }
    v.ended = !ending_;
    v.key = c.key;
    v.bucket = c.bucket;
    v.searches_again = c.retry_at_ns != runtime::never;
    v.search = c.search;
    v.search_began_ns = world_.stage().now() - (world_.stage().clock(self.id()).now() - c.search_began_ns);
    v.where = c.where;
    v.digest = c.digest;
    v.invocations = c.invocations;
    v.winner = c.winner;
    v.why = c.why;
    std::size_t lacked = 0;
    for (const actors::campaign::shortage& s : c.shortages) lacked += s.lacked;
    v.progress = std::to_string(c.trials) + " trials, " + std::to_string(c.outstanding.size()) + " of this round, " +
                 std::to_string(c.unsettled) + " unsettled, " + std::to_string(c.cancelled) + " cancelled, search " +
                 std::to_string(c.search) + ", short of something " + std::to_string(lacked) + ", cost " +
                 std::to_string(c.cost_ns + c.pending_ns + c.earlier_cost_ns);
    for (const tuning::aggregate& g : c.aggregates)
      v.why += "; " + std::to_string(g.time_ns) + " ns of " + std::to_string(g.count) + " " + g.detail;
    v.source = c.source;
    v.cost_ns = c.cost_ns;
    record_.campaigns.push_back(std::move(v));
  });
}

}  // namespace parley::simulation
