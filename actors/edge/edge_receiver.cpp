#include <parley/actors/edge/edge_receiver.hpp>

#include <parley/actors/agreement/ended.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {

constexpr std::uint64_t report_every_bytes = 2U << 20U;
constexpr std::size_t most_words_of_tags = 100;
// A receive past its deadline is stalled if no data has arrived for this long. A receive whose part was taken back waits as long for the
// reason.
constexpr runtime::time_ns quiet_for_ns = 1'000'000'000;

}  // namespace

// ---- one receive ------------------------------------------------------------------------------------------------------

// The memory is about to be freed, so neither the transport nor the sender may write into it any more.
void part_receiver::let_go_of_memory() noexcept {
  if (place_ != place::gone && one_sided_->credit != 0 && !stamped_) one_sided_->region->withdraw_from_the_dead();
  if (one_sided_->to_be_got) std::erase(edge_.one_sided_->being_read, edge_receiver::payload_id{stream_.id, index_});
}

runtime::result<stamp> part_receiver::outcome() const noexcept {
  if (failed() != errc::none) return failed();
  return stamp_;
}

void part_receiver::end(errc why) noexcept {
  if (one_sided_ != nullptr && one_sided_->to_be_got && !stamped_)
    edge_.report_taken(stream_.id, index_, refused_ ? errc::buffer_too_small : why);
  if (place_ == place::posted) index_ = stream_.first_posted + place_in_line();
  uncount();
  unlink();
  place_ = place::gone;
  fail(why);
  if (watcher_ != nullptr) static_cast<void>(std::exchange(watcher_, nullptr)->on_decided(*this));
}

std::uint64_t part_receiver::place_in_line() const noexcept {
  std::uint64_t before = 0;
  static_cast<void>(stream_.posted.find_if([&](const part_receiver& each) {
    before += &each == this ? 0 : 1;
    return &each == this;
  }));
  return before;
}

void part_receiver::give_up(errc why) noexcept {
  if (decided()) return;
  if (!edge_.must_ask_first(*this)) {
    end(why);
  } else if (one_sided_->leaving == errc::none) {
    one_sided_->leaving = why;
  }
}

// Writes can come from the transport, or from the sender if it has a credit for the buffer.
bool part_receiver::may_be_written() noexcept {
  if (!stamped_ && one_sided_ != nullptr && one_sided_->credit != 0) return true;
  return parts_.find_if([](const transfer_part& p) { return p.with_transport; }) != nullptr;
}

void part_receiver::end_stalled() noexcept {
  if (!stamped_) return end(errc::timeout);
  if (taken_back_) {
    fail(errc::send_failed);
    return wake_if_settled();
  }
  kept().mismatch = "the rest of the message did not arrive in time: the sender stopped, or data was lost";
  fail(errc::timeout);
  wake_if_settled();
}

// A sender takes a part back at once, without a message. Its poison, or the news that it was refused or is gone, is still on its way, and
// ends this receive with the reason.
bool part_receiver::awaits_reason(transfer_part& p) noexcept {
  if (failed() != errc::none) return false;
  p.with_transport = false;
  taken_back_ = true;
  expire_at(edge_.services_.ex.now());
  return true;
}

// If all bytes have arrived and a receive of a part still waits, the sender has cut the payload differently.
void part_receiver::fail_if_unmet() noexcept {
  if (taken_back_ || arrived_bytes_ < stamp_.total_bytes || in_flight() == 0) return;
  const transfer_part* const unmet = parts_.find_if([](const transfer_part& p) { return !p.with_transport; });
  if (unmet != nullptr)
    fail_unpaired("all bytes have arrived, but the sender sent no part of " + std::to_string(unmet->into.size()) +
                  " bytes at offset " + std::to_string(unmet->offset));
}

void part_receiver::fail_unpaired(std::string what) noexcept {
  if (failed() == errc::none) kept().mismatch = "its sender and receiver halves do not match: " + std::move(what);
  fail(errc::config_failed);
}

