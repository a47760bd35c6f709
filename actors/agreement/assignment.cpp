#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/late_row.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace parley::actors {

assignment::assignment(std::uint64_t default_digest, std::string default_id, std::string dtype,
                       std::vector<rank_id> participants, tuning_policy policy, tuning::plan_options plan)
    : default_digest_(default_digest), default_id_(std::move(default_id)), dtype_(std::move(dtype)),
      participants_(std::move(participants)), policy_(policy), plan_(plan) {}

campaign& assignment::find_or_add(std::uint64_t bytes, time_ns now) {
  const tuning::size_bucket bucket = tuning::size_bucket::of(bytes);
  latest_from_bytes_ = bucket.smallest_bytes();
  latest_to_bytes_ = bucket.largest_bytes();
  for (auto& c : campaigns_) {
    if (c->bucket == bucket) return *(latest_ = c.get());
  }
  auto& c = *campaigns_.emplace_back(std::make_unique<campaign>());
  c.bucket = bucket;
  c.key = tuning::parameters_text({.op = {}, .size = bucket, .dtype = dtype_});
  c.digest = default_digest_;
  c.winner = default_id_;
  c.first_ns = now;
  if (opened()) start(c, now);
  if (c.where == campaign::stage::decided && settled_) settled_();
  return *(latest_ = &c);
}

const campaign* assignment::find(std::uint64_t bytes) const noexcept {
  if (const campaign* const latest = latest_for(bytes)) return latest;
  for (const auto& c : campaigns_) {
    if (c->bucket.contains(bytes)) return c.get();
  }
  return nullptr;
}

namespace {
// After a config has failed the default is next.
assignment::choice untimed(campaign& c, std::uint64_t default_digest) noexcept {
  return {std::exchange(c.rest, false) ? default_digest : c.digest, stamp_flags::none};
}
}  // namespace

assignment::choice assignment::choose_undecided(campaign& c, const asked_call& call) {
  const std::uint64_t batch = call.terms.batch;
  if (batch != 0 && batch <= c.batch) return choose_in_batch(c, call);
  c.batch = std::max(c.batch, batch);
  c.trial_of_batch.reset();
  if (c.rest || c.where != campaign::stage::trying) return untimed(c, default_digest_);
  const choice chosen = next_trial(c, call);
  if (batch == 0) c.trial_of_batch.reset();  // the rest of a batch that goes on is not of it
  return chosen;
}

// What a trial of the latest batch runs; 0: it is none, or has ended.
std::uint64_t assignment::trial_digest(const campaign& c) const noexcept {
  if (!c.trial_of_batch || c.outstanding[*c.trial_of_batch].settled) return 0;
  const std::size_t candidate = c.outstanding[*c.trial_of_batch].candidate;
  return is_excluded(c, candidate) ? 0 : candidates_[candidate];
}

// As the first one of its batch: a message alone among others that run another config shows how far it can get ahead of them, and
// not how long it takes. One that comes when a later batch has begun is no trial.
assignment::choice assignment::choose_in_batch(campaign& c, const asked_call& call) {
  const std::uint64_t digest = call.terms.batch == c.batch ? trial_digest(c) : 0;
  if (digest == 0 || c.outstanding[*c.trial_of_batch].messages == most_together) return untimed(c, default_digest_);
  campaign::trial& t = c.outstanding[*c.trial_of_batch];
  c.pending_ns += expected_cost_ns(c, t.candidate);
  note_place(c, call, *c.trial_of_batch);
  t.last_order = order_;
  c.batch_messages = std::max(c.batch_messages, ++t.messages);
  c.joined.push_back(order_);
  // Which one is the last nobody knows.
  const bool last = c.where == campaign::stage::collecting && *c.trial_of_batch + 1 == c.outstanding.size();
  return {digest, last ? stamp_flags::timed | stamp_flags::flush : stamp_flags::timed};
}

void assignment::note_place(campaign& c, const asked_call& call, std::size_t trial) {
  const bool first = c.places.try_emplace({call.tag, call.invocation}, campaign::place{trial, order_}).second;
  runtime::invariant(first, {"S1", "an invocation is assigned once", here_});
  const campaign::trial& t = c.outstanding[trial];
  const bool counts = t.kind == tuning::trial_kind::timed;
  (counts ? c.repetitions : c.warm_ups)[t.candidate].push_back(order_);
}

