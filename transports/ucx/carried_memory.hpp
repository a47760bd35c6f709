#pragma once
/// Puts, gets and fences that travel as messages, for peers whose memory the transport cannot reach by itself. UCX emulates them
/// between the ranks of one host as soon as peers may fail, 8 KiB at a time with an answer to each piece, into whatever address
/// the message names. Here they go the way of any other message, so that a put is as fast as a send, and their target checks
/// them.
///
///     carried_memory carried(link, link::channel::transfers);      // both ranks
///     auto key = carried.expose(number, bytes);                    // the target; the key goes to the origin
///     carried.put(target, *read_carried_key(key), address, data, &done);
///     carried.fence(target, &fenced);
///     carried.withdraw(number);                                    // what comes from here on is dropped
///
/// The target writes nothing but what lies inside of memory that is exposed now and whose token the origin knows. A put ends
/// at its origin like a send; a fence asks whether all puts before it have landed, and fails, like all that follow it, if one of them was
/// refused or lost. One that is late for memory which was withdrawn is neither: it changes nothing, its origin has done nothing wrong, and
/// who withdrew it knows. A fence may take a message along, which the target's link hands over then. Puts are numbered per process of an
/// origin, so that a later one never stands for an earlier one. They cannot be cancelled, a get that was ends with its answer. Both need the
/// target to poll. If the peer fails, all that is pending ends with `peer_failed`.
#include <parley/runtime/wire/link.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

namespace parley::transports {

/// What lets a peer in. It stands at the beginning of a key; what follows is the transport's own.
struct carried_key {
  std::uint64_t version = 0;
  std::uint64_t number = 0;  ///< the target's name for the memory
  std::uint64_t token = 0;   ///< random: a key of an earlier process, or a made-up one, opens nothing
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};
std::optional<carried_key> read_carried_key(std::span<const std::byte> key) noexcept;
/// Whether `bytes` from `address` on lie inside of what `key` names.
bool covers(const carried_key& key, std::uint64_t address, std::uint64_t bytes) noexcept;

/// Which puts of one origin have landed.
class landings {
 public:
  /// More than that out of order, or of fences that wait, is nothing that a link of ours sends: the fences fail with `full`.
  static constexpr std::size_t most_beyond = 65'536;
  static constexpr std::size_t most_fences = 1'024;
  struct fence {
    std::uint64_t request = 0;
    std::uint64_t below = 0;  ///< the numbers of the puts that it waits for are lower
    runtime::link::channel on = runtime::link::channel::data;
    std::vector<std::byte> header{};  ///< of the message that it brings, if it brings one
  };

  void landed(std::uint64_t number, runtime::errc outcome);
  /// Whether there was room for it.
  bool wait(fence&& f);
  /// The oldest of the fences of whose puts all have come, or one was forgotten for want of room.
  std::optional<fence> take_done();
  /// `none` if the puts of that fence have all landed; what became of the first that has not.
  runtime::errc outcome_of(const fence& f) const noexcept {
    return first_failed_ < f.below ? outcome_ : runtime::errc::none;
  }

 private:
  std::uint64_t below_ = 0;
  std::set<std::uint64_t> beyond_;
  std::vector<fence> fences_;
  std::uint64_t first_failed_ = std::numeric_limits<std::uint64_t>::max();
  runtime::errc outcome_ = runtime::errc::none;  // of that one
  std::uint64_t first_forgotten_ = std::numeric_limits<std::uint64_t>::max();
};

class carried_memory final : public runtime::link::handler {
 public:
  using channel = runtime::link::channel;
  using completion = runtime::completion;
  using errc = runtime::errc;
  using rank_id = runtime::rank_id;

  /// Hands an arrival to the handler of its channel.
  using take_function = std::function<void(channel, runtime::arrival&&)>;

  /// Listens on `on` of `by`, which nobody else uses. Both must outlive it. `take`: what came with a fence. `restarts`: of this
  /// rank's process.
  carried_memory(runtime::link& by, channel on, take_function take, std::uint32_t restarts = 0);
  ~carried_memory();
  carried_memory(const carried_memory&) = delete;
  carried_memory& operator=(const carried_memory&) = delete;

