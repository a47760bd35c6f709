#pragma once
/// The kind of memory of an op's buffers: host memory, or a GPU's. An op that moves device buffers names its space in its declaration. Then
/// the op also makes its own allocations in that space, such as a pipeline's activations and the scratch of rehearsals.
///
///     std::unique_ptr<memory_space::block> scratch = space.make(300'000);
///     co_await space.copy(scratch->bytes(), pattern);          // in from the host; out likewise
///
/// A space must outlive the ranks with ops that use it: if a rank that was declared dead may still write into a block, the block is kept
/// until its own rank ends. `make` throws `unavailable` when there is no more memory. A copy throws `failure`. It cannot be cancelled, but
/// ends soon.
#include <parley/error.hpp>
#include <parley/runtime/dataflow/memory_pieces.hpp>
#include <parley/runtime/summand.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace parley::runtime {

/// A queue of a device's work that runs in order, such as a cudaStream_t; null: none.
using device_stream = void*;
/// Marks all work that a stream had at some time. It is kept as long as a copy of the pointer exists.
using device_moment = std::shared_ptr<const void>;

class memory_space {
 public:
  class block {
   public:
    virtual ~block() = default;
    /// Addresses that only this space's owner may dereference.
    virtual std::span<std::byte> bytes() const noexcept = 0;
  };
  virtual std::unique_ptr<block> make(std::size_t bytes) = 0;
  /// Copies between host memory and this space, or inside this space; the sizes are equal. Ends when the copy is done.
  virtual task<> copy(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  /// Copies the list in `pieces` to where `gather` and `scatter` read it. Throws `unavailable`.
  virtual void prepare(memory_pieces& pieces);
  /// `gather` packs all of `pieces` into `packed`, in order, and `scatter` unpacks them: at once, or in a device's stream. Both throw
  /// `failure`.
  virtual void gather(std::span<std::byte> packed, const memory_pieces& pieces, device_stream stream) = 0;
  virtual void scatter(const memory_pieces& pieces, std::span<const std::byte> packed, device_stream stream) = 0;
  /// into = into + from, number by number, and to = from, both inside this space and of the same size. On a device they are only enqueued:
  /// they run in the order of the calls, and copies of the memory and `settled` come after them. Other uses of the memory must have ended
  /// before. In host memory `assign` runs at once, and `add` throws `unavailable`. Both throw `failure`.
  virtual void add(std::span<std::byte> into, std::span<const std::byte> from, summand of);
  virtual void assign(std::span<std::byte> to, std::span<const std::byte> from);
  /// The device's latest message about an operation that ended with `outcome`, such as a fault or a lack of memory; empty: none.
  virtual std::string words_of(errc /*outcome*/) const { return {}; }
  /// Checks that an op of this space may use `memory`, and that its address is a multiple of `alignment`. If not, returns a `bad_argument`
  /// that says where the memory is and where it must be. Asks a device's driver each time, because memory may have been freed.
  virtual result<> check(std::span<const std::byte> memory, std::size_t alignment = 1);
  /// True if its operations use streams.
  virtual bool has_streams() const noexcept { return false; }
  /// True if work that the owner of `memory` has enqueued may still touch it: then the memory must not be used otherwise.
  virtual bool busy(std::span<const std::byte>) noexcept { return false; }
  /// Calls `done` once the memory is no longer busy. Returns `none` if it is not busy now, `pending`, or the error because of which that is
  /// unknown.
  virtual errc when_free(std::span<const std::byte>, completion*) noexcept { return errc::none; }
  /// Ensures that `done` is not called any more.
  virtual void forget(completion*) noexcept {}
  /// Like `when_free`, for all work that was enqueued for `memory`, also work that waits for a message into it.
  virtual errc when_settled(std::span<const std::byte>, completion*) noexcept { return errc::none; }
  /// Waits until that work is done. Throws `failure` if the work failed.
  virtual task<> settled(std::span<const std::byte> memory);

  // Orders that a device maintains. The implementations in this class are for memory that no device uses in streams.

  /// Copies and messages that touch `memory` from now on run after all work that is in `stream` now. Throws `failure`.
  virtual void after(std::span<const std::byte> memory, device_stream stream);
  /// Marks all work that is in `stream` now. `wait_for`: later work of `stream` runs after that mark of another stream. Both throw
  /// `failure`.
  virtual device_moment moment_of(device_stream stream);
  virtual void wait_for(const device_moment& earlier, device_stream stream);
  /// Calls `done` once all work that is in `stream` now has ended. Returns `pending`, or the error because of which that is unknown.
  virtual errc when_reached(device_stream stream, completion* done) noexcept;
  /// Work that is enqueued into `stream` from now on waits until `came` is called with the returned number. Copies do not wait for that:
  /// `after` orders copies behind the held work only once the hold has ended. Throws `failure`.
  virtual std::uint64_t hold(device_stream stream);
  /// Announces a receive into `memory`, so that later work of the owner can wait for the receive. Returns the number that the receive must
  /// have (`receive_options::expected`), never 0. Throws `failure` if the device cannot wait.
  virtual std::uint64_t expect(std::span<const std::byte> memory);
  /// Work that is enqueued into `stream` from now on runs after all messages that are expected into `memory`. Throws `failure`.
  virtual void wait_on(std::span<const std::byte> memory, device_stream stream);
  /// The expected receive has ended, with or without its payload: streams that wait for it continue.
  virtual void came(std::uint64_t expected, errc outcome) noexcept;

 protected:
  ~memory_space() = default;
};

/// The processor's memory. Blocks are zeroed when they are made.
memory_space& host_memory() noexcept;
/// For simulations: as long as this object lives, it replaces `host_memory` on this thread. Ops that were declared earlier must have ended.
class host_memory_instead {
 public:
  explicit host_memory_instead(memory_space& other) noexcept;
  host_memory_instead(const host_memory_instead&) = delete;
  host_memory_instead& operator=(const host_memory_instead&) = delete;
  ~host_memory_instead();

