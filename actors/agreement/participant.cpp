#include <parley/actors/agreement/participant.hpp>

#include <parley/actors/agreement/retry_policy.hpp>
#include <parley/actors/inquiries.hpp>
#include <parley/actors/letters/inbox.hpp>
#include <parley/actors/letters/outbox.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/when.hpp>

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>
#include <utility>
#include <variant>

namespace parley::actors {

using runtime::errc;

namespace {

constexpr runtime::time_ns ask_pause_ns = 1'000'000'000;
constexpr std::size_t most_decisions = 4096;  // as many keys as an op may have

std::vector<wire_config> on_the_wire(const tuning::catalogue& configs) {
  std::vector<wire_config> list;
  for (const auto& entry : configs.entries()) {
    wire_config c;
    c.name = entry.identity.name;
    for (const auto& p : entry.identity.parameters) c.parameters.push_back({p.name, p.value});
    c.wire_class = entry.identity.wire_class;
    c.abi = entry.identity.abi;
    list.push_back(std::move(c));
  }
  return list;
}

/// Everything that one participant actor does, message by message.
class participant_behaviour {
 public:
  participant_behaviour(services& s, participant_state& mine)
      : services_(s), mine_(mine), out_(s, mine.declaration.id(), mine.generation, mine.owed),
        ask_at_(s.ex.deadline_in(ask_pause_ns)) {}

  using incoming = runtime::result<participant_actor::message>;
  /// Makes the offer first, then handles a message. If `m` is null or has no message, time has passed. If something throws, returns the
  /// pause after which `m` must be handled again; otherwise 0.
  runtime::time_ns handle(incoming* m) noexcept {
    const busy_until_end control(services_, mine_.control_ns);
    try {
      offer_once();
      hear(m);
      return 0;
    } catch (...) {
      return failed(runtime::describe(std::current_exception()));
    }
  }
  /// Reports to the leader after candidates were rehearsed. Returns as `handle` does.
  runtime::time_ns tell_of_rehearsals() noexcept {
    const busy_until_end control(services_, mine_.control_ns);
    try {
      if (rehearsed_to_tell_ && !rehearsing_) {
        send_warmed();
        rehearsed_to_tell_ = false;
      }
      return 0;
    } catch (...) {
      return failed(runtime::describe(std::current_exception()));
    }
  }
  runtime::time_ns failed(const runtime::error& what) noexcept {
    if (given_up_) return 0;
    if (const auto pause = tries_.after(progress_, services_.jitter)) {
      if (tries_.failures() == 1) complain(what, "the rank tries again, and calls keep the decisions that were made");
      return *pause;
    }
    given_up_ = true;
    tuning_request wish;
    wish.what = tuning_request::kind::end;
    wish.every_size = true;
    wish.why = complain(what, "this happened again and again, so tuning of the op has ended; its decisions stay");
    try {
      out_.post(mine_.declaration.leader, part::coordinator, std::move(wish));
    } catch (...) {}  // the outbox has the message, and sends it again
    return 0;
  }
  runtime::time_ns next_event() const noexcept { return out_.next_resend(); }

 private:
  void offer_once() {
    if (offered_ || given_up_) return;
    if (!std::exchange(faults_told_, true)) tell_of_faults();
    send_offer(catalogue_list::no, mine_.declaration.leader);
    offered_ = true;
  }
  void hear(incoming* m) {
    if (m == nullptr || !*m) {
      out_.resend();
      ask_the_leader();
      return;
    }
    std::visit(
        [this](auto& one) {
          if (is_for_me(one)) on(one);
        },
        **m);
  }
  // Warns the user; returns the text for the leader.
  std::string complain(const runtime::error& what, const char* and_now) noexcept {
    try {
      std::string why = "an exception was thrown in the agreement on rank " + std::to_string(services_.net.rank()) +
                        ": " + what.what();
      warn(services_, mine_.declaration.title() + ": " + why + "; " + and_now);
      return why;
    } catch (...) {
      return {};
    }
  }

