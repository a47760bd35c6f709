#pragma once
/// Where an op's own buffers lie: host memory, or a GPU's. An op that moves device buffers is told so in its declaration, so that
/// what it allocates itself, such as a pipeline's activations and the scratch of rehearsals, lies there too.
///
///     std::unique_ptr<memory_space::block> scratch = space.make(300'000);
///     co_await space.copy(scratch->bytes(), pattern);          // in from the host; out likewise
///
/// A space outlives the ranks whose ops were given it: where a rank that was taken for dead may still write, a block stays until its rank
/// ends.
/// `make` throws `unavailable` when there is no more. A copy throws `failure`. It cannot be cancelled: it ends soon.
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

/// An order in which a device does what it is given, such as a cudaStream_t; null: none.
using device_stream = void*;
/// What a stream had at some time, kept as long as somebody may ask for it.
using device_moment = std::shared_ptr<const void>;

class memory_space {
 public:
  class block {
   public:
    virtual ~block() = default;
    /// Addresses that only this space's owner may follow.
    virtual std::span<std::byte> bytes() const noexcept = 0;
  };
  virtual std::unique_ptr<block> make(std::size_t bytes) = 0;
  /// Between host memory and this space, or inside of it; the sizes are equal. Ends when it has happened.
  virtual task<> copy(std::span<std::byte> to, std::span<const std::byte> from) = 0;
  /// Brings what `pieces` lists to where `gather` and `scatter` read it. Throws `unavailable`.
  virtual void prepare(memory_pieces& pieces);
  /// All of `pieces` into `packed`, one behind the other, and back: at once, or in the order of a device's stream. Throws `failure`.
  virtual void gather(std::span<std::byte> packed, const memory_pieces& pieces, device_stream stream) = 0;
  virtual void scatter(const memory_pieces& pieces, std::span<const std::byte> packed, device_stream stream) = 0;
  /// into = into + from, number by number, and to = from, both inside of this space and of one size. A device is only given them: they
  /// happen in the order of asking, copies of what they touch and `settled` come after them, and what others do with it has to be over
  /// before. Host memory needs neither. Throw `failure`.
  virtual void add(std::span<std::byte> into, std::span<const std::byte> from, summand of);
  virtual void assign(std::span<std::byte> to, std::span<const std::byte> from);
  /// What its device said last that ended something with `outcome`, such as a fault or a lack of memory; empty: nothing.
  virtual std::string words_of(errc /*outcome*/) const { return {}; }
  /// Whether an op whose buffers lie here may be given `memory`, whose numbers have to begin at multiples of `alignment`: else
  /// `bad_argument`, which says where it lies and where it has to. A device's driver is asked each time, as memory may have been freed.
  virtual result<> check(std::span<const std::byte> memory, std::size_t alignment = 1);
  /// Whether it wants a stream for what it does.
  virtual bool has_streams() const noexcept { return false; }
  /// Whether work that its owner has enqueued may still touch `memory`: nobody else may be let in yet.
  virtual bool busy(std::span<const std::byte>) noexcept { return false; }
  /// Calls `done` once it does not. Answers `none` where it does not now, `pending`, or why that cannot be known.
  virtual errc when_free(std::span<const std::byte>, completion*) noexcept { return errc::none; }
  /// Nobody waits for `done` any more.
  virtual void forget(completion*) noexcept {}
  /// As `when_free`, for all that was enqueued for `memory`, what waits for a message into it included.
  virtual errc when_settled(std::span<const std::byte>, completion*) noexcept { return errc::none; }
  /// Ends once that has happened. Throws `failure` when it failed.
  virtual task<> settled(std::span<const std::byte> memory);

  // What a device waits for by itself. Here: for memory that no device waits for.

  /// What touches `memory` from here on comes after all that `stream` has now. Throws `failure`.
  virtual void after(std::span<const std::byte> memory, device_stream stream);
  /// All that `stream` has now, and that what another one gets from here on comes after it. Throw `failure`.
  virtual device_moment moment_of(device_stream stream);
  virtual void wait_for(const device_moment& earlier, device_stream stream);
  /// Calls `done` once all that `stream` has now has happened. Answers `pending`, or why that cannot be known.
  virtual errc when_reached(device_stream stream, completion* done) noexcept;
  /// What `stream` gets from here on waits until `came` is told the number that is answered. By the streams of others it is not waited for:
  /// `after` orders what comes behind such a wait only once that is over. Throws `failure`.
  virtual std::uint64_t hold(device_stream stream);
  /// A receive into `memory` is about to be started: what its owner enqueues may wait for it. Answers the number that the receive
  /// is to have (`receive_options::expected`), never 0. Throws `failure` where it cannot.
  virtual std::uint64_t expect(std::span<const std::byte> memory);
  /// What `stream` gets from here on comes after all that is expected into `memory`. Throws `failure`.
  virtual void wait_on(std::span<const std::byte> memory, device_stream stream);
  /// That receive has ended, with all of its payload or not: whoever waits goes on.
  virtual void came(std::uint64_t expected, errc outcome) noexcept;

 protected:
  ~memory_space() = default;
};

/// The processor's memory, zeroed when it is made.
memory_space& host_memory() noexcept;
/// For simulations: what `host_memory` is on this thread, as long as it lives. Ops that were declared before must have ended.
class host_memory_instead {
 public:
  explicit host_memory_instead(memory_space& other) noexcept;
  host_memory_instead(const host_memory_instead&) = delete;
  host_memory_instead& operator=(const host_memory_instead&) = delete;
  ~host_memory_instead();

 private:
  memory_space* before_;
};

/// The wait for the end of what its owner has enqueued for `memory`: `then` is called at it, if the wait is not gone by then.
/// Where nothing was to be waited for it is over at once, and `then` is not called.
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

/// `auto over = co_await until_settled(space, memory);`: the same as `settled`, as a value. A cancelled wait ends at once; what was enqueued
/// goes on.
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
