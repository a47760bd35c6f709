#pragma once
/// An actor is a coroutine with one typed, bounded mailbox; an address names it.
///
///     struct ping { std::int64_t n; };
///     task<> pong(actor<ping>& self, address<ping> back) {
///       for (;;) {
///         auto m = co_await self.receive();
///         if (!m) co_return;                                  // cancelled: the scope is ending
///         auto sent = co_await back.send({m->n + 1});
///       }
///     }
///     address<ping> a = spawn_actor<ping>(scope, pong, other);
///
/// An actor ends when its coroutine returns or throws. Its mailbox then closes, its monitors each receive a `down` with the
/// reason, and later sends to it return `closed`. An exception in an actor reaches the actor's monitors, not its scope, so it
/// never ends the rank. Ending a scope ends the actors in it.
#include <parley/error.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/coroutines/mailbox.hpp>
#include <parley/runtime/coroutines/request.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace parley::runtime {

/// The message that a monitor receives when an actor ends. `reason` is `none` after a normal end, the error that the actor
/// threw, `cancelled` if the actor was torn down, or `closed` if its mailbox was already closed when `monitor` was called.
struct down {
  std::uint64_t monitored = 0;  ///< the number that was passed to `monitor`
  error reason = errc::none;
};

template <class... Ms>
class address;

/// The actor as its own coroutine sees it.
template <class... Ms>
class actor final : public frame_pool::pooled, private task_observer {
 public:
  using box = mailbox<Ms...>;
  using message = typename box::message;

  actor(scope& home, std::uint32_t limit) noexcept : home_(&home), box_(home.where(), limit) {}

  auto receive(time_ns deadline = never) noexcept { return box_.receive(deadline); }
  template <class M, class Fits = any_message>
  auto receive(Fits fits = {}, time_ns deadline = never) noexcept {
    return box_.template receive<M>(std::move(fits), deadline);
  }
  template <class Stale>
  std::uint32_t drop_if(Stale&& stale) {
    return box_.drop_if(std::forward<Stale>(stale));
  }
  box& mail() noexcept { return box_; }
  executor& where() const noexcept { return box_.where(); }
  address<Ms...> self() noexcept { return address<Ms...>(*this); }

 private:
  template <class... Ns>
  friend class address;
  template <class... Ns, class Behaviour, class... Args>
  friend address<Ns...> spawn_actor_with(scope& home, std::uint32_t limit, Behaviour&& behave, Args&&... args);

  void hold() noexcept { ++references_; }
  void drop() noexcept {
    if (--references_ == 0) delete this;
  }
  void on_task_end(promise_base& ended) noexcept override {
    error reason = errc::none;
    if (ended.thrown) reason = describe(std::exchange(ended.thrown, nullptr));
    leave(reason);
    home_->on_task_end(ended);
    drop();
  }
  void on_task_destroyed() noexcept override {
    leave(errc::cancelled);
    drop();
  }
  // Addresses may outlive the actor, and its unread messages may hold such addresses: this function drops them, so that no cycle of
  // references keeps the mailbox alive. A dropped question is refused with `closed`, so that the asker does not wait for a reply.
  void leave(const error& reason) noexcept {
    box_.close();
    box_.drop_if([](const message& m) {
      refuse_unread(m);
      return true;
    });
    const auto told = std::exchange(monitors_, nullptr);
    if (told == nullptr) return;
    for (auto& tell : *told) tell(reason);
  }

  scope* home_;
  [[no_unique_address]] box box_;  // the next member fits into its tail padding
  std::uint32_t references_ = 1;   // one of them is the coroutine's
  using monitor_list = std::vector<std::function<void(const error&)>>;
  std::unique_ptr<monitor_list> monitors_;  // null: no monitors
};

/// Names an actor. Copyable; keeps the actor's mailbox alive, not its coroutine.
template <class... Ms>
class address {
 public:
  using message = typename actor<Ms...>::message;

  address() noexcept = default;
  explicit address(actor<Ms...>& named) noexcept : named_(&named) { named.hold(); }
  address(const address& other) noexcept : named_(other.named_) {
    if (named_ != nullptr) named_->hold();
  }
  address(address&& other) noexcept : named_(std::exchange(other.named_, nullptr)) {}
  address& operator=(address other) noexcept {
    std::swap(named_, other.named_);
    return *this;
  }
  ~address() {
    if (named_ != nullptr) named_->drop();
  }

  explicit operator bool() const noexcept { return named_ != nullptr; }
  bool operator==(const address&) const noexcept = default;

  /// Asks the actor to end: closes its mailbox. Later sends return `closed`. The actor still receives the messages that are in
  /// the mailbox; after these, its receives end with `closed`.
  void stop() const noexcept {
    if (named_ != nullptr) named_->box_.close();
  }
  /// Sends without waiting: returns `none`, `full` or `closed`.
  errc try_send(message m) const { return named_ == nullptr ? errc::closed : named_->box_.try_send(std::move(m)); }
  /// Waits until the mailbox has room: `auto sent = co_await to.send(m);`. The address must not be empty.
  auto send(message m, time_ns deadline = never) const { return named_->box_.send(std::move(m), deadline); }

  /// Sends `down{number, reason}` to `watcher` when the actor ends, even if the watcher's mailbox is full. If the actor's mailbox is
  /// already closed, or this address is empty, sends `down` with `closed` at once.
  template <class... Ws>
  void monitor(address<Ws...> watcher, std::uint64_t number) const {
    static_assert(mailbox<Ws...>::template carries<down>, "a monitor's mailbox must carry `down`");
    auto tell = [watcher = std::move(watcher), number](const error& reason) {
      down news{number, reason};
      if (watcher.named_ != nullptr) static_cast<void>(watcher.named_->box_.deliver(std::move(news)));
    };
    if (named_ == nullptr || named_->box_.closed()) {
      tell(errc::closed);
    } else {
      if (named_->monitors_ == nullptr) named_->monitors_ = std::make_unique<typename actor<Ms...>::monitor_list>();
      named_->monitors_->push_back(std::move(tell));
    }
  }

 private:
  template <class... Ns>
  friend class address;
  actor<Ms...>* named_ = nullptr;
};

template <class... Ms, class Behaviour, class... Args>
address<Ms...> spawn_actor_with(scope& home, std::uint32_t limit, Behaviour&& behave, Args&&... args) {
  auto* self = new actor<Ms...>(home, limit);
  address<Ms...> named(*self);
  home.spawn(behave(*self, std::forward<Args>(args)...), self);
  return named;
}

/// Starts `behave(actor<Ms...>&, args...)` as an actor in `home`. `behave` is a function, not a capturing lambda.
template <class... Ms, class Behaviour, class... Args>
address<Ms...> spawn_actor(scope& home, Behaviour&& behave, Args&&... args) {
  return spawn_actor_with<Ms...>(home, mailbox<Ms...>::default_limit, std::forward<Behaviour>(behave),
                                 std::forward<Args>(args)...);
}

}  // namespace parley::runtime
