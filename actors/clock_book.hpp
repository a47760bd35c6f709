#pragma once
/// Keeps this rank's knowledge of the other ranks' clocks. Ranks of one host share the monotonic clock, so their offset and error are 0 and
/// their messages carry zeros. Between hosts, control messages that are sent anyway carry clock stamps in both directions.
///
///     message.clock = book.stamp_for(peer, now);                       // when the message is sent
///     book.note(from, message.clock, now);                             // when the message arrives
///     const tuning::clock_offset* theirs = book.offset_of(peer);       // null: the same clock as ours
///
/// If a stamp waits before it is sent, or a message is sent again, that only widens a bound: see tuning/clock_offset.hpp. Nothing waits. A
/// peer that sends wrong times spoils only the reading of its own times.
#include <parley/identifiers.hpp>
#include <parley/runtime/wire/wire.hpp>
#include <parley/tuning/clock_offset.hpp>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace parley::actors {

using runtime::rank_id;
using runtime::time_ns;

/// Travels in messages between ranks of different hosts; all zeros within a host.
struct clock_stamp {
  std::int64_t sent_ns = 0;           ///< when this message was sent, by its sender's clock
  std::int64_t echo_sent_ns = 0;      ///< send time, by its sender's clock, of a message that this sender has received
  std::int64_t echo_received_ns = 0;  ///< when this sender received that message, by its own clock
  PARLEY_FIELDS(sent_ns, echo_sent_ns, echo_received_ns)
};

/// Lets each rank of a world on one clock appear to have its own clock, for simulation and tests.
struct clock_skew {
  time_ns offset_ns = 0;
  std::int64_t drift_ppb = 0;
  constexpr time_ns of(time_ns t) const noexcept {
    constexpr time_ns billion = 1'000'000'000;
    return t + offset_ns + t / billion * drift_ppb + t % billion * drift_ppb / billion;
  }
};

class clock_book {
 public:
  clock_book() = default;
  /// `hosts`: ranks with equal numbers share a host; empty: all ranks share one.
  clock_book(std::vector<std::uint64_t> hosts, rank_id self, clock_skew skew)
      : hosts_(std::move(hosts)), self_(self), skew_(skew) {}

  bool same_host(rank_id r) const noexcept {
    return r == self_ || hosts_.empty() || (r < hosts_.size() && hosts_[r] == hosts_[self_]);
  }
  /// A number that the ranks of one host share; 0 if the host is not known.
  std::uint64_t host_of(rank_id r) const noexcept { return r < hosts_.size() ? hosts_[r] : 0; }
  /// The time on this rank's clock when the executor's clock shows `t`.
  time_ns local(time_ns t) const noexcept { return skew_.of(t); }
  /// Null if this rank uses the executor's clock unchanged.
  const clock_skew* skew() const noexcept { return skew_.offset_ns == 0 && skew_.drift_ppb == 0 ? nullptr : &skew_; }

  clock_stamp stamp_for(rank_id to, time_ns now) {
    clock_stamp s;
    if (same_host(to)) return s;
    peer& p = peers_[to];
    s.sent_ns = local(now);
    s.echo_sent_ns = p.echo.sent_ns;
    s.echo_received_ns = p.echo.received_ns;
    p.echoed = true;
    return s;
  }
  void note(rank_id from, const clock_stamp& s, time_ns now) {
    if (same_host(from) || s.sent_ns == 0) return;
    peer& p = peers_[from];
    const time_ns received_ns = local(now);
    if (s.echo_sent_ns != 0) static_cast<void>(p.offset.add_ours_to_theirs(s.echo_sent_ns, s.echo_received_ns));
    if (!p.offset.add_theirs_to_ours(s.sent_ns, received_ns)) return;
    // The fastest message since the last reply gives the narrowest bound.
    const bool faster = received_ns - s.sent_ns < p.echo.received_ns - p.echo.sent_ns;
    if (p.echoed || faster) p.echo = {s.sent_ns, received_ns};
    p.echoed = false;
  }
  /// How far a peer's clock is from ours; null if both ranks use the same clock.
  const tuning::clock_offset* offset_of(rank_id r) const {
    static const tuning::clock_offset unknown;
    if (same_host(r)) return nullptr;
    const auto known = peers_.find(r);
    return known == peers_.end() ? &unknown : &known->second.offset;
  }

 private:
  struct message_times {
    std::int64_t sent_ns = 0;
    std::int64_t received_ns = 0;
  };
  struct peer {
    tuning::clock_offset offset;
    message_times echo;
    bool echoed = true;
  };
  std::vector<std::uint64_t> hosts_;
  rank_id self_ = 0;
  clock_skew skew_;
  std::map<rank_id, peer> peers_;
};

}  // namespace parley::actors
