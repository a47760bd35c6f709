#include <parley/actors/edge/edge_sender.hpp>
#include <parley/actors/generations.hpp>
#include <parley/tuning/payload_check.hpp>

#include <algorithm>
#include <bit>
#include <utility>

namespace parley::actors {

using runtime::errc;

static constexpr runtime::time_ns poison_pause_ns = 1'000'000;

edge_sender::edge_sender(services& s, const op_declaration& op, std::uint64_t generation, assignment& assigned,
                         window_limits w)
    : services_(s), assigned_(assigned), window_{.invocations = 0, .bytes = 0}, op_(op.id()), generation_(generation),
      self_(s.net.rank()), peer_(op.participants[1].rank), rows_(s.ex, s.clocks.skew()),
      default_digest_(op.default_digest), rehearsals_(s.first_invocation), full_window_(w),
      allowance_(s.allowance_for(peer_)) {
  services_.mail.bind<matched>(number_of(op_, part::data_sender), [this](runtime::envelope from, matched&& m) {
    if (is_for_us(from) && m.what == matched::kind::report) {
      if (m.ran != 0) check_what_ran(m);
      note_matched(m.stream, m.count);
    }
    return errc::none;
  });
  services_.mail.bind<matched_streams>(number_of(op_, part::data_sender),
                                       [this](runtime::envelope from, matched_streams&& m) {
                                         if (is_for_us(from)) hear_of_many(std::move(m));
                                         return errc::none;
                                       });
  assigned_.ask_begun([this](std::uint32_t tag, std::uint64_t invocation) { return is_matched(tag, invocation); });
  services_.mail.bind<gen_end>(number_of(op_, part::data_sender), [this](runtime::envelope from, gen_end&&) {
    if (is_for_us(from) && failed_ == errc::none && ended_there_) ended_there_();
    return errc::none;
  });
}

edge_sender::~edge_sender() { retire(); }

void edge_sender::retire() noexcept {
  if (std::exchange(retired_, true)) return;
  room_question_.stop();
  owed_poisons_.reset();
  give_allowance_back();
  services_.mail.unbind(number_of(op_, part::data_sender));
}

edge_sender::stream& edge_sender::find_or_add(std::uint64_t id) {
  if (stream* const known = streams_.find(id)) return *known;
  // The receiver reserves a place for the stream of rehearsals, even if there have been none.
  const bool has_rehearsed = streams_.find(stream_id(0, true)) != nullptr;
  if (!rehearses(id) && streams_.size() - (has_rehearsed ? 1 : 0) >= most_tags)
    runtime::raise({errc::bad_argument,
                    "an op uses more than " + std::to_string(most_tags) + " tags between two ranks; use fewer"});
  stream& made = streams_.add(id);
  made.admitted = made.matched = services_.first_invocation;
  return made;
}

// Notes the size of the next invocation.
void edge_sender::stream::note_size(std::uint64_t bytes, const window_limits& window) {
  if (sizes == nullptr && admitted == matched) {
    bytes_each = bytes;
    return;
  }
  if (sizes == nullptr) {
    const std::uint64_t ring = std::bit_ceil(std::max(window.invocations, admitted - matched + 1));
    sizes = std::make_unique<std::uint64_t[]>(ring);
    ring_mask = ring - 1;
    for (std::uint64_t n = matched; n < admitted; ++n) size_of(n) = bytes_each;
  }
  size_of(admitted) = bytes;
}

void edge_sender::stream::match_until(std::uint64_t count) noexcept {
  if (sizes == nullptr && count > matched) {
    unmatched_bytes -= (count - matched) * bytes_each;
    matched = count;
  }
  for (; matched < count; ++matched) unmatched_bytes -= size_of(matched);
}

bool edge_sender::has_room(const stream& s, std::uint64_t bytes) const noexcept {
  if (failed_ != errc::none || !(fits(s, bytes, full_window_) || s.admitted == s.matched)) return false;
  return may_leave_early(bytes);
}

std::uint64_t edge_sender::take_room(stream& s, std::uint64_t bytes) {
  if (!heard_) {
    const std::uint64_t cost = early_allowance::cost_of(bytes);
    const std::uint64_t half = allowance_.most_bytes() / 2;
    // Ask early, so that a receiver that has declared the op has replied before any send must wait.
    if (early_taken_ < half && early_taken_ + cost >= half) static_cast<void>(ask(s));
    allowance_.take(cost);
    early_taken_ += cost;
  }
  return s.take_room(bytes, full_window_);
}

bool edge_sender::awaits_answer(std::uint32_t tag, std::uint64_t bytes) {
  const stream& s = stream_of(tag);
  return (fits(s, bytes, full_window_) || s.admitted == s.matched) && !may_leave_early(bytes);
}

// The receiver has declared the op and joined this generation, so its end of this edge has received all earlier messages.
void edge_sender::on_answer() noexcept {
  const bool was_held = std::any_of(streams_.begin(), streams_.end(), [this](const auto& s) {
    return !s->waiting.empty() && !may_leave_early(s->waiting.front().owner->bytes_);
  });
  heard_ = true;
  window_ = full_window_;
  give_allowance_back();
  for (auto& s : streams_) admit_waiting(*s);
  if (was_held && room_question_.is_set())
    room_question_.begin(services_);  // some streams also lack room in their windows and have not asked
}

void edge_sender::wait_for_room(admission& a) {
  a.place_.owner = &a;
  stream& s = stream_of(a.tag_);
  const bool first = s.waiting.empty();
  s.waiting.push_back(a.place_);
  if (a.payload_ == nullptr && lacks_room(s)) ++counters_.waited_for_window;
  if (!first) return;
  if (!lacks_room(s)) return admit_waiting(s);                        // its credit may have arrived
  if (room_question_.is_set() && !may_leave_early(a.bytes_)) return;  // one answer serves all streams
  ask(s);
  room_question_.begin(services_);
}

bool edge_sender::knows_where(const stream& s, std::uint64_t bytes) noexcept {
  if (one_sided_ == nullptr) return true;
  const search* const its = assigned_.find(bytes);
  const bool decided = its != nullptr && its->is_decided();
  return (decided && !one_sided_->is_put(its->chosen().digest)) || one_sided_->may_put(s.id, s.admitted, bytes);
}

bool edge_sender::lacks_what_may_come(const stream& s, std::span<const std::byte> source) const noexcept {
  const search* const its = assigned_.find(source.size());
  if (its == nullptr || !its->is_decided() || failed_ != errc::none) return false;
  const auto what = one_sided_->lacks(its->chosen().digest, s.id, s.admitted, source);
  return what && may_come(*what);
}

runtime::time_ns edge_sender::patience_ns(const stream& s, std::span<const std::byte> source) noexcept {
  const search* const its = assigned_.find(source.size());
  return its->worth_waiting_ns(lacking(s.id, {source, nullptr}, s.admitted, its)) >> s.in_vain;
}

// True if the first call in line waits for the unmet need of its decided config. This wait begins when nothing else holds the call back.
bool edge_sender::goes_on_waiting(stream& s, admission& first) noexcept {
  constexpr unsigned most_halvings = 6;
  if (one_sided_ == nullptr || first.source_ == nullptr) return false;
  const bool lacks = lacks_what_may_come(s, first.source());
  if (lacks && first.patient_until_ == 0) {
    runtime::time_ns span = patience_ns(s, first.source());
    if (first.deadline_ != runtime::never)
      span = std::min(span, (first.deadline_ - services_.ex.deadline_in(0)) / 2);  // the rest is for the other config
    if (span <= 0) return false;
    first.patient_until_ = services_.ex.deadline_in(span);
    ++counters_.waited_for_decided;
  }
  if (first.patient_until_ == 0) return false;
  if (lacks && !services_.ex.is_over(first.patient_until_)) {
    if (s.patience == nullptr) s.patience = std::make_unique<patience_timer>(*this, s);
    runtime::timer_wheel::disarm(*s.patience);
    services_.ex.arm(*s.patience, first.patient_until_);
    return true;
  }
  counters_.waited_in_vain += lacks ? 1 : 0;
  s.in_vain = lacks ? std::min(s.in_vain + 1, most_halvings) : 0;
  return false;
}

void edge_sender::admit_waiting(stream& s) noexcept {
  admit_those_with_room(s);
  if (failed_ != errc::none || !lacks_room(s) || room_question_.is_set()) return;
  ask(s);
  room_question_.begin(services_);
}

void edge_sender::admit_those_with_room(stream& s) noexcept {
  while (failed_ == errc::none && !s.waiting.empty() && !lacks_room(s)) {
    admission& first = *s.waiting.front().owner;
    if (first.home->cancelled() != errc::none) break;  // it is about to resume, cancelled
    if (services_.ex.is_over(first.deadline_)) {       // this may also be the call that made room by giving up
      first.finish(errc::timeout);
      continue;
    }
    const bool written = first.payload_ == nullptr || first.payload_->is_over();
    if (!written && !knows_where(s, first.bytes_)) break;
    if (goes_on_waiting(s, first)) break;
    if (s.patience != nullptr) runtime::timer_wheel::disarm(*s.patience);
    first.invocation_ = take_room(s, first.bytes_);
    first.admitted_to_ = &s;
    ++s.admitted_only;
    first.finish(errc::none);
  }
}

void edge_sender::note_matched(std::uint64_t id, std::uint64_t count) noexcept {
  stream* const known = streams_.find(id);  // null if nothing was ever sent on it
  if (known != nullptr) {
    // The receiver makes progress, so a stream that still waits asks again after the first, short pause.
    if (count > known->matched && room_question_.is_set()) room_question_.begin(services_);
    known->match_until(std::min(count, known->admitted));
  }
  if (!heard_ && failed_ == errc::none) [[unlikely]] {
    on_answer();
  } else if (known != nullptr) {
    admit_waiting(*known);
  }
}

// Checks S2 for a sample of the calls without rows, which are not timed.
void edge_sender::check_what_ran(const matched& m) noexcept {
  constexpr std::uint64_t looked_at = 64;
  const auto is_it = [&](const runtime::flight_record& r) {
    return r.op == op_ && r.generation == generation_ && r.invocation == m.ran_invocation &&
           r.what == runtime::flight_event::sent && stream_id(r.tag, (r.flags & 4U) != 0) == m.stream;
  };
  const auto* const mine = services_.flight.find_latest(is_it, looked_at);
  if (mine == nullptr || mine->digest == m.ran) return;
  runtime::blame({"S2", "a receiver runs what its invocation is stamped with", {op_, self_}}, peer_);
  if (mine->digest == default_digest_) return;
  assigned_.quarantine(mine->bytes, mine->digest, services_.ex.now(),
                       "rank " + std::to_string(peer_) + " says that it ran another config in invocation " +
                           std::to_string(m.ran_invocation));
}

bool edge_sender::ask(const stream& s) {
  matched m;
  m.what = matched::kind::question;
  m.stream = s.id;
  const bool sent = services_.mail.send(peer_, number_of(op_, part::data_receiver), generation_, m) == errc::none;
  counters_.questions_sent += sent ? 1 : 0;
  return sent;
}

bool edge_sender::is_matched(std::uint32_t tag, std::uint64_t invocation) {
  const stream* const s = streams_.find(stream_id(tag, false));
  if (s == nullptr || invocation < s->matched) return true;
  static_cast<void>(ask(*s));
  return false;
}

bool edge_sender::all_matched() {
  std::size_t unmatched = 0;
  const stream* one = nullptr;
  for (const auto& s : streams_) {
    if (s->matched == s->admitted) continue;
    ++unmatched;
    one = s.get();
  }
  if (unmatched == 1) static_cast<void>(ask(*one));
  if (unmatched > 1) ask_of_many(unmatched);
  return unmatched == 0;
}

// If the control window has no room for all questions, the next call starts with the first stream that was not asked about.
void edge_sender::ask_of_many(std::size_t unmatched) {
  matched_streams m;
  const auto count = static_cast<std::uint32_t>(streams_.size());
  const std::uint32_t first = first_of_many_;
  for (std::uint32_t i = 0; unmatched != 0; ++i) {
    const std::uint32_t at = (first + i) % count;
    const stream& s = streams_[at];
    if (s.matched == s.admitted) continue;
    if (m.streams.empty()) first_of_many_ = at;
    m.streams.push_back({s.id, s.matched});
    --unmatched;
    if (!m.full() && unmatched != 0) continue;
    if (services_.mail.send(peer_, number_of(op_, part::data_receiver), generation_, m) != errc::none) return;
    ++counters_.questions_sent;
    m.streams.clear();
  }
}

void edge_sender::hear_of_many(matched_streams&& m) {
  using kind = matched_streams::kind;
  if (m.what != kind::report && m.what != kind::last_words) return;
  for (const matched_stream& s : m.streams) note_matched(s.stream, s.count);
  if (m.what == kind::report) return;
  m.what = kind::heard;
  m.streams.clear();
  static_cast<void>(services_.mail.send(peer_, number_of(op_, part::data_receiver), generation_, m));
}

edge_sender::delivered edge_sender::delivery() const noexcept {
  delivered all;
  for (const auto& s : streams_) {
    all.sent += s->admitted - services_.first_invocation;
    all.unmatched += s->admitted - s->matched;
  }
  return all;
}

// If the control window has no room for a question, the next round starts with that stream.
void edge_sender::ask_for_room() noexcept {
  bool waiting = false;
  const auto count = static_cast<std::uint32_t>(streams_.size());
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint32_t at = (first_to_ask_for_ + i) % count;
    if (!heard_) admit_those_with_room(streams_[at]);  // another edge may have returned its part of the allowance
    if (!lacks_room(streams_[at])) continue;
    waiting = true;
    const bool awaits_any_answer = !may_leave_early(streams_[at].waiting.front().owner->bytes_);
    if (ask(streams_[at]) && !awaits_any_answer) continue;
    first_to_ask_for_ = at;
    break;
  }
  if (!waiting) return;
  room_question_.go_on(services_);
}

