#include "functions.hpp"

#include <parley/compute.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace parley::python {

using runtime::errc;
using runtime::task;

namespace {

std::string name_of(nb::handle object) {
  const nb::object name = nb::getattr(object, "__qualname__", nb::none());
  return nb::cast<std::string>(name.is_none() ? nb::repr(object) : nb::str(name));
}

bool is_coroutine_function(nb::handle f) {
  const nb::object is = nb::module_::import_("inspect").attr("iscoroutinefunction");
  return nb::cast<bool>(is(f)) || nb::cast<bool>(is(nb::getattr(f, "__call__", nb::none())));
}

/// Arrays of numpy over memory that is theirs only for a while. Made, asked and given up with the GIL.
class loans {
 public:
  loans(const std::vector<std::uint64_t>& numbers, const std::vector<lent>& arrays) {
    nb::list all;
    for (const std::uint64_t n : numbers) all.append(n);
    for (const lent& a : arrays) all.append(a.type == nullptr ? nb::none() : array_of(a));
    words_ = nb::tuple(all);
  }
  nb::object take() { return std::exchange(words_, {}); }
  bool are_over() const noexcept { return in_use_.use_count() == 1; }
  /// A traceback keeps a function's variables, and with them arrays, whose memory may be gone when somebody looks.
  void forget_variables(const nb::python_error& e) const {
    if (!are_over() && e.traceback().is_valid()) nb::module_::import_("traceback").attr("clear_frames")(e.traceback());
  }
  /// After the function has ended.
  void check_over(const function& f) const {
    if (are_over()) return;
    nb::module_::import_("gc").attr("collect")();  // a cycle of the function's own objects may hold an array
    if (are_over()) return;
    runtime::raise({errc::bad_argument, name_of(f.held()) +
                                            " has kept an array that it was given, whose memory is used again now; "
                                            "keep a copy, such as x.copy()"});
  }

 private:
  nb::object array_of(const lent& a) {
    if (bytes_of(*a.type, a.shape) != a.bytes.size())
      runtime::raise({errc::bad_argument, "another run of this stage has begun with other shapes"});
    // The array and everything that is made from it keep this object.
    const nb::capsule owner(new std::shared_ptr<int>(in_use_),
                            [](void* p) noexcept { delete static_cast<std::shared_ptr<int>*>(p); });
    if (a.is_read_only)
      return nb::cast(
          nb::ndarray<nb::numpy, nb::ro>(a.bytes.data(), a.shape.size(), a.shape.data(), owner, nullptr, a.type->of),
          nb::rv_policy::reference);
    return nb::cast(nb::ndarray<nb::numpy>(a.bytes.data(), a.shape.size(), a.shape.data(), owner, nullptr, a.type->of),
                    nb::rv_policy::reference);
  }
  nb::object words_;
  std::shared_ptr<int> in_use_ = std::make_shared<int>(0);
};

/// Calls a plain function. With the GIL. `all`: the arrays among its words; null: there are none.
nb::object call_plain(const function& f, nb::object words, thrown& into, const loans* all) {
  const inside_op mine(into.op);
  try {
    PyObject* const made = run_program([&] { return PyObject_Call(f.held().ptr(), words.ptr(), nullptr); });
    if (made == nullptr) throw nb::python_error();
    nb::object returned = nb::steal(made);
    if (nb::hasattr(returned, "cr_frame")) {
      returned.attr("close")();
      runtime::raise(
          {errc::bad_argument,
           name_of(f.held()) + " has returned a coroutine; pass the `async def` itself, so that it is awaited"});
    }
    return returned;
  } catch (nb::python_error& e) {
    words.reset();
    if (all != nullptr) all->forget_variables(e);
    runtime::raise(into.note(e));
  }
}

/// Runs the coroutine of an `async def`.
task<> call_async(function f, thrown_ptr into, std::shared_ptr<nb::object> words, const loans* all,
                  std::shared_ptr<nb::object> result) {
  auto s = std::make_shared<script>();
  s->op = into->op;
  {
    const with_gil gil;
    try {
      const nb::tuple mine = nb::steal<nb::tuple>(words->release());
      s->coroutine = f.held()(*mine);
    } catch (nb::python_error& e) {
      runtime::raise(into->note(e));
    }
  }
  std::exception_ptr failed;
  try {
    co_await drive(s);
  } catch (...) {
    failed = std::current_exception();
  }
  const with_gil gil;
  s->coroutine.reset();
  s->waits_for.reset();
  if (failed && s->thrown) {
    try {
      std::rethrow_exception(std::exchange(s->thrown, nullptr));
    } catch (nb::python_error& e) {
      if (all != nullptr) all->forget_variables(e);
      static_cast<void>(into->note(e));
    } catch (...) {  // an error of parley, which `failed` has, too
    }
  }
  if (failed) std::rethrow_exception(failed);
  if (result) *result = std::exchange(s->result, {});
}

}  // namespace

// ---- functions

namespace {
/// True while this thread runs a plain function on behalf of a worker.
bool& is_worker() noexcept {
  static thread_local bool is = false;
  return is;
}
struct as_worker {
  as_worker() noexcept : before(std::exchange(is_worker(), true)) {}
  as_worker(const as_worker&) = delete;
  as_worker& operator=(const as_worker&) = delete;
  ~as_worker() { is_worker() = before; }
  bool before;
};
}  // namespace