void part_receiver::expire_at(time_ns deadline) noexcept {
  if (deadline == runtime::never || place_ == place::gone) return;
  deadline_ = deadline;
  edge_.look_at(deadline);
}

part_receiver::pieces::~pieces() = default;

part_receiver::pieces& part_receiver::kept() {
  if (pieces_ == nullptr) pieces_ = std::make_unique<pieces>();
  return *pieces_;
}

void part_receiver::note_copied(std::uint64_t bytes) noexcept {
  if (!has(stamp_.flags, stamp_flags::rehearsal)) edge_.counters_.copied_bytes += bytes;
}

void part_receiver::bring(transfer_part& wanted, runtime::arrival&& message) noexcept {
  if (message.length() != wanted.into.size())
    return fail_unpaired("the part at offset " + std::to_string(wanted.offset) + " has " +
                         std::to_string(message.length()) + " bytes, but the receiver asked for " +
                         std::to_string(wanted.into.size()));
  received_bytes_ += message.length();
  if (!message.remote()) note_copied(message.length());
  wanted.with_transport = true;
  const errc started = wanted.of_device ? net_.fetch_device(std::move(message), wanted.into, &wanted)
                                        : net_.fetch(std::move(message), wanted.into, &wanted);
  if (started != errc::pending) ended(&wanted, started);
}

// The first part that arrives defines the invocation.
inline void part_receiver::accept(const stamp& s, runtime::arrival&& message) noexcept {
  if (edge_.one_sided_ != nullptr) {
    edge_.one_sided_->note(s.flags);
    if (one_sided_ != nullptr || has(s.flags, stamp_flags::landed | stamp_flags::to_be_got)) {
      const errc wrong = read_one_sided(s, message);
      if (wrong != errc::none) return end(wrong);
    }
  }
  // Checked before anything is written (S8).
  const bool fits = s.total_bytes - takes_.least_bytes <= takes_.most_bytes - takes_.least_bytes;
  if (!fits || !is_of_its_type(s)) [[unlikely]]
    return refuse(s, std::move(message));
  stamp_ = s;
  stamped_ = true;
  edge_.note_matched(stream_, s.total_bytes);
  std::span<std::byte> into;
  if (watcher_ != nullptr) into = std::exchange(watcher_, nullptr)->on_decided(*this);
  if (!into.empty() && s.offset == 0 && message.length() == into.size()) {
    arrived_bytes_ = received_bytes_ = into.size();
    if (!message.remote()) note_copied(into.size());
    if (message.remote() || edge_.fetch_may_wait_) {
      transfer_part* const part = new_part();
      part->into = into;
      started(part, net_.fetch(std::move(message), into, part));
    } else {
      const errc fetched = net_.fetch(std::move(message), into, nullptr);
      if (fetched != errc::none) {
        received_bytes_ = 0;
        fail(fetched);
      }
    }
    wake_if_settled();
    return;
  }
  if (!into.empty()) ask(0, into);
  keep(s, std::move(message));
}

void part_receiver::refuse(const stamp& s, runtime::arrival&& message) noexcept {
  // The config is not to blame for a refusal, but the search must not wait for the row of this trial.
  if (!is_plain(s.flags))
    note_trial(
        edge_.rows_,
        {.mark = s, .invocation = index_, .ran = s.digest, .began_ns = posted_ns_, .outcome = errc::buffer_too_small},
        edge_.rows_.clock());
  stamp_ = s;
  refused_ = true;
  const errc size = s.total_bytes > takes_.most_bytes ? errc::buffer_too_small : errc::bad_argument;
  const errc why = is_of_its_type(s) ? size : errc::declaration_mismatch;
  if (edge_.refused_) edge_.refused_(*this, why);
  if (message.remote()) edge_.keep_refused(stream_, index_, std::move(message));
  end(why);
}

// A sender has such an error only if its op was refused. The leader sends the refusal to all ranks of the op.
static bool is_of_a_refused_op(errc at_sender) noexcept {
  return at_sender == errc::declaration_mismatch || at_sender == errc::role_conflict;
}

