#pragma once
/// The executor in real time. It runs Boost.Asio and pollers, all in one thread.
///
///     reactor loop;                          // or reactor loop(my_io_context);
///     loop.attach(ucx);                      // a poller, asked on every turn
///     run(loop, rank_main());
///
/// An engine with its own loop calls `poll` instead, which never blocks. If that loop uses epoll, the engine adds `native_handle()` to it,
/// and may sleep whenever `poll` has returned `armed`:
///
///     while (loop.poll() != reactor::readiness::armed) {}
///     epoll_wait(mine, …);                   // loop.native_handle() becomes readable when there is work
///
/// A program that runs its own io_context passes the context to the reactor and calls `loop.follow_io()`: then `io.run()` drives both.
///
/// An idle reactor spins for a time that adapts to how long recent waits were, and yields the core on every turn when ranks share
/// cores. Then it arms its pollers and sleeps. A slow safety tick counts the wake-ups that an event fd missed.
#include <parley/runtime/time/executor.hpp>
#include <parley/runtime/time/poller.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace boost::asio {
class io_context;
}

namespace parley::runtime {

class reactor final : public executor {
 public:
  enum class sharing : std::uint8_t { own_core, shared_core };
  struct options {
    sharing cores = sharing::own_core;
    time_ns longest_spin_ns = 50'000;
    time_ns safety_tick_ns = 100'000'000;
    unsigned compute_threads = 1;
    std::uint64_t seed = 1;
  };
  struct counters {
    std::uint64_t turns = 0;
    std::uint64_t sleeps = 0;
    std::uint64_t yields = 0;          ///< of the core, while idle, to other ranks that share it
    std::uint64_t missed_wakeups = 0;  ///< times that the safety tick found work without an event: a bug in a poller
  };
  /// `progressed`: something ran. `idle`: nothing to do at this moment. `armed`: nothing to do, and the native handle becomes readable
  /// when that changes.
  enum class readiness : std::uint8_t { progressed, idle, armed };

  reactor();
  explicit reactor(options o);
  /// Shares the caller's context, which must outlive the reactor.
  explicit reactor(boost::asio::io_context& io, options o);
  ~reactor() override;

  /// The poller must outlive the reactor, unless it is detached before.
  void attach(poller& p);
  void detach(poller& p) noexcept;
  /// `descriptors` returns the open descriptors that Asio waits for, so that they wake `native_handle` at once. `descriptors` is called
  /// now, and again after Asio has run a handler; closing a descriptor removes it. The reactor cannot see other things that Asio waits for,
  /// such as its timers: these are late by at most `safety_tick_ns`.
  void watch(std::function<std::vector<int>()> descriptors);
  boost::asio::io_context& io() noexcept;
  void set_sharing(sharing cores) noexcept;
  /// For waits that take longer than messages, such as waits for a GPU's copies.
  void set_longest_spin(time_ns longest) noexcept;

  readiness poll();
  /// From now on, running the io_context also runs this reactor, until `stop_following` or the reactor's end. As long as the reactor
  /// follows, the io_context does not run out of work.
  void follow_io();
  void stop_following() noexcept;
  /// A descriptor for the caller's epoll or poll; owned by the reactor.
  int native_handle() const noexcept;
  const counters& statistics() const noexcept;
  /// `counters::turns`; any thread may call this to see whether the loop still turns.
  std::uint64_t turns_so_far() const noexcept;

  time_ns precise_now() noexcept override;
  void post(std::function<void()> f) override;
  void submit(std::shared_ptr<compute_job> job) override;
  bool turn() override;
  bool wait() override;
  bool catch_up() override;

 private:
  struct state;
  bool run_posted();
  bool arm_pollers();
  void watch_anew();
  bool fire_timers(bool found);
  bool spin_or_arm();
  void await_event();
  void sleep();
  void queue_turns();
  void follow();
  std::unique_ptr<state> state_;
};

}  // namespace parley::runtime
