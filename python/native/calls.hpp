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
#include <parley/news.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/task.hpp>
#include <parley/work.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
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
runtime::error error_of(const nb::python_error& e);

/// Nothing: the op's own timeout.
using seconds = std::optional<double>;
std::chrono::nanoseconds span_of(seconds s, std::chrono::nanoseconds otherwise);

/// Sleeps; throws if it is cancelled.
runtime::task<> pause(std::chrono::nanoseconds span);

class call;

/// Keeps a Python object, and its memory in place. Made and destroyed with the GIL.
using keep = std::shared_ptr<const void>;

/// A call under way whose `Work` nobody has any more. It goes on, and keeps its buffers until it has ended.
struct abandoned_call {
  virtual ~abandoned_call() = default;
  virtual bool done() const noexcept = 0;
  virtual void cancel() noexcept = 0;
};

/// Where the calls of a rank run: its loop, and the thread that may use it. Calls hold it, so that the loop outlives them.
struct home {
  explicit home(runtime::executor& ex) : loop(ex) {}
  virtual ~home() = default;
  runtime::executor& loop;
  std::thread::id owner = std::this_thread::get_id();
  bool has_left = false;
  std::vector<std::unique_ptr<abandoned_call>> abandoned{};
  /// Of a virtual rank: all calls that exist, because its executor does not outlive them.
  std::set<call*> calls{};
  /// Of a virtual rank: ends what must not outlive the rank, such as registered memory. Called without the GIL.
  std::vector<std::function<void()>> at_end{};
  bool is_virtual = false;
  /// Throws `bad_argument` for a call by another thread, or `closed` after the rank has left.
  void check() const;
  /// Frees what has ended of the abandoned calls. Needs the GIL. The end of a Python object may abandon further calls.
  void tidy() {
    if (abandoned.empty()) return;
    const auto over = std::partition(abandoned.begin(), abandoned.end(), [](const auto& c) { return !c->done(); });
    const std::vector<std::unique_ptr<abandoned_call>> ended(std::make_move_iterator(over),
                                                             std::make_move_iterator(abandoned.end()));
    abandoned.erase(over, abandoned.end());
  }
  /// One turn of the loop; true: nothing is left to do until `descriptor` becomes readable.
  virtual bool poll() = 0;
  virtual int descriptor() const = 0;
};
using home_ptr = std::shared_ptr<home>;

/// A call under way (parley/work.hpp). It keeps its buffers alive until it has ended.
class call {
 public:
  call(const call&) = delete;
  call& operator=(const call&) = delete;
  virtual ~call() { where_->calls.erase(this); }
  virtual bool done() const noexcept = 0;
  virtual void cancel() noexcept = 0;
  /// The result of a call that has ended, which can be taken once; or throws.
  virtual nb::object take() = 0;
  /// Forgets a call that has ended, with its result.
  virtual void forget() = 0;
  bool test();
  /// Drives the loop until the call has ended. A signal such as Ctrl-C ends the wait: the call is cancelled.
  nb::object wait();
  /// Calls `f` from the loop once the call has ended.
  void on_end(nb::callable f);
  /// Waits as a coroutine of C++.
  runtime::task<> ended();
  const home_ptr& where() const noexcept { return where_; }

 protected:
  call(home_ptr where, std::vector<keep> keeps) : where_(std::move(where)), keeps_(std::move(keeps)) {
    if (where_->is_virtual) where_->calls.insert(this);
  }
  struct endings {
    runtime::news told;
    std::vector<nb::callable> functions;
    bool is_over = false;
  };
  /// What the loop calls at the end.
  static std::function<void()> telling(std::shared_ptr<endings> all);
  virtual bool advance() = 0;  // without the GIL
  home_ptr where_;
  std::vector<keep> keeps_;
  std::shared_ptr<endings> endings_ = std::make_shared<endings>();
};

template <class T, class Convert>
class call_of final : public call {
 public:
  call_of(home_ptr where, runtime::task<T>&& task, Convert convert, std::vector<keep> keeps)
      : call(std::move(where), std::move(keeps)), convert_(std::move(convert)) {
    const nb::gil_scoped_release free;
    work_ = runtime::start(where_->loop, std::move(task), {.on_end = telling(endings_)});
  }
  ~call_of() override {
    if (work_.done()) {
      endings_->functions.clear();
    } else {
      where_->abandoned.push_back(std::make_unique<rest>(std::move(keeps_), endings_, std::move(work_)));
    }
  }
  bool done() const noexcept override { return work_.done(); }
  void cancel() noexcept override { work_.cancel(); }
  void forget() override { work_ = {}; }
  nb::object take() override {
    try {
      if constexpr (std::is_void_v<T>) {
        work_.wait();
        return convert_();
      } else {
        return convert_(work_.wait());
      }
    } catch (const runtime::failure& f) {
      if constexpr (requires { convert_.failed(f.reason()); }) convert_.failed(f.reason());
      throw;
    }
  }

 private:
  struct rest final : abandoned_call {
    rest(std::vector<keep> k, std::shared_ptr<endings> e, runtime::work<T> w)
        : keeps(std::move(k)), told(std::move(e)), work(std::move(w)) {}
    ~rest() override {
      {
        const nb::gil_scoped_release free;  // functions of the program that it runs need the GIL to end
        work = {};
      }
      told->functions.clear();
    }
    bool done() const noexcept override { return work.done(); }
    void cancel() noexcept override { work.cancel(); }
    std::vector<keep> keeps;
    std::shared_ptr<endings> told;
    runtime::work<T> work;
  };
  bool advance() override { return work_.test(); }
  Convert convert_;
  runtime::work<T> work_;
};

/// `convert` makes the result for Python, with the GIL. Its `failed`, if it has one, may throw something better than the call's error.
template <class T, class Convert>
std::unique_ptr<call> begin(const home_ptr& where, runtime::task<T>&& task, Convert convert,
                            std::vector<keep> keeps = {}) {
  where->check();
  where->tidy();
  return std::make_unique<call_of<T, Convert>>(where, std::move(task), std::move(convert), std::move(keeps));
}
inline std::unique_ptr<call> begin(const home_ptr& where, runtime::task<>&& task, std::vector<keep> keeps = {}) {
  return begin(where, std::move(task), [] { return nb::none(); }, std::move(keeps));
}

/// True while `drive` runs a step of a Python coroutine (ranks.hpp): what it awaits is a call of parley, also inside of asyncio.
bool& is_driven() noexcept;

void add_calls(nb::module_& m);
void add_decisions(nb::module_& m);
void add_ranks(nb::module_& m);
void add_ops(nb::module_& m);
void add_kernels(nb::module_& m);
void add_halo(nb::module_& m);
void add_groups(nb::module_& m);
void add_dataflow(nb::module_& m);
void add_pipelines(nb::module_& m);
void add_contextual(nb::module_& m);
void add_attention(nb::module_& m);
void add_gemm(nb::module_& m);

}  // namespace parley::python
