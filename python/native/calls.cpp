#include "calls.hpp"

#include <parley/scope.hpp>

namespace parley::python {

using runtime::errc;
using runtime::error;
using runtime::task;

std::chrono::nanoseconds span_of(seconds s, std::chrono::nanoseconds otherwise) {
  if (!s) return otherwise;
  constexpr double longest_s = 1e9;
  if (!(*s > 0)) runtime::raise({errc::bad_argument, "a timeout is a number of seconds above 0; None: the op's own"});
  return std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(*s, longest_s) * 1e9));
}

kept_object kept(nb::object o) {
  return {new nb::object(std::move(o)), [](nb::object* held) {
            const nb::gil_scoped_acquire with_gil;
            delete held;
          }};
}

void home::let_go() {
  for (const auto& each : std::exchange(kept_objects, {}))
    if (const kept_object still = each.lock()) still->reset();
}

void home::check() const {
  if (has_left) runtime::raise({errc::closed, "this rank has left its job"});
  if (std::this_thread::get_id() != owner)
    runtime::raise({errc::bad_argument, "a rank belongs to the thread that joined the job; call it from that thread"});
}

std::function<void()> call::telling(std::shared_ptr<endings> all) {
  return [all = std::move(all)] {
    all->is_over = true;
    all->told.tell();
    if (all->functions.empty()) return;
    const nb::gil_scoped_acquire held;
    for (const nb::callable& f : std::exchange(all->functions, {})) {
      try {
        f();
      } catch (nb::python_error& e) {
        e.discard_as_unraisable("a function that was called at the end of a call of parley");
      }
    }
  };
}

void call::on_end(nb::callable f) {
  where_->check();
  if (!endings_->is_over) {
    endings_->functions.push_back(std::move(f));
  } else {
    f();
  }
}

task<> call::ended() {
  const std::shared_ptr<endings> mine = endings_;  // the call may end its life meanwhile
  while (!mine->is_over) {
    if (const auto woken = co_await mine->told.next(runtime::never); !woken) runtime::raise(woken.reason());
  }
}

bool call::test() {
  where_->check();
  if (done()) return true;
  const nb::gil_scoped_release free;
  return advance();
}

task<> pause(std::chrono::nanoseconds span) {
  const auto woken = co_await runtime::sleep_for(span);
  if (!woken) runtime::raise(woken.reason());
}

nb::object call::wait() {
  where_->check();
  // A short message ends within so many turns. A longer wait sleeps, and a timer wakes it to look for signals.
  constexpr int most_looks = 64;
  constexpr std::chrono::milliseconds between_signals(20);
  for (bool is_long = false; !done(); is_long = true) {
    {
      const nb::gil_scoped_release free;
      if (is_long) {
        auto tick = runtime::start(where_->loop, pause(between_signals));
        runtime::run_until(where_->loop, [&] { return done() || tick.done(); });
      } else {
        for (int i = 0; i < most_looks && !advance(); ++i) {}
      }
    }
    if (PyErr_CheckSignals() == 0) continue;
    cancel();
    throw nb::python_error();
  }
  return take();
}

bool& is_driven() noexcept {
  static thread_local bool now = false;
  return now;
}

void add_calls(nb::module_& m) {
  m.def("is_driven", [] { return is_driven(); });
  nb::class_<home>(m, "Loop", "The loop of a rank, for programs that have a loop of their own.")
      .def(
          "poll",
          [](home& h) {
            h.check();
            const nb::gil_scoped_release free;
            return h.poll();
          },
          "One turn. True: there is nothing to do until `fileno()` becomes readable.")
      .def("fileno", &home::descriptor);

  nb::class_<awaited>(m, "Awaited",
                      "What a coroutine awaits while parley runs it: a call, or a part of a config's payload.");
  nb::class_<call, awaited>(m, "Work", "A call under way. It keeps its buffers alive until it has ended.")
      .def("done", &call::done, "True if the call has ended. Does not drive the loop.")
      .def("test", &call::test, "One turn of the loop; true if the call has ended.")
      .def("wait", &call::wait, nb::sig("def wait(self) -> typing.Any"),
           "Waits until the call has ended. Returns its result, or raises its error.")
      .def("cancel", &call::cancel, "Ends the call's waits. The call still has to be waited for.")
      .def("take", &call::take, nb::sig("def take(self) -> typing.Any"),
           "The result of a call that has ended. It can be taken once.")
      .def("on_end", &call::on_end, nb::arg("f"),
           nb::sig("def on_end(self, f: collections.abc.Callable[[], object]) -> None"),
           "Calls `f()` from the loop once the call has ended.")
      .def_prop_ro("loop", &call::where)
      .def(
          "__await__", [](nb::handle self) { return nb::module_::import_("parley._await").attr("steps")(self); },
          nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, typing.Any, typing.Any]"));
}

}  // namespace parley::python
