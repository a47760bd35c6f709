#pragma once
/// Large payloads between processes of one host, copied once: the sender lends its memory, and the receiver asks the kernel to copy
/// straight out of it (process_vm_readv). UCX can do that too (its transport cma), but not when peers may fail. UCX then moves such
/// payloads through a queue in shared memory, with two or three copies.
///
///     lent_payloads lent(link, {.may = true}, take);                // both ranks; `take` hands an arrival to the handler of its channel
///     if (lent.may_lend(to, payload.size())) return lent.lend(to, on, header, payload, done);     // else the link's own way
///     if (lent.holds(held)) return lent.fetch(held, into, done);    // for an arrival whose payload is remote
///     if (lent.working()) lent.work();                              // from `poll`
///
/// Before the first payload to a peer, the sender asks it whether it can read the sender's memory. The peer tries: it reads a random
/// number from the address in the question, and answers. The link sends payloads its own way until the peer has answered that it can, to
/// peers on other hosts, and where the operating system forbids such reads.
///
/// A loan ends when its receiver reports that it has read or dropped the payload, when the receiver fails, or when the sender takes the
/// loan back. The sender can take it back at once, without a message: after each piece the receiver reads a guard word that says whether
/// the loan was still valid, so that it never mistakes later contents of that memory for the payload. The kernel cannot read some memory,
/// such as memory that some devices map. The receiver then asks for the payload, and the sender sends it through the link. After a few
/// such cases the sender lends that peer nothing more.
#include <parley/runtime/wire/link.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace parley::transports {

class lent_payloads final : public runtime::link::handler {
 public:
  using channel = runtime::link::channel;
  using completion = runtime::completion;
  using errc = runtime::errc;
  using rank_id = runtime::rank_id;
  using take_function = std::function<void(channel, runtime::arrival&&)>;

  struct options {
    bool may = true;  ///< whether this rank lends payloads and reads those of others
    // Sizes in bytes between which the kernel's copy was measured to be faster (docs/performance.md). For larger payloads UCX's queue
    // is faster: both ranks copy at the same time, instead of the receiver alone.
    std::size_t from = 32U << 10;
    std::size_t up_to = 4U << 20;
    /// `from` where ranks share cores: there the lender waits until the receiver is scheduled.
    static constexpr std::size_t from_on_shared_cores = 512U << 10;
    std::size_t piece = 1U << 20;  ///< bytes read at a time; this rank does nothing else while it reads them
    std::uint32_t restarts = 0;    ///< how often this rank's process was restarted
  };

  /// Listens on channel `loans` of `by`, which must outlive it.
  lent_payloads(runtime::link& by, options chosen, take_function take);
  ~lent_payloads();
  lent_payloads(const lent_payloads&) = delete;
  lent_payloads& operator=(const lent_payloads&) = delete;

  // The sender.
  /// True if payloads of that size are lent to peers that can read them.
  bool lends(std::size_t bytes) const noexcept { return bytes >= chosen_.from && bytes <= chosen_.up_to; }
  /// True if a payload of that size can be lent to `to`. The first call for a peer sends it the question.
  bool may_lend(rank_id to, std::size_t bytes);
  /// True if `peer` was asked and may not have polled since. Always false in a restarted process, whose question is dropped by a peer that
  /// does not know of the restart.
  bool has_yet_to_answer(rank_id peer) const noexcept;
  /// As `link::send`, with a completion.
  errc lend(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            completion& done);

  // The receiver.
  bool holds(const void* held) const noexcept { return !kept_.empty() && kept_.contains(held); }
  /// As `link::fetch`. `send_failed` if the sender has taken the loan back.
  errc fetch(const void* held, std::span<std::byte> into, completion* done);
  void drop(const void* held) noexcept;

  // Both.
  /// As `link::cancel`; returns whether `pending` is an operation of this object. After `abandon`, its memory is not touched any more.
  bool cancel(const completion& pending) noexcept { return stop(pending, false); }
  bool abandon(const completion& pending) noexcept { return stop(pending, true); }
  /// Abandons all operations for which `such(completion)` is true.
  void abandon_all(const std::function<bool(const completion*)>& such);
  bool working() const noexcept { return !over_.empty() || !copying_.empty(); }
  /// Calls the completions of cancelled operations and copies the next piece.
  void work() noexcept;
  /// True if a reachable receiver has not read its loan yet. A link that closes waits for these receivers.
  bool waits_for(const std::function<bool(rank_id)>& reachable) const;
  /// Ends pending operations with `closed`, except those that the link itself is sending or fetching: the link ends these.
  void close() noexcept;
  /// The user's completion for an operation that this object started on the link; any other `done` is returned unchanged.
  const completion* behind(const completion* done) const noexcept;
  void on_peer_failed(rank_id peer) noexcept;
  /// Takes back the loans that the peer has not read yet. So an op may reuse their memory as soon as it learns that the peer failed, even
  /// before the link has buried the peer.
  void take_back_from(rank_id peer) noexcept;
  /// From now on accepts messages of `peer` only from its process after `restarts` restarts.
  void expect(rank_id peer, std::uint32_t restarts);
  void on_arrival(runtime::arrival&& message) noexcept override;

 private:
  struct message;
  struct loan;
  struct reading;
  enum class lending : std::uint8_t { unasked, asked, yes, no };
  static constexpr unsigned most_unreadable = 4;
  struct neighbour {
    std::uint16_t restarts = 0;
    lending state = lending::unasked;  // whether this rank may lend to that peer
    std::int64_t process = 0;          // the peer's process id, once this rank could read its memory; 0: not so far
    unsigned unreadable = 0;           // payloads that the peer could not read
  };

  void on_question(const message& m);
  void on_lent(const message& m, const runtime::arrival& arrived);
  void on_again(const message& m);
  void on_repaid(const message& m, runtime::arrival&& arrived);
  void on_withdrawn(const message& m);
  /// Reads the next piece; false once the reading is complete or has failed (`reading::failed`).
  bool copy_on(reading& r) noexcept;
  void end_loan(std::uint64_t number, errc outcome) noexcept;
  void end_reading(reading& r, errc outcome) noexcept;
  void give_back(const reading& r) noexcept;
  static void take_back(loan& l) noexcept;
  reading* awaited(const message& m) noexcept;
  bool stop(const completion& pending, bool at_once) noexcept;
  errc say(rank_id to, message m, std::span<const std::byte> payload = {}, completion* done = nullptr) noexcept;

  runtime::link& link_;
  options chosen_;
  take_function take_;
  std::uint64_t token_ = 0;  // the random number that peers read to test their access
  std::uint64_t last_ = 0;   // number of the last loan; the first is random
  bool closed_ = false;
  std::unordered_map<rank_id, neighbour> neighbours_;
  std::map<std::uint64_t, std::unique_ptr<loan>> loans_;
  std::unordered_map<const void*, std::unique_ptr<reading>> kept_;  // not fetched yet
  std::vector<std::unique_ptr<reading>> readings_;
  std::deque<reading*> copying_;
  struct ended {
    completion* done;
    errc outcome;
  };
  std::vector<ended> over_;
};

}  // namespace parley::transports
