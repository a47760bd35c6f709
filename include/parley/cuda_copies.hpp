#pragma once
/// The copies of one rank on a GPU: enqueued on streams of its own, and seen to end from the reactor's loop, by a word of pinned
/// memory for each stream, which the device writes behind each copy. No call waits for a stream or a device.
///
///     cuda_copies copies(gpu, /*device=*/0);
///     loop.attach(copies);
///     errc started = copies.copy(into, from, &done);          // `pending`, or `device_failed`; `done` is called from `poll`
///     copies.after(activation, stream);                       // copies of it come after the kernels that `stream` has now
///     auto ended = co_await reached(copies, stream);          // result<>: all that is in `stream` now has happened
///
/// What a stream is to do with a message can be enqueued before the message is here:
///
///     auto coming = op.start_receive(buffer, {.from = 0, .expected = copies.expect(buffer)});
///     copies.wait_on(buffer, stream);                         // what `stream` gets from here on comes after the message
///     launch(stream, buffer);
///     copies.after(buffer, stream);
///     coming.wait();                                          // whether it came: a stream goes on when it does not, too
///
/// A copy that has been started runs to its end; there is no taking back, and its memory is in use until `done` is called. When
/// a stream fails, which CUDA makes sticky, everything that is pending ends with `device_failed`, and `driver().fault()` says
/// what it was. Destroying it first sees what is pending to its end, and calls `done`. One thread.
#include <parley/runtime/time/poller.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>
#include <parley/transports/cuda/cuda_flags.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace parley::transports {

class cuda_copies final : public runtime::poller {
 public:
  struct options {
    /// So that a copy in and a copy out, or two chunks, may overlap. One that has to wait for kernels has one of `most_waiting` more
    /// to itself; those beyond wait in the host's memory. All are made at the beginning, as making one takes longer than most copies. A
    /// device has 32 queues for a process, most of them for its program and other libraries.
    unsigned streams = 4;
    unsigned usual_streams = 2;  // for a copy that does not say how many
    unsigned most_waiting = 8;
    /// Whether streams may wait for messages: not where they share queues with those that bring them.
    bool expects_messages = true;
  };
  /// The streams that each of so many ranks of this process may have on a device, so that none waits in a queue of another one's; each
  /// has one for the computing of its program, too. With more than a quarter of the device's queues, none may expect messages.
  static options shared_by(const cuda_driver& driver, unsigned ranks, options o);
  cuda_copies(cuda_driver& driver, int device) : cuda_copies(driver, device, options{}) {}
  cuda_copies(cuda_driver& driver, int device, options o);
  ~cuda_copies() override;
  cuda_copies(const cuda_copies&) = delete;
  cuda_copies& operator=(const cuda_copies&) = delete;

