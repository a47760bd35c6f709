#include <parley/simulation/checkers/observer.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/simulation/checkers/op_states.hpp>
#include <parley/simulation/checkers/rank_views.hpp>

#include <boost/container_hash/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>

#include <algorithm>
#include <optional>
#include <tuple>

namespace parley::simulation {

// Counts messages by op, sender and receiver.
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

observer::observer(run_record& into, world& w, actors::window_limits window, std::uint32_t control_window,
                   std::uint64_t first_invocation)
    : record_(into), world_(w), census_(std::make_unique<census>()),
      watchers_([this](std::string_view invariant,
                       std::string text) { record_.at_once.push_back({std::string(invariant), std::move(text)}); },
                control_window),
      windows_(w.stage(), window, first_invocation), breaches_([this](const runtime::breach& b) {
        record_.at_once.push_back({std::string(b.name), b.sentence(), b.where.op});
      }) {
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

namespace {
bool somebody_rehearses(const world& w) {
  for (rank_id r = 0; r < w.ranks(); ++r) {
    const ops::rank* const self = w.find(r);
    if (self == nullptr) continue;
    for (const actors::participant_state* p : self->participants()) {
      if (p->rehearsing != 0) return true;
    }
  }
  return false;
}
}  // namespace

void observer::end_job(ending how) {
  ending_ = true;
  cutting_ = how == ending::cut_short;
  if (!cutting_) {
    // A program may end while an op rehearses a config. The messages of that rehearsal have no receiver then, so they do not count.
    if (!record_.play->ops.empty() || !somebody_rehearses(world_)) record_.pending_left += world_.network().pending();
    record_.exposed_left += world_.network().exposed();
  }
  world_.end_job();
  census_->add_to(record_);
  ending_ = cutting_ = false;
}

// If the job ends early, the view has no decisions.
participant_view observer::view_of(rank_id r, const actors::participant_state& p, bool ended) const {
  participant_view v = simulation::view_of(static_cast<std::size_t>(world_.job()), r, p, ended);
  v.left = world_.has_left(r);
  if (cutting_) v.decisions.clear();
  if (ending_ && !cutting_) v.owed = p.owed;
  return v;
}

// Records the pairs that `peer`'s return moves to a new generation and that continue by themselves.
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

// Removes the records of generations that had not really ended, because their rank was fenced before it could rejoin. These generations are
// recorded again later.
void observer::forget_ends_that_were_none(rank_id r) {
  if (!generations_ended_) return;
  const std::vector<const actors::participant_state*> there = world_.find(r)->participants();
  std::erase_if(record_.participants, [&](const participant_view& v) {
    return v.ended && v.job == world_.job() && v.rank == r &&
           std::any_of(there.begin(), there.end(),
                       [&](const auto* p) { return p->declaration.id() == v.id && p->generation == v.generation; });
  });
}

// Records everything that checkers need of a rank, before it ends.
void observer::look_at(rank_id r) {
  const ops::rank& self = *world_.find(r);
  forget_ends_that_were_none(r);
  const std::size_t first = record_.participants.size();
  for (const actors::participant_state* p : self.participants())
    record_.participants.push_back(view_of(r, *p, !ending_ && !world_.has_left(r)));
  for (const ops::op_end* e : self.ops()) {
    if (e->is(ops::op_end::kind::other)) record_.other_ops.insert(std::string(op_of(e->declaration().title())));
  }
  if (!cutting_) look_at_searches(self, first);
  if (record_.play->ops.empty()) {
    for (ops::op_end* e : self.ops()) {
      if (e->is(ops::op_end::kind::without_headers))
        record_.leases.push_back(
            gates_of(static_cast<std::size_t>(world_.job()), r, static_cast<ops::symmetric_end&>(*e)));
    }
  }
  if (on_end) on_end(r);
  add_flights(record_, static_cast<std::size_t>(world_.job()), self);
}

void observer::look_at_searches(const ops::rank& self, std::size_t first_participant) {
  const std::size_t first = record_.searches.size();
  add_searches(record_, static_cast<std::size_t>(world_.job()), self, first_participant);
  const time_ns ahead = world_.stage().clock(self.id()).now() - world_.stage().now();
  for (std::size_t i = first; i < record_.searches.size(); ++i) {
    record_.searches[i].ended = !ending_;
    record_.searches[i].search_began_ns -= ahead;
  }
}

}  // namespace parley::simulation
