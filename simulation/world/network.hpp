#pragma once
/// Virtual links between the ranks of a job. They treat messages in every way that the contract of links allows, not only as today's
/// transports do. (On request they also break it: they can double data.)
///
///     network net(line, 4, {.latency_ns = 2'000, .ns_per_byte = 0.1}, &weather);
///     ops::rank r({clock, net[0], …}, {});
///     net.crash(2, [&] { … end rank 2 … });      // from now on rank 2 sends, receives and completes nothing
///     net.give_up(0, 2);                         // rank 0 has noticed: its operations in flight with rank 2 end with `peer_failed`
///
/// A payload up to `eager_bytes` travels with its message; a larger one stays with its sender until it is fetched. `link_model` says which
/// payloads share a wire. A put completes at its origin and lands at its target later, in any order with messages; only a fence
/// guarantees that it has landed. `interference` decides the fate of each message; without one all messages arrive in time.
///
/// Memory: the network may read a payload until its completion has run, and never afterwards, even if the rank ends. Abandoning an
/// operation breaks the connection, as with UCX, unless the sender can take the payload back. The network drops and counts writes into
/// memory of a rank that has ended; if `late` is `fail`, it also does so for writes into withdrawn memory.
#include <parley/runtime/wire/link.hpp>
#include <parley/simulation/world/timeline.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace parley::simulation {

using runtime::errc;

struct link_model {
  enum class memory : std::uint8_t { none, exposed };
  enum class fences : std::uint8_t { work, do_nothing, fail };
  time_ns latency_ns = 1'000;
  double ns_per_byte = 0.1;
  time_ns per_message_ns = 0;  ///< how long a data message keeps its wire busy, in addition to its bytes
  std::size_t eager_bytes = 8192;
  std::size_t wiring_bytes = 300'000;  ///< size of a rehearsal's message (`link::wiring_bytes`); smaller saves memory
  bool shared_wire = false;            ///< payloads from one rank to one other rank wait for each other
  bool shared_egress = false;          ///< all payloads that a rank sends wait for each other
  bool shared_ingress = false;         ///< all payloads that a rank receives wait for each other
  bool shared_one_sided = false;       ///< puts and gets also wait for these wires
  /// So many consecutive ranks are one host: `shared_egress` and `shared_ingress` are then the wires out of and into the host. Messages
  /// between ranks of one host, and from a rank to itself, use neither.
  rank_id ranks_per_host = 1;
  bool takes_back =
      false;  ///< a sender can take back a payload that was not fetched yet, such as lent memory; a later fetch fails
  memory one_sided = memory::exposed;
  fences fence = fences::work;
  time_ns fence_fails_from_ns = 0;  ///< if `fence` is `fail`: fences work before this time
  runtime::late_writes late = runtime::late_writes::fail;
  double one_sided_ns_per_byte = 0.1;
  time_ns landing_ns = 5'000;  ///< from a put's completion at its origin until it lands; `never`: when `land` is called
};

/// The links of programs that run with `--sim`. As in reality, each rank has one wire out and one wire in, which all its peers share and
/// which carry only so many bytes and messages in a given time.
inline link_model usual_links() {
  link_model l;
  l.per_message_ns = 50;
  l.shared_egress = l.shared_ingress = l.shared_one_sided = true;
  return l;
}

/// A message as the network sees it.
struct parcel {
  rank_id from = 0;
  rank_id to = 0;
  runtime::link::channel on = runtime::link::channel::control;
  std::span<std::byte> header{};
  std::span<std::byte> payload{};  ///< empty if it stays with its sender
  std::uint64_t payload_bytes = 0;
  std::uint64_t number = 0;  ///< counts the messages from `from` to `to` on this channel, from 1
  std::uint8_t mark = 0;     ///< on delivery: the mark of its fate
  bool copy = false;         ///< the second delivery of a doubled message
  bool replaced = false;     ///< on delivery: `instead` is the payload
  std::vector<std::byte> instead{};
};

/// The fate of a message. Data is never lost while both ends live, so `lost` is for control messages. `doubled` is for control messages
/// and for data, to test that receivers drop the copy.
struct fate {
  bool lost = false;
  bool doubled = false;
  time_ns extra_ns = 0;       ///< added to its usual time
  time_ns copy_extra_ns = 0;  ///< of the copy
  std::uint8_t mark = 0;      ///< by which `interference` recognizes the message on delivery
};

class interference {
 public:
  virtual fate judge(const parcel& p) = 0;
  /// Called before a message is delivered; may change it. False: the message is dropped.
  virtual bool deliver(parcel&) { return true; }
  /// The time that a put takes to land.
  virtual time_ns landing(rank_id, rank_id, time_ns usual) { return usual; }

 protected:
  ~interference() = default;
};

class network {
 public:
  network(timeline& line, rank_id ranks, link_model model = {}, interference* weather = nullptr);
  network(const network&) = delete;
  network& operator=(const network&) = delete;
  ~network();

  runtime::link& operator[](rank_id r) noexcept;
  link_model& model() noexcept { return model_; }
  /// Called for a put that comes after its memory was withdrawn, for mutants that do not withdraw it; may be empty.
  std::function<void(std::uint64_t address, std::span<const std::byte> data)> put_too_late;

