#pragma once
/// The parts of one invocation while they are on their way, in place in the caller's buffer. `part_sender` and
/// `part_receiver` build on it; an implementation of a config sees only those two.
///
/// A part that has been started belongs to the transport until its completion has run: cancelling asks for an early end and
/// still waits for it. Destroying the invocation with parts in flight is for tear down only.
#include <parley/actors/outgoing.hpp>
#include <parley/actors/payload_pieces.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/runtime/frame_pool.hpp>
#include <parley/runtime/link.hpp>
#include <parley/runtime/scope.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_set>
#include <utility>

namespace parley::actors {

class parts_in_flight;

/// One part: what the transport calls when it has ended, and what a receiver is waiting for.
struct transfer_part final : runtime::completion, runtime::list_hook, runtime::frame_pool::pooled {
  explicit transfer_part(parts_in_flight& p) noexcept : completion(&on_part_end), owner(&p) {}
  static void on_part_end(completion& self, runtime::errc outcome) noexcept;

  parts_in_flight* owner;       // null once nobody waits any more
  std::span<std::byte> into{};  // of a receiver's part
  std::uint64_t offset = 0;
  runtime::errc* report = nullptr;  // also told how it ended
  bool with_transport = false;
  bool of_device = false;  // for which the transport itself goes to the device
};

class parts_in_flight {
 public:
  explicit parts_in_flight(runtime::link& net) noexcept : net_(net) {}
  parts_in_flight(const parts_in_flight&) = delete;
  parts_in_flight& operator=(const parts_in_flight&) = delete;
  virtual ~parts_in_flight() {
    if (!parts_.empty()) abandon();
  }

  /// How many parts may be in flight at once, 1 to `most_in_flight`; 1 at first.
  void keep_in_flight(std::uint64_t limit) noexcept { limit_ = std::clamp<std::uint64_t>(limit, 1, most_in_flight); }
  /// What ends an invocation goes through all that are in flight, in one turn of the loop.
  static constexpr std::uint64_t most_in_flight = 4096;
  /// Why the invocation cannot succeed any more, or `none`.
  runtime::errc failed() const noexcept { return failed_; }
  /// Ends the invocation with `why`, the first time; what is with the transport is asked to stop.
  [[gnu::cold]] void fail(runtime::errc why) noexcept;
  std::uint64_t in_flight() const noexcept { return in_flight_; }
  /// The pieces that its payload lies in, for a config that moves each of them by itself; null where it is to move one that is contiguous.
  payload_pieces* in_pieces() const noexcept { return pieces_; }
  void lies_in(payload_pieces* pieces) noexcept { pieces_ = pieces; }
  /// From now on counts how long its coroutine waits for parts.
  void count_waits(runtime::executor& ex) noexcept { counts_with_ = &ex; }
  runtime::time_ns waited_ns() const noexcept { return waited_ns_; }
  /// For a wait of one's own: `w` is woken when a part ends and at most `most` are left.
  void wake_at(std::uint64_t most, runtime::waiter& w) noexcept {
    settling_ = &w;
    settled_at_ = most;
  }

  /// Waits until at most `most` parts are in flight. One coroutine at a time: another one's wait throws `config_failed`.
  class [[nodiscard]] settling : protected runtime::waiter {
   public:
    settling(parts_in_flight& parts, std::uint64_t most) noexcept : waiter(&on_cancelled), parts_(parts), most_(most) {}
    ~settling() {
      if (parts_.settling_ == this) parts_.settling_ = nullptr;
    }
    bool await_ready() const noexcept { return parts_.in_flight_ <= most_; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (parts_.settling_ != nullptr) parts_.refuse_second_wait();
      if (!enter(caller)) parts_.fail(outcome);
      if (parts_.in_flight_ <= most_) {
        unlink();
        return false;
      }
      parts_.wake_at(most_, *this);
      parts_.begin_wait();
      return true;
    }
    runtime::errc await_resume() const noexcept {
      parts_.end_wait();
      return parts_.failed_;
    }

