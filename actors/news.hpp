#pragma once
/// Wakes coroutines that wait until something may have changed.
///
///     while (!decided()) {
///       auto woken = co_await changed.next(deadline);       // result<>
///       if (!woken) co_return woken.reason();               // `timeout`, or cancelled
///     }
///     changed.tell();                                       // elsewhere: wakes all that wait now
///
/// It says nothing about what has changed. Waits end with `closed` when it ends.
#include <parley/runtime/scope.hpp>
#include <parley/runtime/timers.hpp>

namespace parley::actors {

class news {
 public:
  class [[nodiscard]] waiting : private runtime::waiter, private runtime::timer {
   public:
    waiting(news& of, runtime::time_ns deadline) noexcept : waiter(&on_cancelled), timer(&on_late), of_(of) {
      when = deadline;
    }
    bool await_ready() const noexcept { return false; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      if (when != runtime::never) home->where().arm(*this, when);
      place_.owner = this;
      of_.waiting_.push_back(place_);
      return true;
    }
    runtime::result<> await_resume() const noexcept { return outcome; }

   private:
    friend news;
    struct place : runtime::list_hook {
      waiting* owner = nullptr;
    } place_;
    void finish(runtime::errc why) noexcept {
      place_.unlink();
      runtime::timer_wheel::disarm(*this);
      wake(why);
    }
    static void on_cancelled(waiter& self, runtime::errc why) noexcept { static_cast<waiting&>(self).finish(why); }
    static void on_late(timer& self) noexcept { static_cast<waiting&>(self).finish(runtime::errc::timeout); }
    news& of_;
  };

  news() noexcept = default;
  news(const news&) = delete;
  news& operator=(const news&) = delete;
  ~news() { wake_all(runtime::errc::closed); }

  waiting next(runtime::time_ns deadline) noexcept { return {*this, deadline}; }
  void tell() noexcept { wake_all(runtime::errc::none); }

 private:
  void wake_all(runtime::errc why) noexcept {
    while (!waiting_.empty()) waiting_.front().owner->finish(why);
  }
  runtime::intrusive_list<waiting::place> waiting_;
};

}  // namespace parley::actors
