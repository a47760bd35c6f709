#include "ranks.hpp"

#include "cuda.hpp"
#include "progress.hpp"

#include <nanobind/stl/tuple.h>
#include <parley/program.hpp>
#include <parley/runtime/finally.hpp>
#include <parley/runtime/time/work_meter.hpp>
#include <parley/tunable_context.hpp>

#include <algorithm>
#include <utility>

namespace parley::python {

using runtime::errc;
using runtime::error;
using runtime::task;

namespace {

/// A job of its own process. Its members end in the reverse order: the job first.
struct real_home final : rank_home {
  explicit real_home(std::unique_ptr<ops::job> j) : rank_home(j->loop(), j->self()), job(std::move(j)) {
    if (job->gpu() != nullptr) gpu = std::make_shared<rank_gpu>(*job);
  }
  ~real_home() override {
    if (is_left_running()) {
      for (auto& each : abandoned) static_cast<void>(each.release());
      static_cast<void>(job.release());
      static_cast<void>(new auto(std::move(context)));
      static_cast<void>(new auto(std::move(alone)));
      static_cast<void>(new auto(std::move(gpu)));
      return;
    }
    alone.reset();
    // What is still under way ends with the job: its receives, for instance, that nobody has sent to.
    while (!abandoned.empty()) std::exchange(abandoned, {}).clear();
    gpu.reset();
    const nb::gil_scoped_release free;
    job.reset();
  }
  bool arm() override { return job->loop().poll() == runtime::reactor::readiness::armed; }
  std::uint64_t turns() const override { return job->loop().turns_so_far(); }
  // The reactor yields only if ranks share cores.
  bool has_own_core() const override { return job->loop().statistics().yields == 0; }
  int descriptor() const override { return job->loop().native_handle(); }
  std::unique_ptr<ops::job> job;
};

struct virtual_home final : rank_home {
  explicit virtual_home(ops::rank& r) : rank_home(r.where(), r) { is_virtual = true; }
  /// The rank has died: its calls are destroyed where they wait, as long as its executor is there. Python's coroutines close meanwhile, and
  /// what they call is refused.
  void die() noexcept {
    has_left = is_dead = true;
    for (;;) {
      std::exchange(abandoned, {}).clear();
      const auto left = std::find_if(calls.begin(), calls.end(), [](const call* c) { return c->is_kept(); });
      if (left == calls.end() && abandoned.empty()) break;
      if (left != calls.end()) (*left)->forget();
    }
    for (const auto& end : std::exchange(at_end, {})) end();
  }
  bool arm() override {
    runtime::raise({errc::bad_argument, "a virtual rank has no loop of its own; await its calls"});
  }
  std::uint64_t turns() const override { return 0; }
  bool has_own_core() const override { return false; }
  int descriptor() const override { return -1; }
};

/// An exchange of bytes among all ranks that the program has already: `all_gather(bytes) -> list of bytes`.
transports::bootstrap bootstrap_of(std::uint32_t rank, std::uint32_t world_size, nb::callable all_gather) {
  // The job copies and destroys this function without the GIL.
  const std::shared_ptr<const nb::callable> function(new nb::callable(std::move(all_gather)),
                                                     [](const nb::callable* f) {
                                                       const nb::gil_scoped_acquire held;
                                                       delete f;
                                                     });
  transports::bootstrap made{.rank = rank, .world_size = world_size};
  made.all_gather = [function](std::span<const std::byte> mine) {
    const nb::gil_scoped_acquire held;
    const nb::object all = (*function)(nb::bytes(mine.data(), mine.size()));
    std::vector<transports::bootstrap::bytes> entries;
    for (nb::handle each : all) {
      if (!nb::isinstance<nb::bytes>(each))
        runtime::raise(
            {errc::bad_argument, "all_gather of `through` returns a list with the bytes of each rank; one entry is " +
                                     plain_text(nb::repr(each.type()))});
      const nb::bytes one = nb::cast<nb::bytes>(each);
      const auto* const at = reinterpret_cast<const std::byte*>(one.c_str());
      entries.emplace_back(at, at + one.size());
    }
    return entries;
  };
  return made;
}

using exchange_of_all = std::optional<std::tuple<std::uint32_t, std::uint32_t, nb::callable>>;

rank_ptr join(seconds timeout, bool strict, const std::string& kind, const exchange_of_all& through,
              const std::string& device) {
  ops::job_options o;
  o.join_timeout = span_of(timeout, o.join_timeout);
  if (strict) o.undelivered = ops::undelivered_messages::fail;
  o.kind = kind;
  choose_gpu(o, device);
  if (through) o.bootstrap = bootstrap_of(std::get<0>(*through), std::get<1>(*through), std::get<2>(*through));
  std::shared_ptr<void> context;
  auto made = std::make_shared<real_home>(join_interruptibly(o, context));
  made->context = std::move(context);
  return made;
}

/// Ends a function of C++ that turns the loop when a signal such as Ctrl-C comes.
class signal_watch final : runtime::timer {
 public:
  struct interrupted {};
  explicit signal_watch(runtime::executor& loop) noexcept : timer(&look), loop_(loop) { arm(); }

