/// The life of a search: how it begins, decides, fails, is given up, and begins again.
#include <parley/actors/agreement/search.hpp>
#include <parley/tuning/results/results.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <utility>

namespace parley::actors {

search::search(search_terms& terms, tuning::size_bucket bucket, time_ns now)
    : terms_(terms), account_(terms.budget.open(now)), bucket_(bucket),
      key_(tuning::parameters_text({.op = {}, .size = bucket, .dtype = terms.dtype})), first_ns_(now) {
  chosen_.digest = terms.default_digest;
  chosen_.config = terms.default_id;
  if (!terms.candidates.empty()) begin(now);
}

search::~search() = default;

std::string search::progress() const {
  return std::to_string(trials()) + " trials, search " + std::to_string(number_) + ", cost ns " +
         std::to_string(account_.cost_ns + account_.pending_ns + cost_before_ns_) +
         (run_ ? "; " + run_->progress() : std::string());
}

// ---- how it begins ----------------------------------------------------------------------------------------------------

void search::begin(time_ns now) {
  exclude_beyond_limits();
  exclude_by_rules();
  exclude_equals();
  if (where() != stage::waiting) return;  // it has begun already, with fewer candidates
  if (settle_by_rule(now)) return;
  // A config that may not run for this key is treated like a config that no rank has.
  std::vector<std::string> allowed;
  for (std::size_t i = 0; i < terms_.ids.size(); ++i) allowed.push_back(terms_.name_of(i));
  for (const exclusion& e : excluded_) {
    if (e.kind != exclusion::reason::same) allowed[e.candidate].clear();
  }
  tuning::recalled known = tuning::recall(key_, terms_.remembered, allowed, terms_.machines);
  if (known.candidate) {
    for (const exclusion& e : excluded_) {
      if (e.candidate == *known.candidate) known.candidate = e.same_as;
    }
    chosen_.proposer = known.proposer;
    chosen_.remembered_time_ns = known.time_ms * 1e6;
    chosen_.remembered_for = known.machines;
    settle(*known.candidate, known.pinned ? decision_source::pin : decision_source::results, std::move(known.sentence),
           now);
    if (known.thin) refine_later(now);
    return;
  }
  missed_ = std::move(known.sentence);
  const bool off = terms_.policy == tuning_policy::off;
  if (off || terms_.candidates.size() < 2) {
    const std::string& said = off ? terms_.why_off : terms_.why_no_choice;
    const char* const usual = off ? "tuning is switched off" : "only the default may run";
    settle(0, off ? decision_source::tuning_off : decision_source::only_default, said.empty() ? usual : said, now);
    return;
  }
  if (terms_.plan.interpolate && settle_by_neighbours(now)) return;
  begin_run(now);
}

void search::begin_with_more(const std::string& why, time_ns now) {
  if (settle_by_rule(now)) return;  // the rule's config may be one of the new candidates
  if (!decided_) {
    again_at_ns_ = now;  // a new search follows once this search has decided
  } else if (!chosen_.from_results()) {
    search_again(why, now);
  }
}

void search::begin_run(time_ns now) {
  search_began_ns_ = now;
  if (drift_) drift_->end_burst();
  cost_before_ns_ = account_.cost_ns;
  account_.pending_ns = 0;
  again_at_ns_ = runtime::never;
  postponed_ = refines_ = false;
  if (number_ > 1) missed_.clear();
  std::erase_if(excluded_, [](const exclusion& e) {
    return e.kind == exclusion::reason::unmet || e.kind == exclusion::reason::hopeless;
  });
  decided_ = false;
  std::vector<tuning::predicted_time> expected = expected_times();
  if (number_ == 1) exclude_hopeless(expected);
  run_.emplace(terms_, excluded_, book_);
  book_.expected = std::move(expected);
  ++terms_.searching;
  if (!run_->plan().finished()) return;
  const bool alike =
      excluded_.back().kind == exclusion::reason::same;  // a hopeless candidate is never the only other one
  const char* const begins = alike ? "there is only the default to try: " : "only the default may run: ";
  settle(0, decision_source::only_default, begins + excluded_.back().why, now);
}

void search::end_run() noexcept {
  if (!run_) return;
  trials_before_ += run_->made();
  run_.reset();
  --terms_.searching;
}

void search::search_again(std::string why, time_ns now) {
  ++number_;
  reason_ = std::move(why);
  begin_run(now);
}

void search::start_over(time_ns now) {
  decided_ = false;
  again_at_ns_ = runtime::never;
  begin(now);
}

// ---- what may not run -------------------------------------------------------------------------------------------------

void search::exclude(std::size_t candidate, exclusion::reason kind, std::string why) {
  if (candidate == 0 || excludes(candidate)) return;
  excluded_.push_back({candidate, kind, terms_.ids[candidate] + ": " + std::move(why)});
  if (run_) run_->drop(candidate);
}

bool search::has_other_candidates() const noexcept {
  using reason = exclusion::reason;
  const auto comes_back = [](const exclusion& e) { return e.kind == reason::unmet || e.kind == reason::hopeless; };
  const auto out = excluded_.size() - static_cast<std::size_t>(std::ranges::count_if(excluded_, comes_back));
  return out + 1 < terms_.candidates.size();
}

bool search::was_decided_untried() const noexcept {
  using source = decision_source;
  const source s = chosen_.source;
  return decided_ && number_ == 1 && (s == source::results || s == source::rule || s == source::neighbours);
}

void search::exclude_beyond_limits() {
  for (const candidate_limit& l : terms_.limits) {
    const std::size_t candidate = terms_.place_of(l.digest);
    if (candidate == 0 || candidate == terms_.candidates.size() || bucket_.largest_bytes() <= l.largest_bytes) continue;
    exclude(candidate, exclusion::reason::constraint, l.why);
  }
}

void search::exclude_by_rules() {
  for (const tuning::rule& r : terms_.rules) {
    if (!r.excludes || !r.fits(key_, bucket_.largest_bytes())) continue;
    for (std::size_t i = 1; i < terms_.ids.size(); ++i) {
      if (r.excludes_config(tuning::id_in_file(terms_.ids[i])))
        exclude(i, exclusion::reason::constraint, r.place + " excludes it");
    }
  }
}

// The first rule that names a config decides. If that config is no candidate, the decision says so, and the search goes on.
bool search::settle_by_rule(time_ns now) {
  const auto names_one = [&](const tuning::rule& r) { return !r.excludes && r.fits(key_, bucket_.largest_bytes()); };
  const auto first = std::find_if(terms_.rules.begin(), terms_.rules.end(), names_one);
  if (first == terms_.rules.end()) return false;
  std::size_t named = 0;
  if (first->config != tuning::pinned_default) {
    const auto at = std::find(terms_.ids.begin(), terms_.ids.end(), first->config);
    named = static_cast<std::size_t>(at - terms_.ids.begin());
  }
  for (const exclusion& e : excluded_) {
    if (e.candidate == named && e.kind == exclusion::reason::same) named = e.same_as;
  }
  if (named >= terms_.ids.size() || excludes(named)) {
    const bool has_it = named < terms_.ids.size();
    by_rule_ = first->place + " names " + first->config +
               (has_it ? ", which is excluded" : ", which is none of the configs that all ranks can run");
    return false;
  }
  by_rule_.clear();
  if (is_by_rule() && chosen_.candidate == named) return true;
  settle(named, decision_source::rule, first->place + " names it", now);
  return true;
}

bool search::settle_by_neighbours(time_ns now) {
  const auto above = terms_.winners.upper_bound(bucket_.largest_bytes());
  if (above == terms_.winners.begin() || above == terms_.winners.end()) return false;
  const auto below = std::prev(above);
  const std::size_t winner = terms_.place_of(above->second);
  if (below->second != above->second || winner >= terms_.candidates.size() || excludes(winner)) return false;
  settle(winner, decision_source::neighbours,
         "for " + tuning::byte_size_text(below->first) + " and " + tuning::byte_size_text(above->first) + " " +
             terms_.ids[winner] + " has won",
         now);
  return true;
}

// The shape of a candidate at the smallest and the largest size of the key; no size between them has another shape. The parts of a mixture
// are not known here.
std::string search::shape_of(std::size_t candidate) const {
  if (terms_.mixtures[candidate] != 0) return {};
  const std::string smallest = terms_.shape(terms_.candidates[candidate], bucket_.smallest_bytes());
  const std::string largest = terms_.shape(terms_.candidates[candidate], bucket_.largest_bytes());
  return smallest.empty() || largest.empty() ? std::string() : smallest + "; " + largest;
}

// Excludes candidates that do the same as an earlier one: their times would differ only by noise.
void search::exclude_equals() {
  if (!terms_.shape) return;
  std::map<std::string, std::size_t> first;
  for (std::size_t i = 0; i < terms_.candidates.size(); ++i) {
    if (excludes(i)) continue;
    const std::string shape = shape_of(i);
    if (shape.empty()) continue;
    const auto [like, is_first] = first.try_emplace(shape, i);
    if (is_first || chosen_.candidate == i) continue;
    exclude(i, exclusion::reason::same, "for these sizes it is the same as " + terms_.ids[like->second]);
    excluded_.back().same_as = like->second;
    excluded_.back().told = true;  // the user need not do anything about it
  }
}

std::vector<tuning::predicted_time> search::expected_times() const {
  std::vector<tuning::predicted_time> all(terms_.candidates.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto p = terms_.model->predict(terms_.place_in_model, terms_.name_of(i), bucket_.largest_bytes());
    if (p && !p->measured) all[i] = std::move(p).value();
  }
  return all;
}

// Excludes candidates whose expected time is surely longer than that of another one. The expectation may be wrong, so the first of the
// others is tried in any case, and a later search tries all of them.
void search::exclude_hopeless(const std::vector<tuning::predicted_time>& expected) {
  const auto is_expected = [&](std::size_t i) { return expected[i].time_ns > 0 && !excludes(i); };
  std::size_t best = 0, first_other = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!is_expected(i)) continue;
    if (!is_expected(best) || expected[i].high_ns < expected[best].high_ns) best = i;
    if (i != 0 && (first_other == 0 || expected[i].time_ns < expected[first_other].time_ns)) first_other = i;
  }
  for (std::size_t i = 1; i < expected.size(); ++i) {
    if (!is_expected(i) || i == first_other || expected[i].low_ns <= expected[best].high_ns) continue;
    exclude(i, exclusion::reason::hopeless,
            "it is expected to take at least " + tuning::time_text(expected[i].low_ns) + ", and " + terms_.ids[best] +
                " at most " + tuning::time_text(expected[best].high_ns) + ", as other sizes or edges show");
    excluded_.back().told = true;
  }
}