  cuda_driver& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }
  /// For what waits for nothing: no copy that waits for kernels is ever in it.
  cuda_stream prompt() const noexcept { return streams_.front().stream; }

  /// Answers as `link::fetch` does. `other`, if given, is the rank that one of the two belongs to: its `after` counts, too. By a kernel
  /// only where both lie on devices.
  runtime::errc copy(std::span<std::byte> to, std::span<const std::byte> from, runtime::completion* done,
                     cuda_copies* other = nullptr, runtime::device_copy by = {}) noexcept {
    return copy(to, from, done, other, by, waiting::in_a_stream);
  }
  /// The same of memory that may be another device's. All copies that a device makes out of another one's memory go through one queue
  /// (docs/gpu.md), whichever streams they are in: one that waited there for kernels would hold up those that bring what the kernels wait
  /// for. So it waits in the host's memory.
  runtime::errc pull(std::span<std::byte> to, std::span<const std::byte> from, runtime::completion* done,
                     cuda_copies* other = nullptr, runtime::device_copy by = {}) noexcept {
    return copy(to, from, done, other, by, waiting::in_host_memory);
  }
  /// See `memory_space::check`. Pinned memory is let through, as copies reach it from every device.
  runtime::result<> check(std::span<const std::byte> memory, std::size_t alignment);
  /// From here on copies that touch `memory` come after all that is in `stream` now.
  runtime::errc after(std::span<const std::byte> memory, cuda_stream stream) noexcept;
  /// See `memory_space::hold`.
  std::uint64_t hold(cuda_stream stream);
  /// What is enqueued into `s` from here on comes after all that `after` said of `memory`, apart from what waits for a message into it:
  /// for what brings that message.
  runtime::errc order(cuda_stream s, std::span<const std::byte> memory) noexcept {
    return order(s, memory, orders::that_copies_follow);
  }
  /// The same, and after what waits for messages, too: for what brings none.
  runtime::errc order_behind_all(cuda_stream s, std::span<const std::byte> memory) noexcept {
    return order(s, memory, orders::all);
  }
  /// What a stream had at some time. It can outlive this object, and what it stands for keeps its place.
  using moment = std::shared_ptr<const cuda_event>;
  /// All that `stream` has now. Throws `failure`.
  moment moment_of(cuda_stream stream);
  /// What is enqueued into `s` from here on comes after it.
  runtime::errc order(cuda_stream s, const moment& earlier) noexcept { return driver_.wait(s, *earlier); }
  /// Whether something that `after` said of `memory` has not happened yet, apart from what waits for a message into it.
  bool busy(std::span<const std::byte> memory) noexcept;
  /// Calls `done` once it is not busy any more. Answers `none` where it is not, `pending` or `device_failed`.
  runtime::errc when_free(std::span<const std::byte> memory, runtime::completion* done) noexcept {
    return tell_after(memory, orders::that_copies_follow, done);
  }
  /// The same for all that `after` said of `memory`, also what waits for a message.
  runtime::errc settle(std::span<const std::byte> memory, runtime::completion* done) noexcept {
    return tell_after(memory, orders::all, done);
  }
  /// A receive into `memory`, of an op that was told of this device (`.memory`), is about to be started with the number that this
  /// answers (`receive_options::expected`). Throws `unavailable` where the device cannot wait for it, or more ranks of this process
  /// share it than a quarter of its queues, `full` when too many are expected. To expect and not to start it stops the streams that wait.
  std::uint64_t expect(std::span<const std::byte> memory);
  /// What is enqueued into `stream` from here on waits for what is expected into `memory`; without that for nothing. It does not
  /// wait for good: the receive ends, with its message or without. Streams may share a queue of the GPU's, so that one which waits
  /// holds up others: as many as CUDA_DEVICE_MAX_CONNECTIONS says have their own. `cuda_runtime` sets that to 32 unless it is set, or
  /// CUDA is in use already: then there are 8.
  runtime::errc wait_on(std::span<const std::byte> memory, cuda_stream stream) noexcept;
  /// That receive has ended, as the ops say.
  void came(std::uint64_t expected, runtime::errc outcome) noexcept;
  /// The receive into that memory that has been expected for longest was given up: streams wait for it no longer, whatever still touches it.
  void give_up_on(std::span<const std::byte> memory, runtime::errc why) noexcept;
  /// Where those flags lie. Throws `unavailable` where the device has none.
  cuda_flags& flags();
  /// Writes a word, which may be a peer's, behind the copies of `data` that have been started. Answers `pending` or `device_failed`.
  runtime::errc write_behind(std::span<const std::byte> data, std::byte* at, std::uint32_t value,
                             runtime::completion* done) noexcept;
  /// Calls `done` once all that is in `stream` now has happened. Answers `pending` or `device_failed`.
  runtime::errc watch(cuda_stream stream, runtime::completion* done) noexcept;
  /// An outcome as a result, with the device's words where that failed, or refused memory.
  runtime::result<> in_words(runtime::errc outcome) const;
  /// What the device lacked for something that is told by its `errc` alone.
  runtime::errc refused(const runtime::failure& why) noexcept;
  /// Nobody waits for `done` any more.
  void forget(runtime::completion* done) noexcept;
  std::size_t pending() const noexcept { return pending_; }
  /// Asks until nothing is pending: before memory that copies may be using goes away without its owners being asked.
  void drain() noexcept;

  struct counters {
    std::uint64_t copies = 0;
    std::uint64_t by_kernel = 0;
    std::uint64_t bytes = 0;
    std::uint64_t polls = 0;  ///< words looked at
  };
  const counters& statistics() const noexcept { return counters_; }

  // runtime::poller
  bool poll() override;
  /// Events announce nothing by a descriptor: with copies under way the loop must not sleep.
  arm_state arm() override { return pending_ == 0 ? arm_state::armed : arm_state::busy; }
  int event_fd() const override { return event_fd_; }

 private:
  struct mark {
    std::uint32_t number;  // that its stream's word comes to
    runtime::completion* done;
    std::span<const std::byte> from{};  // of a copy
  };
  // In the order of enqueueing, which is that of ending.
  struct queue {
    cuda_stream stream;
    std::size_t word;
    std::deque<mark> marks{};
  };
  struct event_pool {
    explicit event_pool(cuda_driver& d) : driver(d) {}
    ~event_pool() {
      for (const cuda_event e : unused) driver.destroy(e);
    }
    event_pool(const event_pool&) = delete;
    event_pool& operator=(const event_pool&) = delete;
    cuda_driver& driver;
    std::vector<cuda_event> unused{};
  };
  struct ordering {
    std::span<const std::byte> memory;
    cuda_stream stream;
    moment at;
    // Flags that were down when it was made, of a message into the memory and of `hold`: it comes after what is still to come.
    std::vector<std::uint64_t> behind;
  };
  // What is to come after a message that is expected does not order the copy that brings it, nor what is held up by the host any copy
  // that the host may be waiting for.
  enum class orders : std::uint8_t { that_copies_follow, all };
  template <class Each>
  void for_each_order(std::span<const std::byte> memory, orders which, Each each) noexcept;
  bool busy(std::span<const std::byte> memory, orders which) noexcept;
  enum class waiting : std::uint8_t { in_a_stream, in_host_memory };
  struct request {
    enum class kind : std::uint8_t { copy, write, tell } what;
    runtime::completion* done;
    waiting where = waiting::in_a_stream;
    runtime::device_copy by{};
    std::span<const std::byte> from{};  // a write's: the copies that it is behind
    std::byte* to = nullptr;
    std::uint32_t value = 0;
    std::vector<moment> behind{};
  };
  runtime::errc copy(std::span<std::byte> to, std::span<const std::byte> from, runtime::completion* done,
                     cuda_copies* other, runtime::device_copy by, waiting where) noexcept;
  runtime::errc order(cuda_stream s, std::span<const std::byte> memory, orders which) noexcept;
  runtime::errc tell_after(std::span<const std::byte> memory, orders which, runtime::completion* done) noexcept;
  void give_back() noexcept;
  void make_flags();
  queue make_queue(cuda_stream s);
  queue& shortest(unsigned of = 0);
  queue* idle();
  moment take_event();  // for a record; a later one goes into another event while somebody waits for this one
  void note_moments(std::span<const std::byte> memory, orders which, std::vector<moment>& into) noexcept;
  runtime::errc start(request r);
  runtime::errc enqueue(queue& q, const request& r);
  runtime::errc enqueue_copy(cuda_stream s, const request& r) noexcept;
  runtime::result<queue*> behind_copies_of(std::span<const std::byte> data);
  runtime::result<queue*> stream_for(const request& r, std::size_t earlier);
  std::size_t go_on(runtime::errc device);
  runtime::errc put_mark(queue& q, runtime::completion* done, std::span<const std::byte> from = {});
  std::size_t finish(queue& q, runtime::errc outcome);
  runtime::errc look_at_device(cuda_stream s) noexcept;
  bool is_ours(const std::byte* address) noexcept;

  cuda_driver& driver_;
  int device_;
  options options_;
  int event_fd_;
  cuda_memory words_;
  std::vector<std::uint32_t> last_numbers_;  // by word
  std::vector<std::size_t> free_words_;
  cuda_event check_;
  unsigned fruitless_ = 0;  // looks at words since one had changed
  std::deque<queue> streams_;
  std::deque<queue> watched_;  // streams of others
  std::shared_ptr<event_pool> events_;
  /// What is not to be waited for before that has come.
  std::vector<std::uint64_t> to_come_before(std::span<const std::byte> memory, cuda_stream stream);
  std::vector<std::pair<cuda_stream, std::uint64_t>> holds_;
  std::vector<ordering> orderings_;
  std::deque<request> put_off_;  // no stream may wait with them, or none is left that may
  std::optional<cuda_flags> flags_;
  std::size_t pending_ = 0;
  std::optional<runtime::error> refused_;  // the latest
  // Where memory of our own context begins: this is asked once of each address, as the same one is hardly ever given out by another.
  std::array<const std::byte*, 16> ours_{};
  std::size_t last_of_ours_ = 0;
  counters counters_;
};

