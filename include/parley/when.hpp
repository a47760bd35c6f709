#pragma once
/// Waits for several tasks at once.
///
///     auto [a, b]  = co_await when_all(left(), right());           // both values
///     auto first   = co_await when_any(reply(), sleep(5_ms));      // first.index() says which one ended first
///     auto in_time = co_await with_deadline(ex.deadline_in(5_ms), work());   // result<T>: timeout when it took longer
///
/// All tasks have ended when the wait ends. `when_all` rethrows the first exception after cancelling the other tasks. `when_any` cancels
/// the losers at the moment when the first task ends, so a loser that waits for a message leaves the message where it is. The results and
/// exceptions of the losers are dropped. Cancelling the caller's scope cancels all tasks.
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace parley::runtime {

namespace detail {
template <class T>
using value_or_nothing = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class T>
value_or_nothing<T> take(typename task<T>::handle h) {
  if constexpr (std::is_void_v<T>) {
    h.promise().take();
    return {};
  } else {
    return h.promise().take();
  }
}
}  // namespace detail

/// The tasks of one wait, in their own scope.
template <class... Ts>
class gathering : private task_observer {
 public:
  static_assert(sizeof...(Ts) > 0, "there is nothing to wait for");
  enum class until : std::uint8_t { all, first };

  gathering(until rule, time_ns deadline, task<Ts>&&... tasks)
      : rule_(rule), deadline_(deadline), tasks_(std::move(tasks).release()...) {}
  gathering(gathering&&) = delete;

  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) {
    inner_.emplace(*caller.promise().home, scope::options{deadline_});
    caller_ = caller;
    std::apply([this](auto... h) { (this->start(h), ...); }, tasks_);
    return true;
  }

 private:
  until rule_;
  time_ns deadline_;
  std::coroutine_handle<> caller_;
  std::size_t ended_ = 0;

 protected:
  ~gathering() {
    std::apply([](auto... h) { ((h ? h.destroy() : void()), ...); }, tasks_);
  }
  static constexpr std::size_t npos = static_cast<std::size_t>(-1);
  std::tuple<typename task<Ts>::handle...> tasks_;
  std::size_t first_ = npos;
  std::optional<scope> inner_;

 private:
  template <class H>
  void start(H h) {
    promise_base& p = h.promise();
    p.home = &*inner_;
    p.observer = this;
    begin_in_order(inner_->where(), p);
  }
  void on_task_end(promise_base& ended) noexcept override {
    if (first_ == npos && (rule_ == until::first || ended.thrown)) {
      std::size_t index = 0;
      std::apply([&](auto... h) { ((h == ended.self ? void(first_ = index) : void(++index)), ...); }, tasks_);
      inner_->cancel();
    }
    if (++ended_ == sizeof...(Ts)) inner_->where().schedule(caller_);
  }
};

template <class... Ts>
class [[nodiscard]] when_all final : public gathering<Ts...> {
 public:
  explicit when_all(task<Ts>&&... tasks) : gathering<Ts...>(gathering<Ts...>::until::all, never, std::move(tasks)...) {}
  std::tuple<detail::value_or_nothing<Ts>...> await_resume() {
    std::size_t index = 0;
    const auto rethrow = [&](auto h) {
      if (index++ == this->first_) std::rethrow_exception(h.promise().thrown);
    };
    std::apply([&](auto... h) { (rethrow(h), ...); }, this->tasks_);
    return std::apply([](auto... h) { return std::tuple<detail::value_or_nothing<Ts>...>(detail::take<Ts>(h)...); },
                      this->tasks_);
  }
};

/// Accepts also values that convert to a task, such as the calls of an op.
template <class... As>
when_all(As&&...) -> when_all<typename std::remove_cvref_t<As>::value_type...>;

/// The value is a variant with one alternative per task, `std::monostate` for `void`.
template <class... Ts>
class [[nodiscard]] when_any final : public gathering<Ts...> {
 public:
  explicit when_any(task<Ts>&&... tasks)
      : gathering<Ts...>(gathering<Ts...>::until::first, never, std::move(tasks)...) {}
  std::variant<detail::value_or_nothing<Ts>...> await_resume() { return take_first<0>(); }

 private:
  template <std::size_t I>
  std::variant<detail::value_or_nothing<Ts>...> take_first() {
    using outcome = std::variant<detail::value_or_nothing<Ts>...>;
    if constexpr (I + 1 < sizeof...(Ts)) {
      if (this->first_ != I) return take_first<I + 1>();
    }
    using T = std::tuple_element_t<I, std::tuple<Ts...>>;
    return outcome(std::in_place_index<I>, detail::take<T>(std::get<I>(this->tasks_)));
  }
};

template <class... As>
when_any(As&&...) -> when_any<typename std::remove_cvref_t<As>::value_type...>;

/// A task that must end by a point in time. The error is the `failure` that the task threw: `timeout` if the deadline ended one of its
/// waits. Other exceptions are rethrown.
template <class T>
class [[nodiscard]] with_deadline final : public gathering<T> {
 public:
  with_deadline(time_ns deadline, task<T>&& bounded)
      : gathering<T>(gathering<T>::until::all, deadline, std::move(bounded)) {}
  result<T> await_resume() {
    try {
      if constexpr (std::is_void_v<T>) {
        std::get<0>(this->tasks_).promise().take();
        return {};
      } else {
        return std::get<0>(this->tasks_).promise().take();
      }
    } catch (const failure& f) {
      return f.reason();
    }
  }
};

template <class A>
with_deadline(time_ns, A&&) -> with_deadline<typename std::remove_cvref_t<A>::value_type>;

}  // namespace parley::runtime
