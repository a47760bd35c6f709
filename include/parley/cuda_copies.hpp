#pragma once
/// Makes the copies of one rank on a GPU, in the rank's own streams. Each stream has a word in pinned memory. The device writes this word
/// after each copy, and the reactor's loop polls the words to see which copies have ended. No call waits for a stream or a device.
///
///     cuda_copies copies(gpu, /*device=*/0);
///     loop.attach(copies);
///     errc started = copies.copy(into, from, &done);          // `pending`, or `device_failed`; `done` is called from `poll`
///     copies.after(activation, stream);                       // copies of it run after the kernels that are in `stream` now
///     auto ended = co_await reached(copies, stream);          // result<>: all work that was in `stream` has finished
///
/// Kernels that use a message can be enqueued before the message arrives:
///
///     auto coming = op.start_receive(buffer, {.from = 0, .expected = copies.expect(buffer)});
///     copies.wait_on(buffer, stream);                         // work that `stream` gets from now on runs after the message
///     launch(stream, buffer);
///     copies.after(buffer, stream);
///     coming.wait();                                          // says whether the message arrived; the stream goes on in any case
///
/// Cancellation: a copy that has started cannot be cancelled, and its memory is in use until `done` is called.
/// Failure: CUDA errors of a stream are sticky. When a stream fails, everything pending ends with `device_failed`, and
/// `driver().fault()` has the reason. The destructor waits until everything pending has ended, and calls each `done`. One thread.
#include <parley/reached.hpp>
#include <parley/runtime/time/poller.hpp>
#include <parley/runtime/wire/link.hpp>
#include <parley/transports/cuda/copy_queue.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>
#include <parley/transports/cuda/cuda_flags.hpp>

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
    /// Streams for copies that wait for no kernel; with several, a copy in and a copy out, or two chunks, can overlap. All streams are
    /// made in the constructor, because making one takes longer than most copies. A process has 32 queues on a device, and its program
    /// and other libraries need most of them.
    unsigned streams = 4;
    unsigned usual_streams = 2;  // how many streams a copy uses that does not say how many
    /// Further streams, each for one copy that waits for kernels. Copies beyond that number wait in host memory.
    unsigned most_waiting = 8;
    /// True if streams may wait for messages. Set it to false if these streams share queues with the streams that deliver the messages.
    bool expects_messages = true;
  };
  /// Options for each of `ranks` ranks of this process that share a device, so that no rank's stream queues behind another rank's. The
  /// count includes one stream for each rank's own kernels. If the ranks are more than a quarter of the device's queues, none of them may
  /// expect messages.
  static options shared_by(const cuda_driver& driver, unsigned ranks, options o);
  cuda_copies(cuda_driver& driver, int device) : cuda_copies(driver, device, options{}) {}
  cuda_copies(cuda_driver& driver, int device, options o);
  ~cuda_copies() override;
  cuda_copies(const cuda_copies&) = delete;
  cuda_copies& operator=(const cuda_copies&) = delete;

  cuda_driver& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }
  /// A stream for work that waits for nothing. No copy that waits for kernels is ever put into it.
  cuda_stream prompt() const noexcept { return streams_.front().stream; }

  /// Starts a copy. Returns `pending`, and calls `done` later, or returns the error. If one of the buffers belongs to another rank of this
  /// process, `other` has that rank's copies, and the copy also runs after the work that `after` has noted there. `by` can choose a kernel
  /// only for buffers on devices that this device reaches; otherwise a copy engine copies.
  runtime::errc copy(std::span<std::byte> to, std::span<const std::byte> from, runtime::completion* done,
                     cuda_copies* other = nullptr, runtime::device_copy by = {}) noexcept {
    return copy(to, from, done, other, by, copy_waits::in_a_stream);
  }
  /// Like `copy`, for `from` in memory that may belong to another device. A device puts all copies out of other devices' memory through one
  /// queue, even if they are in different streams (docs/gpu.md). A copy that waited in that queue for kernels would delay the copies that
  /// these kernels wait for. So a pull waits for kernels in host memory, before it is enqueued.
  runtime::errc pull(std::span<std::byte> to, std::span<const std::byte> from, runtime::completion* done,
                     cuda_copies* other = nullptr, runtime::device_copy by = {}) noexcept {
    return copy(to, from, done, other, by, copy_waits::in_host_memory);
  }
  /// See `memory_space::check`. Accepts pinned memory, because copies reach it from every device.
  runtime::result<> check(std::span<const std::byte> memory, std::size_t alignment);
  /// Copies that touch `memory` and start from now on run after all work that is in `stream` now. Returns `none` or the error.
  runtime::errc after(std::span<const std::byte> memory, cuda_stream stream) noexcept;
  /// See `memory_space::hold`.
  std::uint64_t hold(cuda_stream stream);
  /// Work enqueued into `s` from now on runs after the work that `after` noted for `memory`, except work that waits for a message into
  /// `memory`. Use it for the work that delivers that message.
  runtime::errc order(cuda_stream s, std::span<const std::byte> memory) noexcept;
  /// Like `order`, but `s` also runs after the work that waits for messages. Use it for work that delivers no message.
  runtime::errc order_behind_all(cuda_stream s, std::span<const std::byte> memory) noexcept;
  /// The work that was in a stream at some time. A moment may outlive this object; its event is not recorded again while a copy of the
  /// moment exists.
  using moment = cuda_moment;
  /// All work that is in `stream` now. Throws `failure`.
  moment moment_of(cuda_stream stream);
  /// Work enqueued into `s` from now on runs after `earlier`.
  runtime::errc order(cuda_stream s, const moment& earlier) noexcept { return driver_.wait(s, *earlier); }
  /// True while work that `after` noted for `memory` has not finished, not counting work that waits for a message into `memory`.
  bool busy(std::span<const std::byte> memory) noexcept;
  /// Calls `done` once `memory` is no longer busy. Returns `none` if it is not busy now; otherwise `pending` or `device_failed`.
  runtime::errc when_free(std::span<const std::byte> memory, runtime::completion* done) noexcept;
  /// Like `when_free`, for all work that `after` noted for `memory`, including work that waits for a message.
  runtime::errc settle(std::span<const std::byte> memory, runtime::completion* done) noexcept;
  /// Call it just before you start a receive into `memory`, and pass the returned number as `receive_options::expected`. The op must have
  /// the space of this device as its `.memory`. If the receive is never started, streams that wait for it wait for ever. Throws
  /// `unavailable` if the device cannot wait for messages, or if more ranks of this process share it than a quarter of its queues, and
  /// `full` if too many receives are expected.
  std::uint64_t expect(std::span<const std::byte> memory);
  /// Work enqueued into `stream` from now on waits for the receives that are expected into `memory`, if any. The wait always ends, because
  /// a receive always ends, with its message or with an error. While a stream waits, the other streams that share its queue of the GPU also
  /// wait. The variable CUDA_DEVICE_MAX_CONNECTIONS is the number of queues. `cuda_runtime` sets it to 32, unless it is already set or CUDA
  /// is already in use; in the latter case there are 8 queues.
  runtime::errc wait_on(std::span<const std::byte> memory, cuda_stream stream) noexcept;
  /// For ops: the receive with the number `expected` has ended with `outcome`, so streams stop waiting for it.
  void came(std::uint64_t expected, runtime::errc outcome) noexcept;
  /// The oldest expected receive into `memory` was given up: streams stop waiting for it, even if a copy still uses the memory.
  void give_up_on(std::span<const std::byte> memory, runtime::errc why) noexcept;
  /// The flags that streams wait for (cuda_flags.hpp). Throws `unavailable` if the device cannot wait for words.
  cuda_flags& flags();
  /// Writes `value` to the word at `at`, which may lie in a peer's memory, after the copies out of `data` that have started. Returns
  /// `pending` or the error.
  runtime::errc write_behind(std::span<const std::byte> data, std::byte* at, std::uint32_t value,
                             runtime::completion* done) noexcept;
  /// Calls `done` once all work that is in `stream` now has finished. Returns `pending`, `device_failed`, or `full` if too many streams
  /// are watched.
  runtime::errc watch(cuda_stream stream, runtime::completion* done) noexcept;
  /// `outcome` as a result. If the device has failed or refused something, the error has the device's text.
  runtime::result<> in_words(runtime::errc outcome) const;
  /// Keeps the text of `why` for `in_words`, and returns its code: for functions that return only an `errc`.
  runtime::errc refused(const runtime::failure& why) noexcept;
  /// From now on `done` is not called.
  void forget(runtime::completion* done) noexcept;
  std::size_t pending() const noexcept { return pending_; }
  /// Polls until nothing is pending. For use before memory is freed while its copies may still be in flight.
  void drain() noexcept;

  struct counters {
    std::uint64_t copies = 0;
    std::uint64_t by_kernel = 0;
    std::uint64_t bytes = 0;
    std::uint64_t polls = 0;  ///< how often a stream's word was read
  };
  const counters& statistics() const noexcept { return counters_; }

  // runtime::poller
  bool poll() override;
  /// CUDA signals no file descriptor when a copy ends, so the loop must not sleep while copies are in flight.
  arm_state arm() override { return pending_ == 0 ? arm_state::armed : arm_state::busy; }
  int event_fd() const override { return event_fd_; }

 private:
  template <class Each>
  void for_each_order(std::span<const std::byte> memory, which_work which, Each each) noexcept;
  runtime::errc copy(std::span<std::byte> to, std::span<const std::byte> from, runtime::completion* done,
                     cuda_copies* other, runtime::device_copy by, copy_waits where) noexcept;
  runtime::errc order(cuda_stream s, std::span<const std::byte> memory, which_work which) noexcept;
  runtime::errc tell_after(std::span<const std::byte> memory, which_work which, runtime::completion* done) noexcept;
  void give_back() noexcept;
  void make_flags();
  copy_queue make_queue(cuda_stream s);
  copy_queue& shortest(unsigned of = 0);
  copy_queue* idle();
  moment take_event();  // to record into; not reused while a copy of the moment exists
  void note_moments(std::span<const std::byte> memory, which_work which, std::vector<moment>& into) noexcept;
  runtime::errc start(copy_request r);
  runtime::errc enqueue(copy_queue& q, const copy_request& r);
  runtime::errc enqueue_copy(cuda_stream s, const copy_request& r) noexcept;
  runtime::result<copy_queue*> behind_copies_of(std::span<const std::byte> data);
  runtime::result<copy_queue*> stream_for(const copy_request& r, std::size_t earlier);
  std::size_t go_on(runtime::errc device);
  runtime::errc put_mark(copy_queue& q, runtime::completion* done, std::span<const std::byte> from = {});
  std::size_t finish(copy_queue& q, runtime::errc outcome);
  runtime::errc look_at_device(cuda_stream s) noexcept;

  cuda_driver& driver_;
  int device_;
  options options_;
  int event_fd_;
  cuda_memory words_;
  std::vector<std::uint32_t> last_numbers_;  // by word
  std::vector<std::size_t> free_words_;
  cuda_event check_;
  unsigned fruitless_ = 0;  // polls since a word last changed
  std::deque<copy_queue> streams_;
  std::deque<copy_queue> watched_;  // streams that the program watches
  std::shared_ptr<event_pool> events_;
  /// The flags that are down for messages into `memory` or hold `stream`, as `noted_work::behind` needs them.
  std::vector<std::uint64_t> to_come_before(std::span<const std::byte> memory, cuda_stream stream);
  std::vector<std::pair<cuda_stream, std::uint64_t>> holds_;
  std::vector<noted_work> orderings_;
  std::deque<copy_request> put_off_;  // wait on the host: no stream may wait for them, or all such streams are busy
  std::optional<cuda_flags> flags_;
  std::size_t pending_ = 0;
  std::optional<runtime::error> refused_;  // the latest error
  own_addresses ours_;
  counters counters_;
};

}  // namespace parley::transports
