#include <parley/actors/group/group_leader.hpp>

#include <parley/actors/agreement/trial_book.hpp>

#include <algorithm>
#include <string>
#include <utility>

namespace parley::actors {

using runtime::errc;

namespace {
constexpr std::uint64_t most_at_once = 512;  // invocations that run here at the same time
// This many ended invocations are remembered, so that a late part or report of another config is noticed. It is more than a window.
constexpr std::uint64_t most_remembered = 128;

// Only these outcomes blame the config. A mistake of one of its members also ends a group's invocation.
bool is_of_config(errc outcome) noexcept { return outcome == errc::config_failed || outcome == errc::config_mismatch; }
}  // namespace

group_leader::group_leader(services& s, const op_declaration& op, std::uint64_t generation, assignment& assigned,
                           std::uint64_t depth, back_pressure pressure, window_limits window)
    : rooted_group(s, op, generation, part::data_sender), assigned_(assigned),
      log_(depth, op.default_digest, s.first_invocation), sizes_(depth, s.first_invocation),
      begun_(members_.size(), s.first_invocation), pressure_(pressure),
      window_{.invocations = std::min(window.invocations, farthest_ahead), .bytes = window.bytes} {
  foreseen_.drop_below(s.first_invocation);
  unmatched_.drop_below(s.first_invocation);
  // As long as this rank itself has not ended the invocation, no rows are missing.
  assigned_.ask_begun([this](std::uint32_t, std::uint64_t invocation) {
    return have_begun(invocation + 1) && invocation < ended_below();
  });
  listen();
}

void group_leader::on_flow(rank_id from, const matched& m) {
  if (m.what != matched::kind::report) return;
  const std::uint64_t before = slowest();
  note_progress(from, std::min(m.count, calls_.next));
  // Checks S2 for a worker that sends no parts to the leader: a sample.
  const foreseen* const mine = foreseen_.find(m.ran_invocation);
  const std::uint64_t meant = mine != nullptr ? mine->choice.digest : default_digest_;
  if (m.ran != 0 && m.ran != meant && (mine != nullptr || m.ran_invocation < log_.first_written())) {
    ++counters_.contradictions;
    runtime::blame({"S2", "a worker must run the config that the leader assigned", here()}, from);
    if (mine != nullptr)
      assigned_.quarantine(mine->bytes, meant, services_.ex.now(),
                           "rank " + std::to_string(from) + " says that it ran another config in invocation " +
                               std::to_string(m.ran_invocation));
  }
  begin_all();
  if (slowest() > before && room_question_.is_set()) room_question_.begin(services_);  // the slowest makes progress
}

std::uint64_t group_leader::slowest() const noexcept {
  std::uint64_t least = calls_.next;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] != leader_) least = std::min(least, begun_[i]);
  }
  return least;
}

void group_leader::note_progress(rank_id worker, std::uint64_t begun) noexcept {
  const std::size_t at = place(worker);
  if (at == members_.size()) return;
  begun_[at] = std::max(begun_[at], begun);
}

// `least`: how many invocations the slowest worker has begun.
bool group_leader::has_room(const group_invocation& inv, std::uint64_t least) const noexcept {
  if (inv.index() - ended_below() >= most_at_once) return false;
  if (pressure_ == back_pressure::contributions || inv.index() <= least) return true;
  if (inv.index() - least >= window_.invocations) return false;
  std::uint64_t bytes = inv.total_bytes();
  for (std::uint64_t n = least; n < inv.index(); ++n) {
    const std::uint64_t* size = unmatched_.find(n);
    bytes += size == nullptr ? 0 : *size;
  }
  return bytes <= window_.bytes;
}

