#include <parley/actors/agreement/search_run.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

namespace {
constexpr auto timed_out = static_cast<tuning::row_status>(late_row);
}

bool is_excluded(const std::vector<exclusion>& those, std::size_t candidate) noexcept {
  return std::any_of(those.begin(), those.end(), [&](const exclusion& e) { return e.candidate == candidate; });
}

std::string_view status_of(exclusion::reason kind) noexcept {
  switch (kind) {
    case exclusion::reason::failed: return "quarantined";
    case exclusion::reason::same: return "same";
    case exclusion::reason::hopeless: return "hopeless";
    case exclusion::reason::constraint:
    case exclusion::reason::unmet: break;
  }
  return "excluded";
}

search_run::search_run(const search_terms& terms, const std::vector<exclusion>& excluded, trial_book& book)
    : terms_(terms), excluded_(excluded), book_(book), plan_(terms.candidates.size(), terms.plan) {
  book_ = trial_book(terms.candidates.size());
  for (const exclusion& e : excluded_) plan_.drop(e.candidate);
}

// ---- what is tried ----------------------------------------------------------------------------------------------------

std::optional<tuning::trial> search_run::due() const noexcept {
  if (collecting_) return std::nullopt;
  if (const tuning::trial* const upcoming = plan_.upcoming()) return *upcoming;
  if (again_.empty()) return std::nullopt;
  return tuning::trial{again_.back(), tuning::trial_kind::timed, plan_.round()};
}

choice search_run::take(const std::optional<tuning::trial>& due, const asked_call& call, std::uint64_t otherwise) {
  if (!due) {
    collect(call.now);
    return {otherwise, stamp_flags::flush};
  }
  if (!plan_.next()) again_.pop_back();
  // A warm-up is also timed: the time does not count for its candidate, but the cost counts.
  stamp_flags flags = stamp_flags::timed;
  ++made_;
  ++unsettled_;
  trial_of_batch_ = trials_.size();
  trials_.push_back({call.tag, call.invocation, call.order, due->candidate, due->what, call.order});
  note_place(call, *trial_of_batch_);
  if (plan_.upcoming() == nullptr && again_.empty()) {
    flags = flags | stamp_flags::flush;
    collect(call.now);
  }
  return {terms_.candidates[due->candidate], flags};
}

void search_run::collect(time_ns now) noexcept {
  collecting_ = true;
  collecting_since_ns_ = now;
}

void search_run::note_place(const asked_call& call, std::size_t of) {
  const bool first = places_.try_emplace({call.tag, call.invocation}, place{of, call.order}).second;
  runtime::invariant(first, {"S1", "an invocation is assigned once", terms_.here});
  const trial& t = trials_[of];
  const bool counts = t.kind == tuning::trial_kind::timed;
  (counts ? book_.repetitions : book_.warm_ups)[t.candidate].push_back(call.order);
}

std::uint64_t search_run::digest_of_batch() const noexcept {
  if (!trial_of_batch_ || trials_[*trial_of_batch_].settled) return 0;
  const std::size_t candidate = trials_[*trial_of_batch_].candidate;
  return is_excluded(excluded_, candidate) ? 0 : terms_.candidates[candidate];
}

choice search_run::join(const asked_call& call) {
  trial& t = trials_[*trial_of_batch_];
  note_place(call, *trial_of_batch_);
  t.last_order = call.order;
  longest_batch_ = std::max(longest_batch_, ++t.messages);
  book_.joined.push_back(call.order);
  // It is not known which message is the last of a batch.
  const bool last = collecting_ && *trial_of_batch_ + 1 == trials_.size();
  return {terms_.candidates[t.candidate], last ? stamp_flags::timed | stamp_flags::flush : stamp_flags::timed};
}

bool search_run::lacked_too_often(std::size_t candidate, unmet_need what, time_ns now) {
  auto its =
      std::find_if(shortages_.begin(), shortages_.end(), [&](const shortage& s) { return s.candidate == candidate; });
  if (its == shortages_.end()) its = shortages_.insert(its, shortage{.candidate = candidate, .since_ns = now});
  ++its->lacked;
  const bool late = may_come(what) || what == unmet_need::word_of_pieces;
  const bool of_layout = what == unmet_need::pieces || what == unmet_need::like_pieces;
  return its->lacked >= (of_layout ? most_without_pieces : most_lacking) && its->lacked > least_share * its->had &&
         (!late || now - its->since_ns >= longest_late_ns);
}

