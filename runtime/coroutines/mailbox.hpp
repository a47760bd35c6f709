#pragma once
/// The queue of messages of one actor: typed, bounded, and read selectively.
///
///     mailbox<offer, report> box(64);
///     auto next  = co_await box.receive(deadline);                         // result<std::variant<offer, report>>
///     auto mine  = co_await box.receive<report>(of_invocation(7), deadline);   // the first that fits; others stay
///     auto given = co_await box.send(m, deadline);                         // waits for room
///
/// One coroutine receives at a time; any number may wait to send. A receive that is cancelled, that times out, or that loses
/// a `when_any` leaves every message in place and in order. `close` ends all waits with `closed`.
#include <parley/error.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/time/timers.hpp>
#include <parley/scope.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace parley::runtime {

/// A ring buffer that doubles as it fills. It allocates nothing before the first message. A ring of large messages frees its memory
/// whenever it becomes empty.
template <class T>
class message_ring {
 public:
  message_ring() noexcept = default;
  message_ring(const message_ring&) = delete;
  message_ring& operator=(const message_ring&) = delete;
  ~message_ring() {
    if (slots_ != nullptr) free_slots();
  }

  std::uint32_t size() const noexcept { return size_; }
  T& operator[](std::uint32_t i) noexcept { return slots_[(head_ + i) & (room_ - 1)]; }
  void push(T&& value) {
    if (size_ == room_) grow();
    ::new (&(*this)[size_]) T(std::move(value));
    ++size_;
  }
  T pop() {
    T& first = (*this)[0];
    T value = std::move(first);
    first.~T();  // NOLINT(bugprone-use-after-move): it is destroyed, not used
    head_ = (head_ + 1) & (room_ - 1);
    --size_;
    if constexpr (is_large) {
      if (size_ == 0) free_slots();
    }
    return value;
  }
  /// Takes out the element at `i` and keeps the order of the others.
  T take(std::uint32_t i) {
    for (; i != 0; --i) std::swap((*this)[i], (*this)[i - 1]);
    return pop();
  }

 private:
  static constexpr bool is_large = sizeof(T) > 64;
  [[gnu::noinline]] void free_slots() noexcept {
    while (size_ > 1) pop();
    if (size_ == 1) (*this)[0].~T();
    frame_pool::release(slots_, room_ * sizeof(T));
    slots_ = nullptr;
    room_ = head_ = size_ = 0;
  }
  void grow() {
    const std::uint32_t larger = room_ == 0 ? (is_large ? 1 : 4) : room_ * 2;
    T* const fresh = static_cast<T*>(frame_pool::allocate(larger * sizeof(T)));
    for (std::uint32_t i = 0; i < size_; ++i) {
      ::new (fresh + i) T(std::move((*this)[i]));
      (*this)[i].~T();
    }
    if (slots_ != nullptr) frame_pool::release(slots_, room_ * sizeof(T));
    slots_ = fresh;
    room_ = larger;
    head_ = 0;
  }

  T* slots_ = nullptr;
  std::uint32_t room_ = 0;
  std::uint32_t head_ = 0;
  std::uint32_t size_ = 0;
};

/// Accepts every message: the predicate of a receive that is not selective.
struct any_message {
  template <class T>
  constexpr bool operator()(const T&) const noexcept {
    return true;
  }
};

template <class... Ms>
class mailbox : private timer {
 public:
  /// One message type is stored as it is, several as a variant.
  // NOLINTNEXTLINE(modernize-type-traits): only the chosen branch may be looked into
  using message = typename std::conditional_t<sizeof...(Ms) == 1, std::tuple_element<0, std::tuple<Ms...>>,
                                              std::type_identity<std::variant<Ms...>>>::type;
  template <class M>
  static constexpr bool carries = (std::is_same_v<M, Ms> || ...);
  static constexpr std::uint32_t default_limit = 1024;

  explicit mailbox(executor& ex, std::uint32_t limit = default_limit) noexcept
      : timer(&on_time), executor_(ex), limit_(limit) {
    when = never;
  }
  mailbox(const mailbox&) = delete;
  mailbox& operator=(const mailbox&) = delete;
  ~mailbox() { close(); }

  std::uint32_t size() const noexcept { return ring_.size(); }
  std::uint32_t limit() const noexcept { return limit_; }
  bool closed() const noexcept { return limit_ == 0; }
  executor& where() const noexcept { return executor_; }