 private:
  memory_space* before_;
};

/// Waits for the end of the work that the owner of `memory` has enqueued for it, then calls `then`, unless this object is destroyed
/// earlier. If there is no such work, the wait ends at once, and `then` is not called.
class until_free final : private completion {
 public:
  until_free(memory_space& where, std::span<const std::byte> memory, std::function<void()> then)
      : completion(&on_over), where_(where), then_(std::move(then)), outcome_(where.when_free(memory, this)) {}
  until_free(const until_free&) = delete;
  until_free& operator=(const until_free&) = delete;
  ~until_free() {
    if (!is_over()) where_.forget(this);
  }
  bool is_over() const noexcept { return outcome_ != errc::pending; }
  /// `none` once nothing uses the memory; else `pending`, or the error because of which that is unknown.
  errc outcome() const noexcept { return outcome_; }

 private:
  static void on_over(completion& self, errc outcome) noexcept {
    auto& mine = static_cast<until_free&>(self);
    mine.outcome_ = outcome;
    const auto then = std::move(mine.then_);
    then();  // which may replace this wait by another one
  }
  memory_space& where_;
  std::function<void()> then_;
  errc outcome_;
};

/// `auto over = co_await until_settled(space, memory);`: like `settled`, but returns the failure as a value. A cancelled wait ends at once;
/// the enqueued work continues.
class [[nodiscard]] until_settled : private waiter, private completion {
 public:
  until_settled(memory_space& where, std::span<const std::byte> memory) noexcept
      : waiter(&on_cancelled), completion(&on_over), where_(where), memory_(memory) {}
  until_settled(const until_settled&) = delete;
  until_settled& operator=(const until_settled&) = delete;
  ~until_settled() {
    if (waits_) where_.forget(this);
  }
  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) noexcept {
    if (!enter(caller)) return false;
    outcome = where_.when_settled(memory_, this);
    waits_ = outcome == errc::pending;
    if (!waits_) unlink();
    return waits_;
  }
  result<> await_resume() const {
    if (outcome == errc::device_failed) return error{outcome, where_.words_of(outcome)};
    return outcome;
  }

 private:
  static void on_over(completion& self, errc how) noexcept {
    auto& me = static_cast<until_settled&>(self);
    me.waits_ = false;
    me.wake(how);
  }
  static void on_cancelled(waiter& self, errc why) noexcept {
    auto& me = static_cast<until_settled&>(self);
    if (std::exchange(me.waits_, false)) me.where_.forget(&me);
    me.wake(why);
  }
  memory_space& where_;
  std::span<const std::byte> memory_;
  bool waits_ = false;
};

}  // namespace parley::runtime
