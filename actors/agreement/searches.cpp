/// The life of a campaign beyond its first search: quarantine, searching anew, giving up, trying again later.
#include <parley/actors/agreement/assignment.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

void assignment::begin_search(campaign& c, time_ns now) {
  c.search_began_ns = now;
  end_burst(c);
  c.earlier_cost_ns = c.cost_ns;
  c.pending_ns = 0;
  c.cancelled = 0;
  c.shortages.clear();
  c.retry_at_ns = runtime::never;
  c.postponed = false;
  c.refines = false;
  if (c.search > 1) c.missed.clear();
  c.again.clear();
  c.outstanding.clear();
  c.trial_of_batch.reset();
  c.places.clear();
  c.unsettled = 0;
  c.rows.assign(candidates_.size(), {});
  c.repetitions.assign(candidates_.size(), {});
  c.warm_ups.assign(candidates_.size(), {});
  c.joined.clear();
  c.batch_messages = 1;
  c.aggregates.assign(candidates_.size(), {});
  std::erase_if(c.excluded, [](const campaign::exclusion& e) { return e.kind == campaign::exclusion::reason::unmet; });
  c.planner = std::make_unique<tuning::trial_planner>(candidates_.size(), plan_);
  for (const campaign::exclusion& e : c.excluded) c.planner->drop(e.candidate);
  if (c.planner->finished()) {
    const bool alike = c.excluded.back().kind == campaign::exclusion::reason::same;
    const char* const begins = alike ? "there is nothing but the default to try: " : "only the default may run: ";
    settle(c, 0, decision_source::only_default, begins + c.excluded.back().why, now);
    return;
  }
  c.where = campaign::stage::trying;
  ++active_;
}

bool assignment::is_excluded(const campaign& c, std::size_t candidate) const noexcept {
  return std::any_of(c.excluded.begin(), c.excluded.end(),
                     [&](const campaign::exclusion& e) { return e.candidate == candidate; });
}

void assignment::exclude(campaign& c, std::size_t candidate, campaign::exclusion::reason kind, std::string why) {
  if (candidate == 0 || is_excluded(c, candidate)) return;
  c.excluded.push_back({candidate, kind, ids_[candidate] + ": " + std::move(why)});
  std::erase(c.again, candidate);
  if (c.planner && !c.planner->finished()) c.planner->drop(candidate);
}

void assignment::fall_back(campaign& c) {
  c.confidence = tuning::confidence::none;
  c.incumbent = 0;
  c.digest = default_digest_;
  c.winner = default_id_;
  c.decided_time_ns = 0;
  c.remembered_time_ns = 0;
}

void assignment::retry_later(campaign& c, time_ns now) noexcept {
  c.retry_pause_ns = std::clamp(c.retry_pause_ns * 2, first_retry_pause_ns, longest_retry_pause_ns);
  c.retry_at_ns = now + c.retry_pause_ns;
}

// What runs stays meanwhile, and trials are paid for as ever. A pause, so that a job which is over soon makes none.
void assignment::refine_later(campaign& c, time_ns now) {
  c.confidence = tuning::confidence::thin;
  if (policy_ != tuning_policy::online || c.excluded.size() + 1 >= candidates_.size()) return;
  c.why += "; that rests on little, and is searched for again";
  c.refines = true;
  c.retry_at_ns = now + first_retry_pause_ns;
}

void assignment::quarantine(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why) {
  const auto index = std::find(candidates_.begin(), candidates_.end(), digest);
  if (digest == default_digest_ || index == candidates_.end()) return;
  const auto candidate = static_cast<std::size_t>(index - candidates_.begin());
  const tuning::size_bucket bucket = tuning::size_bucket::of(bytes);
  for (auto& c : campaigns_) {
    if (c->bucket != bucket || is_excluded(*c, candidate)) continue;
    exclude(*c, candidate, campaign::exclusion::reason::failed, "failed: " + why);
    if (settled_) settled_();
    c->rest = c->where != campaign::stage::decided;
    if (c->incumbent != candidate) continue;
    // What is in force has failed. While a search goes on it will say what comes instead, otherwise one will later.
    fall_back(*c);
    if (c->where != campaign::stage::decided) continue;
    c->why = c->excluded.back().why + "; so the default runs";
    c->decided_ns = now;
    c->announced = false;
    watch(*c);
    if (policy_ == tuning_policy::online && c->excluded.size() + 1 < candidates_.size()) retry_later(*c, now);
  }
}

