#include <parley/actors/group/rooted_group.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

using runtime::errc;

op_declaration declare_group(std::string name, std::vector<op_participant> participants, std::uint64_t depth,
                             std::string dtype) {
  std::sort(participants.begin(), participants.end(),
            [](const op_participant& a, const op_participant& b) { return a.rank < b.rank; });
  op_declaration op;
  op.name = std::move(name);
  op.scheme = "stamp d=" + std::to_string(depth);
  op.participants = std::move(participants);
  for (const op_participant& p : op.participants) {
    if (p.role == "leader") op.leader = p.rank;
  }
  op.dtype = std::move(dtype);
  return op;
}

rooted_group::rooted_group(services& s, const op_declaration& op, std::uint64_t generation, part own)
    : group_host(s, op, generation), own_(own), default_digest_(op.default_digest) {
  calls_.next = rehearsals_.next = s.first_invocation;
}

rooted_group::~rooted_group() { static_cast<void>(retire()); }

void rooted_group::listen() {
  services_.mail.bind<matched>(number_of(op_, own_), [this](runtime::envelope from, matched&& m) {
    if (from.generation == generation() && is_peer(from.source)) on_flow(from.source, m);  // S5
    return errc::none;
  });
  services_.data.bind(op_, *this);
}

std::vector<runtime::arrival> rooted_group::retire() noexcept {
  if (!std::exchange(retired_, true)) {
    services_.data.unbind(op_);
    services_.mail.unbind(number_of(op_, own_));
  }
  return unjoined_.take();
}

void rooted_group::enter(group_invocation& inv) {
  stream& its = stream_of(inv);
  inv.index_ = its.next++;
  inv.began_ns_ = rows_.clock();
  its.active.push_back(inv);
  if (fault_.why != errc::none) {
    inv.fault_ = fault_;
    return;
  }
  for (std::uint32_t i = 0; i < its.early.size();) {
    const auto s = read_stamp(its.early[i].message().header());
    if (unwrap(s->invocation, inv.index_) == inv.index_) {
      inv.deliver(*s, take_early(its, i).take());
    } else {
      ++i;
    }
  }
}

void rooted_group::set_digest(group_invocation& inv, std::uint64_t digest) noexcept {
  inv.digest_ = digest;
  inv.began_ns_ = rows_.clock();
}

unclaimed_part rooted_group::take_early(stream& s, std::uint32_t place) noexcept {
  unclaimed_part taken = s.early.take(place);
  if (s.early_poisons != 0 && has(read_stamp(taken.message().header())->flags, stamp_flags::poison)) --s.early_poisons;
  return taken;
}

// True if early messages include the poison of an invocation. Parts that the poison has overtaken are dropped. This rank may never begin
// that invocation, and then nothing else would release these parts.
bool rooted_group::is_poisoned(stream& s, std::uint64_t invocation) noexcept {
  for (std::uint32_t i = 0; s.early_poisons != 0 && i < s.early.size(); ++i) {
    const auto early = read_stamp(s.early[i].message().header());
    if (has(early->flags, stamp_flags::poison) && unwrap(early->invocation, invocation) == invocation) return true;
  }
  return false;
}

void rooted_group::on_data(const stamp& s, runtime::arrival&& message) noexcept {
  if (!is_peer(s.source) || s.generation != generation()) [[unlikely]]  // S5
    return keep_unjoined(s, std::move(message));
  if (fault_.why != errc::none) {  // no receive will take this part, and its sender may wait until the part is dropped
    ++counters_.dropped;
    return;
  }
  const bool rehearsal = has(s.flags, stamp_flags::rehearsal);
  stream& its = rehearsal ? rehearsals_ : calls_;
  const std::uint64_t invocation = unwrap(s.invocation, its.next);
  if (invocation >= its.next && invocation - its.next > farthest_ahead) {
    ++counters_.refused;
    runtime::blame({"window", "no member is farther ahead than its depth and window allow", here()}, s.source);
    return;
  }
  group_invocation* active = nullptr;
  its.active.for_each([&](group_invocation& inv) {
    if (inv.index_ == invocation) active = &inv;
  });
  if (!rehearsal) heard(s, invocation, active);
  if (active != nullptr) {
    active->deliver(s, std::move(message));
  } else if (invocation >= its.next) {
    const bool poison = has(s.flags, stamp_flags::poison);
    if (!poison && is_poisoned(its, invocation)) {
      ++counters_.dropped;
      return;
    }
    if (poison) drop_early(its, invocation);
    if (!unclaimed_room_.has_room_for(message)) {
      ++counters_.refused;
      if (overflow_) overflow_();
      return;
    }
    ++counters_.early_parts;
    its.early.push(unclaimed_part(std::move(message), unclaimed_room_));
    its.early_poisons += poison ? 1 : 0;
  } else if (message.length() != 0) {
    ++counters_.dropped;
  }
  if (!rehearsal) begin_all();
}

// Keeps data of a member that has joined the next generation before this rank.
void rooted_group::keep_unjoined(const stamp& s, runtime::arrival&& message) noexcept {
  if (!is_peer(s.source) || judge(s.generation, generation()) != generation_verdict::to_come) {
    ++counters_.dropped;
    return;
  }
  const auto whose =
      s.source == leader_ ? undeclared_parts::poisons::all_parts : undeclared_parts::poisons::parts_of_its_sender;
  const bool kept = unjoined_.keep(s, std::move(message), services_.early_bytes, whose);
  ++(kept ? counters_.unjoined : counters_.refused);
  lost_unjoined_ = lost_unjoined_ || !kept;
}