void edge_sender::allow_one_sided(std::vector<std::uint64_t> puts, std::vector<std::uint64_t> gets) {
  one_sided_sender::edge mine;
  mine.op = op_;
  mine.generation = generation_;
  mine.peer = peer_;
  mine.next = [this](std::uint64_t id) {
    if (id == stream_id(0, true)) return rehearsals_;
    const stream* const known = streams_.find(id);
    return known == nullptr ? services_.first_invocation : known->admitted - known->admitted_only;
  };
  mine.credited = [this](std::uint64_t id) {
    if (stream* const known = streams_.find(id)) admit_waiting(*known);
  };
  mine.memory_known = [this] {
    for (auto& s : streams_) {
      if (!s->waiting.empty()) admit_waiting(*s);
    }
  };
  one_sided_ = std::make_unique<one_sided_sender>(services_, std::move(mine), std::move(puts), std::move(gets));
  unusual_ = true;
}

void edge_sender::compare_trials(std::vector<std::uint64_t> inexact) {
  inexact_ = std::make_unique<std::vector<std::uint64_t>>(std::move(inexact));
  unusual_ = true;
}

void edge_sender::note_variant(std::uint64_t candidate, std::uint64_t own) {
  if (one_sided_ != nullptr) one_sided_->note_variant(candidate, own);
  if (inexact_ != nullptr) list_like(*inexact_, own, candidate);
}