campaign* assignment::decided_by_files(std::uint64_t bytes) noexcept {
  for (auto& c : campaigns_) {
    const bool decided = c->where == campaign::stage::decided && c->search == 1;
    if (decided && c->source == decision_source::results && c->bucket.contains(bytes)) return c.get();
  }
  return nullptr;
}

void assignment::start_over(campaign& c, time_ns now) {
  c.where = campaign::stage::waiting;
  c.retry_at_ns = runtime::never;
  start(c, now);
}

void assignment::fail_rehearsal(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why) {
  campaign* const c = decided_by_files(bytes);
  const bool remembered = c != nullptr && c->digest == digest;
  quarantine(bytes, digest, now, why);
  if (remembered) start_over(*c, now);
}

void assignment::postpone(std::uint64_t bytes, const std::string& why, time_ns now) {
  campaign* const c = decided_by_files(bytes);
  if (c == nullptr || c->digest == default_digest_) return;
  c->why = c->winner + " is remembered, but " + why + "; so the default runs";
  fall_back(*c);
  c->source = decision_source::kept;
  c->announced = false;
  c->postponed = true;
  watch(*c);
  retry_later(*c, now);
}

// What has been measured already may be from before whatever it is asked for. An op without headers takes all trials
// of a round from the plan before the first of them is made.
bool assignment::has_measured(const campaign& c) const noexcept {
  const auto some = [](const auto& of_candidate) { return !of_candidate.empty(); };
  return calls_alone_ ? std::any_of(c.rows.begin(), c.rows.end(), some)
                      : std::any_of(c.repetitions.begin(), c.repetitions.end(), some);
}

void assignment::ask_again(campaign& c, std::string_view why) {
  if (has_measured(c)) {
    if (!c.asked_again) c.asked_again = why;
  } else if (!c.search_reason.starts_with(why)) {
    c.search_reason = std::string(why) + (c.search_reason.empty() ? "" : "; " + c.search_reason);
  }
}

std::size_t assignment::retune(std::optional<std::uint64_t> bytes, std::string_view why, time_ns now) {
  if (policy_ == tuning_policy::off || candidates_.size() < 2) return 0;
  std::size_t begun = 0;
  for (auto& c : campaigns_) {
    if (bytes && !c->bucket.contains(*bytes)) continue;
    if (c->where != campaign::stage::decided) {
      ask_again(*c, why);
      continue;
    }
    ++c->search;
    c->search_reason = why;
    begin_search(*c, now);
    ++begun;
  }
  return begun;
}

std::size_t assignment::abort(std::optional<std::uint64_t> bytes, std::string_view why, after_abort next, time_ns now) {
  std::size_t ended = 0;
  for (auto& c : campaigns_) {
    const bool searching = c->where == campaign::stage::trying || c->where == campaign::stage::collecting;
    if (!searching || (bytes && !c->bucket.contains(*bytes))) continue;
    --active_;
    const std::string stays = ids_[c->incumbent];
    const double took_ns = c->decided_time_ns;
    settle(*c, c->incumbent, source_of_kept(*c),
           "the search was given up, " + std::string(why) + ", so " + stays + " stays", now);
    c->asked_again.reset();
    c->decided_time_ns = took_ns;
    c->retry_at_ns = runtime::never;
    if (next == after_abort::try_later) retry_later(*c, now);
    ++ended;
  }
  return ended;
}

void assignment::end_tuning(const std::string& why, time_ns now) {
  forbid_trials(why);
  remembered_.clear();
  for (auto& c : campaigns_) c->retry_at_ns = runtime::never;
  static_cast<void>(abort(std::nullopt, why, after_abort::stay, now));
  for (auto& c : campaigns_) {
    end_burst(*c);
    c->next_sample = ~std::uint64_t{0};
  }
}

void assignment::retry(time_ns now) {
  for (auto& c : campaigns_) {
    if (c->retry_at_ns > now || c->where != campaign::stage::decided) continue;
    if (std::exchange(c->postponed, false)) {
      start_over(*c, now);
      continue;
    }
    ++c->search;
    const bool refines = std::exchange(c->refines, false);
    c->search_reason = c->asked_again ? *std::exchange(c->asked_again, {})
                       : refines      ? "what a results file has rests on little"
                                      : "trying again: " + c->why;
    begin_search(*c, now);
  }
}

}  // namespace parley::actors