void part_receiver::deliver(const stamp& s, runtime::arrival&& message) noexcept {
  if (place_ == place::gone || failed() != errc::none) return;
  if (has(s.flags, stamp_flags::poison)) {
    if (is_of_a_refused_op(reason_of(s))) return;  // the refusal arrives separately, with a text, and ends all calls
    if (has(s.flags, stamp_flags::flush)) edge_.rows_.flush(s.tag, index_);
    if (!stamped_) stamp_ = s;
    sender_failure_ = reason_of(s);
    const bool leaves = one_sided_ != nullptr && one_sided_->leaving != errc::none;
    end(leaves ? one_sided_->leaving : as_seen_by_other_end(sender_failure_));
  } else if (!stamped_) {
    accept(s, std::move(message));
  } else if (s.digest != stamp_.digest || s.total_bytes != stamp_.total_bytes) {
    runtime::blame({"S1", "stamps of one invocation name one config and size", edge_.here()}, edge_.peer_);
    end(errc::config_mismatch);
  } else {
    keep(s, std::move(message));
  }
}

namespace {
// A range of a payload. A part that the sender has cut, and a part that the receiver asks for, must be the same range or have no byte in
// common. Otherwise each end would wait for ever for the next part of the other end.
struct range {
  std::uint64_t offset;
  std::uint64_t bytes;
  static range of(const transfer_part& p) noexcept { return {p.offset, p.into.size()}; }
  bool overlaps(const range& other) const noexcept {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  }
};
std::string sentence_of(const range& sent, const range& asked_for) {
  return "the sender sent " + std::to_string(sent.bytes) + " bytes at offset " + std::to_string(sent.offset) +
         ", but the receiver asked for " + std::to_string(asked_for.bytes) + " bytes at offset " +
         std::to_string(asked_for.offset);
}
}  // namespace

// Delivers the part to the caller that has asked for it, or keeps it until a caller asks.
void part_receiver::keep(const stamp& s, runtime::arrival&& message) noexcept {
  if (s.total_bytes == 0 || has(s.flags, stamp_flags::landed) || has(s.flags, stamp_flags::to_be_got)) return;
  const bool whole = message.length() == s.total_bytes;
  const bool impossible = message.length() == 0 || message.length() > s.total_bytes - s.offset;
  if (impossible || all_here() || (!whole && !kept().seen_offsets.insert(s.offset).second)) {
    ++edge_.counters_.dropped;
    return;
  }
  // With overlapping parts, a sender could occupy more of this rank's memory than the size of the payload.
  if (message.length() > s.total_bytes - arrived_bytes_) {
    runtime::blame({"S8", "parts of one payload do not overlap", edge_.here()}, edge_.peer_);
    fail_unpaired("more bytes arrived than the payload has");
    return;
  }
  arrived_bytes_ += message.length();
  const auto waits_for_it = [&](const transfer_part& p) { return !p.with_transport && p.offset == s.offset; };
  if (transfer_part* const wanted = parts_.find_if(waits_for_it)) {
    bring(*wanted, std::move(message));
  } else {
    const range came{s.offset, message.length()};
    const auto is_cut_by_it = [&](const transfer_part& p) { return !p.with_transport && range::of(p).overlaps(came); };
    if (const transfer_part* const cut = parts_.find_if(is_cut_by_it))
      fail_unpaired(sentence_of(came, range::of(*cut)));
    kept().waiting.push(std::move(message));
  }
  fail_if_unmet();
}