  enum class catalogue_list : bool { no, yes };
  void send_offer(catalogue_list list, rank_id to) {
    offer o;
    o.decl_hash = mine_.declaration.hash();
    o.declaration = mine_.declaration.text();
    o.role = mine_.role;
    o.validators_hash = services_.validators_hash;
    o.catalogue_hash = mine_.configs.hash();
    for (std::size_t i = 0; i < mine_.configs.size(); ++i) o.available.push_back(mine_.available.test(i) ? 1 : 0);
    if (list == catalogue_list::yes) o.catalogue = on_the_wire(mine_.configs);
    for (const remembered_best& r : mine_.remembered)
      o.cached.push_back({r.parameters, r.solution, r.time_ms, r.machines, r.thin});
    o.trials = mine_.policy == tuning_policy::online;
    o.limits = mine_.limits;
    for (std::size_t i = 0; i < std::min(mine_.unavailable.size(), most_told_lacks); ++i)
      o.lacking.push_back(mine_.unavailable[i].substr(0, most_error_bytes));
    note(runtime::flight_event::offered, {.invocation = mine_.configs.size(), .tag = to});
    out_.post(to, part::coordinator, std::move(o));
  }

  /// Warns the user. The leader gets the faults with `warmed`.
  void tell_of_faults() {
    for (const std::string& f : mine_.faults) {
      warn(services_, mine_.declaration.title() + ", on rank " + std::to_string(services_.net.rank()) + " (" +
                          mine_.role + "): " + f);
      if (mine_.warm_errors.size() < most_faults) mine_.warm_errors.push_back(f.substr(0, most_error_bytes));
    }
  }

  /// Asks a leader that does not reply, because it may not know that it leads. On the leader's own rank, the coordinator asks.
  void ask_the_leader() {
    if (!mine_.candidates.empty() || mine_.declaration.leader == services_.net.rank()) return;
    if (services_.ex.now() < ask_at_) return;
    ask_at_ = services_.ex.deadline_in(ask_pause_ns);
    ask_whether_declared(services_, mine_.declaration, mine_.generation, mine_.declaration.leader);
  }

  /// Only the leader may send this to a participant.
  template <class M>
  bool is_for_me(const received<M>& m) const noexcept {
    return m.from.source == mine_.declaration.leader;
  }
  template <class M>
  bool is_for_me(const M&) const noexcept {
    return true;
  }
  // Accepts acknowledgements from every participant, so that ranks that disagree about the leader can still report that.
  bool is_for_me(const received<ack>& m) const noexcept { return is_participant(m.from.source); }
  bool is_for_me(const received<op_reject>& m) const noexcept { return is_participant(m.from.source); }
  bool is_for_me(const received<offer>& m) const noexcept { return is_participant(m.from.source); }

