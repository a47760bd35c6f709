#pragma once
/// Runs an executor from ordinary code.
///
///     int answer = run(clock, compute_answer());     // until the task has ended; its exception comes out
///     run_until(clock, [&] { return seen == 3; });   // until something holds
///
/// Throws `closed` when nothing can happen any more, because the wait would last for ever.
#include <parley/error.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/runtime/time/executor.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <optional>
#include <type_traits>

namespace parley::runtime {

template <class Predicate>
void run_until(executor& ex, Predicate&& holds) {
  while (!holds()) {
    if (!ex.turn() && !holds() && !ex.wait())
      raise({errc::closed,
             "nothing can end this wait any more: there is no timer, no transport and no coroutine that is ready"});
  }
}

template <class T>
T run(executor& ex, task<T>&& main) {
  struct ended final : task_observer {
    void on_task_end(promise_base&) noexcept override { done = true; }
    bool done = false;
  } end;
  // The scope must outlive the frame, whose waits are linked into it.
  scope root(ex);
  const typename task<T>::handle frame = std::move(main).release();
  const finally over([frame] { frame.destroy(); });
  auto& promise = frame.promise();
  promise.home = &root;
  promise.observer = &end;
  begin_in_order(ex, promise);
  run_until(ex, [&] { return end.done; });
  return promise.take();
}

}  // namespace parley::runtime