void part_receiver::ask(std::uint64_t offset, std::span<std::byte> into, target what) {
  if (failed() != errc::none || into.empty()) return;
  transfer_part* const wanted = new_part();
  wanted->offset = offset;
  wanted->into = into;
  wanted->of_device = what == target::device;
  await(*wanted);
  for (std::uint32_t i = 0; pieces_ != nullptr && i < pieces_->waiting.size(); ++i) {
    const auto s = read_stamp(pieces_->waiting[i].header());
    if (!s) continue;
    if (s->offset == offset) return bring(*wanted, pieces_->waiting.take(i));
    const range here{s->offset, pieces_->waiting[i].length()};
    if (range::of(*wanted).overlaps(here)) return fail_unpaired(sentence_of(here, range::of(*wanted)));
  }
  fail_if_unmet();
}

// ---- the edge ---------------------------------------------------------------------------------------------------------

edge_receiver::edge_receiver(services& s, const op_declaration& op, std::uint64_t generation)
    : services_(s), op_(op.id()), generation_(generation), peer_(op.participants[0].rank),
      rows_(s.ex, s.clocks.skew()) {
  services_.mail.bind<matched>(number_of(op_, part::data_receiver), [this](runtime::envelope from, matched&& m) {
    if (is_for_us(from) && m.what == matched::kind::question) {
      stream* const asked = known_or_new(m.stream);
      if (asked == nullptr) return errc::none;
      asked->report_at = 0;
      send_report(*asked);
    }
    return errc::none;
  });
  services_.mail.bind<matched_streams>(
      number_of(op_, part::data_receiver), [this](runtime::envelope from, matched_streams&& m) {
        if (!is_for_us(from)) return errc::none;
        if (m.what == matched_streams::kind::question) answer_of_many(m);
        if (m.what == matched_streams::kind::heard && last_words_ != nullptr)
          std::erase_if(last_words_->unheard, [&](const matched_streams& said) { return said.number == m.number; });
        return errc::none;
      });
  services_.data.bind(op_, *this);
}

edge_receiver::~edge_receiver() {
  static_cast<void>(retire());
  if (one_sided_ != nullptr) services_.mail.unbind(reader_of(op_, generation(), part::data_receiver));
}

std::vector<runtime::arrival> edge_receiver::retire() noexcept {
  if (!std::exchange(retired_, true)) {
    runtime::timer_wheel::disarm(late_);
    services_.data.unbind(op_);
    services_.mail.unbind(number_of(op_, part::data_receiver));
  }
  return unjoined_.take();
}

void edge_receiver::keep_unjoined(const stamp& s, runtime::arrival&& message) noexcept {
  const bool is_next = s.source == peer_ && judge(s.generation, generation()) == generation_verdict::to_come;
  constexpr auto which = undeclared_parts::poisons::parts_of_its_stream;
  if (is_next && unjoined_.keep(s, std::move(message), services_.early_bytes, which)) {
    ++counters_.unjoined;
    return;
  }
  ++counters_.dropped;
  lost_unjoined_ = lost_unjoined_ || is_next;
  if (s.source != peer_ || is_next || !says_end_) return;
  if (counters_.ended++ % gen_end_every != 0) return;
  gen_end word;
  word.dropped = counters_.ended;
  static_cast<void>(services_.mail.send(peer_, number_of(op_, part::data_sender), s.generation, word));
}

edge_receiver::stream* edge_receiver::look_up(std::uint64_t id) noexcept {
  stream* its = streams_.find(id);
  if (its == nullptr && !streams_.full()) {
    its = &streams_.add(id);
    its->begin_at(services_.first_invocation);
  }
  if (its != nullptr) latest_ = its;
  return its;
}

std::uint64_t edge_receiver::next_invocation(std::uint32_t tag) noexcept {
  const stream* const s = streams_.find(stream_id(tag, false));
  return s == nullptr ? services_.first_invocation : s->first_posted + s->posted_count;
}

inline part_receiver& edge_receiver::match_first(stream& s) noexcept {
  part_receiver& receive = s.posted.pop_front();
  receive.index_ = s.first_posted++;
  --s.posted_count;
  receive.place_ = part_receiver::place::matched;
  receive.numbered_ = true;
  if (receive.one_sided_ != nullptr && receive.one_sided_->leaving == errc::timeout) {
    receive.one_sided_->leaving = errc::none;  // its data may still arrive: it times out only once no more data arrives
    receive.deadline_ = services_.ex.now();
    look_at(receive.deadline_ + services_.patient(quiet_for_ns));
  }
  s.active.push_back(receive);
  return receive;
}

