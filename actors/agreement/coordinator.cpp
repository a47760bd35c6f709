#include <parley/actors/agreement/coordinator.hpp>
#include <parley/actors/agreement/evidence.hpp>
#include <parley/actors/agreement/retry_policy.hpp>
#include <parley/actors/inquiries.hpp>
#include <parley/actors/letters/inbox.hpp>
#include <parley/actors/letters/outbox.hpp>
#include <parley/actors/letters/reminder.hpp>
#include <parley/tuning/mixtures.hpp>

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <utility>
#include <variant>

namespace parley::actors {

using runtime::errc;

namespace {

runtime::result<tuning::catalogue> from_the_wire(const std::vector<wire_config>& list) {
  std::vector<tuning::config_identity> configs;
  for (const wire_config& c : list) {
    tuning::config_identity identity;
    identity.name = c.name;
    for (const wire_parameter& p : c.parameters) identity.parameters.emplace_back(p.name, p.value);
    identity.wire_class = c.wire_class;
    identity.abi = c.abi;
    configs.push_back(std::move(identity));
  }
  auto made = tuning::catalogue::make(std::move(configs));
  if (!made) return runtime::error{errc::malformed, made.reason().text};
  return std::move(made).value();
}

constexpr runtime::time_ns look_again_ns = 1'000'000'000;
constexpr std::size_t remembered_requests = 64;
// After the first rounds, candidates with a failed rehearsal are rehearsed again after this pause. Each pause is four times the previous
// one.
constexpr runtime::time_ns first_warming_pause_ns = 10'000'000'000;
constexpr runtime::time_ns last_warming_pause_ns = 160'000'000'000;

using coordinator_actor = runtime::actor<received<ack>, received<offer>, received<warmed>, received<report>,
                                         decision_due, received<tuning_request>, received<nack>>;

/// The progress of an op's agreement.
enum class phase : std::uint8_t {
  offers,         ///< not all participants have sent their offers
  warming,        ///< the participants get the candidates ready, and rehearse them
  running,        ///< candidates that are ready on all ranks are tried, and decisions are made
  warming_again,  ///< like `running`, while new mixtures, or candidates that were left out, are made ready
  refused,        ///< the declarations conflict: the op has ended
};

class coordinator_behaviour {
 public:
  coordinator_behaviour(services& s, coordinator_state& state)
      : services_(s), state_(state), out_(s, state.declaration.id(), state.generation, state.owed) {
    missing_.said(s);
  }

  // While a search runs, the actor wakes up regularly: a round may end on the data path after its last report has arrived.
  runtime::time_ns next_event() const noexcept {
    if (given_up_) return out_.next_resend();
    const runtime::time_ns look =
        state_.assigned->searching() ? services_.ex.deadline_in(look_again_ns) : runtime::never;
    const runtime::time_ns warm_again = phase_ == phase::warming_again ? runtime::never : warm_again_at_;
    return std::min({out_.next_resend(), state_.assigned->next_give_up(), look, missing_.when(), warm_again});
  }

  using incoming = runtime::result<coordinator_actor::message>;
  /// Handles a message. If `m` has none, time has passed. If something throws, returns the pause after which `m` must be handled again;
  /// otherwise 0.
  runtime::time_ns handle(incoming& m) noexcept {
    const busy_until_end control(services_, state_.control_ns);
    try {
      if (!heard_) hear(m);
      heard_ = true;
      if (due_) advance();
    } catch (...) {
      const runtime::time_ns pause = failed(runtime::describe(std::current_exception()));
      if (pause != 0) return pause;
    }
    heard_ = due_ = false;
    return 0;
  }

 private:
  void hear(incoming& m) {
    due_ = !m || !std::holds_alternative<received<ack>>(*m);
    if (m) return std::visit([this](auto& one) { on(one); }, *m);
    out_.resend();
    ask_the_missing();
  }

