#include <parley/cli/tune_rank.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/cli/interruption.hpp>
#include <parley/cli/payload/cuda.hpp>
#include <parley/cli/payload/workload.hpp>
#include <parley/cli/rank_report.hpp>
#include <parley/config.hpp>
#include <parley/cuda_space.hpp>
#include <parley/machine.hpp>
#include <parley/ops/core/decision_record.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/ops/job/rank_environment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/program.hpp>
#include <parley/run.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/scope.hpp>
#include <parley/simulation/checkers/checkers.hpp>
#include <parley/simulation/checkers/observer.hpp>
#include <parley/simulation/programs/idle_steps.hpp>
#include <parley/simulation/world/world.hpp>
#include <parley/task.hpp>
#include <parley/transports/launch/environment.hpp>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace parley::cli {

namespace json = boost::json;
using actors::exclusion;
using actors::search;
using runtime::task;

namespace {

constexpr runtime::time_ns progress_every_ns = 200'000'000;
constexpr runtime::time_ns settle_within_ns = 5'000'000'000;  // on a busy machine ranks begin to settle late
constexpr std::size_t fewest_flight_records = 4'096;
constexpr runtime::time_ns weather_ns = 50'000'000;  // how long bad weather lasts, from the start
constexpr runtime::time_ns longest_jitter_ns = 200;  // of simulated links: a fifth of their latency
const std::string interrupted = "interrupted";

runtime::time_ns wall_clock() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// JSON has no infinity: a time that was not measured becomes null.
json::value finite(double ns) { return std::isfinite(ns) ? json::value(ns) : json::value(nullptr); }

/// True if the ranks have agreed on a config and use it, also while the key is searched again.
bool decided(const search& c) { return c.is_decided() || c.number() > 1; }

const actors::decision_record* record_of(const ops::edge_agreement& e, const search& c) {
  if (e.decisions == nullptr) return nullptr;
  const auto same = [&](const actors::decision_record& d) { return d.key == c.key() && d.digest == c.chosen().digest; };
  const auto at = std::find_if(e.decisions->begin(), e.decisions->end(), same);
  return at == e.decisions->end() ? nullptr : &*at;
}

/// Adds details of the decision's evidence: the rank that proposed the candidate, and the times that each rank measured.
void add_evidence(json::object& candidate, const actors::decision_record* d, std::uint64_t digest,
                  const actors::assignment& a) {
  if (d == nullptr) return;
  const auto same = [&](const actors::wire_evidence& e) { return e.digest == digest; };
  const auto at = std::find_if(d->evidence.begin(), d->evidence.end(), same);
  if (at == d->evidence.end()) return;
  candidate["proposed_by"] = at->proposer;
  json::array ranks;
  for (const actors::wire_own_time& r : at->ranks) {
    json::object own{
        {"rank", r.rank}, {"time_ns", finite(r.time_ns)}, {"repetitions", r.repetitions}, {"status", r.status}};
    const auto ran = std::find(a.candidates().begin(), a.candidates().end(), r.ran);
    if (r.ran != digest && ran != a.candidates().end())
      own["ran"] = a.ids()[static_cast<std::size_t>(ran - a.candidates().begin())];  // its config in a mixture
    ranks.push_back(std::move(own));
  }
  candidate["ranks"] = std::move(ranks);
}

/// Names the reason why a candidate must not run for this key, even if the candidate was measured.
void add_exclusion(json::object& candidate, const search& c, std::size_t index) {
  for (const exclusion& e : c.excluded()) {
    if (e.candidate != index) continue;
    candidate["status"] = actors::status_of(e.kind);
    candidate["detail"] = e.why;
  }
}

json::array candidates_of(const search& c, const actors::assignment& a, const actors::decision_record* d) {
  json::array list;
  for (std::size_t i = 0; i < a.ids().size(); ++i) {
    const tuning::aggregate measured = i < c.aggregates().size() ? c.aggregates()[i] : tuning::aggregate{};
    json::object one{{"config", a.ids()[i]},
                     {"time_ns", finite(measured.time_ns)},
                     {"repetitions", measured.count},
                     {"spread_ns", measured.spread_ns},
                     {"clock_error_ns", measured.clock_error_ns},
                     {"status", std::string(tuning::name(measured.status))},
                     {"detail", measured.detail}};
    add_evidence(one, d, a.candidates()[i], a);
    add_exclusion(one, c, i);
    list.push_back(std::move(one));
  }
  return list;
}

/// The configs that are not candidates because some rank lacks them.
json::array lacking_in(const actors::decision_record* d) {
  json::array list;
  if (d == nullptr) return list;
  for (const actors::wire_evidence& e : d->evidence) {
    if (e.status == "lacking") list.push_back(json::object{{"config", e.config}, {"detail", e.detail}});
  }
  return list;
}

/// The calls since the decision that ran another config, counted by the need of the decided config that was not met.
json::object others_of(const search& c) {
  json::object all;
  for (const auto& [need, calls] : c.runs_of_others()) all[std::string(need)] = calls;
  return all;
}

json::object agreement_of(const ops::edge_agreement& e, const search& c) {
  const actors::assignment& a = *e.assigned;
  const auto winner = std::find(a.ids().begin(), a.ids().end(), c.chosen().config);
  const auto index = static_cast<std::size_t>(winner - a.ids().begin());
  const actors::decision_record* d = record_of(e, c);
  json::array participants;
  if (e.group.empty()) participants = {e.sender, e.receiver};
  for (const rank_id r : e.group) participants.push_back(r);
  return {
      {"op", e.op},
      {"sender", e.sender},
      {"receiver", e.receiver},
      {"key", c.key()},
      {"participants", std::move(participants)},
      {"candidates", candidates_of(c, a, d)},
      {"decided", decided(c)},
      {"searches", c.number()},
      {"searching_anew", c.number() > 1 && !c.is_decided()},
      {"decision", c.chosen().config},
      {"why", c.chosen().why},
      {"proposed_by", d == nullptr ? json::value(nullptr) : json::value(d->proposer)},
      {"evidence_left_out", d == nullptr ? 0 : d->left_out},
      {"lacking", lacking_in(d)},
      {"confidence", d == nullptr ? json::value(nullptr) : json::value(tuning::name(d->confidence))},
      {"from_results", c.chosen().from_results()},
      {"decision_time_ns",
       index < c.aggregates().size() ? finite(c.aggregates()[index].time_ns) : json::value(nullptr)},
      {"default_time_ns", c.aggregates().empty() ? json::value(nullptr) : finite(c.aggregates()[0].time_ns)},
      {"trials", c.trials()},
      {"cost_ns", c.cost_ns()},
      {"control_ns", a.control_ns()},
      {"invocations", c.invocations()},
      {"calls_since_decision", decided(c) ? c.calls_since_decision() : 0},
      {"ran_other", others_of(c)},
      {"time_to_agreement_ns", decided(c) ? json::value(c.chosen().at_ns - c.first_ns()) : json::value(nullptr)},
      {"invocations_until_agreement", decided(c) ? json::value(c.invocations_to_agreement()) : json::value(nullptr)}};
}

json::array flight_of(const ops::rank& self) {
  json::array list;
  for (const runtime::flight_record& r : self.flight().in_order()) {
    if (!runtime::is_transfer(r.what) || r.digest == 0) continue;  // a transfer that had not begun ran no config
    list.push_back(json::array{r.op, r.generation, r.invocation, r.digest, r.bytes, r.began_ns, r.ended_ns, r.tag,
                               static_cast<unsigned>(r.what), static_cast<unsigned>(r.flags)});
  }
  return list;
}

json::object mail_of(const ops::rank& self, const spec& job) {
  const auto& counted = self.mail().statistics();
  json::object by_type;
  const auto& sent = self.mail().sent_by_type();
  for (std::size_t type = 0; type < sent.size(); ++type) {
    if (sent[type] != 0) by_type[std::to_string(type)] = sent[type];
  }
  std::uint64_t to_outsiders = 0;
  for (rank_id peer = 0; peer < self.world_size(); ++peer) {
    const bool partner =
        std::any_of(job.ops.begin(), job.ops.end(), [&](const op_spec& op) { return meet(op, peer, self.id()); });
    if (!partner && peer != self.id()) to_outsiders += self.mail().sent_to(peer);
  }
  return {{"sent", counted.sent},         {"sent_by_type", std::move(by_type)},   {"credits", counted.credits_sent},
          {"flow", self.flow_messages()}, {"repeated", self.repeated_messages()}, {"to_outsiders", to_outsiders}};
}

json::object results_of(const ops::rank& self) {
  const tuning::results_file file = self.results();
  json::array validators;
  for (const auto& v : file.validators()) validators.push_back(json::array{v.name, v.value});
  const auto listed = [](const std::vector<tuning::result_entry>& entries) {
    json::array list;
    for (const auto& e : entries) list.push_back(json::array{e.op, e.parameters, e.solution, e.time_ms, e.thin});
    return list;
  };
  json::array evidence;
  for (const ops::decision& d : self.explained()) evidence.push_back(json::array{d.op, d.key, ops::json_of(d)});
  return {{"validators", std::move(validators)},
          {"evidence", std::move(evidence)},
          {"learned", listed(self.learned())},
          {"entries", listed(file.entries())},
          {"superseded", listed(self.superseded())}};
}

/// Reports to the launcher while the rank works, at most a few times a second.
class progress_reporter {
 public:
  progress_reporter(std::function<void(json::object&&)> to, ops::rank& self) : to_(std::move(to)), self_(self) {}

