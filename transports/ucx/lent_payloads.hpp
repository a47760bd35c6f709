#pragma once
/// Large payloads between processes of one host, copied once: the sender lends its memory, and the receiver has the kernel copy
/// straight out of it (process_vm_readv). UCX can do that too (its transport is called cma), but not as soon as peers may fail; what it
/// does then takes such payloads through a queue in shared memory, with two or three copies.
///
///     lent_payloads lent(link, {.may = true}, take);                // both ranks; `take` hands an arrival to the handler of its channel
///     if (lent.may_lend(to, payload.size())) return lent.lend(to, on, header, payload, done);     // else the link's own way
///     if (lent.holds(held)) return lent.fetch(held, into, done);    // of an arrival whose payload is remote
///     if (lent.working()) lent.work();                              // from `poll`
///
/// Whether a peer may read this rank's memory it finds out itself, when it is asked before the first large payload: it reads a random
/// number from where the question says. Until it has said yes, where the operating system does not allow it, and to other
/// hosts, payloads take the link's own way.
///
/// A loan ends when its receiver says that it has read the payload, or dropped it; when the receiver fails; or when the sender takes it
/// back, at once and without asking: behind each piece the receiver reads a word that says whether the loan still stood, so that it
/// never takes for the payload what its memory was used for afterwards. Memory that the kernel does not read, as some devices map it,
/// is sent after all, when the receiver says so; a peer to which that has happened a few times is lent nothing more.
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
    bool may = true;  ///< whether this rank reads what others lend, and lends
    // Bytes between which the kernel's way was the faster one (docs/performance.md). Of larger ones two ranks copy at once by UCX's
    // queue, where the receiver alone would copy.
    std::size_t from = 32U << 10;
    std::size_t up_to = 4U << 20;
    /// `from` where ranks share cores: who lends waits for the other's slice of time.
    static constexpr std::size_t from_on_shared_cores = 512U << 10;
    std::size_t piece = 1U << 20;  ///< bytes; so much is read at a time, without anything else being done meanwhile
    std::uint32_t restarts = 0;    ///< of this rank's process
  };

  /// Listens on channel `loans` of `by`, which must outlive it.
  lent_payloads(runtime::link& by, options chosen, take_function take);
  ~lent_payloads();
  lent_payloads(const lent_payloads&) = delete;
  lent_payloads& operator=(const lent_payloads&) = delete;

  // The sender.
  /// Asks the peer the first time.
  bool may_lend(rank_id to, std::size_t bytes);
  /// As `link::send`, with a completion.
  errc lend(rank_id to, channel on, std::span<const std::byte> header, std::span<const std::byte> payload,
            completion& done);

  // The receiver.
  bool holds(const void* held) const noexcept { return !kept_.empty() && kept_.contains(held); }
  /// As `link::fetch`. `send_failed` if the sender has taken it back.
  errc fetch(const void* held, std::span<std::byte> into, completion* done);
  void drop(const void* held) noexcept;

  // Both.
  /// As `link::cancel`; answers whether the operation is one of these. `abandon`: its memory is not touched any more afterwards.
  bool cancel(const completion& pending) noexcept { return stop(pending, false); }
  bool abandon(const completion& pending) noexcept { return stop(pending, true); }
  /// The same for all whose completions are such.
  void abandon_all(const std::function<bool(const completion*)>& such);
  bool working() const noexcept { return !over_.empty() || !copying_.empty(); }
  /// Ends what was cancelled and copies the next piece.
  void work() noexcept;
  /// Whether a receiver that can be reached has still to read, for a link that closes.
  bool waits_for(const std::function<bool(rank_id)>& reachable) const;
  /// What is still pending ends with `closed`; what the link itself is sending or fetching for it, with that.
  void close() noexcept;
  /// Of what the link itself has under way for it: the user's completion behind it. Others are given back as they are.
  const completion* behind(const completion* done) const noexcept;
  void on_peer_failed(rank_id peer) noexcept;
  /// What that peer has not read it cannot read any more: whoever hears of its failure before the link is done with it may use its memory.
  void take_back_from(rank_id peer) noexcept;
  /// Which process of a peer counts from here on.
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
    lending state = lending::unasked;  // what this rank may do
    std::int64_t process = 0;          // where this one reads; 0: not shown to be possible
    unsigned unreadable = 0;           // payloads that it could not read
  };

  void on_question(const message& m);
  void on_lent(const message& m, const runtime::arrival& arrived);
  void on_again(const message& m);
  void on_repaid(const message& m, runtime::arrival&& arrived);
  void on_withdrawn(const message& m);
  /// Reads the next piece; whether there is more to be done here.
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
  std::uint64_t token_ = 0;  // what peers look for in this process
  std::uint64_t last_ = 0;   // the number of a loan; random at first
  bool closed_ = false;
  std::unordered_map<rank_id, neighbour> neighbours_;
  std::map<std::uint64_t, std::unique_ptr<loan>> loans_;
  std::unordered_map<const void*, std::unique_ptr<reading>> kept_;  // that nobody has fetched yet
  std::vector<std::unique_ptr<reading>> readings_;
  std::deque<reading*> copying_;
  struct ended {
    completion* done;
    errc outcome;
  };
  std::vector<ended> over_;
};

}  // namespace parley::transports
