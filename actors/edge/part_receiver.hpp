#pragma once
/// One posted receive of an edge and, once matched, its invocation: the object through which a config's implementation receives.
///
///     part_receiver in(edge, tag, buffer.size());              // posts the receive
///     auto seen = co_await in.match(deadline);                 // result<stamp>: its invocation has begun
///     co_await in.receive(offset, part);                       // in place
///
/// edge_receiver.hpp says which receive gets which invocation.
#include <parley/actors/edge/credits.hpp>
#include <parley/actors/edge/outgoing.hpp>
#include <parley/actors/edge/parts_in_flight.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/registered_memory.hpp>
#include <parley/runtime/coroutines/mailbox.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/scope.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

namespace parley::actors {

class edge_receiver;
class part_receiver;

/// The receives of one tag: posted receives, matched receives, and messages that arrived early.
struct receive_stream {
  std::uint64_t id = 0;
  std::uint64_t first_posted = 0;  // the index of the first receive in `posted`
  std::uint64_t posted_count = 0;
  std::uint64_t begun = 0;  // the sender has begun all invocations below this one
  runtime::intrusive_list<part_receiver> posted;
  runtime::intrusive_list<part_receiver> active;
  runtime::message_ring<runtime::arrival> early;
  std::uint32_t early_poisons = 0;  // number of poisons in `early`
  std::uint64_t unreported_bytes = 0;
  std::uint64_t reported = 0;
  // The receiver reports matches every half window, so a sender that keeps pace never waits for a report.
  static constexpr std::uint64_t report_every_invocations = 32;
  static constexpr std::uint64_t report_run_every = 128;
  std::uint64_t report_at = report_every_invocations;  // when to report; 0: at the next match (the sender asked)
  credits_given given;
  void begin_at(std::uint64_t first) noexcept {
    first_posted = begun = reported = first;
    report_at = first + report_every_invocations;
  }
};

/// Called when a posted receive is decided.
class match_watcher {
 public:
  /// Called once, when the receive's stamp has arrived or the receive has failed; possibly inside `in`'s constructor. Returns the buffer
  /// for the whole payload, or an empty span if `in` will ask for its parts.
  virtual std::span<std::byte> on_decided(part_receiver& in) noexcept = 0;
  /// The batch that the receive belongs to (`waiting_call::batch`).
  virtual std::uint64_t batch() const noexcept { return 0; }

 protected:
  ~match_watcher() = default;
};

/// The messages that a receive accepts.
struct receive_room {
  receive_room(std::uint64_t bytes) noexcept
      : most_bytes(bytes) {}  // NOLINT(google-explicit-constructor): most receives limit only the size
  std::uint64_t most_bytes;
  std::uint64_t least_bytes = 0;
  std::uint16_t type = 0;  ///< of the elements, as stamps carry it; 0: any
};

/// One posted receive and, once matched, its invocation.
class part_receiver final : public parts_in_flight, private runtime::list_hook {
 public:
  enum class kind : std::uint8_t { user, rehearsal };

  inline part_receiver(edge_receiver& edge, std::uint32_t tag, receive_room takes, kind k = kind::user,
                       match_watcher* watcher = nullptr, std::byte* memory = nullptr, std::uint64_t expected = 0);
  // May run while the coroutine frame is being destroyed; the list hook unlinks itself.
  ~part_receiver() override {
    if (one_sided_ != nullptr && (place_ != place::gone || one_sided_->to_be_got)) [[unlikely]]
      let_go_of_memory();
    uncount();
  }

  class [[nodiscard]] matching final : private runtime::waiter, private match_watcher {
   public:
    matching(part_receiver& r, runtime::time_ns deadline) noexcept
        : waiter(&on_cancelled), receive_(r), deadline_(deadline) {}
    bool await_ready() const noexcept { return receive_.decided(); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) noexcept {
      if (!enter(caller)) receive_.give_up(outcome);
      if (receive_.decided()) {
        waiter::unlink();
        return false;
      }
      receive_.expire_at(deadline_);
      receive_.watcher_ = this;
      return true;
    }
    /// The stamp of the invocation, or `timeout`, `send_failed`, `peer_failed`, `buffer_too_small`, …
    runtime::result<stamp> await_resume() const noexcept { return receive_.outcome(); }