  void tell(const workload& work) {
    const runtime::time_ns now = wall_clock();
    if (now < next_) return;
    next_ = now + progress_every_ns;
    tell_now(work);
  }
  /// Reports even if the last report was a moment ago.
  void tell_now(const workload& work) {
    json::array agreed;
    std::uint64_t open = 0;
    std::uint64_t settled = 0;
    std::uint64_t trials = 0;
    for (const ops::edge_agreement& e : self_.agreements()) {
      for (const auto& c : e.assigned->searches()) {
        trials += c->trials();
        (decided(*c) ? settled : open) += 1;
        if (!decided(*c) || std::count(told_.begin(), told_.end(), c.get()) != 0) continue;
        told_.push_back(c.get());
        agreed.push_back(agreement_of(e, *c));
      }
    }
    to_(json::object{{"kind", "progress"},
                     {"done", work.steps_done()},
                     {"of", work.steps_in_all()},
                     {"open", open},
                     {"settled", settled},
                     {"trials", trials},
                     {"agreed", std::move(agreed)}});
  }

 private:
  std::function<void(json::object&&)> to_;
  ops::rank& self_;
  runtime::time_ns next_ = 0;
  std::vector<const search*> told_;
};

json::object final_report(ops::rank& self, const runtime::link& wire, const spec& job, const workload& work,
                          runtime::time_ns wall_ns, const std::string& error) {
  json::array agreements;
  for (const ops::edge_agreement& e : self.agreements()) {
    for (const auto& c : e.assigned->searches()) agreements.push_back(agreement_of(e, *c));
  }
  json::array produced;
  for (const outputs& o : work.collected()) {
    json::array digests(o.digests.begin(), o.digests.end());
    produced.push_back(json::object{{"op", o.op}, {"from", o.from}, {"digests", std::move(digests)}});
  }
  json::array warnings;
  for (const std::string& w : self.warnings()) warnings.push_back(json::value(w));
  return {{"kind", "final"},
          {"error", error},
          {"wall_ns", wall_ns},
          {"agreements", std::move(agreements)},
          {"records_lost",
           self.flight().total() - std::min<std::uint64_t>(self.flight().total(), self.flight().in_order().size())},
          {"records", flight_of(self)},
          {"outputs", std::move(produced)},
          {"mail", mail_of(self, job)},
          {"copied_bytes", wire.statistics().copied_bytes},
          {"results", results_of(self)},
          {"warnings", std::move(warnings)}};
}

ops::rank_settings settings_for(const tune_settings& s, const spec& job) {
  // The environment of `parley tune` also applies to ranks in its process; ranks in separate processes read it once more.
  ops::rank_settings all = ops::heed_environment({}, &ops::own_variable).settings;
  all.results_path = s.results_path;
  // The command keeps the results of all ranks. If it is killed itself, they are in each rank's own file.
  all.write_results_soon = s.housing == rank_housing::processes;
  all.policy = s.trials ? actors::tuning_policy::online : actors::tuning_policy::off;
  if (s.budget) all.plan.budget_fraction = *s.budget;
  if (!s.masked.empty()) all.masked = s.masked;
  all.mutant_ignores_stamp = s.mutant_ignores_stamp;
  // Room for all invocations at both ends, if this rank has both, and for the rehearsals.
  std::size_t invocations = 0;
  for (const op_spec& op : job.ops) invocations += op.sizes.size() * std::max<std::size_t>(op.edges.size(), 1);
  all.flight_records = 2 * invocations + fewest_flight_records;
  return all;
}

ops::job_options options_for(const tune_settings& s, const spec& job) {
  ops::job_options o;
  o.settings = settings_for(s, job);
  if (s.device != payload_device::host) {
    o.gpu = find_cuda().value();
    if (const auto nccl = find_nccl()) {
      o.planes.nccl = *nccl;
    } else {
      o.planes.no_nccl = nccl.reason().text();
    }
  }
  o.settings.validators = ops::machine_validators(o);
  return o;
}

}  // namespace

