/// Watching what has been decided: bursts of timed invocations, and the searches that they ask for.
#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/late_row.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace parley::actors {

namespace {
constexpr time_ns longest_pause_factor = 64;

std::string in_words(double now_ns, double before_ns) {
  char text[128];
  std::snprintf(text, sizeof text, "its times have drifted: %.4g us now, %.0f %% %s than the %.4g us of before",
                now_ns / 1e3, 100 * std::abs(now_ns / before_ns - 1), now_ns > before_ns ? "more" : "less",
                before_ns / 1e3);
  return text;
}
}  // namespace

// From each decision on. What a person has pinned, or nothing is known to be better than, is not watched.
void assignment::watch(campaign& c) {
  end_burst(c);
  c.next_sample = ~std::uint64_t{0};
  const bool chosen = c.source == decision_source::trials || c.source == decision_source::results;
  if (!plan_.drift.on || !chosen || policy_ == tuning_policy::off || candidates_.size() < 2) return;
  c.next_sample = c.invocations + std::max<std::uint64_t>(plan_.drift.every, 1);
  if (c.drift == nullptr) c.drift = std::make_unique<drift_watch>(plan_.drift);
  drift_watch& d = *c.drift;
  d.orders.clear();
  d.joined.clear();
  d.missing = 0;
  // Trials may see other times than calls in a row do: after a search for that reason the calls say what is usual.
  const bool asked = std::exchange(d.searched, 0) == c.search;
  d.detector.decided(asked || calls_alone_ ? 0 : c.decided_time_ns);
  if (!asked) return;
  const time_ns longest = longest_pause_factor * plan_.drift.search_pause_ns;
  d.search_pause_ns =
      c.digest == d.digest_before ? std::min(2 * d.search_pause_ns, longest) : plan_.drift.search_pause_ns;
  d.search_not_before_ns = c.decided_ns + d.search_pause_ns;
}

void assignment::end_burst(campaign& c) noexcept {
  if (c.drift == nullptr || !c.drift->bursting) return;
  c.drift->bursting = false;
  --bursts_;
}

bool assignment::begin_burst(campaign& c, time_ns now) {
  drift_watch& d = *c.drift;
  // A receiver may be a window of messages behind: it has not come to the last burst yet.
  const auto is_to_come = [this](const auto& place) { return !begun_(place.first.first, place.first.second); };
  const bool awaited = begun_ && d.missing != 0 && std::any_of(d.places.begin(), d.places.end(), is_to_come);
  if (d.began_ns != 0 && (now - d.began_ns < plan_.drift.pause_ns || awaited)) {
    c.next_sample = c.invocations + plan_.drift.every;
    return false;
  }
  d.bursting = true;
  ++bursts_;
  d.began_ns = now;
  d.orders.clear();
  d.joined.clear();
  d.places.clear();
  d.rows.clear();
  d.missing = plan_.drift.samples * participants_.size();
  d.again = 0;
  return true;
}

// The first of a burst makes both ends read their clocks, and is not counted, nor is what follows it in its batch; after the last one
// they stop.
assignment::choice assignment::choose_sample(campaign& c, const asked_call& call) {
  drift_watch& d = *c.drift;
  const choice plain{c.digest, stamp_flags::none};
  const choice timed{c.digest, stamp_flags::timed};
  const std::uint64_t batch = call.terms.batch;
  if (batch != 0 && batch < c.batch) return plain;  // a later one has begun
  const bool goes_on = batch != 0 && batch == std::exchange(c.batch, std::max(c.batch, batch));
  if (!d.bursting) return begin_burst(c, call.now) ? timed : plain;
  if (d.orders.empty()) d.rows.reserve(d.missing);
  if (goes_on && d.places.empty()) return d.orders.empty() ? timed : plain;  // the last ones have been looked at
  if (goes_on && d.joined.size() == plan_.drift.samples * (most_together - 1)) return plain;
  if (!goes_on && d.repetitions() == plan_.drift.samples) {
    end_burst(c);
    c.next_sample = c.invocations + plan_.drift.every;
    return plain;
  }
  d.orders.push_back(order_);
  d.places[{call.tag, call.invocation}] = order_;
  if (goes_on) {
    d.joined.push_back(order_);
    d.missing += participants_.size();
  }
  const bool last = d.repetitions() == plan_.drift.samples;
  return {c.digest, last ? stamp_flags::timed | stamp_flags::flush : stamp_flags::timed};
}