void rooted_group::contradicted(const stamp& s, std::string_view invariant, std::string_view text,
                                group_invocation* active) noexcept {
  note_contradiction(s, invariant, text);
  if (active != nullptr) active->fail(errc::config_mismatch, s.source);
}

// Drops the parts of a failed invocation, so that their senders get their buffers back.
void rooted_group::drop_early(stream& s, std::uint64_t invocation) noexcept {
  for (std::uint32_t i = 0; i < s.early.size();) {
    const auto early = read_stamp(s.early[i].message().header());
    if (unwrap(early->invocation, invocation) != invocation) {
      ++i;
      continue;
    }
    const unclaimed_part dropped = take_early(s, i);
  }
}

void rooted_group::begin_all() noexcept {
  calls_.active.for_each([](group_invocation& inv) { inv.wake_if_reached(); });
}

std::uint64_t rooted_group::leave(group_invocation& inv) noexcept {
  inv.unlink();
  return ended_below();
}

std::uint64_t rooted_group::ended_below() const noexcept {
  return calls_.active.empty() ? calls_.next : calls_.active.front().index_;
}

time_ns rooted_group::ended_at(const group_invocation& inv) noexcept {
  return inv.timed_until_ns_ != 0 ? inv.timed_until_ns_ : rows_.clock();
}

stamp rooted_group::plain_stamp(const group_invocation& inv) const noexcept {
  stamp s;
  s.op = op_;
  s.generation = generation();
  s.digest = inv.digest_;
  s.total_bytes = inv.bytes_;
  s.invocation = static_cast<std::uint32_t>(inv.index_);
  put_type(inv.type_, s);
  s.source = services_.net.rank();
  if (inv.rehearsal_) s.flags = stamp_flags::rehearsal;
  return s;
}

void rooted_group::send_stamp(group_invocation& inv, rank_id to) noexcept {
  const stamp s = stamp_of(inv, to);
  static_cast<void>(services_.net.send(to, runtime::link::channel::data, bytes_of(s), {}, nullptr));
}

void rooted_group::send_poison(group_invocation& inv, rank_id to) noexcept {
  stamp s = stamp_of(inv, to);
  write_poison(inv.fault_, s);
  // If two workers have different sizes, neither knows the leader's size. So the poison to the leader also carries this rank's own size.
  if (to == leader_ && inv.fault_.came_bytes != group_fault::no_size) s.next_digest = inv.bytes_ + 1;
  // If the peer is gone, the message may be lost.
  static_cast<void>(services_.net.send(to, runtime::link::channel::data, bytes_of(s), {}, nullptr));
}

void rooted_group::record(const group_invocation& inv, time_ns ended_ns) noexcept {
  const bool leads = leader_ == services_.net.rank();
  const bool well = inv.fault_.why == errc::none;
  using event = runtime::flight_event;
  services_.flight.add(
      {.op = op_,
       .generation = generation(),
       .invocation = inv.index_,
       .digest = inv.config(),
       .bytes = inv.bytes_,
       .began_ns = inv.began_ns_,
       .ended_ns = ended_ns,
       .tag = 0,
       .what = leads ? (well ? event::sent : event::send_failed) : (well ? event::received : event::receive_failed),
       .flags = static_cast<std::uint8_t>(static_cast<unsigned>(inv.flags_.value_or(stamp_flags::none)) & 7U)});
}

void rooted_group::list_waiting(const runtime::waiting_call& of, runtime::waiting_list& all) {
  for (stream* s : {&calls_, &rehearsals_}) {
    s->active.for_each([&](group_invocation& inv) {
      if (inv.fault_.why != errc::none && inv.sends_.empty() && inv.receives_.empty()) return;
      runtime::waiting_call& w = all.calls.emplace_back(of);
      w.invocation = inv.index_;
      w.rehearsal = inv.rehearsal_;
      w.bytes = inv.bytes_;
      w.since_ns = inv.began_ns_;
      const bool idle = inv.sends_.empty() && inv.receives_.empty();
      const bool begun = inv.begun();
      if (!idle || !begun) w.peers = inv.waited_for();
      if (!begun) {
        w.lacks = leader_ == services_.net.rank() ? "its turn: earlier calls, or room at its workers"
                                                  : "the leader's choice of its config";
      } else {
        w.lacks = idle ? "its config" : inv.receives_.empty() ? "its parts to be taken" : "parts";
      }
    });
  }
}

void rooted_group::fail(errc why, rank_id culprit) noexcept {
  if (fault_.why != errc::none) return;
  fault_ = {.why = why, .culprit = culprit};
  for (stream* s : {&calls_, &rehearsals_}) {
    s->active.for_each([&](group_invocation& inv) { inv.fail(why, culprit); });
    std::vector<unclaimed_part> dropped;  // destroyed from the last one to the first
    while (s->early.size() != 0) dropped.push_back(take_early(*s, 0));
    while (!dropped.empty()) dropped.pop_back();
  }
}

}  // namespace parley::actors