void edge_sender::allow_pieces(std::function<bool(std::uint64_t digest)> goes_by_piece) {
  by_piece_ = std::move(goes_by_piece);
  unusual_ = true;
}

bool edge_sender::is_by_piece(std::uint64_t digest) const { return by_piece_ && by_piece_(digest); }

outgoing edge_sender::begin_unusual(std::uint32_t tag, const sent_payload& what, std::uint64_t invocation,
                                    const trial_terms& terms) {
  const bool plain = one_sided_ == nullptr && !by_piece_;
  outgoing inv = plain ? begin_with(tag, what.bytes.size(), invocation, terms, {}, stamp_flags::none)
                       : begin_beside_others(tag, what, invocation, terms);
  const std::uint64_t digest = inv.mark.digest;
  const search* const its = assigned_.find(what.bytes.size());
  const bool settled = its != nullptr && its->is_decided();
  const bool one_sided = one_sided_ != nullptr && (one_sided_->is_put(digest) || one_sided_->is_get(digest));
  if (settled && its->chosen().digest == digest && !one_sided && !is_by_piece(digest)) settled_on_ = digest;
  // During a search the default and warm-ups are also checked: a config that delivers other bytes is found before it is timed.
  if (!settled || has(inv.mark.flags, stamp_flags::timed)) say_what_is_sent(inv, what);
  return inv;
}

