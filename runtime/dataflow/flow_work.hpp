#pragma once
/// The handle of work that was started in a flow (dataflow.hpp): await it, wait for it, cancel it, or order a compute queue
/// after it.
///
///     flow_work both = exchange.start(flow, {…});
///     co_await both[1];                          // one of a batch; throws what it failed with
///     both.wait_on(queue);                       // what is put into the queue from now on comes after both
///     both.wait();                               // in code that is no coroutine: drives the loop
#include <parley/runtime/dataflow/flow_step.hpp>

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace parley::runtime {

/// Started work: one step, or a batch of several. Dropping the handle changes nothing: the flow joins its steps.
class flow_work {
 public:
  flow_work() noexcept = default;
  flow_work(flow_work&&) noexcept = default;
  flow_work& operator=(flow_work&&) noexcept = default;

  std::size_t size() const noexcept;
  /// One part of a batch, by its index.
  flow_work operator[](std::size_t i) const;
  bool done() const noexcept { return end() == nullptr || end()->open == 0; }
  /// True if no part of the work runs any more: it is done, or its flow has ended without it.
  bool over() const noexcept;
  /// True if it is over, and has failed or was dropped.
  bool failed() const noexcept { return over() && end() != nullptr && (!done() || end()->thrown != nullptr); }
  /// Another handle to the same work, for code that has to know later whether the work is done.
  flow_work share() const noexcept;
  /// Runs one turn of the loop; returns true if the work has ended. For code outside coroutines.
  bool test();
  /// Runs the loop until the work has ended; throws the work's failure. For code outside coroutines.
  void wait();
  result<> outcome();
  /// The number of bytes moved by its sends and receives, once they have ended.
  std::uint64_t bytes() const noexcept;
  /// Ends the work's waits with `why`. The work ends when the transports have released its buffers.
  void cancel(errc why = errc::cancelled) noexcept;
  /// Computations that are put into `queue` from now on begin after this work has ended.
  void wait_on(compute_queue& queue) const;

  class [[nodiscard]] awaiter : private waiter {
   public:
    explicit awaiter(const flow_work& of) noexcept : waiter(&on_cancelled), of_(of) {}
    bool await_ready() const noexcept { return of_.done(); }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) {
      if (!enter(caller)) return false;
      of_.end()->awaiting.push_back(place_);
      wait_.begin(home->meter());
      return true;
    }
    void await_resume() {
      wait_.end();
      if (!of_.done()) raise(outcome);
      of_.take();
    }

   private:
    static void on_cancelled(waiter& self, errc why) noexcept {
      static_cast<awaiter&>(self).place_.unlink();
      self.wake(why);
    }
    const flow_work& of_;
    flow_end::awaited place_{*this};
    work_meter::wait wait_;
  };
  /// Waits until all of it has ended; throws the first failure.
  awaiter operator co_await() const {
    check_not_moved();
    return awaiter(*this);
  }

 private:
  friend class dataflow;
  flow_work(executor& where, flow_step_ptr step) noexcept : where_(&where), step_(std::move(step)) {}
  flow_work(executor& where, boost::intrusive_ptr<flow_batch> batch) noexcept
      : where_(&where), batch_(std::move(batch)) {}
  flow_end* end() const noexcept {
    return batch_ != nullptr ? static_cast<flow_end*>(batch_.get()) : static_cast<flow_end*>(step_.get());
  }
  template <class Visit>
  void for_each_step(const Visit& visit) const {
    if (step_ != nullptr) visit(step_);
    if (batch_ == nullptr) return;
    for (const flow_batch::part& p : batch_->parts()) {
      if (p.is.step != nullptr) visit(p.is.step);
    }
  }
  void take() const;
  void check_not_moved() const;
  void outside_coroutines() const;
  executor* where_ = nullptr;
  flow_step_ptr step_;  // null if it is a batch
  boost::intrusive_ptr<flow_batch> batch_;
};

}  // namespace parley::runtime