bool group_leader::try_begin(group_invocation& inv) {
  const std::uint64_t n = inv.index();
  if (unmatched_.find(n) == nullptr) {  // the first attempt to begin
    unmatched_.put(n, inv.total_bytes());
    sizes_.begun(n, inv.total_bytes());
  }
  const std::uint64_t least = slowest();
  unmatched_.drop_below(least);
  if (!has_room(inv, least)) {
    if (pressure_ == back_pressure::window && !room_question_.is_set()) {
      ++counters_.waited;
      room_question_.restart();
      ask_for_room();
    }
    return false;
  }
  assign_through(n);
  set_flags(inv, stamp_flags::none);
  if (foreseen* const f = foreseen_.find(n)) {
    const bool right = tuning::size_bucket::of(f->bytes) == tuning::size_bucket::of(inv.total_bytes());
    f->bytes = inv.total_bytes();
    if (right) {
      set_flags(inv, f->choice.flags);
    } else {
      withdraw(n);
    }
  }
  rows_.set_measuring(assigned_.measuring());
  set_digest(inv, *log_.config_of(n));
  for (std::size_t i = 0; n < untold_below_ && i < members_.size(); ++i) {
    if (members_[i] != leader_) send_stamp(inv, members_[i]);
  }
  return true;
}

// True for every config that is not in force yet, also during its warm-up, so that no caller gets data that was not compared.
bool group_leader::is_compared(const assignment::choice& c, std::uint64_t bytes) const noexcept {
  if (!comparing_ || c.digest == default_digest_) return false;
  const search* const its = assigned_.find(bytes);
  return its != nullptr && !its->is_decided() && c.digest != its->chosen().digest;
}

// Assigns in order, so that "the one before" means the same to the assignment and to the participants.
void group_leader::assign_through(std::uint64_t invocation) {
  // Skips invocations that failed before the log had a place for them: their configs are no longer needed.
  const std::uint64_t over = std::min(ended_below(), invocation + 1);
  while (log_.unwritten() < over) {
    log_.drop_below(log_.unwritten());
    runtime::invariant(log_.write(default_digest_), {"S1", "each invocation is assigned once, in order", here()});
  }
  while (log_.unwritten() <= invocation) {
    const std::uint64_t n = log_.unwritten();
    // No search begins for a size that no call has had.
    std::uint64_t stamped = default_digest_;
    if (const std::optional<std::uint64_t> bytes = sizes_.expected(n)) {
      const auto choice = assigned_.choose(*bytes, 0, n, services_.ex.now());
      foreseen_.put(n, {choice, *bytes});
      stamped = is_compared(choice, *bytes) ? compared_with_default(choice.digest) : choice.digest;
    }
    runtime::invariant(log_.write(stamped), {"S1", "each invocation is assigned once, in order", here()});
  }
}

stamp group_leader::stamp_of(group_invocation& inv, rank_id to) {
  stamp s = plain_stamp(inv);
  auto& known = addressed(inv);
  if (std::find(known.begin(), known.end(), to) == known.end()) known.push_back(to);
  if (inv.rehearsal()) return s;
  const std::uint64_t n = inv.index();
  // When one of very many waiting calls fails, the log may have no place yet for the config of the call d calls later. The stamp then
  // reports only the failure. The members learn that config when the later call begins.
  if (!inv.begun() && !log_.has_place(n + log_.depth())) {
    untold_below_ = std::max(untold_below_, n + log_.depth() + 1);
    return s;
  }
  assign_through(n + log_.depth());
  s.digest = *log_.config_of(n);  // also if it failed before it began
  if (log_.depth() != 0) s.next_digest = *log_.config_of(n + log_.depth());
  s.flags = inv.flags().value_or(stamp_flags::none);
  return s;
}

void group_leader::heard(const stamp& s, std::uint64_t invocation, group_invocation* active) {
  note_progress(s.source, invocation + 1);
  const auto mine = log_.config_of(invocation);
  if (s.digest != 0 && mine && s.digest != *mine)
    contradicted(s, "S2", "a worker runs what the leader assigned", active);
  if (!has(s.flags, stamp_flags::poison) || active != nullptr || invocation >= calls_.next) return;
  blame_assigned(invocation, poison_of(s));
  // This rank has ended the invocation, but other members may still wait for data that this worker should have passed on.
  stamp told = s;
  told.source = leader_;
  told.next_digest = 0;
  if (const foreseen* const was = foreseen_.find(invocation)) told.flags = told.flags | was->choice.flags;
  for (const rank_id r : members_) {
    if (r != leader_ && r != s.source)
      static_cast<void>(services_.net.send(r, runtime::link::channel::data, bytes_of(told), {}, nullptr));
  }
}

