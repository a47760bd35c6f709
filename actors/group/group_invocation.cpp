#include <parley/actors/group/group_invocation.hpp>

#include <parley/actors/group/group_host.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {
// A sender sends its poison before it takes its payload back. If no poison arrives within this time, the reason stays unknown.
constexpr time_ns longest_until_reason_ns = 1'000'000'000;
}  // namespace

void group_invocation::part::on_part_end(completion& self, errc outcome) noexcept {
  auto* p = static_cast<part*>(&self);
  if (p->owner != nullptr) {
    p->owner->ended(*p, outcome);
  } else {
    delete p;
  }
}

group_invocation::group_invocation(group_host& group, std::uint64_t bytes, time_ns deadline, call_type type)
    : group_invocation(group, bytes, deadline, type, 0) {}

group_invocation::group_invocation(group_host& group, std::uint64_t bytes, time_ns deadline, call_type type,
                                   std::uint64_t rehearsed_digest)
    : group_(group), bytes_(bytes), type_(type), index_(0), digest_(rehearsed_digest),
      rehearsal_(rehearsed_digest != 0), counts_waits_(group.rows_.measuring()), deadline_(deadline),
      deadline_timer_(*this) {
  if (rehearsal_) flags_ = stamp_flags::rehearsal;
  if (deadline != runtime::never) group_.services_.ex.arm(deadline_timer_, late_soon_at());
  group_.enter(*this);
}

group_invocation::~group_invocation() { abandon(); }

void group_invocation::abandon() noexcept {
  for_each_part([this](part& left) {
    left.unlink();
    left.owner = nullptr;
    if (left.with_transport) {
      group_.services_.net.abandon(left);
    } else {
      delete &left;
    }
  });
}

rank_id group_invocation::self() const noexcept { return group_.services_.net.rank(); }

bool group_invocation::reached(const waiting& w) noexcept {
  if (w.goal_ == to_begin) return begun() || fault_.why != errc::none || group_.try_begin(*this);
  const auto ended = [&w](auto& parts) { return parts.empty() || parts.front().number > w.goal_; };
  return ended(sends_) && (w.whose_ == waiting::whose::own_sends || ended(receives_));
}

// The failure also ends the first coroutine's wait, but the call ends with the error that is raised here.
void group_invocation::refuse_second_wait() {
  fail(errc::config_failed, self());
  runtime::raise({errc::config_failed,
                  "two coroutines wait for parts of one call; let one coroutine post all parts and wait for them"});
}

void group_invocation::wake_if_reached() noexcept {
  if (waiting_ != nullptr && reached(*waiting_)) std::exchange(waiting_, nullptr)->wake(errc::none);
}

group_invocation::part& group_invocation::begin_part(runtime::intrusive_list<part>& in, rank_id peer,
                                                     std::uint64_t offset, std::uint32_t lane) {
  auto& p = *new part(*this);
  p.peer = peer;
  p.offset = offset;
  p.lane = lane;
  p.number = ++posted_;
  in.push_back(p);
  return p;
}

void group_invocation::started(part& p, errc outcome) noexcept {
  p.with_transport = outcome == errc::pending;
  if (outcome != errc::pending) ended(p, outcome);
}

void group_invocation::ended(part& p, errc outcome) noexcept {
  if (outcome == errc::send_failed && fault_.why == errc::none) return await_reason(p);
  const rank_id peer = p.peer;
  delete &p;
  const bool lacks = outcome == errc::device_failed || outcome == errc::unavailable || outcome == errc::full;
  if (outcome != errc::none) fail(outcome, lacks ? self() : peer);
  wake_if_reached();
}

void group_invocation::await_reason(part& p) noexcept {
  p.with_transport = false;
  if (taken_back_by_) return;
  taken_back_by_ = p.peer;
  runtime::executor& ex = group_.services_.ex;
  runtime::timer_wheel::disarm(deadline_timer_);
  ex.arm(deadline_timer_, std::min(deadline_, ex.deadline_in(longest_until_reason_ns)));
}

