// The part of a receiving edge that handles puts and gets. The rest is in edge_receiver.cpp.
#include <parley/actors/edge/edge_receiver.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace parley::actors {

namespace {
constexpr runtime::time_ns longest_answer_pause_ns = 8'000'000;  // a caller waits although its deadline has passed
}  // namespace

using runtime::errc;

// ---- one receive ------------------------------------------------------------------------------------------------------

// Reads from the first stamp of an invocation how its payload is transferred. If the result is not `none`, the receive ends with that
// error.
errc part_receiver::read_one_sided(const stamp& s, const runtime::arrival& message) {
  if (has(s.flags, stamp_flags::landed)) {
    if (one_sided_ == nullptr || one_sided_->credit == 0) {
      runtime::blame({"S8", "nothing is put without a credit", edge_.here()}, edge_.peer_);
      return errc::config_mismatch;
    }
    // The memory is withdrawn, so the put has had no effect.
    if (one_sided_->region->where != memory_region::state::exposed) return errc::config_failed;
    one_sided_->landed = true;
    arrived_bytes_ = received_bytes_ = s.total_bytes;
  }
  if (has(s.flags, stamp_flags::to_be_got)) {
    if (message.payload().size() != sizeof(payload_place)) return errc::malformed;
    if (one_sided_ == nullptr) one_sided_ = std::make_unique<one_sided>();
    std::memcpy(&one_sided_->place, message.payload().data(), sizeof(payload_place));
    one_sided_->to_be_got = true;
    edge_.one_sided_->being_read.push_back({stream_.id, index_});
  }
  return one_sided_ == nullptr ? errc::none : one_sided_->leaving;
}

void part_receiver::start_get(std::uint64_t offset, std::span<std::byte> into, get_function how,
                              runtime::device_copy by) noexcept {
  if (failed() != errc::none) return;
  const exposed* from = nullptr;
  if (one_sided_ != nullptr && one_sided_->to_be_got) {
    const auto& known = edge_.one_sided_->known;
    const auto at = std::find_if(known.begin(), known.end(),
                                 [&](const exposed& e) { return e.region == one_sided_->place.region; });
    if (at != known.end()) from = &*at;
  }
  const std::uint64_t total = stamp_.total_bytes;
  const bool inside = from != nullptr && into.size() <= total && offset <= total - into.size() &&
                      total <= from->bytes && one_sided_->place.offset <= from->bytes - total;
  if (!inside) return fail(errc::config_failed);
  received_bytes_ += into.size();
  transfer_part* const part = new_part();
  part->into = into;
  const runtime::remote_place there{std::as_bytes(std::span(from->key)),
                                    from->address + one_sided_->place.offset + offset, by};
  started(part, (net_.*how)(edge_.peer_, there, into, part));
}

// ---- credits ----------------------------------------------------------------------------------------------------------

void edge_receiver::allow_one_sided(runtime::memory_space* where) {
  one_sided_ = std::make_unique<one_sided>(*this);
  one_sided_->where = where;
  const std::uint64_t me = number_of(op_, part::data_receiver);
  const auto bind = [&]<class M>(auto handle) {
    services_.mail.bind<M>(me, [this, handle](runtime::envelope from, M&& m) {
      if (is_for_us(from)) handle(std::move(m));
      return errc::none;
    });
  };
  bind.template operator()<revoked>([this](revoked&& m) { on_revoked(m); });
  bind.template operator()<exposed>([this](exposed&& m) { on_exposed(std::move(m)); });
  bind.template operator()<gen_end>([this](gen_end&& m) {
    if (failed_ == errc::none && one_sided_->ended_there)
      one_sided_->ended_there(runtime::errc_of(m.why, errc::fenced));
  });
  services_.mail.bind<taken>(reader_of(op_, generation(), part::data_receiver),
                             [this](runtime::envelope from, taken&& m) {
                               if (from.source == peer_) on_question(m);
                               return errc::none;
                             });
}