  void on(received<ack>& m) {
    out_.acknowledge(m.from.source, m.body.number);
    if (m.body.send_list && !listed_) {
      send_offer(catalogue_list::yes, mine_.declaration.leader);
      listed_ = true;
    }
  }
  void on(received<merged>& m) {
    acknowledge(m.from, m.body.number);
    const bool plausible = !m.body.candidates.empty() && m.body.candidates.size() <= tuning::limits::configs &&
                           m.body.ids.size() == m.body.candidates.size() &&
                           m.body.candidates.front() == mine_.declaration.default_digest;
    // The list only grows; a shorter one is a late repetition.
    if (!plausible || m.body.candidates.size() < mine_.candidates.size()) return;
    mine_.candidates = std::move(m.body.candidates);
    mine_.ids = std::move(m.body.ids);
    mine_.no_common_config = std::move(m.body.no_common_config);
    note(runtime::flight_event::merged, {.invocation = mine_.candidates.size(), .tag = m.from.source});
    mine_.changed.tell();
    ++progress_;
  }
  // Sent by a rank that takes itself for the leader, and has no offer of this rank.
  void on(received<offer>& m) {
    if (m.body.decl_hash != mine_.declaration.hash()) send_offer(catalogue_list::no, m.from.source);
  }
  void on(received<op_reject>& m) {
    acknowledge(m.from, m.body.number);
    note(runtime::flight_event::rejected, {.tag = m.from.source});
    const errc code = runtime::errc_of(m.body.code, errc::declaration_mismatch);
    const std::string title = mine_.declaration.title();
    // A rank that has not declared the op does not know its name.
    if (code == errc::full && !m.body.text.starts_with(title)) m.body.text.insert(0, title + ": ");
    runtime::error_facts about = mine_.declaration.about(services_.net.rank());
    about.role = mine_.role;
    about.peer = m.from.source;
    mine_.rejected = runtime::error::in_words(code, std::move(about), std::move(m.body.text));
    mine_.runs->on_rejected(*mine_.rejected);
    mine_.changed.tell();
  }
  void on(received<decide>& m) {
    acknowledge(m.from, m.body.number);
    const char* const broken = !knows(m.body.digest)           ? "S4"
                               : !mine_.may_run(m.body.digest) ? "S3"
                               : !rests_on_whole_rows(m.body)  ? "S6"
                                                               : nullptr;
    if (broken != nullptr) {
      runtime::blame({broken,
                      "a decision names a candidate that all have warmed and measured",
                      {mine_.declaration.id(), services_.net.rank()}},
                     m.from.source);
      return;
    }
    const auto same = [&](const decision_record& d) { return d.key == m.body.key; };
    const auto known = std::find_if(mine_.decisions.begin(), mine_.decisions.end(), same);
    if (known != mine_.decisions.end() && known->version >= m.body.version) return;  // a late repetition
    if (known == mine_.decisions.end() && mine_.decisions.size() == most_decisions) return;
    decision_record& d = known != mine_.decisions.end() ? *known : mine_.decisions.emplace_back();
    d.key = std::move(m.body.key);
    d.digest = m.body.digest;
    d.why = std::move(m.body.why);
    d.evidence = std::move(m.body.evidence);
    d.source = m.body.source;
    d.proposer = m.body.proposer;
    d.machines = m.body.machines;
    d.mixture = m.body.mixture;
    d.version = m.body.version;
    d.search = m.body.search;
    d.participants = std::move(m.body.participants);
    d.left_out = m.body.left_out;
    d.parts = std::move(m.body.parts);
    d.confidence = m.body.confidence;
    d.trials = m.body.trials;
    d.cost_ns = m.body.cost_ns;
    note(runtime::flight_event::decided, {.invocation = d.evidence.size() + d.left_out,
                                          .digest = d.digest,
                                          .bytes = m.body.largest_bytes,
                                          .tag = d.proposer});
    if (services_.on_decided) services_.on_decided(mine_, d);
    if (m.body.searches_on == 0) mine_.rows->expect_no_trials();
    mine_.changed.tell();
    ++progress_;
  }
  void on(rows_due&) {
    report r;
    r.rows = mine_.rows->take();
    if (r.rows.empty()) return;
    r.control_ns = mine_.control_ns;
    note(runtime::flight_event::reported, {.invocation = r.rows.size(), .tag = mine_.declaration.leader});
    out_.post(mine_.declaration.leader, part::coordinator, std::move(r));
  }

  void on(tuning_request& m) { out_.post(mine_.declaration.leader, part::coordinator, std::move(m)); }
  void on(nack& m) { out_.post(mine_.declaration.leader, part::coordinator, std::move(m)); }

  // A repeated `warm` is only acknowledged. The leader starts a round only after the previous round has ended. A later round that arrives
  // during a round is ignored until it is sent again.
  void on(received<warm>& m) {
    if (rehearsing_ && m.body.round > warm_round_) return;
    acknowledge(m.from, m.body.number);
    if (m.body.round <= warm_round_) return;
    if (warm_round_ != 0) forget_rehearsals_of(m.body.candidates);
    for (std::size_t i = 0; i < std::min(m.body.candidates.size(), m.body.variants.size()); ++i) {
      if (m.body.variants[i] != m.body.candidates[i] && mine_.configs.find(m.body.variants[i]))
        mine_.instead.emplace_back(m.body.candidates[i], m.body.variants[i]);
    }
    warm_round_ = m.body.round;
    to_rehearse_ = std::move(m.body.candidates);
    rehearsed_to_tell_ = rehearsing_ = true;
  }
  void forget_rehearsals_of(const std::vector<std::uint64_t>& candidates) {
    const auto again = [&](std::uint64_t digest) {
      return std::find(candidates.begin(), candidates.end(), digest) != candidates.end();
    };
    std::erase_if(mine_.ready, again);
    std::erase_if(mine_.failed_here, again);
    std::erase_if(mine_.instead, [&](const auto& i) { return again(i.first); });
  }

