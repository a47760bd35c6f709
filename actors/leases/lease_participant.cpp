#include <parley/actors/leases/lease_participant.hpp>

#include <parley/actors/agreement/rows.hpp>
#include <parley/actors/agreement/trial_book.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/when.hpp>

#include <algorithm>
#include <exception>
#include <type_traits>
#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {

constexpr time_ns rehearsal_limit_ns = 5'000'000'000;
// A control message counts as late when it takes longer than this many of the round trips seen so far.
constexpr time_ns round_trips = 4;
constexpr time_ns shortest_round_trip_ns = 50'000;
constexpr std::uint64_t spare_invocations = 4;
constexpr std::uint64_t spare_while_unknown = 16;  // as long as the rate is unknown
constexpr std::uint64_t widest_margin = std::uint64_t{1} << 20U;

}  // namespace

std::uint64_t start_rate::most_within(time_ns span_ns) const noexcept {
  // Uses the finest scale that remembers more than the span. A finer scale remembers only a part of the span, which may have been a burst.
  for (std::size_t s = 0; s < scales; ++s) {
    const std::uint64_t noted = (count_ + (std::uint64_t{1} << s) - 1) >> s;
    const std::uint64_t here = std::min<std::uint64_t>(noted, kept);
    const auto at = [&](std::uint64_t i) { return starts_[s][(noted - here + i) % kept]; };
    const time_ns remembered_ns = here < 2 ? 0 : at(here - 1) - at(0);
    if (remembered_ns > span_ns) {
      std::uint64_t most = 1;
      for (std::uint64_t first = 0, last = 0; last < here; ++last) {
        while (at(last) - at(first) > span_ns) ++first;
        most = std::max(most, last - first + 1);
      }
      return std::min(((most + 1) << s) - 1, count_);
    }
    if (noted <= kept) return count_;  // all starts so far
  }
  return count_;
}

lease_participant::lease_participant(services& s, participant_state& mine, rehearsals& runs)
    : services_(s), mine_(mine), runs_(runs), generation_(mine.generation) {
  hear<lease_prepare>();
  hear<lease_schedule>();
  hear<lease_waiting>();
  hear<rehearse>();
  hear<lease_end>();
  hear<lease_let_go>();
  rehearser_ = runtime::spawn_actor<rehearse>(s.actors, run_rounds, *this);
}

// ---- the user's calls -------------------------------------------------------------------------------------------------

lease_participant::key_state& lease_participant::at(std::uint32_t key) {
  auto& k = keys_[key];
  if (k == nullptr)
    k = std::make_unique<key_state>(generation_, mine_.declaration.default_digest,
                                    runtime::noticed_at{mine_.declaration.id(), services_.net.rank()});
  return *k;
}

const lease_participant::key_state* lease_participant::find(std::uint64_t bytes) const noexcept {
  return keys_[tuning::size_bucket::of(bytes).index()].get();
}

std::uint64_t lease_participant::next_invocation(std::uint64_t bytes) const noexcept {
  const key_state* k = find(bytes);
  return k == nullptr ? 0 : k->reader.next();
}

bool lease_participant::start_now(starting& s) {
  s.begun_.key = tuning::size_bucket::of(s.bytes_).index();
  s.begun_.bytes = s.bytes_;
  if (failed_ != errc::none) {
    s.outcome = failed_;
    return true;
  }
  // Calls that were released earlier run before this call.
  if (released_ != 0 || !waiting_.empty() || !may_begin(at(s.begun_.key))) return false;
  begin(s);
  return true;
}

void lease_participant::begin(starting& s) {
  if (leaving_turn_ != 0) stay();
  key_state& k = at(s.begun_.key);
  k.rate.note(services_.ex.now());
  s.begun_.what = k.reader.start();
  ++in_flight_;
  if (s.begun_.what.invocation == 0 && new_key_) new_key_(s.bytes_);
}

void lease_participant::queue(starting& s) {
  s.place_.owner = &s;
  s.since_ns_ = services_.clocks.local(services_.ex.now());
  waiting_.push_back(s.place_);
  release();
}

void lease_participant::leave(starting& s, errc why) noexcept {
  s.place_.unlink();
  runtime::timer_wheel::disarm(s);
  s.wake(why);
  release();
}