  // The exception stopped a step that can be repeated, because `state_` keeps the contents of all messages.
  runtime::time_ns failed(const runtime::error& what) noexcept {
    if (given_up_) return 0;
    if (const auto pause = tries_.after(progress_, services_.jitter)) {
      if (tries_.failures() == 1) complain(what, "the leader tries again, and calls keep the decisions that were made");
      return *pause;
    }
    given_up_ = true;
    const std::string why =
        complain(what, "this happened again and again, so tuning of the op has ended; its decisions stay");
    try {
      end_tuning(why);
      announce_decisions();
    } catch (...) {}  // the data path does not depend on this actor
    return 0;
  }
  // If the candidates are not known yet, all sizes run the default from now on. That also counts as a decision.
  void end_tuning(const std::string& why) {
    tuning_ended_ = true;
    warm_again_at_ = runtime::never;
    retunes_.clear();
    state_.assigned->end_tuning(why, services_.ex.now());
    const op_declaration& op = state_.declaration;
    if (!state_.assigned->opened())
      state_.assigned->open({op.default_digest}, {op.default_config}, {}, services_.ex.now());
    if (phase_ == phase::warming) phase_ = phase::running;
  }
  // Warns the user; returns the text for the evidence.
  std::string complain(const runtime::error& what, const char* and_now) noexcept {
    try {
      const std::string why = "an exception was thrown on rank " + std::to_string(services_.net.rank()) +
                              ", which leads its agreement: " + shortened(what.what());
      warn(services_, state_.declaration.title() + ": " + why + "; " + and_now);
      if (state_.warm_errors.size() < most_warm_errors) state_.warm_errors.push_back("the coordinator: " + why);
      return why;
    } catch (...) {
      return {};
    }
  }

  void on(received<ack>& m) { out_.acknowledge(m.from.source, m.body.number); }

  void on(received<offer>& m) {
    if (!is_participant(m.from.source)) return;
    if (phase_ != phase::offers) {  // a repetition: the acknowledgement was lost
      acknowledge(m.from, m.body.number);
      return;
    }
    if (m.body.decl_hash != state_.declaration.hash()) {
      // The refusal is sent first: a rank may leave once its offer is acknowledged, and must have received the refusal by then.
      reject(conflict_with(m.body),
             state_.declaration.title() + ": " +
                 difference("rank " + std::to_string(m.from.source), m.body.declaration,
                            "the leader rank " + std::to_string(state_.declaration.leader), state_.declaration.text()) +
                 "; declare the op alike on all its ranks");
      acknowledge(m.from, m.body.number);
      return;
    }
    auto& p = participant(m.from.source, m.body.role);
    const bool same = m.body.catalogue_hash == state_.configs.hash();
    if (same) p.offered.configs = state_.configs;
    if (!m.body.catalogue.empty()) {
      auto listed = from_the_wire(m.body.catalogue);
      if (!listed) return;  // not acknowledged: a well-formed list may follow
      p.offered.configs = std::move(*listed);
    }
    p.complete = !p.offered.configs.empty();
    acknowledge(m.from, m.body.number, !p.complete);
    p.offered.available = tuning::bits(p.offered.configs.size());
    for (std::size_t i = 0; i < std::min(p.offered.configs.size(), m.body.available.size()); ++i) {
      if (m.body.available[i] != 0) p.offered.available.set(i);
    }
    p.cached = std::move(m.body.cached);
    p.limits = std::move(m.body.limits);
    p.lacking = std::move(m.body.lacking);
    if (p.lacking.size() > most_told_lacks) p.lacking.resize(most_told_lacks);
    p.validators_hash = m.body.validators_hash;
    p.trials = m.body.trials;
  }

  // Makes the next possible step. If a step throws, the phase does not change, and the step is made again.
  void advance() {
    if (phase_ == phase::refused) return;
    if (state_.assigned->opened()) judge();
    if (phase_ == phase::offers) {
      if (!all_offered()) return;
      merge_offers();
    }
    if (phase_ == phase::running) return warm_again_if_due();
    if (phase_ == phase::refused || !all_warmed()) return;
    const auto changed = mixtures_.replace_failed(*state_.merged, failed_by_place());
    if (!changed.empty()) return begin_round(candidates_at(changed));
    if (phase_ == phase::warming) return open();
    add_what_came_back();
  }
  bool all_offered() const {
    const auto complete = [](const coordinator_state::joined& j) { return j.complete; };
    return state_.participants.size() == state_.declaration.participants.size() &&
           std::all_of(state_.participants.begin(), state_.participants.end(), complete);
  }
  bool all_warmed() const {
    return std::all_of(state_.participants.begin(), state_.participants.end(),
                       [](const coordinator_state::joined& j) { return j.ready.has_value(); });
  }

