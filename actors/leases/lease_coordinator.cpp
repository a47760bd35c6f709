#include <parley/actors/leases/lease_coordinator.hpp>

#include <algorithm>
#include <exception>
#include <utility>
#include <variant>

namespace parley::actors {

using runtime::errc;

namespace {

constexpr time_ns shortest_pause_ns = 2'000'000;
constexpr time_ns longest_first_pause_ns = 50'000'000;
constexpr time_ns promise_limit_ns = 2'000'000'000;
// Longer than the participants' own limit, so that a participant that failed can report its failure first.
constexpr time_ns rehearsal_limit_ns = 8'000'000'000;
constexpr time_ns look_again_ns = 1'000'000'000;
constexpr std::size_t connection_attempts = 2;
constexpr std::size_t most_trials = 4096;

bool all(const std::vector<bool>& of) noexcept { return std::find(of.begin(), of.end(), false) == of.end(); }

}  // namespace

lease_coordinator::lease_coordinator(services& s, coordinator_state& state, id_maker make_id, trial_path path)
    : services_(s), state_(state), make_id_(std::move(make_id)), path_(path), generation_(state.generation) {
  round_.asks.resize(size());
  round_.done.resize(size());
  endings_.resize(size());
  leaving_.resize(size());
  ended_.resize(size(), true);
  hear<lease_reply>();
  hear<rehearsed>();
  hear<lease_ended>();
  hear<lease_leaving>();
  state_.on_change = [this] { post({}); };
}

template <class M>
void lease_coordinator::hear() {
  services_.mail.bind<M>(number_of(state_.declaration.id(), part::coordinator), [this](envelope from, M&& body) {
    if (place(from.source) == size()) return errc::none;  // not a participant
    received<M> m{from, std::move(body)};
    return actor_.try_send(std::move(m));
  });
}

void lease_coordinator::start() {
  // Rows arrive once their invocations have run, and it is not known when a program makes its next call.
  if (path_ == trial_path::leased)
    state_.assigned->ask_begun([this](std::uint32_t key, std::uint64_t) {
      return std::any_of(keys_.begin(), keys_.end(), [&](const auto& k) { return k->key == key && k->cut_short; });
    });
  actor_ = runtime::spawn_actor<received<lease_reply>, received<rehearsed>, received<lease_ended>,
                                received<lease_leaving>, lease_news>(services_.actors, coordinate, *this);
  post({});
}

runtime::task<> lease_coordinator::coordinate(actor& self, lease_coordinator& c) {
  for (;;) {
    auto m = co_await self.receive(c.next_event());
    if (!m && m.code() != errc::timeout) co_return;
    if (c.stopped_) continue;
    const busy_until_end control(c.services_, c.state_.control_ns);
    try {
      if (m) std::visit([&](auto& message) { c.on(message); }, *m);
      if (c.services_.ex.now() >= c.resume_at_ns_) {
        c.check_deadlines();
        c.advance();
      }
    } catch (...) {
      c.failed(runtime::describe(std::current_exception()));
    }
    try {
      c.send_due();  // also after an exception: members may wait for a message that was lost
    } catch (...) {
      c.failed(runtime::describe(std::current_exception()));
    }
  }
}

// A step that throws may throw again for a while, and calls must not wait that long. So campaigns in preparation are aborted for all sizes,
// which lifts their gates.
void lease_coordinator::failed(const runtime::error& what) noexcept {
  try {
    pause_or_give_up(what);
  } catch (...) {  // for example out of memory; the calls do not depend on this
    resume_at_ns_ = runtime::never;
  }
}

void lease_coordinator::pause_or_give_up(const runtime::error& what) {
  for (auto& k : keys_) {
    if (k->writer.preparing()) abort(*k);
  }
  const std::string why = "an exception was thrown on rank " + std::to_string(services_.net.rank()) +
                          ", which leads its agreement: " + what.what().substr(0, most_error_bytes);
  const std::string op = state_.declaration.title() + ": " + why;
  if (state_.warm_errors.size() < most_warm_errors) state_.warm_errors.push_back("the coordinator: " + why);
  if (resume_at_ns_ == runtime::never) return;  // it has given up
  if (const auto pause = tries_.after(progress_, services_.jitter)) {
    resume_at_ns_ = services_.ex.deadline_in(*pause);
    if (tries_.failures() == 1)
      warn(services_, op + "; the leader tries again, and calls keep the decisions that were made");
    return;
  }
  resume_at_ns_ = runtime::never;
  round_.of = nullptr;
  warn(services_, op + "; this happened again and again, so tuning of the op has ended; its decisions stay");
  state_.assigned->end_tuning(why, services_.ex.now());
  for (auto& k : keys_) static_cast<void>(state_.assigned->open_key(k->bytes, services_.ex.now()));
  if (state_.look_again) state_.look_again();
}

// ---- what has to happen next --------------------------------------------------------------------------------------------

void lease_coordinator::on(lease_news& m) {
  if (!m.is_key) return;
  const std::uint32_t key = tuning::size_bucket::of(m.bytes).index();
  if (std::any_of(keys_.begin(), keys_.end(), [&](const auto& k) { return k->key == key; })) return;
  keys_.push_back(std::make_unique<key_state>(
      key, m.bytes, lease_writer(generation_, state_.declaration.default_digest, size(), here()), size()));
  if (resume_at_ns_ == runtime::never) static_cast<void>(state_.assigned->open_key(m.bytes, services_.ex.now()));
}

void lease_coordinator::advance() {
  if (!state_.assigned->opened()) return;
  for (auto& k : keys_) advance(*k);
}

// Compares the decision with the log, and makes the next step that brings the log closer to the decision.
void lease_coordinator::advance(key_state& k) {
  const time_ns now = services_.ex.now();
  const search& c = state_.assigned->open_key(k.bytes, now);
  if (k.writer.preparing()) {
    // Asks members that have not promised yet for a promise without margin, because every call in the margin would fail.
    k.at_once = k.at_once || schedules_what_failed(k, c);
    if (k.writer.all_promised()) schedule(k);
    return;
  }
  if (now < k.retry_at_ns) return;
  if (schedules_what_failed(k, c)) {
    k.cut_short = true;
    prepare(k, purpose::decision);
    k.at_once = true;
    return;
  }
  const bool held = round_.of == &k && between_calls() && !round_.scheduled && !somebody_leaves();
  if (held && all(round_.holding)) return prepare(k, purpose::rehearsals);
  if (round_.of == &k) return;
  if (path_ == trial_path::leased && !k.halted && state_.assigned->has_late_trials(k.bytes)) {
    prepare(k, purpose::halt);
    k.at_once = true;
    return;
  }
  const bool trying = c.where() == search::stage::trying;
  const bool decided = c.where() == search::stage::decided && c.chosen().digest != k.writer.log().tail();
  // S3: the members have not yet run the config of a results file together.
  const bool ran = c.chosen().digest == state_.declaration.default_digest || k.rehearsed.count(c.chosen().digest) != 0;
  if (decided && (ran || path_ == trial_path::leased)) return prepare(k, purpose::decision);
  if (somebody_leaves()) return;
  if (trying && k.aside.empty() && path_ != trial_path::rehearsals && !may_try(c)) return;
  if (trying && path_ == trial_path::leased) return prepare(k, purpose::trials);
  if ((trying || decided || !k.aside.empty()) && (round_.of == nullptr || is_in_the_way(k))) rehearse_next(k, c);
}

// Checks N4 if trials delay the user's calls: the whole schedule is paid for at once, so the budget must cover it.
bool lease_coordinator::may_try(const search& c) const noexcept {
  const auto trials = static_cast<double>(c.run() != nullptr ? c.run()->plan().left_in_round() : 0);
  const double each_ns = path_ == trial_path::leased ? c.fastest_default_ns() / 2 : c.fastest_default_ns();
  return c.affordable(trials * each_ns, services_.ex.now());
}

std::vector<rehearsal_run> lease_coordinator::fetch_trials(key_state& k, std::uint64_t first_index) {
  std::vector<rehearsal_run> runs;
  const std::size_t most_idle = 2 * state_.assigned->candidates().size() + 8;
  const search& c = state_.assigned->open_key(k.bytes, services_.ex.now());
  for (std::size_t idle = 0; c.where() == search::stage::trying && runs.size() < most_trials && idle < most_idle;) {
    const auto chosen =
        state_.assigned->choose(k.bytes, k.key, first_index + runs.size(), services_.ex.now(), {pacing::at_once});
    runs.push_back({first_index + runs.size(), chosen.digest});
    idle = has(chosen.flags, stamp_flags::timed) ? 0 : idle + 1;
  }
  if (path_ != trial_path::leased) k.rehearsal_index += runs.size();
  return runs;
}

// ---- rehearsals -------------------------------------------------------------------------------------------------------

void lease_coordinator::connect_anew() {
  connected_ = false;
  const auto id = make_id_();  // the user's function, which may throw
  connected_ = true;
  ++progress_;
  ++connection_;
  connection_id_.clear();
  std::transform(id.begin(), id.end(), std::back_inserter(connection_id_),
                 [](std::byte b) { return static_cast<std::uint8_t>(b); });
}

// Comparisons have a separate round before the first timed one, so that a config with wrong results on any rank is excluded before it is
// timed.
std::vector<rehearsal_run> lease_coordinator::comparisons(key_state& k, const search& c) {
  std::vector<rehearsal_run> runs;
  const auto& candidates = state_.assigned->candidates();
  for (std::size_t i = 1; comparing_ && i < candidates.size() && runs.size() < most_trials; ++i) {
    if (k.compared.count(candidates[i]) != 0 || c.excludes(i)) continue;
    if (runs.empty()) runs.push_back({k.rehearsal_index++, candidates[0], rehearsal_run::kind::reference});
    runs.push_back({k.rehearsal_index++, candidates[i], rehearsal_run::kind::compared});
  }
  return runs;
}

void lease_coordinator::rehearse_next(key_state& k, const search& c) {
  if (!connected_) connect_anew();  // may throw, so it precedes taking trials from the plan
  auto runs = std::exchange(k.aside, {});
  if (runs.empty()) runs = comparisons(k, c);
  if (runs.empty() && c.where() == search::stage::trying) runs = fetch_trials(k, k.rehearsal_index);
  if (runs.empty() && c.where() == search::stage::decided) runs.push_back({k.rehearsal_index++, c.chosen().digest});
  if (runs.empty()) return;
  if (round_.of != nullptr) round_.of->aside = std::move(round_.letter.runs);
  start_round(k, std::move(runs));
}

void lease_coordinator::start_round(key_state& k, std::vector<rehearsal_run> runs) {
  ++counters_.rounds;
  round_.of = &k;
  round_.letter = {};
  round_.letter.round = ++round_.number;
  round_.letter.key = k.key;
  round_.letter.bytes = k.bytes;
  round_.letter.connection = connection_;
  round_.letter.id = connection_id_;
  round_.letter.runs = std::move(runs);
  const bool between = path_ == trial_path::between_calls && !round_.letter.runs.empty();
  round_.letter.when = between ? rehearse::moment::scheduled : rehearse::moment::now;
  round_.scheduled = false;
  round_.failure.reset();
  round_.failed.assign(size(), false);
  round_.holding.assign(size(), false);
  round_.begun.assign(size(), false);
  round_.heard.assign(size(), false);
  round_.done.assign(size(), false);
  round_.at.assign(size(), 0);
  round_.not_at_it.assign(size(), false);
  round_.began_ns = services_.ex.precise_now();
}

void lease_coordinator::on(received<rehearsed>& m) {
  if (round_.of == nullptr || m.body.round != round_.number || m.from.generation != generation_) return;
  const std::size_t p = place(m.from.source);
  answered(round_.asks[p]);
  round_.heard[p] = true;
  if (m.body.at > round_.at[p]) {
    round_.at[p] = m.body.at;
    round_.given_up_at_ns = services_.ex.deadline_in(rehearsal_limit_ns);
  }
  round_.not_at_it[p] = m.body.what == rehearsed::kind::holding;
  switch (m.body.what) {
    case rehearsed::kind::running: return;
    case rehearsed::kind::holding: round_.holding[p] = true; return;
    case rehearsed::kind::begun:
      if (!all(round_.begun)) round_.began_ns = services_.ex.precise_now();
      round_.begun[p] = true;
      return;
    case rehearsed::kind::failed:
    case rehearsed::kind::late:
    case rehearsed::kind::unconnected: return note_failure(p, m.body);
    case rehearsed::kind::done: break;
  }
  if (!round_.done[p]) note_unlike(p, m.body.unlike);
  round_.done[p] = true;
  if (!all(round_.done)) return;
  connections_failed_ = 0;
  ++progress_;
  for (const rehearsal_run& r : round_.letter.runs) {
    round_.of->rehearsed.insert(r.digest);
    if (r.what == rehearsal_run::kind::compared) round_.of->compared.insert(r.digest);
  }
  round_.of = nullptr;
}

// A member that fails leaves the communicator, and then others fail, in the same run or a later one. So the earliest failure is to blame,
// even if a later one is reported first. Members that may have failed earlier are asked at once.
void lease_coordinator::note_failure(std::size_t participant, const rehearsed& m) {
  round_.failed[participant] = true;
  if (!round_.failure) {
    round_.judged_at_ns = services_.ex.deadline_in(first_pause_ns());
    round_.given_up_at_ns = services_.ex.deadline_in(rehearsal_limit_ns);
    for (std::size_t p = 0; p < size(); ++p) {
      round_.not_at_it[p] = false;
      if (!round_.failed[p]) round_.asks[p] = {};
    }
  }
  const auto is_earlier = [](const rehearsed& a, const rehearsed& b) {
    // If several members report the same run, a member that failed is to blame, not a member that waited in it.
    return a.at < b.at || (a.at == b.at && a.what == rehearsed::kind::failed && b.what == rehearsed::kind::late);
  };
  if (!round_.failure || is_earlier(m, round_.failure->second)) round_.failure.emplace(participant, m);
}

// True if no member can have failed before the earliest known failure. A member that waits for its call has not begun.
bool lease_coordinator::is_first_failure() const noexcept {
  bool all_have_ended = true;
  for (std::size_t p = 0; p < size(); ++p) {
    if (round_.done[p] || round_.failed[p] || round_.not_at_it[p]) continue;
    if (round_.at[p] < round_.failure->second.at) return false;
    all_have_ended = false;
  }
  return all_have_ended || services_.ex.is_over(round_.judged_at_ns);
}

void lease_coordinator::note_unlike(std::size_t participant, const std::vector<unlike_run>& unlike) {
  const std::string who = "on rank " + std::to_string(state_.declaration.participants[participant].rank) + " ";
  for (const unlike_run& u : unlike) {
    const bool was_run = std::any_of(round_.letter.runs.begin(), round_.letter.runs.end(), [&](const rehearsal_run& r) {
      return r.digest == u.digest && r.what == rehearsal_run::kind::compared;
    });
    if (was_run) quarantine(*round_.of, u.digest, who + u.how.substr(0, most_error_bytes));
  }
}

// True if the round has a time limit. It has none while it waits for a call, which may
// never be made, or while a member is late for that call.
bool lease_coordinator::is_waited_for() const noexcept {
  if (round_.of == nullptr) return false;
  return !between_calls() || !all(round_.holding) || all(round_.begun);
}

// True if the round in progress may be dropped for `of`. The round waits for a call of its own size. There may be no more such calls, so
// another size does not wait for the round. Members drop the round that they hold when they receive the next one.
bool lease_coordinator::is_in_the_way(const key_state& of) const noexcept {
  const bool begun = std::find(round_.begun.begin(), round_.begun.end(), true) != round_.begun.end();
  return round_.of != &of && round_.scheduled && !begun && services_.ex.now() - round_.began_ns >= look_again_ns;
}

// Adds a failed row for the member that failed. Other members may have reported a success.
void lease_coordinator::fail_run(const key_state& k, rank_id where, const rehearsal_run& run) {
  wire_row row;
  row.tag = k.key;
  row.invocation = run.index;
  row.digest = run.digest;
  row.status = static_cast<std::uint8_t>(tuning::row_status::failed);
  state_.assigned->add_row(where, row);
}

// A run may time out because a member computes or is stopped. So a config that times out is blamed only at its second timeout with all
// members in the run.
bool lease_coordinator::blames(key_state& k, rehearsed::kind how, std::uint64_t digest) {
  if (how == rehearsed::kind::failed) return true;
  return all(between_calls() ? round_.begun : round_.heard) && !k.late.insert(digest).second;
}

// The failure leaves the other members and the communicator hanging. The remaining runs are made over another communicator, without the
// config that failed. The default is never excluded: as long as it cannot be rehearsed, nothing is compared with it.
void lease_coordinator::fail_round(std::size_t participant, rehearsed::kind how, std::uint64_t at,
                                   const std::string& text) {
  ++counters_.failed_rounds;
  key_state& k = *round_.of;
  auto runs = std::move(round_.letter.runs);
  round_.of = nullptr;
  std::vector<rehearsal_run> rest;
  const rank_id rank = state_.declaration.participants[participant].rank;
  const std::string who = "rank " + std::to_string(rank) + ": ";
  const bool none = runs.empty();
  const bool ran = how != rehearsed::kind::unconnected && at != 0 && at <= runs.size();
  const std::uint64_t culprit = ran ? runs[at - 1].digest : 0;
  const bool blamed = ran && blames(k, how, culprit);
  if (blamed && culprit != state_.declaration.default_digest) {
    quarantine(k, culprit, "its rehearsal failed on " + who + text.substr(0, 500));
    if (state_.warm_errors.size() < most_warm_errors) state_.warm_errors.push_back(who + text.substr(0, 500));
    for (std::size_t i = at - 1; i < runs.size(); ++i) {
      if (runs[i].digest == culprit)
        fail_run(k, rank, runs[i]);
      else
        rest.push_back(runs[i]);
    }
  } else if ((ran && !blamed) || ++connections_failed_ < connection_attempts) {
    rest = std::move(runs);
  } else {
    const std::string why = "rehearsals are not possible, " + who + text.substr(0, 500);
    if (state_.warm_errors.size() < most_warm_errors) state_.warm_errors.push_back(why);
    state_.assigned->postpone(k.bytes, why, services_.ex.now());
    for (const rehearsal_run& r : runs) {
      fail_run(k, rank, r);
      if (r.what == rehearsal_run::kind::compared)
        quarantine(k, r.digest, "it cannot be compared, " + who + text.substr(0, 500));
    }
  }
  if (state_.look_again) state_.look_again();
  if (somebody_leaves()) rest.clear();
  if (none && rest.empty()) return;
  // Begins a round even if no run is left: it ends the hanging runs of the other members, so that their rows arrive.
  k.aside = std::move(rest);  // kept if the next line throws
  connect_anew();
  start_round(k, std::exchange(k.aside, {}));
}

// ---- campaigns --------------------------------------------------------------------------------------------------------

void lease_coordinator::prepare(key_state& k, purpose p) {
  ++counters_.campaigns;
  k.for_what = p;
  k.at_once = false;
  k.prepared_ns = services_.ex.precise_now();
  k.writer.prepare();
}

void lease_coordinator::schedule(key_state& k) {
  append_entry(k);
  ++counters_.scheduled;
  ++progress_;
  k.retry_pauses.restart();
}

void lease_coordinator::append_entry(key_state& k) {
  const search* const its = state_.assigned->find(k.bytes);
  const bool goes_on = its == nullptr || !has_failed(*its, k.writer.log().tail());
  const std::uint64_t old = goes_on ? k.writer.log().tail() : state_.declaration.default_digest;
  if (k.for_what == purpose::rehearsals) {
    const bool held = round_.of == &k && between_calls() && all(round_.holding);  // the round may have failed by now
    round_.scheduled = held;
    round_.began_ns = services_.ex.precise_now();
    k.writer.schedule({}, old, held ? round_.number : 0);
    return;
  }
  if (k.for_what == purpose::halt) {
    ++counters_.halted;
    k.halted = true;
    state_.assigned->cut_short(k.bytes, k.writer.first());
    if (state_.look_again) state_.look_again();
    k.writer.schedule({}, old);
    return;
  }
  if (k.for_what == purpose::decision) {
    k.writer.schedule({}, its != nullptr && its->is_decided() ? its->chosen().digest : old);
    return;
  }
  std::vector<lease_segment> segments;
  for (const rehearsal_run& r : fetch_trials(k, k.writer.first())) {
    if (segments.empty() || segments.back().digest != r.digest) segments.push_back({r.digest, 0});
    ++segments.back().count;
  }
  k.cut_short = k.halted = false;
  k.writer.schedule(std::move(segments), old);
}

void lease_coordinator::abort(key_state& k) {
  ++counters_.aborted;
  k.retry_at_ns = services_.ex.deadline_in(k.retry_pauses.next(services_.jitter));
  k.writer.abort();
}

void lease_coordinator::on(received<lease_reply>& m) {
  const auto at = std::find_if(keys_.begin(), keys_.end(), [&](const auto& k) { return k->key == m.body.key; });
  if (at == keys_.end() || m.from.generation != generation_) return;
  key_state& k = **at;
  const std::size_t p = place(m.from.source);
  const lease_answer::kind what = m.body.what == lease_reply::kind::promise  ? lease_answer::kind::promise
                                  : m.body.what == lease_reply::kind::refuse ? lease_answer::kind::refuse
                                                                             : lease_answer::kind::known;
  const lease_letter before = k.writer.letter_to(p);
  const auto heard = k.writer.on_answer(p, {what, m.from.generation, m.body.campaign, m.body.from, m.body.known});
  const lease_letter left = k.writer.letter_to(p);
  if (before.what != lease_letter::kind::nothing && left != before) answered(k.asks[p]);
  // A member that repeats its promise at its gate has not received the schedule.
  if (left.what == lease_letter::kind::schedule && left == before) k.asks[p].again.hurry();
  if (heard == lease_writer::heard::refused) abort(k);
  if (heard != lease_writer::heard::broken) return;
  ++counters_.broken_promises;
  runtime::blame({"S7", "a promise stays as it was given", here()}, m.from.source);
  end_generation("rank " + std::to_string(m.from.source) + " broke its promise (S7)");
}

// True if the log still assigns a config that has failed: in scheduled trials or, as the tail, to every later call.
bool lease_coordinator::schedules_what_failed(const key_state& k, const search& c) const {
  if (k.writer.log().size() == 0) return false;
  const auto& segments = k.writer.log().entries().back().segments;
  const auto failed = [&](const lease_segment& s) { return has_failed(c, s.digest); };
  return has_failed(c, k.writer.log().tail()) ||
         (!k.cut_short && std::any_of(segments.begin(), segments.end(), failed));
}

bool lease_coordinator::has_failed(const search& c, std::uint64_t digest) const {
  const auto is_it = [&](const exclusion& e) { return state_.assigned->candidates()[e.candidate] == digest; };
  return digest != state_.declaration.default_digest && std::any_of(c.excluded().begin(), c.excluded().end(), is_it);
}

void lease_coordinator::quarantine(const key_state& k, std::uint64_t digest, const std::string& why) {
  state_.assigned->fail_rehearsal(k.bytes, digest, services_.ex.now(), why);
}

// ---- generations ------------------------------------------------------------------------------------------------------

void lease_coordinator::end_generation(const std::string& why) {
  generation_ = generation_after(generation_);
  ending_why_ = why;
  ended_.assign(size(), false);
  for (asked& a : endings_) a = {};
  round_.of = nullptr;
  for (const auto& k : keys_) state_.assigned->cut_short(k->bytes, 0);  // abandons trials in progress
  if (state_.look_again) state_.look_again();
  leaving_.assign(size(), {});
  connected_ = false;  // some members may have left the communicator, or may never connect
  connections_failed_ = 0;
  keys_.clear();
  post({});
}

void lease_coordinator::on(received<lease_ended>& m) {
  if (m.from.generation == generation_) ended_[place(m.from.source)] = true;
}

// A member that wants to leave may leave once the round in progress has ended.
void lease_coordinator::on(received<lease_leaving>& m) {
  if (m.from.generation != generation_) return;
  leaving& its = leaving_[place(m.from.source)];
  if (m.body.turn < its.turn) return;
  its = {m.body.turn, true};
}

bool lease_coordinator::somebody_leaves() const noexcept {
  return std::any_of(leaving_.begin(), leaving_.end(), [](const leaving& l) { return l.turn % 2 == 1; });
}

// ---- time and messages --------------------------------------------------------------------------------------------------

void lease_coordinator::check_deadlines() {
  const time_ns now = services_.ex.now();
  for (auto& k : keys_) {
    if (k->writer.preparing() && !k->writer.all_promised() && services_.ex.is_over(k->prepared_ns + promise_limit_ns))
      abort(*k);
  }
  for (auto& k : keys_) {
    if (round_.of == k.get() || !k->aside.empty()) state_.assigned->wait_longer(k->bytes, now);
  }
  if (round_.of != nullptr && round_.failure && is_first_failure()) {
    const auto [who, failure] = *round_.failure;
    fail_round(who, failure.what, failure.at, failure.text);
  }
  // If it is unknown which member failed first, no config is blamed at the first failure.
  if (round_.of != nullptr && round_.failure && services_.ex.is_over(round_.given_up_at_ns)) {
    const auto [who, failure] = *round_.failure;
    fail_round(who, rehearsed::kind::late, failure.at, failure.text);
  }
  const auto limit = static_cast<time_ns>(round_.letter.runs.size() + 1) * rehearsal_limit_ns;
  if (is_waited_for() && services_.ex.is_over(round_.began_ns + limit)) {
    const auto late = std::find(round_.done.begin(), round_.done.end(), false);
    fail_round(static_cast<std::size_t>(late - round_.done.begin()), rehearsed::kind::unconnected, 0,
               "it did not end in time");
  }
}

time_ns lease_coordinator::next_event() const noexcept {
  if (stopped_) return runtime::never;
  const bool pausing = resume_at_ns_ > services_.ex.now();  // or has given up
  time_ns next = pausing ? resume_at_ns_ : runtime::never;
  const auto ask = [&](const asked& a) {
    if (a.what != 0) next = std::min(next, a.again.when());
  };
  for (const auto& k : keys_) {
    for (const asked& a : k->asks) ask(a);
  }
  for (const asked& a : round_.asks) ask(a);
  for (const asked& a : endings_) ask(a);
  if (pausing) return next;
  for (const auto& k : keys_) {
    if (k->writer.preparing()) next = std::min(next, k->prepared_ns + promise_limit_ns);
    if (k->retry_at_ns > services_.ex.now()) next = std::min(next, k->retry_at_ns);
    const search* c = state_.assigned->find(k->bytes);
    const bool may_be_too_dear = path_ != trial_path::rehearsals && !k->writer.preparing() && round_.of == nullptr;
    if (may_be_too_dear && c != nullptr && c->where() == search::stage::trying)
      next = std::min(next, services_.ex.deadline_in(look_again_ns));  // the budget grows
  }
  if (round_.of != nullptr && round_.failure) {
    const bool soon = !services_.ex.is_over(round_.judged_at_ns);
    next = std::min(next, soon ? round_.judged_at_ns : round_.given_up_at_ns);
  }
  if (round_.of != nullptr && round_.scheduled && keys_.size() > 1)
    next = std::min(next, services_.ex.deadline_in(look_again_ns));
  if (is_waited_for()) {
    next = std::min(next, round_.began_ns + static_cast<time_ns>(round_.letter.runs.size() + 1) * rehearsal_limit_ns);
  }
  return next;
}

time_ns lease_coordinator::first_pause_ns() const noexcept {
  if (round_trip_ns_ == 0) return longest_first_pause_ns;
  return std::clamp(4 * round_trip_ns_, shortest_pause_ns, longest_first_pause_ns);
}

// True if a message must be sent now: it differs from the previous one, or its answer is overdue. `what` is 0 for no message.
bool lease_coordinator::due(asked& a, std::uint64_t what) {
  if (what == 0) {
    a = {};
    return false;
  }
  if (a.what != what) {
    a = {.first_ns = services_.ex.precise_now(), .what = what};
    a.again.restart(first_pause_ns());
  }
  if (!a.again.is_due(services_)) return false;
  a.again.said(services_);
  return true;
}

void lease_coordinator::answered(asked& a) {
  if (a.first_ns == 0) return;
  // The slowest round trip counts; its weight decays slowly.
  round_trip_ns_ = std::max(services_.ex.now() - a.first_ns, round_trip_ns_ - round_trip_ns_ / 16);
  a.first_ns = 0;
}

template <class M>
void lease_coordinator::send(std::size_t participant, const M& m) {
  static_cast<void>(services_.mail.send(state_.declaration.participants[participant].rank,
                                        number_of(state_.declaration.id(), part::participant), generation_, m));
}

void lease_coordinator::send_due() {
  for (std::size_t p = 0; p < size(); ++p) {
    if (!due(endings_[p], ended_[p] ? 0 : generation_)) continue;
    lease_end e;
    e.why = ending_why_;
    send(p, e);
  }
  for (auto& k : keys_) {
    bool late = false;
    for (std::size_t p = 0; p < size(); ++p) {
      lease_letter l = k->writer.letter_to(p);
      const bool preparing = l.what == lease_letter::kind::prepare;
      const std::uint64_t campaign = k->writer.campaign();
      const std::uint64_t what = l.what == lease_letter::kind::nothing ? 0 : 2 * campaign + (preparing ? 1 : 0);
      const bool again = k->asks[p].what == what;
      if (!due(k->asks[p], what)) continue;
      if (preparing) {
        late |= again;
        lease_prepare m;
        m.key = k->key;
        m.campaign = l.campaign;
        m.after = l.after;
        m.entries = std::move(l.entries);
        m.round_trip_ns = round_trip_ns_;
        m.at_once = k->at_once ? 1 : 0;
        send(p, m);
      } else {
        lease_schedule m;
        m.key = k->key;
        m.after = l.after;
        m.entries = std::move(l.entries);
        send(p, m);
      }
    }
    if (!late) continue;
    lease_waiting w;
    w.key = k->key;
    w.campaign = k->writer.campaign();
    for (std::size_t p = 0; p < size(); ++p) {
      if (!k->writer.promised(p)) w.ranks.push_back(state_.declaration.participants[p].rank);
    }
    for (std::size_t p = 0; p < size(); ++p) {
      if (k->writer.promised(p)) send(p, w);
    }
  }
  for (std::size_t p = 0; p < size(); ++p) {
    if (due(round_.asks[p], round_.of == nullptr || round_.done[p] ? 0 : round_.number)) send(p, round_.letter);
  }
  for (std::size_t p = 0; p < size(); ++p) {
    leaving& its = leaving_[p];
    if (!its.unanswered || (its.turn % 2 == 1 && is_waited_for())) continue;
    its.unanswered = false;
    send(p, lease_let_go{its.turn});
  }
}

bool lease_coordinator::owes_messages() const noexcept {
  if (stopped_) return false;
  if (is_waited_for() || !all(ended_)) return true;
  return std::any_of(keys_.begin(), keys_.end(), [&](const auto& k) {
    for (std::size_t p = 0; p < size(); ++p) {
      if (k->writer.letter_to(p).what != lease_letter::kind::nothing) return true;
    }
    return k->writer.preparing();
  });
}

const lease_log* lease_coordinator::log_of(std::uint64_t bytes) const noexcept {
  const std::uint32_t key = tuning::size_bucket::of(bytes).index();
  for (const auto& k : keys_) {
    if (k->key == key) return &k->writer.log();
  }
  return nullptr;
}

std::size_t lease_coordinator::place(rank_id rank) const noexcept {
  const auto& all = state_.declaration.participants;
  const auto at = std::find_if(all.begin(), all.end(), [&](const op_participant& p) { return p.rank == rank; });
  return static_cast<std::size_t>(at - all.begin());
}

}  // namespace parley::actors