void search_run::note_had(std::size_t candidate) noexcept {
  for (shortage& s : shortages_) {
    if (s.candidate == candidate) ++s.had;
  }
}

void search_run::drop(std::size_t candidate) {
  std::erase(again_, candidate);
  if (!plan_.finished()) plan_.drop(candidate);
}

// ---- what is reported -------------------------------------------------------------------------------------------------

bool search_run::add_row(rank_id participant, const wire_row& r) {
  const auto at = places_.find({r.tag, r.invocation});
  if (at == places_.end()) return false;
  trial& t = trials_[at->second.trial];
  const auto& ours = terms_.participants;
  if (std::find(ours.begin(), ours.end(), participant) == ours.end()) return true;
  auto& rows = book_.rows[t.candidate];
  if (!note_report(at->second, participant, rows)) return true;
  if (r.status == cancelled_row) {
    cancel(t);
    return true;
  }
  if (t.settled && t.reports == 0) return true;  // another participant has cancelled it
  // A row of another config counts as a failure: it is no row of this candidate (S6).
  if (r.digest != 0 && r.digest != terms_.candidates[t.candidate])
    runtime::blame({"S2", "a participant runs what its invocation was assigned", terms_.here}, participant);
  const auto status = keep_row(rows, participant, at->second.order, r);
  // A member that received a poison has no row, so one failure settles a trial.
  ++t.reports;
  const bool all_told = t.reports == ours.size() * t.messages;
  if (t.settled || (!all_told && status != tuning::row_status::failed)) return true;
  t.settled = true;
  --unsettled_;
  return true;
}

// True if this is the participant's first report of that message.
bool search_run::note_report(place& at, rank_id participant, const std::vector<tuning::row>& rows) const noexcept {
  const auto& ours = terms_.participants;
  const auto number = std::find(ours.begin(), ours.end(), participant) - ours.begin();
  if (number >= 64) return !is_reported(rows, participant, at.order);
  const std::uint64_t bit = std::uint64_t{1} << static_cast<unsigned>(number);
  return (std::exchange(at.reported_by, at.reported_by | bit) & bit) == 0;
}

// If a caller gave up, the config is not to blame. The trial does not count and is made again, unless too many were cancelled.
void search_run::cancel(trial& t) {
  if (!t.settled) --unsettled_;
  const bool first = !t.settled || t.reports != 0;
  t.settled = true;
  t.reports = 0;
  std::erase_if(book_.rows[t.candidate], [&](const tuning::row& r) { return t.has(r.invocation); });
  forget(t);
  const bool again = t.kind == tuning::trial_kind::timed && !is_excluded(excluded_, t.candidate);
  if (first && again && book_.cancelled < 2 * terms_.candidates.size()) {
    ++book_.cancelled;
    again_.push_back(t.candidate);
  }
}

void search_run::forget(const trial& t) {
  const auto is_of_it = [&](std::uint64_t order) { return t.has(order); };
  std::erase_if(book_.repetitions[t.candidate], is_of_it);
  std::erase_if(book_.warm_ups[t.candidate], is_of_it);
}

bool search_run::withdraw(std::uint32_t tag, std::uint64_t invocation) {
  const auto at = places_.find({tag, invocation});
  if (at == places_.end()) return false;
  trial& t = trials_[at->second.trial];
  if (t.settled) return true;
  t.settled = true;
  --unsettled_;
  --made_;
  forget(t);
  if (t.kind == tuning::trial_kind::timed && !is_excluded(excluded_, t.candidate)) again_.push_back(t.candidate);
  places_.erase(at);
  collecting_ = false;
  return true;
}

// ---- the end of a round -----------------------------------------------------------------------------------------------

bool search_run::is_round_over(time_ns now) noexcept {
  if (!collecting_) return false;
  if (unsettled_ == 0) return true;
  if (now - collecting_since_ns_ < rows_missing_after_ns) return false;
  const auto is_late = [&](const auto& one) {
    return !trials_[one.second.trial].settled && !terms_.begun(one.first.first, one.first.second);
  };
  if (!terms_.begun || std::none_of(places_.begin(), places_.end(), is_late)) return true;
  collecting_since_ns_ = now;
  return false;
}

// The rows of a trial that timed out. If the trial failed on another rank, it counts as failed, and there are no such rows.
std::vector<tuning::row> search_run::late_rows_of(const trial& t) const {
  std::vector<tuning::row> late;
  for (const tuning::row& r : book_.rows[t.candidate]) {
    if (!t.has(r.invocation)) continue;
    if (r.status == tuning::row_status::failed) return {};
    if (r.status == timed_out) late.push_back(r);
  }
  return late;
}

