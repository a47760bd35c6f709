#include <parley/ops/leased/contextual_end.hpp>

#include <parley/actors/inquiries.hpp>
#include <parley/ops/core/op_host.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/tuning/key.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

namespace parley::ops {

using actors::round_body;
using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::rank_id;
using runtime::task;

namespace {

constexpr std::size_t largest_report_bytes = 900 << 10;
constexpr const char* not_met_together = "not all ranks met it in the same call";

template <class M>
round_body packed(const M& message) {
  std::vector<std::byte> bytes;
  runtime::encode(message, bytes);
  if (bytes.size() > largest_report_bytes)
    runtime::raise({errc::bad_argument,
                    "the configs of all kernels do not fit into one message; tune fewer kernels or configs at once"});
  round_body body(bytes.size());
  if (!bytes.empty()) std::memcpy(body.data(), bytes.data(), bytes.size());
  return body;
}

template <class M>
M unpacked(const round_body& body) {
  return runtime::decode<M>(std::as_bytes(std::span(body))).value();
}

std::string terms_of(const contextual_options& op) {
  if (op.share) return "shared work";
  return fmt::format("{} iterations, {} warm-ups, {}", op.iterations, op.warm_ups,
                     op.order == tuning::contextual_order::grouped ? "grouped" : "interleaved");
}

actors::op_declaration declare(const contextual_options& op, rank_id world_size) {
  const std::string title = "op " + op.name;
  check_timeout(op.name, op.timeout).value();
  actors::op_declaration d;
  d.name = op.name;
  d.scheme = "contextual, " + terms_of(op);
  for (rank_id r = 0; op.ranks.empty() && r < world_size; ++r) d.participants.push_back({r, "member"});
  for (const rank_id r : op.ranks) {
    const auto same = [&](const auto& p) { return p.rank == r; };
    if (r >= world_size || std::any_of(d.participants.begin(), d.participants.end(), same))
      runtime::raise({errc::bad_argument, title + ": member " + std::to_string(r) + " is outside the world of " +
                                              std::to_string(world_size) + " or listed twice"});
    d.participants.push_back({r, "member"});
  }
  // Members that are listed in another order make the same op, with the same leader.
  std::sort(d.participants.begin(), d.participants.end(),
            [](const auto& one, const auto& other) { return one.rank < other.rank; });
  if (auto name = tuning::checked({op.name}); !name)
    runtime::raise({errc::bad_argument, title + ": " + name.reason().text});
  if (op.iterations == 0)
    runtime::raise({errc::bad_argument, title + " asks for no iterations; at least 1 measures something"});
  d.leader = d.participants.front().rank;
  return d;
}

std::string milliseconds(double ns) { return std::isfinite(ns) ? fmt::format("{:.6g} ms", ns / 1e6) : "inf ms"; }

}  // namespace

// ---- declaration ------------------------------------------------------------------------------------------------------

contextual::contextual(rank& self, contextual_options op) : name_(op.name) {
  const auto d = declare(op, self.world_size());
  const auto me = [&](const auto& p) { return p.rank == self.id(); };
  if (std::none_of(d.participants.begin(), d.participants.end(), me)) return;
  const bool on = self.settings().policy == actors::tuning_policy::online;
  self_ = self.id();
  place_ = self.attach(std::make_unique<contextual_end>(self.services(), self.kernels(), std::move(op),
                                                        on ? contextual_end::trials::on : contextual_end::trials::off));
}

bool contextual::rejoin() { return !idle() && place_.rejoin(); }

std::uint64_t contextual::runs() const { return end_or_raise().runs(); }

std::string contextual::best(const std::string& kernel, const std::string& key) const {
  return end_or_raise().best(kernel, key);
}

task<> contextual::run_thunk(thunk f) const { return end_or_raise().run(std::move(f)); }

ops::decision contextual::decision(const std::string& kernel, const std::string& key) const {
  return end_or_raise().decision(kernel, key);
}

task<ops::decision> contextual::decided(std::string kernel, std::string key, decided_options o) const {
  return end_or_raise().decided(std::move(kernel), std::move(key), o);
}

contextual_end& contextual::end_or_raise() const {
  if (idle()) runtime::raise({errc::bad_argument, "op " + name_ + ": this rank is not a member; check idle() first"});
  return *place_;
}

task<> contextual::call_now(std::function<void()> f) {
  f();
  co_return;
}

contextual_end::contextual_end(actors::services& s, tunable_context& kernels, contextual_options op, trials t)
    : services_(s), kernels_(kernels), op_(std::move(op)), declaration_(declare(op_, s.net.world_size())), trials_(t),
      talk_(s, declaration_, agreement()) {
  progress_.shares_work = op_.share;
}

actors::rounds::options contextual_end::agreement() {
  actors::rounds::options o;
  o.merge = [this](std::span<const round_body> bodies) {
    std::vector<contextual_said> said;
    for (const round_body& b : bodies) said.push_back(unpacked<contextual_said>(b));
    return packed(agree(said, talk_.members(), progress_).value());
  };
  o.known = [this](std::span<const round_body> bodies) {
    std::vector<contextual_said> said;
    for (const round_body& b : bodies) said.push_back(unpacked<contextual_said>(b));
    return packed(known_of(said, progress_));
  };
  o.on_failed = [this](std::uint64_t call) {
    if (call + 1 == calls_) end_run();
  };
  o.on_late_soon = [this](const std::vector<rank_id>& silent) {
    constexpr std::size_t most_asked = 4;
    for (std::size_t i = 0; i < std::min(silent.size(), most_asked); ++i)
      actors::ask_what_it_does(services_, declaration_, talk_.generation(), silent[i], 0);
  };
  o.said_by = [this](const std::vector<rank_id>& silent) {
    return actors::said_by_peers(services_, declaration_, silent);
  };
  return o;
}

bool contextual_end::ends_with(rank_id r) const noexcept {
  const auto& members = talk_.members();
  return std::find(members.begin(), members.end(), r) != members.end();
}

bool contextual_end::is_current() const {
  return talk_.generation() == actors::first_generation(declaration_, services_.incarnations);
}

std::unique_ptr<contextual_end> contextual_end::next_generation() {
  talk_.retire();
  return std::make_unique<contextual_end>(services_, kernels_, op_, trials_);
}

void contextual_end::fail(const error& why) noexcept {
  failed_ = why;
  settled_.tell();
  talk_.fail(why);
  end_run();
}

// A call in which everything is settled concerns this rank alone, so its run continues.
void contextual_end::end_run() noexcept {
  if (running_ != nullptr && (tuning_ || undecided())) running_->cancel();
}

std::string contextual_end::best(const std::string& kernel, const std::string& key) const {
  const auto at = contexts_.find({kernel, key});
  return at == contexts_.end() || !at->second.best ? std::string() : at->second.ids[*at->second.best];
}

decision contextual_end::decision(const std::string& kernel, const std::string& key) const {
  ops::decision d;
  d.op = declaration_.title() + ", kernel " + kernel;
  d.key = key;
  const auto at = contexts_.find({kernel, key});
  if (at == contexts_.end()) {
    d.why = trials_ == trials::off ? "tuning is switched off on this rank"
                                   : "no call of this rank has met this kernel and key while it was tuned";
    return d;
  }
  const context& c = at->second;
  d.decided = c.best.has_value();
  const std::size_t winner = c.best.value_or(0);
  d.config = c.ids[winner];
  d.digest = c.digests[winner];
  d.time_ns = c.latency_ns;
  d.why = d.decided ? c.why : "its configs are being tried, after " + std::to_string(c.plan.taken()) + " steps";
  d.source = c.source;
  d.search = d.version = d.decided ? 1 : 0;
  d.trials = c.plan.taken();
  for (const rank_id r : talk_.members()) {
    if (d.decided) d.ranks.push_back({r, d.config});
  }
  d.here = d.config;
  d.evidence = evidence_of(c);
  return d;
}

std::vector<candidate_evidence> contextual_end::evidence_of(const context& c) const {
  std::vector<candidate_evidence> all;
  for (std::size_t i = 0; i < c.ids.size(); ++i) {
    const auto fault = c.fault_of.find(i);
    candidate_evidence e;
    e.config = c.ids[i];
    e.digest = c.digests[i];
    e.detail = fault == c.fault_of.end() ? std::string() : fault->second;
    if (op_.share) {
      // Of several ranks that have measured it, the slowest one.
      for (const contextual_row& r : c.rows) {
        if (r.digest != c.digests[i]) continue;
        if (e.repetitions == 0 || r.time_ns > e.time_ns)
          e.time_ns = r.time_ns, e.repetitions = r.count, e.spread_ns = r.spread_ns;
        e.ranks.push_back({r.rank, r.time_ns, 0, r.spread_ns, r.count, "measured", {}});
      }
    } else {
      e.time_ns = c.plan.average_ns(i);
      e.repetitions = static_cast<std::uint32_t>(std::isfinite(e.time_ns) ? op_.iterations : 0);
      if (e.repetitions != 0) e.ranks.push_back({services_.net.rank(), e.time_ns, 0, 0, e.repetitions, "measured", {}});
    }
    e.proposer = services_.net.rank();
    e.status = c.plan.dropped(i) ? "failed" : std::isfinite(e.time_ns) ? "measured" : "not tried";
    all.push_back(std::move(e));
  }
  return all;
}

std::vector<std::pair<std::string, decision>> contextual_end::decisions() const {
  std::vector<std::pair<std::string, ops::decision>> all;
  for (const auto& [name, c] : contexts_) {
    if (c.best) all.emplace_back(result_name(c), decision(c.kernel, c.key));
  }
  return all;
}

task<decision> contextual_end::decided(std::string kernel, std::string key, decided_options o) {
  const time_ns until = services_.until((o.timeout.count() != 0 ? o.timeout : op_.timeout).count());
  for (;;) {
    ops::decision d = decision(kernel, key);
    if (d.decided && d.search > o.after_search) co_return d;
    if (failed_) throw failure(*failed_);
    auto woken = co_await settled_.next(until);
    if (woken) continue;
    if (woken.code() != errc::timeout) runtime::raise(woken.reason());
    runtime::error_facts about = declaration_.about(services_.net.rank());
    about.begun = false;  // no run is involved
    const error late(errc::timeout, about, "there is no decision for key {" + key + "}: " + d.why);
    services_.call_failed(late);
    throw failure(late);
  }
}

// ---- a call -----------------------------------------------------------------------------------------------------------

failure contextual_end::explained(std::uint64_t call, error why) const {
  services_.about_to_fail(why.code());
  if (talk_.broken() && talk_.broken()->code() == errc::fenced) why = *talk_.broken();
  runtime::error_facts about = declaration_.about(services_.net.rank());
  about.invocation = call;
  about.peer = why.about().peer;
  about.unmet = why.about().unmet;
  failure f({why.code(), about, why.text().empty() ? why.what() : why.text(), why.began_with()});
  services_.call_failed(f.reason());
  return f;
}

void contextual_end::list_waiting(runtime::waiting_list& all) {
  if (!call_since_ns_) return;
  runtime::waiting_call& w = all.calls.emplace_back();
  w.what = "call";
  w.op = declaration_.title();
  w.id = declaration_.id();
  w.generation = talk_.generation();
  w.invocation = calls_ - 1;
  w.since_ns = *call_since_ns_;
  w.lacks = running_ != nullptr ? "its own run to end" : "reports on the runs of other ranks";
  for (const rank_id r : talk_.members()) {
    if (running_ == nullptr && r != services_.net.rank()) w.peers.push_back(r);
  }
}

std::string contextual_end::progress_in_words(std::uint32_t) const {
  return "has made " + std::to_string(calls_) + " calls of it";
}

task<> contextual_end::run(thunk f) {
  if (kernels_.contextual() != nullptr) {  // a part of the run around it
    co_await f();
    co_return;
  }
  runtime::check_call(services_.ex, {"contextual op", op_.name});
  // A settled call needs no agreement, so it continues even if ranks are gone. But after a restart all ranks must agree on everything
  // again.
  if (talk_.broken() && talk_.broken()->code() == errc::peer_restarted) throw explained(calls_, *talk_.broken());
  const std::uint64_t call = calls_++;
  const bool first = contexts_.empty();
  kernels_.set_contextual(this);
  call_since_ns_ = services_.clocks.local(services_.ex.now());
  std::exception_ptr thrown;
  bool trying = first;
  {
    const runtime::finally over([this] {
      kernels_.set_contextual(nullptr);
      call_since_ns_.reset();
    });
    progress_.steps = 0;
    progress_.any_round = false;
    try {
      co_await tune(call, first, std::move(f));
    } catch (...) {
      thrown = std::current_exception();
    }
    trying = trying || undecided();
  }
  mode_ = mode::settled;
  if (!thrown) {
    talk_.passed(call);
    co_return;
  }
  const error own = runtime::describe(thrown);
  const auto elsewhere = talk_.failure_of(call);
  talk_.failed(call, own, trying ? actors::rounds::told::everybody : actors::rounds::told::who_asks);
  talk_.passed(call);
  forget_undecided();
  write_log();
  if (elsewhere) throw explained(call, *elsewhere);
  if (trying && talk_.broken()) throw explained(call, *talk_.broken());
  if (!trying) std::rethrow_exception(thrown);
  throw explained(call, own);
}

task<> contextual_end::tune(std::uint64_t call, bool first, thunk f) {
  if (const auto why = talk_.failure_of(call)) runtime::raise(*why);
  const bool is_late = talk_.was_late(call);
  mode_ = trials_ == trials::on && !is_late ? mode::trying : mode::settled;
  for (std::uint32_t round = 0;; ++round) {
    tuning_ = !is_late && (first || round != 0);
    co_await run_guarded(f, tuning_ ? op_.timeout.count() : runtime::never);
    ++runs_;
    for (auto& [name, c] : contexts_) c.calls = 0;
    write_log();
    if (round == 0 && !undecided()) co_return;
    auto agreed = co_await talk_.exchange(call, round, packed(report()), op_.timeout.count());
    if (!agreed) runtime::raise(agreed.reason());
    if (agreed->what == actors::rounds::outcome::kind::late) {
      go_on_without(*agreed);
      write_log();
      co_return;
    }
    const auto verdict = unpacked<contextual_verdict>(agreed->body);
    if (agreed->what == actors::rounds::outcome::kind::apart) {
      take(verdict, agreed->text + " had nothing to tune in that call");
      write_log();
      co_return;
    }
    take(verdict, not_met_together);
    write_log();
    if (!verdict.unfinished) break;
  }
  mode_ = mode::settled;
  tuning_ = first;
  co_await run_guarded(std::move(f), runtime::never);
  ++runs_;
}

/// Runs the thunk once. Cancels it after its timeout, or when another rank's run has failed in a call that the ranks make together.
task<> contextual_end::run_guarded(thunk f, time_ns timeout_ns) {
  runtime::scope& around = co_await runtime::this_scope;
  runtime::scope here(around, {.deadline = services_.until(timeout_ns)});
  std::exception_ptr thrown;
  {
    running_ = &here;
    run_began_ns_ = services_.ex.precise_now();
    const runtime::finally over([this] {
      running_ = nullptr;
      on_devices_.clear();
    });
    here.spawn(run_to_the_end(std::move(f)));
    try {
      co_await here.join();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  if (!thrown) co_return;
  if (here.cancelled() == errc::timeout && around.cancelled() == errc::none)
    runtime::raise(error::in_words(errc::timeout, {.unmet = runtime::awaited::config},
                                   "a run took longer than " +
                                       milliseconds(static_cast<double>(services_.patient(op_.timeout.count()))) +
                                       "; see what holds it up, or allow more time"));
  std::rethrow_exception(thrown);
}

task<> contextual_end::run_to_the_end(thunk f) {
  constexpr std::chrono::microseconds between_looks(20);
  co_await f();
  while (!on_devices_.empty()) {
    if (!on_devices_.front().timer.is_over()) {
      const auto woken = co_await runtime::sleep_for(between_looks);
      if (!woken) runtime::raise(woken.reason());
      continue;
    }
    on_device first = std::move(on_devices_.front());
    on_devices_.pop_front();
    const auto at = contexts_.find(first.of);
    if (at == contexts_.end()) continue;
    ended(at->second, first.tried, first.timer.took_ns());
  }
}

void contextual_end::forget_undecided() {
  progress_.shares.clear();
  on_devices_.clear();
  for (auto at = contexts_.begin(); at != contexts_.end();) {
    const auto next = std::next(at);
    if (!at->second.best) {
      auto taken = contexts_.extract(at);
      if (taken.mapped().turns != 0) forgotten_.push_back(std::move(taken));
    }
    at = next;
  }
}

bool contextual_end::undecided() const {
  return std::any_of(contexts_.begin(), contexts_.end(), [](const auto& c) { return !c.second.best; });
}

contextual_said contextual_end::report() const {
  contextual_said said;
  said.terms = terms_of(op_);
  if (op_.share)
    for (const tuning::validator& v : kernels_.get_tuning_results_validator())
      said.machine += v.name + "=" + v.value + "\n";
  for (const auto& [name, c] : contexts_) {
    if (c.best) continue;
    contextual_report r;
    r.kernel = c.kernel;
    r.key = c.key;
    r.digests = c.digests;
    if (op_.share) {
      report_share(c, r);
    } else {
      r.complete = c.plan.finished();
      r.steps = c.plan.taken() + c.references.size();
      for (std::size_t i = 0; i < c.ids.size(); ++i) r.average_ns.push_back(c.plan.average_ns(i));
    }
    if (c.remembered) {
      r.remembered = c.digests[*c.remembered];
      r.remembered_ns = c.remembered_ns;
    }
    said.reports.push_back(std::move(r));
  }
  return said;
}

void contextual_end::report_share(const context& c, contextual_report& r) {
  r.complete = c.has_measured_part;
  for (std::size_t i = 0; i < c.ids.size(); ++i) {
    const tuning::aggregate& a = c.times[i];
    const bool is_mine = !c.part || c.part->has(i) || has_time(c, i) || c.plan.dropped(i);
    r.average_ns.push_back(is_mine ? a.time_ns : left_to_others_ns);
    r.spread_ns.push_back(a.spread_ns);
    r.counts.push_back(static_cast<std::uint32_t>(a.count));
    if (a.measured() || c.plan.dropped(i)) ++r.steps;
  }
  ++r.steps;  // it was met
}

void contextual_end::take(const contextual_verdict& v, const std::string& why_default) {
  const auto& members = talk_.members();
  const auto me =
      static_cast<std::size_t>(std::find(members.begin(), members.end(), services_.net.rank()) - members.begin());
  for (const contextual_share& share : v.shares) {
    const auto at = contexts_.find({share.kernel, share.key});
    const auto part = part_of(share, me);
    if (at == contexts_.end() || !part || at->second.part == part) continue;
    at->second.part = part;
    at->second.has_measured_part = false;
  }
  for (const contextual_best& best : v.decided) {
    progress_.decided[{best.kernel, best.key}] = best;
    const auto at = contexts_.find({best.kernel, best.key});
    if (at != contexts_.end() && !at->second.best) settle(at->second, best, why_default);
  }
}

void contextual_end::settle(context& c, const contextual_best& best, const std::string& why_default) {
  if (best.digest == 0) return keep_default(c, why_default);
  const auto at = std::find(c.digests.begin(), c.digests.end(), best.digest);
  c.best = at == c.digests.end() ? 0 : static_cast<std::size_t>(at - c.digests.begin());
  const std::string& id = c.ids[*c.best];
  c.latency_ns = best.latency_ns;
  c.rows = best.rows;
  if (best.from_results) {
    c.source = actors::decision_source::results;
    c.why = id + " is remembered";
  } else if (at == c.digests.end() || best.latency_ns == 0) {
    c.source = actors::decision_source::only_default;
    c.why = id + " runs, because nothing was measured";
  } else if (op_.share) {
    c.why = *c.best == 0 ? id + " stays, because no other config is faster by more than noise"
                         : id + " is the fastest, with " + milliseconds(best.latency_ns);
    c.why += ", as measured by the ranks together";
  } else {
    c.why = id + " is the fastest: its average on the slowest rank is " + milliseconds(best.latency_ns);
  }
  if (!c.passed_over.empty()) c.why += "; on this rank " + c.passed_over;
  settled_.tell();
  log(c, fmt::format("best-config-id: {} | best-config: {{{}}} | best-latency: {}", *c.best, id,
                     milliseconds(best.latency_ns)));
  if (best.latency_ns > 0 && !best.from_results)
    kernels_.learn({result_name(c), c.key, id, best.latency_ns / 1e6}, decision(c.kernel, c.key));
}

/// Some rank is late. What this run has computed is the call's result, because all configs give the same.
void contextual_end::go_on_without(const actors::rounds::outcome& late) {
  if (!late.body.empty()) take(unpacked<contextual_verdict>(late.body), late.text + ", again and again");
  if (!undecided()) return;
  kernels_.warn(declaration_.title() + ", on rank " + std::to_string(services_.net.rank()) +
                ": nothing is decided in this call, and the next one tunes again, because " + late.text);
  forget_undecided();
}

void contextual_end::keep_default(context& c, const std::string& because) {
  c.best = 0;
  c.source = actors::decision_source::only_default;
  c.why = "the default stays, because " + because;
  settled_.tell();
  kernels_.warn(declaration_.title() + ", on rank " + std::to_string(services_.net.rank()) + ": kernel " + c.kernel +
                ", key {" + c.key + "}, keeps its default, because " + because +
                "; let all ranks use a new key in the same call");
}

// ---- its kernels ------------------------------------------------------------------------------------------------------

contextual_end::context* contextual_end::find(const kernel_core& kernel, const kernel_entry& e) {
  const auto at = contexts_.find({kernel.name(), e.parameters});
  return at == contexts_.end() ? nullptr : &at->second;
}

contextual_end::context* contextual_end::find_or_make(const kernel_core& kernel, const kernel_entry& e,
                                                      const kernel_outputs& outputs) {
  if (context* const known = find(kernel, e)) return known;
  const bool alone = talk_.members().size() == 1;
  if (mode_ == mode::settled && !(alone && trials_ == trials::off)) return nullptr;
  context made(kernel, e.parameters, {op_.iterations, op_.warm_ups, op_.order});
  leave_out_forbidden(kernel, e, made);
  recall(kernel, e, made);
  if (alone && made.remembered) {
    made.best = made.remembered;
    made.latency_ns = made.remembered_ns;
    made.source = actors::decision_source::results;
    made.why = made.ids[*made.best] + " is remembered";
  }
  if (trials_ == trials::off && !made.best) return nullptr;
  if (kernels_.is_numerics_check_enabled() && outputs.empty() && !made.best) leave_out_unchecked(made);
  if (!made.best && (made.ids.size() == 1 || !made.remembered)) settle_without_choice(made);
  context& kept = contexts_.emplace(name_of{kernel.name(), e.parameters}, std::move(made)).first->second;
  const auto known = progress_.decided.find({kernel.name(), e.parameters});
  if (known != progress_.decided.end()) settle(kept, known->second, not_met_together);
  if (talk_.failure_of(calls_ - 1)) end_run();  // from now on, another rank's failure in this call matters
  return &kept;
}

void contextual_end::recall(const kernel_core& kernel, const kernel_entry& e, context& c) {
  const auto of_all_keys = [&c](std::optional<std::uint32_t> i) { return i && *i < c.ids.size(); };
  if (const kernel_core::ruled by = kernel.rule_of(e); of_all_keys(by.implementation)) {
    c.remembered = *by.implementation;
    return;
  } else if (!by.place.empty()) {
    c.passed_over = by.implementation ? by.place + " names " + kernel.ids()[*by.implementation] +
                                            ", which does not exist for all keys"
                                      : by.why_not;
    kernels_.warn(declaration_.title() + ", kernel " + c.kernel + ": " + c.passed_over);
  }
  const auto* known = remembered(kernels_, result_name(c), e);
  if (known == nullptr) return;
  auto solution = kernel.find(known->solution);
  if (!of_all_keys(solution)) solution.reset();
  if (solution && c.plan.dropped(*solution)) {
    c.passed_over = "`" + known->solution + "` of the results file is not run, because " + c.fault_of[*solution];
  } else if (solution) {
    c.remembered = *solution;
    c.remembered_ns = known->time_ms * 1e6;
  } else {
    c.passed_over = "`" + known->solution + "` of the results file is not an implementation of kernel " + c.kernel;
    kernels_.warn(declaration_.title() + ": " + c.passed_over + "; it is tuned again");
  }
}

void contextual_end::leave_out_forbidden(const kernel_core& kernel, const kernel_entry& e, context& c) {
  for (std::size_t i = 1; i < c.ids.size(); ++i) {
    std::string why = kernel.why_left_out(e, i);
    if (why.empty()) continue;
    c.plan.drop(i);
    c.fault_of[i] = std::move(why);
  }
}

void contextual_end::leave_out_unchecked(context& c) {
  if (c.ids.size() == 1) return;
  for (std::size_t i = 1; i < c.ids.size(); ++i) {
    c.plan.drop(i);
    c.fault_of[i] = "the kernel declares no outputs that could be checked";
  }
  kernels_.warn(declaration_.title() + ": kernel " + c.kernel +
                ": NUMERICAL_CHECK is on, but the kernel declares no outputs; only its default runs");
}

/// Settles on the default if no other config may run here: a config that one rank has dropped cannot win on any rank.
void contextual_end::settle_without_choice(context& c) {
  for (std::size_t i = 1; i < c.ids.size(); ++i) {
    if (!c.plan.dropped(i)) return;
  }
  c.best = 0;
  c.source = actors::decision_source::only_default;
  c.why = c.ids[0] + (c.ids.size() == 1 ? " is its only config" : " runs, because " + c.fault_of[1]);
}

// Changes the outputs, so that a config that writes nothing cannot pass with the results of an earlier run.
void contextual_end::prepare_comparison(context& c, turn& t, kernel_outputs outputs) const {
  t.outputs = std::move(outputs);
  t.compared = c.references.contains(t.call) ? turn::comparison::with_reference : turn::comparison::is_reference;
  if (t.compared == turn::comparison::is_reference) return;
  if (t.outputs.updated()) {
    t.before = t.outputs.save();
  } else {
    t.outputs.fill();
  }
}

/// Nothing is tried, and the kernel is not met: a graph that is captured runs later.
std::size_t contextual_end::config_without_trials(const kernel_core& kernel, const kernel_entry& e) {
  if (const context* const c = find(kernel, e)) return c->best.value_or(c->plan.stand_in().value_or(0));
  // What is remembered holds for all ranks only once they have compared it.
  if (talk_.members().size() != 1) return 0;
  context unmet(kernel, e.parameters, {});
  leave_out_forbidden(kernel, e, unmet);
  recall(kernel, e, unmet);
  return unmet.remembered.value_or(0);
}

contextual_run::turn contextual_end::begin(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs) {
  turn t;
  kernel_device* const device = kernel.device();
  if (device != nullptr && device->is_capturing()) {
    t.config = config_without_trials(kernel, e);
    return t;
  }
  if (context* const c = find_or_make(kernel, e, outputs)) {
    t.of = c;
    ++c->turns;
    bool began = false;
    const runtime::finally undone([&] {
      if (began) return;
      c->in_flight.erase(t.step);
      leave(*c);
    });
    t.call = c->calls++;
    const bool compares = !outputs.empty() && !c->best;
    if (c->best) {
      t.config = *c->best;
      if (op_.share) adopt(*c, e);
    } else if (op_.share) {
      begin_share(kernel, e, std::move(outputs), *c, t);
    } else if (compares && !c->references.contains(t.call)) {
      t.config = c->plan.stand_in().value_or(0);
      prepare_comparison(*c, t, std::move(outputs));
    } else if (const auto step = c->plan.next()) {
      t.step = ++c->next_step;
      c->in_flight.emplace(t.step, *step);
      t.counts = !c->plan.dropped(step->candidate);
      t.config = t.counts ? step->candidate : c->plan.stand_in().value_or(0);
      if (compares && t.config != 0) prepare_comparison(*c, t, std::move(outputs));
    } else {
      t.config = c->plan.stand_in().value_or(0);  // all steps are taken; the other ranks' reports are missing
    }
    if (device != nullptr && t.counts) t.timer.emplace(*device);
    began = true;
  }
  t.began_ns = services_.ex.precise_now();
  return t;
}

bool contextual_end::has_time(const context& c, std::size_t config) {
  return config != 0 && c.times[config].status != tuning::aggregate_status::not_tried;
}

/// Also decides calls of the kernel outside of `run`, unless nothing was compared.
void contextual_end::adopt(const context& c, kernel_entry& e) {
  if (c.source == actors::decision_source::only_default || (e.decided && e.winner == *c.best)) return;
  e.winner = static_cast<std::uint32_t>(*c.best);
  e.decided = true;
  e.time_ms = c.latency_ns / 1e6;
  e.why = c.why;
}

void contextual_end::begin_share(const kernel_core& kernel, kernel_entry& e, kernel_outputs outputs, context& c,
                                 turn& t) {
  t.config = c.plan.stand_in().value_or(0);
  // There is no part before the first agreement. Another call may tune, or have tuned, this kernel.
  if (!c.part || c.has_measured_part || e.being_tuned) return;
  if (kernel.device() != nullptr && !kernel.device()->why_not_now().empty()) return;
  // A run that takes too long fails. So the next run goes on with the other kernels.
  const time_ns most_ns = services_.patient(op_.timeout.count()) / 2;
  if (services_.ex.precise_now() - run_began_ns_ > most_ns) return;
  t.part = *c.part;
  t.trials = std::make_unique<kernel_tuning>(kernel, e, std::move(outputs), kernel_tuning::extent::part_of_all);
  for (std::size_t i = 1; i < c.ids.size(); ++i) {
    if (!t.part.has(i)) t.trials->leave_out(i, "another rank measures it");
    if (has_time(c, i)) t.trials->leave_out(i, "it was measured before");
  }
  t.config = t.trials->next()->candidate;
}

bool contextual_end::end_share(context& c, turn& t, const std::exception_ptr& thrown) {
  const bool stopping = running_ != nullptr && running_->cancelled() != errc::none;
  if (stopping && thrown) std::rethrow_exception(thrown);
  t.trials->end(thrown);
  const auto next = stopping ? std::nullopt : t.trials->next();
  if (next) {
    t.config = next->candidate;
    return false;
  }
  const auto times = t.trials->times();
  t.trials.reset();
  if (!stopping) keep_times(c, t.part, times);
  t.config = c.plan.stand_in().value_or(0);
  return false;
}

void contextual_end::keep_times(context& c, const contextual_part& part, const std::vector<tuning::aggregate>& times) {
  c.has_measured_part = part == c.part;
  // Times count relative to the default, so those of an earlier part are converted.
  const double scale = c.times[0].measured() ? times[0].time_ns / c.times[0].time_ns : 1;
  for (tuning::aggregate& a : c.times) {
    a.time_ns *= scale;
    a.spread_ns *= scale;
  }
  for (std::size_t i = 0; i < c.ids.size(); ++i) {
    if (!part.has(i) || has_time(c, i)) continue;
    const tuning::aggregate& a = c.times[i] = times[i];
    if (a.measured()) {
      log(c, fmt::format("config-id: {} | config: {{{}}} | config-{} average latency: {}", i, c.ids[i], i,
                         milliseconds(a.time_ns)));
    } else if (a.status != tuning::aggregate_status::not_tried) {
      c.plan.drop(i);
      c.fault_of[i] = a.detail;
      c.faults += fmt::format("; config-{} ({}): {}", i, c.ids[i], a.detail);
      log(c, fmt::format("config-id: {} | config: {{{}}} | failed: {}", i, c.ids[i], a.detail));
    } else {
      c.fault_of[i] = a.detail;  // hopeless
    }
  }
}

std::string contextual_end::compared(const turn& t) const {
  if (t.compared != turn::comparison::with_reference) return {};
  const context& c = *static_cast<const context*>(t.of);
  return t.outputs.compare(c.references.at(t.call), kernels_.settings().check);
}

bool contextual_end::run_in_its_place(context& c, turn& t, const std::string& fault) {
  c.plan.drop(t.config);
  c.fault_of[t.config] = fault;
  c.faults += fmt::format("; config-{} ({}): {}", t.config, c.ids[t.config], fault);
  log(c, fmt::format("config-id: {} | config: {{{}}} | failed: {}", t.config, c.ids[t.config], fault));
  kernels_.warn(fmt::format("{}, on rank {}: kernel {}, key {{{}}}: config {} {}", declaration_.title(),
                            services_.net.rank(), c.kernel, c.key, c.ids[t.config], fault));
  const auto other = c.plan.stand_in();
  if (!other)
    runtime::raise(
        {errc::config_failed, "cannot find valid config: func " + c.kernel + ", key {" + c.key + "}" + c.faults});
  if (t.outputs.updated() && !t.before.empty()) t.outputs.restore(t.before);
  t.config = *other;
  t.counts = false;
  t.timer.reset();
  if (*other == 0 && t.compared == turn::comparison::with_reference) t.compared = turn::comparison::none;
  t.began_ns = services_.ex.precise_now();
  return false;
}

void contextual_end::leave(context& c) noexcept {
  if (--c.turns == 0) forgotten_.remove_if([&c](const auto& f) { return &f.mapped() == &c; });
}

bool contextual_end::end(turn& t, const std::exception_ptr& thrown) {
  const auto took_ns = static_cast<double>(services_.ex.precise_now() - t.began_ns);
  if (t.timer && !thrown) t.timer->end();  // before outputs are compared in the same stream
  auto* const c = static_cast<context*>(t.of);
  bool over = true;
  const runtime::finally leaving([&] {
    if (over && c != nullptr) leave(*c);
  });
  if (t.trials != nullptr) return over = end_share(*c, t, thrown);
  const bool stopping = running_ != nullptr && running_->cancelled() != errc::none;
  if (thrown) {
    const error why = runtime::describe(thrown);
    if (c == nullptr || stopping || c->best || op_.share || why.code() == errc::cancelled)
      std::rethrow_exception(thrown);
    return over = run_in_its_place(*c, t, "throws: " + why.what());
  }
  if (const std::string wrong = compared(t); !wrong.empty())
    return over = run_in_its_place(*c, t, "gives wrong numbers: " + wrong);
  if (t.compared == turn::comparison::is_reference) c->references[t.call] = t.outputs.save();
  if (c == nullptr || t.step == 0) return true;
  const auto at = c->in_flight.find(t.step);
  const tuning::trial tried = at->second;
  c->in_flight.erase(at);
  if (t.timer) {
    const auto its = contexts_.find({c->kernel, c->key});
    if (running_ != nullptr && its != contexts_.end() && &its->second == c)
      on_devices_.push_back({its->first, tried, std::move(*t.timer)});
    return true;
  }
  ended(*c, tried, t.counts ? std::optional(took_ns) : std::nullopt);
  return true;
}

void contextual_end::ended(context& c, const tuning::trial& tried, std::optional<double> took_ns) {
  c.plan.ended(tried, took_ns);
  std::string line = fmt::format("config-id: {} | config: {{{}}}", tried.candidate, c.ids[tried.candidate]);
  if (tried.what == tuning::trial_kind::warm_up) {
    line += fmt::format(" | warmup-iter: {}", tried.turn);
  } else {
    line += fmt::format(" | measure-iter: {}", tried.turn);
    if (c.plan.is_last(tried))
      line += fmt::format(" | config-{} average latency: {}", tried.candidate,
                          milliseconds(c.plan.average_ns(tried.candidate)));
  }
  log(c, line);
}

// ---- the log ----------------------------------------------------------------------------------------------------------

void contextual_end::log(const context& c, const std::string& rest) {
  if (op_.log_folder.empty()) return;
  log_ += fmt::format("[rank-{}] func: {} | key: {{{}}} | {}\n", services_.net.rank(), c.kernel, c.key, rest);
}

/// Called between runs, when nothing is timed.
void contextual_end::write_log() {
  if (log_.empty()) return;
  const std::string text = std::exchange(log_, {});
  if (kernels_.disk() == nullptr || log_refused_) return;
  // `append` also makes the folder.
  const std::string path = op_.log_folder + "/rank-" + std::to_string(services_.net.rank()) + ".log";
  const bool begins = kernels_.begins_log(path);
  auto written = kernels_.disk()->append(path, begins ? std::string() : text);
  if (begins && written) written = kernels_.disk()->replace(path, text);
  if (written) return;
  log_refused_ = true;  // said once
  kernels_.warn("the log of op " + op_.name + " could not be written: " + written.reason().what());
}

}  // namespace parley::ops