  class sending;
  /// A sender's place in the queue. A type apart from `sending`, so that a message may hold the address of a mailbox of its own type.
  struct sender_place : list_hook {
    sending* owner = nullptr;
  };

  /// Adds a message if there is room. Returns `none`, `full` or `closed`.
  errc try_send(message&& m) {
    if (ring_.size() >= limit_) return closed() ? errc::closed : errc::full;
    put(std::move(m));
    return errc::none;
  }
  /// Adds a message even beyond the limit: for notices that must not be lost, if there cannot be many of them.
  errc deliver(message&& m) {
    if (closed()) return errc::closed;
    put(std::move(m));
    return errc::none;
  }

  class [[nodiscard]] sending : private waiter, private timer {
   public:
    sending(mailbox& to, message&& m, time_ns deadline) noexcept
        : waiter(&on_cancelled), timer(&on_late), to_(to), message_(std::move(m)) {
      timer::when = deadline;
    }
    bool await_ready() {
      waiter::outcome = to_.try_send(std::move(message_));
      return waiter::outcome != errc::full;
    }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      if (timer::when != never) home->where().arm(*this, timer::when);
      to_.senders_.push_back(place_);
      place_.owner = this;
      return true;
    }
    result<> await_resume() noexcept { return waiter::outcome; }

   private:
    friend mailbox;
    void finish(errc why) noexcept {
      place_.unlink();
      timer_wheel::disarm(*this);
      wake(why);
    }
    static void on_cancelled(waiter& self, errc why) noexcept { static_cast<sending&>(self).finish(why); }
    static void on_late(timer& self) noexcept { static_cast<sending&>(self).finish(errc::timeout); }

