#include <parley/simulation/job.hpp>

#include <parley/simulation/checkers.hpp>
#include <parley/simulation/mutants.hpp>
#include <parley/simulation/observer.hpp>
#include <parley/simulation/programs.hpp>
#include <parley/simulation/trace.hpp>

#include <algorithm>
#include <optional>

namespace parley::simulation {

namespace {

constexpr time_ns longest_job_ns = 400'000'000'000;
constexpr time_ns look_every_ns = 500'000'000;
constexpr int looks = 400;  // at what has not been decided

class runner {
 public:
  runner(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o)
      : play_(s), tape_(t), seed_(seed), sky_(t, seed, s.ranks), world_(options(o), &sky_),
        programs_(s, seed, world_, record_, o.mutant), mutant_(make_mutant(o.mutant)),
        observer_(record_, world_, {.invocations = s.window, .bytes = s.window_bytes}, s.control_window) {
    record_.play = &s;
    record_.faults = &t;
    record_.faulty_until_ns = s.faulty_ns;
    observer_.listen(sky_, mutant_.get());
    if (o.trace != nullptr) sky_.tap(trace_.emplace(world_.stage()));
    trace_to_ = o.trace;
    if (o.mutant == "not-deregistered" || o.mutant == "generation-end-not-fenced")
      world_.network().put_too_late = [this](std::uint64_t address, std::span<const std::byte> data) {
        programs_.write(address, data);
      };
    observer_.on_end = [this](rank_id r) {
      for (lease_view& v : programs_.leases(r)) {
        v.ended = !observer_.job_ends();
        record_.leases.push_back(std::move(v));
      }
    };
    programs_.before_rejoining = [this](rank_id who, const std::string& op) {
      observer_.look_at_ended(who, [&](const actors::op_declaration& d) { return d.name == op; });
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
    w.order = tape_.order;
    w.starved = tape_.starved;
    w.order_inside = tape_.inside;
    w.detection_ns = play_.detection_ns;
    w.settings.plan.budget_fraction = play_.budget;
    w.settings.window = {.invocations = play_.window, .bytes = play_.window_bytes};
    w.control_window = play_.control_window;
    if (play_.results) w.settings.results_path = "results.csv";
    std::vector<std::uint64_t> calls(play_.ranks);
    for (const op_spec& op : play_.ops) {
      for (const rank_id r : op.members)
        calls[r] += 4 * (op.calls + op.calm + programs::most_more / 2) * op.members.size();
    }
    put_mutant(o.mutant, w);
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
    observer_.begin_job();
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
      observer_.end_job(observer::ending::cut_short);
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
    observer_.end_job();
    for (rank_id r = 0; r < play_.ranks; ++r) {
      for (const auto& [path, text] : world_.disk(r).files) {
        if (!play_.results || path != "results" + std::to_string(r) + ".csv")
          record_.files_left.push_back(path + " of rank " + std::to_string(r));
      }
    }
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
  bool searching() const {
    bool any = false;
    for (rank_id r = 0; r < play_.ranks; ++r) {
      if (world_.find(r) == nullptr) continue;
      each_campaign(*world_.find(r), [&](const ops::edge_agreement& a, const actors::campaign& c) {
        const auto dead = [&](rank_id m) { return world_.find(m) == nullptr; };
        const bool alive =
            a.group.empty() ? !dead(a.sender) && !dead(a.receiver) : std::none_of(a.group.begin(), a.group.end(), dead);
        any = any || (alive && c.where != actors::campaign::stage::decided);
      });
    }
    return any;
  }

  const scenario& play_;
  const tape& tape_;
  std::uint64_t seed_;
  run_record record_;
  weather sky_;
  std::optional<trace> trace_;
  std::ostream* trace_to_ = nullptr;
  world world_;
  programs programs_;
  std::unique_ptr<wire_tap> mutant_;
  observer observer_;
};

}  // namespace

outcome run(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o) {
  runner r(s, t, seed, o);
  return r.run();
}

}  // namespace parley::simulation