  void begin_round(const std::vector<const tuning::candidate*>& candidates) {
    send_warm(*state_.merged, candidates, warm_round_ + 1);
    for (auto& j : state_.participants) j.ready.reset();
    ++warm_round_;
  }

  // A rehearsal may have failed for a temporary reason. Candidates that were left out are rehearsed again when a search is requested, and a
  // few times without a request. Two kinds of configs are not rehearsed again: a config that a rank cannot run at all is no candidate, and
  // a config that failed in a call has been rehearsed already.
  void warm_again_if_due() {
    if (warm_new_mixtures()) return;
    if (retunes_.empty() && services_.ex.now() < warm_again_at_) return;
    warm_again_at_ = runtime::never;
    const auto again = left_out();
    if (again.empty() || !tunes()) return search_as_asked();
    begin_round(again);
    phase_ = phase::warming_again;
  }
  // A rank that lacks a config runs another one in its place: first the first config in its list, later also the config that was fastest on
  // that rank in the trials of some size. The new mixture becomes a further candidate with its own digest, so that the configs in force or
  // in a schedule keep their meaning. Each size is looked at once, so that noise does not make new mixtures for ever.
  bool warm_new_mixtures() {
    if (!tunes() || !state_.merged) return false;
    for (const auto& c : state_.assigned->searches()) {
      const bool tried = c->is_decided() && c->chosen().source == decision_source::trials;
      if (!tried || looked_at_.contains(c->bucket().index())) continue;
      add_fastest(*c);
      looked_at_.insert(c->bucket().index());
    }
    const auto& all = state_.merged->candidates;
    if (told_of_ == all.size()) return false;
    std::vector<const tuning::candidate*> added;
    for (std::size_t i = told_of_; i < all.size(); ++i) added.push_back(&all[i]);
    tell_merged(*state_.merged);
    begin_round(added);
    told_of_ = all.size();
    phase_ = phase::warming_again;
    return true;
  }
  void add_fastest(const search& c) {
    const auto took = taken_by_config(c);
    mixtures_.add_fastest(*state_.merged, [&](std::size_t place, std::size_t config) {
      return took[config].empty() ? tuning::infinite_ns : took[config][place].median_ns;
    });
  }
  // The time of each participant with each config, from the trials of the candidate that
  // has the config's name. A failed candidate has no times.
  std::vector<std::vector<tuning::own_measurement>> taken_by_config(const search& c) const {
    std::vector<std::vector<tuning::own_measurement>> took(state_.merged->configs.size());
    for (std::size_t i = 0; i < c.aggregates().size(); ++i) {
      const auto at = state_.merged->find_candidate(state_.assigned->candidates()[i]);
      if (!at || !c.aggregates()[i].measured() || c.excludes(i)) continue;
      const tuning::candidate& of = state_.merged->candidates[*at];
      if (tuning::is_by_name(*state_.merged, of)) took[of.config] = seen_by_each(i, c.book(), state_);
    }
    return took;
  }
  bool tunes() const noexcept {
    return !tuning_ended_ && std::all_of(state_.participants.begin(), state_.participants.end(),
                                         [](const coordinator_state::joined& j) { return j.trials; });
  }
  std::vector<const tuning::candidate*> left_out() const {
    std::vector<const tuning::candidate*> some;
    if (!state_.merged) return some;
    const auto& in = state_.assigned->candidates();
    for (const tuning::candidate& c : state_.merged->candidates) {
      if (std::find(in.begin(), in.end(), c.digest) == in.end()) some.push_back(&c);
    }
    return some;
  }
  // Earlier candidates keep their places.
  void add_what_came_back() {
    std::vector<std::uint64_t> digests = state_.assigned->candidates();
    std::vector<std::string> ids = state_.assigned->ids();
    std::vector<std::uint64_t> mixtures;
    for (std::size_t i = 0; i < digests.size(); ++i) mixtures.push_back(state_.assigned->mixture_of(i));
    std::vector<std::string> still_out;
    for (const tuning::candidate* c : left_out()) {
      if (is_ready_everywhere(c->digest)) {
        digests.push_back(c->digest);
        ids.push_back(c->id);
        mixtures.push_back(state_.merged->mixture_of(*c));
      } else {
        still_out.push_back(c->id);
      }
    }
    if (tunes()) {
      state_.assigned->limit(limits_of_all());  // a rank may now run another variant
      state_.assigned->leave_out(still_out);
      state_.assigned->open(std::move(digests), std::move(ids), {}, services_.ex.now(), 0, std::move(mixtures));
      search_as_asked();
    }
    phase_ = phase::running;
    ++progress_;
    if (!still_out.empty()) warm_again_later();
    announce_decisions();
  }
  void warm_again_later() noexcept {
    if (!tunes() || warming_pause_ns_ > last_warming_pause_ns) return;
    warm_again_at_ = services_.ex.deadline_in(warming_pause_ns_);
    warming_pause_ns_ *= 4;
  }
  void search_as_asked() {
    if (retunes_.empty()) return;
    for (const retune_wish& r : retunes_) state_.assigned->retune(r.bytes, r.why, services_.ex.now());
    retunes_.clear();
    announce_decisions();
  }