// Puts the payload's check into the stamp. The receiver compares it.
void edge_sender::say_what_is_sent(outgoing& inv, const sent_payload& what) {
  if (inexact_ == nullptr || what.bytes.empty()) return;
  if (std::find(inexact_->begin(), inexact_->end(), inv.mark.digest) != inexact_->end()) return;
  // Pieces are not packed yet, and perhaps never will be.
  inv.mark.next_digest =
      what.pieces == nullptr ? tuning::payload_check(what.bytes) : tuning::check_of_pieces(what.pieces->all);
  inv.mark.flags = inv.mark.flags | stamp_flags::checked;
  inv.began_ns = rows_.clock();  // the check is not charged to the config
}

// Stamps the invocation. A config with a need is chosen only if the need is met now.
outgoing edge_sender::begin_beside_others(std::uint32_t tag, const sent_payload& what, std::uint64_t invocation,
                                          const trial_terms& terms) {
  const std::uint64_t id = stream_id(tag, false);
  const search* const its = assigned_.find(what.bytes.size());
  const bool settled = its != nullptr && its->is_decided();
  const bool is_not_put = one_sided_ != nullptr && settled && !one_sided_->is_put(its->chosen().digest);
  outgoing inv = begin_with(tag, what.bytes.size(), invocation, terms, lacking(id, what, invocation, its),
                            is_not_put ? stamp_flags::no_credits : stamp_flags::none);
  if (one_sided_ != nullptr) inv.access = one_sided_->begin(inv.mark.digest, id, invocation, what.bytes);
  return inv;
}