void lease_participant::release() {
  while (!waiting_.empty()) {
    starting& first = *waiting_.front().owner;
    if (first.home->cancelled() != errc::none) return;  // it is about to resume, cancelled
    key_state& k = at(first.begun_.key);
    if (!k.reader.may_start()) return meet_gate(first);
    if (!may_begin(k)) return rehearse_between();
    first.place_.unlink();
    runtime::timer_wheel::disarm(first);
    if (const time_ns since = std::exchange(gate_since_ns_, 0); since != 0)
      counters_.gate_wait_ns += services_.ex.now() - since;
    begin(first);
    first.released_ = true;
    ++released_;
    first.wake(errc::none);
  }
}

bool lease_participant::rehearsal_is_due(const key_state& k) const noexcept {
  const bool open = state_.what == rehearsed::kind::holding || state_.what == rehearsed::kind::begun;
  return k.round != 0 && k.round == state_.round && open && k.reader.next() == k.round_from;
}

bool lease_participant::may_begin(const key_state& k) const noexcept {
  return k.reader.may_start() && !between_calls_ && !rehearsal_is_due(k);
}

// Makes the round that is due before the first waiting call. All members reach this call, and none passes it. On each member, all calls
// over the user's communicator have ended.
void lease_participant::rehearse_between() {
  const key_state& k = at(waiting_.front().owner->begun_.key);
  if (!held_ || in_flight_ != 0 || released_ != 0 || !rehearsal_is_due(k)) return;
  ++counters_.rehearsal_stops;
  say_rehearsed(rehearsed::kind::begun, 1, {});
  rehearse round = std::move(*held_);
  held_.reset();
  static_cast<void>(rehearser_.try_send(std::move(round)));
}

void lease_participant::note_rounds(key_state& k, std::size_t known) noexcept {
  const auto& entries = k.reader.log().entries();
  for (std::size_t i = known; i < entries.size(); ++i) {
    if (entries[i].what != lease_entry::kind::scheduled || entries[i].round == 0) continue;
    k.round = entries[i].round;
    k.round_from = entries[i].from;
  }
}

// A gate counts once (N2), even if several calls wait at it. The promise may have been lost, so it is sent again.
void lease_participant::meet_gate(starting& s) {
  key_state& k = at(s.begun_.key);
  const std::uint64_t campaign = k.reader.gated()->campaign;
  if (std::exchange(k.gate_counted, campaign) == campaign) return;
  ++counters_.gates_met;
  gate_since_ns_ = services_.ex.now();
  reply(s.begun_.key, k.reader.repeated());
}

void lease_participant::ended(const leased& l, time_ns start_ns, time_ns end_ns, errc outcome,
                              const std::string& text) {
  if (--in_flight_ == 0) release();
  if (l.what.of != lease::part::steady) {
    wire_row row;
    row.tag = l.key;
    row.invocation = l.what.invocation;
    row.digest = l.what.digest;
    row.start_ns = start_ns;
    row.end_ns = end_ns;
    row.status = row_status_of(outcome);
    if (outcome == errc::timeout) row.status = late_row;
    mine_.rows->add(row);
    // More trials of a config that has timed out may be scheduled, so this is reported at once.
    if (l.what.of == lease::part::last_trial || row.status == late_row) mine_.rows->flush(row.tag, row.invocation);
  }
  mine_.rows->ended(start_ns, l.what.invocation, end_ns);
  // The config is not to blame for a death or a cancellation.
  if (outcome != errc::config_failed) return;
  nack n;
  n.tag = l.key;
  n.invocation = l.what.invocation;
  n.digest = l.what.digest;
  n.bytes = l.bytes;
  n.code = static_cast<std::uint8_t>(outcome);
  n.text = text.substr(0, 500);
  static_cast<void>(mine_.actor.try_send(std::move(n)));
}

void lease_participant::end_waits(errc why) noexcept {
  while (!waiting_.empty()) {
    starting& s = *waiting_.front().owner;
    s.place_.unlink();
    runtime::timer_wheel::disarm(s);
    s.wake(why);
  }
  if (running_ != nullptr) running_->cancel(why);
}

void lease_participant::fail(errc why) noexcept {
  if (failed_ == errc::none) failed_ = why;
  held_.reset();
  end_waits(why);
}

bool lease_participant::rejoin() {
  if (later_generation_ == 0) return false;
  generation_ = std::exchange(later_generation_, 0);
  failed_ = errc::none;
  leaving_turn_ = answered_turn_ = 0;
  for (auto& k : keys_) k.reset();
  return true;
}

bool lease_participant::open(std::uint64_t bytes) const noexcept {
  const key_state* k = find(bytes);
  return k == nullptr || may_begin(*k);
}