  void on(received<warmed>& m) {
    acknowledge(m.from, m.body.number);
    if (!is_participant(m.from.source)) return;
    if (phase_ != phase::warming && phase_ != phase::warming_again) return;
    auto& p = participant(m.from.source, {});
    if (m.body.round != warm_round_ || p.ready) return;
    p.ready = warmed_of(m);
    p.failed = std::move(m.body.failed);
    note_control(m.from.source, m.body.control_ns);
    keep_errors(m.from.source, m.body.errors);
  }

  // The leader's rank also runs this actor.
  void note_control(rank_id who, runtime::time_ns control_ns) {
    if (who == services_.net.rank()) control_ns += state_.control_ns;
    state_.assigned->note_control(control_ns);
  }

  // Checks S3: a participant may have warmed only candidates that it was asked to warm.
  std::vector<std::uint64_t> warmed_of(received<warmed>& m) const {
    std::vector<std::uint64_t> ready = std::move(m.body.ready);
    const auto stranger = [this](std::uint64_t digest) { return !state_.merged->find_candidate(digest); };
    if (std::erase_if(ready, stranger) != 0)
      runtime::blame({"S3", "only candidates are warmed", {state_.declaration.id(), state_.declaration.leader}},
                     m.from.source);
    return ready;
  }

  void on(received<report>& m) {
    acknowledge(m.from, m.body.number);
    note_control(m.from.source, m.body.control_ns);
    for (const wire_row& r : m.body.rows) state_.assigned->add_row(m.from.source, r);
  }

  void on(received<tuning_request>& m) {
    acknowledge(m.from, m.body.number);
    if (!is_participant(m.from.source) || is_handled(m.from.source, m.body.number)) return;
    const auto bytes = m.body.every_size ? std::nullopt : std::optional(m.body.bytes);
    const std::string why = "rank " + std::to_string(m.from.source) + " asked for it" +
                            (m.body.why.empty() ? "" : ": " + shortened(m.body.why));
    switch (m.body.what) {
      case tuning_request::kind::retune:
        if (retunes_.size() < remembered_requests) retunes_.push_back({bytes, why});
        break;
      case tuning_request::kind::abort:
        std::erase_if(retunes_, [&](const retune_wish& r) { return !bytes || r.bytes == bytes; });
        state_.assigned->abort(bytes, why, after_abort::stay, services_.ex.now());
        break;
      case tuning_request::kind::end: end_tuning(why); break;
    }
    note_handled(m.from.source, m.body.number);  // noted only now, so that a request that throws is handled again
  }

  void on(received<nack>& m) {
    acknowledge(m.from, m.body.number);
    if (!is_participant(m.from.source)) return;
    if (state_.failed_there) state_.failed_there(m.body);
    if (m.body.refused) return;
    services_.note_step(runtime::flight_event::quarantined, state_.declaration.id(), state_.generation,
                        {.invocation = 1, .digest = m.body.digest, .bytes = m.body.bytes, .tag = m.from.source});
    state_.assigned->quarantine(m.body.bytes, m.body.digest, services_.ex.now(),
                                "invocation " + std::to_string(m.body.invocation) + " failed on rank " +
                                    std::to_string(m.from.source) + ", " + shortened(m.body.text));
  }