std::span<const lacking_config> edge_sender::lacking(std::uint64_t id, const sent_payload& what,
                                                     std::uint64_t invocation, const search* its) {
  std::span<const lacking_config> some;
  if (one_sided_ != nullptr) some = one_sided_->lacking(id, invocation, what.bytes);
  using likeness = payload_pieces::likeness;
  if (!by_piece_ || (what.pieces != nullptr && what.pieces->like == likeness::alike)) return some;
  // The decided config does not need pieces, so drift is watched as usual.
  const bool settled = its != nullptr && its->is_decided();
  if (some.empty() && settled && !is_by_piece(its->chosen().digest)) return some;
  const unmet_need why = what.pieces == nullptr                  ? unmet_need::pieces
                         : what.pieces->like == likeness::unlike ? unmet_need::like_pieces
                                                                 : unmet_need::word_of_pieces;
  lacking_.assign(some.begin(), some.end());
  for (const std::uint64_t digest : assigned_.candidates()) {
    if (by_piece_(digest)) lacking_.push_back({digest, why});
  }
  return lacking_;
}

bool edge_sender::ready_to_rehearse(std::uint64_t digest, std::span<const std::byte> source) const {
  if (one_sided_ == nullptr || failed_ != errc::none) return true;
  const auto lacking = one_sided_->lacking(stream_id(0, true), rehearsals_, source);
  return std::none_of(lacking.begin(), lacking.end(), [&](const lacking_config& l) { return l.digest == digest; });
}

outgoing edge_sender::begin_rehearsal(std::uint64_t digest, std::uint64_t bytes, const std::byte* source) {
  outgoing inv = stamped(digest, stamp_flags::rehearsal, 0, bytes, rehearsals_++);
  if (one_sided_ != nullptr)
    inv.access = one_sided_->begin(digest, stream_id(0, true), inv.invocation, {source, bytes});
  return inv;
}