/// `auto ended = co_await reached(copies, stream);`: all that was in the stream has happened, or `device_failed`. A cancelled
/// wait ends at once; the stream goes on.
class [[nodiscard]] reached : private runtime::waiter, private runtime::completion {
 public:
  reached(cuda_copies& copies, cuda_stream stream) noexcept
      : waiter(&on_cancelled), completion(&on_reached), copies_(copies), stream_(stream) {}
  ~reached() {
    if (watching_) copies_.forget(this);
  }
  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) {
    if (!enter(caller)) return false;
    outcome = copies_.watch(stream_, this);
    watching_ = outcome == runtime::errc::pending;
    if (!watching_) unlink();
    return watching_;
  }
  runtime::result<> await_resume() const { return copies_.in_words(outcome); }

 private:
  static void on_reached(completion& self, runtime::errc how) noexcept {
    auto& me = static_cast<reached&>(self);
    me.watching_ = false;
    me.wake(how);
  }
  static void on_cancelled(waiter& self, runtime::errc why) noexcept {
    auto& me = static_cast<reached&>(self);
    if (std::exchange(me.watching_, false)) me.copies_.forget(&me);
    me.wake(why);
  }
  cuda_copies& copies_;
  cuda_stream stream_;
  bool watching_ = false;
};

}  // namespace parley::transports