 private:
  void arm() noexcept {
    constexpr runtime::time_ns between_looks_ns = 20'000'000;
    loop_.arm_in(*this, between_looks_ns);
  }
  static void look(timer& self) noexcept {
    auto& mine = static_cast<signal_watch&>(self);
    const nb::gil_scoped_acquire held;
    if (PyErr_CheckSignals() == 0) return mine.arm();
    mine.loop_.post([] { throw interrupted{}; });
  }
  runtime::executor& loop_;
};

/// Without the GIL. Throws Python's exception if a signal comes.
template <class F>
void interruptible(rank_home& r, F&& f) {
  r.tidy();
  bool is_interrupted = false;
  {
    const nb::gil_scoped_release free;
    const signal_watch watch(r.loop);
    try {
      f();
    } catch (const signal_watch::interrupted&) {
      is_interrupted = true;
    }
  }
  r.has_left = true;
  r.let_go();
  r.attending_loop.reset();
  r.sleepers.clear();
  if (is_interrupted) throw nb::python_error();
}

ops::job& job_of(rank_home& r) {
  auto* const real = dynamic_cast<real_home*>(&r);
  if (real == nullptr) runtime::raise({errc::bad_argument, "a virtual rank leaves when its function returns"});
  return *real->job;
}

std::string leave(rank_home& r) {
  const hold held = r.check();
  r.alone.reset();
  ops::parting how{};
  interruptible(r, [&, &job = job_of(r)] {
    job.write_results();
    how = job.leave();
  });
  switch (how) {
    case ops::parting::in_peace: return "in_peace";
    case ops::parting::refused: return "refused";
    case ops::parting::undelivered: return "undelivered";
  }
  return "";
}

void leave_after(rank_home& r, nb::handle why) {
  const hold held = r.check();
  const error its = PyExceptionInstance_Check(why.ptr())
                        ? error_of(why)
                        : error::in_words(errc::exception, {.rank = r.id}, nb::cast<std::string>(nb::str(why)));
  r.alone.reset();
  interruptible(r, [&, &job = job_of(r)] { job.leave_after(its); });
}

// ---- virtual ranks

std::vector<std::weak_ptr<rank_home>> virtual_ranks;  // of the simulation that runs
nb::object* program = nullptr;  // of the simulation that runs: `status_of_virtual` takes a plain function
std::exception_ptr first_thrown;

/// Ends what the program has left under way, and waits for that.
task<> end_all(rank_ptr where) {
  for (;;) {
    {
      const nb::gil_scoped_acquire held;
      where->tidy();
      bool any = !where->abandoned.empty();
      for (const auto& each : where->abandoned) each->cancel();
      for (call* const each : where->calls) {
        each->cancel();
        any = any || !each->done();
      }
      if (!any) {
        for (call* const each : where->calls) each->forget();
        co_return;
      }
    }
    static_cast<void>(co_await runtime::sleep_for(std::chrono::microseconds(1)));
  }
}

/// In the frame of a virtual rank, which is destroyed where it waits if the rank dies.
struct virtual_life {
  std::shared_ptr<virtual_home> of{};
  virtual_life() = default;
  virtual_life(const virtual_life&) = delete;
  virtual_life& operator=(const virtual_life&) = delete;
  ~virtual_life() {
    if (of == nullptr) return;
    const nb::gil_scoped_acquire held;
    if (!of->has_left) of->die();
    of.reset();
  }
};

task<> run_virtual_rank(ops::rank& self) {
  auto s = std::make_shared<script>();
  virtual_life life;
  rank_ptr where;
  {
    const nb::gil_scoped_acquire held;
    try {
      life.of = std::make_shared<virtual_home>(self);
      where = life.of;
      virtual_ranks.push_back(where);
      s->coroutine = (*program)(where);
    } catch (nb::python_error& e) {
      if (!first_thrown) first_thrown = std::current_exception();
      runtime::raise(error_of(e));
    }
  }
  std::exception_ptr thrown;
  try {
    co_await drive(s);
  } catch (...) {
    thrown = std::current_exception();
  }
  {
    const nb::gil_scoped_acquire held;
    s->coroutine.reset();
    s->waits_for.reset();
    s->result.reset();
  }
  co_await end_all(where);
  for (const auto& end : std::exchange(where->at_end, {})) end();
  where->has_left = true;
  if (!thrown) co_return;
  if (const auto own = std::exchange(s->thrown, nullptr); own && !first_thrown) first_thrown = own;
  std::rethrow_exception(thrown);
}

int simulate(nb::object main, std::uint32_t ranks, std::uint64_t seed, const std::string& faults, bool strict) {
  if (program != nullptr) runtime::raise({errc::bad_argument, "one simulation runs already"});
  simulation::world_options o;
  o.ranks = ranks;
  o.seed = seed;
  simulation::program_options p;
  if (strict) p.undelivered = ops::undelivered_messages::fail;
  if (faults == "weather") {
    p.what = simulation::befalls::weather;
  } else if (faults == "death") {
    p.what = simulation::befalls::death;
  } else if (faults != "none") {
    runtime::raise({errc::bad_argument, "faults is one of none, weather and death, and not " + faults});
  }
  program = &main;
  const runtime::finally over([] {
    program = nullptr;
    for (const auto& each : std::exchange(virtual_ranks, {}))
      if (const rank_ptr kept = each.lock()) kept->has_left = true;
  });
  first_thrown = nullptr;
  int status = 0;
  {
    const nb::gil_scoped_release free;
    status = simulation::status_of_virtual(o, &run_virtual_rank, p);
  }
  const auto thrown = std::exchange(first_thrown, nullptr);
  // After a death, an error that says so is how a rank should end.
  const bool is_expected = p.what == simulation::befalls::death && status == 0;
  if (thrown && !is_expected) std::rethrow_exception(thrown);
  return status;
}

}  // namespace

namespace {
/// Shows an exception that nobody has asked for, as Python does. Errors of parley are also those of other calls, or of this coroutine's end.
void show_lost(const std::exception_ptr& thrown) noexcept {
  try {
    std::rethrow_exception(thrown);
  } catch (nb::python_error& e) {
    const bool is_known = e.matches(PyExc_KeyboardInterrupt) || error_of(e).code() != errc::exception;
    if (!is_known) e.discard_as_unraisable("a coroutine of `Rank.start` whose Work nobody has waited for");
  } catch (...) {  // NOLINT(bugprone-empty-catch): an error of parley
  }
}
}  // namespace

script::~script() {
  const nb::gil_scoped_acquire held;
  if (thrown) show_lost(thrown);
  waits_for.reset();
  coroutine.reset();
  result.reset();
  thrown = nullptr;
}

namespace {

/// One step of the coroutine; nothing: it has returned. `ended_with`: the wait before has ended with an error.
nb::object step(script& s, const std::optional<error>& ended_with) {
  const bool before = std::exchange(is_driven(), true);
  const runtime::finally over([before] { is_driven() = before; });
  const inside_op mine(s.op);
  s.waits_for.reset();
  if (!ended_with) {
    PyObject* yielded = nullptr;
    PySendResult how{};
    run_program([&] {
      how = PyIter_Send(s.coroutine.ptr(), Py_None, &yielded);
      return yielded;
    });
    if (how == PYGEN_ERROR) throw nb::python_error();
    nb::object made = nb::steal(yielded);
    if (how != PYGEN_RETURN) return made;
    s.result = std::move(made);
    return {};
  }
  try {
    return s.coroutine.attr("throw")(exception_of(*ended_with));
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_StopIteration)) throw;
    s.result = e.value().attr("value");
    return {};
  }
}

}  // namespace