// Looks only at this round. Only `end_round` counts earlier rounds.
bool search_run::is_late(std::size_t candidate) const noexcept {
  return std::any_of(trials_.begin(), trials_.end(), [&](const trial& t) {
    return t.candidate == candidate && t.reports != 0 && !late_rows_of(t).empty();
  });
}

bool search_run::has_late_trials() const noexcept {
  return collecting_ && std::any_of(trials_.begin(), trials_.end(), [&](const trial& t) {
           return t.candidate != 0 && !t.settled && t.reports == 0 && is_late(t.candidate);
         });
}

void search_run::cut_short(std::uint64_t from) {
  for (trial& t : trials_) {
    if (t.invocation < from || t.settled) continue;
    const bool enough = is_late(t.candidate) || is_excluded(excluded_, t.candidate);
    t.settled = true;
    t.reports = 0;
    --unsettled_;
    --made_;
    std::erase_if(book_.rows[t.candidate], [&](const tuning::row& r) { return t.has(r.invocation); });
    forget(t);
    places_.erase({t.tag, t.invocation});
    if (!enough && t.kind == tuning::trial_kind::timed) again_.push_back(t.candidate);
  }
}

bool search_run::end_round(const std::function<void(std::size_t candidate, rank_id late)>& fail) {
  for (trial& t : trials_) {
    auto& rows = book_.rows[t.candidate];
    const std::vector<tuning::row> late = late_rows_of(t);
    if (late.empty()) continue;
    // A participant that has begun the trial and has not reported it is still in the trial.
    const bool all_at_it =
        t.reports == terms_.participants.size() * t.messages || (terms_.begun && terms_.begun(t.tag, t.invocation));
    const bool again = std::any_of(rows.begin(), rows.end(),
                                   [&](const tuning::row& r) { return r.status == timed_out && !t.has(r.invocation); });
    if (all_at_it && again && t.candidate != 0) {
      for (tuning::row& r : rows) {
        if (r.status == timed_out) r.status = tuning::row_status::failed;
      }
      fail(t.candidate, late.front().participant);
      continue;
    }
    cancel(t);
    if (all_at_it) rows.insert(rows.end(), late.begin(), late.end());  // kept, so that the next timeout finds them
  }
  trials_.clear();
  trial_of_batch_.reset();
  places_.clear();
  unsettled_ = 0;
  collecting_ = false;
  return again_.empty();  // if not empty, the round continues with its cancelled trials
}

tuning::aggregate search_run::aggregate_of(std::size_t candidate, std::span<const std::uint64_t> invocations,
                                           std::span<const tuning::participant_clock> clocks) const {
  return tuning::aggregate_candidate(book_.rows[candidate], {.digest = terms_.candidates[candidate],
                                                             .participants = terms_.participants,
                                                             .invocations = invocations,
                                                             .clocks = clocks,
                                                             .joined = book_.joined});
}

void search_run::sum_up(std::span<const tuning::participant_clock> clocks) {
  for (std::size_t i = 0; i < book_.aggregates.size(); ++i)
    book_.aggregates[i] = aggregate_of(i, book_.repetitions[i], clocks);
}

double search_run::cost_ns(double instead_ns, std::span<const tuning::participant_clock> clocks) const {
  const auto beyond = [instead_ns](const tuning::aggregate& a) {
    return a.measured() && a.time_ns > instead_ns ? a.time_ns - instead_ns : 0;
  };
  double cost_ns = 0;
  for (std::size_t i = 0; i < book_.aggregates.size(); ++i) {
    cost_ns += beyond(book_.aggregates[i]) * static_cast<double>(book_.repetitions[i].size());
    std::span<const std::uint64_t> rest = book_.warm_ups[i];
    while (!rest.empty()) {
      const auto once = tuning::take_repetition(rest, book_.joined);
      cost_ns += static_cast<double>(once.size()) * beyond(aggregate_of(i, once, clocks));
    }
  }
  return cost_ns;
}

std::string search_run::progress() const {
  std::size_t lacked = 0;
  for (const shortage& s : shortages_) lacked += s.lacked;
  return std::to_string(trials_.size()) + " trials in this round, " + std::to_string(unsettled_) + " unsettled, " +
         std::to_string(book_.cancelled) + " cancelled; " + std::to_string(lacked) +
         " trials could not run when they were due";
}

}  // namespace parley::actors