// True if early messages include the poison of an invocation. Parts that the poison has overtaken are dropped, because perhaps no later
// receive would take them, and then their sender would wait for its buffer for ever.
static bool is_poisoned(receive_stream& its, std::uint64_t invocation) noexcept {
  for (std::uint32_t i = 0; its.early_poisons != 0 && i < its.early.size(); ++i) {
    const auto s = read_stamp(its.early[i].header());
    if (has(s->flags, stamp_flags::poison) && unwrap(s->invocation, invocation) == invocation) return true;
  }
  return false;
}

void edge_receiver::on_data(const stamp& s, runtime::arrival&& message) noexcept {
  if (s.generation != generation() || s.source != peer_) [[unlikely]]  // S5
    return keep_unjoined(s, std::move(message));
  stream* const at = known_or_new(stream_id(s.tag, has(s.flags, stamp_flags::rehearsal)));
  if (at == nullptr) [[unlikely]] {
    ++counters_.dropped;
    if (failed_ == errc::none && too_many_tags_) too_many_tags_();
    return;
  }
  stream& its = *at;
  const std::uint64_t invocation = unwrap(s.invocation, its.first_posted);
  if (invocation == its.first_posted && its.begun <= invocation && !its.posted.empty()) {  // the usual case
    its.begun = invocation + 1;
    part_receiver& first = match_first(its);
    if (its.given.any_out()) its.given.begun(its.first_posted);
    if (its.early.size() == 0 && !has(s.flags, stamp_flags::poison)) return first.accept(s, std::move(message));
    if (its.early.size() != 0) deliver_early(its, first);
    first.deliver(s, std::move(message));
    return;
  }
  its.begun = std::max(its.begun, invocation + 1);
  match_posted(its);
  if (part_receiver* const mine = its.active.find_if([&](const part_receiver& r) { return r.index_ == invocation; })) {
    mine->deliver(s, std::move(message));
  } else if (invocation >= its.first_posted) {
    ++counters_.early_parts;
    const bool poison = has(s.flags, stamp_flags::poison);
    if (!poison && is_poisoned(its, invocation)) {
      ++counters_.dropped;
      return;
    }
    if (poison) drop_early(its, invocation);
    keep_early(its, std::move(message), poison);
  } else {
    ++counters_.dropped;
    if (!refused_messages_.empty() && has(s.flags, stamp_flags::poison)) let_go_of_refused(its.id, invocation);
  }
}

void edge_receiver::keep_refused(const stream& s, std::uint64_t invocation, runtime::arrival&& message) {
  if (refused_messages_.size() == most_refused) return;
  refused_messages_.push_back({s.id, invocation, services_.ex.deadline_in(refused_for_ns), std::move(message)});
  if (!late_.linked() || late_.when > refused_messages_.back().until) wake_at(refused_messages_.back().until);
}

void edge_receiver::let_go_of_refused(std::uint64_t id, std::uint64_t invocation) noexcept {
  std::erase_if(refused_messages_,
                [&](const refused_message& m) { return m.stream == id && m.invocation == invocation; });
}

void edge_receiver::keep_early(stream& s, runtime::arrival&& message, bool poison) noexcept {
  if (failed_ != errc::none) return;
  if (counters_.early_bytes + bytes_held_by(message) > services_.early_bytes) {
    ++counters_.dropped;
    if (overflow_) overflow_();
    return;
  }
  counters_.early_bytes += bytes_held_by(message);
  s.early.push(std::move(message));
  s.early_poisons += poison ? 1 : 0;
}

runtime::arrival edge_receiver::take_early(stream& s, std::uint32_t place) noexcept {
  runtime::arrival taken = s.early.take(place);
  counters_.early_bytes -= bytes_held_by(taken);
  if (s.early_poisons != 0 && has(read_stamp(taken.header())->flags, stamp_flags::poison)) --s.early_poisons;
  return taken;
}