void check_device(const tune_settings& s, const spec& job) {
  if (s.device == payload_device::host) return;
  for (const op_spec& op : job.ops) {
    if (!runs_on_devices(op.kind))
      throw text_error("parley: --device cuda: the op " + in_quotes(op.name) + " is a " + std::string(name(op.kind)) +
                       ", which parley tune runs on host memory only; leave --device out, or that op");
  }
}

void check_masks(const tune_settings& s, const spec& job) {
  std::vector<std::string_view> known(ops::machine::named.begin(), ops::machine::named.end());
  for (const op_spec& op : job.ops) {
    for (const auto& c : op.configs) known.emplace_back(c->identity().name);
    for (const auto& c : op.group_configs) known.emplace_back(c->identity().name);
  }
  for (const ops::masked_capability& m : s.masked) {
    const std::string title = "parley: --mask " + ops::text_of(std::vector{m}) + ": ";
    if (m.rank && *m.rank >= job.ranks)
      throw text_error(title + "there is no such rank; the job has " + std::to_string(job.ranks));
    if (!ops::machine::is_numbered(m.name) && std::ranges::find(known, m.name) == known.end())
      throw text_error(title + "neither a capability (" + ops::machine::what_there_is() + ") nor a config of " +
                       job.name);
  }
}

namespace {

/// Wraps a config, so that its rank kills itself in the middle of one of the config's runs, rehearsals included.
class fatal_config final : public ops::paired_config {
 public:
  fatal_config(ops::config_ptr config, std::uint64_t run)
      : paired_config(config->identity(), 0, config->what_it_needs()), config_(std::move(config)), run_(run) {}
  runtime::result<> available() const override { return config_->available(); }
  std::vector<std::string> requirements() const override { return config_->requirements(); }
  runtime::result<> works_over(const runtime::link& net, const runtime::memory_space* memory) const override {
    return config_->works_over(net, memory);
  }
  task<> send(ops::part_sender& out, std::span<const std::byte> data) const override {
    runtime::scope& here = co_await runtime::this_scope;
    runtime::scope dying(here);
    if (++begun_ == run_) dying.spawn(die());
    co_await config_->send(out, data);
    co_await dying.join();
  }
  task<> receive(ops::part_receiver& in, std::span<std::byte> data) const override {
    runtime::scope& here = co_await runtime::this_scope;
    runtime::scope dying(here);
    if (++begun_ == run_) dying.spawn(die());
    co_await config_->receive(in, data);
    co_await dying.join();
  }

