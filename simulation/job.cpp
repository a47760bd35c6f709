#include <parley/simulation/job.hpp>

#include <parley/runtime/invariant.hpp>
#include <parley/simulation/checkers.hpp>
#include <parley/simulation/mutants.hpp>
#include <parley/simulation/programs.hpp>
#include <parley/simulation/trace.hpp>
#include <parley/simulation/watchers.hpp>

#include <algorithm>
#include <optional>

namespace parley::simulation {

namespace {

constexpr time_ns longest_job_ns = 400'000'000'000;
constexpr time_ns look_every_ns = 500'000'000;
constexpr int looks = 400;  // at what has not been decided

// Counts who talks to whom.
class census final : public wire_tap {
 public:
  explicit census(run_record& r) : record_(r) {}
  void on_send(const parcel& p, const fate&) override { ++record_.between[{p.from, p.to}]; }

 private:
  run_record& record_;
};

class runner {
 public:
  runner(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o)
      : play_(s), tape_(t), seed_(seed), sky_(t, seed, s.ranks), census_(record_), world_(options(o), &sky_),
        programs_(s, seed, world_, record_, o.mutant) {
    record_.play = &s;
    record_.windows =
        &windows_.emplace(world_.stage(), actors::window_limits{.invocations = s.window, .bytes = s.window_bytes});
    record_.faults = &t;
    record_.faulty_until_ns = s.faulty_ns;
    sky_.tap(census_);
    if (!o.mutant.empty() && find_mutant(o.mutant) == nullptr)
      runtime::raise({runtime::errc::bad_argument, "there is no mutant `" + o.mutant + "`"});
    mutant_ = make_mutant(o.mutant);
    if (mutant_) sky_.tap(*mutant_);
    sky_.tap(watchers_);
    sky_.tap(*windows_);
    if (o.trace != nullptr) sky_.tap(trace_.emplace(world_.stage()));
    trace_to_ = o.trace;
    breaches_.emplace(
        [this](const runtime::breach& b) { record_.at_once.push_back({std::string(b.name), b.sentence()}); });
    if (o.mutant == "not-deregistered" || o.mutant == "generation-end-not-fenced")
      world_.network().put_too_late = [this](std::uint64_t address, std::span<const std::byte> data) {
        programs_.write(address, data);
      };
    world_.before_end = [this](rank_id r) { look_at(r); };
    world_.before_meeting = [this](rank_id who, rank_id peer) { look_at_pairs(who, peer); };
    programs_.before_rejoining = [this](rank_id who, const std::string& op) {
      look_at_ended(who, [&](const actors::op_declaration& d) { return d.name == op; });
    };
    world_.after_meeting = [this](rank_id who, rank_id peer) { programs_.go_on(who, peer); };
    world_.on_fenced = [this](rank_id r) { record_.fenced.push_back({world_.job(), r, world_.stage().now()}); };
    world_.on_pace = [this](rank_id r, world::pace p) {
      programs_.slow_kernels(r, p == world::pace::slow ? 3'000 : 0);
    };
  }

  outcome run() {
    for (std::uint64_t job = 0; job < play_.jobs; ++job) run_job();
    outcome o;
    record_.messages = sky_.seen();
    record_.rehearsed = programs_.library().rehearsed();
    record_.ended_ns = world_.stage().now();
    record_.puts_outside = world_.network().puts().outside;
    record_.lost_reads = world_.network().puts().lost_reads;
    o.violations = check(record_);
    if (trace_) print_trace();
    o.seed = seed_;
    o.steps = world_.stage().steps();
    o.hash = world_.stage().hash();
    o.calls = record_.calls.size();
    o.failed_calls = static_cast<std::uint64_t>(
        std::count_if(record_.calls.begin(), record_.calls.end(), [](const auto& c) { return c.code != errc::none; }));
    o.decided =
        static_cast<std::uint64_t>(std::count_if(record_.campaigns.begin(), record_.campaigns.end(), [](const auto& c) {
          return c.where == actors::campaign::stage::decided;
        }));
    o.simulated_ns = record_.ended_ns;
    o.messages = record_.messages;
    return o;
  }

 private:
  world_options options(const run_options& o) const {
    world_options w;
    w.ranks = play_.ranks;
    w.seed = seed_;
    w.link = play_.link;
    if (o.mutant == "no-fence" || o.mutant == "poison-not-fenced") w.link.fence = link_model::fences::do_nothing;
    w.order = tape_.order;
    w.starved = tape_.starved;
    w.order_inside = tape_.inside;
    w.detection_ns = play_.detection_ns;
    w.settings.plan.budget_fraction = o.mutant == "budget-ignored" ? 1e9 : play_.budget;
    w.settings.window = {.invocations = play_.window, .bytes = play_.window_bytes};
    if (o.mutant == "window-ignored") w.settings.window = {.invocations = 1U << 20U, .bytes = 1U << 30U};
    w.settings.mutant_ignores_stamp = o.mutant == "stamp-ignored";
    if (play_.results) w.settings.results_path = "results.csv";
    std::vector<std::uint64_t> calls(play_.ranks);
    for (const op_spec& op : play_.ops) {
      for (const rank_id r : op.members)
        calls[r] += 4 * (op.calls + op.calm + programs::most_more / 2) * op.members.size();
    }
    const std::uint64_t most = *std::max_element(calls.begin(), calls.end());
    w.settings.flight_records =
        std::max<std::uint64_t>(most * (1 + play_.faults.restarts), 1024);  // they make them anew
    if (tape_.skewed) {
      dice luck(seed_, purpose::swarm, 1);
      for (rank_id r = 0; r < play_.ranks; ++r) w.offsets.push_back(luck.between(0, 5'000'000'000));
    }
    return w;
  }

  void run_job() {
    stage& s = world_.stage();
    const time_ns began = s.now();
    for (rank_id r = 0; r < play_.ranks; ++r) world_.disk(r).faults.fail_per_thousand = tape_.disk_fails;
    sky_.begin(s);
    watchers_.begin_job();
    // A world between healed and calm: what befell it last must be over.
    time_ns healed = began + play_.faulty_ns;
    for (const mishap& m : tape_.mishaps) healed = std::max(healed, began + m.at_ns + m.for_ns);
    const time_ns calm = healed + play_.calm_after_ns;
    world_.start_all([this, calm](rank_id r) {
      for (fenced_rank& f : record_.fenced) {
        if (f.job == world_.job() && f.rank == r) f.until_ns = std::min(f.until_ns, world_.stage().now());
      }
      programs_.launch(r, calm);
    });
    at(healed, [this] {
      sky_.calm();
      for (rank_id r = 0; r < play_.ranks; ++r) world_.disk(r).faults.fail_per_thousand = 0;
    });
    for (const mishap& m : tape_.mishaps) world_.befall(m, began);
    if (play_.cut_short && world_.job() < play_.jobs) {
      s.run_to(began + dice(seed_, purpose::fault, 1000 + world_.job()).between(0, play_.faulty_ns));
      cutting_ = ending_ = true;
      world_.end_job();
      cutting_ = ending_ = false;
      return;
    }
    s.run_until([&] { return s.now() >= calm && world_.all_ended(); }, began + longest_job_ns);
    record_.programs_left += world_.programs();
    for (int look = 0; look < looks && searching(); ++look) s.run_to(s.now() + look_every_ns);
    s.run_to(s.now() + 2 * look_every_ns);  // the last decision reaches everybody
    for (rank_id r = 0; play_.results && r < play_.ranks; ++r) {
      if (world_.find(r) == nullptr) continue;
      const auto written = world_[r].write_results();
      if (!written) record_.at_once.push_back({"results", written.reason().what()});
    }
    programs_.look_at_memory();
    ending_ = true;
    record_.pending_left += world_.network().pending();
    record_.exposed_left += world_.network().exposed();
    world_.end_job();
    ending_ = false;
  }

  void print_trace() {
    for (const mishap& m : tape_.mishaps)
      trace_->add(m.at_ns, std::string(name(m.what)) + " of rank " + std::to_string(m.rank) + ", towards " +
                               std::to_string(m.to) + ", for " + std::to_string(m.for_ns) + " ns");
    for (const call_record& c : record_.calls)
      trace_->add(c.ended_ns, "rank " + std::to_string(c.rank) + ", " + play_.ops[c.op].name + ": " +
                                  (c.sends ? "send " : "call ") + std::to_string(c.number) + ", begun at " +
                                  std::to_string(c.began_ns) + ", ended" + (c.text.empty() ? "" : ": " + c.text));
    trace_->print(*trace_to_);
  }

  // What belongs to one job does not happen in the next.
  template <class F>
  void at(time_ns when, F f) {
    world_.stage().at(when, nobody, [this, f, job = world_.job()] {
      if (world_.job() == job) f();
    });
  }
  template <class Visit>
  void each_campaign(rank_id r, Visit visit) const {
    const ops::rank* const self = world_.find(r);
    if (self == nullptr) return;
    for (const ops::edge_agreement& a : self->agreements()) {
      for (const auto& c : a.assigned->campaigns()) visit(a, *c);
    }
  }
  bool searching() const {
    bool any = false;
    for (rank_id r = 0; r < play_.ranks; ++r) {
      each_campaign(r, [&](const ops::edge_agreement& a, const actors::campaign& c) {
        const auto dead = [&](rank_id m) { return world_.find(m) == nullptr; };
        const bool alive =
            a.group.empty() ? !dead(a.sender) && !dead(a.receiver) : std::none_of(a.group.begin(), a.group.end(), dead);
        any = any || (alive && c.where != actors::campaign::stage::decided);
      });
    }
    return any;
  }

  participant_view view_of(rank_id r, const actors::participant_state& p, bool ended) const {
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
    for (const auto& m : p.declaration.participants) v.members.push_back(m.rank);
    v.candidates = p.candidates;
    v.ready = p.ready;
    v.instead = p.instead;
    v.ids = p.ids;
    for (std::size_t i = 0; i < p.configs.size(); ++i)
      v.classes[p.configs[i].digest] = p.configs[i].identity.wire_class;
    for (std::size_t i = 0; i < p.configs.size(); ++i) {
      if (p.available.test(i)) v.available.insert(p.configs[i].digest);
    }
    if (!cutting_) v.decisions = p.decisions;
    return v;
  }

  // Whose generation ends because a peer has come back, and which go on by themselves.
  void look_at_pairs(rank_id who, rank_id peer) {
    look_at_ended(who, [&](const actors::op_declaration& d) {
      const auto has = [&](const auto& m) { return m.rank == peer; };
      const auto is_it = [&](const op_spec& op) { return op.what == op_spec::kind::pair && op.name == d.name; };
      return std::any_of(d.participants.begin(), d.participants.end(), has) &&
             std::any_of(play_.ops.begin(), play_.ops.end(), is_it);
    });
  }
  template <class Which>
  void look_at_ended(rank_id who, const Which& which) {
    for (const actors::participant_state* p : world_.find(who)->participants()) {
      if (which(p->declaration)) record_.participants.push_back(view_of(who, *p, true));
    }
  }

  // Everything that checkers want to know of a rank, before it ends.
  void look_at(rank_id r) {
    const ops::rank* const self = world_.find(r);
    const std::size_t job = world_.job();
    const std::size_t first = record_.participants.size();
    for (const actors::participant_state* p : self->participants())
      record_.participants.push_back(view_of(r, *p, !ending_));
    if (!cutting_)
      each_campaign(r, [&](const ops::edge_agreement& a, const actors::campaign& c) {
        campaign_view v;
        v.job = job;
        v.title = a.op + " " + std::to_string(a.sender) + "->" + std::to_string(a.receiver);
        for (std::size_t i = first; i < record_.participants.size(); ++i) {
          const participant_view& p = record_.participants[i];
          if (p.leads && p.op == a.op && (!a.group.empty() || p.members.back() == a.receiver)) {
            v.op = p.id;
            v.generation = p.generation;
          }
        }
        v.ended = !ending_;
        v.key = c.key;
        v.where = c.where;
        v.digest = c.digest;
        v.invocations = c.invocations;
        v.winner = c.winner;
        v.why = c.why;
        v.progress = std::to_string(c.trials) + " trials, " + std::to_string(c.outstanding.size()) +
                     " of this round, " + std::to_string(c.unsettled) + " unsettled, " + std::to_string(c.cancelled) +
                     " cancelled, search " + std::to_string(c.search) + ", lacking " + std::to_string(c.lacking) +
                     ", cost " + std::to_string(c.cost_ns + c.pending_ns + c.earlier_cost_ns);
        for (const tuning::aggregate& g : c.aggregates)
          v.why += "; " + std::to_string(g.time_ns) + " ns of " + std::to_string(g.count) + " " + g.detail;
        v.source = c.source;
        v.cost_ns = c.cost_ns;
        record_.campaigns.push_back(std::move(v));
      });
    for (lease_view& v : programs_.leases(r)) record_.leases.push_back(std::move(v));
    for (const runtime::flight_record& f : self->flight().in_order()) {
      if (runtime::is_transfer(f.what)) record_.flights.push_back({job, r, f});
    }
  }

  const scenario& play_;
  const tape& tape_;
  std::uint64_t seed_;
  run_record record_;
  weather sky_;
  census census_;
  watchers watchers_{[this](std::string_view invariant, std::string text) {
    record_.at_once.push_back({std::string(invariant), std::move(text)});
  }};
  std::unique_ptr<wire_tap> mutant_;
  std::optional<window_book> windows_;
  std::optional<trace> trace_;
  std::ostream* trace_to_ = nullptr;
  world world_;
  programs programs_;
  bool ending_ = false;                            // a job, with all of its ranks
  bool cutting_ = false;                           // a job ends before its time
  std::optional<runtime::breach_watch> breaches_;  // what the product itself notices
};

}  // namespace

outcome run(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o) {
  runner r(s, t, seed, o);
  return r.run();
}

}  // namespace parley::simulation