// Drops the parts of a failed invocation, so that their sender gets its buffers back.
void edge_receiver::drop_early(stream& s, std::uint64_t invocation) noexcept {
  for (std::uint32_t i = 0; i < s.early.size();) {
    const auto early = read_stamp(s.early[i].header());
    if (unwrap(early->invocation, invocation) != invocation) {
      ++i;
      continue;
    }
    const runtime::arrival dropped = take_early(s, i);
  }
}

// Matches each receive with an invocation that has begun at the sender. A matched receive keeps that invocation, and no longer times out
// while its stamp is missing.
void edge_receiver::match_posted(stream& s) noexcept {
  while (!s.posted.empty() && s.first_posted < s.begun) {
    part_receiver& receive = match_first(s);
    if (s.early.size() != 0) deliver_early(s, receive);
  }
  if (s.given.any_out()) s.given.begun(s.first_posted);
}

void edge_receiver::deliver_early(stream& s, part_receiver& receive) noexcept {
  for (std::uint32_t i = 0; i < s.early.size();) {
    const auto early = read_stamp(s.early[i].header());
    if (unwrap(early->invocation, receive.index_) != receive.index_) {
      ++i;
      continue;
    }
    receive.deliver(*early, take_early(s, i));
  }
}

void edge_receiver::end_late() noexcept {
  const runtime::time_ns now = services_.ex.now();
  std::erase_if(refused_messages_, [now](const refused_message& m) { return m.until <= now; });
  runtime::time_ns next = runtime::never;
  for (const refused_message& m : refused_messages_) next = std::min(next, m.until);
  for (auto& s : streams_) {
    s->posted.for_each([&](part_receiver& r) {
      if (r.deadline_ > now) return;
      r.deadline_ = runtime::never;
      r.give_up(errc::timeout);
    });
  }
  for (auto& s : streams_) {
    bool soon = false;
    s->posted.for_each([&](part_receiver& r) {
      if (r.deadline_ == runtime::never) return;
      const runtime::time_ns before = r.deadline_ - late_soon_ns_;
      soon = soon || (before <= now && !std::exchange(r.asked_, true));
      next = std::min(next, r.asked_ || before <= now ? r.deadline_ : before);
    });
    if (soon && late_soon_ns_ != 0 && !rehearses(s->id)) late_soon_(tag_of_stream(s->id));
  }
  if (next != runtime::never && !(late_.linked() && late_.when <= next)) wake_at(next);
  end_stalled(now);
  if (services_.breaks == broken_rule::own_stamp_only) {
    for (auto& s : streams_) end_unstamped(*s, now);
  }
}

void edge_receiver::list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all) {
  for (auto& s : streams_) {
    runtime::waiting_call w = of;
    w.tag = tag_of_stream(s->id);
    w.rehearsal = rehearses(s->id);
    const auto add = [&](const part_receiver& r, std::uint64_t invocation, std::string_view lacks) {
      w.invocation = invocation;
      w.bytes = r.stamped_ ? r.stamp_.total_bytes : r.takes_.most_bytes;
      w.since_ns = r.posted_ns_;
      w.lacks = lacks;
      w.batch = r.watcher_ == nullptr ? 0 : r.watcher_->batch();
      all.calls.push_back(w);
    };
    s->active.for_each([&](const part_receiver& r) {
      if (r.failed() != errc::none && r.in_flight() == 0) return;
      const bool here = r.all_here() && r.in_flight() == 0;
      w.peers = here ? std::vector<rank_id>() : std::vector{peer_};
      add(r, r.index_, here ? "its config" : r.stamped_ ? "the rest of the message" : "the message, which has begun");
    });
    std::uint64_t place = s->first_posted;
    w.peers = {peer_};
    s->posted.for_each([&](const part_receiver& r) { add(r, place++, "a message"); });
    if (s->early.size() == 0) continue;
    runtime::untaken_messages u{of.op, of.id, of.generation, peer_, *w.tag, s->first_posted, 0, 0};
    for (std::uint32_t i = 0; i < s->early.size(); ++i) {
      ++u.parts;
      u.bytes += s->early[i].length();
    }
    if (!w.rehearsal) all.untaken.push_back(std::move(u));
  }
}

