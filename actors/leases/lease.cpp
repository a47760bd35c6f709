#include <parley/actors/leases/lease.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

using runtime::invariant;

lease lease_log::assigned(std::uint64_t invocation) const noexcept {
  // The latest entry that covers the invocation counts, usually the last one.
  for (auto e = entries_.rbegin(); e != entries_.rend(); ++e) {
    if (e->what == lease_entry::kind::aborted || invocation < e->from) continue;
    std::uint64_t place = invocation - e->from;
    for (std::size_t s = 0; s < e->segments.size(); ++s) {
      const auto& [digest, count] = e->segments[s];
      if (place < count) {
        const bool last = s + 1 == e->segments.size() && place + 1 == count;
        return {invocation, digest, last ? lease::part::last_trial : lease::part::trial};
      }
      place -= count;
    }
    return {invocation, e->tail, lease::part::steady};
  }
  return {invocation, default_digest_, lease::part::steady};
}

std::uint64_t lease_log::tail() const noexcept {
  for (auto e = entries_.rbegin(); e != entries_.rend(); ++e) {
    if (e->what == lease_entry::kind::scheduled) return e->tail;
  }
  return default_digest_;
}

std::vector<lease_entry> lease_log::suffix(std::size_t after) const {
  return {entries_.begin() + static_cast<std::ptrdiff_t>(std::min(after, entries_.size())), entries_.end()};
}

lease_log::merge_result lease_log::merge(std::uint64_t after, const std::vector<lease_entry>& suffix) {
  if (after > entries_.size()) return merge_result::gap;
  const auto shared = std::min<std::size_t>(entries_.size() - static_cast<std::size_t>(after), suffix.size());
  const auto first_new = suffix.begin() + static_cast<std::ptrdiff_t>(shared);
  // S1: an assignment never changes.
  if (!std::equal(suffix.begin(), first_new, entries_.begin() + static_cast<std::ptrdiff_t>(after)))
    return merge_result::contradiction;
  if (first_new == suffix.end()) return merge_result::nothing_new;
  entries_.insert(entries_.end(), first_new, suffix.end());
  return merge_result::longer;
}

// ---- a participant ----------------------------------------------------------------------------------------------------

lease lease_reader::start() {
  invariant(may_start(), {"S2", "an invocation at or past the gate starts only with a lease", here_});
  return log_.assigned(next_++);
}

lease_answer lease_reader::say(lease_answer::kind what) const noexcept {
  return {.what = what, .generation = generation_, .campaign = 0, .from = 0, .known = log_.size()};
}

lease_answer lease_reader::repeated() const noexcept {
  if (!gate_ || log_.size() >= gate_->campaign) return say(lease_answer::kind::known);
  lease_answer a = say(lease_answer::kind::promise);
  a.campaign = gate_->campaign;
  a.from = gate_->from;
  return a;
}

lease_answer lease_reader::on_prepare(const lease_letter& l, std::uint64_t margin) {
  if (is_later_generation(l.generation, generation_)) return say(lease_answer::kind::new_generation);
  if (l.generation != generation_) return {};
  const auto merged = log_.merge(l.after, l.entries);
  if (merged == lease_log::merge_result::contradiction) return say(lease_answer::kind::contradiction);
  if (log_.size() >= l.campaign) return say(lease_answer::kind::known);  // resolved already
  if (gate_ && gate_->campaign == l.campaign) return repeated();         // S7: the same k for each repetition
  if (l.campaign != log_.size() + 1) {
    lease_answer a = say(lease_answer::kind::refuse);
    a.campaign = l.campaign;
    return a;
  }
  invariant(!gate_ || gate_->campaign < l.campaign, {"S7", "a promise stays until its campaign is resolved", here_});
  gate_ = gate{l.campaign, next_ + margin};
  return repeated();
}

lease_answer lease_reader::on_schedule(const lease_letter& l) {
  if (is_later_generation(l.generation, generation_)) return say(lease_answer::kind::new_generation);
  if (l.generation != generation_) return {};
  const auto merged = log_.merge(l.after, l.entries);
  const bool contradicts = merged == lease_log::merge_result::contradiction;
  return say(contradicts ? lease_answer::kind::contradiction : lease_answer::kind::known);
}

// ---- the coordinator --------------------------------------------------------------------------------------------------

void lease_writer::prepare() {
  invariant(!preparing_, {"S1", "one campaign at a time may add to the log", here_});
  preparing_ = true;
  for (reader& h : readers_) h.promise.reset();
}

void lease_writer::resolve(lease_entry e) {
  preparing_ = false;
  log_.append(std::move(e));
}

void lease_writer::abort() {
  invariant(preparing_, {"S1", "a campaign whose entry exists is not aborted", here_});
  resolve({});
}

std::uint64_t lease_writer::first() const noexcept {
  std::uint64_t k = 0;
  for (const reader& h : readers_) k = std::max(k, h.promise.value_or(0));
  return k;
}

std::uint64_t lease_writer::schedule(std::vector<lease_segment> segments, std::uint64_t tail, std::uint64_t round) {
  invariant(preparing_ && all_promised(), {"S1", "an entry needs everyone's promise", here_});
  const std::uint64_t k = first();
  resolve({lease_entry::kind::scheduled, k, std::move(segments), tail, round});
  return k;
}

bool lease_writer::all_promised() const noexcept {
  return std::all_of(readers_.begin(), readers_.end(), [](const reader& h) { return h.promise.has_value(); });
}

lease_writer::heard lease_writer::on_answer(std::size_t participant, const lease_answer& a) {
  if (a.generation != generation_) return heard::noted;
  reader& h = readers_[participant];
  if (a.known > log_.size()) return heard::broken;  // the participant acknowledges entries that were never written
  h.known = std::max(h.known, static_cast<std::size_t>(a.known));
  const bool of_now = preparing_ && a.campaign == campaign();
  switch (a.what) {
    case lease_answer::kind::promise:
      if (!of_now) return heard::noted;
      if (h.promise) return *h.promise == a.from ? heard::noted : heard::broken;  // S7
      h.promise = a.from;
      return all_promised() ? heard::complete : heard::noted;
    case lease_answer::kind::refuse: return of_now ? heard::refused : heard::noted;
    default: return heard::noted;
  }
}

lease_letter lease_writer::letter_to(std::size_t participant) const {
  const reader& h = readers_[participant];
  lease_letter l;
  l.generation = generation_;
  l.after = h.known;
  l.entries = log_.suffix(h.known);
  if (preparing_ && !h.promise) {
    l.what = lease_letter::kind::prepare;
    l.campaign = campaign();
  } else if (!l.entries.empty()) {
    l.what = lease_letter::kind::schedule;
  }
  return l;
}

}  // namespace parley::actors
