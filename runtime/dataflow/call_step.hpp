#pragma once
/// A step of a flow that is a single call, such as a send, and needs no coroutine: the call notifies the step when it ends.
///
///     class send_step final : public call_step<send_call> {
///       void go() noexcept override { begin(edge_, bytes_, options_); }             // what the call is made of
///       void take(send_call& over) override { over.await_resume(); }                // its result; may throw
///       …
///     };
///
/// A `Call` is an awaitable that can also be used without a coroutine: `suspend(scope&, continuation)`. `cancel(why)` ends the wait of this
/// call alone. The step holds its call from the step's turn on.
#include <parley/runtime/dataflow/flow_step.hpp>

#include <exception>
#include <optional>
#include <utility>

namespace parley::runtime {

template <class Call>
class call_step : public flow_step {
 protected:
  template <class... Arguments>
  void begin(Arguments&&... arguments) noexcept {
    try {
      call_.emplace(std::forward<Arguments>(arguments)...);
      if (!call_->await_ready() && call_->suspend(home(), as_continuation())) return;
    } catch (...) {
      return fail(std::current_exception());
    }
    on_turn();
  }
  /// Takes the call's result; throws the call's failure.
  virtual void take(Call& over) = 0;

 private:
  void on_turn() noexcept final {
    try {
      take(*call_);
    } catch (...) {
      return fail(std::current_exception());
    }
    call_.reset();
    end();
  }
  void fail(std::exception_ptr why) noexcept {
    call_.reset();
    end(std::move(why));
  }
  void on_cancelled(errc why) noexcept final {
    if (call_) call_->cancel(why);
  }
  void on_torn_down() noexcept final { call_.reset(); }

  std::optional<Call> call_;
};

}  // namespace parley::runtime
