#pragma once
/// Runs all coroutines of a rank, in one thread. The executor is the only source of time, order and chance; its ready queue is the only
/// place where a waiting coroutine is resumed.
///
///     executor& ex = here.where();                     // scope& here = co_await this_scope;
///     auto woken = co_await sleep_for(5ms);
///     auto m = co_await box.receive(ex.deadline_in(5_ms));     // a wait ends at a point in time, which a span becomes here
///     ex.post([] { … });                               // from any thread
///     auto dice = ex.rng(streams::user);
///
/// `reactor` is the executor in real time; `virtual_time` is the executor of tests and of the simulator. An executor must outlive its
/// scopes: a coroutine that is still suspended when its scope ends is destroyed with the scope, without being resumed.
#include <parley/identifiers.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/time/timers.hpp>

#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace parley::runtime {

/// The latest time that a loop has read from its clock. It compares and subtracts like a `time_ns`, but nothing can be added to it, because
/// it may be old: `executor::deadline_in` computes the deadline of a wait that begins now.
class loop_time {
 public:
  constexpr explicit loop_time(time_ns t) noexcept : read_(t) {}
  constexpr operator time_ns() const noexcept { return read_; }  // NOLINT(google-explicit-constructor): a time to note
  template <class Span>
  friend void operator+(loop_time, Span) = delete;
  template <class Span>
  friend void operator+(Span, loop_time) = delete;

 private:
  time_ns read_;
};
time_ns deadline_of(loop_time, time_ns) = delete;

/// A call in the ready queue, where a coroutine would be more than is needed.
struct ready_call {
  using function = void (*)(ready_call& self) noexcept;
  explicit ready_call(function f) noexcept : run(f) {}
  function run;
};

/// The continuation of a wait: a suspended coroutine or a call, in one word.
class continuation {
 public:
  continuation() noexcept = default;
  template <class P>
  continuation(std::coroutine_handle<P> h) noexcept  // NOLINT(google-explicit-constructor): it is one
      : word_(reinterpret_cast<std::uintptr_t>(h.address())) {}
  continuation(ready_call& c) noexcept  // NOLINT(google-explicit-constructor)
      : word_(reinterpret_cast<std::uintptr_t>(&c) | is_call) {}
  void resume() const {
    // NOLINTBEGIN(performance-no-int-to-ptr): that is how they came here
    if ((word_ & is_call) == 0) return std::coroutine_handle<>::from_address(reinterpret_cast<void*>(word_)).resume();
    auto* const call = reinterpret_cast<ready_call*>(word_ - is_call);
    // NOLINTEND(performance-no-int-to-ptr)
    call->run(*call);
  }
  /// The coroutine; null if it is a call.
  std::coroutine_handle<> coroutine() const noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
    return std::coroutine_handle<>::from_address((word_ & is_call) == 0 ? reinterpret_cast<void*>(word_) : nullptr);
  }
  bool operator==(const continuation&) const noexcept = default;

 private:
  static constexpr std::uintptr_t is_call = 1;  // neither a frame nor a call lies at an odd address
  std::uintptr_t word_ = 0;
};

/// Coroutines and calls that are ready to run, first in, first out. The first few need no allocation; the room doubles when full.
class ready_queue {
 public:
  ready_queue() noexcept = default;
  ready_queue(const ready_queue&) = delete;
  ready_queue& operator=(const ready_queue&) = delete;
  bool empty() const noexcept { return head_ == tail_; }
  std::size_t size() const noexcept { return tail_ - head_; }
  void push(continuation c) {
    if (size() > mask_) grow();
    ring_[tail_++ & mask_] = c;
  }
  continuation at(std::size_t i) const noexcept { return ring_[(head_ + i) & mask_]; }
  continuation pop() noexcept { return ring_[head_++ & mask_]; }
  /// Swaps the `i`-th entry with the first.
  void bring_forward(std::size_t i) noexcept { std::swap(ring_[head_ & mask_], ring_[(head_ + i) & mask_]); }
  void clear() noexcept { head_ = tail_; }
  /// Removes an entry that is destroyed before it is resumed.
  void remove(continuation c) noexcept;

 private:
  static constexpr std::size_t few = 4;
  [[gnu::noinline]] void grow();
  std::array<continuation, few> few_{};
  continuation* ring_ = few_.data();
  std::size_t mask_ = few - 1;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::unique_ptr<continuation[]> many_;  // once there were more than `few`
};