// Why the candidates that seemed hopeless must be tried after all; nothing: the times were about as expected.
std::optional<std::string> search::surprise() const {
  const auto seems_hopeless = [](const exclusion& e) { return e.kind == exclusion::reason::hopeless; };
  if (std::ranges::none_of(excluded_, seems_hopeless)) return std::nullopt;
  for (std::size_t i = 0; i < book_.expected.size(); ++i) {
    const tuning::predicted_time& e = book_.expected[i];
    if (e.time_ns <= 0 || !aggregates()[i].measured()) continue;
    // One time in ten lies beyond the range, so a surprise is twice as far away.
    const double off = std::abs(std::log(aggregates()[i].time_ns / e.time_ns));
    if (off <= 2 * std::log(e.high_ns / e.time_ns)) continue;
    return terms_.ids[i] + " has taken " + tuning::time_text(aggregates()[i].time_ns) + ", and not about " +
           tuning::time_text(e.time_ns) + " as expected, so what seemed hopeless is tried, too";
  }
  return std::nullopt;
}

void search::learn_times() {
  for (std::size_t i = 0; i < aggregates().size(); ++i) {
    const tuning::aggregate& its = aggregates()[i];
    if (its.measured())
      terms_.model->add({terms_.place_in_model, terms_.name_of(i), bucket_.largest_bytes(), its.time_ns});
  }
}