void group_invocation::on_deadline() noexcept {
  if (taken_back_by_) return fail(errc::send_failed, *taken_back_by_);
  runtime::executor& ex = group_.services_.ex;
  const bool waits_for_another = taken_along_ != nullptr && sends_.empty() && receives_.empty();
  if (deadline_ > ex.now()) {
    ex.arm(deadline_timer_, deadline_);
    if (!rehearsal_ && !waits_for_another && group_.late_soon_) group_.late_soon_(waited_for());
    return;
  }
  if (!waits_for_another || taken_along_->deadline_ <= ex.now()) return time_out();
  // The other invocation ends on its own, later, and knows which rank is late.
  deadline_ = taken_along_->deadline_;
  if (deadline_ != runtime::never) ex.arm(deadline_timer_, deadline_);
}

group_invocation::ticket group_invocation::send(rank_id to, std::uint64_t offset, std::span<const std::byte> data,
                                                std::uint32_t lane) {
  if (fault_.why != errc::none) return posted_;
  const bool fits = data.size() <= bytes_ && offset <= bytes_ - data.size() && data.empty() == (bytes_ == 0);
  if (!fits || lane >= lanes || to == self() || group_.place(to) == group_.members().size()) {
    fail(errc::bad_argument, self());
    return posted_;
  }
  stamp s = group_.stamp_of(*this, to);
  s.offset = offset;
  s.tag |= lane;
  part& p = begin_part(sends_, to, offset, lane);
  const ticket number = p.number;
  started(p, group_.services_.net.send(to, runtime::link::channel::data, bytes_of(s), data, &p));
  return number;
}

group_invocation::ticket group_invocation::receive(rank_id from, std::uint64_t offset, std::span<std::byte> into,
                                                   std::uint32_t lane) {
  if (fault_.why != errc::none) return posted_;
  part& wanted = begin_part(receives_, from, offset, lane);
  wanted.into = into;
  const ticket number = wanted.number;
  if (group_.place(from) == group_.members().size()) return number;  // no member sends it, so the receive times out
  if (auto here = waiting_parts_.extract(key_of(from, offset, lane))) {
    const auto s = read_stamp(here.mapped().message().header());
    bring(wanted, *s, std::move(here.mapped()).take());
  }
  return number;
}

void group_invocation::bring(part& wanted, const stamp& s, runtime::arrival&& message) noexcept {
  if (s.digest != digest_) return other_config(s);
  if (message.length() != wanted.into.size()) {  // the two ends cut the payload differently
    fail(errc::config_failed, s.source);
    return;
  }
  wanted.with_transport = true;
  started(wanted, group_.services_.net.fetch(std::move(message), wanted.into, &wanted));
}

// Each rank that receives a part checks S2.
void group_invocation::other_config(const stamp& s) noexcept {
  group_.note_contradiction(s, "S2", "all parts of an invocation are of one config");
  fail(errc::config_mismatch, s.source);
}

std::uint64_t group_invocation::key_of(rank_id source, std::uint64_t offset, std::uint64_t lane) const noexcept {
  return (offset * lanes + lane) * group_.members().size() + group_.place(source);
}

bool group_invocation::is_new(const stamp& s) { return seen_.insert(key_of(s.source, s.offset, lane_of(s))); }

void group_invocation::deliver(const stamp& s, runtime::arrival&& message) noexcept {
  if (s.source == group_.leader()) flags_ = s.flags;
  if (fault_.why != errc::none) return;
  if (has(s.flags, stamp_flags::poison)) {
    group_fault told = poison_of(s);
    told_by_leader_ = s.source == group_.leader();
    if (group_.leader() == self() && told.why == errc::bad_argument && told.came_bytes == bytes_)
      told = {.why = told.why, .culprit = s.source, .came_bytes = s.next_digest - 1};  // 0: no size
    if (told.why == errc::timeout && told.culprit == self()) {
      time_out();  // a worker waits for this rank, which waits for another one
    } else {
      fail(told);
    }
    return;
  }
  if (begun() && s.digest != digest_) return other_config(s);
  if (type_of(s) != type_) {  // elements of another type are not combined with ours
    fail({.why = errc::declaration_mismatch, .culprit = s.source, .came = type_of(s), .expected = type_});
    return;
  }
  if (s.total_bytes != bytes_) {  // checked before anything is written (S8)
    // The leader's size is the correct size for all members.
    if (s.source == group_.leader()) {
      fail({.why = errc::bad_argument, .culprit = self(), .came_bytes = bytes_, .leader_bytes = s.total_bytes});
    } else {
      fail({.why = errc::bad_argument, .culprit = s.source, .came_bytes = s.total_bytes});
    }
    return;
  }
  if (message.length() == 0 && bytes_ != 0) return;  // only a stamp, without a part
  if (message.length() > bytes_ - s.offset || !is_new(s)) {
    ++group_.counters_.dropped;
    return;
  }
  part* const wanted = receives_.find_if([&](const part& p) {
    return !p.with_transport && p.peer == s.source && p.offset == s.offset && p.lane == lane_of(s);
  });
  if (wanted != nullptr) {
    bring(*wanted, s, std::move(message));
  } else if (group_.unclaimed_room_.has_room_for(message)) {
    waiting_parts_.emplace(key_of(s.source, s.offset, lane_of(s)),
                           unclaimed_part(std::move(message), group_.unclaimed_room_));
  } else {  // no rank sends it again
    ++group_.counters_.refused;
    fail(errc::full, s.source);
  }
}