 private:
  static task<> die() {
    constexpr int turns_to_begin = 3;
    for (int i = 0; i < turns_to_begin; ++i) co_await runtime::yield;
    std::raise(SIGKILL);
  }
  ops::config_ptr config_;
  std::uint64_t run_;
  mutable std::uint64_t begun_ = 0;  // mutable, because a test switch may count
};

// Returns true if there is such a config.
bool plant_death(spec& job, const planned_death& death) {
  bool planted = false;
  for (op_spec& op : job.ops) {
    for (ops::config_ptr& c : op.configs) {
      if (c->identity().name != death.config) continue;
      c = std::make_shared<fatal_config>(c, death.after);
      planted = true;
    }
  }
  return planted;
}

}  // namespace

int tune_rank(const tune_settings& s) {
  spec job = read_spec(s.spec_path, s.overrides);
  std::string error;
  runtime::error thrown = runtime::errc::none;
  std::string who;  // empty before the rank is known
  if (const auto place = transports::from_environment()) who = "rank " + std::to_string(place->rank) + ": ";
  try {
    ops::job here(options_for(s, job));
    ops::rank& self = here.self();
    const bool dies = s.death && s.death->rank == self.id();
    if (dies && !s.death->config.empty() && !plant_death(job, *s.death))
      runtime::raise({runtime::errc::bad_argument, "--kill: the spec has no config " + s.death->config});
    const int to = here.report_descriptor();
    progress_reporter progress([to](json::object&& report) { send_report(to, std::move(report)); }, self);
    workload* running = nullptr;
    workload_options options;
    if (here.gpu() != nullptr) options.engine = std::make_shared<cuda_engine>(*here.gpu(), *here.gpu_memory());
    options.on_step = [&] {
      if (dies && s.death->config.empty() && running->steps_done() >= s.death->after) std::raise(SIGKILL);
      progress.tell(*running);
    };
    workload work(job, self, std::move(options));
    running = &work;
    const runtime::time_ns began = wall_clock();
    runtime::time_ns wall_ns = 0;
    interruption stopped(
        here.loop().io(), [&] { work.stop(); },
        [&](int) { send_report(to, final_report(self, here.wire(), job, work, wall_clock() - began, interrupted)); });
    try {
      runtime::run(here.loop(), work.run());
      wall_ns = wall_clock() - began;
      runtime::run(here.loop(), self.settle(std::chrono::nanoseconds(settle_within_ns)));
    } catch (const std::exception& e) {
      wall_ns = wall_clock() - began;
      error = stopped.signal() == 0 ? e.what() : interrupted;
      thrown = runtime::describe(std::current_exception());
    }
    progress.tell_now(work);
    send_report(to, final_report(self, here.wire(), job, work, wall_ns, error));
    if (stopped.signal() != 0) return status_of_signal(stopped.signal());
    if (error.empty()) return here.leave() == ops::parting::in_peace ? 0 : 1;
    if (const runtime::error traced = here.leave_after(thrown); traced.began_with() != nullptr) error = traced.what();
  } catch (const std::exception& e) {
    error = e.what();
  }
  std::fprintf(stderr, "parley: %s%s\n", who.c_str(), error.c_str());
  return 1;
}

