#include <parley/actors/group/group_worker.hpp>

#include <parley/actors/agreement/trial_book.hpp>
#include <parley/tuning/planners/statistics.hpp>

#include <algorithm>
#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {
// Half a window, so that a leader in step with this worker never waits for a report.
constexpr std::uint64_t report_every_invocations = 32;
constexpr std::uint64_t report_every_bytes = 2U << 20U;
constexpr std::uint64_t most_open_rows = 1024;
}  // namespace

group_worker::group_worker(services& s, const op_declaration& op, std::uint64_t generation, std::uint64_t depth)
    : rooted_group(s, op, generation, part::data_receiver), depth_(depth),
      learned_(depth, op.default_digest, s.first_invocation), returned_(s.first_invocation), told_(s.first_invocation) {
  ended_rows_.drop_below(s.first_invocation);
  listen();
}

void group_worker::on_flow(rank_id from, const matched& m) {
  if (m.what == matched::kind::question && from == leader_) report_progress();
}

bool group_worker::try_begin(group_invocation& inv) {
  auto digest = ignores_stamps_ ? default_digest_ : learned_.config_of(inv.index());
  if (!digest && services_.breaks == broken_rule::look_ahead_not_awaited) digest = default_digest_;
  if (!digest) {
    ++counters_.waited;
    return false;
  }
  set_digest(inv, *digest);
  untold_bytes_ += inv.total_bytes();
  if (calls_.next - told_ >= report_every_invocations || untold_bytes_ >= report_every_bytes) report_progress();
  return true;
}

stamp group_worker::stamp_of(group_invocation& inv, rank_id to) {
  stamp s = plain_stamp(inv);
  if (inv.rehearsal()) return s;
  if (to == leader_) {
    told_ = std::max(told_, inv.index() + 1);
    untold_bytes_ = 0;
  } else if (depth_ != 0) {  // its receiver may learn that config from this stamp first
    s.next_digest = learned_.config_of(inv.index() + depth_).value_or(0);
  }
  return s;
}

void group_worker::heard(const stamp& s, std::uint64_t invocation, group_invocation* active) {
  const bool from_leader = s.source == leader_;
  // A poison has no digest if its worker did not know the config, or its leader had no place for it in the log.
  if (s.digest != 0 && !learned_.learn(invocation, s.digest, 0)) {
    contradicted(s, "S1", "stamps of one invocation name one config", active);
    return;
  }
  if (s.digest != 0 && !learned_.learn(invocation, s.digest, s.next_digest)) {
    const std::uint64_t later = invocation + depth_;
    contradicted(s, "S1", "stamps of one invocation name one config",
                 calls_.active.find_if([later](const group_invocation& inv) { return inv.index() == later; }));
  }
  if (!from_leader) return;
  returned_ = std::max(returned_, invocation + 1);
  rows_.note_stamp(has(s.flags, stamp_flags::timed));
  if (active != nullptr) return;
  if (const wire_row* row = ended_rows_.find(invocation)) report_rows(s.flags, *row);
}

void group_worker::failed(group_invocation& inv) noexcept {
  if (!inv.told_by_leader()) send_poison(inv, leader_);
}

void group_worker::report_rows(stamp_flags flags, const wire_row& row) {
  if (has(flags, stamp_flags::timed)) rows_.add(row);
  if (has(flags, stamp_flags::flush)) rows_.flush(0, row.invocation);
}

void group_worker::end(group_invocation& inv) {
  const errc outcome = inv.fault().why;
  const time_ns ended_ns = ended_at(inv);
  record(inv, ended_ns);
  if (inv.rehearsal()) {
    leave(inv);
    return;
  }
  wire_row row;
  row.invocation = inv.index();
  row.digest = inv.config();
  row.start_ns = inv.began_ns();
  row.end_ns = ended_ns;
  row.worked_ns = inv.worked_ns(ended_ns);
  row.previous_end_ns = rows_.end_ahead_of(row);
  row.status = static_cast<std::uint8_t>(inv.status());
  const bool timed_out = outcome == errc::timeout;
  if (timed_out) row.status = inv.begun() ? late_row : cancelled_row;  // this rank itself is late
  const bool tells =
      timed_out || outcome == errc::none || outcome == errc::config_failed || outcome == errc::config_mismatch;
  if (!tells) {
    if (inv.flags() && has(*inv.flags(), stamp_flags::flush)) rows_.flush(0, inv.index());
  } else if (inv.flags()) {
    report_rows(*inv.flags(), row);
  } else {
    ended_rows_.put(inv.index(), row);
  }
  rows_.ended(row.start_ns, row.invocation, ended_ns);
  const std::uint64_t over = leave(inv);
  learned_.drop_below(over);
  ended_rows_.drop_below(over - std::min(over, most_open_rows));
}

bool group_worker::settled() { return fault_.why != errc::none || returned_ >= calls_.next; }

void group_worker::report_progress() noexcept {
  matched m;
  m.what = matched::kind::report;
  m.count = calls_.next;
  constexpr std::uint64_t looked_at = 16;
  const auto ran_here = [&](const runtime::flight_record& r) {
    return r.op == op_ && r.generation == generation() && r.what == runtime::flight_event::received &&
           (r.flags & 4U) == 0;
  };
  if (const auto* const latest = services_.flight.find_latest(ran_here, looked_at)) {
    m.ran = latest->digest;
    m.ran_invocation = latest->invocation;
  }
  if (services_.mail.send(leader_, number_of(op_, part::data_sender), generation(), m) != errc::none) return;
  told_ = calls_.next;
  untold_bytes_ = 0;
  ++counters_.flow_messages;
}

}  // namespace parley::actors