void edge_sender::say_later(const stamp& poison) noexcept {
  constexpr std::size_t most_owed = 1'024;
  if (failed_ != errc::none || retired_) return;  // the receiver learns of the end in another way
  if (owed_poisons_ == nullptr) owed_poisons_ = std::make_unique<poison_timer>(*this);
  owed_poisons_->owed.push_back(poison);
  if (owed_poisons_->owed.size() > most_owed)
    return services_.give_up(peer_, "the transport accepts no messages to it");
  if (!owed_poisons_->linked()) services_.ex.arm_in(*owed_poisons_, poison_pause_ns);
}

void edge_sender::say_owed() noexcept {
  const std::vector<stamp> owed = std::exchange(owed_poisons_->owed, {});
  for (const stamp& s : owed) {
    const errc sent = services_.net.send(peer_, runtime::link::channel::data, bytes_of(s), {}, nullptr);
    if (sent != errc::none && sent != errc::pending) say_later(s);
  }
}

// Reports a real invocation to the assignment.
void edge_sender::learn(const outgoing& inv, errc outcome, runtime::time_ns ended_ns) noexcept {
  if (rows_.measuring() && outcome == errc::none && inv.mark.digest == default_digest_)
    assigned_.note_default(inv.mark.total_bytes, ended_ns - inv.began_ns);
  if (!blames_config(outcome) || inv.mark.digest == default_digest_) return;
  services_.note_step(
      runtime::flight_event::quarantined, op_, generation_,
      {.invocation = 1, .digest = inv.mark.digest, .bytes = inv.mark.total_bytes, .tag = services_.net.rank()});
  assigned_.quarantine(inv.mark.total_bytes, inv.mark.digest, services_.ex.now(),
                       "invocation " + std::to_string(inv.invocation) + " ended at the sender with " +
                           std::string(runtime::name(outcome)));
}

void edge_sender::fail(errc why, one_sided_sender::reader receiver) noexcept {
  failed_ = why;
  owed_poisons_.reset();
  window_ = {.invocations = 0, .bytes = 0};
  give_allowance_back();
  if (one_sided_ != nullptr) one_sided_->fail(why, receiver);
  for (auto& s : streams_) {
    if (s->patience != nullptr) runtime::timer_wheel::disarm(*s->patience);
    while (!s->waiting.empty()) s->waiting.front().owner->finish(why);
  }
}

void edge_sender::list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all) {
  for (auto& s : streams_) {
    std::uint64_t next = s->admitted;
    s->waiting.for_each([&](const admission::place& place) {
      const admission& a = *place.owner;
      runtime::waiting_call& w = all.calls.emplace_back(of);
      w.tag = tag_of_stream(s->id);
      w.invocation = next++;
      w.bytes = a.bytes_;
      w.since_ns = a.since_ns_;
      const bool by_kernels = a.payload_ != nullptr && !a.payload_->is_over();
      w.lacks = by_kernels              ? "kernels of this rank that write its payload"
                : a.patient_until_ != 0 ? "a credit or confirmation that its decided config needs, for a moment"
                                        : "room: earlier messages are not received yet";
      if (!by_kernels) w.peers = {peer_};
    });
  }
}

std::string edge_sender::begun_in_words(std::uint32_t tag) const {
  constexpr std::size_t most_words = 100;
  std::uint64_t of_it = 0;
  std::string others;
  for (const auto& s : streams_) {
    if (rehearses(s->id)) continue;
    const std::uint64_t begun = s->admitted - services_.first_invocation;
    if (tag_of_stream(s->id) == tag) {
      of_it = begun;
    } else if (others.size() < most_words) {
      others += (others.empty() ? ", and " : ", ") + std::to_string(begun) + " of tag " +
                std::to_string(tag_of_stream(s->id));
    }
  }
  return "has sent " + std::to_string(of_it) + " messages of tag " + std::to_string(tag) + others;
}

}  // namespace parley::actors