   protected:
    static void on_cancelled(waiter& self, runtime::errc why) noexcept {
      self.unlink();
      static_cast<settling&>(self).parts_.fail(why);
    }
    parts_in_flight& parts_;
    std::uint64_t most_;
  };
  /// The same, and throws what the invocation failed with.
  struct [[nodiscard]] step : settling {
    using settling::settling;
    void await_resume() const {
      parts_.end_wait();
      if (parts_.failed() != runtime::errc::none) runtime::raise(parts_.failed());
    }
  };
  /// Until all have ended; answers `failed()`.
  settling settle() noexcept { return {*this, 0}; }
  /// Until all have ended; throws what the invocation failed with.
  step drain() noexcept { return {*this, 0}; }

 protected:
  transfer_part* new_part() { return new transfer_part(*this); }
  /// The transport answered `outcome` to the start of a new part.
  void started(transfer_part* p, runtime::errc outcome) noexcept {
    if (outcome == runtime::errc::pending) {
      p->with_transport = true;
      await(*p);
    } else {
      if (p->report != nullptr) *p->report = outcome;
      if (outcome != runtime::errc::none) on_part_failed(*p);
      delete p;
      if (outcome != runtime::errc::none) fail(outcome);
    }
  }
  /// `p` is in flight until `ended`.
  void await(transfer_part& p) noexcept {
    parts_.push_back(p);
    ++in_flight_;
  }
  void ended(transfer_part* p, runtime::errc outcome) noexcept {
    if (p->report != nullptr) *p->report = outcome;
    if (outcome != runtime::errc::none) on_part_failed(*p);
    delete p;
    --in_flight_;
    if (outcome != runtime::errc::none) fail(outcome);
    wake_if_settled();
  }
  void wake_if_settled() noexcept {
    if (settling_ != nullptr && in_flight_ <= settled_at_) std::exchange(settling_, nullptr)->wake(runtime::errc::none);
  }
  step room() noexcept { return {*this, limit_ - 1}; }
  /// The invocation has just failed; parts may still be with the transport.
  virtual void on_failed() noexcept {}
  /// The transport did not move it, or not all of it.
  virtual void on_part_failed(const transfer_part&) noexcept {}

  runtime::link& net_;
  runtime::intrusive_list<transfer_part> parts_;

 private:
  friend transfer_part;
  [[gnu::cold]] void abandon() noexcept;
  [[noreturn, gnu::cold]] void refuse_second_wait();
  void begin_wait() noexcept {
    if (counts_with_ != nullptr) [[unlikely]]
      waits_since_ns_ = counts_with_->precise_now();
  }
  void end_wait() noexcept {
    if (waits_since_ns_ != 0) [[unlikely]]
      waited_ns_ += counts_with_->precise_now() - std::exchange(waits_since_ns_, 0);
  }

  runtime::executor* counts_with_ = nullptr;  // of a trial
  runtime::time_ns waits_since_ns_ = 0;       // 0: it does not wait now
  runtime::time_ns waited_ns_ = 0;
  runtime::waiter* settling_ = nullptr;
  payload_pieces* pieces_ = nullptr;
  std::uint64_t settled_at_ = 0;
  std::uint64_t limit_ = 1;
  std::uint64_t in_flight_ = 0;
  runtime::errc failed_ = runtime::errc::none;
};

/// Sends the parts of one invocation. One that fails poisons its index at once, so that the receiver drops what it holds of
/// it, which is also what frees a part that waits there.
///
///     runtime::task<> send_in_halves(part_sender& out, std::span<const std::byte> data) {
///       const std::size_t half = data.size() / 2;
///       out.keep_in_flight(2);
///       co_await out.send(0, data.first(half));
///       co_await out.send(half, data.subspan(half));
///     }                                          // what is still in flight is awaited by the library
class part_sender final : public parts_in_flight {
 public:
  /// `s`, and `access` if given, must outlive it.
  part_sender(runtime::link& net, rank_id to, const stamp& s, const one_sided_access* access = nullptr) noexcept
      : parts_in_flight(net), to_(to), stamp_(s), access_(access) {}