  // The target.
  std::vector<std::byte> expose(std::uint64_t number, std::span<std::byte> bytes);
  void withdraw(std::uint64_t number) noexcept;
  /// Whether a pending operation of the link's, one of ours, still touches that memory.
  bool uses(const completion* pending, std::uint64_t number) const noexcept;

  // The origin. The answers are those of runtime::link.
  errc put(rank_id to, const carried_key& key, std::uint64_t address, std::span<const std::byte> data,
           completion* done);
  errc get(rank_id from, const carried_key& key, std::uint64_t address, std::span<std::byte> into, completion* done);
  errc fence(rank_id to, completion* done);
  /// A fence with a message for channel `on`.
  errc announce(rank_id to, channel on, std::span<const std::byte> header, completion* done);
  void cancel(const completion& pending) noexcept { stop(pending, &runtime::link::cancel); }
  void abandon(const completion& pending) noexcept { stop(pending, &runtime::link::abandon); }

  /// The link ends: nothing more is said to anybody, and what waits for an answer ends with `closed`.
  void close() noexcept;
  /// From `poll`, when the link has ended all that it had with that peer.
  void on_peer_failed(rank_id peer) noexcept;
  /// Which process of a peer counts from here on; at first the one that was never restarted.
  void expect(rank_id peer, std::uint32_t restarts);
  void on_arrival(runtime::arrival&& message) noexcept override;

  struct counters {
    std::uint64_t refused = 0;  ///< puts and gets that named no memory of ours, or more than that
    std::uint64_t late = 0;     ///< puts into memory that had been withdrawn
    std::uint64_t malformed = 0;
    std::uint64_t foreign = 0;  ///< of another process than the one in its rank's place
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  struct message;
  struct region {
    std::span<std::byte> bytes;
    std::uint64_t token = 0;
  };
  /// Something that a peer does to memory of this rank.
  struct visit;
  /// Something that this rank has asked a peer for.
  struct request;
  static constexpr std::size_t most_visits =
      4'096;  // at one time: a peer cannot make this rank keep any number of them

  bool was_withdrawn(std::uint64_t number) const noexcept;
  const region* find(const message& m) const noexcept;
  void on_put(const message& m, runtime::arrival&& arrived);
  void on_get(const message& m);
  void on_got(const message& m, runtime::arrival&& arrived);
  void on_fence(const message& m, runtime::arrival&& arrived);
  void on_fenced(const message& m);
  void note_landed(rank_id from, std::uint64_t number, errc outcome) noexcept;
  void answer_fence(rank_id from, std::uint64_t request, runtime::errc outcome) noexcept;
  void answer_fences(rank_id from);
  void left(visit& v, errc outcome) noexcept;
  void end(std::uint64_t id, errc outcome) noexcept;
  void stop(const completion& pending, void (runtime::link::*how)(completion&)) noexcept;
  template <class Which>
  void end_all(Which which, errc outcome) noexcept;
  errc say(rank_id to, message m, std::span<const std::byte> payload = {}, completion* done = nullptr) noexcept;
  errc ask(rank_id to, message m, std::unique_ptr<request> asked, std::span<const std::byte> payload = {});

  runtime::link& link_;
  channel on_;
  take_function take_;
  std::uint16_t restarts_;
  std::unordered_map<rank_id, std::uint16_t> restarts_of_;  // what is not there is 0
  std::unordered_map<std::uint64_t, region> regions_;
  std::unordered_map<std::uint64_t, std::unique_ptr<request>> requests_;
  std::unordered_map<rank_id, std::uint64_t> puts_started_;
  std::unordered_map<rank_id, landings> landings_;
  std::vector<std::unique_ptr<visit>> visits_;  // few: found at once
  std::uint64_t last_request_ = 0;
  std::uint64_t last_exposed_ = 0;
  bool closed_ = false;
  counters counters_;
};

}  // namespace parley::transports
