#pragma once
/// Steps that run when what they read is there and nobody needs what they overwrite any more: found from the buffers that each
/// one names, in the order in which the program made them.
///
///     scope& here = co_await this_scope;
///     dataflow flow(here);
///     auto came = exchange.start(flow, {exchange.isend(x, {.to = next}), exchange.irecv(y, {.from = previous})});
///     flow.compute({reads(x), writes(t)}, [&] { t = twice(x); });          // beside the exchange
///     auto sum = flow.compute({reads(y), reads(t), writes(out)}, [&] { out = y + t; });    // once y and t are there
///     co_await sum;                                                        // the host wait; or co_await came[1]
///     co_await flow.join();
///
/// A step waits for the last one that wrote what it reads, and for all that use what it writes. What it names are contiguous ranges, a
/// single object `s` as `std::span(&s, 1)`. Names must be complete: what a step touches without naming it is not ordered. Steps that
/// have nothing in common run at once, in any order.
///
/// The second wait is in order with a compute queue, for computations that name no buffers:
///
///     compute_queue queue;
///     came.wait_on(queue);                                       // what is put into the queue from now on comes after it
///     flow.compute({}, kernel, {.queue = &queue});               // ... in the order of the queue
///
/// A GPU's stream is given a computation at once, also before its input is there:
///
///     flow.compute({reads(y), writes(a)}, [&](device_stream s) { launch(s, y, a); }, {.stream = stream, .memory = space});
///
/// The stream waits for what it has to come after: messages into the buffers that it names, other streams' kernels, and steps of the
/// flow that the device knows nothing of. What is sent from there, or received into it, comes after the kernels. The host waits for
/// nothing; the work ends when the stream has come to it. Buffers lie in `memory`, as those of the ops do. Without a stream the
/// function is given none, and computes by itself.
///
/// Failure: a step whose input failed does not run, and fails with a text that names the step to blame. A step that only has to
/// come after a failed one runs. A stream knows of no failures, and goes on. `join` throws the first failure that nobody was told of. After
/// `stop_at_failure` the first one cancels the flow: for messages that are told apart by their order, of which none is to take the place
/// of one that was not sent. Cancellation: of one work, or of the
/// flow, ends the waits inside its steps; they still have to be joined, as in a scope. One that ends
/// unjoined, as when an exception passes, is torn down like a scope; `with_dataflow` joins whatever happens, and one made over an
/// executor joins in its destructor. Buffers outlive the flow: make them before it, and outside of the body of `with_dataflow`.
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
    worker,        ///< a thread, while the actor thread keeps the transports moving
    actor_thread,  ///< at once, for what takes less than some microseconds
  } where = place::worker;
  time_ns modelled_ns = 0;  ///< in virtual time
  /// Of the device whose `memory` the buffers lie in, such as a cudaStream_t: the function only enqueues into it.
  device_stream stream = nullptr;
  memory_space* memory = nullptr;
};

/// Its steps, `join`, `cancel`, and what becomes of failures: `step_graph`, in flow_step.hpp.
class dataflow : public step_graph {
 public:
  explicit dataflow(scope& parent) noexcept;
  explicit dataflow(executor& ex) noexcept;
  ~dataflow();

  /// `f` has no argument, or takes the stream; it answers nothing, or, where there is no stream, a `task<>`.
  template <class F>
  flow_work compute(std::initializer_list<buffer_access> uses, F f, const compute_options& o = {}) {
    return compute(std::span(uses.begin(), uses.size()), std::move(f), o);
  }
  template <class F>
  flow_work compute(std::span<const buffer_access> uses, F f, const compute_options& o = {});
  flow_work add(flow_step_ptr step, std::span<const buffer_access> uses, const step_options& o = {});
  /// Several works as one, or several parts of a batch.
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

/// `body(flow, arguments...)`, a coroutine, over a flow that is joined whatever happens. Throws what came first (`dataflow::cause_of`).
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