// The same where some configs cannot run.
assignment::choice assignment::choose_without(campaign& c, const asked_call& call,
                                              std::span<const lacking_config> lacking) {
  const auto find = [lacking](std::uint64_t digest) {
    return std::find_if(lacking.begin(), lacking.end(), [&](const lacking_config& l) { return l.digest == digest; });
  };
  const auto lacks = [&](std::uint64_t digest) { return find(digest) != lacking.end(); };
  choice chosen{c.digest, stamp_flags::none};
  const bool goes_on = call.terms.batch != 0 && call.terms.batch <= c.batch && c.where != campaign::stage::decided;
  const std::size_t due = next_candidate(c);
  if (goes_on && call.terms.batch == c.batch && lacks(trial_digest(c))) {
    c.trial_of_batch.reset();  // the trial was of those that had it
  } else if (!goes_on && c.where == campaign::stage::trying && due < candidates_.size() && lacks(candidates_[due])) {
    const unmet_need what = find(candidates_[due])->what;
    const bool late =
        what == unmet_need::credit_in_time || what == unmet_need::word_in_time || what == unmet_need::word_of_pieces;
    const bool of_layout = what == unmet_need::pieces || what == unmet_need::like_pieces;
    const campaign::shortage& its = note_shortage(c, due, call.now);
    if (its.lacked >= (of_layout ? most_without_pieces : most_lacking) && its.lacked > least_share * its.had &&
        (!late || call.now - its.since_ns >= longest_late_ns)) {  // the others go on
      exclude(c, due, campaign::exclusion::reason::unmet, why_it_lacked(what));
      if (c.incumbent == due) fall_back(c);
    }
  } else if (c.where != campaign::stage::decided) {
    chosen = choose_undecided(c, call);
  }
  if (!lacks(chosen.digest)) return chosen;
  if (c.where == campaign::stage::decided) ++c.ran_others[static_cast<std::size_t>(find(chosen.digest)->what)];
  chosen.digest = candidates_.empty() ? default_digest_ : candidates_[best_without(c, lacking)];
  return chosen;
}

std::size_t assignment::best_without(const campaign& c, std::span<const lacking_config> lacking) const noexcept {
  const auto lacks = [lacking](std::uint64_t digest) {
    return std::any_of(lacking.begin(), lacking.end(), [&](const lacking_config& l) { return l.digest == digest; });
  };
  std::size_t best = 0;
  double best_ns = tuning::infinite_ns;
  for (std::size_t i = 0; i < c.aggregates.size(); ++i) {
    if (lacks(candidates_[i]) || is_excluded(c, i) || !c.aggregates[i].measured() || c.aggregates[i].time_ns >= best_ns)
      continue;
    best = i;
    best_ns = c.aggregates[i].time_ns;
  }
  return best;
}

time_ns assignment::worth_waiting_ns(const campaign& c, std::span<const lacking_config> lacking) const noexcept {
  if (c.where != campaign::stage::decided) return 0;
  const double own_ns = c.decided_time_ns != 0 ? c.decided_time_ns : c.remembered_time_ns;
  if (!(own_ns > 0)) return 0;
  const std::size_t other = best_without(c, lacking);
  double other_ns = 2 * own_ns;
  if (other < c.aggregates.size() && c.aggregates[other].measured()) {
    other_ns = c.aggregates[other].time_ns;
  } else if (other == 0 && c.fastest_default_ns > 0) {
    other_ns = c.fastest_default_ns;
  }
  const double worth_ns = std::clamp(other_ns - own_ns, 0.0, static_cast<double>(longest_wait_ns));
  return static_cast<time_ns>(worth_ns);
}

std::string_view name(unmet_need what) noexcept {
  switch (what) {
    case unmet_need::payload: return "no payload";
    case unmet_need::memory_of_receiver: return "no memory registered by the receiver";
    case unmet_need::credit_in_time: return "no credit in time";
    case unmet_need::memory_of_sender: return "payload not in memory registered by the sender";
    case unmet_need::word_in_time: return "no word in time that the receiver knows the sender's memory";
    case unmet_need::pieces: return "payload not in pieces";
    case unmet_need::like_pieces: return "other pieces at the receiver";
    case unmet_need::word_of_pieces: return "no word in time of the receiver's pieces";
  }
  return "unknown";
}