// ---- all ranks in one process -----------------------------------------------------------------------------------------

namespace {

/// One of the ranks of a job in one process.
struct housed_rank {
  housed_rank(const spec& job, ops::rank& r, std::shared_ptr<payload_engine> engine,
              std::function<void(json::object&&)> to)
      : self(r), progress(std::move(to), r), work(job, r, {[this] { progress.tell(work); }, std::move(engine)}) {}
  ops::rank& self;
  progress_reporter progress;
  workload work;
};

ops::one_process::options housing_for(const tune_settings& s, const spec& job) {
  ops::job_options joins = options_for(s, job);
  ops::one_process::options o;
  o.ranks = job.ranks;
  o.settings = std::move(joins.settings);
  o.gpu = joins.gpu;
  return o;
}

}  // namespace

housed_end tune_in_one_process(const spec& job, const tune_settings& s, const report_handler& on_report) {
  ops::one_process here(housing_for(s, job));
  std::vector<std::unique_ptr<housed_rank>> ranks;
  for (rank_id r = 0; r < here.size(); ++r) {
    std::shared_ptr<payload_engine> engine;
    if (here.gpu(r) != nullptr) engine = std::make_shared<cuda_engine>(*here.gpu(r), *here.gpu_memory(r));
    ranks.push_back(std::make_unique<housed_rank>(job, here[r], std::move(engine),
                                                  [&, r](json::object&& report) { on_report(r, std::move(report)); }));
  }
  housed_end end;
  const runtime::time_ns began = wall_clock();
  runtime::time_ns wall_ns = 0;
  const auto report_all = [&](const std::string& error) {
    for (const auto& r : ranks) r->progress.tell_now(r->work);
    for (rank_id r = 0; r < here.size(); ++r)
      on_report(r, final_report(here[r], here.wire(r), job, ranks[r]->work, wall_ns, error));
  };
  interruption stopped(
      here.loop().io(),
      [&] {
        for (const auto& r : ranks) r->work.stop();
      },
      [](int) {});
  try {
    here.run([&](ops::rank& self) { return ranks[self.id()]->work.run(); });
    wall_ns = wall_clock() - began;
    here.settle(std::chrono::nanoseconds(settle_within_ns));
  } catch (const std::exception& e) {
    wall_ns = wall_clock() - began;
    end.error = stopped.signal() == 0 ? e.what() : interrupted;
  }
  report_all(end.error);
  end.signal = stopped.signal();
  return end;
}

