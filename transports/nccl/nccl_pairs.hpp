#pragma once
/// Reads of a peer's device memory by NCCL: the owner's GPU sends the memory, the reader's GPU receives it.
///
///     nccl_pairs pairs(wire, copies, library, [&](const nccl_pairs::place& at) { return is_exposed(at); });
///     loop.attach(pairs);
///     errc started = pairs.get(owner, {.region = 3, .address = a, .bytes = n}, into, &done);
///
/// Each pair of reader and owner has a communicator of two members. The reader makes it, from a fresh id, when it first needs
/// it. NCCL has no tags and no headers, so the owner must send in the order in which the reader receives. The reader numbers
/// its requests, and the owner sends in the order of these numbers, even if the requests arrive in another order. So the two ends
/// stay matched for every order in which users post receives. Requests are remote input: the owner sends only memory that
/// `allowed` permits.
///
/// If a peer never does its part, the work enqueued for it would occupy the GPU for ever. So both ends abort a communicator if it
/// has not moved for `patience_ns`, if its peer has died, or if one of its transfers is cancelled. All its transfers in flight
/// then end with an error; the next request makes a new communicator. Messages use the channel `devices` of the link below, which
/// may reorder them and delivers each at most once. One thread; destroy it before the link and the copies.
#include <parley/cuda_copies.hpp>
#include <parley/runtime/time/poller.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/transports/nccl/nccl_library.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace parley::transports {

class nccl_pairs final : public runtime::poller, private runtime::link::handler {
 public:
  /// A range of memory that its owner has exposed.
  struct place {
    std::uint64_t region = 0;
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  struct options {
    runtime::time_ns patience_ns = 30'000'000'000;
    runtime::time_ns (*clock)() = nullptr;  ///< null: the machine's
  };
  using allowed = std::function<bool(const place& at)>;

  nccl_pairs(runtime::link& below, cuda_copies& copies, nccl_library& library, allowed may)
      : nccl_pairs(below, copies, library, std::move(may), options{}) {}
  nccl_pairs(runtime::link& below, cuda_copies& copies, nccl_library& library, allowed may, options o);
  ~nccl_pairs() override;
  nccl_pairs(const nccl_pairs&) = delete;
  nccl_pairs& operator=(const nccl_pairs&) = delete;

  /// Returns what `link::get` returns; `device_failed` if no communicator can be made.
  runtime::errc get(runtime::rank_id from, const place& at, std::span<std::byte> into, runtime::completion* done);
  /// Aborts the communicator of a pending `get`, which then ends soon. False if `pending` is not a `get` of this object.
  bool stop(const runtime::completion& pending) noexcept;
  /// Like `stop`, and returns only when the memory is no longer touched.
  bool abandon(const runtime::completion& pending) noexcept;
  void on_peer_failed(runtime::rank_id peer) noexcept;

  struct counters {
    std::uint64_t gets = 0;
    std::uint64_t bytes = 0;
    std::uint64_t sends = 0;
    std::uint64_t communicators = 0;
    std::uint64_t aborted = 0;
    std::uint64_t refused = 0;  ///< requests for memory that is not exposed, and malformed requests
    std::string why;            ///< the reason of the latest abort or failure
  };
  const counters& statistics() const noexcept { return counters_; }

  // runtime::poller
  bool poll() override;
  /// No event signals the descriptor, so the loop must not sleep while there is work.
  arm_state arm() override { return pairs_.empty() || !busy() ? arm_state::armed : arm_state::busy; }
  int event_fd() const override { return event_fd_; }

 private:
  struct message;
  struct transfer;
  struct pair;
  enum class tell_peer : std::uint8_t { yes, no };

  void on_arrival(runtime::arrival&& message) noexcept override;
  void handle(const message& m, runtime::arrival&& arrived);
  void on_open(pair& p, const runtime::arrival& arrived);
  void take_requests(pair& p);
  pair* reader_of(runtime::rank_id owner);
  pair* find(runtime::rank_id peer, std::uint64_t number, bool reads) noexcept;
  bool advance(pair& p);
  void enqueue_next(pair& p);
  void mark_next(pair& p) noexcept;
  void ended(transfer& t, runtime::errc outcome) noexcept;
  bool end_unmarked(pair& p) noexcept;
  void break_off(pair& p, runtime::errc why, const std::string& text, tell_peer told) noexcept;
  bool tidy() noexcept;
  bool busy() const noexcept;
  transfer* find(const runtime::completion& pending) noexcept;
  runtime::errc say(runtime::rank_id to, message m, std::span<const std::byte> payload = {}) noexcept;
  runtime::time_ns now() const noexcept { return options_.clock(); }

  runtime::link& below_;
  cuda_copies& copies_;
  nccl_library& library_;
  allowed allowed_;
  options options_;
  int event_fd_;
  std::list<std::unique_ptr<pair>> pairs_;
  std::uint64_t last_number_ = 0;
  std::map<runtime::rank_id, std::uint64_t> over_;  // by reader: pairs with numbers up to this have ended
  counters counters_;
};

}  // namespace parley::transports