std::string edge_receiver::posted_in_words(std::uint32_t tag) const {
  std::uint64_t of_it = 0;
  std::string others;
  for (const auto& s : streams_) {
    const std::uint64_t posted = s->first_posted + s->posted_count - services_.first_invocation;
    if (rehearses(s->id)) continue;
    if (tag_of_stream(s->id) == tag) {
      of_it = posted;
    } else if (others.size() < most_words_of_tags) {
      others += (others.empty() ? ", and " : ", ") + std::to_string(posted) + " of tag " +
                std::to_string(tag_of_stream(s->id));
    }
  }
  return "has posted " + std::to_string(of_it) + " receives of tag " + std::to_string(tag) + others;
}

// Ends matched receives with data that no longer arrives: parts are lost, or the sender has stopped. The transport ends the parts that it
// is moving. Memory into which the sender may be writing is returned only with the stamp, the poison, or the sender's death.
void edge_receiver::end_stalled(runtime::time_ns now) noexcept {
  std::vector<overdue> still;
  for (auto& s : streams_) {
    s->active.for_each([&](part_receiver& r) {
      if (r.deadline_ == runtime::never || r.failed() != errc::none || r.is_complete()) return;
      if (r.deadline_ > now) return look_at(r.deadline_);
      const payload_id which{s->id, r.index_};
      const auto known =
          std::find_if(overdue_.begin(), overdue_.end(), [&](const overdue& o) { return o.which == which; });
      const bool has_moved = known == overdue_.end() || known->moved_bytes != r.moved_bytes() || r.may_be_written();
      if (!has_moved && now - known->since_ns >= services_.patient(quiet_for_ns)) return r.end_stalled();
      still.push_back(has_moved ? overdue{which, r.moved_bytes(), now} : *known);
      look_at(still.back().since_ns + services_.patient(quiet_for_ns));
    });
  }
  overdue_ = std::move(still);
}

// Test fault: a later stamp does not match the receives before its own. These receives time out, and later ones move up.
void edge_receiver::end_unstamped(stream& s, runtime::time_ns now) noexcept {
  s.active.for_each([&](part_receiver& r) {
    if (r.decided() || r.one_sided_ != nullptr || r.deadline_ == runtime::never) return;
    if (r.deadline_ > now) return look_at(r.deadline_);
    const std::uint64_t left = r.index_;
    r.end(errc::timeout);
    --s.first_posted;
    s.active.for_each([&](part_receiver& later) { later.index_ -= !later.decided() && later.index_ > left ? 1 : 0; });
  });
}

void edge_receiver::note_matched(stream& s, std::uint64_t bytes) noexcept {
  s.unreported_bytes += bytes;
  if (s.first_posted >= s.report_at || s.unreported_bytes >= report_every_bytes) send_report(s);
}

void edge_receiver::send_report(stream& s) noexcept {
  matched m;
  m.what = matched::kind::report;
  m.stream = s.id;
  m.count = s.first_posted;
  if (s.first_posted / stream::report_run_every != s.reported / stream::report_run_every) say_what_ran(s, m);
  if (services_.mail.send(peer_, number_of(op_, part::data_sender), generation(), m) != errc::none) return;
  note_reported(s);
  ++counters_.matched_sent;
}

void edge_receiver::note_reported(stream& s) noexcept {
  if (s.first_posted != s.reported) s.report_at = s.first_posted + stream::report_every_invocations;
  s.reported = s.first_posted;
  s.unreported_bytes = 0;
}

