#include <parley/simulation/world/job.hpp>

#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/services.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/wire/frame.hpp>
#include <parley/simulation/checkers/checkers.hpp>
#include <parley/simulation/checkers/observer.hpp>
#include <parley/simulation/checkers/payload_book.hpp>
#include <parley/simulation/checkers/rank_views.hpp>
#include <parley/simulation/mutants.hpp>
#include <parley/simulation/programs/idle_steps.hpp>
#include <parley/simulation/programs/programs.hpp>
#include <parley/simulation/world/guarded_memory.hpp>
#include <parley/simulation/world/trace.hpp>

#include <algorithm>
#include <cstring>
#include <optional>

namespace parley::simulation {

namespace {

constexpr time_ns longest_job_ns = 400'000'000'000;
constexpr time_ns look_every_ns = 500'000'000;
constexpr int looks = 400;  // how often, at most, a job waits for searches that have not ended
constexpr int looks_at_rehearsals = 2 * actors::warming_limit_ns / look_every_ns;

class runner final : private wire_tap {
 public:
  runner(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o)
      : play_(s), tape_(t), seed_(seed), sky_(t, seed, s.ranks), world_(options(o), &sky_),
        programs_(s, t, seed, world_, record_, o.mutant), mutant_(make_mutant(o.mutant)),
        observer_(record_, world_, window_of(s, t), control_window_of(s, t), s.first_invocation) {
    record_.play = &s;
    record_.faults = &t;
    record_.faulty_until_ns = s.faulty_ns;
    observer_.listen(sky_, mutant_.get());
    sky_.tap(*this);
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
      programs_.let_go(r);
    };
    programs_.before_rejoining = [this](rank_id who, const std::string& op) {
      observer_.look_at_ended(who, [&](const actors::op_declaration& d) { return is_of(d.name, op); });
    };
    world_.after_meeting = [this](rank_id who, rank_id peer) { programs_.go_on(who, peer); };
    world_.on_fenced = [this](rank_id r) { record_.fenced.push_back({world_.job(), r, world_.stage().now()}); };
    world_.on_pace = [this](rank_id r, world::pace p) {
      programs_.slow_kernels(r, p == world::pace::slow ? 3'000 : 0);
    };
  }

  outcome run() {
    for (std::uint64_t job = 0; job < play_.jobs && !idle_.over(); ++job) run_job();
    outcome o;
    record_.messages = sky_.seen();
    record_.rehearsed = programs_.library().rehearsed();
    record_.ended_ns = world_.stage().now();
    record_.spoiled = memory_.spoiled();
    record_.puts_outside = world_.network().puts().outside;
    record_.lost_reads = world_.network().puts().lost_reads;
    record_.frames_left = runtime::frame_pool::live_frames - frames_before_;
    o.violations = idle_.violations(record_);
    if (trace_) print_trace();
    o.seed = seed_;
    o.steps = world_.stage().steps();
    o.hash = world_.stage().hash();
    o.calls = record_.calls.size();
    o.failed_calls = static_cast<std::uint64_t>(
        std::count_if(record_.calls.begin(), record_.calls.end(), [](const auto& c) { return c.failed.has_value(); }));
    o.decided =
        static_cast<std::uint64_t>(std::count_if(record_.searches.begin(), record_.searches.end(), [](const auto& c) {
          return c.where == actors::search::stage::decided;
        }));
    o.simulated_ns = record_.ended_ns;
    o.messages = record_.messages;
    return o;
  }