  /// Missing offers may have been sent to another rank that their senders take for the leader. This rank sends those senders its own
  /// declaration, and they reply with theirs if it differs.
  void ask_the_missing() {
    if (!missing_.is_due(services_)) return;
    if (phase_ != phase::offers) return missing_.stop();
    offer mine;
    mine.decl_hash = state_.declaration.hash();
    for (const op_participant& p : state_.declaration.participants) {
      const auto here = [&](const coordinator_state::joined& j) { return j.rank == p.rank; };
      if (std::any_of(state_.participants.begin(), state_.participants.end(), here)) continue;
      static_cast<void>(
          services_.mail.send(p.rank, number_of(state_.declaration.id(), part::participant), state_.generation, mine));
      ask_whether_declared(services_, state_.declaration, state_.generation, p.rank);
    }
    missing_.said(services_);
  }

  void judge() {
    state_.assigned->watch_drift(services_.ex.now(), clocks());
    state_.assigned->retry(services_.ex.now());
    while (search* const done = state_.assigned->ready_to_judge(services_.ex.now()))
      done->judge(services_.ex.now(), clocks());
    warn_of_failures();
    announce_decisions();
  }

  void on(decision_due&) {}

  void acknowledge(const envelope& to, std::uint32_t number, bool send_list = false) {
    out_.acknowledge_to(to.source, part::participant, number, send_list);
  }
  // The present knowledge of the clocks of participants on other hosts. Clock stamps that arrived after a trial also make that trial's
  // times more accurate.
  std::vector<tuning::participant_clock> clocks() const {
    std::vector<tuning::participant_clock> all;
    for (const op_participant& p : state_.declaration.participants) {
      if (const auto* offset = services_.clocks.offset_of(p.rank)) all.push_back({p.rank, offset});
    }
    return all;
  }
  bool is_participant(rank_id rank) const noexcept {
    const auto& all = state_.declaration.participants;
    return std::any_of(all.begin(), all.end(), [&](const op_participant& p) { return p.rank == rank; });
  }
  // A request is repeated until its acknowledgement arrives; only the first copy has an effect.
  bool is_handled(rank_id source, std::uint32_t number) const {
    return std::find(handled_.begin(), handled_.end(), std::pair(source, number)) != handled_.end();
  }
  void note_handled(rank_id source, std::uint32_t number) {
    if (handled_.size() == remembered_requests) handled_.erase(handled_.begin());
    handled_.emplace_back(source, number);
  }
  // Warns the user on the leader's rank of configs that failed in real invocations, once for each key.
  void warn_of_failures() {
    for (const auto& c : state_.assigned->searches()) {
      if (const std::string rule = c->take_rule_not_followed(); !rule.empty())
        warn(services_, state_.declaration.title() + ", messages of " + c->key() + ": " + rule);
      while (const exclusion* const e = c->next_untold()) {
        warn(services_, state_.declaration.title() + ", messages of " + c->key() + ": " + e->why +
                            "; this config no longer runs, and calls run " + c->chosen().config);
      }
    }
  }
  static std::string shortened(const std::string& text) { return text.substr(0, most_error_bytes); }
  // Keeps a bounded number of errors, even if a peer sends more.
  void keep_errors(rank_id of, const std::vector<std::string>& errors) {
    for (const std::string& e : errors) {
      if (state_.warm_errors.size() == most_warm_errors) return;
      state_.warm_errors.push_back("rank " + std::to_string(of) + ": " + shortened(e));
    }
  }
  template <class M>
  void tell_all(const M& message) {
    for (const op_participant& p : state_.declaration.participants) out_.post(p.rank, part::participant, message);
  }
  coordinator_state::joined& participant(rank_id rank, const std::string& role) {
    for (auto& p : state_.participants) {
      if (p.rank == rank) return p;
    }
    auto& p = state_.participants.emplace_back();
    p.rank = rank;
    p.offered.rank = rank;
    p.offered.role = role;
    return p;
  }

  void reject(errc code, std::string text) {
    phase_ = phase::refused;
    op_reject r;
    r.code = static_cast<std::uint8_t>(code);
    r.text = std::move(text);
    tell_all(r);
  }

  // The declaration's text names the leader.
  errc conflict_with(const offer& theirs) const {
    const std::string ours = ", leader rank " + std::to_string(state_.declaration.leader) + ",";
    return theirs.declaration.find(ours) == std::string::npos ? errc::role_conflict : errc::declaration_mismatch;
  }