std::vector<std::pair<std::string_view, std::uint64_t>> campaign::runs_of_others() const {
  std::vector<std::pair<std::string_view, std::uint64_t>> some;
  for (std::size_t i = 0; i < unmet_needs; ++i) {
    if (ran_others[i] != 0) some.emplace_back(name(static_cast<unmet_need>(i)), ran_others[i]);
  }
  return some;
}

const campaign::shortage& assignment::note_shortage(campaign& c, std::size_t candidate, time_ns now) {
  for (campaign::shortage& s : c.shortages) {
    if (s.candidate != candidate) continue;
    ++s.lacked;
    return s;
  }
  return c.shortages.emplace_back(campaign::shortage{.candidate = candidate, .lacked = 1, .since_ns = now});
}

// Of an edge, whose participants are its sender and its receiver.
std::string assignment::why_it_lacked(unmet_need what) const {
  const std::string sender = "rank " + std::to_string(participants_.front());
  const std::string receiver = "rank " + std::to_string(participants_.back());
  switch (what) {
    case unmet_need::payload: return "messages without a payload have nothing for it to move";
    case unmet_need::memory_of_receiver:
      return receiver +
             " has registered no memory that it could write into; register what receives go into there, before "
             "the first of them";
    case unmet_need::credit_in_time:
      return "message after message was sent before a credit of " + receiver +
             " was here, though that has registered memory; post receives there earlier, into that memory";
    case unmet_need::memory_of_sender:
      return "message after message was not in memory that " + sender + " has registered; register there what is sent";
    case unmet_need::pieces:
      return "messages lie in one piece, or in pieces that are too many or too short to go alone";
    case unmet_need::like_pieces:
      return receiver + " has other pieces than " + sender + " sends; give both sides the same shape and padding";
    case unmet_need::word_of_pieces:
      return "message after message was sent before " + receiver + " had said which pieces it has";
    case unmet_need::word_in_time: break;
  }
  return "message after message was sent before " + receiver + " had said that it knows the memory that " + sender +
         " has registered; register it earlier, and once";
}

// Whose trial is next; none: as many as there are.
std::size_t assignment::next_candidate(const campaign& c) const noexcept {
  if (c.where != campaign::stage::trying) return candidates_.size();
  if (const tuning::planned_trial* const upcoming = c.planner->upcoming()) return upcoming->candidate;
  return c.again.empty() ? candidates_.size() : c.again.back();
}

const campaign& assignment::open_key(std::uint64_t bytes, time_ns now) {
  first_ns_ = std::min(first_ns_, now);
  return campaign_of(bytes, now);
}

void assignment::note_default(std::uint64_t bytes, time_ns took_ns) noexcept {
  if (latest_ == nullptr || !latest_->bucket.contains(bytes)) return;
  double& fastest = latest_->fastest_default_ns;
  const auto took = static_cast<double>(took_ns);
  fastest = fastest == 0 ? took : std::min(fastest, took);
}

double assignment::expected_cost_ns(const campaign& c, std::size_t candidate) const noexcept {
  if (candidate == c.incumbent) return 0;
  const tuning::aggregate& now_running = c.aggregates[c.incumbent];
  const double known_before = c.decided_time_ns != 0 ? c.decided_time_ns : c.fastest_default_ns;
  const double base = now_running.measured() ? now_running.time_ns : known_before;
  if (c.aggregates[candidate].measured()) return std::max(0.0, c.aggregates[candidate].time_ns - base);
  return base / 2;  // nothing is known of it yet
}

// Ranks may report any times. One that no clock can show says nothing: trials would never be paid for otherwise.
static std::int64_t whole_ns(double ns) noexcept {
  constexpr double most = 9e18;
  return std::abs(ns) < most ? static_cast<std::int64_t>(ns) : 0;
}

bool assignment::affordable(const campaign& c, double expected_ns, time_ns now) const noexcept {
  auto spent_ns = static_cast<double>(control_ns_);
  for (const auto& each : campaigns_) spent_ns += each->cost_ns + each->pending_ns;
  return c.planner->may_continue(whole_ns(spent_ns), now - first_ns_, whole_ns(expected_ns));
}