void search::quarantine(std::size_t candidate, const std::string& why, time_ns now) {
  if (candidate == 0 || excludes(candidate)) return;
  exclude(candidate, exclusion::reason::failed, "failed: " + why);
  if (terms_.settled) terms_.settled();
  if (chosen_.candidate == candidate) terms_.winners.erase(bucket_.largest_bytes());
  rest_ = !decided_;
  // Others may have seemed hopeless only beside this one.
  const bool others =
      std::ranges::any_of(excluded_, [](const exclusion& e) { return e.kind == exclusion::reason::hopeless; });
  if (run_ && others && !asked_again_) asked_again_ = terms_.ids[candidate] + " has failed";
  if (chosen_.candidate != candidate) return;
  // The config in force has failed. A search in progress finds the next config; without one, a later search does.
  fall_back();
  if (!decided_) return;
  chosen_.why = excluded_.back().why + "; so the default runs";
  chosen_.at_ns = now;
  announced_ = false;
  watch();
  if (terms_.policy == tuning_policy::online && has_other_candidates()) pause(now);
}

void search::fall_back() {
  if (chosen_.source == decision_source::rule || chosen_.source == decision_source::neighbours)
    chosen_.source = decision_source::kept;
  chosen_.confidence = tuning::confidence::none;
  chosen_.candidate = 0;
  chosen_.digest = terms_.default_digest;
  chosen_.config = terms_.default_id;
  chosen_.time_ns = 0;
  chosen_.remembered_time_ns = 0;
}

