#pragma once
/// What all bindings share: the thread of a job, calls under way, and exceptions.
///
/// C++ runs without the GIL wherever it may wait. A function of the program that C++ calls takes the GIL for itself.
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <parley/error.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/dataflow/memory_space.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <cxxabi.h>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace parley::python {

namespace nb = nanobind;

/// Makes `failure` a parley.Failure with its facts.
void add_errors(nb::module_& m);
/// parley.Failure for an error.
nb::object exception_of(const runtime::error& e);
/// The error that a Python exception stands for, for the other ranks.
runtime::error error_of(nb::handle thrown);
inline runtime::error error_of(const nb::python_error& e) { return error_of(e.value()); }
/// `str(o)`, with escapes for what is no UTF-8. Never throws an exception of the program.
std::string plain_text(nb::handle o);
/// An exception that the loop would keep for itself: Ctrl-C is for the program, whatever function of it runs at that time.
void pass_on_interrupt(const nb::python_error& e);

/// Nothing: the op's own timeout.
using seconds = std::optional<double>;
std::chrono::nanoseconds span_of(seconds s, std::chrono::nanoseconds otherwise);

/// Sleeps; throws if it is cancelled.
runtime::task<> pause(std::chrono::nanoseconds span);

class call;
class progress;
struct home;
using home_ptr = std::shared_ptr<home>;

/// Keeps a Python object, and its memory in place. Made and destroyed with the GIL.
using keep = std::shared_ptr<const void>;

/// A function or object of the program that an op keeps. Empty once its rank has left, so that an object that refers to its rank can end.
/// Read it with the GIL. Copies may end without the GIL.
using kept_object = std::shared_ptr<nb::object>;
kept_object kept(nb::object o = {});

/// What a function of an own config awaits while parley runs it (`drive` in ranks.hpp): a part of a payload.
class awaited {
 public:
  awaited() = default;
  awaited(const awaited&) = delete;
  awaited& operator=(const awaited&) = delete;
  virtual ~awaited() = default;
  /// Waits as a coroutine of C++. Throws if the wait fails or is cancelled.
  virtual runtime::task<> ended() = 0;
};

/// A call that nobody waits for any more. It goes on, and keeps its buffers until it has ended.
struct abandoned_call {
  virtual ~abandoned_call() = default;
  virtual bool done() const noexcept = 0;
  virtual void cancel() noexcept = 0;
};

[[noreturn]] void sleep_for_ever() noexcept;

/// Like nanobind's `gil_scoped_release` and `gil_scoped_acquire`, for threads that may still wait when the interpreter ends. Python would
/// end such a thread where it takes the GIL, by an exception that C++ may not pass on; so the thread sleeps there for ever instead.
class without_gil {
 public:
  /// `where` has its loop used by others then.
  explicit without_gil(const home* where = nullptr) : where_(where), state_(PyEval_SaveThread()) {}
  without_gil(const without_gil&) = delete;
  without_gil& operator=(const without_gil&) = delete;
  ~without_gil();

 private:
  const home* where_;
  PyThreadState* state_;
};
class with_gil {
 public:
  with_gil();
  with_gil(const with_gil&) = delete;
  with_gil& operator=(const with_gil&) = delete;
  ~with_gil();

 private:
  PyGILState_STATE state_;
};

/// Runs code of the program that may take long, on any thread. If the interpreter ends meanwhile, Python unwinds that thread's stack, which
/// C++ may not go on with; so the thread sleeps for ever instead.
template <class F>
PyObject* run_program(const F& f) {
  try {
    return f();
  } catch (abi::__forced_unwind&) {
    sleep_for_ever();
  }
}
/// True at the end of the interpreter if functions of the program still run on other threads. They never end, so what they use must stay.
bool is_left_running() noexcept;

/// While it lives, this thread alone uses the loop of a rank. A thread may hold it several times. Made and destroyed with the GIL; it
/// releases the GIL while it waits for another thread, so nobody waits for a loop with the GIL.
class [[nodiscard]] hold {
 public:
  explicit hold(const home& h);
  hold(hold&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
  hold& operator=(hold&&) = delete;
  ~hold();

 private:
  const home* of_;
};

/// What streams of a GPU wait for until a call has ended: see `call::wait_stream`.
struct device_end {
  runtime::memory_space* space = nullptr;  ///< null: the call has no part on a GPU
  std::vector<std::span<const std::byte>> received{};
  bool sends = false;
  std::vector<std::uint64_t> awaited{};    ///< numbers of `memory_space::expect`
  std::shared_ptr<std::size_t> waiting{};  ///< see `home::waiting`; null: no stream waits for this call
  std::shared_ptr<bool> is_over{};         ///< see `rank_gpu::note`
  /// The call has ended, so streams go on.
  void over() noexcept {
    for (const std::uint64_t each : std::exchange(awaited, {})) space->came(each, runtime::errc::none);
    if (const auto counted = std::exchange(waiting, nullptr)) --*counted;
    if (is_over) *is_over = true;
  }
};

/// How long to spin: about as long as recent waits took (as the reactor does, parley/runtime/time/reactor.hpp).
struct spin_time {
  void learn(std::int64_t waited_ns) noexcept;
  void give_up() noexcept;
  std::int64_t longest_ns;
  std::int64_t ns = longest_ns;
};

/// Where the calls of a rank run: its loop. Calls hold it, so that the loop outlives them.
struct home {
  explicit home(runtime::executor& ex) : loop(ex) {}
  virtual ~home() = default;
  runtime::executor& loop;
  std::thread::id owner = std::this_thread::get_id();
  bool has_left = false;
  std::vector<std::unique_ptr<abandoned_call>> abandoned{};
  /// Of a virtual rank: all calls that exist, because its executor does not outlive them.
  std::set<call*> calls{};
  /// Of a virtual rank: ends what must not outlive the rank, such as registered memory. They need no GIL.
  std::vector<std::function<void()>> at_end{};
  bool is_virtual = false;
  /// What the ops of this rank keep of the program.
  std::vector<std::weak_ptr<nb::object>> kept_objects{};
  /// The rank has left, so its ops call no function of the program any more.
  void let_go();
  /// Calls for which streams wait. Their thread may be waiting for a stream meanwhile: see progress.hpp.
  std::shared_ptr<std::size_t> waiting = std::make_shared<std::size_t>(0);
  std::uint64_t stream_waits = 0;  // how often streams were made to wait
  std::shared_ptr<progress> alone{};
  bool is_dead = false;  // a virtual rank: nothing of it goes on, and no transport uses its buffers
  /// What a call begins with: throws `closed` after the rank has left, and `bad_argument` in a child process or, for a virtual rank, in
  /// another thread.
  hold check() const;
  /// Frees what has ended of the abandoned calls. Needs the GIL. The end of a Python object may abandon further calls.
  void tidy() {
    if (abandoned.empty()) return;
    const auto over = std::partition(abandoned.begin(), abandoned.end(), [](const auto& c) { return !c->done(); });
    const std::vector<std::unique_ptr<abandoned_call>> ended(std::make_move_iterator(over),
                                                             std::make_move_iterator(abandoned.end()));
    abandoned.erase(over, abandoned.end());
  }

  /// At most `turns` of the loop, unless another thread uses it, as long as streams wait for calls. False: no stream waits. Needs no GIL.
  bool turn_for_streams(int turns);

  // The following need the GIL and a `hold`.

  /// Turns the loop until `is_over()`. False: a signal such as Ctrl-C has come, and Python's error is set. The first `looks` turns keep the
  /// GIL. Of several threads that wait, one turns the loop for all.
  bool wait_until(const std::function<bool()>& is_over, int looks);
  /// Turns the loop for some microseconds, at most until `is_over()`. False: it is not, or the program's event loop should have a turn first.
  bool ends_at_once(const std::function<bool()>& is_over);
  /// Turns the loop as long as there is something to do, at most some microseconds. True: nothing is left to do until `descriptor` becomes
  /// readable. `spins`: the event loop has nothing better to do than to wait for a call, so this first spins for a while.
  bool attend(bool spins, nb::handle asyncio_loop);
  void wakes_up(nb::handle asyncio_loop) const {
    std::erase_if(sleepers, [&](const nb::object& each) { return each.is(asyncio_loop); });
  }
  /// Throws `bad_argument` inside of a coroutine or function that the loop runs.
  void must_not_run_here() const;
  /// This thread does not come back.
  void abandon_lock() const noexcept;
  void note_end() noexcept { ends_.store(ends_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
  virtual int descriptor() const = 0;

  /// The asyncio loop that attends to this home; new calls wake it.
  nb::object attending_loop{};
  bool is_armed = false;  // it sleeps until `descriptor` becomes readable
  bool has_told = false;  // a function of the program was called since `attend` began
  /// Loops of asyncio that sleep until `descriptor` becomes readable.
  mutable std::vector<nb::object> sleepers{};

 protected:
  /// A turn; true: nothing is left to do until `descriptor` becomes readable.
  virtual bool arm() = 0;
  virtual std::uint64_t turns() const = 0;
  /// False if ranks outnumber cores: a rank that spins takes the core from another.
  virtual bool has_own_core() const = 0;

 private:
  friend class hold;
  bool lock_among_others() const;
  void unlock() const noexcept;
  void wake_sleepers() const noexcept;
  void without_lock(const std::function<void()>& f);
  void lead(const std::function<bool()>& is_over);
  void follow();
  void tell_followers();
  mutable std::mutex used_;
  mutable std::atomic<std::thread::id> user_{};
  mutable int times_ = 0;                // that the user holds it
  mutable std::atomic<int> wanted_ = 0;  // threads that wait to use the loop
  std::atomic<bool> is_led_ = false;     // a thread turns the loop until its call has ended; other threads follow
  std::atomic<int> followers_ = 0;
  std::atomic<std::uint64_t> ends_ = 0;
  std::mutex turned_mutex_;
  std::condition_variable turned_;
  spin_time at_once_spin_{20'000}, attend_spin_{50'000};
  int at_once_ = 0;
  std::uint64_t armed_at_ = 0;  // turns
  std::int64_t idle_since_ = 0, suspended_at_ = 0;
};

/// Cancels a call, and turns the loop until it has ended: a transport may use its buffers until then. With the GIL.
void finish(abandoned_call& c, const home& where) noexcept;

/// A call that runs. Its `Work` has it, and after that the abandoned calls.
struct running : abandoned_call, runtime::task_observer, private runtime::ready_call {
  running(home& where, std::vector<keep> k)
      : ready_call(&call_functions), root(where.loop), at(where), keeps(std::move(k)) {}
  running(const running&) = delete;
  running& operator=(const running&) = delete;
  ~running() override;
  bool done() const noexcept final { return ended; }
  void cancel() noexcept override { root.cancel(); }
  void on_task_end(runtime::promise_base&) noexcept final;
  void start(runtime::promise_base& frame);
  /// Until the call has ended, or the coroutine that waits is cancelled.
  class [[nodiscard]] end_of : private runtime::waiter {
   public:
    explicit end_of(running& r) noexcept : waiter(&on_cancelled), of_(r) {}
    ~end_of() { leave(); }
    bool await_ready() const noexcept { return of_.ended; }
    template <class P>
    bool await_suspend(std::coroutine_handle<P> caller) noexcept {
      if (!enter(caller)) return false;
      next_ = std::exchange(of_.waiting, this);
      is_listed_ = true;
      return true;
    }
    void await_resume() const {
      if (outcome != runtime::errc::none) runtime::raise({outcome, "the coroutine that waits was cancelled"});
    }

   private:
    friend running;
    void leave() noexcept;
    static void on_cancelled(waiter& self, runtime::errc why) noexcept {
      static_cast<end_of&>(self).leave();
      static_cast<end_of&>(self).wake(why);
    }
    running& of_;
    end_of* next_ = nullptr;
    bool is_listed_ = false;
  };

  runtime::scope root;  // outlives the frame, whose waits are linked into it
  home& at;
  std::vector<keep> keeps;
  std::vector<nb::callable> functions;
  device_end on_device{};
  end_of* waiting = nullptr;
  bool ended = false;

 private:
  static void call_functions(ready_call& self) noexcept;
  bool is_queued_ = false;
};

template <class T>
struct running_task : running {
  running_task(home& where, runtime::task<T>&& task, std::vector<keep> k)
      : running(where, std::move(k)), frame(std::move(task).release()) {}
  ~running_task() override {
    finish(*this, at);
    frame.destroy();
  }
  typename runtime::task<T>::handle frame;
};

/// A call under way (parley/work.hpp). It keeps its buffers alive until it has ended.
class call {
 public:
  call(const call&) = delete;
  call& operator=(const call&) = delete;
  virtual ~call() { where_->calls.erase(this); }
  bool done() const noexcept { return runs() == nullptr || runs()->done(); }
  void cancel() noexcept {
    if (!done()) runs()->cancel();
  }
  /// The result of a call that has ended, which can be taken once; or throws.
  virtual nb::object take() = 0;
  /// Forgets a call that has ended, with its result; or of a dead rank.
  virtual void forget() = 0;
  bool is_kept() const noexcept { return runs() != nullptr; }
  bool test();
  /// Drives the loop until the call has ended. A signal such as Ctrl-C ends the wait: the call is cancelled.
  nb::object wait();
  /// For event loops: `home::ends_at_once`.
  bool ends_at_once();
  /// Calls `f` from the loop once the call has ended.
  void on_end(nb::callable f);
  /// Work that the stream gets from now on runs after this call: the stream waits, and the host does not. For calls that were started with
  /// a stream.
  void wait_stream(runtime::device_stream stream);
  /// For a call that was started with a stream.
  void set_device(device_end on_device);
  /// Waits as a coroutine of C++; the call has not ended.
  running::end_of ended() { return running::end_of(*runs()); }
  const home_ptr& where() const noexcept { return where_; }
  /// A function that is measured is not charged for its waits, except for its sleeps.
  bool is_sleep = false;
  /// The op of a call that runs functions of the program. None of them can wait for this call: it begins or ends after them.
  const void* op = nullptr;

 protected:
  explicit call(home_ptr where) : where_(std::move(where)) {
    if (where_->is_virtual) where_->calls.insert(this);
  }
  virtual running* runs() const noexcept = 0;
  home_ptr where_;
};

template <class T, class Convert>
class call_of final : public call {
 public:
  call_of(home_ptr where, std::unique_ptr<running_task<T>> runs, Convert convert)
      : call(std::move(where)), convert_(std::move(convert)), runs_(std::move(runs)) {
    runs_->start(runs_->frame.promise());
  }
  ~call_of() override {
    const hold held(*where_);
    if (!done()) {
      where_->abandoned.push_back(std::move(runs_));
    } else {
      runs_.reset();
    }
  }
  void forget() override {
    runs_.reset();
    if constexpr (requires { convert_.forget(); }) convert_.forget();
  }
  nb::object take() override {
    if (!runs_) runtime::raise({runtime::errc::closed, "the rank of this call has left its job"});
    if (!runs_->ended) runtime::raise({runtime::errc::bad_argument, "this call has not ended yet; wait for it"});
    runs_->keeps.clear();
    try {
      if constexpr (std::is_void_v<T>) {
        runs_->frame.promise().take();
        return convert_();
      } else {
        return convert_(runs_->frame.promise().take());
      }
    } catch (const runtime::failure& f) {
      if (PyErr_CheckSignals() != 0)
        throw nb::python_error();  // Ctrl-C in a function of the program that the call has run
      if constexpr (requires { convert_.failed(f.reason()); }) convert_.failed(f.reason());
      throw;
    }
  }

 private:
  running* runs() const noexcept override { return runs_.get(); }
  Convert convert_;
  std::unique_ptr<running_task<T>> runs_;
};

/// Tells the asyncio loop that runs now, if there is one, that a call has begun.
void tell_event_loop(const home_ptr& where);

template <class T, class Convert>
std::unique_ptr<call> begin(const home_ptr& where, std::unique_ptr<running_task<T>> runs, Convert convert) {
  auto made = std::make_unique<call_of<T, Convert>>(where, std::move(runs), std::move(convert));
  if (!made->done()) tell_event_loop(where);
  return made;
}

/// `convert` makes the result for Python, with the GIL. Its `failed`, if it has one, may throw something better than the call's error.
template <class T, class Convert>
std::unique_ptr<call> begin(const home_ptr& where, runtime::task<T>&& task, Convert convert,
                            std::vector<keep> keeps = {}) {
  const hold held = where->check();
  where->tidy();
  return begin(where, std::make_unique<running_task<T>>(*where, std::move(task), std::move(keeps)), std::move(convert));
}
inline std::unique_ptr<call> begin(const home_ptr& where, runtime::task<>&& task, std::vector<keep> keeps = {}) {
  return begin(where, std::move(task), [] { return nb::none(); }, std::move(keeps));
}

/// The op whose function this thread runs, while it lives: see `call::op`.
class inside_op {
 public:
  explicit inside_op(const void* op) noexcept : before_(std::exchange(now(), op)) {}
  inside_op(const inside_op&) = delete;
  inside_op& operator=(const inside_op&) = delete;
  ~inside_op() { now() = before_; }
  /// Throws `bad_argument` if a function of `op` is to wait for a call of `op`.
  static void check(const void* op);

 private:
  static const void*& now() noexcept;
  const void* before_;
};

/// True while `drive` runs a step of a Python coroutine (ranks.hpp): what it awaits is a call of parley, also inside of asyncio.
bool& is_driven() noexcept;

void add_calls(nb::module_& m);
void add_decisions(nb::module_& m);
void add_ranks(nb::module_& m);
void add_ops(nb::module_& m);
void add_own_configs(nb::module_& m);
void add_registrations(nb::module_& m);
void add_kernels(nb::module_& m);
void add_halo(nb::module_& m);
void add_groups(nb::module_& m);
void add_dataflow(nb::module_& m);
void add_pipelines(nb::module_& m);
void add_contextual(nb::module_& m);
void add_attention(nb::module_& m);
void add_gemm(nb::module_& m);
void add_cuda(nb::module_& m);

}  // namespace parley::python