   private:
    std::span<std::byte> on_decided(part_receiver&) noexcept override {
      wake(runtime::errc::none);
      return {};
    }
    static void on_cancelled(waiter& self, runtime::errc why) noexcept {
      static_cast<matching&>(self).receive_.give_up(why);
    }
    part_receiver& receive_;
    runtime::time_ns deadline_;
  };
  matching match(runtime::time_ns deadline) noexcept { return {*this, deadline}; }

  /// Receives the part at `offset` into `into`; waits until another part may start. Throws if the invocation has failed.
  step receive(std::uint64_t offset, std::span<std::byte> into) {
    ask(offset, into);
    return room();
  }
  /// Receives a part into device memory, to which the transport itself delivers (`link::fetch_device`).
  step receive_device(std::uint64_t offset, std::span<std::byte> into) {
    ask(offset, into, target::device);
    return room();
  }
  /// Asks for a part without waiting.
  enum class target : std::uint8_t { memory, device };
  void ask(std::uint64_t offset, std::span<std::byte> into, target what = target::memory);
  /// An unmatched receive ends with `timeout` at `deadline`. A matched receive ends with `timeout` after the deadline, once for one second
  /// none of its data has arrived, the transport has moved none, and the sender has had no credit for its buffer.
  void expire_at(runtime::time_ns deadline) noexcept;
  /// Reads the part at `offset` from the sender's memory, which the stamp named; waits until another part may start.
  step get(std::uint64_t offset, std::span<std::byte> into, runtime::device_copy by = {}) {
    start_get(offset, into, &runtime::link::get, by);
    return room();
  }
  /// Reads a part with the devices of both ranks (`link::joint_get`).
  step joint_get(std::uint64_t offset, std::span<std::byte> into) {
    start_get(offset, into, &runtime::link::joint_get, {});
    return room();
  }
  /// True if the whole payload was put into the buffer before the stamp arrived.
  bool landed() const noexcept { return one_sided_ != nullptr && one_sided_->landed; }
  /// True if a requested part has not arrived.
  bool awaits_parts() noexcept {
    return parts_.find_if([](const transfer_part& p) { return !p.with_transport; }) != nullptr;
  }
  /// Ends the receive with `why` unless it is decided. The receive ends only once neither the sender nor the transport can write into its
  /// buffer.
  void give_up(runtime::errc why) noexcept;
  /// True if the receive's stamp has arrived, or the receive has failed.
  bool decided() const noexcept { return stamped_ || failed() != runtime::errc::none; }
  /// The stamp of the invocation; null before it arrives.
  const stamp* mark() const noexcept { return stamped_ ? &stamp_ : nullptr; }
  /// The error that the sender reported, or `none`.
  runtime::errc sender_failure() const noexcept { return sender_failure_; }
  std::uint64_t digest() const noexcept { return stamp_.digest; }
  std::uint64_t total_bytes() const noexcept { return stamp_.total_bytes; }
  /// True if the receive has ended because it does not accept its message (`stamp_of_refused`). Nothing was written, except if the sender
  /// put the payload before this rank could see the stamp.
  bool refused() const noexcept { return refused_; }
  const stamp& stamp_of_refused() const noexcept { return stamp_; }
  const receive_room& takes() const noexcept { return takes_; }
  /// True if the invocation has begun. Otherwise `invocation` is meaningful only once the receive has ended: it is the number that the
  /// invocation would have had.
  bool matched() const noexcept { return numbered_; }
  std::uint64_t invocation() const noexcept { return index_; }
  /// How many of the requested bytes have arrived or are being moved by the transport.
  std::uint64_t received_bytes() const noexcept { return received_bytes_; }
  /// The receive's buffer; null if the receive was posted without a buffer.
  const std::byte* memory() const noexcept { return memory_; }
  runtime::time_ns posted_ns() const noexcept { return posted_ns_; }
  /// The difference between the parts that arrived and the requested parts; empty if there is none.
  std::string_view mismatch() const noexcept { return pieces_ == nullptr ? std::string_view() : pieces_->mismatch; }
  /// True if the sender has taken back a part that this rank was reading.
  bool taken_back() const noexcept { return taken_back_; }
  /// True if the whole payload has arrived, even if it is not in the buffer yet.
  bool all_here() const noexcept { return stamped_ && arrived_bytes_ >= stamp_.total_bytes; }