 public:
  bool has_to_rehearse() const noexcept { return !to_rehearse_.empty(); }
  /// True if a round has arrived that has not been started. Marks it as started.
  bool round_begins() noexcept { return rehearsing_ && !std::exchange(round_begun_, true); }
  void end_round() noexcept { rehearsing_ = round_begun_ = false; }
  /// The candidates to rehearse now, at the same time.
  std::vector<std::uint64_t> next_to_rehearse() {
    const std::size_t at_once = std::max<std::size_t>(mine_.runs->rehearsals_at_once(), 1);
    std::vector<std::uint64_t> some(to_rehearse_.begin(), to_rehearse_.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                                     at_once, to_rehearse_.size())));
    return some;
  }
  void end_rehearsals(std::size_t count) noexcept {
    to_rehearse_.erase(to_rehearse_.begin(), to_rehearse_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  auto a_rehearsal() noexcept {
    ++mine_.rehearsing;
    return runtime::finally([&count = mine_.rehearsing] { --count; });
  }
  void note_rehearsed(std::uint64_t digest, const runtime::result<>& outcome) {
    if (outcome) {
      mine_.ready.push_back(digest);
      return;
    }
    if (!told_of_.insert({digest, mine_.variant_of(digest)}).second) return;  // warn once, not at each repetition
    mine_.warm_errors.push_back(name_of(digest) + ": " + outcome.reason().what());
    const auto& own = mine_.failed_here;
    const bool hung = outcome.code() == errc::timeout;
    // This rank's own check of the data has failed. An error of a call would name its op, and an error of another rank would not name this
    // rank.
    const runtime::error_facts& about = outcome.reason().about();
    const bool unlike = about.rank == services_.net.rank() && about.op.empty();
    if (hung || unlike || std::find(own.begin(), own.end(), digest) != own.end())
      warn(services_,
           mine_.declaration.title() + ", on rank " + std::to_string(services_.net.rank()) + " (" + mine_.role +
               "): config " + mine_.warm_errors.back() + "; its rehearsal failed, " +
               (digest == mine_.declaration.default_digest ? "but it still runs because it is the default; fix it"
                                                           : "so it is not tried until a later rehearsal succeeds"));
  }
  void send_warmed() {
    warmed w;
    w.ready = mine_.ready;
    w.errors.assign(mine_.warm_errors.begin() + static_cast<std::ptrdiff_t>(errors_told_), mine_.warm_errors.end());
    errors_told_ = mine_.warm_errors.size();
    w.round = warm_round_;
    w.failed = mine_.failed_here;
    w.control_ns = mine_.control_ns;
    note(runtime::flight_event::warmed, {.invocation = w.ready.size(), .tag = mine_.declaration.leader});
    out_.post(mine_.declaration.leader, part::coordinator, std::move(w));
    ++progress_;
  }
  runtime::task<> rehearse(std::uint64_t digest) { return mine_.runs->rehearse(digest); }
  runtime::time_ns deadline_in(runtime::time_ns span) const noexcept { return services_.ex.deadline_in(span); }

 private:
  bool is_participant(rank_id rank) const noexcept {
    const auto& all = mine_.declaration.participants;
    return std::any_of(all.begin(), all.end(), [rank](const op_participant& p) { return p.rank == rank; });
  }
  void note(runtime::flight_event what, const runtime::flight_record& about) {
    services_.note_step(what, mine_.declaration.id(), mine_.generation, about);
  }
  void acknowledge(const envelope& from, std::uint32_t number) {
    out_.acknowledge_to(from.source, part::coordinator, number);
  }
  // True if the leader and this rank share a config: a candidate, or a config that was rehearsed before the merged list arrived.
  bool knows(std::uint64_t digest) const {
    const auto in = [&](const std::vector<std::uint64_t>& list) {
      return std::find(list.begin(), list.end(), digest) != list.end();
    };
    return digest == mine_.declaration.default_digest || in(mine_.candidates) || in(mine_.ready);
  }
  // Checks S6 as far as a participant can: the winner of a first search by trials was measured by every participant. If a later search
  // keeps the decided config, that config was measured in an earlier search.
  bool rests_on_whole_rows(const decide& d) const {
    if (d.source != decision_source::trials || d.search > 1 || d.digest == mine_.declaration.default_digest)
      return true;
    const auto won = std::find_if(d.evidence.begin(), d.evidence.end(),
                                  [&](const wire_evidence& e) { return e.digest == d.digest; });
    if (won == d.evidence.end() || won->repetitions == 0 || !std::isfinite(won->time_ns) ||
        won->status != tuning::name(tuning::aggregate_status::measured))
      return false;
    const auto& all = mine_.declaration.participants;
    return std::all_of(all.begin(), all.end(), [&](const op_participant& p) {
      return std::any_of(won->ranks.begin(), won->ranks.end(),
                         [&](const wire_own_time& own) { return own.rank == p.rank && own.repetitions != 0; });
    });
  }
  std::string name_of(std::uint64_t digest) const {
    const std::string* const id = mine_.id_of(digest);  // a rehearsal may begin before the merged list has arrived
    return id == nullptr ? std::to_string(digest) : *id;
  }

  services& services_;
  participant_state& mine_;
  outbox out_;
  bool faults_told_ = false;
  bool offered_ = false;
  bool listed_ = false;
  std::uint32_t warm_round_ = 0;
  std::vector<std::uint64_t> to_rehearse_;
  bool rehearsing_ = false;  // a round of rehearsals is in progress
  bool round_begun_ = false;
  bool rehearsed_to_tell_ = false;
  std::set<std::pair<std::uint64_t, std::uint64_t>> told_of_;  // candidates and variants whose rehearsal has failed
  std::size_t errors_told_ = 0;
  runtime::time_ns ask_at_;
  std::uint64_t progress_ = 0;
  retry_policy tries_;
  bool given_up_ = false;  // from now on an exception only ends the step in progress
};

// Any exception in a rehearsal means that this candidate cannot be warmed here.
runtime::task<> rehearse_one(participant_behaviour& me, std::uint64_t digest) {
  const auto counted = me.a_rehearsal();
  runtime::result<> outcome = errc::exception;
  try {
    auto came = co_await runtime::with_deadline(me.deadline_in(warming_limit_ns), me.rehearse(digest));
    outcome = std::move(came);
    if (outcome.code() == errc::timeout && outcome.reason().text().empty())
      outcome = runtime::error{
          errc::timeout, "its rehearsal took longer than " + std::to_string(warming_limit_ns / 1'000'000'000) + " s"};
  } catch (...) {
    outcome = runtime::describe(std::current_exception());
  }
  me.note_rehearsed(digest, outcome);
}

runtime::task<> rehearse_all(participant_behaviour& me) {
  runtime::scope& here = co_await runtime::this_scope;
  while (me.has_to_rehearse()) {
    const std::vector<std::uint64_t> some = me.next_to_rehearse();
    runtime::scope several(here);
    for (const std::uint64_t digest : some) several.spawn(rehearse_one(me, digest));
    co_await several.join();
    me.end_rehearsals(some.size());
  }
}

// Runs at the same time as the actor. The actor continues to report rows and to receive decisions, so that calls and searches continue.
runtime::task<> rehearse_round(participant_behaviour& me, participant_address actor) {
  while (me.has_to_rehearse()) {
    runtime::time_ns pause = 0;
    try {
      co_await rehearse_all(me);
    } catch (...) {
      pause = me.failed(runtime::describe(std::current_exception()));
      if (pause == 0) break;
    }
    auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(pause));
    if (!slept) break;
  }
  me.end_round();
  participant_actor::message wake = rows_due{};
  auto woken = co_await actor.send(std::move(wake));
  static_cast<void>(woken);
}

// Handles a message and everything that follows from it. Repeats this after an exception. A separate coroutine, so that its frame exists
// only while a message is handled.
runtime::task<> take_in(participant_behaviour& me, participant_behaviour::incoming* m, runtime::scope& rounds,
                        participant_actor& self) {
  while (const runtime::time_ns pause = me.handle(m)) {
    auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(pause));
    if (!slept) break;
  }
  if (me.round_begins()) rounds.spawn(rehearse_round(me, self.self()));
  while (const runtime::time_ns pause = me.tell_of_rehearsals()) {
    auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(pause));
    if (!slept) break;
  }
}

runtime::task<> participate(participant_actor& self, services& s, participant_state& mine) {
  participant_behaviour me(s, mine);
  runtime::scope& here = co_await runtime::this_scope;
  runtime::scope rounds(here);
  co_await take_in(me, nullptr, rounds, self);
  for (;;) {
    auto m = co_await self.receive(me.next_event());
    if (!m && m.code() != errc::timeout) break;
    co_await take_in(me, &m, rounds, self);
  }
  co_await rounds.join();
}

}  // namespace

participant_address spawn_participant(services& s, participant_state& mine) {
  auto to = runtime::spawn_actor<received<ack>, received<merged>, received<op_reject>, received<warm>, received<decide>,
                                 received<offer>, rows_due, tuning_request, nack>(s.actors, participate, s, mine);
  mine.actor = to;
  open_inbox<ack, merged, op_reject, warm, decide, offer>(s, mine.declaration.id(), mine.generation, part::participant,
                                                          part::coordinator, to);
  mine.rows->on_flush([to] { static_cast<void>(to.try_send(rows_due{})); });
  return to;
}

void unbind_participant(services& s, const participant_state& mine) {
  s.mail.unbind(number_of(mine.declaration.id(), part::participant));
}

}  // namespace parley::actors
