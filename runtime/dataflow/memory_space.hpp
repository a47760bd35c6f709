#pragma once
/// The memory that an op's own buffers lie in: host memory, or a GPU's. An op that moves device buffers names its space in its
/// declaration, so that the op's own allocations, such as a pipeline's activations and the scratch of rehearsals, lie there, too.
///
///     std::unique_ptr<memory_space::block> scratch = space.make(300'000);
///     co_await space.copy(scratch->bytes(), pattern);          // in from the host; out likewise
///
/// A space must outlive the ranks whose ops use it: if a rank that was declared dead may still write into a block, the block is kept until
/// its own rank ends. `make` throws `unavailable` when there is no more memory. A copy throws `failure`. It cannot be cancelled, but ends
/// soon.
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
/// Marks all work that a stream had at some time. It is kept as long as somebody may ask for it.
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
  /// `gather` packs all of `pieces` into `packed`, in order, and `scatter` unpacks: at once, or in a device's stream. Throw `failure`.
  virtual void gather(std::span<std::byte> packed, const memory_pieces& pieces, device_stream stream) = 0;
  virtual void scatter(const memory_pieces& pieces, std::span<const std::byte> packed, device_stream stream) = 0;
  /// into = into + from, number by number, and to = from, both inside this space and of the same size. A device only enqueues them: they
  /// run in the order of the calls, and copies of the memory and `settled` come after them. Other uses of the memory must have ended
  /// before. In host memory `assign` runs at once, and `add` throws `unavailable`. Throw `failure`.
  virtual void add(std::span<std::byte> into, std::span<const std::byte> from, summand of);
  virtual void assign(std::span<std::byte> to, std::span<const std::byte> from);
  /// The device's latest message about an operation that ended with `outcome`, such as a fault or a lack of memory; empty: none.
  virtual std::string words_of(errc /*outcome*/) const { return {}; }
  /// Checks that an op whose buffers lie here may use `memory`, whose numbers must begin at multiples of `alignment`: else `bad_argument`,
  /// which says where the memory lies and where it must lie. Asks a device's driver each time, because memory may have been freed.
  virtual result<> check(std::span<const std::byte> memory, std::size_t alignment = 1);
  /// True if its operations want a stream.
  virtual bool has_streams() const noexcept { return false; }
  /// True if work that its owner has enqueued may still touch `memory`: nobody else may use the memory yet.
  virtual bool busy(std::span<const std::byte>) noexcept { return false; }
  /// Calls `done` once the memory is not busy any more. Returns `none` if it is not busy, `pending`, or why that cannot be known.
  virtual errc when_free(std::span<const std::byte>, completion*) noexcept { return errc::none; }
  /// Ensures that `done` is not called any more.
  virtual void forget(completion*) noexcept {}
  /// Like `when_free`, for all work that was enqueued for `memory`, also work that waits for a message into it.
  virtual errc when_settled(std::span<const std::byte>, completion*) noexcept { return errc::none; }
  /// Waits until that work is done. Throws `failure` if the work failed.
  virtual task<> settled(std::span<const std::byte> memory);

  // Orders that a device keeps by itself. The functions of this class are for memory that no device works on in streams.

  /// Orders copies and messages that touch `memory` from now on after all work that `stream` has now. Throws `failure`.
  virtual void after(std::span<const std::byte> memory, device_stream stream);
  /// Marks all work that `stream` has now. `wait_for`: later work of `stream` comes after that mark of another stream. Throw `failure`.
  virtual device_moment moment_of(device_stream stream);
  virtual void wait_for(const device_moment& earlier, device_stream stream);
  /// Calls `done` once all work that `stream` has now is done. Returns `pending`, or the reason why that cannot be known.
  virtual errc when_reached(device_stream stream, completion* done) noexcept;
  /// Work that `stream` gets from now on waits until `came` is called with the returned number. Copies do not wait with it: `after`
  /// orders copies behind work that is held only once the hold is over. Throws `failure`.
  virtual std::uint64_t hold(device_stream stream);
  /// Announces a receive into `memory`, so that work that the owner enqueues can wait for it. Returns the number that the receive must
  /// have (`receive_options::expected`), never 0. Throws `failure` if the device cannot wait.
  virtual std::uint64_t expect(std::span<const std::byte> memory);
  /// Work that `stream` gets from now on comes after all messages that are expected into `memory`. Throws `failure`.
  virtual void wait_on(std::span<const std::byte> memory, device_stream stream);
  /// The expected receive has ended, with all of its payload or not: streams that wait for it go on.
  virtual void came(std::uint64_t expected, errc outcome) noexcept;

 protected:
  ~memory_space() = default;
};

/// The processor's memory. Blocks are zeroed when they are made.
memory_space& host_memory() noexcept;
/// For simulations: replaces `host_memory` on this thread as long as it lives. Ops that were declared before must have ended.
class host_memory_instead {
 public:
  explicit host_memory_instead(memory_space& other) noexcept;
  host_memory_instead(const host_memory_instead&) = delete;
  host_memory_instead& operator=(const host_memory_instead&) = delete;
  ~host_memory_instead();

 private:
  memory_space* before_;
};

/// Waits for the end of the work that the owner of `memory` has enqueued for it, then calls `then`, unless destroyed before.
/// If there is nothing to wait for, the wait is over at once, and `then` is not called.
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
  /// `none` once nothing uses the memory; else `pending`, or why that cannot be known.
  errc outcome() const noexcept { return outcome_; }

 private:
  static void on_over(completion& self, errc outcome) noexcept {
    auto& mine = static_cast<until_free&>(self);
    mine.outcome_ = outcome;
    const auto then = std::move(mine.then_);
    then();  // which may put another wait in this one's place
  }
  memory_space& where_;
  std::function<void()> then_;
  errc outcome_;
};

/// `auto over = co_await until_settled(space, memory);`: like `settled`, but returns the failure as a value. A cancelled wait ends at once;
/// the enqueued work goes on.
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