 private:
  static actors::window_limits window_of(const scenario& s, const tape& t) {
    return {.invocations = t.window != 0 ? t.window : s.window,
            .bytes = t.window_bytes != 0 ? t.window_bytes : s.window_bytes};
  }
  static std::uint32_t control_window_of(const scenario& s, const tape& t) {
    return t.control_window != 0 ? static_cast<std::uint32_t>(t.control_window) : s.control_window;
  }
  // Sets the fault points of a process that begins.
  void switch_fault_points(rank_id r) {
    actors::services& inside = world_[r].services();
    if (looks_at_payloads_) payloads_.listen(world_[r]);
    inside.first_invocation = play_.first_invocation;
    inside.promise_margin = tape_.promise_margin;
    inside.jitter.hurried = tape_.hurry;
    inside.early_timeouts = healed_ ? 0 : static_cast<std::uint32_t>(tape_.early_timeouts);
  }
  void heal() {
    healed_ = true;
    sky_.calm();
    for (rank_id r = 0; r < play_.ranks; ++r) {
      world_.disk(r).faults = {};
      world_.disk(r).locked.clear();
      if (world_.find(r) != nullptr) world_[r].services().early_timeouts = 0;
    }
  }
  world_options options(const run_options& o) const {
    world_options w;
    w.ranks = play_.ranks;
    w.seed = seed_;
    w.link = play_.link;
    w.order = tape_.order;
    w.starved = tape_.starved;
    w.order_inside = tape_.inside;
    w.starved_task = static_cast<std::uint32_t>(tape_.starved_task);
    w.detection_ns = play_.detection_ns;
    w.settings.plan.budget_fraction = play_.budget;
    w.settings.plan.drift = play_.watch;
    w.settings.window = window_of(play_, tape_);
    w.control_window = control_window_of(play_, tape_);
    if (play_.results) w.settings.results_path = "results.csv";
    std::vector<std::uint64_t> records(play_.ranks);  // at least as many as each rank makes
    for (const op_spec& op : play_.ops) {
      const std::uint64_t calls = 4 * (op.calls + op.calm + programs::most_more / 2) * op.members.size();
      for (const rank_id r : op.members) records[r] += calls * (1 + play_.faults.restarts);  // restarts repeat calls
    }
    w.of_rank = [this, records](rank_id r, std::uint64_t job, ops::rank_settings& s) {
      s.flight_records = std::max<std::uint64_t>(records[r], 1024);
      if (job <= play_.validators.size() && r < play_.validators[job - 1].size())
        s.validators.push_back({"SIMULATED", play_.validators[job - 1][r]});
    };
    put_mutant(o.mutant, w);
    if (tape_.skewed) {
      dice luck(seed_, purpose::swarm, 1);
      for (rank_id r = 0; r < play_.ranks; ++r) w.offsets.push_back(luck.between(0, 5'000'000'000));
    }
    return w;
  }

  void spoil_disks() {
    for (rank_id r = 0; r < play_.ranks; ++r) {
      disk& d = world_.disk(r);
      d.faults.fail_per_thousand = tape_.disk_fails;
      d.faults.tear_per_thousand = tape_.disk_tears;
      if (tape_.disk_room != 0) d.faults.room_bytes = static_cast<std::size_t>(tape_.disk_room);
      if (disk_luck_.chance(tape_.disk_locks)) d.locked.insert("results" + std::to_string(r) + ".csv");
    }
  }

  // Gives each frame between ranks of different versions, in both directions, a version that its receiver cannot read.
  void skew_version(parcel& p) const {
    runtime::frame_header h;
    const auto is_other = [&](rank_id r) {
      return std::find(play_.other_version.begin(), play_.other_version.end(), r) != play_.other_version.end();
    };
    if (p.on != runtime::link::channel::control || p.header.size() != sizeof h || is_other(p.from) == is_other(p.to))
      return;
    std::memcpy(&h, p.header.data(), sizeof h);
    h.version = runtime::protocol_version + 1;
    std::memcpy(p.header.data(), &h, sizeof h);
  }

  // Mishaps of ranks that are due after this many messages happen here, before the message has any other effect.
  bool on_deliver(parcel& p) override {
    skew_version(p);
    ++delivered_;
    for (const mishap& m : tape_.mishaps) {
      if (m.after == delivered_ && !healed_) world_.befall(at_once(m), world_.stage().now());
    }
    return true;
  }
  static mishap at_once(mishap m) {
    m.at_ns = 0;
    return m;
  }

  void run_job() {
    stage& s = world_.stage();
    const time_ns began = s.now();
    spoil_disks();
    healed_ = false;
    payloads_.begin_job();
    sky_.begin(s);
    observer_.begin_job();
    // Faults end once the last mishap is over; the calm phase begins `calm_after_ns` later.
    time_ns healed = began + play_.faulty_ns;
    for (const mishap& m : tape_.mishaps)
      healed = std::max(healed, began + (m.after != 0 ? play_.faulty_ns : m.at_ns) + m.for_ns);
    const time_ns calm = healed + play_.calm_after_ns;
    world_.start_all([this, calm](rank_id r) {
      for (fenced_rank& f : record_.fenced) {
        if (f.job == world_.job() && f.rank == r) f.until_ns = std::min(f.until_ns, world_.stage().now());
      }
      switch_fault_points(r);
      programs_.launch(r, calm);
    });
    at(healed, [this] { heal(); });
    for (rank_id r = 0; play_.results && r < play_.ranks; ++r) {
      // A program may write its results at any time. The write may fail: disks are faulty in this phase.
      at(began + disk_luck_.between(0, play_.faulty_ns), [this, r] {
        if (world_.find(r) != nullptr) static_cast<void>(world_[r].write_results());
      });
    }
    delivered_ = 0;
    for (const mishap& m : tape_.mishaps) {
      if (m.after == 0) world_.befall(m, began);
    }
    if (play_.cut_short && world_.job() < play_.jobs) {
      idle_.run_to(began + dice(seed_, purpose::fault, 1000 + world_.job()).between(0, play_.faulty_ns));
      observer_.end_job(observer::ending::cut_short);
      return;
    }
    idle_.run_until([&] { return s.now() >= calm && world_.all_ended(); }, began + longest_job_ns);
    record_.programs_left += world_.programs();
    for (int look = 0; look < looks && searching() && !idle_.over(); ++look) idle_.run_to(s.now() + look_every_ns);
    idle_.run_to(s.now() + 2 * look_every_ns);  // so that the last decision reaches all ranks
    for (int look = 0; look < looks_at_rehearsals && is_at_work() && !idle_.over(); ++look)
      idle_.run_to(s.now() + look_every_ns);
    for (rank_id r = 0; play_.results && r < play_.ranks; ++r) {
      if (world_.find(r) == nullptr) continue;
      const auto written = world_[r].write_results();
      if (!written) record_.at_once.push_back({"results", written.reason().what()});
    }
    programs_.look_at_memory();
    observer_.end_job();
    for (rank_id r = 0; r < play_.ranks; ++r) {
      for (const auto& [path, text] : world_.disk(r).files) {
        // If its results file has other validators or is locked, a rank writes another file, whose name has a mark.
        const std::string own = "results" + std::to_string(r);
        const bool is_result = path.starts_with(own + ".") && (path.ends_with(".csv") || path == own + ".csv.evidence");
        if (!play_.results || !is_result) record_.files_left.push_back(path + " of rank " + std::to_string(r));
      }
    }
  }

  void print_trace() {
    std::map<std::uint64_t, std::string> classes;
    for (const participant_view& p : record_.participants) classes.insert(p.classes.begin(), p.classes.end());
    for (const auto& [digest, wire_class] : classes)
      *trace_to_ << "config " << trace::short_digest(digest) << " is of wire class " << wire_class << "\n";
    for (const mishap& m : tape_.mishaps)
      trace_->add(m.at_ns, std::string(name(m.what)) + " of rank " + std::to_string(m.rank) + ", towards " +
                               std::to_string(m.to) + ", for " + std::to_string(m.for_ns) + " ns");
    for (const call_record& c : record_.calls)
      trace_->add(c.ended_ns, "rank " + std::to_string(c.rank) + ", " + play_.ops[c.op].name + ": " +
                                  (c.sends ? "send " : "call ") + std::to_string(c.number) + ", begun at " +
                                  std::to_string(c.began_ns) + ", ended" + (c.failed ? ": " + c.failed->what() : ""));
    trace_->print(*trace_to_);
  }

  // Calls `f` at `when`, unless a new job has begun by then.
  template <class F>
  void at(time_ns when, F f) {
    world_.stage().at(when, nobody, [this, f, job = world_.job()] {
      if (world_.job() == job) f();
    });
  }
  // True if operations, exposed memory or unacknowledged messages are left. If a rank rehearses again by itself, it will end that
  // rehearsal.
  bool is_at_work() {
    std::size_t left = world_.network().pending() + world_.network().exposed();
    for (rank_id r = 0; left == 0 && r < play_.ranks; ++r) {
      if (world_.find(r) == nullptr) continue;
      for (const actors::participant_state* p : world_[r].participants()) left += p->owed;
    }
    return left != 0;
  }
  bool searching() const {
    bool any = false;
    for (rank_id r = 0; r < play_.ranks; ++r) {
      if (world_.find(r) == nullptr) continue;
      each_search(*world_.find(r), [&](const ops::edge_agreement& a, const actors::search& c) {
        const auto dead = [&](rank_id m) { return world_.find(m) == nullptr; };
        const bool alive =
            a.group.empty() ? !dead(a.sender) && !dead(a.receiver) : std::none_of(a.group.begin(), a.group.end(), dead);
        any = any || (alive && !c.is_decided());
      });
    }
    return any;
  }

  const scenario& play_;
  const tape& tape_;
  std::uint64_t seed_;
  std::size_t frames_before_ = runtime::frame_pool::live_frames;
  guarded_memory memory_;
  runtime::host_memory_instead instead_{memory_};
  run_record record_;
  weather sky_;
  std::optional<trace> trace_;
  std::ostream* trace_to_ = nullptr;
  world world_;
  programs programs_;
  idle_steps idle_{world_, [this] { return record_.calls.size(); }};
  std::unique_ptr<wire_tap> mutant_;
  observer observer_;
  // Programs of pairs and groups check every byte themselves; the payload book is for the other ops.
  bool looks_at_payloads_ =
      std::any_of(play_.ops.begin(), play_.ops.end(), [](const op_spec& op) { return is_program(op.what); });
  payload_book payloads_{[this](std::string text) { record_.at_once.push_back({"S8", std::move(text)}); }};
  dice disk_luck_{seed_, purpose::disk, 1'000'000};
  bool healed_ = false;
  std::uint64_t delivered_ = 0;  // messages of this job
};

}  // namespace

outcome run(const scenario& s, const tape& t, std::uint64_t seed, const run_options& o) {
  runner r(s, t, seed, o);
  return r.run();
}

}  // namespace parley::simulation
