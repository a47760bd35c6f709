#include "calls.hpp"

#include "cuda.hpp"
#include "progress.hpp"

#include <parley/runtime/finally.hpp>
#include <parley/runtime/implementation.hpp>

#include <sched.h>
#include <unistd.h>

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
            const with_gil gil;
            delete held;
          }};
}

void home::let_go() {
  for (const auto& each : std::exchange(kept_objects, {}))
    if (const kept_object still = each.lock()) still->reset();
}

// ---- the end of the interpreter

namespace {
std::atomic<bool> is_closing = false;
std::atomic<std::thread::id> closer;
std::atomic<int> coming_back = 0;  // threads that take the GIL
std::atomic<int> inside = 0;       // how often `with_gil` is held

/// Counts this thread among those that take the GIL. At the end of the interpreter it does not return.
void come_back(const home* where) noexcept {
  ++coming_back;
  if (!is_closing || closer.load() == std::this_thread::get_id()) return;
  --coming_back;
  if (where != nullptr) where->abandon_lock();
  sleep_for_ever();
}

/// Needs the GIL. From now on, no thread but this one takes the GIL in here. Functions of the program that run on other threads have a
/// moment to end.
void close_interpreter() {
  constexpr std::chrono::milliseconds a_moment(300);
  closer = std::this_thread::get_id();
  is_closing = true;
  const auto until = std::chrono::steady_clock::now() + a_moment;
  while (coming_back > 0 || (inside > 0 && std::chrono::steady_clock::now() < until)) {
    const nb::gil_scoped_release free;
    sched_yield();
  }
}
}  // namespace

void sleep_for_ever() noexcept {
  for (;;) ::pause();
}

bool is_left_running() noexcept { return is_closing && inside > 0; }

without_gil::~without_gil() {
  come_back(where_);
  PyEval_RestoreThread(state_);
  --coming_back;
}

with_gil::with_gil() {
  come_back(nullptr);
  state_ = PyGILState_Ensure();
  ++inside;
  --coming_back;
}

with_gil::~with_gil() {
  --inside;
  PyGILState_Release(state_);
}

void home::abandon_lock() const noexcept {
  if (user_.load() == std::this_thread::get_id()) unlock();
}

// ---- who uses the loop

