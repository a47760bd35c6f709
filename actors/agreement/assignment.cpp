#include <parley/actors/agreement/assignment.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

assignment::assignment(std::uint64_t default_digest, std::string default_id, std::string dtype,
                       std::vector<rank_id> participants, tuning_policy policy, tuning::plan_options plan)
    : terms_(std::make_unique<search_terms>()) {
  terms_->default_digest = default_digest;
  terms_->default_id = std::move(default_id);
  terms_->dtype = std::move(dtype);
  terms_->participants = std::move(participants);
  terms_->policy = policy;
  terms_->plan = plan;
}

// ---- the searches -----------------------------------------------------------------------------------------------------

search& assignment::find_or_add(std::uint64_t bytes, time_ns now) {
  const tuning::size_bucket bucket = tuning::size_bucket::of(bytes);
  latest_from_bytes_ = bucket.smallest_bytes();
  latest_to_bytes_ = bucket.largest_bytes();
  latest_ = find_mutable(bytes);
  if (latest_ != nullptr) return *latest_;
  latest_ = searches_.emplace_back(std::make_unique<search>(*terms_, bucket, now)).get();
  if (latest_->is_decided() && terms_->settled) terms_->settled();
  return *latest_;
}

search* assignment::find_mutable(std::uint64_t bytes) const noexcept {
  for (const auto& s : searches_) {
    if (s->bucket().contains(bytes)) return s.get();
  }
  return nullptr;
}

const search* assignment::find(std::uint64_t bytes) const noexcept {
  const search* const latest = latest_for(bytes);
  return latest != nullptr ? latest : find_mutable(bytes);
}

// ---- what may run -----------------------------------------------------------------------------------------------------

void assignment::open(std::vector<std::uint64_t> candidates, std::vector<std::string> ids,
                      std::vector<remembered_best> remembered, time_ns now, std::uint64_t machines,
                      std::vector<std::uint64_t> mixtures) {
  const std::size_t before = terms_->candidates.size();
  terms_->candidates = std::move(candidates);
  terms_->ids = std::move(ids);
  terms_->mixtures = std::move(mixtures);
  terms_->mixtures.resize(terms_->candidates.size());
  if (before == 0) {
    terms_->remembered = std::move(remembered);
    terms_->machines = machines;
  }
  for (auto& s : searches_) s->begin(now);
  const std::size_t count = terms_->candidates.size();
  if (before == 0 || before == count || terms_->policy == tuning_policy::off) return;
  std::string added = "now its rehearsal has succeeded: ";
  for (std::size_t i = before; i < count; ++i) added += (i == before ? "" : ", ") + terms_->ids[i];
  for (auto& s : searches_) s->begin_with_more(added, now);
}

void assignment::forbid_trials(std::string why) {
  terms_->policy = tuning_policy::off;
  terms_->why_off = std::move(why);
}

void assignment::leave_out(const std::vector<std::string>& ids) {
  constexpr std::size_t most_named = 4;
  std::string& text = terms_->left_out;
  text.clear();
  for (std::size_t i = 0; i < std::min(ids.size(), most_named); ++i) text += (i == 0 ? "" : ", ") + ids[i];
  if (ids.size() > most_named) text += " and " + std::to_string(ids.size() - most_named) + " more";
}

void assignment::end_tuning(const std::string& why, time_ns now) {
  forbid_trials(why);
  terms_->remembered.clear();
  for (auto& s : searches_) s->stop(why, now);
}

// ---- for every search -------------------------------------------------------------------------------------------------

void assignment::withdraw(std::uint32_t tag, std::uint64_t invocation) {
  for (auto& s : searches_) {
    if (s->withdraw(tag, invocation)) return;
  }
}

void assignment::add_row(rank_id participant, const wire_row& row) {
  for (auto& s : searches_) {
    if (s->add_row(participant, row)) return;
  }
}

search* assignment::ready_to_judge(time_ns now) noexcept {
  for (auto& s : searches_) {
    if (s->is_round_over(now)) return s.get();
  }
  return nullptr;
}

search* assignment::next_to_announce() noexcept {
  for (auto& s : searches_) {
    if (s->is_to_be_announced()) return s.get();
  }
  return nullptr;
}

void assignment::watch_drift(time_ns now, std::span<const tuning::participant_clock> clocks) {
  for (auto& s : searches_) s->watch_drift(now, clocks);
}

time_ns assignment::next_give_up() const noexcept {
  time_ns earliest = runtime::never;
  for (const auto& s : searches_) earliest = std::min(earliest, s->next_event_ns());
  return earliest;
}

void assignment::retry(time_ns now) {
  for (auto& s : searches_) s->search_when_due(now);
}

std::size_t assignment::retune(std::optional<std::uint64_t> bytes, std::string_view why, time_ns now) {
  std::size_t begun = 0;
  if (terms_->policy == tuning_policy::off || terms_->candidates.size() < 2) return begun;
  for (auto& s : searches_) {
    if ((!bytes || s->bucket().contains(*bytes)) && s->retune(why, now)) ++begun;
  }
  return begun;
}

std::size_t assignment::abort(std::optional<std::uint64_t> bytes, std::string_view why, after_abort next, time_ns now) {
  std::size_t ended = 0;
  for (auto& s : searches_) {
    if ((!bytes || s->bucket().contains(*bytes)) && s->abort(why, next, now)) ++ended;
  }
  return ended;
}

// ---- for one ----------------------------------------------------------------------------------------------------------

bool assignment::note_call(std::uint64_t bytes, std::uint64_t digest, time_ns took_ns, time_ns now) {
  if (find(bytes) == nullptr) return false;
  return search_of(bytes, now).note_call(digest, took_ns, now, order_);
}

void assignment::quarantine(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why) {
  search* const s = find_mutable(bytes);
  const std::size_t candidate = terms_->place_of(digest);
  if (s != nullptr && candidate != terms_->candidates.size()) s->quarantine(candidate, why, now);
}

void assignment::fail_rehearsal(std::uint64_t bytes, std::uint64_t digest, time_ns now, const std::string& why) {
  search* const s = find_mutable(bytes);
  const std::size_t candidate = terms_->place_of(digest);
  if (s != nullptr && candidate != terms_->candidates.size()) s->fail_rehearsal(candidate, why, now);
}

void assignment::postpone(std::uint64_t bytes, const std::string& why, time_ns now) {
  if (search* const s = find_mutable(bytes)) s->postpone(why, now);
}

bool assignment::has_late_trials(std::uint64_t bytes) const noexcept {
  const search* const s = find(bytes);
  return s != nullptr && s->has_late_trials();
}

void assignment::cut_short(std::uint64_t bytes, std::uint64_t from) {
  if (search* const s = find_mutable(bytes)) s->cut_short(from);
}

void assignment::wait_longer(std::uint64_t bytes, time_ns now) noexcept {
  if (search* const s = find_mutable(bytes)) s->wait_longer(now);
}

}  // namespace parley::actors
