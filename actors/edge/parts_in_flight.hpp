#pragma once
/// The parts of one invocation while they are on their way, in place in the caller's buffer. `part_sender` (part_sender.hpp) and
/// `part_receiver` build on it; an implementation of a config sees only those two.
///
/// A part that has been started belongs to the transport until its completion has run: cancelling asks for an early end and
/// still waits for it. Destroying the invocation with parts in flight is for tear down only.
#include <parley/actors/edge/payload_pieces.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <span>
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

}  // namespace parley::actors
