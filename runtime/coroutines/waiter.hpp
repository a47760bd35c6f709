#pragma once
/// A wait that its scope can cancel:
///
///     class [[nodiscard]] my_wait : private waiter {
///       my_wait() : waiter(&on_cancelled) {}
///       template <class P> bool await_suspend(std::coroutine_handle<P> caller) { return enter(caller) && start(); }
///       void on_event() { wake(errc::none); }              // the coroutine goes on
///       static void on_cancelled(waiter& self, errc why) noexcept { static_cast<my_wait&>(self).wake(why); }
///     };
#include <parley/error.hpp>
#include <parley/runtime/intrusive_list.hpp>
#include <parley/runtime/time/executor.hpp>

#include <coroutine>

namespace parley::runtime {

class scope;

/// A wait that a scope can cancel. The waiter is a part of the frame of the coroutine that waits. Its destructor removes it from all lists,
/// so that the frame can be destroyed at any time.
struct waiter : list_hook {
  using function = void (*)(waiter& self, errc why) noexcept;
  explicit waiter(function f) noexcept : on_cancel(f) {}

  /// Enters the caller's scope. Returns false, and sets `outcome`, if that scope has been cancelled already.
  template <class P>
  bool enter(std::coroutine_handle<P> caller) noexcept;
  /// Like the other `enter`, for the continuation `who` in the scope `s`.
  bool enter(scope& s, continuation who) noexcept {
    next = who;
    return enter(s);
  }
  /// For a waiter without a continuation: cancelling the scope only calls `on_cancel`.
  bool enter(scope& s) noexcept;
  /// Leaves the scope, and schedules the continuation with the outcome `why`.
  void wake(errc why) noexcept;

  function on_cancel;
  continuation next;
  scope* home = nullptr;
  errc outcome = errc::none;
};

}  // namespace parley::runtime
