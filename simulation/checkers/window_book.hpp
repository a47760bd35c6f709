#pragma once
/// Reads from the wire when a sender's window had room for an invocation. This distinguishes a wait for room from a wait for agreement, and
/// finds senders that did not wait for room.
///
///     window_book book(stage, {.invocations = 64, .bytes = 4 << 20});
///     weather.tap(book);
///     book.room_at(edge, invocation)                       // when all its receivers had room for it
///     book.overrun()                                        // stamps that were sent before there was room
///
/// A sender counts an invocation as matched only once it has received a report of that; the leader of a group also counts its workers'
/// stamps as reports. The window limits the invocations and the bytes that are not matched yet.
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
  /// The time at which all receivers had room for the invocation; 0: there always was.
  time_ns room_at(const sender& s, std::uint64_t invocation) const;
  /// True if the sender asked one of its receivers for room between `from` and `until`.
  bool asked(const sender& s, time_ns from, time_ns until) const;
  struct early_stamp {
    sender from;
    rank_id to = 0;
    std::uint64_t invocation = 0;
    time_ns ahead_ns = 0;  ///< how long before there was room it was sent; `never`: there never was room
  };
  std::vector<early_stamp> overrun() const;

 private:
  struct stream {
    struct mark {
      std::uint64_t bytes = 0;
      time_ns left_ns = 0;
    };
    std::vector<std::pair<std::uint64_t, mark>> stamps;      // the first stamp of each invocation, in their order
    std::vector<std::pair<time_ns, std::uint64_t>> matched;  // when the sender learned how many are matched
    std::vector<time_ns> questions;
    // Sums: the bytes of all stamps before each stamp, and of all stamps together.
    mutable std::vector<std::uint64_t> bytes_before;
  };
  using key = std::tuple<sender, rank_id, std::uint64_t>;  // sender, receiver, number of the stream
  void tell(const key& k, std::uint64_t count);
  void note(const parcel& p, const actors::stamp& s);
  stream& stream_of(const key& k);
  static std::uint64_t bytes_of(const stream& s, std::uint64_t first, std::uint64_t last);
  time_ns room_at(const stream& s, std::uint64_t invocation) const;

  const timeline& line_;
  actors::window_limits limits_;
  std::uint64_t first_;
  std::map<key, stream> streams_;
  boost::unordered_flat_map<key, stream*, boost::hash<key>> places_;  // index of `streams_`, used for each message
};

}  // namespace parley::simulation
