#include <parley/actors/agreement/drift_watch.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

namespace parley::actors {

namespace {
constexpr time_ns longest_pause_factor = 64;

std::string in_words(double now_ns, double before_ns) {
  char text[128];
  std::snprintf(text, sizeof text, "its times have drifted: %.4g us now, %.0f %% %s than the %.4g us before",
                now_ns / 1e3, 100 * std::abs(now_ns / before_ns - 1), now_ns > before_ns ? "more" : "less",
                before_ns / 1e3);
  return text;
}
bool differs(double one_ns, double other_ns, double threshold) {
  return std::abs(one_ns - other_ns) > threshold * std::min(one_ns, other_ns);
}
}  // namespace

void drift_watch::decided(const decision& d) {
  orders_.clear();
  joined_.clear();
  missing_ = 0;
  const bool asked = std::exchange(searched_, 0) == d.search;
  const bool same = d.digest == digest_before_;
  const double tried_before_ns = std::exchange(tried_ns_, d.time_ns);
  // Trials may measure other times than consecutive calls. If this watch requested the search, and the winner took as long as before in the
  // trials, the reference time is learned from the calls.
  const bool trials_saw_it = same && differs(d.time_ns, tried_before_ns, terms_.plan.drift.threshold);
  const bool learns = terms_.calls_alone || (asked && !trials_saw_it);
  detector_.decided(learns ? 0 : d.time_ns);
  if (!asked) return;
  const time_ns shortest = terms_.plan.drift.search_pause_ns;
  search_pause_ns_ = same ? std::min(2 * search_pause_ns_, longest_pause_factor * shortest) : shortest;
  search_not_before_ns_ = d.at_ns + search_pause_ns_;
}

void drift_watch::end_burst() noexcept {
  if (!bursting_) return;
  bursting_ = false;
  --terms_.bursts;
}

bool drift_watch::begin_burst(time_ns now) {
  // A receiver may be a window of messages behind, and may not have reached the last burst yet.
  const auto is_to_come = [this](const auto& place) { return !terms_.begun(place.first.first, place.first.second); };
  const bool awaited = terms_.begun && missing_ != 0 && std::any_of(places_.begin(), places_.end(), is_to_come);
  if (began_ns_ != 0 && (now - began_ns_ < terms_.plan.drift.pause_ns || awaited)) return false;
  bursting_ = true;
  ++terms_.bursts;
  began_ns_ = now;
  orders_.clear();
  joined_.clear();
  places_.clear();
  rows_.clear();
  missing_ = terms_.plan.drift.samples * terms_.participants.size();
  again_ = 0;
  return true;
}

drift_watch::timing drift_watch::sample(const asked_call& call, bool goes_on) {
  const std::size_t samples = terms_.plan.drift.samples;
  if (!bursting_) return begin_burst(call.now) ? timing::timed : timing::later;
  if (orders_.empty()) rows_.reserve(missing_);
  if (goes_on && places_.empty()) return orders_.empty() ? timing::timed : timing::none;  // the burst has been judged
  if (goes_on && joined_.size() == samples * (search_run::most_together - 1)) return timing::none;
  if (!goes_on && repetitions() == samples) {
    end_burst();
    return timing::later;
  }
  orders_.push_back(call.order);
  places_[{call.tag, call.invocation}] = call.order;
  if (goes_on) {
    joined_.push_back(call.order);
    missing_ += terms_.participants.size();
  }
  return repetitions() == samples ? timing::last : timing::timed;
}

drift_watch::found drift_watch::withdraw(std::uint32_t tag, std::uint64_t invocation, bool in_force) {
  const auto place = places_.find({tag, invocation});
  if (place == places_.end()) return found::no;
  const bool takes_another = in_force && again_ < terms_.plan.drift.samples;
  if (takes_another) {
    ++again_;
    std::erase(orders_, place->second);
    if (!std::exchange(bursting_, true)) ++terms_.bursts;
  }
  places_.erase(place);
  return takes_another ? found::again : found::yes;
}

bool drift_watch::add_row(rank_id participant, const wire_row& r) {
  const auto place = places_.find({r.tag, r.invocation});
  if (place == places_.end()) return false;
  const auto& all = terms_.participants;
  const bool ours = std::find(all.begin(), all.end(), participant) != all.end();
  const bool measured = r.status != cancelled_row && r.status != late_row;
  if (!ours || is_reported(rows_, participant, place->second) || !measured || missing_ == 0) return true;
  keep_row(rows_, participant, place->second, r);
  --missing_;
  return true;
}

tuning::aggregate drift_watch::burst(std::uint64_t digest, std::span<const tuning::participant_clock> clocks) const {
  return tuning::aggregate_candidate(rows_, {.digest = digest,
                                             .participants = terms_.participants,
                                             .invocations = orders_,
                                             .clocks = clocks,
                                             .joined = joined_});
}

std::optional<tuning::aggregate> drift_watch::add_call(std::uint64_t order, std::uint64_t digest, time_ns took_ns,
                                                       time_ns now) {
  const rank_id leader = terms_.participants.front();
  orders_.push_back(order);
  rows_.push_back({leader, order, digest, now - took_ns, now, tuning::row_status::ok});
  if (orders_.size() < terms_.plan.drift.samples) return std::nullopt;
  end_burst();
  return tuning::aggregate_candidate(rows_, {.digest = digest, .participants = {&leader, 1}, .invocations = orders_});
}

std::optional<std::string> drift_watch::has_drifted(const tuning::aggregate& burst, std::uint64_t digest,
                                                    std::uint32_t search, time_ns now) {
  free_all_of(places_);  // until the next burst
  free_all_of(rows_);
  missing_ = 1;  // the burst is judged: no more rows are expected
  if (detector_.add(burst) != tuning::drift::changed || now < search_not_before_ns_) return std::nullopt;
  digest_before_ = digest;
  searched_ = search;
  return in_words(detector_.latest_ns(), detector_.reference_ns());
}

}  // namespace parley::actors
