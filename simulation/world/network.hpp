#pragma once
/// Virtual links between the ranks of a job, with all that a real transport does to messages, and all that it may do.
///
///     network net(line, 4, {.latency_ns = 2'000, .ns_per_byte = 0.1}, &weather);
///     ops::rank r({clock, net[0], …}, {});
///     net.crash(2, [&] { … end rank 2 … });      // nothing of it is sent, received or completed any more
///     net.give_up(0, 2);                         // rank 0 has noticed: what it has under way with 2 ends with `peer_failed`
///
/// A payload up to `eager_bytes` travels with its message; a larger one stays with its sender until it is fetched. Payloads
/// from one rank to another share one wire. A put ends at its origin and lands later, in any order with messages: only a fence
/// makes sure. `interference` decides the fate of each message; without one all of them arrive, in time.
///
/// Memory: a payload that is with the network is read until its completion has run and never afterwards, also when its rank
/// ends; an operation that is abandoned costs the connection, as with UCX, unless a sender can take it back. Writes into withdrawn memory, or into memory of a rank that has ended, land nowhere and are counted.
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
  time_ns per_message_ns = 0;  ///< how long a data message keeps its wire busy besides
  std::size_t eager_bytes = 8192;
  std::size_t wiring_bytes = 300'000;  ///< what a rehearsal moves (`link::wiring_bytes`); with many ranks, their memory
  bool shared_wire = false;            ///< payloads of one rank for another wait for each other
  bool shared_egress = false;          ///< payloads of one rank for whomever do, where they go out
  bool shared_ingress = false;         ///< payloads of whomever for one rank do, where they come in
  bool shared_one_sided = false;       ///< puts and gets do what the three above say, as messages do
  /// So many ranks, one behind the other, are one host: the three above mean its way out and in, and nothing between its own ranks. What
  /// a rank sends to itself takes neither in any case.
  rank_id ranks_per_host = 1;
  bool takes_back =
      false;  ///< a sender can take back what was not fetched yet, as memory that it lends; fetching it fails
  memory one_sided = memory::exposed;
  fences fence = fences::work;
  time_ns fence_fails_from_ns = 0;  ///< where they fail
  runtime::late_writes late = runtime::late_writes::fail;
  double one_sided_ns_per_byte = 0.1;
  time_ns landing_ns = 5'000;  ///< how long after its end at the origin a put lands; `never`: when `land` is called
};

/// Links of programs that are run with `--sim`: as in the world, a rank has one wire out and one wire in, which take so many bytes and
/// messages in a time, whomever they are for.
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
  std::span<std::byte> payload{};  ///< empty where it stays with its sender
  std::uint64_t payload_bytes = 0;
  std::uint64_t number = 0;  ///< how many went from one to the other on this channel before it, and 1
  std::uint8_t mark = 0;     ///< on delivery: what its fate says
  bool copy = false;         ///< comes a second time
  bool replaced = false;     ///< on delivery: `instead` is the payload
  std::vector<std::byte> instead{};
};

/// What becomes of a message. Data is never lost while both ends live: `lost` and `doubled` are for control messages, and
/// `doubled` for data to see what receivers drop.
struct fate {
  bool lost = false;
  bool doubled = false;
  time_ns extra_ns = 0;       ///< on top of its time
  time_ns copy_extra_ns = 0;  ///< of the second one
  std::uint8_t mark = 0;      ///< for who decided on it, to know it by on delivery
};

class interference {
 public:
  virtual fate judge(const parcel& p) = 0;
  /// Before it is delivered; it may be changed. False: it is not delivered after all.
  virtual bool deliver(parcel&) { return true; }
  /// A put's own time to land.
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
  /// What a put does to memory that was withdrawn, for mutants that do not withdraw it; none: nothing.
  std::function<void(std::uint64_t address, std::span<const std::byte> data)> put_too_late;

  /// `rank` ends inside `end_it`.
  template <class End>
  void crash(rank_id rank, End end_it) {
    begin_crash(rank);
    end_it();
    end_crash(rank);
  }
  /// Inside `end_it`, where the process of `rank` ends and its memory stays: nobody there hears how its transfers end.
  void forget_transfers_of(rank_id rank);
  /// A new process takes over the rank's number, and everybody knows.
  void revive(rank_id rank);
  /// The same in the midst of a job: the others know only once they have met it. What they send until then is for the old
  /// process; what that one has sent still comes.
  void come_back(rank_id rank);
  void meet(rank_id who, rank_id peer);
  /// Ends what `who` has under way with those that were `peer` before the one it has met.
  void let_go(rank_id who, rank_id peer);
  /// Which process of `peer`'s `who` knows: how often one had begun.
  std::uint64_t known_life(rank_id who, rank_id peer) const noexcept;
  /// `who` takes `peer` for dead from now on.
  void give_up(rank_id who, rank_id peer);
  /// The same on both sides: at once for `who`, a little later for `peer`.
  void break_connection(rank_id who, rank_id peer);
  bool gave_up(rank_id who, rank_id peer) const {
    return !given_up_.empty() && gave_up(who, peer, known_life(who, peer));
  }
  bool alive(rank_id rank) const noexcept;

  struct put_counters {
    std::size_t landed = 0;
    std::size_t nowhere = 0;  ///< memory that had been withdrawn
    std::size_t outside = 0;  ///< beyond the memory that the key names, or a key of nothing: a fault of the protocol
    std::size_t in_the_air = 0;
    std::size_t lost_reads = 0;  ///< of memory that was withdrawn under them
  };
  const put_counters& puts() const noexcept { return puts_; }
  /// That have arrived, in whatever way.
  std::uint64_t payloads() const noexcept { return payloads_; }
  /// The oldest put that is in the air; whether there was one.
  bool land();
  /// Completions that somebody waits for, apart from those that end once the death of a peer is noticed.
  std::size_t pending() noexcept;
  /// Of living ranks: memory that was not withdrawn.
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
  bool is_of(rank_id rank, std::uint64_t life) const noexcept;  ///< and lives
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
      given_up_;  // the life of the second that the first took for dead
  std::map<std::pair<rank_id, rank_id>, std::uint64_t>
      outdated_;                                  // what the first knows of the second, where that is old
  std::vector<std::unique_ptr<operation>> kept_;  // of living ranks, with peers that will never answer
  std::vector<region> regions_;                   // of all ranks; the number of one is its place + 1
  std::deque<flying_put> flying_;
  std::vector<waiting_fence> fences_;
  std::uint64_t last_put_ = 0;
  put_counters puts_;
  std::uint64_t payloads_ = 0;
};

}  // namespace parley::simulation
