#include "functions.hpp"
#include "halo.hpp"
#include "ops.hpp"

#include <parley/dataflow.hpp>
#include <parley/news.hpp>
#include <parley/runtime/finally.hpp>

#include <string>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;
using runtime::task;

namespace {

/// A flow, as long as its coroutine runs. Destroyed with the GIL.
struct flow_state {
  runtime::dataflow* flow = nullptr;
  runtime::news closing_news{};
  bool is_closing = false;
  std::size_t waiters = 0;    // that must end before the flow does
  std::vector<keep> keeps{};  // what its steps use
  thrown_ptr exceptions = std::make_shared<thrown>();
};
using state_ptr = std::shared_ptr<flow_state>;
state_ptr new_state() {
  const state_ptr made(new flow_state, [](flow_state* s) {
    const with_gil gil;
    delete s;
  });
  made->exceptions->op = made.get();
  return made;
}

/// Owns the flow until nobody needs it any more. A cancelled flow ends its steps first.
task<> keep_flow(state_ptr s) {
  runtime::scope& here = co_await runtime::this_scope;
  runtime::dataflow flow(here);
  s->flow = &flow;
  const runtime::finally over([&s] { s->flow = nullptr; });  // also if the rank dies
  while (!s->is_closing) {
    const auto woken = co_await s->closing_news.next(runtime::never);
    if (!woken) break;
  }
  s->flow = nullptr;
  try {
    co_await flow.join();
  } catch (...) {  // `join` of the program has thrown it, or nobody wants to know
  }
  while (s->waiters != 0) co_await runtime::yield;
}

/// Counts a coroutine that waits for something of the flow.
struct waiter_of {
  explicit waiter_of(flow_state& s) : state(s) { ++state.waiters; }
  waiter_of(const waiter_of&) = delete;
  waiter_of& operator=(const waiter_of&) = delete;
  ~waiter_of() { --state.waiters; }
  flow_state& state;
};

task<> join_flow(state_ptr s) {
  const waiter_of mine(*s);
  if (s->flow != nullptr) co_await s->flow->join();
}

task<> wait_for_step(state_ptr s, std::shared_ptr<runtime::flow_work> step) {
  const waiter_of mine(*s);
  co_await *step;
}

/// The exception of the program comes out, and not the error that stands for it.
struct flow_result {
  state_ptr state;
  nb::object operator()() const {
    if (state->flow != nullptr && state->flow->running() == 0) state->keeps.clear();
    return nb::none();
  }
  void failed(const runtime::error& why) const { state->exceptions->rethrow(why); }
};
struct step {
  rank_ptr where;
  state_ptr state;
  std::shared_ptr<runtime::flow_work> work;
};

std::unique_ptr<call> iwait(step& s) { return begin(s.where, wait_for_step(s.state, s.work), flow_result{s.state}); }

class flow {
 public:
  explicit flow(rank_ptr where) : where_(std::move(where)) { keeper_ = begin(where_, keep_flow(state_)); }
  flow(const flow&) = delete;
  flow& operator=(const flow&) = delete;
  ~flow() {
    if (where_->has_left) return;  // its coroutine has ended
    const hold held(*where_);
    close();
  }

