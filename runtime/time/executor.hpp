#pragma once
/// The one interface to time, order and chance. All coroutines of a rank run on one executor, in one thread; its ready queue
/// is the only place where a waiting coroutine is resumed.
///
///     executor& ex = here.where();                     // scope& here = co_await this_scope;
///     auto woken = co_await sleep_for(5ms);
///     auto m = co_await box.receive(ex.deadline_in(5_ms));     // a wait ends at a point in time, which a span becomes here
///     ex.post([] { … });                               // from any thread
///     auto dice = ex.rng(streams::user);
///
/// `reactor` is the real one, `virtual_time` the one of tests and of the simulator. An executor ends after its scopes: what
/// is still suspended then is destroyed with its scope, without being resumed.
#include <parley/identifiers.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/time/timers.hpp>

#include <array>
#include <atomic>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace parley::runtime {

/// The present as a loop has last read its clock. It compares and subtracts as a `time_ns` does, but nothing can be added to it: a
/// wait counts from the clock as it is, and `executor::deadline_in` says until when.
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

/// What the ready queue calls where a coroutine would be more than is needed.
struct ready_call {
  using function = void (*)(ready_call& self) noexcept;
  explicit ready_call(function f) noexcept : run(f) {}
  function run;
};

/// Who goes on once a wait is over: a suspended coroutine or a call, in one word.
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
  /// Null: it is a call.
  std::coroutine_handle<> coroutine() const noexcept {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
    return std::coroutine_handle<>::from_address((word_ & is_call) == 0 ? reinterpret_cast<void*>(word_) : nullptr);
  }
  bool operator==(const continuation&) const noexcept = default;

 private:
  static constexpr std::uintptr_t is_call = 1;  // neither a frame nor a call lies at an odd address
  std::uintptr_t word_ = 0;
};

/// First in, first out, with room that doubles: what is ready to run. A few wait in place.
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
  /// Lets the `i`-th of those that wait change places with the first.
  void bring_forward(std::size_t i) noexcept { std::swap(ring_[head_ & mask_], ring_[(head_ + i) & mask_]); }
  void clear() noexcept { head_ = tail_; }
  /// Takes out one that will not live to be resumed.
  void remove(continuation c) noexcept;

 private:
  static constexpr std::size_t few = 4;
  [[gnu::noinline]] void grow();
  std::array<continuation, few> few_{};
  continuation* ring_ = few_.data();
  std::size_t mask_ = few - 1;
  std::size_t head_ = 0;
  std::size_t tail_ = 0;
  std::unique_ptr<continuation[]> many_;  // once they were more
};

/// What `compute` runs away from the actor thread; see compute.hpp.
class compute_job {
 public:
  /// Runs the user's function, on any thread.
  void execute() noexcept {
    run();
    finished_.store(true, std::memory_order_release);
    finished_.notify_all();
  }
  /// Continues who waits; on the executor's thread, after `execute`.
  virtual void on_done() noexcept = 0;
  virtual time_ns modelled_ns() const noexcept = 0;
  void wait_finished() const noexcept { finished_.wait(false, std::memory_order_acquire); }
  virtual ~compute_job() = default;

 private:
  virtual void run() noexcept = 0;
  std::atomic<bool> finished_{false};
};

/// Somebody waits for the answer to a request; see request.hpp.
class pending_reply;

class executor {
 public:
  /// Whether its clock may be read less often than it is asked for: where something shows cheaply that little has passed.
  enum class clock_reading : std::uint8_t { each_time, sparing };
  executor(time_ns now, std::uint64_t seed, clock_reading how = clock_reading::each_time)
      : now_(now), reads_each_time_(how == clock_reading::each_time || !counts_ticks), timers_(now), seed_(seed) {}
  executor(const executor&) = delete;
  executor& operator=(const executor&) = delete;
  virtual ~executor();