void lease_participant::list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all) {
  waiting_.for_each([&](const starting::place& place) {
    const starting& s = *place.owner;
    runtime::waiting_call& w = all.calls.emplace_back(of);
    w.tag = s.begun_.key;
    w.invocation = next_invocation(s.bytes_);
    w.bytes = s.bytes_;
    w.since_ns = s.since_ns_;
    w.peers = awaited(s.bytes_);
    w.lacks = w.peers.empty() ? "calls before it, or rehearsals that all members make" : "the schedule at its gate";
  });
}

std::vector<rank_id> lease_participant::awaited(std::uint64_t bytes) const {
  const key_state* const k = find(bytes);
  if (k == nullptr || !k->reader.gated()) return {};
  if (k->waiting_campaign != k->reader.gated()->campaign || k->waiting_for.empty()) return {mine_.declaration.leader};
  return {k->waiting_for.begin(), k->waiting_for.end()};
}

runtime::awaited lease_participant::unmet(std::uint64_t bytes) const {
  const key_state* const k = find(bytes);
  if (k != nullptr && k->reader.may_start() && !may_begin(*k)) return runtime::awaited::rehearsals;
  const std::vector<rank_id> ranks = awaited(bytes);
  const bool leader_lacks_answers = !ranks.empty() && ranks != std::vector{mine_.declaration.leader};
  return leader_lacks_answers ? runtime::awaited::members : runtime::awaited::schedule;
}

std::optional<rank_id> lease_participant::late(std::uint64_t bytes) const {
  if (unmet(bytes) == runtime::awaited::rehearsals) return std::nullopt;
  const std::vector<rank_id> ranks = awaited(bytes);
  return ranks.empty() ? mine_.declaration.leader : ranks.front();
}

std::string lease_participant::missing(std::uint64_t bytes) const {
  const key_state* k = find(bytes);
  std::string coordinator = "the coordinator on rank " + std::to_string(mine_.declaration.leader);
  if (k != nullptr && k->reader.may_start() && !may_begin(*k))
    return "for the rehearsals that all members make before this call";
  if (k == nullptr || !k->reader.gated()) return coordinator;
  const std::string gate = "at the gate of campaign " + std::to_string(k->reader.gated()->campaign) + " for ";
  if (k->waiting_campaign != k->reader.gated()->campaign || k->waiting_for.empty())
    return gate + coordinator + ", which has not sent the schedule";
  std::string ranks;
  for (const std::uint32_t r : k->waiting_for) ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(r);
  return gate + ranks + ", which has not answered " + coordinator;
}

// ---- messages ---------------------------------------------------------------------------------------------------------

template <class M>
void lease_participant::hear() {
  services_.mail.bind<M>(number_of(mine_.declaration.id(), part::participant), [this](envelope from, M&& m) -> errc {
    const bool later = is_later_generation(from.generation, generation_);
    if (from.source != mine_.declaration.leader || (from.generation != generation_ && !later)) {
      ++counters_.dropped;
      return errc::none;
    }
    const busy_until_end control(services_, mine_.control_ns);
    heard_generation_ = from.generation;
    if constexpr (!std::is_same_v<M, lease_end>) {
      if (later) {
        end_generation("the coordinator has begun another one");
        return errc::none;
      }
    }
    on(m);
    return errc::none;
  });
}

template <class M>
void lease_participant::tell_coordinator(const M& m) {
  static_cast<void>(services_.mail.send(mine_.declaration.leader, number_of(mine_.declaration.id(), part::coordinator),
                                        generation_, m));
}

void lease_participant::reply(std::uint32_t key, const lease_answer& a) {
  lease_reply r;
  switch (a.what) {
    case lease_answer::kind::promise:
      r.what = lease_reply::kind::promise;
      ++counters_.promises;
      break;
    case lease_answer::kind::refuse:
      r.what = lease_reply::kind::refuse;
      ++counters_.refusals;
      break;
    case lease_answer::kind::known: break;
    case lease_answer::kind::contradiction: return contradicted();
    default: ++counters_.dropped; return;
  }
  r.key = key;
  r.campaign = a.campaign;
  r.from = a.from;
  r.known = a.known;
  tell_coordinator(r);
}

// Calls that have run cannot be undone, and the config of later calls is unknown, so calls end with a named error.
void lease_participant::contradicted() {
  ++counters_.contradictions;
  const rank_id leader = mine_.declaration.leader;
  runtime::blame({"S1", "the log of leases says what it said before", {mine_.declaration.id(), services_.net.rank()}},
                 leader);
  mine_.runs->on_rejected(
      {errc::config_mismatch,
       {.op = mine_.declaration.title(), .rank = services_.net.rank(), .peer = leader},
       "the leader, rank " + std::to_string(leader) +
           ", contradicts the log of leases that it sent before (S1); end the job and start it again"});
}

