#pragma once
/// Wakes coroutines that wait until something may have changed.
///
///     while (!decided()) {
///       auto woken = co_await changed.next(deadline);       // result<>
///       if (!woken) co_return woken.reason();               // `timeout`, or cancelled
///     }
///     changed.tell();                                       // elsewhere: wakes all that wait now
///
/// `tell` does not say what has changed, so each waiter checks its condition again. When the `news` is destroyed, all waits end with
/// `closed`.
#include <parley/runtime/time/timers.hpp>
#include <parley/scope.hpp>

namespace parley::runtime {

class news {
 public:
  class [[nodiscard]] waiting : private waiter, private timer {
   public:
    waiting(news& of, time_ns deadline) noexcept : waiter(&on_cancelled), timer(&on_late), of_(of) { when = deadline; }
    bool await_ready() const noexcept { return false; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      if (when != never) home->where().arm(*this, when);
      place_.owner = this;
      of_.waiting_.push_back(place_);
      return true;
    }
    result<> await_resume() const noexcept { return outcome; }

   private:
    friend news;
    struct place : list_hook {
      waiting* owner = nullptr;
    } place_;
    void finish(errc why) noexcept {
      place_.unlink();
      timer_wheel::disarm(*this);
      wake(why);
    }
    static void on_cancelled(waiter& self, errc why) noexcept { static_cast<waiting&>(self).finish(why); }
    static void on_late(timer& self) noexcept { static_cast<waiting&>(self).finish(errc::timeout); }
    news& of_;
  };

  news() noexcept = default;
  news(const news&) = delete;
  news& operator=(const news&) = delete;
  ~news() { wake_all(errc::closed); }

  waiting next(time_ns deadline) noexcept { return {*this, deadline}; }
  void tell() noexcept { wake_all(errc::none); }

 private:
  void wake_all(errc why) noexcept {
    while (!waiting_.empty()) waiting_.front().owner->finish(why);
  }
  intrusive_list<waiting::place> waiting_;
};

}  // namespace parley::runtime
