/// The choice of the config for an invocation: a candidate that is due, the default, or the replacement of a config that lacks something.
#include <parley/actors/agreement/search.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

namespace parley::actors {

choice search::choose_rarely(const asked_call& call, std::span<const lacking_config> lacking) {
  if (!lacking.empty()) return choose_without(call, lacking);
  return decided_ ? choose_sample(call) : choose_undecided(call);
}

choice search::choose_undecided(const asked_call& call) {
  const std::uint64_t batch = call.terms.batch;
  if (batch != 0 && batch <= batch_) return choose_in_batch(call);
  batch_ = std::max(batch_, batch);
  if (run_) run_->leave_batch();
  if (rest_ || !run_ || run_->collecting()) return untimed();
  const choice chosen = next_trial(call);
  if (batch == 0) run_->leave_batch();  // later messages of a batch in progress do not join this trial
  return chosen;
}

// After a config has failed, the next invocation runs the default.
choice search::untimed() noexcept {
  return {std::exchange(rest_, false) ? terms_.default_digest : chosen_.digest, stamp_flags::none};
}

// A message runs the config of the first message of its batch. Among messages of another config, its time would show how far it can get
// ahead of them, and not how long it takes. A message that is sent after a later batch has begun is no trial.
choice search::choose_in_batch(const asked_call& call) {
  const bool is_trial = run_ && call.terms.batch == batch_ && run_->digest_of_batch() != 0;
  if (!is_trial || !run_->batch_has_room()) return untimed();
  account_.pending_ns += expected_cost_ns(run_->candidate_of_batch());
  return run_->join(call);
}

choice search::next_trial(const asked_call& call) {
  const auto due = run_->due();
  if (due) run_->note_had(due->candidate);
  const double expected_ns = due ? expected_cost_ns(due->candidate) : 0;
  const double in_all_ns = expected_ns * static_cast<double>(call.terms.batch == 0 ? 1 : run_->longest_batch());
  if (call.terms.pace == pacing::within_budget && !affordable(in_all_ns, call.now))
    return {chosen_.digest, stamp_flags::none};
  account_.pending_ns += expected_ns;
  return run_->take(due, call, chosen_.digest);
}

choice search::choose_sample(const asked_call& call) {
  const choice plain{chosen_.digest, stamp_flags::none};
  const std::uint64_t batch = call.terms.batch;
  if (batch != 0 && batch < batch_) return plain;  // a later batch has begun
  const bool goes_on = batch != 0 && batch == std::exchange(batch_, std::max(batch_, batch));
  switch (drift_->sample(call, goes_on)) {
    case drift_watch::timing::none: return plain;
    case drift_watch::timing::later: watch_later(); return plain;
    case drift_watch::timing::timed: return {chosen_.digest, stamp_flags::timed};
    case drift_watch::timing::last: return {chosen_.digest, stamp_flags::timed | stamp_flags::flush};
  }
  return plain;
}

// ---- what lacks something ---------------------------------------------------------------------------------------------

namespace {
const lacking_config* find(std::span<const lacking_config> lacking, std::uint64_t digest) noexcept {
  const auto at =
      std::find_if(lacking.begin(), lacking.end(), [&](const lacking_config& l) { return l.digest == digest; });
  return at == lacking.end() ? nullptr : &*at;
}
}  // namespace

choice search::choose_without(const asked_call& call, std::span<const lacking_config> lacking) {
  choice chosen{chosen_.digest, stamp_flags::none};
  const std::uint64_t batch = call.terms.batch;
  const bool goes_on = batch != 0 && batch <= batch_ && !decided_;
  const auto due = run_ ? run_->due() : std::nullopt;
  const lacking_config* const due_lacks = due ? find(lacking, terms_.candidates[due->candidate]) : nullptr;
  if (goes_on && batch == batch_ && run_ && find(lacking, run_->digest_of_batch()) != nullptr) {
    run_->leave_batch();  // this message lacks something that the trial's other messages had
  } else if (!goes_on && due_lacks != nullptr) {
    if (run_->lacked_too_often(due->candidate, due_lacks->what, call.now)) {  // the others continue
      exclude(due->candidate, exclusion::reason::unmet, why_it_lacked(due_lacks->what));
      if (chosen_.candidate == due->candidate) fall_back();
    }
  } else if (!decided_) {
    chosen = choose_undecided(call);
  }
  const lacking_config* const its = find(lacking, chosen.digest);
  if (its == nullptr) return chosen;
  if (decided_) ++ran_others_[static_cast<std::size_t>(its->what)];
  chosen.digest = terms_.candidates.empty() ? terms_.default_digest : terms_.candidates[best_without(lacking)];
  return chosen;
}

// The fastest measured candidate that lacks nothing; the default if there is none.
std::size_t search::best_without(std::span<const lacking_config> lacking) const noexcept {
  std::size_t best = 0;
  double best_ns = tuning::infinite_ns;
  for (std::size_t i = 0; i < aggregates().size(); ++i) {
    const tuning::aggregate& a = aggregates()[i];
    if (find(lacking, terms_.candidates[i]) != nullptr || excludes(i) || !a.measured() || a.time_ns >= best_ns)
      continue;
    best = i;
    best_ns = a.time_ns;
  }
  return best;
}

time_ns search::worth_waiting_ns(std::span<const lacking_config> lacking) const noexcept {
  if (!decided_) return 0;
  const double own_ns = chosen_.time_ns != 0 ? chosen_.time_ns : chosen_.remembered_time_ns;
  if (!(own_ns > 0)) return 0;
  const std::size_t other = best_without(lacking);
  double other_ns = 2 * own_ns;
  if (other < aggregates().size() && aggregates()[other].measured()) {
    other_ns = aggregates()[other].time_ns;
  } else if (other == 0 && fastest_default_ns_ > 0) {
    other_ns = fastest_default_ns_;
  }
  return static_cast<time_ns>(std::clamp(other_ns - own_ns, 0.0, static_cast<double>(longest_wait_ns)));
}

// For an edge, whose participants are its sender and its receiver.
std::string search::why_it_lacked(unmet_need what) const {
  const std::string sender = "rank " + std::to_string(terms_.participants.front());
  const std::string receiver = "rank " + std::to_string(terms_.participants.back());
  switch (what) {
    case unmet_need::payload: return "messages have no payload, so this config has nothing to move";
    case unmet_need::memory_of_receiver:
      return receiver + " has registered no memory for this config to write into; register the buffers of its receives "
                        "before the first receive";
    case unmet_need::credit_in_time:
      return "many messages were sent before a credit from " + receiver +
             " had arrived, although that rank has registered memory; post its receives into that memory earlier";
    case unmet_need::memory_of_sender:
      return "many messages were not in memory that " + sender + " has registered; register the buffers that it sends";
    case unmet_need::pieces: return "messages lie in one piece, or in too many or too short pieces to send one by one";
    case unmet_need::like_pieces:
      return receiver + " receives into other pieces than " + sender +
             " sends; give both sides the same shape and padding";
    case unmet_need::word_of_pieces:
      return "many messages were sent before " + receiver + " had said which pieces it has";
    case unmet_need::word_in_time: break;
  }
  return "many messages were sent before " + receiver + " had confirmed that it knows the memory that " + sender +
         " has registered; register that memory once, and earlier";
}

std::vector<std::pair<std::string_view, std::uint64_t>> search::runs_of_others() const {
  std::vector<std::pair<std::string_view, std::uint64_t>> some;
  for (std::size_t i = 0; i < unmet_needs; ++i) {
    if (ran_others_[i] != 0) some.emplace_back(name(static_cast<unmet_need>(i)), ran_others_[i]);
  }
  return some;
}

// ---- what trials may cost ---------------------------------------------------------------------------------------------

void search::note_default(time_ns took_ns) noexcept {
  const auto took = static_cast<double>(took_ns);
  fastest_default_ns_ = fastest_default_ns_ == 0 ? took : std::min(fastest_default_ns_, took);
}

double search::expected_cost_ns(std::size_t candidate) const noexcept {
  if (candidate == chosen_.candidate) return 0;
  const tuning::aggregate& now_running = aggregates()[chosen_.candidate];
  const double known_before = chosen_.time_ns != 0 ? chosen_.time_ns : fastest_default_ns_;
  const double base = now_running.measured() ? now_running.time_ns : known_before;
  if (aggregates()[candidate].measured()) return std::max(0.0, aggregates()[candidate].time_ns - base);
  const double expected_ns = book_.expected[candidate].time_ns;
  return expected_ns > 0 ? std::max(0.0, expected_ns - base) : base / 2;
}

namespace {
// Ranks may report any times. A time that no clock can show is ignored, because otherwise trials would never be paid for.
std::int64_t whole_ns(double ns) noexcept {
  constexpr double most = 9e18;
  return std::abs(ns) < most ? static_cast<std::int64_t>(ns) : 0;
}
}  // namespace

bool search::affordable(double expected_ns, time_ns now) const noexcept {
  const trial_budget& all = terms_.budget;
  return run_ && run_->plan().may_continue(whole_ns(all.spent_ns()), now - all.began_ns(), whole_ns(expected_ns));
}

}  // namespace parley::actors