 private:
  friend edge_receiver;
  friend runtime::intrusive_list<part_receiver>;
  runtime::result<stamp> outcome() const noexcept;
  void end(runtime::errc why) noexcept;
  void uncount() noexcept {
    if (place_ == place::posted && linked()) --stream_.posted_count;
  }
  /// The place of an unmatched receive in the queue of posted receives.
  std::uint64_t place_in_line() const noexcept;
  [[gnu::cold]] void let_go_of_memory() noexcept;
  [[gnu::cold]] void on_part_failed(const transfer_part& p) noexcept override { received_bytes_ -= p.into.size(); }
  [[gnu::cold]] bool awaits_reason(transfer_part& p) noexcept override;
  void accept(const stamp& s, runtime::arrival&& message) noexcept;
  /// Types are compared only if both the message and the receive have one; plain bytes have none.
  bool is_of_its_type(const stamp& s) const noexcept {
    return s.more_type == takes_.type || s.more_type == 0 || takes_.type == 0;
  }
  [[gnu::cold]] void refuse(const stamp& s, runtime::arrival&& message) noexcept;
  void deliver(const stamp& s, runtime::arrival&& message) noexcept;
  void keep(const stamp& s, runtime::arrival&& message) noexcept;
  using get_function = runtime::errc (runtime::link::*)(rank_id, const runtime::remote_place&, std::span<std::byte>,
                                                        runtime::completion*);
  void start_get(std::uint64_t offset, std::span<std::byte> into, get_function how, runtime::device_copy by) noexcept;
  runtime::errc read_one_sided(const stamp& s, const runtime::arrival& message);
  struct pieces;
  pieces& kept();
  void bring(transfer_part& wanted, runtime::arrival&& message) noexcept;
  /// Counts a message that did not arrive in its buffer. Rehearsals do not count.
  void note_copied(std::uint64_t bytes) noexcept;
  void fail_if_unmet() noexcept;
  bool may_be_written() noexcept;
  // A payload that was read from the sender's memory counts as moved, although it did not arrive in messages.
  std::uint64_t moved_bytes() const noexcept { return arrived_bytes_ + received_bytes_; }
  bool is_complete() const noexcept {
    return !taken_back_ && (all_here() || (stamped_ && received_bytes_ >= stamp_.total_bytes));
  }
  void end_stalled() noexcept;
  void fail_unpaired(std::string what) noexcept;

  edge_receiver& edge_;
  receive_stream& stream_;
  receive_room takes_;
  std::uint64_t index_ = 0;
  stamp stamp_{};
  match_watcher* watcher_;  // null once decided
  // The state of an invocation in several parts.
  struct pieces {
    ~pieces();
    runtime::message_ring<runtime::arrival> waiting;  // parts that the implementation has not asked for yet
    std::unordered_set<std::uint64_t> seen_offsets;
    std::string mismatch;
  };
  std::unique_ptr<pieces> pieces_;
  struct one_sided {
    bool waits() const noexcept { return in_use && !in_use->is_over(); }
    std::optional<runtime::until_free> in_use;  // kernels that use its buffer, which has no credit until they end
    std::shared_ptr<memory_region> region;
    std::uint64_t credit = 0;  // the credit's number, while the sender may be writing or may begin to
    unsigned repeats = 0;
    runtime::errc leaving = runtime::errc::none;  // ends with this error once its buffer can no longer be written
    payload_place place;
    bool landed = false;
    bool to_be_got = false;
  };
  std::unique_ptr<one_sided> one_sided_;  // only for a receive that puts or gets concern
  std::byte* memory_;                     // its buffer; null if the receive was posted without one
  std::uint64_t expected_;                // the flag that a device waits for (`memory_space::expect`); 0: none
  std::uint64_t arrived_bytes_ = 0;       // bytes that have arrived, requested or not
  std::uint64_t received_bytes_ = 0;
  runtime::time_ns posted_ns_;
  runtime::time_ns deadline_ = runtime::never;
  enum class place : std::uint8_t { posted, matched, gone } place_ = place::posted;
  bool numbered_ = false;
  bool stamped_ = false;
  bool refused_ = false;
  bool taken_back_ = false;
  bool asked_ = false;  // the sender was asked for its progress, because the deadline is near
  runtime::errc sender_failure_ = runtime::errc::none;
};

}  // namespace parley::actors