void search::fail_rehearsal(std::size_t candidate, const std::string& why, time_ns now) {
  const bool untried = was_decided_untried() && chosen_.candidate == candidate;
  quarantine(candidate, why, now);
  if (untried) start_over(now);
}

void search::postpone(const std::string& why, time_ns now) {
  if (!was_decided_untried() || chosen_.candidate == 0) return;
  chosen_.why = chosen_.config + " is remembered, but " + why + "; so the default runs";
  fall_back();
  chosen_.source = decision_source::kept;
  announced_ = false;
  postponed_ = true;
  watch();
  pause(now);
}

const exclusion* search::next_untold() noexcept {
  for (exclusion& e : excluded_) {
    if (e.kind == exclusion::reason::failed && !std::exchange(e.told, true)) return &e;
  }
  return nullptr;
}

// ---- what participants report -----------------------------------------------------------------------------------------

bool search::add_row(rank_id participant, const wire_row& r) {
  if (drift_ && drift_->add_row(participant, r)) return true;
  return run_ && run_->add_row(participant, r);
}

bool search::withdraw(std::uint32_t tag, std::uint64_t invocation) {
  if (drift_) {
    const drift_watch::found sample = drift_->withdraw(tag, invocation, decided_);
    if (sample == drift_watch::found::again) next_sample_ = invocations_;
    if (sample != drift_watch::found::no) return true;
  }
  return run_ && run_->withdraw(tag, invocation);
}

