#pragma once
/// Puts, gets and fences sent as messages, for peers whose memory the transport cannot reach directly. When peers may fail, UCX
/// emulates one-sided transfers between the ranks of one host: it sends pieces of 8 KiB, waits for a reply to each, and writes to
/// any address that a message names. Here they are sent like any other message, so that a put is as fast as a send, and the target
/// checks each one.
///
///     carried_memory carried(link, link::channel::transfers);      // both ranks
///     auto key = carried.expose(number, bytes);                    // the target; it sends the key to the origin
///     carried.put(target, *read_carried_key(key), address, data, &done);
///     carried.fence(target, &fenced);
///     carried.withdraw(number);                                    // the target drops puts that arrive later
///
/// The target writes only inside memory that is exposed at that moment and whose token the origin knows. A put ends at its origin
/// like a send. A fence asks the target whether all earlier puts have landed. If one of them was refused or lost, the fence and all
/// later fences fail. A put that arrives after its memory was withdrawn changes nothing and fails no fence: the origin made no
/// mistake, and the target knows that it withdrew the memory. A fence may carry a message, which the target's link hands over once
/// the puts have landed. Each process of an origin numbers its own puts, so that a put of a restarted process is never counted as one
/// of an earlier process. Puts cannot be cancelled; a cancelled get ends when its reply arrives. Puts and gets need the target to
/// poll. If the peer fails, all pending operations end with `peer_failed`.
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

/// Gives a peer access to exposed memory. A remote key begins with this; the transport's own key follows it.
struct carried_key {
  std::uint64_t version = 0;
  std::uint64_t number = 0;  ///< the target's name for the memory
  std::uint64_t token = 0;   ///< random: a key of an earlier process, or a made-up one, opens nothing
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
};
std::optional<carried_key> read_carried_key(std::span<const std::byte> key) noexcept;
/// True if the `bytes` bytes at `address` lie inside the memory that `key` names.
bool covers(const carried_key& key, std::uint64_t address, std::uint64_t bytes) noexcept;

/// Tracks which puts of one origin have landed.
class landings {
 public:
  /// Limits on puts that land out of order and on waiting fences. No parley link exceeds them; beyond them fences fail with `full`.
  static constexpr std::size_t most_beyond = 65'536;
  static constexpr std::size_t most_fences = 1'024;
  struct fence {
    std::uint64_t request = 0;
    std::uint64_t below = 0;  ///< it waits for all puts with lower numbers
    runtime::link::channel on = runtime::link::channel::data;
    std::vector<std::byte> header{};  ///< of the message that the fence carries; empty: none
  };

  void landed(std::uint64_t number, runtime::errc outcome);
  /// Keeps a fence until its puts have landed; false if there is no room for it.
  bool wait(fence&& f);
  /// Removes and returns the oldest fence that need not wait: all its puts have arrived, or one was forgotten for lack of room.
  std::optional<fence> take_done();
  /// `none` if all puts before that fence have landed; otherwise the error of the first put that failed.
  runtime::errc outcome_of(const fence& f) const noexcept {
    return first_failed_ < f.below ? outcome_ : runtime::errc::none;
  }

 private:
  std::uint64_t below_ = 0;
  std::set<std::uint64_t> beyond_;
  std::vector<fence> fences_;
  std::uint64_t first_failed_ = std::numeric_limits<std::uint64_t>::max();
  runtime::errc outcome_ = runtime::errc::none;  // of put `first_failed_`
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

  /// Listens on channel `on` of `by`, which must have no other user. `by` must outlive this object. `take` receives messages that came
  /// with a fence. `restarts`: how often this rank's process was restarted.
  carried_memory(runtime::link& by, channel on, take_function take, std::uint32_t restarts = 0);
  ~carried_memory();
  carried_memory(const carried_memory&) = delete;
  carried_memory& operator=(const carried_memory&) = delete;

  // The target.
  std::vector<std::byte> expose(std::uint64_t number, std::span<std::byte> bytes);
  void withdraw(std::uint64_t number) noexcept;
  /// True if `pending` is an operation that this object started on the link and that still touches that memory.
  bool uses(const completion* pending, std::uint64_t number) const noexcept;

  // The origin. These functions return what their namesakes in runtime::link return.
  errc put(rank_id to, const carried_key& key, std::uint64_t address, std::span<const std::byte> data,
           completion* done);
  errc get(rank_id from, const carried_key& key, std::uint64_t address, std::span<std::byte> into, completion* done);
  errc fence(rank_id to, completion* done);
  /// A fence that carries a message for channel `on`.
  errc announce(rank_id to, channel on, std::span<const std::byte> header, completion* done);
  void cancel(const completion& pending) noexcept { stop(pending, &runtime::link::cancel); }
  void abandon(const completion& pending) noexcept { stop(pending, &runtime::link::abandon); }

  /// Called when the link ends. Sends nothing more; requests that wait for a reply end with `closed`.
  void close() noexcept;
  /// Called from `poll`, after the link has ended all its operations with that peer.
  void on_peer_failed(rank_id peer) noexcept;
  /// From now on accepts messages of `peer` only from its process after `restarts` restarts; before, only from its first process.
  void expect(rank_id peer, std::uint32_t restarts);
  void on_arrival(runtime::arrival&& message) noexcept override;

  struct counters {
    std::uint64_t refused = 0;  ///< puts and gets outside exposed memory, and puts, gets and fences above a limit
    std::uint64_t late = 0;     ///< puts into memory that had been withdrawn
    std::uint64_t malformed = 0;
    std::uint64_t foreign = 0;  ///< messages from another process than the one that now holds its rank's place
  };
  const counters& statistics() const noexcept { return counters_; }

 private:
  struct message;
  struct region {
    std::span<std::byte> bytes;
    std::uint64_t token = 0;
  };
  /// A peer's put or get in flight on this rank's memory.
  struct visit;
  /// A get or fence that waits for a peer's reply.
  struct request;
  static constexpr std::size_t most_visits =
      4'096;  // in flight at one time: limits how much peers can make this rank keep

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
  std::unordered_map<rank_id, std::uint16_t> restarts_of_;  // 0 for a rank that is missing
  std::unordered_map<std::uint64_t, region> regions_;
  std::unordered_map<std::uint64_t, std::unique_ptr<request>> requests_;
  std::unordered_map<rank_id, std::uint64_t> puts_started_;
  std::unordered_map<rank_id, landings> landings_;
  std::vector<std::unique_ptr<visit>> visits_;  // few, so that a linear search is fast
  std::uint64_t last_request_ = 0;
  std::uint64_t last_exposed_ = 0;
  bool closed_ = false;
  counters counters_;
};

}  // namespace parley::transports
