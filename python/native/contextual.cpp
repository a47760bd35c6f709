#include "functions.hpp"

#include <parley/contextual.hpp>
#include <parley/news.hpp>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace parley::python {

using runtime::errc;
using runtime::rank_id;
using runtime::task;

namespace {

struct contextual {
  rank_ptr where;
  std::shared_ptr<ops::contextual> op;  // calls refer to it
};

contextual make_contextual(const rank_ptr& where, const std::string& name, const std::vector<rank_id>& ranks,
                           std::size_t iterations, std::size_t warm_ups, const std::string& order, bool share,
                           const std::string& log_folder, seconds timeout) {
  const hold held = where->check();
  ops::contextual_options o{.name = name};
  o.ranks = ranks;
  o.iterations = iterations;
  o.warm_ups = warm_ups;
  o.share = share;
  o.log_folder = log_folder;
  o.timeout = span_of(timeout, o.timeout);
  if (order == "interleaved") {
    o.order = tuning::contextual_order::interleaved;
  } else if (order != "grouped") {
    runtime::raise({errc::bad_argument, "op " + name + ": order is one of grouped and interleaved, and not " + order});
  }
  return {where, std::make_shared<ops::contextual>(*where->self, std::move(o))};
}

/// A coroutine asks the program's own stack to run the function, which may wait there for calls of the rank.
struct errand {
  rank_ptr where;
  bool is_due = false;
  runtime::news over{};
  std::optional<runtime::error> failed{};
};

task<> ask(std::shared_ptr<errand> e) {
  e->failed.reset();
  e->is_due = true;
  e->where->note_end();  // the program's thread may leave the loop to another one
  while (e->is_due) {
    const auto woken = co_await e->over.next(runtime::never);
    if (woken) continue;
    e->is_due = false;  // the run was cancelled
    runtime::raise(woken.reason());
  }
  if (e->failed) runtime::raise(*e->failed);
}

/// The result of the last run. The exception of the program comes out, and not the error that stands for it.
struct last_result {
  thrown_ptr exceptions;
  std::shared_ptr<nb::object> result;
  nb::object operator()() const { return std::exchange(*result, {}); }
  void failed(const runtime::error& why) const { exceptions->rethrow(why); }
};

/// Keeps what a call refers to.
task<> run_all(std::shared_ptr<ops::contextual> op, std::function<task<>()> f) { co_await op->run(f); }

std::unique_ptr<call> irun(contextual& c, nb::object f) {
  const hold held = c.where->check();
  const function mine(std::move(f), "f");
  auto exceptions = std::make_shared<thrown>();
  const std::shared_ptr<nb::object> result = kept(nb::none());
  const std::function<task<>()> once = [mine, exceptions, result] { return run_here(mine, exceptions, result); };
  return begin(c.where, run_all(c.op, once), last_result{exceptions, result});
}

/// One run on the program's own stack. With the GIL. Returns an exception such as KeyboardInterrupt.
std::exception_ptr run_errand(errand& e, const function& f, thrown& into, nb::object& result) {
  std::exception_ptr interrupted;
  try {
    result = f.held()();
  } catch (nb::python_error& error) {
    e.failed = into.note(error);
    if (!error.matches(PyExc_Exception)) interrupted = std::current_exception();
  }
  const hold held(*e.where);
  e.is_due = false;
  e.over.tell();
  return interrupted;
}

nb::object run(contextual& c, nb::object f) {
  const function mine(f, "f");
  if (mine.is_async() || c.where->is_virtual || c.where->loop.resuming()) return irun(c, std::move(f))->wait();
  auto exceptions = std::make_shared<thrown>();
  const std::shared_ptr<nb::object> result = kept(nb::none());
  auto job = std::make_shared<errand>();
  job->where = c.where;
  const std::function<task<>()> once = [job] { return ask(job); };
  const auto running = begin(c.where, run_all(c.op, once), last_result{exceptions, result});
  std::exception_ptr interrupted;
  while (!running->done()) {
    if (job->is_due) {
      if (const auto by = run_errand(*job, mine, *exceptions, *result)) interrupted = by;
      continue;
    }
    const hold held = c.where->check();
    constexpr int looks = 32;
    if (c.where->wait_until([&] { return running->done() || job->is_due; }, looks)) continue;
    interrupted = std::make_exception_ptr(nb::python_error());
    running->cancel();  // a call that is cancelled ends soon, and later ones begin after it
  }
  if (interrupted) std::rethrow_exception(interrupted);
  return running->take();
}

}  // namespace

void add_contextual(nb::module_& m) {
  const auto none = nb::none();
  nb::class_<contextual>(m, "Contextual",
                         "Tunes a whole function that calls `Kernel`s (parley/contextual.hpp): the function runs again "
                         "and again, while each kernel tries its implementations next to everything else that the "
                         "function does. All ranks then run the same implementation of each kernel and key: the one "
                         "whose average on the slowest rank is the shortest. What fails on a rank is left out.")
      .def(
          "__init__",
          [](contextual* c, const rank_ptr& rank, const std::string& name, const std::vector<rank_id>& ranks,
             std::size_t iterations, std::size_t warm_ups, const std::string& order, bool share,
             const std::string& log_folder, seconds timeout) {
            new (c)
                contextual(make_contextual(rank, name, ranks, iterations, warm_ups, order, share, log_folder, timeout));
          },
          nb::arg("rank"), nb::arg("name"), nb::arg("ranks") = std::vector<rank_id>(), nb::arg("iterations") = 5,
          nb::arg("warm_ups") = 0, nb::arg("order") = "grouped", nb::arg("share") = false,
          nb::arg("log_folder") = ".autotune_logs", nb::arg("timeout") = none,
          "`ranks` that agree; empty: all. `iterations`: measured runs for each implementation, after `warm_ups` that "
          "are not measured. `order`: `grouped`, or `interleaved`. `share`: ranks that are alike measure different "
          "implementations. `log_folder`: empty: no log. `timeout`: seconds of one run, and of the wait for other "
          "ranks after it.")
      .def("run", &run, nb::arg("f"),
           nb::sig("def run(self, f: collections.abc.Callable[[], typing.Any]) -> typing.Any"),
           "Calls `f()`, on all ranks: again and again while there is something to tune, then once. Returns what the "
           "last run has returned. `f` gives the same result each time, and may wait for calls of the rank. Its "
           "exception ends the call on all ranks.")
      .def("irun", &irun, nb::arg("f"), nb::sig("def irun(self, f: collections.abc.Callable[[], object]) -> Work"),
           "The same as a `Work`. `f` is an `async def` that may await calls of the rank, or a function that never "
           "waits.")
      .def_prop_ro(
          "idle", [](const contextual& c) { return c.op->idle(); }, "True if this rank is no member.")
      .def_prop_ro(
          "runs",
          [](const contextual& c) {
            const hold held = c.where->check();
            return c.op->runs();
          },
          "How often functions have run, in all calls together.")
      .def(
          "best",
          [](const contextual& c, const std::string& kernel, const std::string& key) {
            const hold held = c.where->check();
            return c.op->best(kernel, key);
          },
          nb::arg("kernel"), nb::arg("key") = "all",
          "The implementation that has won for a kernel and key, such as `n=64`; empty before that.")
      .def(
          "decision",
          [](const contextual& c, const std::string& kernel, const std::string& key) {
            const hold held = c.where->check();
            return c.op->decision(kernel, key);
          },
          nb::arg("kernel"), nb::arg("key") = "all", "The decision, with what this rank has measured.");
}

}  // namespace parley::python