  void merge_offers() {
    std::vector<tuning::offer> offers;
    for (const auto& p : state_.participants) offers.push_back(p.offered);
    auto all = tuning::merge(std::move(offers), tuning::variants::wire_class);
    if (!all) {
      reject(errc::declaration_mismatch, state_.declaration.title() + ": " + all.reason().text);
      return;
    }
    tuning::merged offered = std::move(all).value();
    if (!offered.no_common_config.empty()) offered.no_common_config += lacks_of(offered);
    mixtures_.add_named(offered, remembered_names());
    std::vector<const tuning::candidate*> candidates;
    for (const auto& c : offered.candidates) candidates.push_back(&c);
    tell_merged(offered);
    send_warm(offered, candidates, warm_round_);
    told_of_ = candidates.size();
    state_.merged = std::move(offered);  // only after all messages are in the outbox
    phase_ = state_.assigned->opened() ? phase::running : phase::warming;
    missing_.stop();
    ++progress_;
  }

  // Sorted, because offers arrive in any order.
  std::set<std::string> remembered_names() const {
    std::set<std::string> names;
    for (const auto& p : state_.participants) {
      for (const wire_result& r : p.cached) names.insert(r.solution);
    }
    return names;
  }

  void tell_merged(const tuning::merged& all) {
    merged m;
    for (const auto& c : all.candidates) {
      m.candidates.push_back(c.digest);
      m.ids.push_back(c.id);
    }
    m.no_common_config = all.no_common_config;
    tell_all(m);
  }

  void send_warm(const tuning::merged& of, const std::vector<const tuning::candidate*>& candidates,
                 std::uint32_t round) {
    for (std::size_t p = 0; p < of.participants.size(); ++p) {
      warm w;
      w.round = round;
      for (const tuning::candidate* c : candidates) {
        w.candidates.push_back(c->digest);
        w.variants.push_back(of.configs[c->variants[p]].digest);
      }
      out_.post(of.participants[p].rank, part::participant, std::move(w));
    }
  }

  std::vector<tuning::mixtures::failures> failed_by_place() const {
    std::vector<tuning::mixtures::failures> all(state_.merged->participants.size());
    for (const coordinator_state::joined& j : state_.participants) all[place_of(j.rank)] = j.failed;
    return all;
  }
  std::size_t place_of(rank_id rank) const noexcept {
    std::size_t place = 0;
    while (state_.merged->participants[place].rank != rank) ++place;
    return place;
  }
  std::vector<const tuning::candidate*> candidates_at(const std::vector<std::size_t>& places) const {
    std::vector<const tuning::candidate*> some;
    for (const std::size_t i : places) some.push_back(&state_.merged->candidates[i]);
    return some;
  }

  bool is_ready_everywhere(std::uint64_t digest) const {
    return std::all_of(state_.participants.begin(), state_.participants.end(), [&](const coordinator_state::joined& j) {
      return std::find(j.ready->begin(), j.ready->end(), digest) != j.ready->end();
    });
  }

  // Only what all participants have warmed may be assigned (S3). The default needs no rehearsal: it is always there.
  void open() {
    if (services_.rules_of) state_.assigned->heed(services_.rules_of(state_.declaration));
    state_.assigned->limit(limits_of_all());
    std::vector<std::uint64_t> digests;
    std::vector<std::string> ids;
    std::vector<std::uint64_t> mixtures;
    std::vector<std::string> left_out;
    for (const auto& c : state_.merged->candidates) {
      if (!is_ready_everywhere(c.digest) && !digests.empty()) {
        left_out.push_back(c.id);
        continue;
      }
      digests.push_back(c.digest);
      ids.push_back(c.id);
      mixtures.push_back(state_.merged->mixture_of(c));
    }
    for (const auto& p : state_.participants) {
      if (!p.trials) state_.assigned->forbid_trials("tuning is switched off on rank " + std::to_string(p.rank));
    }
    state_.assigned->leave_out(left_out);
    if (digests.size() == 1) state_.assigned->no_choice(why_no_choice());
    open_with(std::move(digests), std::move(ids), std::move(mixtures));
    phase_ = phase::running;
    if (!left_out.empty()) warm_again_later();
    ++progress_;
    announce_decisions();
    search_as_asked();
  }