// ---- on virtual ranks -------------------------------------------------------------------------------------------------

namespace {

task<> simulated_program(housed_rank& mine, std::string& error, runtime::time_ns& ended_ns) {
  std::exception_ptr thrown;
  try {
    co_await mine.work.run();
  } catch (...) {
    thrown = std::current_exception();
  }
  ended_ns = std::max(ended_ns, mine.self.where().precise_now());
  if (!thrown) {
    co_await mine.self.settle(std::chrono::nanoseconds(settle_within_ns));
  } else if (error.empty()) {
    error = runtime::describe(thrown).what();
  }
}

}  // namespace

housed_end tune_simulated(const spec& job, const tune_settings& s, const device_times* measured,
                          const report_handler& on_report) {
  simulation::world_options o;
  o.ranks = job.ranks;
  o.seed = s.seed;
  o.settings = settings_for(s, job);
  o.link = simulation::usual_links();
  std::shared_ptr<payload_engine> engine;
  if (measured != nullptr) {
    o.link = measured->links();
    engine = std::make_shared<host_engine>(
        [measured](const payload_step& step, std::uint64_t bytes) { return measured->of(step, bytes); });
  }
  std::vector<std::unique_ptr<housed_rank>> ranks;
  housed_end end;
  runtime::time_ns ended_ns = 0;
  // Link delays that vary a little, depending on the seed.
  simulation::tape jitter;
  if (s.weather) {
    jitter = simulation::rough_weather(job.ranks, s.seed, weather_ns);
    o.order = jitter.order;
    o.starved = jitter.starved;
  } else {
    jitter.delay_control = jitter.delay_data = 1000;
    jitter.longest_delay_ns = longest_jitter_ns;
  }
  simulation::weather links(jitter, s.seed, job.ranks);
  simulation::world all(o, &links);  // declared after `ranks`, so that it ends before them
  simulation::scenario as_played;
  as_played.ranks = job.ranks;
  as_played.must_decide = false;  // a spec ends after its last message
  simulation::run_record record;
  record.play = &as_played;
  record.faults = &jitter;
  simulation::observer watching(record, all, o.settings.window);
  watching.listen(links);
  links.begin(all.stage());
  all.start_all([&](rank_id r) {
    ranks.push_back(std::make_unique<housed_rank>(job, all[r], engine,
                                                  [&, r](json::object&& report) { on_report(r, std::move(report)); }));
    all.programs_of(r).spawn(simulated_program(*ranks.back(), end.error, ended_ns));
  });
  for (const simulation::mishap& m : jitter.mishaps) all.befall(m, all.stage().now());
  if (s.weather) all.stage().at(all.stage().now() + weather_ns, simulation::nobody, [&] { links.calm(); });
  const auto over = [&] { return !end.error.empty() || all.programs() == 0; };
  simulation::idle_steps idle(all);
  if (!idle.run_until(over, runtime::never))
    end.error = idle.over() ? "the ranks do not come to rest" : "a rank waits for something that can never come";
  end.hash = all.stage().hash();
  for (const auto& r : ranks) r->progress.tell_now(r->work);
  for (rank_id r = 0; r < job.ranks; ++r)
    on_report(r, final_report(all[r], all.network()[r], job, ranks[r]->work, ended_ns, end.error));
  if (end.error.empty()) {
    links.calm();
    idle.run_to(all.stage().now() + settle_within_ns);  // so that the last decision reaches all ranks
  } else {
    jitter.mishaps.push_back({.what = simulation::mishap::kind::crash});  // the ranks did not get to the end
  }
  watching.end_job();
  record.puts_outside = all.network().puts().outside;
  record.lost_reads = all.network().puts().lost_reads;
  for (const simulation::violation& v : idle.violations(record))
    end.error += (end.error.empty() ? "" : "; ") + v.invariant + " was violated: " + v.text;
  end.messages = links.seen();
  return end;
}

}  // namespace parley::cli
