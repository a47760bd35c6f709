#pragma once
/// Records the latest events of a rank's ops, in a ring of fixed size: which config ran which invocation, and when, and the steps of the
/// agreement. flight_dump.hpp turns it into text.
///
///     flight_recorder flight(16384);
///     flight.add({.op = id, .invocation = i, .digest = d, .began_ns = t, .ended_ns = now, .what = flight_event::sent});
///     for (const flight_record& r : flight.in_order()) …
///
/// Both ends of an edge record the config that they ran. Joining two recorders by (op, tag, generation, invocation) shows every mismatch.
#include <parley/identifiers.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

namespace parley::runtime {

enum class flight_event : std::uint8_t {
  sent,
  received,
  send_failed,
  receive_failed,
  // Steps of the agreement: `invocation` is a count, `tag` is the rank concerned.
  offered,      ///< this many configs were sent to the leader
  merged,       ///< this many candidates were received
  warmed,       ///< this many candidates are ready here
  reported,     ///< this many rows were sent to the leader
  measured,     ///< at the leader: the time of `digest`, the median of this many repetitions
  decided,      ///< `digest` for messages of up to `bytes`, among this many candidates; proposed by `tag`
  quarantined,  ///< `digest` failed in a real invocation
  rejected,     ///< the op has ended: declarations conflict
  peer_lost,
  credited,  ///< the peer may write or read the buffers up to this number
  revoked,
};
constexpr bool is_transfer(flight_event what) noexcept { return what <= flight_event::receive_failed; }
std::string_view name(flight_event what) noexcept;

struct flight_record {
  std::uint64_t op = 0;
  std::uint64_t generation = 0;
  std::uint64_t invocation = 0;
  std::uint64_t digest = 0;  ///< of the config whose implementation ran here
  std::uint64_t bytes = 0;
  time_ns began_ns = 0;
  time_ns ended_ns = 0;
  std::uint32_t tag = 0;
  flight_event what = flight_event::sent;
  std::uint8_t flags = 0;  ///< bit 0: a timed trial, bit 1: the last of a round, bit 2: a rehearsal
};
static_assert(sizeof(flight_record) <= 64, "a ring of them stays small");

class flight_recorder {
 public:
  /// Keeps the last `capacity` records, rounded up to a power of two.
  explicit flight_recorder(std::size_t capacity = 16384)
      : last_(std::bit_ceil(std::max<std::size_t>(capacity, 1)) - 1),
        ring_(static_cast<flight_record*>(::operator new((last_ + 1) * sizeof(flight_record), alignment))) {}
  void add(const flight_record& r) noexcept { ring_[total_++ & last_] = r; }
  /// The latest of the last `most` records for which `is_it` returns true; null: none.
  template <class Is>
  const flight_record* find_latest(const Is& is_it, std::uint64_t most) const noexcept {
    const std::uint64_t oldest = total_ - std::min({total_, last_ + 1, most});
    for (std::uint64_t i = total_; i > oldest; --i) {
      if (const flight_record& r = ring_[(i - 1) & last_]; is_it(r)) return &r;
    }
    return nullptr;
  }
  /// Number of records added, including those that have been overwritten.
  std::uint64_t total() const noexcept { return total_; }
  std::vector<flight_record> in_order() const {
    std::vector<flight_record> all;
    all.reserve(std::min(total_, last_ + 1));
    for (std::uint64_t i = total_ > last_ ? total_ - last_ - 1 : 0; i < total_; ++i) all.push_back(ring_[i & last_]);
    return all;
  }

 private:
  static constexpr std::align_val_t alignment{64};  // a record is a cache line
  struct given_back {
    void operator()(flight_record* ring) const noexcept { ::operator delete(ring, alignment); }
  };
  std::uint64_t last_;  // the highest index of the ring; all its bits are ones
  // Allocated at the start, so that recording never allocates, but not written before it is used: there are many simulated ranks.
  std::unique_ptr<flight_record[], given_back> ring_;
  std::uint64_t total_ = 0;
};

}  // namespace parley::runtime