  // A text about the configs that some ranks cannot run, in the words of these ranks.
  std::string lacks_of(const tuning::merged& of) const {
    std::string text;
    std::size_t told = 0;
    for (const tuning::participant& p : of.participants) {
      const auto same = [&](const coordinator_state::joined& j) { return j.rank == p.rank; };
      for (const std::string& lack :
           std::find_if(state_.participants.begin(), state_.participants.end(), same)->lacking)
        if (told++ < most_lacks) text += "; rank " + std::to_string(p.rank) + " cannot run " + shortened(lack);
    }
    return told > most_lacks ? text + "; and " + std::to_string(told - most_lacks) + " more" : text;
  }
  // A text that says why only the default is left: ranks lack the other configs, or rehearsals failed.
  std::string why_no_choice() const {
    if (!state_.merged->no_common_config.empty()) return state_.merged->no_common_config;
    if (state_.merged->candidates.size() == 1) return "no rank lists a config other than the default";
    std::string text = "only the default is left";
    for (std::size_t i = 0; i < std::min(state_.warm_errors.size(), most_lacks); ++i)
      text += "; " + state_.warm_errors[i];
    return text;
  }

  // The limits that each rank's constraints set. For a mixture, the constraints on each rank's own part count.
  std::vector<candidate_limit> limits_of_all() const {
    std::vector<candidate_limit> all;
    for (std::size_t place = 0; place < state_.merged->participants.size(); ++place) {
      const rank_id rank = state_.merged->participants[place].rank;
      const auto p = std::find_if(state_.participants.begin(), state_.participants.end(),
                                  [&](const coordinator_state::joined& j) { return j.rank == rank; });
      std::multimap<std::size_t, const wire_limit*> of_config;
      for (const wire_limit& l : p->limits) of_config.emplace(l.config, &l);
      for (const tuning::candidate& c : state_.merged->candidates) {
        const auto own = p->offered.configs.find(state_.merged->configs[c.variants[place]].digest);
        if (!own) continue;
        const auto [first, last] = of_config.equal_range(*own);
        for (auto at = first; at != last; ++at) {
          const wire_limit& l = *at->second;
          all.push_back({c.digest, l.largest_bytes,
                         "rank " + std::to_string(rank) + ", " +
                             tuning::sentence({l.kind, l.largest_bytes, l.needs, l.allowed})});
        }
      }
    }
    return all;
  }

  void open_with(std::vector<std::uint64_t> digests, std::vector<std::string> ids,
                 std::vector<std::uint64_t> mixtures) {
    std::vector<remembered_best> remembered;
    // The leader's own results first, then those of the others in the order of their ranks.
    std::sort(state_.participants.begin(), state_.participants.end(), [&](const auto& a, const auto& b) {
      const auto place = [&](const auto& p) {
        return p.rank == state_.declaration.leader ? 0 : std::uint64_t{p.rank} + 1;
      };
      return place(a) < place(b);
    });
    std::vector<std::uint64_t> validators;
    std::vector<std::uint64_t> hosts;
    for (const auto& p : state_.participants) {
      validators.push_back(p.validators_hash);
      hosts.push_back(services_.clocks.host_of(p.rank));
      for (const wire_result& r : p.cached)
        remembered.push_back({r.parameters, r.solution, r.time_ms, r.machines, p.rank, r.thin});
    }
    if (!state_.assigned->opened() && digests.size() > 1) share_times(validators, hosts);
    state_.assigned->open(std::move(digests), std::move(ids), std::move(remembered), services_.ex.now(),
                          tuning::machines_together(validators, hosts), std::move(mixtures));
  }

  /// Edges of one op share their times if they are alike: between the same hosts and kinds of machines. Other hosts may be joined by another
  /// network.
  void share_times(const std::vector<std::uint64_t>& validators, const std::vector<std::uint64_t>& hosts) {
    const op_declaration& op = state_.declaration;
    std::string kind = op.name + ", " + op.scheme + ", " + op.dtype;
    for (std::size_t i = 0; i < validators.size(); ++i)
      kind += ", " + std::to_string(validators[i]) + " on " + std::to_string(hosts[i]);
    state_.assigned->share_times(services_.times_of[kind]);
  }

