#pragma once
/// A wait for the work of a stream: `auto ended = co_await reached(copies, stream);`. parley/cuda_copies.hpp includes it.
#include <parley/runtime/wire/link.hpp>
#include <parley/scope.hpp>
#include <parley/transports/cuda/cuda_driver.hpp>

#include <coroutine>
#include <utility>

namespace parley::transports {

class cuda_copies;

/// Waits until all work that was in the stream has finished; the result may be `device_failed`. A cancelled wait ends at once; the stream
/// continues.
class [[nodiscard]] reached : private runtime::waiter, private runtime::completion {
 public:
  reached(cuda_copies& copies, cuda_stream stream) noexcept
      : waiter(&on_cancelled), completion(&on_reached), copies_(copies), stream_(stream) {}
  ~reached() {
    if (watching_) forget();
  }
  bool await_ready() const noexcept { return false; }
  template <class P>
  bool await_suspend(std::coroutine_handle<P> caller) {
    if (!enter(caller)) return false;
    watch();
    if (!watching_) unlink();
    return watching_;
  }
  runtime::result<> await_resume() const;

 private:
  void watch() noexcept;
  void forget() noexcept;
  static void on_reached(completion& self, runtime::errc how) noexcept {
    auto& me = static_cast<reached&>(self);
    me.watching_ = false;
    me.wake(how);
  }
  static void on_cancelled(waiter& self, runtime::errc why) noexcept {
    auto& me = static_cast<reached&>(self);
    if (std::exchange(me.watching_, false)) me.forget();
    me.wake(why);
  }
  cuda_copies& copies_;
  cuda_stream stream_;
  bool watching_ = false;
};

}  // namespace parley::transports