void edge_receiver::offer_credit(stream& s, part_receiver& r, std::uint64_t index) noexcept {
  if (!may_offer_credit(s) || failed_ != errc::none) return;
  if (!s.given.may_give() || !s.given.may_leave(index)) return;  // R4; and credits ascend
  if (r.one_sided_ != nullptr && (r.one_sided_->credit != 0 || r.one_sided_->leaving != errc::none)) return;
  const std::span<const std::byte> buffer(r.memory_, static_cast<std::size_t>(r.takes_.most_bytes));
  auto region = one_sided_->memory.find(buffer);
  if (region == nullptr) return;
  if (r.one_sided_ == nullptr) r.one_sided_ = std::make_unique<part_receiver::one_sided>();
  if (!is_free(r, buffer)) return;
  r.one_sided_->region = std::move(region);
  r.one_sided_->credit = s.given.give(index);
  r.one_sided_->repeats = 0;
  send_credit(s, r, index);
  if (!one_sided_->offers.is_set()) one_sided_->offers.begin(services_);
}

void edge_receiver::offer_credits(stream& s) noexcept {
  std::uint64_t index = s.first_posted;
  s.posted.for_each([&](part_receiver& r) { offer_credit(s, r, index++); });
}

// True if no kernel uses the buffer any more, so that the sender may write. Otherwise the buffer is offered once it is free, and later
// buffers are offered after it, because credits ascend.
bool edge_receiver::is_free(part_receiver& r, std::span<const std::byte> buffer) noexcept {
  if (one_sided_->where == nullptr) return true;
  bool waits = false;
  r.stream_.posted.for_each(
      [&](const part_receiver& each) { waits = waits || (each.one_sided_ != nullptr && each.one_sided_->waits()); });
  if (waits) return false;
  const auto offer = [this, &r] { offer_credits(r.stream_); };
  return r.one_sided_->in_use.emplace(*one_sided_->where, buffer, offer).outcome() == errc::none;
}

void edge_receiver::send_credit(stream& s, const part_receiver& r, std::uint64_t index) noexcept {
  const auto& key = r.one_sided_->region->memory.key;
  credit m;
  m.stream = s.id;
  m.index = index;
  m.number = r.one_sided_->credit;
  m.address = reinterpret_cast<std::uint64_t>(r.memory_);
  m.capacity = r.takes_.most_bytes;
  m.flag = r.expected_;
  m.key.resize(key.size());
  std::memcpy(m.key.data(), key.data(), key.size());
  services_.note_step(runtime::flight_event::credited, op_, generation(),
                      {.invocation = m.number, .bytes = m.capacity, .tag = peer_});
  if (services_.mail.send(peer_, number_of(op_, part::data_sender), generation(), m) == errc::none)
    ++counters_.credits_sent;
}

void edge_receiver::send_revoke(stream& s) noexcept {
  revoke m;
  m.stream = s.id;
  m.number = s.given.revoke();
  services_.note_step(runtime::flight_event::revoked, op_, generation(), {.invocation = m.number, .tag = peer_});
  if (services_.mail.send(peer_, number_of(op_, part::data_sender), generation(), m) == errc::none)
    ++counters_.revokes_sent;
  one_sided_->revokes.go_on(services_, longest_answer_pause_ns);
}

// True if a receive that wants to leave must first wait until the sender can no longer write into its buffer, or into the buffer of a later
// receive, which would move up to another index (R2).
bool edge_receiver::must_ask_first(part_receiver& r) noexcept {
  if (one_sided_ == nullptr || failed_ != errc::none) return false;
  if (r.place_ == part_receiver::place::matched) return r.one_sided_ != nullptr && r.one_sided_->credit != 0;
  stream& s = r.stream_;
  if (s.given.may_leave(s.first_posted + r.place_in_line())) return false;
  if (r.one_sided_ == nullptr) r.one_sided_ = std::make_unique<part_receiver::one_sided>();
  if (r.one_sided_->leaving == errc::none) {
    one_sided_->revokes.restart();
    send_revoke(s);
  }
  return true;
}

void edge_receiver::on_revoked(const revoked& m) noexcept {
  stream* const s = streams_.find(m.stream);
  if (s == nullptr || !s->given.answered(m.number)) return;
  s->begun = std::max(s->begun, m.next);
  match_posted(*s);  // these wait for their data: the sender may have used their credits
  s->posted.for_each([](part_receiver& r) {
    if (r.one_sided_ == nullptr) return;
    r.one_sided_->credit = 0;
    if (r.one_sided_->leaving != errc::none) r.end(r.one_sided_->leaving);
  });
  if (std::none_of(streams_.begin(), streams_.end(), [](const auto& one) { return one->given.revoking(); }))
    one_sided_->revokes.stop();
  offer_credits(*s);
}