/// A job that `compute` runs outside the actor thread; see compute.hpp.
class compute_job {
 public:
  /// Runs the user's function, on any thread.
  void execute() noexcept {
    run();
    finished_.store(true, std::memory_order_release);
    finished_.notify_all();
  }
  /// Resumes the coroutine that waits. Called on the executor's thread, after `execute`.
  virtual void on_done() noexcept = 0;
  virtual time_ns modelled_ns() const noexcept = 0;
  void wait_finished() const noexcept { finished_.wait(false, std::memory_order_acquire); }
  virtual ~compute_job() = default;

 private:
  virtual void run() noexcept = 0;
  std::atomic<bool> finished_{false};
};

/// A wait for the answer to a request; see request.hpp.
class pending_reply;

class executor {
 public:
  /// When the clock is read: each time, or only if a cheap counter shows that enough time has passed.
  enum class clock_reading : std::uint8_t { each_time, sparing };
  executor(time_ns now, std::uint64_t seed, clock_reading how = clock_reading::each_time)
      : now_(now), reads_each_time_(how == clock_reading::each_time || !counts_ticks), timers_(now), seed_(seed) {}
  executor(const executor&) = delete;
  executor& operator=(const executor&) = delete;
  virtual ~executor();

  /// The latest time that the loop has read. This may be some turns ago, and does not include later computations of a coroutine. Use it to
  /// compare and to record. Do not compute a deadline from it: use `deadline_in`.
  loop_time now() const noexcept { return loop_time(now_); }
  /// Reads the clock; for measuring. It is the clock of `now`.
  virtual time_ns precise_now() noexcept = 0;
  /// The deadline of a wait that begins now and may last `span`; `never` if it is past the end of time. Even if this turn has lasted long
  /// already, the deadline is too early by at most a thousandth of `span`.
  time_ns deadline_in(time_ns span) noexcept {
    if (reads_each_time_ || ticks() - ticks_when_read_ >= static_cast<std::uint64_t>(span) >> 10U) read_clock();
    return deadline_of(now_, span);
  }
  /// Says that this thread has computed for `span` inside the present turn. In virtual time, `span` then passes, and nothing else of this
  /// rank happens during that time. A real clock needs no such call.
  virtual void spend(time_ns span) noexcept { static_cast<void>(span); }
  std::uint64_t seed() const noexcept { return seed_; }
  random_stream rng(streams purpose) const noexcept { return {seed_, static_cast<std::uint64_t>(purpose)}; }

  /// Puts a suspended coroutine, or a call, into the ready queue.
  void schedule(continuation c) { ready_.push(c); }
  /// Numbers the next spawned task, from 1 on. Tasks begin in the order of their numbers, even if a simulator resumes them in another order
  /// afterwards.
  std::uint32_t number_task() noexcept { return ++tasks_; }
  /// Undoes `schedule`, for a coroutine or call that is destroyed before it is resumed.
  void forget(continuation c) noexcept { ready_.remove(c); }
  /// Frees the frame of a coroutine that has ended, once no code of it is on the stack.
  void retire(std::coroutine_handle<> h) { retired_.push_back(h); }
  /// Runs a coroutine on the caller's stack. Returns false if too many are nested there already; then schedule the coroutine instead.
  bool resume_nested(std::coroutine_handle<> h) {
    if (nested_ == max_nested) return false;
    ++nested_;
    h.resume();
    --nested_;
    return true;
  }
  void arm(timer& t, time_ns when) noexcept { timers_.arm(t, when); }
  /// Like `arm`, `span` from now.
  void arm_in(timer& t, time_ns span) noexcept { timers_.arm(t, deadline_in(span)); }
  /// True if the timers for `deadline` have fired, or are firing. After a long computation they fire later than `now` suggests: the loop
  /// first handles everything that arrived during the computation.
  bool is_over(time_ns deadline) const noexcept { return deadline <= timers_.passed(); }
  /// `compute` calls these when a computation of this rank's program begins, and when it ends.
  void begin_computation() noexcept {
    if (computations_++ == 0) computing_since_ns_ = now_;
  }
  void end_computation() noexcept { --computations_; }
  /// The time since when at least one computation has been running; empty: no computation is running.
  std::optional<time_ns> computing_since() const noexcept {
    return computations_ == 0 ? std::nullopt : std::optional(computing_since_ns_);
  }
  /// Runs `f` soon, on the executor's thread. This is the only member that other threads may call.
  virtual void post(std::function<void()> f) = 0;
  /// Runs `job` where it does not block the actors.
  virtual void submit(std::shared_ptr<compute_job> job) = 0;

