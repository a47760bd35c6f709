#pragma once
/// Requests and replies between actors. A question carries a `reply_to`; the actor that has the question may reply once, at any place in
/// its code.
///
///     struct price { int item; reply_to<int> reply; };
///     auto answer = co_await ask(shop, price{7, {}}, ex.deadline_in(5_ms));     // result<int>
///     // in the shop:   m.reply.send(42);
///
/// The asker gets `timeout` at its deadline, `full` or `closed` when the actor's mailbox refuses the question, and `closed` when the
/// actor ends before it has read the question. A later answer is dropped, and `send` returns false. A `reply_to` must not outlive its
/// executor.
#include <parley/scope.hpp>

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

namespace parley::runtime {

/// A wait for one answer; the executor finds it by number.
class pending_reply : public waiter, public timer {
 public:
  void refuse(errc why) noexcept { finish(why); }

 protected:
  explicit pending_reply(time_ns deadline) noexcept : waiter(&on_cancelled), timer(&on_late) { when = deadline; }
  ~pending_reply() {
    if (open_ != nullptr) open_->close_reply(number_);
  }
  pending_reply(const pending_reply&) = delete;
  pending_reply& operator=(const pending_reply&) = delete;
  std::uint64_t open(executor& ex) {
    open_ = &ex;
    number_ = ex.open_reply(*this);
    return number_;
  }
  void finish(errc why) noexcept {
    std::exchange(open_, nullptr)->close_reply(number_);
    timer_wheel::disarm(*this);
    wake(why);
  }

 private:
  static void on_cancelled(waiter& self, errc why) noexcept { static_cast<pending_reply&>(self).finish(why); }
  static void on_late(timer& self) noexcept { static_cast<pending_reply&>(self).finish(errc::timeout); }
  executor* open_ = nullptr;
  std::uint64_t number_ = 0;
};

template <class R>
class pending_answer : public pending_reply {
 public:
  using pending_reply::pending_reply;
  void answer(R&& value) {
    value_.emplace(std::move(value));
    this->finish(errc::none);
  }

 protected:
  std::optional<R> value_;
};

template <class R>
class reply_to {
 public:
  using value_type = R;
  reply_to() noexcept = default;
  reply_to(executor& ex, std::uint64_t number) noexcept : executor_(&ex), number_(number) {}
  /// Returns false if the asker no longer waits.
  bool send(R value) const {
    pending_reply* waiting = executor_ == nullptr ? nullptr : executor_->find_reply(number_);
    if (waiting == nullptr) return false;
    static_cast<pending_answer<R>*>(waiting)->answer(std::move(value));
    return true;
  }
  /// Ends the asker's wait with `why`: there will be no answer.
  void refuse(errc why) const noexcept {
    if (pending_reply* waiting = executor_ == nullptr ? nullptr : executor_->find_reply(number_)) waiting->refuse(why);
  }

 private:
  executor* executor_ = nullptr;
  std::uint64_t number_ = 0;
};

template <class R, class Address, class Question>
class [[nodiscard]] asking : private pending_answer<R> {
 public:
  asking(Address to, Question question, time_ns deadline)
      : pending_answer<R>(deadline), to_(std::move(to)), question_(std::move(question)) {}
  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) {
    executor& ex = caller.promise().home->where();
    if (!this->enter(caller)) return false;
    question_.reply = reply_to<R>(ex, this->open(ex));
    if (this->when != never) ex.arm(*this, this->when);
    const errc sent = to_.try_send(std::move(question_));
    if (sent != errc::none) this->finish(sent);
    return true;
  }
  result<R> await_resume() {
    if (this->outcome != errc::none) return this->outcome;
    return std::move(*this->value_);
  }

 private:
  Address to_;
  Question question_;
};

/// Refuses a question that will not be read, with `closed`. Other messages need no answer.
template <class M>
void refuse_unread(const M& message) noexcept {
  if constexpr (requires { message.reply.refuse(errc::closed); }) message.reply.refuse(errc::closed);
}
template <class... Ms>
void refuse_unread(const std::variant<Ms...>& message) noexcept {
  std::visit([](const auto& m) { refuse_unread(m); }, message);
}

/// Puts a fresh `reply_to` into `question.reply`, sends it, and waits for the answer.
template <class Address, class Question>
auto ask(Address to, Question question, time_ns deadline) {
  using answer = typename decltype(Question::reply)::value_type;
  return asking<answer, Address, Question>(std::move(to), std::move(question), deadline);
}

}  // namespace parley::runtime