// The next invocation takes its place. Where sizes are never as foreseen the burst stays incomplete.
bool assignment::withdraw_sample(campaign& c, std::uint32_t tag, std::uint64_t invocation) {
  drift_watch& d = *c.drift;
  const auto place = d.places.find({tag, invocation});
  if (place == d.places.end()) return false;
  if (c.where == campaign::stage::decided && d.again < plan_.drift.samples) {
    ++d.again;
    std::erase(d.orders, place->second);
    c.next_sample = c.invocations;
    if (!std::exchange(d.bursting, true)) ++bursts_;
  }
  d.places.erase(place);
  return true;
}

bool assignment::add_sample(campaign& c, rank_id participant, const wire_row& r) {
  drift_watch& d = *c.drift;
  const auto place = d.places.find({r.tag, r.invocation});
  if (place == d.places.end()) return false;
  const bool ours = std::find(participants_.begin(), participants_.end(), participant) != participants_.end();
  const bool measured = r.status != cancelled_row && r.status != late_row;
  if (!ours || is_reported(d.rows, participant, place->second) || !measured || d.missing == 0) return true;
  keep_row(d.rows, participant, place->second, r);
  --d.missing;
  return true;
}

void assignment::watch_drift(time_ns now, std::span<const tuning::participant_clock> clocks) {
  for (auto& c : campaigns_) {
    if (c->drift == nullptr || c->where != campaign::stage::decided) continue;
    drift_watch& d = *c->drift;
    if (d.repetitions() != plan_.drift.samples || d.missing != 0) continue;
    const tuning::aggregate burst = tuning::aggregate_candidate(d.rows, {.digest = c->digest,
                                                                         .participants = participants_,
                                                                         .invocations = d.orders,
                                                                         .clocks = clocks,
                                                                         .joined = d.joined});
    has_drifted(*c, burst, now);
  }
}

bool assignment::has_drifted(campaign& c, const tuning::aggregate& burst, time_ns now) {
  drift_watch& d = *c.drift;
  free_all_of(d.places);  // until the next burst
  free_all_of(d.rows);
  d.missing = 1;  // looked at: nothing more is to come of this burst
  if (d.detector.add(burst) != tuning::drift::changed || now < d.search_not_before_ns) return false;
  d.digest_before = c.digest;
  d.searched = c.search + 1;
  return retune(c.bucket.largest_bytes(), in_words(d.detector.latest_ns(), d.detector.reference_ns()), now) != 0;
}

// As with stamps, the call that begins a burst is not counted: its clock was read too coarsely.
bool assignment::note_call(std::uint64_t bytes, std::uint64_t digest, time_ns took_ns, time_ns now) {
  if (latest_for(bytes) == nullptr && find(bytes) == nullptr) return false;
  campaign& c = campaign_of(bytes, now);
  if (c.where != campaign::stage::decided || c.digest != digest || ++c.invocations < c.next_sample) return false;
  drift_watch& d = *c.drift;
  if (!d.bursting) {
    begin_burst(c, now);
    return false;
  }
  const rank_id leader = participants_.front();
  d.orders.push_back(++order_);
  d.rows.push_back({leader, order_, digest, now - took_ns, now, tuning::row_status::ok});
  if (d.orders.size() < plan_.drift.samples) return false;
  const tuning::aggregate burst =
      tuning::aggregate_candidate(d.rows, {.digest = digest, .participants = {&leader, 1}, .invocations = d.orders});
  end_burst(c);
  c.next_sample = c.invocations + plan_.drift.every;
  return has_drifted(c, burst, now);
}

}  // namespace parley::actors