  /// Starts the part at `offset` and waits until another one may start. Throws what the invocation failed with: also
  /// `bad_argument` for a part outside of the payload, or for an offset that was sent before.
  step send(std::uint64_t offset, std::span<const std::byte> part) {
    start(offset, part);
    return room();
  }
  /// The same of memory on a device, which the transport itself takes it from (`link::send_device`); the receiver's
  /// `receive_device` fits it.
  step send_device(std::uint64_t offset, std::span<const std::byte> part) {
    start(offset, part, &runtime::link::send_device);
    return room();
  }
  /// Without waiting.
  using send_function = runtime::errc (runtime::link::*)(rank_id, runtime::link::channel, std::span<const std::byte>,
                                                         std::span<const std::byte>, runtime::completion*);
  void start(std::uint64_t offset, std::span<const std::byte> part, send_function how = &runtime::link::send) {
    if (failed() != runtime::errc::none) return;
    if (part.empty() && stamp_.total_bytes != 0) return;
    if (part.size() > stamp_.total_bytes || offset > stamp_.total_bytes - part.size() || !is_new(offset)) {
      fail(runtime::errc::bad_argument);
      return;
    }
    stamp s = stamp_;
    s.offset = offset;
    if (offset == next_offset_) next_offset_ += part.size();
    sent_bytes_ += part.size();
    transfer_part* const sent = new_part();
    started(sent, (net_.*how)(to_, runtime::link::channel::data, bytes_of(s), part, sent));
  }
  const stamp& mark() const noexcept { return stamp_; }
  std::uint64_t total_bytes() const noexcept { return stamp_.total_bytes; }
  std::uint64_t sent_bytes() const noexcept { return sent_bytes_; }

  /// Writes the part at `offset` into the receiver's buffer, where this invocation has a credit; waits until another one may
  /// start. The stamp follows once all of them are there.
  step put(std::uint64_t offset, std::span<const std::byte> part, runtime::device_copy by = {}) {
    start_put(offset, part, by);
    return room();
  }
  /// The same without waiting.
  void start_put(std::uint64_t offset, std::span<const std::byte> part, runtime::device_copy by) noexcept;
  /// Lets the receiver get the whole payload from registered memory; waits until it has.
  step offer() {
    start_offer();
    return room();
  }

  /// Whether it has written into the receiver's buffer. Then what lets the receiver give that back, the stamp or the poison,
  /// waits for a fence: once all parts have begun, `fence`, which takes the stamp along where the link can; once all have ended and it is
  /// `fenced`, `announce`, which says what is left to say; and once more until all have ended.
  bool has_put() const noexcept { return has_put_; }
  void fence() noexcept;
  /// Whether a fence has said something. One that was cancelled with the parts before it has not: there must be another one.
  bool fenced() const noexcept { return fenced_ != runtime::errc::pending && fenced_ != runtime::errc::cancelled; }
  void announce() noexcept;
  /// How the fence ended: `device_failed` where it is this rank's own device that did not do what was to be fenced.
  runtime::errc fence_outcome() const noexcept { return fenced_; }
  /// Whether the receiver was not told that it failed, as the transport did not take that: somebody has to say `poison` later.
  bool owes_poison() const noexcept { return owes_poison_; }
  stamp poison() const noexcept;
  /// Nobody knows what was written, or when. Nothing more is said to the receiver: it counts as dead, or this rank does.
  bool fence_failed() const noexcept { return fenced_ != runtime::errc::none && fenced_ != runtime::errc::pending; }

 private:
  // The receiver takes a second part at one offset for the first one come twice.
  bool is_new(std::uint64_t offset) {
    if (offset == next_offset_ && beyond_ == nullptr) [[likely]]
      return true;
    return offset >= next_offset_ && note_beyond(offset);
  }
  [[gnu::cold]] bool note_beyond(std::uint64_t offset);
  void start_offer() noexcept;
  void on_failed() noexcept override;
  runtime::errc say(const stamp& s) noexcept;
  void say_poison() noexcept;
  rank_id to_;
  const stamp& stamp_;
  const one_sided_access* access_;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t next_offset_ = 0;  // all below it was sent
  // The offsets above it, of a config that does not go from the front to the back.
  std::unique_ptr<std::unordered_set<std::uint64_t>> beyond_;
  runtime::errc fenced_ = runtime::errc::pending;
  bool has_put_ = false;
  bool owes_poison_ = false;
  bool announced_ = false;  // the link brings the stamp as soon as all has landed, whatever becomes of the call here
  std::span<const std::byte> put_from_;  // where all that it put lies, as a rule the payload
};

}  // namespace parley::actors