void search::judge(time_ns now, std::span<const tuning::participant_clock> clocks) {
  const auto fail = [&](std::size_t candidate, rank_id late) {
    quarantine(candidate,
               "its trial timed out twice; the second time on rank " + std::to_string(late) +
                   ", although all ranks had started it",
               now);
  };
  if (!run_->end_round(fail)) return;
  run_->sum_up(clocks);
  // Trials cannot have cost more than the time in which they were made, even if participants report more.
  const double instead_ns = terms_.trials_are_extra ? 0 : aggregates()[chosen_.candidate].time_ns;
  account_.cost_ns =
      cost_before_ns_ + std::min(run_->cost_ns(instead_ns, clocks), static_cast<double>(now - search_began_ns_));
  account_.pending_ns = 0;
  run_->plan().complete_round(aggregates());
  if (!run_->plan().finished()) return;
  std::vector<std::size_t> excluded;
  for (const exclusion& e : excluded_) excluded.push_back(e.candidate);
  const tuning::decision d =
      tuning::decide(aggregates(), {.current = chosen_.candidate, .excluded = excluded, .names = terms_.ids});
  const bool kept = d.reason == tuning::decision_reason::nothing_measured;
  const bool measured = aggregates()[d.winner].measured();
  // The winner needs no rows if all other candidates have been excluded since.
  const bool alone = d.reason == tuning::decision_reason::only_default;
  runtime::invariant(kept || alone || measured, {"S6", "only complete rows decide", terms_.here});
  const decision_source source = measured ? decision_source::trials : decision_source::only_default;
  learn_times();
  settle(d.winner, kept ? source_of_kept() : source, d.sentence, now);
  if (!kept) chosen_.confidence = d.confidence;
  terms_.winners.erase(bucket_.largest_bytes());
  if (measured && d.confidence != tuning::confidence::thin)
    terms_.winners.emplace(bucket_.largest_bytes(), chosen_.digest);
  if (!asked_again_) asked_again_ = surprise();
  if (asked_again_) {
    again_at_ns_ = now;
  } else if (kept) {
    pause(now);
  }
}

void search::settle(std::size_t winner, decision_source source, std::string why, time_ns now) {
  runtime::invariant(winner < terms_.candidates.size() && (winner == 0 || !excludes(winner)),
                     {"S4", "a decision is one of the candidates that may run", terms_.here});
  end_run();
  decided_ = true;
  announced_ = false;
  chosen_.digest = terms_.candidates[winner];
  chosen_.candidate = winner;
  chosen_.config = terms_.ids[winner];
  chosen_.source = source;
  chosen_.why = std::move(why);
  if (!by_rule_.empty()) chosen_.why += "; " + by_rule_;
  if (!missed_.empty()) chosen_.why += "; of results files: " + missed_;
  if (!terms_.left_out.empty()) chosen_.why += "; not tried, because their rehearsals failed: " + terms_.left_out;
  chosen_.at_ns = now;
  chosen_.time_ns = aggregates().empty() || !aggregates()[winner].measured() ? 0 : aggregates()[winner].time_ns;
  ran_others_ = {};
  invocations_before_ = invocations_;
  if (number_ == 1) invocations_to_agreement_ = invocations_;
  for (auto& of_candidate : book_.rows) of_candidate.shrink_to_fit();
  watch();
}

// ---- how it goes on ---------------------------------------------------------------------------------------------------

void search::pause(time_ns now) noexcept {
  pause_ns_ = std::clamp(pause_ns_ * 2, first_pause_ns, longest_pause_ns);
  again_at_ns_ = now + pause_ns_;
}

// Until the next decision the chosen config stays, and trials are paid for as usual. The pause avoids trials in a job that ends soon.
void search::refine_later(time_ns now) {
  chosen_.confidence = tuning::confidence::thin;
  if (terms_.policy != tuning_policy::online || !has_other_candidates()) return;
  chosen_.why += "; that is based on few measurements, so another search follows";
  refines_ = true;
  again_at_ns_ = now + first_pause_ns;
}

time_ns search::next_event_ns() const noexcept {
  if (run_) return run_->gives_up_at_ns();
  return decided_ ? again_at_ns_ : runtime::never;
}