assignment::choice assignment::next_trial(campaign& c, const asked_call& call) {
  const tuning::planned_trial* upcoming = c.planner->upcoming();
  std::optional<tuning::planned_trial> trial;
  if (upcoming != nullptr) {
    trial = *upcoming;
  } else if (!c.again.empty()) {
    trial = tuning::planned_trial{c.again.back(), tuning::trial_kind::timed, c.planner->round()};
  }
  for (campaign::shortage& s : c.shortages) {
    if (trial && s.candidate == trial->candidate) ++s.had;
  }
  const double expected_ns = trial ? expected_cost_ns(c, trial->candidate) : 0;
  // A batch is taken to be as long as the longest so far.
  const double in_all_ns = expected_ns * static_cast<double>(call.terms.batch == 0 ? 1 : c.batch_messages);
  if (call.terms.pace == pacing::within_budget && !affordable(c, in_all_ns, call.now))
    return {c.digest, stamp_flags::none};
  c.pending_ns += expected_ns;
  if (upcoming != nullptr) {
    static_cast<void>(c.planner->next());
  } else if (!c.again.empty()) {
    c.again.pop_back();
  }
  if (!trial) {  // what was left of the round has been quarantined
    collect(c, call.now);
    return {c.digest, stamp_flags::flush};
  }
  // A warm-up is timed, too: it says nothing about its candidate, but has its cost.
  stamp_flags flags = stamp_flags::timed;
  ++c.trials;
  ++c.unsettled;
  c.trial_of_batch = c.outstanding.size();
  c.outstanding.push_back({call.tag, call.invocation, order_, trial->candidate, trial->kind, order_});
  note_place(c, call, *c.trial_of_batch);
  if (c.planner->upcoming() == nullptr && c.again.empty()) {
    flags = flags | stamp_flags::flush;
    collect(c, call.now);
  }
  return {candidates_[trial->candidate], flags};
}

void assignment::collect(campaign& c, time_ns now) {
  c.where = campaign::stage::collecting;
  c.collecting_since_ns = now;
}

void assignment::open(std::vector<std::uint64_t> candidates, std::vector<std::string> ids,
                      std::vector<remembered_best> remembered, time_ns now, std::uint64_t machines,
                      std::vector<std::uint64_t> mixtures) {
  const std::size_t before = candidates_.size();
  candidates_ = std::move(candidates);
  ids_ = std::move(ids);
  mixtures_ = std::move(mixtures);
  mixtures_.resize(candidates_.size());
  if (before == 0) {
    remembered_ = std::move(remembered);
    machines_ = machines;
  }
  for (auto& c : campaigns_) start(*c, now);
  if (before == 0 || before == candidates_.size() || policy_ == tuning_policy::off) return;
  std::string added = "now its rehearsal has succeeded: ";
  for (std::size_t i = before; i < ids_.size(); ++i) added += (i == before ? "" : ", ") + ids_[i];
  for (auto& c : campaigns_) {
    if (c->where != campaign::stage::decided) {
      c->retry_at_ns = now;  // once it is
    } else if (!c->from_results()) {
      ++c->search;
      c->search_reason = added;
      begin_search(*c, now);
    }
  }
}

void assignment::forbid_trials(std::string why) {
  policy_ = tuning_policy::off;
  policy_why_ = std::move(why);
}

void assignment::leave_out(const std::vector<std::string>& ids) {
  constexpr std::size_t most_named = 4;
  left_out_.clear();
  for (std::size_t i = 0; i < std::min(ids.size(), most_named); ++i) left_out_ += (i == 0 ? "" : ", ") + ids[i];
  if (ids.size() > most_named) left_out_ += " and " + std::to_string(ids.size() - most_named) + " more";
}

campaign* assignment::next_to_announce() noexcept {
  for (auto& c : campaigns_) {
    if (c->where == campaign::stage::decided && !c->announced) return c.get();
  }
  return nullptr;
}