void function::check_worker() const {
  if (!is_async_ && is_worker())
    runtime::raise(
        {errc::bad_argument, "the function " + name_of(held()) +
                                 " would run on the worker thread of its rank, which the function that starts "
                                 "it keeps busy; pass an `async def`, or start it on another thread"});
}

function::function(nb::object f, const char* what) : is_async_(false) {
  if (PyCallable_Check(f.ptr()) == 0)
    runtime::raise({errc::bad_argument, std::string(what) + ": an object of type " +
                                            nb::cast<std::string>(f.type().attr("__name__")) + " cannot be called"});
  is_async_ = is_coroutine_function(f);
  held_ = python::kept(std::move(f));
}

runtime::error thrown::note(const nb::python_error& e) {
  runtime::error stands_for_it = error_of(e);
  all_.push_back({std::current_exception(), stands_for_it.text()});
  return stands_for_it;
}

void thrown::rethrow(const runtime::error& why) {
  const std::string text = why.what();
  const auto at =
      std::find_if(all_.begin(), all_.end(), [&](const noted& n) { return text.find(n.text) != std::string::npos; });
  if (at == all_.end()) return;
  const std::exception_ptr exception = at->exception;
  all_.erase(at);
  std::rethrow_exception(exception);
}

task<> run_function(function f, thrown_ptr into) {
  if (!f.is_async()) {
    auto step = [&f, &into] {
      const with_gil gil;
      const as_worker mine;
      call_plain(f, nb::tuple(), *into, nullptr);
    };
    co_await runtime::compute(step);
    co_return;
  }
  std::shared_ptr<nb::object> words;
  {
    const with_gil gil;
    words = kept(nb::tuple());
  }
  co_await call_async(f, into, words, nullptr, nullptr);
}

task<> run_here(function f, thrown_ptr into, std::shared_ptr<nb::object> result) {
  std::shared_ptr<nb::object> words;
  {
    const with_gil gil;
    if (!f.is_async()) {
      *result = call_plain(f, nb::tuple(), *into, nullptr);
      co_return;
    }
    words = kept(nb::tuple());
  }
  co_await call_async(f, into, words, nullptr, result);
}

// ---- arrays

array_type array_type_of(nb::handle dtype) {
  const auto refuse = [](const std::string& why) { runtime::raise({errc::bad_argument, "dtype: " + why}); };
  nb::object known;
  try {
    known = nb::module_::import_("numpy").attr("dtype")(dtype);
  } catch (nb::python_error& e) {
    if (e.matches(PyExc_ImportError)) refuse("functions of the program get arrays of numpy; install numpy");
    throw;
  }
  const auto kind = nb::cast<std::string>(known.attr("kind"));
  array_type made{.bytes = nb::cast<std::size_t>(known.attr("itemsize"))};
  using code = nb::dlpack::dtype_code;
  made.of.code = static_cast<std::uint8_t>(kind == "f"   ? code::Float
                                           : kind == "i" ? code::Int
                                           : kind == "u" ? code::UInt
                                                         : code::Bool);
  if (std::string("fiub").find(kind) == std::string::npos || made.bytes > 8 || !nb::cast<bool>(known.attr("isnative")))
    refuse(nb::cast<std::string>(nb::str(known)) + " is no type of numbers of this machine with at most 64 bits");
  made.of.bits = static_cast<std::uint8_t>(made.bytes * 8);
  made.of.lanes = 1;
  return made;
}

array_shape array_shape_of(nb::handle shape) {
  try {
    if (PyIndex_Check(shape.ptr()) != 0) return {nb::cast<std::size_t>(shape)};
    return nb::cast<array_shape>(shape);
  } catch (const nb::cast_error&) {
    runtime::raise({errc::bad_argument,
                    nb::cast<std::string>(nb::repr(shape)) + " is no shape; pass a number or a tuple of numbers"});
  }
}

std::size_t bytes_of(const array_type& type, const array_shape& shape) {
  std::size_t bytes = type.bytes;
  for (const std::size_t each : shape) {
    if (each != 0 && bytes > std::numeric_limits<std::size_t>::max() / 2 / each)
      runtime::raise({errc::bad_argument, "an array of this shape does not fit into any memory"});
    bytes *= each;
  }
  return bytes;
}

task<> run_with_arrays(function f, thrown_ptr into, std::vector<std::uint64_t> numbers, std::vector<lent> arrays) {
  if (!f.is_async()) {
    auto step = [&] {
      const with_gil gil;
      const as_worker mine;
      loans all(numbers, arrays);
      call_plain(f, all.take(), *into, &all);
      all.check_over(f);
    };
    co_await runtime::compute(step);
    co_return;
  }
  std::unique_ptr<loans> all;
  std::shared_ptr<nb::object> words;
  {
    const with_gil gil;
    all = std::make_unique<loans>(numbers, arrays);
    words = kept(all->take());
  }
  co_await call_async(f, into, words, all.get(), nullptr);
  const with_gil gil;
  all->check_over(f);
}

}  // namespace parley::python