task<> drive(std::shared_ptr<script> s) {
  // A coroutine that goes on after it was cancelled, or after its config's call has failed, is closed in the end.
  constexpr int most_cancelled_waits = 100;
  int cancelled_waits = 0;
  std::optional<error> ended_with;
  const runtime::scope& here = co_await runtime::this_scope;
  for (;;) {
    call* waits = nullptr;
    awaited* part = nullptr;
    {
      const with_gil held;
      try {
        if (cancelled_waits == most_cancelled_waits) {
          s->coroutine.attr("close")();
          runtime::raise(*ended_with);
        }
        s->waits_for = step(*s, ended_with);
        if (!s->waits_for.is_valid()) co_return;
        const bool is_call = nb::try_cast(s->waits_for, waits) && waits != nullptr;
        if (!is_call && (!nb::try_cast(s->waits_for, part) || part == nullptr))
          runtime::raise({errc::bad_argument,
                          "a coroutine that parley runs may await calls of parley only; for others run it in asyncio"});
        const inside_op mine(s->op);
        if (waits != nullptr && !waits->done()) inside_op::check(waits->op);
      } catch (nb::python_error& e) {
        s->thrown = std::current_exception();
        const error stands_for_it = error_of(e);
        if (program == nullptr) {
          pass_on_interrupt(e);
        } else if (e.matches(PyExc_KeyboardInterrupt) && !first_thrown) {
          first_thrown = s->thrown;
        }
        runtime::raise(stands_for_it);
      }
    }
    if (waits != nullptr && waits->done()) co_await runtime::yield;  // the others have their turn
    ended_with.reset();
    const runtime::work_meter::wait uncharged(waits != nullptr && waits->is_sleep ? nullptr : here.meter());
    try {
      if (waits != nullptr) {
        co_await waits->ended();
      } else {
        co_await part->ended();
      }
    } catch (const runtime::failure& f) {  // this coroutine was cancelled, or the part has failed
      ended_with = f.reason();
    }
    if (!ended_with && here.cancelled() != errc::none) ended_with = error(here.cancelled());
    if (!ended_with) continue;
    if (waits != nullptr) waits->cancel();
    ++cancelled_waits;
    co_await runtime::yield;
  }
}