void assignment::start(campaign& c, time_ns now) {
  for (const candidate_limit& l : limits_) {
    const auto at = std::find(candidates_.begin(), candidates_.end(), l.digest);
    if (at == candidates_.begin() || at == candidates_.end() || c.bucket.largest_bytes() <= l.largest_bytes) continue;
    exclude(c, static_cast<std::size_t>(at - candidates_.begin()), campaign::exclusion::reason::constraint, l.why);
  }
  leave_out_equals(c);
  if (c.where != campaign::stage::waiting) return;  // it has begun, with fewer candidates
  // What may not run for this key is as unknown as what nobody has.
  std::vector<std::string> allowed;
  for (std::size_t i = 0; i < ids_.size(); ++i) allowed.push_back(tuning::name_in_file(ids_[i], mixtures_[i]));
  for (const campaign::exclusion& e : c.excluded) {
    if (e.kind != campaign::exclusion::reason::same) allowed[e.candidate].clear();
  }
  tuning::recalled known = tuning::recall(c.key, remembered_, allowed, machines_);
  if (known.candidate) {
    for (const campaign::exclusion& e : c.excluded) {
      if (e.candidate == *known.candidate) known.candidate = e.same_as;
    }
    c.proposer = known.proposer;
    c.remembered_time_ns = known.time_ms * 1e6;
    c.remembered_for = known.machines;
    settle(c, *known.candidate, known.pinned ? decision_source::pin : decision_source::results,
           std::move(known.sentence), now);
    if (known.thin) refine_later(c, now);
    return;
  }
  c.missed = std::move(known.sentence);
  if (policy_ == tuning_policy::off || candidates_.size() < 2) {
    const bool off = policy_ == tuning_policy::off;
    const std::string& said = off ? policy_why_ : no_choice_;
    const char* const usual = off ? "tuning is switched off" : "nothing but the default may run";
    settle(c, 0, off ? decision_source::tuning_off : decision_source::only_default, said.empty() ? usual : said, now);
    return;
  }
  begin_search(c, now);
}

// At both ends of the key's sizes; in between it is no other. What ranks run of a mixture is not known here.
std::string assignment::shape_of(const campaign& c, std::size_t candidate) const {
  if (mixtures_[candidate] != 0) return {};
  const std::string smallest = shape_(candidates_[candidate], c.bucket.smallest_bytes());
  const std::string largest = shape_(candidates_[candidate], c.bucket.largest_bytes());
  return smallest.empty() || largest.empty() ? std::string() : smallest + "; " + largest;
}

// Times could only tell them apart by noise.
void assignment::leave_out_equals(campaign& c) {
  if (!shape_) return;
  std::map<std::string, std::size_t> first;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (is_excluded(c, i)) continue;
    const std::string shape = shape_of(c, i);
    if (shape.empty()) continue;
    const auto [like, is_first] = first.try_emplace(shape, i);
    if (is_first || c.incumbent == i) continue;
    exclude(c, i, campaign::exclusion::reason::same, "for these sizes it is what " + ids_[like->second] + " is");
    c.excluded.back().same_as = like->second;
    c.excluded.back().told = true;  // nobody has to do anything about it
  }
}

bool assignment::is_reported(const std::vector<tuning::row>& rows, rank_id participant, std::uint64_t order) {
  return std::any_of(rows.rbegin(), rows.rend(), [&](const tuning::row& seen) {
    return seen.participant == participant && seen.invocation == order;
  });
}

// Whether this is the first that `participant` says of it.
bool assignment::note_report(campaign::place& place, rank_id participant, const std::vector<tuning::row>& rows) const {
  const auto at = std::find(participants_.begin(), participants_.end(), participant) - participants_.begin();
  if (at >= 64) return !is_reported(rows, participant, place.order);
  const std::uint64_t bit = std::uint64_t{1} << static_cast<unsigned>(at);
  return (std::exchange(place.reported_by, place.reported_by | bit) & bit) == 0;
}

namespace {
constexpr auto timed_out = static_cast<tuning::row_status>(late_row);
// Past that no clock shows anything, and differences of differences would not fit.
constexpr time_ns farthest_ns = time_ns{1} << 60U;
bool possible(time_ns t) noexcept { return t > -farthest_ns && t < farthest_ns; }
}  // namespace

