#pragma once
/// The functions of waiters (waiter.hpp) and of tasks' frames (promise.hpp) that need a scope. They are inline, because every wait calls
/// them. parley/scope.hpp includes this header at its end.
#include <parley/runtime/coroutines/promise.hpp>
#include <parley/runtime/coroutines/waiter.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/scope.hpp>

#include <coroutine>
#include <utility>

namespace parley::runtime {

inline bool waiter::enter(scope& s) noexcept {
  home = &s;
  if (s.cancelled_ != errc::none) {
    outcome = s.cancelled_;
    return false;
  }
  s.waiters_.push_back(*this);
  return true;
}

template <class P>
bool waiter::enter(std::coroutine_handle<P> caller) noexcept {
  return enter(*caller.promise().home, caller);
}

inline void waiter::wake(errc why) noexcept {
  unlink();
  outcome = why;
  home->executor_.schedule(next);
}

inline void promise_base::end() noexcept {
  const progress before = std::exchange(state, progress::ended);
  if (observer != nullptr) {
    observer->on_task_end(*this);
  } else if (before == progress::waiting) {
    home->where().schedule(caller);
  }
}

inline void detail::begin_nested(promise_base& child) {
  executor& ex = child.home->where();
  if (!ex.resume_nested(child.self)) ex.schedule(child.self);
}

inline promise_base::~promise_base() {
  if (state == progress::starting || state == progress::waiting) home->where().forget(self);
}

}  // namespace parley::runtime