// R6: later writes of the peer must not land in memory that was returned to the user.
void edge_receiver::withdraw_from_the_dead(part_receiver& r) noexcept {
  if (r.one_sided_ == nullptr || r.one_sided_->credit == 0 || r.stamped_) return;
  r.one_sided_->region->withdraw_from_the_dead();
  ++counters_.withdrawn;
}

// ---- memory of the sender ---------------------------------------------------------------------------------------------

void edge_receiver::on_exposed(exposed&& m) {
  if (m.key.size() > runtime::link::max_remote_key_bytes) return;
  services_.net.prepare({std::as_bytes(std::span(m.key)), m.address});
  known answer;
  answer.region = m.region;
  const auto same = [&](const exposed& e) { return e.region == m.region; };
  auto& all = one_sided_->known;
  if (std::none_of(all.begin(), all.end(), same)) {
    all.push_back(std::move(m));
    if (all.size() > most_regions) {
      const auto oldest = std::min_element(all.begin(), all.end(),
                                           [](const exposed& a, const exposed& b) { return a.region < b.region; });
      all.erase(oldest);
    }
  }
  static_cast<void>(services_.mail.send(peer_, number_of(op_, part::data_sender), generation(), answer));
}

void edge_receiver::say_taken(taken::kind what, payload_id which, errc outcome) noexcept {
  taken m;
  m.what = what;
  m.stream = which.stream;
  m.invocation = which.invocation;
  m.outcome = static_cast<std::uint8_t>(outcome);
  // If this message is lost, the sender asks for it.
  static_cast<void>(services_.mail.send(peer_, reader_of(op_, generation(), part::data_sender), generation(), m));
}

void edge_receiver::report_taken(std::uint64_t id, std::uint64_t invocation, errc outcome) noexcept {
  std::erase(one_sided_->being_read, payload_id{id, invocation});
  if (outcome != errc::none) {
    auto& failed = one_sided_->failed_gets;
    if (failed.size() >= most_failed_gets) failed.erase(failed.begin());
    failed.push_back({id, invocation, outcome});
  }
  say_taken(taken::kind::report, {id, invocation}, outcome);
}

// The sender asks whether it may use its payload's memory again. It may not, as long as this rank reads the payload or may still read it.
// That is so even if a poison, or this end's own failure, has ended the receive, because a read that has begun continues.
void edge_receiver::on_question(const taken& m) noexcept {
  if (m.what != taken::kind::question) return;
  const auto& being_read = one_sided_->being_read;
  const payload_id asked{m.stream, m.invocation};
  if (std::find(being_read.begin(), being_read.end(), asked) != being_read.end())
    return say_taken(taken::kind::not_yet, asked, errc::none);
  errc outcome = failed_;
  stream* const s = streams_.find(m.stream);
  if (outcome == errc::none) {
    if (s == nullptr) return say_taken(taken::kind::not_yet, asked, errc::none);
    bool may_be_read = m.invocation >= s->first_posted;
    s->active.for_each([&](const part_receiver& r) { may_be_read = may_be_read || r.index_ == m.invocation; });
    for (std::uint32_t i = 0; i < s->early.size(); ++i) {
      const auto early = read_stamp(s->early[i].header());
      if (unwrap(early->invocation, m.invocation) != m.invocation || !has(early->flags, stamp_flags::poison)) continue;
      outcome = errc::send_failed;
      may_be_read = false;
    }
    if (may_be_read) return say_taken(taken::kind::not_yet, asked, errc::none);
    for (const failed_get& f : one_sided_->failed_gets) {
      if (f.stream == m.stream && f.invocation == m.invocation) outcome = f.outcome;
    }
  }
  say_taken(taken::kind::report, asked, outcome);
}

// ---- asking again -----------------------------------------------------------------------------------------------------

void edge_receiver::revoke_again() noexcept {
  for (auto& s : streams_) {
    if (s->given.revoking()) send_revoke(*s);
  }
}

void edge_receiver::offer_again() noexcept {
  bool open = false;
  for (auto& s : streams_) {
    std::uint64_t index = s->first_posted;
    s->posted.for_each([&](part_receiver& r) {
      const std::uint64_t its = index++;
      if (r.one_sided_ == nullptr || r.one_sided_->credit == 0 || r.one_sided_->repeats >= most_repeats) return;
      ++r.one_sided_->repeats;
      open = true;
      if (s->given.may_give()) send_credit(*s, r, its);
    });
  }
  if (open) one_sided_->offers.go_on(services_);
}

}  // namespace parley::actors