// What no clock can have shown is no measurement.
tuning::row_status assignment::keep_row(std::vector<tuning::row>& rows, rank_id participant, std::uint64_t order,
                                        const wire_row& r) {
  const bool measured = possible(r.start_ns) && possible(r.end_ns) && possible(r.previous_end_ns);
  if (!measured) {
    rows.push_back({participant, order, r.digest, 0, 0, tuning::row_status::failed});
    return tuning::row_status::failed;
  }
  const bool known_status = r.status <= 2 || r.status == late_row;
  const auto status = known_status ? static_cast<tuning::row_status>(r.status) : tuning::row_status::failed;
  rows.push_back({participant, order, r.digest, r.start_ns, r.end_ns, status, r.previous_end_ns, r.worked_ns});
  return status;
}

void assignment::add_row(rank_id participant, const wire_row& r) {
  for (auto& c : campaigns_) {
    if (c->drift && add_sample(*c, participant, r)) return;
    const auto place = c->places.find({r.tag, r.invocation});
    if (place == c->places.end()) continue;
    const std::uint64_t order = place->second.order;
    campaign::trial& t = c->outstanding[place->second.trial];
    if (std::find(participants_.begin(), participants_.end(), participant) == participants_.end()) return;
    auto& rows = c->rows[t.candidate];
    if (!note_report(place->second, participant, rows)) return;
    if (r.status == cancelled_row) {
      cancel_trial(*c, t);
      return;
    }
    if (t.settled && t.reports == 0) return;  // it was cancelled on another side
    // It counts as a failure: it is no row of this candidate (S6).
    if (r.digest != 0 && r.digest != candidates_[t.candidate])
      runtime::blame({"S2", "a participant runs what its invocation was assigned", here_}, participant);
    const auto status = keep_row(rows, participant, order, r);
    // Who got a poison has no row, so one failure settles a trial.
    ++t.reports;
    const bool all_told = t.reports == participants_.size() * t.messages;
    if (t.settled || (!all_told && status != tuning::row_status::failed)) return;
    t.settled = true;
    --c->unsettled;
    return;
  }
}

// A caller who gave up says nothing about the config: the trial never was, and is made again, unless that goes on for ever.
void assignment::cancel_trial(campaign& c, campaign::trial& t) {
  if (!t.settled) --c.unsettled;
  const bool first = !t.settled || t.reports != 0;
  t.settled = true;
  t.reports = 0;
  std::erase_if(c.rows[t.candidate], [&](const tuning::row& r) { return t.has(r.invocation); });
  forget_trial(c, t);
  const bool again = t.kind == tuning::trial_kind::timed && !is_excluded(c, t.candidate);
  if (first && again && c.cancelled < 2 * candidates_.size()) {
    ++c.cancelled;
    c.again.push_back(t.candidate);
  }
}

void assignment::forget_trial(campaign& c, const campaign::trial& t) {
  const auto is_of_it = [&](std::uint64_t order) { return t.has(order); };
  std::erase_if(c.repetitions[t.candidate], is_of_it);
  std::erase_if(c.warm_ups[t.candidate], is_of_it);
}

void assignment::withdraw(std::uint32_t tag, std::uint64_t invocation) {
  for (auto& c : campaigns_) {
    if (c->drift && withdraw_sample(*c, tag, invocation)) return;
    const auto place = c->places.find({tag, invocation});
    if (place == c->places.end()) continue;
    campaign::trial& t = c->outstanding[place->second.trial];
    if (t.settled) return;
    t.settled = true;
    --c->unsettled;
    --c->trials;
    forget_trial(*c, t);
    if (t.kind == tuning::trial_kind::timed && !is_excluded(*c, t.candidate)) c->again.push_back(t.candidate);
    c->places.erase(place);
    if (c->where == campaign::stage::collecting) c->where = campaign::stage::trying;
    return;
  }
}

campaign* assignment::ready_to_judge(time_ns now) noexcept {
  for (auto& c : campaigns_) {
    if (c->where != campaign::stage::collecting) continue;
    if (c->unsettled == 0) return c.get();
    if (now - c->collecting_since_ns < rows_missing_after_ns) continue;
    const auto is_late = [&](const auto& place) {
      return !c->outstanding[place.second.trial].settled && !begun_(place.first.first, place.first.second);
    };
    if (!begun_ || std::none_of(c->places.begin(), c->places.end(), is_late)) return c.get();
    c->collecting_since_ns = now;
  }
  return nullptr;
}

