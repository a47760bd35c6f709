#pragma once
/// One call on an edge: the awaitable that the edge's `send` and `receive` return. It is awaited where it is made.
///
///     co_await out.send(bytes, {.tag = 0});
///     std::uint64_t got = co_await in.receive(buffer, {.tag = 0});
///     scope.spawn(out.send(bytes, {}));                     // a call converts to a task
///
/// If its config moves the payload whole, a call runs in place: without a coroutine or an allocation, and with a timer only if it has to
/// wait. Every other call continues in a coroutine of its edge. Nothing happens before a call is awaited; from then on, the buffer must
/// stay valid until the call has ended. Failure and cancellation: see edge_end.hpp.
#include <parley/actors/edge/outgoing.hpp>
#include <parley/actors/edge/part_receiver.hpp>
#include <parley/actors/edge/part_sender.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace parley::actors {
class edge_sender;
}

namespace parley::ops {

using runtime::rank_id;
using runtime::time_ns;

class edge_in;
class edge_out;

/// Observes a call, for an owner that needs to know more than its end.
class call_watcher {
 public:
  /// The call has its place in the order of its tag: later calls come behind it.
  virtual void on_begun() noexcept = 0;
  /// For messages of a rank to itself: the other side has been posted.
  virtual void on_met() noexcept {}
  /// The scope for the call's coroutine: the caller's scope, or a scope below it through which this call alone can be ended.
  virtual runtime::scope& scope_of_rest(runtime::scope& callers) noexcept { return callers; }

 protected:
  ~call_watcher() = default;
};

struct call_options {
  std::uint32_t tag = 0;
  time_ns timeout_ns = 0;  ///< 0: the op's
  actors::trial_terms trials{};
  call_watcher* watcher = nullptr;
  std::uint64_t expected = 0;     ///< number from `memory_space::expect` if a device waits for this receive, else 0
  std::uint64_t least_bytes = 0;  ///< a receive refuses a shorter message
  std::uint16_t type = 0;         ///< of the elements (`element_type_of`); 0: any
  actors::payload_pieces* pieces =
      nullptr;  ///< the buffer is packed from these or unpacked into them, unless the config sends them unpacked; null: none
};

/// A payload sent whole, as its edge lists it while the transport holds the buffer.
struct whole_send : runtime::list_hook {
  actors::part_sender* out = nullptr;
  const actors::outgoing* invocation = nullptr;
  std::uint64_t batch = 0;
};

/// The common part of both kinds of call: a wait in the caller's scope, and the coroutine in which a call may continue.
template <class T>
class call : protected runtime::waiter {
 public:
  using value_type = T;
  call(const call&) = delete;
  call& operator=(const call&) = delete;
  /// Ends the wait of this call; other waits in its scope continue.
  void cancel(runtime::errc why) noexcept {
    if (linked()) on_cancel(*this, why);
  }

 protected:
  call(waiter::function on_cancelled, const call_options& o) noexcept : waiter(on_cancelled), options_(o) {}
  ~call() {
    if (rest_.child) rest_.child.destroy();
  }
  void go_on_in(runtime::task<T>&& rest) noexcept { rest_.child = std::move(rest).release(); }
  /// Starts the call's coroutine, for a caller that is suspended already.
  void start_rest() noexcept {
    waiter::unlink();
    runtime::promise_base& p = rest_.child.promise();
    p.home = &scope_of_rest(*home);
    p.caller = next;
    p.state = runtime::promise_base::progress::waiting;
    home->where().schedule(p.self);
  }

  bool suspend_rest(runtime::scope& here, runtime::continuation who) {
    return waits(rest_.suspend(scope_of_rest(here), who), here);
  }
  runtime::scope& scope_of_rest(runtime::scope& here) noexcept {
    return options_.watcher == nullptr ? here : options_.watcher->scope_of_rest(here);
  }
  /// The wait is not charged to a caller whose time is measured. A step of a flow (it has a watcher) runs concurrently with the
  /// caller, who waits for the flow instead.
  bool waits(bool suspended, const runtime::scope& of) noexcept {
    if (suspended && options_.watcher == nullptr) wait_.begin(of.meter());
    return suspended;
  }

  call_options options_;
  typename runtime::task<T>::awaiter rest_{};
  runtime::work_meter::wait wait_;
};

class [[nodiscard]] send_call final : public call<void> {
 public:
  send_call(edge_out& edge, std::span<const std::byte> data, const call_options& options) noexcept
      : call(&on_cancelled, options), edge_(edge), data_(data) {}

  bool await_ready();
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) {
    return suspend(*caller.promise().home, caller);
  }
  /// `await_suspend` for a caller that is no coroutine. False: the call does not have to wait.
  bool suspend(runtime::scope& here, runtime::continuation who) {
    if (rest_.child) return suspend_rest(here, who);
    if (!enter(here, who)) invocation_->whole->out.fail(outcome);
    return waits(wait(), here);
  }
  void await_resume();
  operator runtime::task<>() &&;  // NOLINT(google-explicit-constructor): a call is used like a task
  /// Hands over its frame as a task does, for `scope.spawn(out.send(bytes, {}))`.
  runtime::task<>::handle release() && { return static_cast<runtime::task<>>(std::move(*this)).release(); }

 private:
  bool wait();
  static void on_cancelled(waiter& self, runtime::errc why) noexcept;

  edge_out& edge_;
  std::span<const std::byte> data_;
  // A payload that is sent whole, but is too long to travel inside its message.
  struct whole_payload final : runtime::timer {
    whole_payload(runtime::link& net, rank_id to, const actors::stamp& s) noexcept : timer(&on_late), out(net, to, s) {}
    static void on_late(timer& self) noexcept;
    actors::part_sender out;
    whole_send listed;
    edge_out* edge = nullptr;  // while it is listed
    time_ns deadline_ns = runtime::never;
  };
  struct invocation {
    invocation(actors::edge_sender& edge, const call_options& o, std::span<const std::byte> data, std::uint64_t number);
    actors::outgoing begun;
    std::optional<whole_payload> whole;
  };
  std::optional<invocation> invocation_;
};

class [[nodiscard]] receive_call final : public call<std::uint64_t>, private actors::match_watcher {
 public:
  receive_call(edge_in& edge, std::span<std::byte> into, const call_options& options) noexcept
      : call(&on_cancelled, options), edge_(edge), into_(into) {}

  bool await_ready();
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) {
    return suspend(*caller.promise().home, caller);
  }
  bool suspend(runtime::scope& here, runtime::continuation who) {
    if (rest_.child) {
      expire_decided();
      return suspend_rest(here, who);
    }
    if (!enter(here, who)) stop(outcome);
    return waits(wait(), here);
  }
  ~receive_call() {
    if (options_.expected != 0) tell_memory();
  }
  std::uint64_t await_resume();
  operator runtime::task<std::uint64_t>() &&;  // NOLINT(google-explicit-constructor): a call is used like a task

 private:
  bool wait();
  void stop(runtime::errc why) noexcept;
  void expire_decided() noexcept;
  void tell_memory() noexcept;
  std::span<std::byte> on_decided(actors::part_receiver& in) noexcept override;
  std::uint64_t batch() const noexcept override { return options_.trials.batch; }
  static void on_cancelled(waiter& self, runtime::errc why) noexcept;

  edge_in& edge_;
  std::span<std::byte> into_;
  std::optional<actors::part_receiver> in_;
  bool suspended_ = false;
  std::uint64_t ran_ = 0;  // the digest of the config that moved it whole
};

}  // namespace parley::ops
