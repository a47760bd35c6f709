#pragma once
/// Runs steps in the order that their buffers require: a step begins when its inputs are ready and no earlier step still uses the buffers
/// that it overwrites. The flow derives this order from the buffers that each step names, and from the order in which the program adds the
/// steps.
///
///     scope& here = co_await this_scope;
///     dataflow flow(here);
///     auto came = exchange.start(flow, {exchange.isend(x, {.to = next}), exchange.irecv(y, {.from = previous})});
///     flow.compute({reads(x), writes(t)}, [&] { t = twice(x); });          // during the exchange
///     auto sum = flow.compute({reads(y), reads(t), writes(out)}, [&] { out = y + t; });    // once y and t are ready
///     co_await sum;                                                        // waits on the host; or co_await came[1]
///     co_await flow.join();
///
/// For each buffer that it reads, a step waits for the last step that wrote the buffer. For each buffer that it writes, a step waits for
/// all earlier steps that use the buffer. Buffers are contiguous ranges; name a single object `s` as `std::span(&s, 1)`. Name every buffer
/// that a step touches: the flow does not order accesses to other memory. Steps that have no buffer in common run at the same time, in any
/// order.
///
/// Computations that name no buffers can be ordered by a compute queue:
///
///     compute_queue queue;
///     came.wait_on(queue);                                       // what is put into the queue from now on runs after it
///     flow.compute({}, kernel, {.queue = &queue});               // ... in the order of the queue
///
/// A computation for a GPU's stream is enqueued at once, even before its input is ready:
///
///     flow.compute({reads(y), writes(a)}, [&](device_stream s) { launch(s, y, a); }, {.stream = stream, .memory = space});
///
/// The stream waits for everything that must come before the computation: messages into the named buffers, kernels of other streams, and
/// steps of the flow that run on the host. Later sends from these buffers, and receives into them, run after the kernels. The host waits
/// for nothing. The work ends when the stream has executed the computation. The buffers must lie in `memory`, like the buffers of the ops.
/// Without a stream the function receives a null stream and computes on the host.
///
/// Failure: if a step's input failed, the step does not run, and fails with a text that names the step to blame. If a step must come after
/// a failed step but uses none of its results, it does run. A device stream does not notice failures, and continues. `join` throws the
/// first failure that no await has thrown yet. After `stop_at_failure`, the first failure cancels the flow. Use `stop_at_failure` if
/// messages are matched only by their order: otherwise a later message could take the place of one that was not sent.
///
/// Cancellation: cancelling a work, or the flow, ends the waits inside its steps. The steps must still be joined, as in a scope.
///
/// Lifetime: a flow that is destroyed unjoined, for example by an exception, is torn down like a scope, and its steps are dropped.
/// `with_dataflow` always joins its flow, and a flow made over an executor cancels and joins its steps in its destructor. Buffers must
/// outlive the flow: make them before the flow, and outside the body of `with_dataflow`.
#include <parley/compute.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/dataflow/buffer_order.hpp>
#include <parley/runtime/dataflow/flow_work.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace parley::runtime {

struct compute_options {
  std::string name = "computation";
  compute_queue* queue = nullptr;
  enum class place : std::uint8_t {
    worker,        ///< on a worker thread, while the actor thread keeps the transports moving
    actor_thread,  ///< on the actor thread, at once: for computations of a few microseconds
  } where = place::worker;
  time_ns modelled_ns = 0;  ///< the computation's duration in virtual time
  /// A stream, such as a cudaStream_t, of the device that `memory` belongs to. The function only enqueues work into it.
  device_stream stream = nullptr;
  memory_space* memory = nullptr;
};

/// A flow. Its base `step_graph` (flow_step.hpp) has `join`, `cancel` and the handling of failures.
class dataflow : public step_graph {
 public:
  explicit dataflow(scope& parent) noexcept;
  explicit dataflow(executor& ex) noexcept;
  ~dataflow();

  /// Adds a computation. `f` takes no argument, or the stream. `f` returns nothing; without a stream it may return a `task<>`.
  template <class F>
  flow_work compute(std::initializer_list<buffer_access> uses, F f, const compute_options& o = {}) {
    return compute(std::span(uses.begin(), uses.size()), std::move(f), o);
  }
  template <class F>
  flow_work compute(std::span<const buffer_access> uses, F f, const compute_options& o = {});
  flow_work add(flow_step_ptr step, std::span<const buffer_access> uses, const step_options& o = {});
  /// Combines several works, or several parts of a batch, into one work.
  flow_work together(const std::vector<flow_work>& works);
  flow_work together(std::span<const flow_part> parts);

 private:
  flow_work enqueue(std::span<const buffer_access> uses, const std::function<void(device_stream)>& f,
                    const compute_options& o);

  enum class at_end : std::uint8_t { torn_down, joined } at_end_;
};

template <class F>
class compute_step final : public flow_step {
 public:
  compute_step(F f, const compute_options& o) : f_(std::move(f)), name_(o.name), where_(o.where), ns_(o.modelled_ns) {}
  std::string title() const override { return name_; }
  task<> run() override {
    if constexpr (is_plain) {
      auto call = [this] { f_(); };
      co_await runtime::compute(call, ns_);
    } else {
      co_await f_();
    }
  }

 private:
  static constexpr bool is_plain = std::is_void_v<std::invoke_result_t<F&>>;
  void go() noexcept override {
    if (is_plain && where_ == compute_options::place::actor_thread) return go_on_later();
    flow_step::go();
  }
  void on_turn() noexcept override {
    if constexpr (is_plain) {
      try {
        f_();
      } catch (...) {
        return end(std::current_exception());
      }
      end();
    }
  }
  F f_;
  std::string name_;
  compute_options::place where_;
  time_ns ns_;
};

template <class F>
flow_work dataflow::compute(std::span<const buffer_access> uses, F f, const compute_options& o) {
  flow_work made;
  if constexpr (std::is_invocable_v<F&, device_stream>) {
    if (o.stream != nullptr) {
      made = enqueue(uses, std::ref(f), o);
    } else {
      auto without = [f = std::move(f)]() mutable { return f(device_stream{}); };
      made = add(new_step<compute_step<decltype(without)>>(std::move(without), o), uses, {.after = o.queue});
    }
  } else {
    made = add(new_step<compute_step<F>>(std::move(f), o), uses, {.after = o.queue});
  }
  if (o.queue != nullptr) o.queue->tail_ = {made.step_};
  return made;
}

/// Runs the coroutine `body(flow, arguments...)` with its own flow. Always joins the flow, even after an exception. Throws the earliest
/// failure (`dataflow::cause_of`).
template <class Body, class... Arguments>
task<> with_dataflow(Body body, Arguments... arguments) {
  scope& here = co_await this_scope;
  dataflow flow(here);
  std::exception_ptr thrown;
  try {
    co_await body(flow, std::forward<Arguments>(arguments)...);
  } catch (...) {
    thrown = flow.cause_of(std::current_exception());
    flow.cancel();
  }
  try {
    co_await flow.join();
  } catch (...) {
    if (!thrown) thrown = std::current_exception();
  }
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace parley::runtime