namespace {
// One that failed on another side has failed.
std::vector<tuning::row> late_rows_of(const std::vector<tuning::row>& rows, const campaign::trial& t) {
  std::vector<tuning::row> late;
  for (const tuning::row& r : rows) {
    if (!t.has(r.invocation)) continue;
    if (r.status == tuning::row_status::failed) return {};
    if (r.status == timed_out) late.push_back(r);
  }
  return late;
}
}  // namespace

// In this round: those before it count in `judge` alone.
bool assignment::is_late(const campaign& c, std::size_t candidate) noexcept {
  return std::any_of(c.outstanding.begin(), c.outstanding.end(), [&](const campaign::trial& t) {
    return t.candidate == candidate && t.reports != 0 && !late_rows_of(c.rows[candidate], t).empty();
  });
}

bool assignment::has_late_trials(std::uint64_t bytes) const noexcept {
  const campaign* const c = find(bytes);
  if (c == nullptr || c->where != campaign::stage::collecting) return false;
  return std::any_of(c->outstanding.begin(), c->outstanding.end(), [&](const campaign::trial& t) {
    return t.candidate != 0 && !t.settled && t.reports == 0 && is_late(*c, t.candidate);
  });
}

void assignment::cut_short(std::uint64_t bytes, std::uint64_t from) {
  const auto at = std::find_if(campaigns_.begin(), campaigns_.end(),
                               [&](const auto& each) { return each->bucket.contains(bytes); });
  if (at == campaigns_.end()) return;
  campaign& c = **at;
  for (campaign::trial& t : c.outstanding) {
    if (t.invocation < from || t.settled) continue;
    const bool enough = is_late(c, t.candidate) || is_excluded(c, t.candidate);
    t.settled = true;
    t.reports = 0;
    --c.unsettled;
    --c.trials;
    std::erase_if(c.rows[t.candidate], [&](const tuning::row& r) { return t.has(r.invocation); });
    forget_trial(c, t);
    c.places.erase({t.tag, t.invocation});
    if (!enough && t.kind == tuning::trial_kind::timed) c.again.push_back(t.candidate);
  }
}

void assignment::wait_longer(std::uint64_t bytes, time_ns now) noexcept {
  for (auto& c : campaigns_) {
    if (c->where == campaign::stage::collecting && c->bucket.contains(bytes)) c->collecting_since_ns = now;
  }
}

time_ns assignment::next_give_up() const noexcept {
  time_ns earliest = runtime::never;
  for (const auto& c : campaigns_) {
    if (c->where == campaign::stage::collecting)
      earliest = std::min(earliest, c->collecting_since_ns + rows_missing_after_ns);
    if (c->where == campaign::stage::decided) earliest = std::min(earliest, c->retry_at_ns);
  }
  return earliest;
}