  /// Ends `rank`; its objects are destroyed inside `end_it`.
  template <class End>
  void crash(rank_id rank, End end_it) {
    begin_crash(rank);
    end_it();
    end_crash(rank);
  }
  /// Call inside `end_it` if the process of `rank` ends but its memory stays: its completions are then never called.
  void forget_transfers_of(rank_id rank);
  /// Starts a new process in place of `rank`; all other ranks know it at once.
  void revive(rank_id rank);
  /// Like `revive`, in the middle of a job: other ranks know the new process only after `meet`. Until then their messages go to the old
  /// process and are lost. Messages that the old process sent still arrive.
  void come_back(rank_id rank);
  void meet(rank_id who, rank_id peer);
  /// Ends the operations of `who` with earlier processes of `peer`. Call it once `who` has met the new process.
  void let_go(rank_id who, rank_id peer);
  /// The number of the process of `peer` that `who` knows, counted from the beginning.
  std::uint64_t known_life(rank_id who, rank_id peer) const noexcept;
  /// From now on `who` considers `peer` dead.
  void give_up(rank_id who, rank_id peer);
  /// Both ranks consider each other dead: `who` at once, `peer` one latency later.
  void break_connection(rank_id who, rank_id peer);
  bool gave_up(rank_id who, rank_id peer) const {
    return !given_up_.empty() && gave_up(who, peer, known_life(who, peer));
  }
  bool alive(rank_id rank) const noexcept;

  struct put_counters {
    std::size_t landed = 0;
    std::size_t nowhere = 0;  ///< into withdrawn memory, or memory of a rank that has ended
    std::size_t outside = 0;  ///< outside the memory of the key, or with an unknown key: a fault of the protocol
    std::size_t in_the_air = 0;
    std::size_t lost_reads = 0;  ///< gets from memory that was withdrawn during the get
  };
  const put_counters& puts() const noexcept { return puts_; }
  /// Number of payloads that have arrived: messages, puts and gets.
  std::uint64_t payloads() const noexcept { return payloads_; }
  /// Lands the oldest put in the air. Returns whether there was one.
  bool land();
  /// Number of operations in flight, except those that end only once the death of a peer is noticed.
  std::size_t pending() noexcept;
  /// Number of memory regions of living ranks that are exposed and not withdrawn.
  std::size_t exposed() const noexcept;

 private:
  class port;
  struct operation;
  struct offered;
  struct delivery;
  struct bringing;
  struct finishing;
  struct leaving;
  struct landing_put;
  struct reading;
  struct region {
    rank_id owner;
    std::uint64_t life;
    std::span<std::byte> bytes;
    bool withdrawn = false;
  };
  struct flying_put {
    std::uint64_t number;
    rank_id from;
    std::uint64_t life;  // of its origin
    rank_id to;
    std::uint64_t region;
    std::uint64_t address;
    std::vector<std::byte> data;
    bool left_origin = false;
  };
  struct waiting_fence;
  struct handing_over;
  struct breaking;
  bool is_of(rank_id rank, std::uint64_t life) const noexcept;  ///< true if that process of `rank` lives
  bool gave_up(rank_id who, rank_id peer, std::uint64_t life) const;
  void end_operations(rank_id who, rank_id peer, std::uint64_t before_life);
  void begin_crash(rank_id rank);
  void end_crash(rank_id rank);
  std::unique_ptr<operation> open(rank_id owner, rank_id peer, runtime::completion* done);
  void finish(std::unique_ptr<operation> op, time_ns delay, errc outcome = errc::none);
  void keep(std::unique_ptr<operation> op);
  time_ns crossed(rank_id from, rank_id to, std::uint64_t bytes, runtime::link::channel on);
  time_ns carried(rank_id from, rank_id to, time_ns begins, time_ns busy);
  time_ns put_or_got(rank_id from, rank_id to, time_ns begins, std::uint64_t bytes);
  std::uint64_t place_of(rank_id owner, std::span<const std::byte> key, std::uint64_t address,
                         std::uint64_t bytes) const;
  void leave_origin(std::uint64_t number, std::span<const std::byte> data);
  void forget_put(std::uint64_t number);
  void land(std::size_t at);
  void bring(const waiting_fence& f, runtime::time_ns way);
  void end_fences(runtime::time_ns way = 0);

  timeline& line_;
  link_model model_;
  interference* weather_;
  std::vector<std::unique_ptr<port>> ports_;
  std::map<std::pair<rank_id, rank_id>, std::uint64_t>
      given_up_;  // by (who, peer): the latest life of `peer` that `who` considered dead
  std::map<std::pair<rank_id, rank_id>, std::uint64_t>
      outdated_;                                  // by (who, peer): the old life of `peer` that `who` still knows
  std::vector<std::unique_ptr<operation>> kept_;  // operations of living ranks with peers that will never reply
  std::vector<region> regions_;                   // of all ranks; the number of a region is its index + 1
  std::deque<flying_put> flying_;
  std::vector<waiting_fence> fences_;
  std::uint64_t last_put_ = 0;
  put_counters puts_;
  std::uint64_t payloads_ = 0;
};

}  // namespace parley::simulation