    mailbox& to_;
    message message_;
    sender_place place_;
  };

  /// Adds a message; waits until there is room.
  sending send(message m, time_ns deadline = never) noexcept { return sending(*this, std::move(m), deadline); }

 private:
  // A coroutine that waits for a message. The message stays in the ring until that coroutine runs, so that a cancelled receive
  // cannot lose it.
  class receiver : public waiter {
   public:
    using fits_function = bool (*)(receiver& self, const message& m);
    receiver(mailbox& from, fits_function fits, time_ns deadline) noexcept
        : waiter(&on_cancelled), from_(from), fits_(fits), deadline_(deadline) {}
    ~receiver() {
      // A receiver that no longer waits has left the mailbox, and the mailbox may be destroyed by now.
      if (waiter::linked()) from_.receiver_ = nullptr;
    }
    void offer(const message& m) {
      if (fits_ == nullptr || fits_(*this, m)) finish(errc::none);
    }
    void finish(errc why) noexcept {
      from_.receiver_ = nullptr;
      wake(why);
    }
    time_ns deadline() const noexcept { return deadline_; }

   protected:
    template <class P>
    bool suspend(std::coroutine_handle<P> caller) {
      if (from_.closed()) {
        waiter::outcome = errc::closed;
        return false;
      }
      if (from_.receiver_ != nullptr) refuse_second_receiver();
      if (!enter(caller)) return false;
      from_.receiver_ = this;
      if (deadline_ < from_.when) from_.look_by(deadline_);
      return true;
    }
    mailbox& from_;

   private:
    static void on_cancelled(waiter& self, errc why) noexcept { static_cast<receiver&>(self).finish(why); }
    fits_function fits_;  // null: accepts any message
    time_ns deadline_;
  };

  // One timer serves all receives. It stays armed when a message arrives in time. If it fires too early for the receiver that waits at that
  // time, it is armed again for that receiver's deadline. So a receive with a deadline costs one comparison, unless its deadline is the
  // earliest so far.
  void look_by(time_ns deadline) noexcept {
    timer_wheel::disarm(*this);
    executor_.arm(*this, deadline);
  }
  static void on_time(timer& self) noexcept {
    auto& box = static_cast<mailbox&>(self);
    const time_ns fired = std::exchange(box.when, never);
    if (box.receiver_ == nullptr || box.receiver_->deadline() == never) return;
    if (box.receiver_->deadline() > fired) {
      box.look_by(box.receiver_->deadline());
    } else {
      box.receiver_->finish(errc::timeout);
    }
  }

 public:
  /// `M` is one message type, or `message` for the first message of any type.
  template <class M, class Fits>
  class [[nodiscard]] receiving : private receiver {
   public:
    receiving(mailbox& from, Fits fits, time_ns deadline) noexcept
        : receiver(from, takes_any ? nullptr : &fits_thunk, deadline), fits_(std::move(fits)) {}
    bool await_ready() const noexcept { return false; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      this->home = caller.promise().home;
      return this->home->cancelled() == errc::none && find() == this->from_.size() && this->suspend(caller);
    }
    [[gnu::always_inline]] result<M> await_resume() {
      if (this->waiter::outcome != errc::none) return this->waiter::outcome;
      // The receive was cancelled after it was woken: the message is still in the ring, where the next receive finds it.
      if (const errc why = this->home->cancelled(); why != errc::none) return why;
      const std::uint32_t found = find();
      if (found == this->from_.size()) complain_of_lost_message();
      return this->from_.template extract<M>(found);
    }

   private:
    static constexpr bool takes_any = std::is_same_v<M, message> && std::is_same_v<Fits, any_message>;
    std::uint32_t find() {
      std::uint32_t i = 0;
      if constexpr (takes_any) return i;
      while (i < this->from_.size() && !matches(this->from_.ring_[i])) ++i;
      return i;
    }
    bool matches(const message& m) {
      if constexpr (std::is_same_v<M, message>) {
        return fits_(m);
      } else {
        const M* typed = std::get_if<M>(&m);
        return typed != nullptr && fits_(*typed);
      }
    }
    static bool fits_thunk(receiver& self, const message& m) { return static_cast<receiving&>(self).matches(m); }

    [[no_unique_address]] Fits fits_;
  };

  /// Receives the first message, of any type.
  auto receive(time_ns deadline = never) noexcept {
    return receiving<message, any_message>(*this, any_message{}, deadline);
  }
  /// Receives the first message of type `M` that `fits` accepts; the messages before it stay in the mailbox.
  template <class M, class Fits = any_message>
  auto receive(Fits fits = {}, time_ns deadline = never) noexcept {
    return receiving<M, Fits>(*this, std::move(fits), deadline);
  }

  /// Drops the messages for which `stale` returns true, and returns how many. `dropped` counts all dropped messages.
  template <class Stale>
  std::uint32_t drop_if(Stale&& stale) {
    std::uint32_t count = 0;
    for (std::uint32_t left = ring_.size(); left != 0; --left) {
      message m = ring_.pop();
      if (stale(std::as_const(m))) {
        ++count;
      } else {
        ring_.push(std::move(m));
      }
    }
    dropped_ += count;
    for (std::uint32_t i = 0; i < count; ++i) let_in();
    return count;
  }
  std::uint32_t dropped() const noexcept { return dropped_; }

  /// Ends all waits with `closed` and refuses messages from now on. Messages that are in the mailbox can still be received.
  void close() noexcept {
    limit_ = 0;
    if (receiver_ != nullptr) receiver_->finish(errc::closed);
    while (!senders_.empty()) senders_.front().owner->finish(errc::closed);
  }

 private:
  // Separate functions, so that these error paths do not keep the functions above from being inlined.
  [[noreturn, gnu::cold, gnu::noinline]] static void refuse_second_receiver() {
    raise({errc::bad_argument, "two coroutines receive from one mailbox; let one receive and pass messages on"});
  }
  [[noreturn, gnu::cold, gnu::noinline]] static void complain_of_lost_message() {
    raise({errc::bad_argument, "a message was dropped or received elsewhere while its receiver was being woken"});
  }
  template <class M>
  [[gnu::always_inline]] M extract(std::uint32_t i) {
    message m = i == 0 ? ring_.pop() : ring_.take(i);
    if (!senders_.empty()) let_in();
    if constexpr (std::is_same_v<M, message>) {
      return m;
    } else {
      return std::get<M>(std::move(m));
    }
  }
  void let_in() {
    if (senders_.empty() || ring_.size() >= limit_) return;
    sending& first = *senders_.front().owner;
    first.finish(errc::none);
    put(std::move(first.message_));
  }
  void put(message&& m) {
    ring_.push(std::move(m));
    if (receiver_ != nullptr) receiver_->offer(ring_[ring_.size() - 1]);
  }

  executor& executor_;
  receiver* receiver_ = nullptr;
  intrusive_list<sender_place> senders_;
  [[no_unique_address]] message_ring<message> ring_;  // its tail padding has room for the next member
  std::uint32_t dropped_ = 0;
  std::uint32_t limit_;
};

}  // namespace parley::runtime