  /// The present as the loop has last read it: some turns ago, and before whatever a coroutine has computed since. For comparing and
  /// for noting. It is no time from which a wait can count: for that there is `deadline_in`.
  loop_time now() const noexcept { return loop_time(now_); }
  /// The present, read now; for measuring. The same clock as `now`.
  virtual time_ns precise_now() noexcept = 0;
  /// When a wait that begins here and now, and may last `span`, ends at the latest: `never` where that is past the end of time. However
  /// long this turn has lasted already, it is early by no more than a thousandth of `span`.
  time_ns deadline_in(time_ns span) noexcept {
    if (reads_each_time_ || ticks() - ticks_when_read_ >= static_cast<std::uint64_t>(span) >> 10U) read_clock();
    return deadline_of(now_, span);
  }
  /// Says that this thread has computed for `span` inside the present turn. Where time is virtual that much of it passes, and nothing
  /// else of this rank happens meanwhile; a real clock has seen by itself what was computed.
  virtual void spend(time_ns span) noexcept { static_cast<void>(span); }
  std::uint64_t seed() const noexcept { return seed_; }
  random_stream rng(streams purpose) const noexcept { return {seed_, static_cast<std::uint64_t>(purpose)}; }

  /// Puts a suspended coroutine, or a call, into the ready queue.
  void schedule(continuation c) { ready_.push(c); }
  /// The number of the next task that is spawned, from 1 on: they begin in that order, in whatever order a simulator resumes them
  /// afterwards.
  std::uint32_t number_task() noexcept { return ++tasks_; }
  /// Takes back `schedule`, for one that is destroyed where it stands.
  void forget(continuation c) noexcept { ready_.remove(c); }
  /// Frees the frame of a coroutine that has ended, once no code of it is on the stack.
  void retire(std::coroutine_handle<> h) { retired_.push_back(h); }
  /// Runs a coroutine on the caller's stack. Returns false when too many are nested there already: schedule it then.
  bool resume_nested(std::coroutine_handle<> h) {
    if (nested_ == max_nested) return false;
    ++nested_;
    h.resume();
    --nested_;
    return true;
  }
  void arm(timer& t, time_ns when) noexcept { timers_.arm(t, when); }
  /// The same for one that fires `span` from now.
  void arm_in(timer& t, time_ns span) noexcept { timers_.arm(t, deadline_in(span)); }
  /// Whether the timers for `deadline` have fired, or just fire. After long computing that is later than `now` says: what came meanwhile
  /// is taken in before.
  bool is_over(time_ns deadline) const noexcept { return deadline <= timers_.passed(); }
  /// Runs `f` on the executor's thread, soon. The only member that other threads may call.
  virtual void post(std::function<void()> f) = 0;
  /// Runs `job` where it does not hold up the actors.
  virtual void submit(std::shared_ptr<compute_job> job) = 0;

  /// Runs what is ready, due and new. Returns false when there is nothing to do until time passes or something comes.
  virtual bool turn() = 0;
  /// Waits for the next event after `turn` returned false. Returns false when no event can come any more.
  virtual bool wait() = 0;
  /// A turn for callers who come by only now and then: it reads the clock and asks everything first.
  virtual bool catch_up() { return turn(); }
  /// Whether something from the ready queue is on the stack right now.
  bool resuming() const noexcept { return resuming_ != 0; }
  /// What is on the stack right now and came from the ready queue; null: nothing did.
  continuation current() const noexcept { return current_; }
  /// For code that begins a coroutine on its own stack: returns what is to be put back afterwards.
  continuation exchange_current(continuation c) noexcept { return std::exchange(current_, c); }

  /// Whether a call must look at more than its arguments before it moves anything: an implementation of an op runs here, or this
  /// process is a fork of the executor's. See implementation.hpp.
  bool guarded() const noexcept { return guards_ != 0; }
  void add_guard() noexcept { ++guards_; }
  void remove_guard() noexcept { --guards_; }
  /// Whether this process is a child that fork() made: the executor, and all that moves through it, are its parent's.
  bool forked() const noexcept { return forked_; }
  /// Said in such a child: nothing that was ready runs there.
  void note_fork() noexcept {
    forked_ = true;
    add_guard();
    ready_.clear();
  }

  /// How many coroutines were resumed, and calls made, so far.
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
  /// Resumes what is ready, at most `limit` of them. Returns how many.
  std::size_t run_ready(std::size_t limit);
  void free_retired() noexcept;

 private:
  static constexpr std::uint32_t max_nested = 256;

  // A counter that runs at least about as fast as nanoseconds pass, and costs less than a clock.
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
  std::uint32_t guards_ = 0;
  bool forked_ = false;
  continuation current_;
  ready_queue ready_;
  std::vector<std::coroutine_handle<>> retired_;
  timer_wheel timers_;
  std::uint64_t seed_;
  std::vector<reply_slot> replies_;
  std::vector<std::uint32_t> free_replies_;
};

}  // namespace parley::runtime