void assignment::judge(campaign& c, time_ns now, std::span<const tuning::participant_clock> clocks) {
  // Who computes meanwhile, or is stopped, says nothing about the config: one whose trial timed out with all at it is out at the
  // second time.
  for (campaign::trial& t : c.outstanding) {
    auto& rows = c.rows[t.candidate];
    const std::vector<tuning::row> late = late_rows_of(rows, t);
    if (late.empty()) continue;
    // Who has begun it and says nothing is still at it.
    const bool all_at_it = t.reports == participants_.size() * t.messages || (begun_ && begun_(t.tag, t.invocation));
    const bool again = std::any_of(rows.begin(), rows.end(),
                                   [&](const tuning::row& r) { return r.status == timed_out && !t.has(r.invocation); });
    if (all_at_it && again && t.candidate != 0) {
      for (tuning::row& r : rows) {
        if (r.status == timed_out) r.status = tuning::row_status::failed;
      }
      quarantine(c.bucket.largest_bytes(), candidates_[t.candidate], now,
                 "for the second time its trial did not end in time on rank " +
                     std::to_string(late.front().participant) + ", with all ranks at it");
      continue;
    }
    cancel_trial(c, t);
    if (all_at_it) rows.insert(rows.end(), late.begin(), late.end());  // kept to be counted
  }
  c.outstanding.clear();
  c.trial_of_batch.reset();
  c.places.clear();
  c.unsettled = 0;
  if (!c.again.empty()) {  // the round goes on with what was cancelled in it
    c.where = campaign::stage::trying;
    return;
  }
  for (std::size_t i = 0; i < c.aggregates.size(); ++i) {  // what was added since is not of this search
    c.aggregates[i] = tuning::aggregate_candidate(c.rows[i], {.digest = candidates_[i],
                                                              .participants = participants_,
                                                              .invocations = c.repetitions[i],
                                                              .clocks = clocks,
                                                              .joined = c.joined});
  }
  // Whatever participants report, trials cannot have cost more than the time in which they were made.
  c.cost_ns = c.earlier_cost_ns + std::min(cost_of_trials_ns(c, clocks), static_cast<double>(now - c.search_began_ns));
  c.pending_ns = 0;
  c.planner->complete_round(c.aggregates);
  if (!c.planner->finished()) {
    c.where = campaign::stage::trying;
    return;
  }
  --active_;
  std::vector<std::size_t> excluded;
  for (const campaign::exclusion& e : c.excluded) excluded.push_back(e.candidate);
  const tuning::decision d =
      tuning::decide(c.aggregates, {.current = c.incumbent, .excluded = excluded, .names = ids_});
  const bool kept = d.reason == tuning::decision_reason::nothing_measured;
  const bool measured = c.aggregates[d.winner].measured();
  const bool alone =
      d.reason == tuning::decision_reason::only_default;  // all others have been excluded since: it needs no rows
  runtime::invariant(kept || alone || measured, {"S6", "only complete rows decide", here_});
  const decision_source source = measured ? decision_source::trials : decision_source::only_default;
  settle(c, d.winner, kept ? source_of_kept(c) : source, d.sentence, now);
  if (!kept) c.confidence = d.confidence;
  if (c.asked_again) {
    c.retry_at_ns = now;
  } else if (kept) {
    retry_later(c, now);
  }
}

double assignment::cost_of_trials_ns(const campaign& c, std::span<const tuning::participant_clock> clocks) const {
  const double instead_ns = trials_are_extra_ ? 0 : c.aggregates[c.incumbent].time_ns;
  const auto beyond = [instead_ns](const tuning::aggregate& a) {
    return a.measured() && a.time_ns > instead_ns ? a.time_ns - instead_ns : 0;
  };
  double cost_ns = 0;
  for (std::size_t i = 0; i < c.aggregates.size(); ++i) {
    cost_ns += beyond(c.aggregates[i]) * static_cast<double>(c.repetitions[i].size());
    std::span<const std::uint64_t> rest = c.warm_ups[i];
    while (!rest.empty()) {
      const auto once = tuning::take_repetition(rest, c.joined);
      cost_ns += static_cast<double>(once.size()) *
                 beyond(tuning::aggregate_candidate(c.rows[i], {.digest = candidates_[i],
                                                                .participants = participants_,
                                                                .invocations = once,
                                                                .clocks = clocks,
                                                                .joined = c.joined}));
    }
  }
  return cost_ns;
}

void assignment::settle(campaign& c, std::size_t winner, decision_source source, std::string why, time_ns now) {
  runtime::invariant(winner < candidates_.size() && (winner == 0 || !is_excluded(c, winner)),
                     {"S4", "a decision is one of the candidates that may run", here_});
  c.where = campaign::stage::decided;
  c.announced = false;
  c.digest = candidates_[winner];
  c.winner = ids_[winner];
  c.source = source;
  c.why = std::move(why);
  if (!c.missed.empty()) c.why += "; of results files: " + c.missed;
  if (!left_out_.empty()) c.why += "; not tried, for their rehearsals failed: " + left_out_;
  c.decided_ns = now;
  c.ran_others = {};
  c.invocations_before = c.invocations;
  c.incumbent = winner;
  c.decided_time_ns = c.aggregates.empty() || !c.aggregates[winner].measured() ? 0 : c.aggregates[winner].time_ns;
  if (c.search == 1) c.invocations_to_agreement = c.invocations;
  for (auto& of_candidate : c.rows) of_candidate.shrink_to_fit();
  c.planner.reset();
  free_all_of(c.outstanding);
  c.trial_of_batch.reset();
  free_all_of(c.places);
  c.unsettled = 0;
  watch(c);
}

}  // namespace parley::actors