void search::search_when_due(time_ns now) {
  if (!decided_ || again_at_ns_ > now) return;
  if (std::exchange(postponed_, false)) return start_over(now);
  const bool refines = std::exchange(refines_, false);
  search_again(asked_again_ ? *std::exchange(asked_again_, {})
               : refines    ? "the decision in the results file is based on few measurements"
                            : "trying again: " + chosen_.why,
               now);
}

// Measurements of this search may be older than the event for which a new search is requested. An op without headers takes all trials of a
// round from the plan before the first of them is made.
bool search::has_measured() const noexcept {
  const auto some = [](const auto& of_candidate) { return !of_candidate.empty(); };
  return terms_.calls_alone ? std::any_of(book_.rows.begin(), book_.rows.end(), some)
                            : std::any_of(book_.repetitions.begin(), book_.repetitions.end(), some);
}

bool search::retune(std::string_view why, time_ns now) {
  if (is_by_rule()) return false;
  if (decided_) {
    search_again(std::string(why), now);
    return true;
  }
  if (has_measured()) {
    if (!asked_again_) asked_again_ = why;
  } else if (!reason_.starts_with(why)) {
    reason_ = std::string(why) + (reason_.empty() ? "" : "; " + reason_);
  }
  return false;
}

bool search::abort(std::string_view why, after_abort next, time_ns now) {
  if (!run_) return false;
  const double took_ns = chosen_.time_ns;
  settle(chosen_.candidate, source_of_kept(),
         "the search was given up, " + std::string(why) + ", so " + terms_.ids[chosen_.candidate] + " stays", now);
  asked_again_.reset();
  chosen_.time_ns = took_ns;
  again_at_ns_ = runtime::never;
  if (next == after_abort::try_later) pause(now);
  return true;
}

void search::stop(const std::string& why, time_ns now) {
  again_at_ns_ = runtime::never;
  static_cast<void>(abort(why, after_abort::stay, now));
  if (drift_) drift_->end_burst();
  next_sample_ = ~std::uint64_t{0};
}

// ---- drift of the decided config --------------------------------------------------------------------------------------

// Called at each decision. Does not watch a config that a person has pinned, or a config without a measured alternative.
void search::watch() {
  if (drift_) drift_->end_burst();
  next_sample_ = ~std::uint64_t{0};
  const tuning::drift_options& how = terms_.plan.drift;
  using source = decision_source;
  const source s = chosen_.source;
  const bool tried = s == source::trials || s == source::results || s == source::neighbours;
  if (!how.on || !tried || terms_.policy == tuning_policy::off || terms_.candidates.size() < 2) return;
  next_sample_ = invocations_ + std::max<std::uint64_t>(how.every, 1);
  if (!drift_) drift_.emplace(terms_);
  drift_->decided({chosen_.digest, chosen_.time_ns, chosen_.at_ns, number_});
}

void search::watch_later() noexcept { next_sample_ = invocations_ + terms_.plan.drift.every; }

void search::watch_drift(time_ns now, std::span<const tuning::participant_clock> clocks) {
  if (drift_ && decided_ && drift_->burst_is_complete()) search_if_drifted(drift_->burst(chosen_.digest, clocks), now);
}

bool search::note_call(std::uint64_t digest, time_ns took_ns, time_ns now, std::uint64_t& order) {
  if (!decided_ || chosen_.digest != digest || ++invocations_ < next_sample_) return false;
  if (!drift_->is_bursting()) {
    if (!drift_->begin_burst(now)) watch_later();
    return false;
  }
  const auto burst = drift_->add_call(++order, digest, took_ns, now);
  if (!burst) return false;
  watch_later();
  return search_if_drifted(*burst, now);
}

bool search::search_if_drifted(const tuning::aggregate& burst, time_ns now) {
  const auto why = drift_->has_drifted(burst, chosen_.digest, number_ + 1, now);
  if (!why || terms_.policy == tuning_policy::off || terms_.candidates.size() < 2) return false;
  return retune(*why, now);
}

}  // namespace parley::actors