  /// Runs everything that is ready or due, and handles arrivals. Returns false if there is nothing to do until time passes or something
  /// arrives.
  virtual bool turn() = 0;
  /// Waits for the next event after `turn` returned false. Returns false if there can be no more events.
  virtual bool wait() = 0;
  /// A turn for callers that call rarely: first reads the clock and polls every source.
  virtual bool catch_up() { return turn(); }
  /// True while something from the ready queue is on the stack.
  bool resuming() const noexcept { return resuming_ != 0; }
  /// The entry of the ready queue that is on the stack; null: none.
  continuation current() const noexcept { return current_; }
  /// For code that begins a coroutine on its own stack. Returns the previous value, which the code must restore afterwards.
  continuation exchange_current(continuation c) noexcept { return std::exchange(current_, c); }

  /// True if a call must check more than its arguments before it moves data, because an implementation of an op runs here, or this process
  /// is a fork of the executor's. See implementation.hpp.
  bool guarded() const noexcept { return guards_ != 0; }
  void add_guard() noexcept { ++guards_; }
  void remove_guard() noexcept { --guards_; }
  /// True in a child that fork() made: the executor, and all messages through it, belong to the parent.
  bool forked() const noexcept { return forked_; }
  /// Call this in such a child: it drops everything that was ready to run.
  void note_fork() noexcept {
    forked_ = true;
    add_guard();
    ready_.clear();
  }

  /// A scope or flow calls this when it ends while its tasks still wait. It counts if a coroutine causes that end, and no exception does.
  void note_dropped() noexcept {
    if (current_.coroutine() && std::uncaught_exceptions() == 0) ++dropped_;
  }
  /// The number of such scopes and flows since the last call.
  std::uint64_t take_dropped() noexcept { return std::exchange(dropped_, 0); }

  /// Number of coroutines resumed, and calls made, so far.
  std::uint64_t resumed() const noexcept { return resumed_; }

  // Requests that wait for an answer, by number; see request.hpp.
  std::uint64_t open_reply(pending_reply& waiting);
  void close_reply(std::uint64_t number) noexcept;
  pending_reply* find_reply(std::uint64_t number) noexcept;

 protected:
  void set_now(time_ns t) noexcept { now_ = t > now_ ? t : now_; }
  /// Sets `now` to `precise_now`.
  void read_clock() noexcept;
  timer_wheel& timers() noexcept { return timers_; }
  bool has_ready() const noexcept { return !ready_.empty(); }
  std::size_t ready_count() const noexcept { return ready_.size(); }
  continuation ready_at(std::size_t i) const noexcept { return ready_.at(i); }
  void bring_forward(std::size_t i) noexcept { ready_.bring_forward(i); }
  /// Runs at most `limit` entries of the ready queue. Returns how many.
  std::size_t run_ready(std::size_t limit);
  void free_retired() noexcept;

 private:
  static constexpr std::uint32_t max_nested = 256;

  // Reads a counter that advances at least about once per nanosecond, and is cheaper to read than a clock.
#if defined(__x86_64__)
  static constexpr bool counts_ticks = true;
  static std::uint64_t ticks() noexcept { return __builtin_ia32_rdtsc(); }
#else
  static constexpr bool counts_ticks = false;
  static std::uint64_t ticks() noexcept { return 0; }
#endif

  struct reply_slot {
    pending_reply* waiting = nullptr;
    std::uint32_t generation = 0;
  };
  time_ns now_;
  std::uint64_t ticks_when_read_ = 0;
  bool reads_each_time_;
  std::uint64_t resumed_ = 0;
  std::uint32_t nested_ = 0;
  std::uint32_t resuming_ = 0;
  std::uint32_t tasks_ = 0;
  std::uint32_t computations_ = 0;
  time_ns computing_since_ns_ = 0;
  std::uint32_t guards_ = 0;
  bool forked_ = false;
  std::uint64_t dropped_ = 0;
  continuation current_;
  ready_queue ready_;
  std::vector<std::coroutine_handle<>> retired_;
  timer_wheel timers_;
  std::uint64_t seed_;
  std::vector<reply_slot> replies_;
  std::vector<std::uint32_t> free_replies_;
};

}  // namespace parley::runtime