void group_leader::withdraw(std::uint64_t invocation) {
  assigned_.withdraw(0, invocation);
  if (foreseen* const f = foreseen_.find(invocation)) f->choice.flags = stamp_flags::none;
}

void group_leader::blame_assigned(std::uint64_t invocation, const group_fault& fault) {
  const foreseen* const mine = foreseen_.find(invocation);
  if (mine == nullptr || !is_of_config(fault.why)) return;
  assigned_.quarantine(
      mine->bytes, mine->choice.digest, services_.ex.now(),
      "it failed on rank " + std::to_string(fault.culprit) + " in invocation " + std::to_string(invocation));
}

void group_leader::failed(group_invocation& inv) noexcept {
  for (const rank_id r : members_) {
    if (r != leader_) send_poison(inv, r);
  }
}

void group_leader::end(group_invocation& inv) {
  const errc outcome = inv.fault().why;
  if (outcome == errc::none) {
    for (const rank_id r : members_) {
      const auto& known = addressed(inv);
      if (r != leader_ && std::find(known.begin(), known.end(), r) == known.end()) send_stamp(inv, r);
    }
  }
  const time_ns ended_ns = ended_at(inv);
  record(inv, ended_ns);
  if (inv.rehearsal()) {
    leave(inv);
    return;
  }
  const stamp_flags flags = inv.flags().value_or(stamp_flags::none);
  if (!inv.begun()) withdraw(inv.index());
  if (has(flags, stamp_flags::timed)) {
    const bool late = outcome == errc::timeout && inv.begun();
    if (outcome == errc::none || is_of_config(outcome) || late) {
      wire_row row;
      row.invocation = inv.index();
      row.digest = inv.config();
      row.start_ns = inv.counts_from_ns();
      row.end_ns = ended_ns;
      row.worked_ns = inv.worked_ns(ended_ns);
      row.status = late ? late_row : static_cast<std::uint8_t>(inv.status());
      rows_.add(row);
    } else {
      assigned_.withdraw(0, inv.index());  // if the caller gave up, the config is not to blame
    }
  }
  if (has(flags, stamp_flags::flush)) rows_.flush(0, inv.index());
  rows_.ended(inv.counts_from_ns(), inv.index(), ended_ns);
  if (rows_.measuring() && outcome == errc::none && inv.config() == default_digest_)
    assigned_.note_default(inv.total_bytes(), ended_ns - inv.counts_from_ns());
  blame_assigned(inv.index(), inv.fault());
  const std::uint64_t over = std::min(leave(inv), log_.unwritten());
  const std::uint64_t remembered = over - std::min(over, most_remembered);
  log_.drop_below(remembered);
  foreseen_.drop_below(remembered);
  begin_all();
}

bool group_leader::settled() { return fault_.why != errc::none || have_begun(calls_.next); }

bool group_leader::have_begun(std::uint64_t below) {
  bool all = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] == leader_ || begun_[i] >= below) continue;
    all = false;
    ask(i);
  }
  return all;
}

void group_leader::ask(std::size_t worker) {
  matched m;
  m.what = matched::kind::question;
  if (services_.mail.send(members_[worker], number_of(op_, part::data_receiver), generation(), m) == errc::none)
    ++counters_.flow_messages;
}

void group_leader::ask_for_room() noexcept {
  bool waiting = false;
  calls_.active.for_each(
      [&](const group_invocation& inv) { waiting = waiting || (!inv.begun() && inv.fault().why == errc::none); });
  if (!waiting) return;
  const std::uint64_t least = slowest();
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i] != leader_ && begun_[i] == least) ask(i);
  }
  room_question_.go_on(services_);
}

}  // namespace parley::actors