  step compute(nb::object f, const std::vector<nb::object>& reads, const std::vector<nb::object>& writes,
               const std::vector<nb::object>& updates, const std::string& name) {
    const hold held = where_->check();
    runtime::dataflow& here = open();
    const function mine(std::move(f), "f");
    mine.check_worker();
    std::vector<runtime::buffer_access> uses;
    const auto add = [&](const std::vector<nb::object>& all, runtime::buffer_use use, const char* what) {
      for (const nb::object& each : all) {
        const buffer b = memory_of(each, use == runtime::buffer_use::read ? access::reads : access::writes, what);
        uses.push_back({b.bytes, use});
        state_->keeps.push_back(b.owner);
      }
    };
    add(reads, runtime::buffer_use::read, "reads");
    add(writes, runtime::buffer_use::write, "writes");
    add(updates, runtime::buffer_use::update, "updates");
    runtime::compute_options o;
    o.name = name;
    auto run = [mine, exceptions = state_->exceptions] { return run_function(mine, exceptions); };
    return made(here.compute(std::span<const runtime::buffer_access>(uses), std::move(run), o));
  }
  step exchange(p2p& p, const std::vector<const p2p_operation*>& batch, seconds timeout) {
    const hold held = where_->check();
    runtime::dataflow& here = open();
    const auto all = operations_of(p, batch, state_->keeps);
    if (p.memory.is_gpu())
      runtime::raise({errc::bad_argument, "a flow exchanges batches of host memory, and this P2P was made with "
                                          "device=\"cuda\"; start its batches with `start(batch, stream=…)`"});
    return made(
        p.op.start(here, std::span<const ops::p2p_operation>(all), {.timeout = span_of(timeout, runtime::no_timeout)}));
  }
  step exchange_plan(halo_plan& plan) {
    const hold held = where_->check();
    runtime::dataflow& here = open();
    state_->keeps.insert(state_->keeps.end(), plan.keeps.begin(), plan.keeps.end());
    state_->keeps.push_back(plan.plan);
    return made(plan.plan->start(here));
  }
  std::unique_ptr<call> ijoin() {
    const hold held = where_->check();
    static_cast<void>(open());
    auto made = begin(where_, join_flow(state_), flow_result{state_});
    made->op = state_.get();
    return made;
  }
  void cancel() {
    const hold held = where_->check();
    open().cancel();
  }
  /// It takes no more steps; those that are there go on.
  void close() noexcept {
    state_->is_closing = true;
    state_->closing_news.tell();
  }
  const rank_ptr& where() const noexcept { return where_; }

 private:
  runtime::dataflow& open() const {
    if (state_->flow == nullptr || state_->is_closing)
      runtime::raise({errc::closed, "this flow has ended; make another one for more steps"});
    return *state_->flow;
  }
  step made(runtime::flow_work work) const {
    return {where_, state_, std::make_shared<runtime::flow_work>(std::move(work))};
  }
  rank_ptr where_;
  state_ptr state_ = new_state();
  std::unique_ptr<call> keeper_;
};

std::unique_ptr<call> ijoin(flow& f) { return f.ijoin(); }

}  // namespace

void add_dataflow(nb::module_& m) {
  const auto none = nb::none();
  const std::vector<nb::object> nothing;
  nb::class_<step>(m, "FlowStep", "A step of a flow, or a batch of messages. Dropping it changes nothing.")
      .def(
          "done", [](const step& s) { return s.work->done(); }, "True if it has ended. Does not drive the loop.")
      .def("iwait", &iwait, "Waits for this step alone, as a `Work`.")
      .def("wait", waits(&iwait), nb::sig("def wait(self) -> None"),
           "Waits until the step has ended; raises its error.")
      .def(
          "__await__", [](step& s) { return nb::cast(iwait(s)).attr("__await__")(); },
          nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, typing.Any, None]"));

  nb::class_<flow>(m, "Dataflow")
      .def(nb::init<rank_ptr>(), nb::arg("rank"))
      .def("compute", &flow::compute, nb::arg("f"), nb::arg("reads") = nothing, nb::arg("writes") = nothing,
           nb::arg("updates") = nothing, nb::arg("name") = "computation",
           nb::sig("def compute(self, f: collections.abc.Callable[[], object], "
                   "reads: collections.abc.Sequence[object] = (), writes: collections.abc.Sequence[object] = (), "
                   "updates: collections.abc.Sequence[object] = (), name: str = 'computation') -> FlowStep"),
           "Adds `f()`, which begins once earlier steps have written what it `reads` or `updates`, and no longer use "
           "what it `writes` or `updates`. Name every buffer that it touches. A plain function runs on a worker "
           "thread; an `async def` may await calls of the rank. `name` is for errors.")
      .def("exchange", &flow::exchange, nb::arg("messages"), nb::arg("batch"), nb::arg("timeout") = none,
           "Adds a batch of sends and receives of a `P2P`. A send waits until its buffer is written, and a receive "
           "until nobody needs the old content.")
      .def("exchange", &flow::exchange_plan, nb::arg("plan"),
           "Adds an exchange of halos. Steps that name ghosts wait for it.")
      .def("ijoin", &ijoin, "Waits for all steps, as a `Work`.")
      .def("join", waits(&ijoin), nb::sig("def join(self) -> None"),
           "Waits until all steps have ended. Raises the first error that no `wait` has raised.")
      .def("cancel", &flow::cancel, "Ends the waits of all steps.")
      .def(
          "close",
          [](flow& f) {
            const hold held(*f.where());
            f.close();
          },
          "The flow takes no more steps; those that are there go on.");
}

}  // namespace parley::python