// Returns the deadline itself if the time for the warning has passed already.
time_ns group_invocation::late_soon_at() const noexcept {
  const time_ns soon = deadline_ - group_.late_soon_ns_;
  return soon > group_.services_.ex.now() ? soon : deadline_;
}

std::vector<rank_id> group_invocation::waited_for() {
  std::vector<rank_id> all;
  const auto add = [&](const part& p) {
    if (std::find(all.begin(), all.end(), p.peer) == all.end()) all.push_back(p.peer);
  };
  receives_.for_each(add);
  if (all.empty()) sends_.for_each(add);
  if (all.empty() && group_.leader() != self()) all.push_back(group_.leader());
  return all;
}

void group_invocation::time_out() noexcept {
  const auto add = [this](rank_id r) {
    if (std::find(late_.begin(), late_.end(), r) == late_.end()) late_.push_back(r);
  };
  receives_.for_each([&](const part& p) { add(p.peer); });
  if (late_.empty()) sends_.for_each([&](const part& p) { add(p.peer); });
  if (late_.empty() && taken_along_ != nullptr) {
    if (taken_along_->fault().why == errc::none) taken_along_->time_out();
    add(taken_along_->fault().culprit);
  }
  if (late_.empty() && group_.leader() != self()) add(group_.leader());
  fail(errc::timeout, late_.empty() ? self() : late_.front());
}

void group_invocation::begin_timing() noexcept {
  began_ns_ = group_.rows_.clock();
  waited_ns_ = 0;
  part_waits_ns_ = 0;
  counts_waits_ = group_.rows_.measuring();
}
void group_invocation::end_timing() noexcept { timed_until_ns_ = group_.rows_.clock(); }

// Only trials need these times, and during trials the clock is read anyway. If trials began after the invocation, its waits are unknown.
void group_invocation::begin_part_wait() noexcept {
  if (counts_waits_) part_wait_since_ns_ = group_.rows_.clock();
}
void group_invocation::end_part_wait() noexcept {
  if (part_wait_since_ns_ != 0) part_waits_ns_ += group_.rows_.clock() - std::exchange(part_wait_since_ns_, 0);
}

void group_invocation::begin_waiting() noexcept { waits_since_ns_ = group_.rows_.clock(); }
void group_invocation::end_waiting() noexcept { waited_ns_ += group_.rows_.clock() - waits_since_ns_; }

tuning::row_status group_invocation::status() const noexcept {
  if (fault_.why != errc::none) return tuning::row_status::failed;
  return wrong_data_ ? tuning::row_status::wrong_data : tuning::row_status::ok;
}

void group_invocation::fail(const group_fault& what) noexcept {
  if (fault_.why != errc::none || what.why == errc::none) return;
  fault_ = what;
  runtime::timer_wheel::disarm(deadline_timer_);
  waiting_parts_.clear();  // so that their senders get their buffers back
  // When the whole group has failed, all ranks learn of that in another way. But if this rank still sends parts, it also poisons the
  // invocation: a rank that does not know of the failure yet, or has not joined the generation, may keep those parts.
  const auto moving = [](const part& p) { return p.with_transport; };
  if (group_.fault().why == errc::none || sends_.find_if(moving) != nullptr) group_.failed(*this);
  if (taken_along_ != nullptr)
    taken_along_->fail(seen_from_elsewhere(what));  // its own cancellation would name this rank as the culprit
  if (config_ != nullptr) config_->cancel(what.why);
  for_each_part([this](part& p) {
    if (p.with_transport) {
      group_.services_.net.cancel(p);
    } else {
      ended(p, errc::none);
    }
  });
  wake_if_reached();
}

}  // namespace parley::actors