// Twice the largest number of calls that have started within one answer's time, plus a few, up to `widest_margin`. In the answer's time
// this promise, the slowest promise and the schedule are sent. The factor of two lets a program speed up without meeting the gate.
std::uint64_t lease_participant::margin_of(const key_state& k, time_ns round_trip_ns) const noexcept {
  if (services_.promise_margin) return *services_.promise_margin;
  const time_ns answer_ns = round_trips * std::clamp<time_ns>(round_trip_ns, shortest_round_trip_ns, 1'000'000'000);
  const std::uint64_t spare = k.rate.count() < spare_invocations ? spare_while_unknown : spare_invocations;
  return std::min(2 * k.rate.most_within(answer_ns) + spare, widest_margin);
}

void lease_participant::on(lease_prepare& m) {
  if (later_generation_ != 0 || m.key >= keys_.size()) return;
  key_state& k = at(m.key);
  lease_letter l{lease_letter::kind::prepare, heard_generation_, m.campaign, m.after, std::move(m.entries)};
  const std::size_t known = k.reader.log().size();
  reply(m.key, k.reader.on_prepare(l, m.at_once != 0 ? 0 : margin_of(k, m.round_trip_ns)));
  note_rounds(k, known);
  release();
}

void lease_participant::on(lease_schedule& m) {
  if (later_generation_ != 0 || m.key >= keys_.size()) return;
  key_state& k = at(m.key);
  lease_letter l{lease_letter::kind::schedule, heard_generation_, 0, m.after, std::move(m.entries)};
  const std::size_t known = k.reader.log().size();
  reply(m.key, k.reader.on_schedule(l));
  note_rounds(k, known);
  // This entry cuts trials short, so the last of them never runs; their rows are reported now.
  if (k.reader.log().size() != known && k.reader.next() != 0) mine_.rows->flush(m.key, k.reader.next() - 1);
  release();
}

void lease_participant::on(lease_waiting& m) {
  if (later_generation_ != 0 || m.key >= keys_.size() || keys_[m.key] == nullptr) return;
  keys_[m.key]->waiting_for = std::move(m.ranks);
  keys_[m.key]->waiting_campaign = m.campaign;
}

void lease_participant::on(lease_end& m) { end_generation(m.why); }

void lease_participant::on(lease_let_go& m) {
  answered_turn_ = std::max(answered_turn_, std::min(m.turn, leaving_turn_));
}

bool lease_participant::may_leave() {
  const bool never_called = std::all_of(keys_.begin(), keys_.end(), [](const auto& k) { return k == nullptr; });
  if (failed_ != errc::none || (never_called && state_.round == 0)) return true;
  if (leaving_turn_ % 2 == 0) {
    ++leaving_turn_;
    leaving_.restart();
  }
  if (answered_turn_ == leaving_turn_) return true;
  if (!leaving_.is_due(services_)) return false;
  leaving_.said(services_);
  tell_coordinator(lease_leaving{leaving_turn_});
  return false;
}

void lease_participant::stay() {
  if (leaving_turn_ % 2 == 1) ++leaving_turn_;
  if (answered_turn_ != leaving_turn_) tell_coordinator(lease_leaving{leaving_turn_});
}

void lease_participant::end_generation(const std::string& why) {
  lease_ended e;
  static_cast<void>(services_.mail.send(mine_.declaration.leader, number_of(mine_.declaration.id(), part::coordinator),
                                        heard_generation_, e));
  if (heard_generation_ == generation_) return;  // joined already; the answer was lost
  if (std::exchange(later_generation_, std::max(later_generation_, heard_generation_)) != 0) return;
  if (generation_ended_) generation_ended_(why);
  fail(errc::closed);
  // Rehearsals in progress may hang, so in the next generation all members connect again.
  state_ = {};
  runs_.abandon();
  connection_ = 0;
}

// ---- rehearsals -------------------------------------------------------------------------------------------------------

void lease_participant::on(rehearse& m) {
  if (later_generation_ != 0 || m.key >= keys_.size() || failed_ != errc::none) return;
  if (m.round > state_.round) {
    state_ = {};
    state_.round = m.round;
    held_.reset();
    // Another member has left the earlier round, so a run in that round would hang for ever.
    if (running_ != nullptr) running_->cancel();
    static_cast<void>(rehearser_.try_send(std::move(m)));
    release();
  } else if (m.round < state_.round) {
    return;
  }
  tell_coordinator(state_);
}

void lease_participant::say_rehearsed(rehearsed::kind what, std::uint64_t at, std::string text) {
  state_.what = what;
  state_.at = at;
  state_.text = std::move(text);
  tell_coordinator(state_);
}

runtime::task<> lease_participant::run_rounds(runtime::actor<rehearse>& self, lease_participant& p) {
  for (;;) {
    auto r = co_await self.receive();
    if (!r) co_return;
    rehearse round = std::move(*r);
    co_await p.run_round(std::move(round));
  }
}

// For a round between calls this runs twice: first to connect, then at its call.
runtime::task<> lease_participant::run_round(rehearse r) {
  if (r.round != state_.round) co_return;
  between_calls_ = state_.what == rehearsed::kind::begun;
  co_await run_each(std::move(r));
  between_calls_ = false;
  release();
}

runtime::task<> lease_participant::run_each(rehearse r) {
  runtime::scope& here = co_await runtime::this_scope;
  const auto clock = [this] {
    mine_.rows->set_measuring(true);
    return mine_.rows->clock();
  };
  // Connecting counts as run 0.
  for (std::size_t next = r.connection == connection_ ? 1 : 0; next <= r.runs.size(); ++next) {
    const bool connecting = next == 0;
    if (!connecting && r.when == rehearse::moment::scheduled && !between_calls_) {
      held_ = std::move(r);
      say_rehearsed(rehearsed::kind::holding, next, {});
      co_return;
    }
    state_.at = next;
    const time_ns start_ns = clock();
    errc outcome = errc::none;
    bool late = false;
    std::string text;
    std::string unlike;
    {
      runtime::scope inner(here, {.deadline = services_.ex.deadline_in(rehearsal_limit_ns)});
      running_ = &inner;  // a later round must cancel it
      const runtime::finally ended([this] { running_ = nullptr; });
      if (connecting) {
        if (connection_ != 0) runs_.abandon();
        connection_ = 0;
        std::vector<std::byte> id(r.id.size());
        std::transform(r.id.begin(), r.id.end(), id.begin(), [](std::uint8_t b) { return std::byte{b}; });
        inner.spawn(runs_.connect(std::move(id)));
      } else {
        inner.spawn(runs_.run_scratch(r.runs[next - 1], r.bytes, unlike));
      }
      std::exception_ptr thrown;
      try {
        co_await inner.join();
      } catch (...) {
        thrown = std::current_exception();
      }
      outcome = inner.cancelled();
      late = outcome == errc::timeout;
      if (thrown) {
        const runtime::error why = runtime::describe(thrown);
        outcome = why.code();
        text = why.what();
      }
    }
    // Calls wait for this run. If no row reports its time, the time is counted here.
    const bool in_rows = !connecting && outcome == errc::none && r.runs[next - 1].what == rehearsal_run::kind::timed;
    if (between_calls_ && !in_rows) mine_.control_ns += clock() - start_ns;
    if (connecting && outcome == errc::none) connection_ = r.connection;
    if (r.round != state_.round || here.cancelled() != errc::none || failed_ != errc::none) {
      if (outcome != errc::none) {
        runs_.abandon();
        connection_ = 0;
      }
      co_return;  // a later round has replaced this one, or the op has ended
    }
    if (outcome != errc::none) {
      runs_.abandon();
      connection_ = 0;
      say_rehearsed(connecting ? rehearsed::kind::unconnected
                    : late     ? rehearsed::kind::late
                               : rehearsed::kind::failed,
                    next, text.empty() ? std::string(runtime::name(outcome)) : text);
      mine_.rows->flush(r.key, next == 0 ? 0 : r.runs[next - 1].index);
      co_return;
    }
    if (connecting) continue;
    ++counters_.rehearsals;
    if (!unlike.empty()) state_.unlike.push_back({r.runs[next - 1].digest, unlike.substr(0, most_error_bytes)});
    if (r.runs[next - 1].what != rehearsal_run::kind::timed) continue;
    wire_row row;
    row.tag = r.key;
    row.invocation = r.runs[next - 1].index;
    row.digest = r.runs[next - 1].digest;
    row.start_ns = start_ns;
    row.end_ns = clock();
    row.previous_end_ns = rehearsal_ended_ns_ == 0 ? start_ns : rehearsal_ended_ns_;
    rehearsal_ended_ns_ = row.end_ns;
    mine_.rows->add(row);
  }
  say_rehearsed(rehearsed::kind::done, 0, {});
  mine_.rows->flush(r.key, r.runs.empty() ? 0 : r.runs.back().index);
}

}  // namespace parley::actors
