#pragma once
/// Keeps the parts of one invocation while they are in flight, in place in the caller's buffer. `part_sender` (part_sender.hpp) and
/// `part_receiver` are derived from this class; a config's implementation uses only those two.
///
/// A started part belongs to the transport until its completion has run: cancelling only asks for an early end, and the completion must
/// still be awaited. Destroying an invocation with parts in flight is for teardown only.
#include <parley/actors/edge/payload_pieces.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/tuning/config.hpp>

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <span>
#include <utility>

namespace parley::actors {

class parts_in_flight;

/// One part: the completion that the transport calls and, at a receiver, the record of a part that is waited for.
struct transfer_part final : runtime::completion, runtime::list_hook, runtime::frame_pool::pooled {
  explicit transfer_part(parts_in_flight& p) noexcept : completion(&on_part_end), owner(&p) {}
  static void on_part_end(completion& self, runtime::errc outcome) noexcept;

  parts_in_flight* owner;       // null once no invocation waits for it
  std::span<std::byte> into{};  // for a receiver: the destination of the part
  std::uint64_t offset = 0;
  runtime::errc* report = nullptr;  // where the outcome is also written; may be null
  bool with_transport = false;
  bool of_device = false;  // the transport itself moves it to or from the device
};

class parts_in_flight {
 public:
  explicit parts_in_flight(runtime::link& net) noexcept : net_(net) {}
  parts_in_flight(const parts_in_flight&) = delete;
  parts_in_flight& operator=(const parts_in_flight&) = delete;
  virtual ~parts_in_flight() {
    if (!parts_.empty()) abandon();
  }

  /// Sets how many parts may be in flight at once: 1 to `most_in_flight`, initially 1.
  void keep_in_flight(std::uint64_t limit) noexcept { limit_ = std::clamp<std::uint64_t>(limit, 1, most_in_flight); }
  /// Bounded, because a failure visits all parts in flight in one turn of the loop.
  static constexpr std::uint64_t most_in_flight = 4096;
  /// Why the invocation has failed, or `none`.
  runtime::errc failed() const noexcept { return failed_; }
  /// Fails the invocation with `why`, unless it has failed already, and asks the transport to cancel its parts.
  [[gnu::cold]] void fail(runtime::errc why) noexcept;
  std::uint64_t in_flight() const noexcept { return in_flight_; }
  /// The pieces of the payload, if the config must move each piece by itself; null: the payload is contiguous.
  payload_pieces* in_pieces() const noexcept { return pieces_; }
  void lies_in(payload_pieces* pieces) noexcept { pieces_ = pieces; }
  /// The config that runs, for the functions of `paired`: `out.config().number("chunk_bytes")`. Empty in a config that is a class.
  const tuning::config_identity& config() const noexcept {
    static const tuning::config_identity none;
    return config_ == nullptr ? none : *config_;
  }
  void runs(const tuning::config_identity& config) noexcept { config_ = &config; }
  /// From now on measures how long the coroutine waits for parts.
  void count_waits(runtime::executor& ex) noexcept { counts_with_ = &ex; }
  runtime::time_ns waited_ns() const noexcept { return waited_ns_; }
  /// For a custom wait: wakes `w` when a part ends and at most `most` parts are left.
  void wake_at(std::uint64_t most, runtime::waiter& w) noexcept {
    settling_ = &w;
    settled_at_ = most;
  }

  /// Waits until at most `most` parts are in flight. Only one coroutine may wait: a second wait throws `config_failed`.
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
  /// Like `settling`, but throws if the invocation has failed.
  struct [[nodiscard]] step : settling {
    using settling::settling;
    void await_resume() const {
      parts_.end_wait();
      if (parts_.failed() != runtime::errc::none) runtime::raise(parts_.failed());
    }
  };
  /// Waits until all parts have ended; returns `failed()`.
  settling settle() noexcept { return {*this, 0}; }
  /// Waits until all parts have ended; throws if the invocation has failed.
  step drain() noexcept { return {*this, 0}; }

 protected:
  transfer_part* new_part() { return new transfer_part(*this); }
  /// `outcome` is what the transport returned when it started the new part.
  void started(transfer_part* p, runtime::errc outcome) noexcept {
    if (outcome == runtime::errc::pending) {
      p->with_transport = true;
      await(*p);
    } else if (outcome == runtime::errc::none) {
      if (p->report != nullptr) *p->report = outcome;
      delete p;
    } else {
      await(*p);
      ended(p, outcome);
    }
  }
  /// Counts `p` as in flight until `ended`.
  void await(transfer_part& p) noexcept {
    parts_.push_back(p);
    ++in_flight_;
  }
  void ended(transfer_part* p, runtime::errc outcome) noexcept {
    if (p->report != nullptr) *p->report = outcome;
    if (outcome != runtime::errc::none) on_part_failed(*p);
    if (outcome == runtime::errc::send_failed && awaits_reason(*p)) return;
    delete p;
    --in_flight_;
    if (outcome != runtime::errc::none) fail(outcome);
    wake_if_settled();
  }
  void wake_if_settled() noexcept {
    if (settling_ != nullptr && in_flight_ <= settled_at_) std::exchange(settling_, nullptr)->wake(runtime::errc::none);
  }
  step room() noexcept { return {*this, limit_ - 1}; }
  /// Called when the invocation has just failed. The transport may still be moving parts.
  virtual void on_failed() noexcept {}
  /// Called when the transport has not moved the part, or not all of it.
  virtual void on_part_failed(const transfer_part&) noexcept {}
  /// Called when the sender has taken the part back. If true, the part stays in flight until the invocation fails.
  [[gnu::cold]] virtual bool awaits_reason(transfer_part&) noexcept { return false; }

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

  runtime::executor* counts_with_ = nullptr;  // set for trials only
  runtime::time_ns waits_since_ns_ = 0;       // 0: it does not wait now
  runtime::time_ns waited_ns_ = 0;
  runtime::waiter* settling_ = nullptr;
  payload_pieces* pieces_ = nullptr;
  const tuning::config_identity* config_ = nullptr;
  std::uint64_t settled_at_ = 0;
  std::uint64_t limit_ = 1;
  std::uint64_t in_flight_ = 0;
  runtime::errc failed_ = runtime::errc::none;
};

}  // namespace parley::actors