hold::hold(const home& h) : of_(&h) {
  // A virtual rank that has ended has no loop. In a child process the lock may belong to a thread that only the parent has.
  if ((h.is_virtual && h.has_left) || h.loop.forked()) {
    of_ = nullptr;
    return;
  }
  if (h.user_.load(std::memory_order_relaxed) != std::this_thread::get_id()) {
    if (!h.used_.try_lock()) {
      const without_gil free(&h);
      if (!h.lock_among_others()) {
        of_ = nullptr;
        return;
      }
    }
    h.user_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  ++h.times_;
}

hold::~hold() {
  if (of_ == nullptr || --of_->times_ != 0) return;
  of_->wake_sleepers();
  of_->unlock();
}

// The thread that has the lock may sleep in the loop, so it is woken.
bool home::lock_among_others() const {
  ++wanted_;
  const runtime::finally over([this] { --wanted_; });
  loop.post([] {});
  if (!is_closing) {
    used_.lock();
    return true;
  }
  // Its user may sleep for ever.
  for (int i = 0; i < 100; ++i) {
    if (used_.try_lock()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// Whoever turns the loop leaves it unarmed, and then its descriptor does not become readable by itself.
void home::wake_sleepers() const noexcept {
  if (sleepers.empty() || turns() == armed_at_) return;
  try {
    std::erase_if(sleepers, [](const nb::object& each) { return nb::cast<bool>(each.attr("is_closed")()); });
  } catch (...) {  // NOLINT(bugprone-empty-catch): then it is woken in vain
  }
  if (!sleepers.empty()) loop.post([] {});
}

void home::unlock() const noexcept {
  user_.store({}, std::memory_order_relaxed);
  used_.unlock();
}

void home::without_lock(const std::function<void()>& f) {
  const int times = std::exchange(times_, 0);
  unlock();
  f();
  while (!lock_among_others()) {}
  user_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  times_ = times;
}

hold home::check() const {
  if (has_left) runtime::raise({errc::closed, "this rank has left its job"});
  if (loop.forked())
    runtime::raise({errc::bad_argument, "this process is a child of fork; the rank belongs to its parent, and only the "
                                        "parent may call"});
  if (is_virtual && std::this_thread::get_id() != owner)
    runtime::raise({errc::bad_argument, "a virtual rank belongs to the thread of its simulation; call it there"});
  hold held(*this);
  if (has_left) runtime::raise({errc::closed, "this rank has left its job"});
  return held;
}

// ---- waits

void home::must_not_run_here() const {
  if (loop.resuming())
    runtime::raise({errc::bad_argument,
                    "a call was waited for inside of a coroutine or function that parley runs, which "
                    "would stop all others; `await` the call instead"});
}

bool home::wait_until(const std::function<bool()>& is_over, int looks) {
  if (is_over()) return true;
  must_not_run_here();
  for (int i = 0; i < looks; ++i) {
    loop.turn();
    if (is_over()) return true;
  }
  while (!is_over()) {
    {
      const without_gil free(this);
      if (is_led_) {
        follow();
      } else {
        lead(is_over);
      }
    }
    if (is_over()) break;
    if (PyErr_CheckSignals() != 0) return false;
    if (has_left) runtime::raise({errc::closed, "this rank has left its job"});
  }
  return true;
}

namespace {
constexpr std::int64_t between_signals_ns = 20'000'000;

/// Wakes a loop that sleeps, so that Python can look for signals.
struct alarm final : runtime::timer {
  alarm() noexcept : timer([](timer& self) noexcept { static_cast<alarm&>(self).has_rung = true; }) {}
  bool has_rung = false;
};
}  // namespace

void home::lead(const std::function<bool()>& is_over) {
  alarm signals;
  loop.arm_in(signals, between_signals_ns);
  is_led_ = true;
  const runtime::finally done([this] {
    is_led_ = false;
    tell_followers();
  });
  while (!is_over() && !signals.has_rung) {
    if (wanted_ > 0) {
      without_lock([this] {
        while (wanted_ > 0) sched_yield();
      });
    }
    const std::uint64_t before = ends_;
    const bool any = loop.turn();
    if (ends_ != before) tell_followers();
    if (!any && !is_over() && !loop.wait())
      runtime::raise(
          {errc::closed, "nothing can end this wait any more: no timer, no transport and no coroutine is ready"});
  }
}

bool home::turn_for_streams(int turns) {
  if (!used_.try_lock()) return true;
  user_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  ++times_;
  const runtime::finally over([this, before = ends_.load()] {
    if (ends_ != before) tell_followers();
    if (--times_ == 0) unlock();
  });
  for (int i = 0; i < turns && *waiting != 0 && loop.turn(); ++i) {}
  return *waiting != 0;
}

void home::tell_followers() {
  if (followers_ == 0) return;
  const std::lock_guard lock(turned_mutex_);
  turned_.notify_all();
}

void home::follow() {
  const std::uint64_t before = ends_;
  ++followers_;
  without_lock([&] {
    std::unique_lock lock(turned_mutex_);
    turned_.wait_for(lock, std::chrono::nanoseconds(between_signals_ns), [&] { return !is_led_ || ends_ != before; });
  });
  --followers_;
}

// ---- for event loops

namespace {
constexpr std::int64_t shortest_spin_ns = 1'000;
constexpr int most_at_once = 64;  // results without a turn of the program's event loop
}  // namespace

void spin_time::learn(std::int64_t waited_ns) noexcept {
  if (waited_ns < longest_ns) ns = std::max(ns, std::min(2 * waited_ns, longest_ns));
}
void spin_time::give_up() noexcept { ns = std::max(shortest_spin_ns, ns / 2); }

bool home::ends_at_once(const std::function<bool()>& is_over) {
  if (++at_once_ > most_at_once) {
    at_once_ = 0;
    return false;
  }
  if (is_over()) return true;
  const std::int64_t began = loop.precise_now();
  suspended_at_ = began;
  const bool spins = !loop.resuming() && has_own_core();
  for (std::int64_t waited = 0; spins && waited < at_once_spin_.ns; waited = loop.precise_now() - began) {
    for (int i = 0; i < 8; ++i) {
      loop.turn();
      if (!is_over()) continue;
      at_once_spin_.learn(loop.precise_now() - began);
      return true;
    }
  }
  if (spins) at_once_spin_.give_up();
  at_once_ = 0;
  return false;
}

// The event loop gets its turn after `slice_ns`, and at once when a function of the program was called.
bool home::attend(bool spins, nb::handle asyncio_loop) {
  constexpr std::int64_t slice_ns = 20'000;
  is_armed = has_told = false;
  wakes_up(asyncio_loop);
  const std::int64_t began = loop.precise_now();
  for (std::int64_t now = began; now - began < slice_ns; now = loop.precise_now()) {
    const bool any = now == began ? loop.catch_up() : loop.turn();
    if (any) {
      if (idle_since_ != 0) attend_spin_.learn(now - idle_since_);
      idle_since_ = 0;
      if (has_told) {
        at_once_spin_.learn(now - suspended_at_);
        return false;
      }
      continue;
    }
    if (idle_since_ == 0) idle_since_ = now;
    if (spins && has_own_core() && now - idle_since_ < attend_spin_.ns) continue;
    is_armed = arm();
    if (is_armed) {
      attend_spin_.give_up();
      armed_at_ = turns();
      if (!asyncio_loop.is_none()) sleepers.push_back(nb::borrow(asyncio_loop));
    }
    if (is_armed || has_told) return is_armed;
  }
  return false;
}

void tell_event_loop(const home_ptr& where) {
  if (where->is_virtual || is_driven()) return;
  static PyObject* const name = PyUnicode_InternFromString("asyncio.events");
  const nb::object events = nb::steal(PyImport_GetModule(name));
  if (!events.is_valid()) return PyErr_Clear();
  const nb::object its = events.attr("_get_running_loop")();
  if (its.is_none() || (its.ptr() == where->attending_loop.ptr() && !where->is_armed)) return;
  where->attending_loop = its;
  where->is_armed = false;
  where->wakes_up(its);
  nb::module_::import_("parley._await").attr("attend")(where, its);
}

// ---- calls

void running::start(runtime::promise_base& frame) {
  frame.home = &root;
  frame.observer = this;
  runtime::begin_in_order(root.where(), frame);
  if (root.where().resuming()) return;
  const without_gil free;
  root.where().turn();
}

void running::on_task_end(runtime::promise_base&) noexcept {
  ended = true;
  at.note_end();
  on_device.over();
  while (waiting != nullptr) {
    end_of& first = *waiting;
    first.leave();
    first.wake(errc::none);
  }
  if (functions.empty()) return;
  is_queued_ = true;
  root.where().schedule(static_cast<ready_call&>(*this));
}

void running::end_of::leave() noexcept {
  if (!std::exchange(is_listed_, false)) return;
  end_of** at = &of_.waiting;
  while (*at != this) at = &(*at)->next_;
  *at = next_;
}

void running::call_functions(ready_call& self) noexcept {
  auto& mine = static_cast<running&>(self);
  mine.is_queued_ = false;
  mine.at.has_told = true;
  const with_gil held;
  for (const nb::callable& f : std::exchange(mine.functions, {})) {
    try {
      f();
    } catch (nb::python_error& e) {
      pass_on_interrupt(e);
      e.discard_as_unraisable("a function that was called at the end of a call of parley");
    }
  }
}

running::~running() {
  on_device.over();
  while (waiting != nullptr) waiting->leave();
  if (is_queued_) root.where().forget(static_cast<ready_call&>(*this));
}

void finish(abandoned_call& c, const home& where) noexcept {
  if (c.done() || where.is_dead) return;
  c.cancel();
  const without_gil free(&where);  // functions of the program that it runs on other threads need the GIL to end
  try {
    runtime::run_until(where.loop, [&] { return c.done(); });
  } catch (...) {  // NOLINT(bugprone-empty-catch): nothing can end it any more, so nothing uses its buffers either
  }
}

void call::on_end(nb::callable f) {
  const hold held = where_->check();
  if (done()) {
    f();
  } else {
    runs()->functions.push_back(std::move(f));
  }
}

void call::set_device(device_end on_device) {
  device_end& its = runs()->on_device;
  its = std::move(on_device);
  if (done()) its.over();
}

void call::wait_stream(runtime::device_stream stream) {
  // A stream has room for some 1,000 entries. After that CUDA waits inside of a launch, and no message can end any more.
  constexpr std::size_t most_waiting = 32;
  const hold held = where_->check();
  if (runs() == nullptr || runs()->on_device.space == nullptr)
    runtime::raise(
        {errc::bad_argument, "this call was started without a stream; start it with stream=…, or wait for it"});
  if (stream == nullptr) runtime::raise({errc::bad_argument, "wait_stream needs a stream"});
  if (done()) return;
  device_end& end = runs()->on_device;
  ++where_->stream_waits;
  for (const std::span<const std::byte> each : end.received) end.space->wait_on(each, stream);
  if (end.sends) {
    // Not `hold`: messages do not wait for the work behind a hold. No message comes into this memory, which only names the wait.
    const std::span<const std::byte> name(reinterpret_cast<const std::byte*>(&end), 1);
    end.awaited.push_back(end.space->expect(name));
    end.space->wait_on(name, stream);
  }
  if (end.waiting != nullptr) return;
  if (!where_->wait_until([this] { return *where_->waiting < most_waiting || done(); }, 0)) throw nb::python_error();
  if (done()) return;
  end.waiting = where_->waiting;
  ++*end.waiting;
  if (where_->alone != nullptr) where_->alone->go_on();
}

bool call::test() {
  const hold held = where_->check();
  if (done()) return true;
  where_->must_not_run_here();
  const without_gil free(where_.get());
  where_->loop.catch_up();
  return done();
}

task<> pause(std::chrono::nanoseconds span) {
  const auto woken = co_await runtime::sleep_for(span);
  if (!woken) runtime::raise(woken.reason());
}

const void*& inside_op::now() noexcept {
  static thread_local const void* op = nullptr;
  return op;
}

void inside_op::check(const void* op) {
  if (op != nullptr && op == now())
    runtime::raise({errc::bad_argument, "a function of an operation waits for a call of the same operation, which ends "
                                        "only after that function; make the call after it"});
}

nb::object call::wait() {
  const hold held = where_->check();
  if (!done()) inside_op::check(op);
  constexpr int looks = 32;
  if (where_->wait_until([this] { return done(); }, looks)) return take();
  cancel();
  throw nb::python_error();
}

bool call::ends_at_once() {
  const hold held = where_->check();
  return where_->ends_at_once([this] { return done(); });
}

bool& is_driven() noexcept {
  static thread_local bool now = false;
  return now;
}

void add_calls(nb::module_& m) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&close_interpreter));
  m.def("is_driven", [] { return is_driven(); });
  nb::class_<home>(m, "Loop", "The loop of a rank, for programs that have a loop of their own.")
      .def(
          "poll",
          [](home& h, bool spins, nb::handle asyncio_loop) {
            const hold held = h.check();
            return h.attend(spins, asyncio_loop);
          },
          nb::arg("spins") = false, nb::arg("asyncio_loop") = nb::none(),
          "Turns for at most some microseconds. True: there is nothing to do until `fileno()` becomes readable. "
          "`spins`: first "
          "waits a little for something to do. `asyncio_loop`: becomes readable also when another thread has turned.")
      .def("fileno", &home::descriptor);

  nb::class_<call>(m, "Work", "A call under way. It keeps its buffers alive until it has ended.")
      .def("done", &call::done, "True if the call has ended. Does not drive the loop.")
      .def("test", &call::test, "One turn of the loop; true if the call has ended.")
      .def("wait", &call::wait, nb::sig("def wait(self) -> typing.Any"),
           "Waits until the call has ended. Returns its result, or raises its error.")
      .def("ends_at_once", &call::ends_at_once,
           "Turns the loop for some microseconds. False: the call has not ended, or the program's event loop should "
           "have "
           "a turn first.")
      .def(
          "wait_stream", [](call& c, nb::handle stream) { c.wait_stream(stream_of(stream)); }, nb::arg("stream"),
          "Work that `stream` gets from now on runs after this call, which was started with a stream. The host does "
          "not wait, but it has to call parley until the call has ended, unless `Rank.start_progress` was called. A "
          "stream does not notice failures; `wait` raises them.")
      .def(
          "cancel",
          [](call& c) {
            const hold held(*c.where());
            c.cancel();
          },
          "Ends the call's waits. The call still has to be waited for.")
      .def("take", &call::take, nb::sig("def take(self) -> typing.Any"),
           "The result of a call that has ended. It can be taken once.")
      .def("on_end", &call::on_end, nb::arg("f"),
           nb::sig("def on_end(self, f: collections.abc.Callable[[], object]) -> None"),
           "Calls `f()` from the loop once the call has ended.")
      .def_prop_ro("loop", &call::where)
      .def(
          "__await__",
          [](nb::handle self) {
            // No static with an initializer: an import releases the GIL, and another thread would wait for the initializer with the GIL.
            static std::atomic<PyObject*> steps;
            if (steps == nullptr) steps = nb::module_::import_("parley._await").attr("steps").inc_ref().ptr();
            return nb::handle(steps.load(std::memory_order_relaxed))(self);
          },
          nb::sig("def __await__(self) -> collections.abc.Generator[typing.Any, typing.Any, typing.Any]"));
}

}  // namespace parley::python