void edge_receiver::say_what_ran(const stream& s, matched& m) const noexcept {
  constexpr std::uint64_t looked_at = 16;
  const auto of_stream = [&](const runtime::flight_record& r) {
    return r.op == op_ && r.generation == generation() && r.what == runtime::flight_event::received &&
           stream_id(r.tag, (r.flags & 4U) != 0) == s.id;
  };
  const auto* const latest = services_.flight.find_latest(of_stream, looked_at);
  if (latest == nullptr) return;
  m.ran = latest->digest;
  m.ran_invocation = latest->invocation;
}

void edge_receiver::report_all() noexcept {
  stream* untold = nullptr;
  bool several = false;
  for (auto& s : streams_) {
    if (s->first_posted == s->reported) continue;
    several = untold != nullptr;
    if (several) break;
    untold = s.get();
  }
  if (several) {
    report_many();
  } else {
    if (untold != nullptr) send_report(*untold);
    owes_reports_ = untold != nullptr && untold->first_posted != untold->reported;
  }
  if (last_words_ != nullptr) say_last_words_again();
}

void edge_receiver::report_many() noexcept {
  if (last_words_ == nullptr) last_words_ = std::make_unique<last_words>();
  owes_reports_ = true;
  std::vector<stream*> untold;
  for (auto& s : streams_) {
    if (s->first_posted != s->reported) untold.push_back(s.get());
  }
  for (std::size_t first = 0; first < untold.size(); first += matched_streams::most) {
    const auto now = std::span(untold).subspan(first, std::min(matched_streams::most, untold.size() - first));
    matched_streams m;
    m.what = matched_streams::kind::last_words;
    m.number = ++last_words_->said;
    for (const stream* s : now) m.streams.push_back({s->id, s->first_posted});
    if (services_.mail.send(peer_, number_of(op_, part::data_sender), generation(), m) != errc::none) return;
    ++counters_.matched_sent;
    for (stream* s : now) note_reported(*s);
    if (last_words_->unheard.empty()) {
      last_words_->again.restart();
      last_words_->again.said(services_);
    }
    last_words_->unheard.push_back(std::move(m));
  }
  owes_reports_ = false;
}

void edge_receiver::say_last_words_again() noexcept {
  if (is_heard() || !last_words_->again.is_due(services_)) return;
  for (const matched_streams& m : last_words_->unheard) {
    if (services_.mail.send(peer_, number_of(op_, part::data_sender), generation(), m) != errc::none) break;
    ++counters_.matched_sent;
  }
  last_words_->again.said(services_);
}

void edge_receiver::answer_of_many(const matched_streams& asked) noexcept {
  matched_streams m;
  m.what = matched_streams::kind::report;
  for (const matched_stream& of : asked.streams) {
    const stream* const its = m.full() ? nullptr : streams_.find(of.stream);
    if (its != nullptr) m.streams.push_back({its->id, its->first_posted});
  }
  if (m.streams.empty()) return;
  if (services_.mail.send(peer_, number_of(op_, part::data_sender), generation(), m) != errc::none) return;
  ++counters_.matched_sent;
  for (const matched_stream& said : m.streams) note_reported(*streams_.find(said.stream));
}

void edge_receiver::fail(errc why) noexcept {
  failed_ = why;
  refused_messages_.clear();
  if (one_sided_ != nullptr) {
    one_sided_->offers.stop();
    one_sided_->revokes.stop();
    for (auto& s : streams_) {
      s->posted.for_each([this](part_receiver& r) { withdraw_from_the_dead(r); });
      s->active.for_each([this](part_receiver& r) { withdraw_from_the_dead(r); });
    }
  }
  for (auto& s : streams_) {
    while (!s->posted.empty()) s->posted.front().end(why);
    while (!s->active.empty()) s->active.front().end(why);
    std::vector<runtime::arrival> dropped;  // destroyed from the last one to the first
    while (s->early.size() != 0) dropped.push_back(take_early(*s, 0));
    while (!dropped.empty()) dropped.pop_back();
  }
}

}  // namespace parley::actors