void add_ranks(nb::module_& m) {
  nb::class_<rank_home, home>(m, "Rank", "This process's place in a job. Make it with `parley.join` or `parley.run`.")
      .def_prop_ro("id", [](const rank_home& r) { return r.id; })
      .def_prop_ro("world_size", [](const rank_home& r) { return r.world_size; })
      .def_prop_ro(
          "gpu",
          [](const rank_home& r) { return r.gpu ? std::optional(r.gpu->copies().device()) : std::optional<int>(); },
          "The number of its GPU; None: it has none.")
      .def_prop_ro(
          "warnings",
          [](const rank_home& r) {
            const hold held = r.check();
            std::vector<std::string> all = r.self->warnings();
            const auto& of_kernels = r.self->kernels().warnings();
            all.insert(all.end(), of_kernels.begin(), of_kernels.end());
            return all;
          },
          "What parley has warned of so far, such as configs and implementations that were left out. They are printed "
          "when the rank leaves.")
      .def(
          "kind_of",
          [](const rank_home& r, std::uint32_t of) {
            const hold held = r.check();
            return r.self->kind_of(of);
          },
          nb::arg("rank"), "The hardware that a rank computes on, equal for ranks that are alike.")
      .def(
          "now_ns",
          [](const rank_home& r) {
            const hold held = r.check();
            return r.loop.precise_now();
          },
          "The time of this rank's clock, also in a simulation.")
      .def(
          "sleep",
          [](const rank_ptr& r, double s) {
            auto made = begin(r, pause(s > 0 ? span_of(s, {}) : std::chrono::nanoseconds()));
            made->is_sleep = true;
            return made;
          },
          nb::arg("seconds"), "`await rank.sleep(0.1)`, also in a simulation; or `.wait()`.")
      .def(
          "start",
          [](const rank_ptr& r, nb::object coroutine) {
            if (!nb::hasattr(coroutine, "send") || !nb::hasattr(coroutine, "throw"))
              runtime::raise(
                  {errc::bad_argument, "`start` takes a coroutine: call the `async def` function, as in start(f())"});
            auto s = std::make_shared<script>();
            s->coroutine = std::move(coroutine);
            return begin(r, drive(s), script_result{s});
          },
          nb::arg("coroutine"),
          "Runs a coroutine that awaits calls of this rank only, without asyncio. The result is what it returns.")
      .def(
          "start_progress",
          [](rank_home& r) {
            const hold held = r.check();
            job_of(r);
            if (r.gpu) check_queues(*r.gpu);
            if (r.alone == nullptr) r.alone = std::make_shared<progress>(r);
          },
          "From now on a thread gives the rank's loop its turns while streams wait for calls (`Work.wait_stream`), so "
          "that the program may wait for streams by CUDA.")
      .def(
          "write_results",
          [](rank_home& r) {
            const hold held = r.check();
            job_of(r).write_results();
          },
          "Adds decisions to the results files now.")
      .def("leave", &leave, "Leaves the job: `in_peace`, `refused` or `undelivered`. `parley.run` and `with` do it.")
      .def("leave_after", &leave_after, nb::arg("why"),
           nb::sig("def leave_after(self, why: BaseException | str) -> None"),
           "Leaves the job because of an error, and tells the other ranks.");
  m.def(
      "join", &join, nb::arg("timeout") = nb::none(), nb::arg("strict") = false, nb::arg("kind") = "",
      nb::arg("through") = nb::none(), nb::arg("device") = "cpu",
      nb::sig(
          R"(def join(timeout: float | None = None, strict: bool = False, kind: str = "", through: tuple[int, int, collections.abc.Callable[[bytes], collections.abc.Sequence[bytes]]] | None = None, device: str = "cpu") -> Rank)"),
      "Joins the job that the environment describes; alone, a world of one rank.");
  m.def("simulate", &simulate, nb::arg("main"), nb::arg("ranks") = 2, nb::arg("seed") = 1, nb::arg("faults") = "none",
        nb::arg("strict") = false);
}

}  // namespace parley::python