  void announce_decisions() {
    while (search* c = state_.assigned->next_to_announce()) {
      announce(*c);
      c->note_announced();
      ++progress_;
    }
    if (state_.on_change) state_.on_change();
  }

  // Called for the default and the winner only. The evidence has the other candidates; records of all of them would push older records out.
  void note_measured(const search& c, std::size_t candidate) {
    if (candidate >= c.aggregates().size() || !c.aggregates()[candidate].measured()) return;
    const tuning::aggregate& a = c.aggregates()[candidate];
    services_.note_step(runtime::flight_event::measured, state_.declaration.id(), state_.generation,
                        {.invocation = a.count,
                         .digest = state_.assigned->candidates()[candidate],
                         .bytes = c.bucket().largest_bytes(),
                         .ended_ns = static_cast<runtime::time_ns>(a.time_ns),
                         .tag = state_.declaration.leader});
  }

  void announce(search& c) {
    decide d;
    d.source = c.chosen().source;
    // A pin keeps the machines that its line names, so that the pin ends when a person removes that line.
    d.machines = c.chosen().source == decision_source::pin ? c.chosen().remembered_for : state_.assigned->machines();
    d.mixture = state_.assigned->mixture_of(c.chosen().candidate);
    d.key = c.key();
    d.digest = c.chosen().digest;
    d.why = c.chosen().why;
    d.version = c.next_version();
    d.search = c.number();
    add_evidence(d, c.chosen(), c.book(), c.excluded(), state_);
    d.largest_bytes = c.bucket().largest_bytes();
    d.searches_on = static_cast<std::uint32_t>(state_.assigned->searching());
    d.confidence = c.chosen().confidence;
    d.trials = c.trials();
    d.cost_ns = c.cost_ns();
    note_measured(c, 0);
    if (c.chosen().candidate != 0) note_measured(c, c.chosen().candidate);
    tell_all(d);
  }

  services& services_;
  coordinator_state& state_;
  outbox out_;
  std::vector<std::pair<rank_id, std::uint32_t>> handled_;
  phase phase_ = phase::offers;
  std::uint32_t warm_round_ = 1;
  bool tuning_ended_ = false;
  runtime::time_ns warm_again_at_ = runtime::never;
  runtime::time_ns warming_pause_ns_ = first_warming_pause_ns;
  struct retune_wish {
    std::optional<std::uint64_t> bytes;
    std::string why;
  };
  std::vector<retune_wish> retunes_;  // requested, and not begun yet
  tuning::mixtures mixtures_;
  std::set<std::uint32_t> looked_at_;  // sizes, by bucket, whose trials were used to find faster mixtures
  std::size_t told_of_ = 0;            // number of candidates that participants know
  reminder<seldom> missing_;           // asks the ranks whose offers have not arrived
  bool heard_ = false;                 // the message was processed; the steps that follow may be missing
  bool due_ = false;                   // `advance` is due
  std::uint64_t progress_ = 0;
  retry_policy tries_;
  bool given_up_ = false;  // from now on an exception only ends the step in progress
};

runtime::task<> coordinate(coordinator_actor& self, services& s, coordinator_state& state) {
  coordinator_behaviour me(s, state);
  for (;;) {
    auto m = co_await self.receive(me.next_event());
    if (!m && m.code() != errc::timeout) co_return;
    while (const runtime::time_ns pause = me.handle(m)) {
      auto slept = co_await runtime::sleep_for(std::chrono::nanoseconds(pause));
      if (!slept) co_return;
    }
  }
}

}  // namespace

coordinator_address spawn_coordinator(services& s, coordinator_state& state) {
  auto to = runtime::spawn_actor<received<ack>, received<offer>, received<warmed>, received<report>, decision_due,
                                 received<tuning_request>, received<nack>>(s.actors, coordinate, s, state);
  state.look_again = [to] { static_cast<void>(to.try_send(decision_due{})); };
  state.assigned->on_settled(state.look_again);
  state.assigned->placed({state.declaration.id(), s.net.rank()});
  open_inbox<ack, offer, warmed, report, tuning_request, nack>(s, state.declaration.id(), state.generation,
                                                               part::coordinator, part::participant, to);
  return to;
}

void unbind_coordinator(services& s, const coordinator_state& state) {
  s.mail.unbind(number_of(state.declaration.id(), part::coordinator));
}

}  // namespace parley::actors
