#pragma once
/// The copies of one rank on a GPU: enqueued on streams of its own, and seen to end by asking events from the reactor's loop.
/// No call waits for a stream or a device.
///
///     cuda_copies copies(gpu, /*device=*/0);
///     loop.attach(copies);
///     errc started = copies.copy(into, from, &done);          // `pending`, or `device_failed`; `done` is called from `poll`
///     copies.after(activation, stream);                       // copies of it come after the kernels that `stream` has now
///     auto ended = co_await reached(copies, stream);          // result<>: all that is in `stream` now has happened
///
/// A copy that has been started runs to its end; there is no taking back, and its memory is in use until `done` is called. When
/// a stream fails, which CUDA makes sticky, everything that is pending ends with `device_failed`, and `driver().fault()` says
/// what it was. Destroying it first sees what is pending to its end, and calls `done`. One thread.
#include <parley/runtime/link.hpp>
#include <parley/runtime/poller.hpp>
#include <parley/runtime/scope.hpp>
#include <parley/transports/cuda_driver.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace parley::transports {

class cuda_copies final : public runtime::poller {
 public:
  struct options {
    unsigned streams = 2;  ///< so that a copy in and a copy out, or two chunks, may overlap
    /// Device copies of at most so many bytes are done by a kernel, which starts sooner than a copy engine.
    std::size_t kernel_up_to_bytes = 0;
    unsigned kernel_blocks = 16;
  };
  cuda_copies(cuda_driver& driver, int device) : cuda_copies(driver, device, options{}) {}
  cuda_copies(cuda_driver& driver, int device, options o);
  ~cuda_copies() override;
  cuda_copies(const cuda_copies&) = delete;
  cuda_copies& operator=(const cuda_copies&) = delete;

  cuda_driver& driver() const noexcept { return driver_; }
  int device() const noexcept { return device_; }

  /// Answers as `link::fetch` does. `other`, if given, is the rank that one of the two belongs to: its `after` counts, too.
  runtime::errc copy(std::span<std::byte> to, std::span<const std::byte> from, runtime::completion* done,
                     cuda_copies* other = nullptr) noexcept;
  /// From here on copies that touch `memory` come after all that is in `stream` now.
  runtime::errc after(std::span<const std::byte> memory, cuda_stream stream) noexcept;
  /// What is enqueued into `s` from here on comes after all that `after` said of `memory`.
  runtime::errc order(cuda_stream s, std::span<const std::byte> memory) noexcept;
  /// Whether something that `after` said of `memory` has not happened yet.
  bool busy(std::span<const std::byte> memory) noexcept;
  /// Calls `done` once all that `after` said of `memory` has happened. Answers `pending` or `device_failed`.
  runtime::errc settle(std::span<const std::byte> memory, runtime::completion* done) noexcept;
  /// Calls `done` once all that is in `stream` now has happened. Answers `pending` or `device_failed`.
  runtime::errc watch(cuda_stream stream, runtime::completion* done) noexcept;
  /// An outcome as a result, with the device's words where that failed.
  runtime::result<> in_words(runtime::errc outcome) const;
  /// Nobody waits for `done` any more.
  void forget(runtime::completion* done) noexcept;
  std::size_t pending() const noexcept { return pending_; }
  /// Asks until nothing is pending: before memory that copies may be using goes away without its owners being asked.
  void drain() noexcept;

  struct counters {
    std::uint64_t copies = 0;
    std::uint64_t by_kernel = 0;
    std::uint64_t bytes = 0;
    std::uint64_t polls = 0;  ///< events asked
  };
  const counters& statistics() const noexcept { return counters_; }

  // runtime::poller
  bool poll() override;
  /// Events announce nothing by a descriptor: with copies under way the loop must not sleep.
  arm_state arm() override { return pending_ == 0 ? arm_state::armed : arm_state::busy; }
  int event_fd() const override { return event_fd_; }

 private:
  struct mark {
    cuda_event event;
    runtime::completion* done;
  };
  // In the order of enqueueing, which is that of ending.
  struct queue {
    cuda_stream stream;
    std::deque<mark> marks;
  };
  struct ordering {
    const std::byte* begin;
    const std::byte* end;
    cuda_event event;
  };
  template <class Each>
  void for_each_order(std::span<const std::byte> memory, Each each) noexcept;
  queue& shortest() noexcept;
  cuda_event take_event();
  runtime::errc enqueue(queue& q, std::span<std::byte> to, std::span<const std::byte> from,
                        cuda_copies* other) noexcept;
  runtime::errc put_mark(queue& q, runtime::completion* done);
  std::size_t finish(queue& q, runtime::errc outcome);

  cuda_driver& driver_;
  int device_;
  options options_;
  int event_fd_;
  std::vector<queue> streams_;
  std::deque<queue> watched_;  // streams of others
  std::vector<cuda_event> free_events_;
  std::vector<ordering> orderings_;
  std::size_t pending_ = 0;
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
