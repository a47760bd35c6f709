#pragma once
/// What the wire shows of windows: when there was room for an invocation, so that a wait for it can be told from a wait for
/// agreement, and whether its sender kept to that.
///
///     window_book book(stage, {.invocations = 64, .bytes = 4 << 20});
///     weather.tap(book);
///     book.waited(edge, invocation, began_ns)              // there was none when its call began, and the sender asked at once
///     book.overrun()                                        // stamps that left before there was room
///
/// A sender knows as matched what reports that reached it said, and nothing else; the leader of a group also what its workers'
/// stamps show. Both count invocations and bytes from there.
#include <parley/actors/edge/edge_sender.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/simulation/world/timeline.hpp>
#include <parley/simulation/world/weather.hpp>

#include <boost/container_hash/hash.hpp>
#include <boost/unordered/unordered_flat_map.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace parley::simulation {

class window_book final : public wire_tap {
 public:
  /// `first`: the number of each stream's first invocation.
  window_book(const timeline& line, actors::window_limits limits, std::uint64_t first = 0)
      : line_(line), limits_(limits), first_(first) {}
  void on_send(const parcel& p, const fate& f) override;
  bool on_deliver(parcel& p) override;

  struct sender {
    std::uint64_t op = 0;
    std::uint64_t generation = 0;
    rank_id rank = 0;
    friend auto operator<=>(const sender&, const sender&) = default;
    friend std::size_t hash_value(const sender& s) noexcept {
      std::size_t hash = 0;
      boost::hash_combine(hash, s.op);
      boost::hash_combine(hash, s.generation);
      boost::hash_combine(hash, s.rank);
      return hash;
    }
  };
  /// When all its receivers had room for it; 0: always.
  time_ns room_at(const sender& s, std::uint64_t invocation) const;
  /// Whether one of the receivers was asked for room in that time.
  bool asked(const sender& s, time_ns from, time_ns until) const;
  struct early_stamp {
    sender from;
    rank_id to = 0;
    std::uint64_t invocation = 0;
    time_ns ahead_ns = 0;  ///< of its room; `never`: there never was any
  };
  std::vector<early_stamp> overrun() const;

 private:
  struct stream {
    struct mark {
      std::uint64_t bytes = 0;
      time_ns left_ns = 0;
    };
    std::vector<std::pair<std::uint64_t, mark>> stamps;      // the first of each invocation, in their order
    std::vector<std::pair<time_ns, std::uint64_t>> matched;  // what the sender has been told, and when
    std::vector<time_ns> questions;
    // What the stamps before each carry together, and before one behind them.
    mutable std::vector<std::uint64_t> bytes_before;
  };
  using key = std::tuple<sender, rank_id, std::uint64_t>;  // and its receiver, and the stream's number
  void tell(const key& k, std::uint64_t count);
  void note(const parcel& p, const actors::stamp& s);
  stream& stream_of(const key& k);
  static std::uint64_t bytes_of(const stream& s, std::uint64_t first, std::uint64_t last);
  time_ns room_at(const stream& s, std::uint64_t invocation) const;

  const timeline& line_;
  actors::window_limits limits_;
  std::uint64_t first_;
  std::map<key, stream> streams_;
  boost::unordered_flat_map<key, stream*, boost::hash<key>> places_;  // each message asks for its own
};

}  // namespace parley::simulation
