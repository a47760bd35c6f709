#pragma once
/// Functions of the program that C++ calls while it runs without the GIL, and the arrays that it lends them.
///
/// A plain function runs on a worker thread, so the rank's messages move on meanwhile. An `async def` runs on the rank's own thread, and
/// may await calls of the rank.
#include "ranks.hpp"

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace parley::python {

/// A function of the program. C++ copies and destroys it with or without the GIL.
class function {
 public:
  /// `what` names the argument in errors. Throws `bad_argument` unless `f` can be called.
  function(nb::object f, const char* what);
  bool is_async() const noexcept { return is_async_; }
  /// Throws `bad_argument` where a plain function starts a plain function: a rank has one worker thread for them.
  void check_worker() const;
  /// The holder of the GIL calls it.
  nb::object& held() const noexcept { return *held_; }

 private:
  std::shared_ptr<nb::object> held_;
  bool is_async_;
};

/// Exceptions of the program in a call. They come out of that call instead of the errors that stand for them.
class thrown {
 public:
  /// In the handler of the exception, with the GIL. Returns the error that stands for it.
  runtime::error note(const nb::python_error& e);
  /// Rethrows the exception for which `why` stands; none: the call has failed for another reason.
  void rethrow(const runtime::error& why);
  const void* op = nullptr;  ///< see `call::op`

 private:
  struct noted {
    std::exception_ptr exception;
    std::string text;
  };
  std::vector<noted> all_;
};
using thrown_ptr = std::shared_ptr<thrown>;

/// Runs `f()`: see above. Its exception is noted.
runtime::task<> run_function(function f, thrown_ptr into);
/// Like `run_function`, and also a plain function runs on the rank's own thread, at once. `result` gets what it returns.
runtime::task<> run_here(function f, thrown_ptr into, std::shared_ptr<nb::object> result);

/// The elements of arrays, as numpy names their type.
struct array_type {
  nb::dlpack::dtype of{};
  std::size_t bytes = 0;
};
/// `dtype` is what numpy.dtype takes. Throws `bad_argument` for types that are no numbers, and without numpy.
array_type array_type_of(nb::handle dtype);
using array_shape = std::vector<std::size_t>;
/// A number or a sequence of numbers.
array_shape array_shape_of(nb::handle shape);
std::size_t bytes_of(const array_type& type, const array_shape& shape);

/// Memory that a function of the program sees as an array of numpy while it runs.
struct lent {
  std::span<std::byte> bytes{};
  const array_type* type = nullptr;  ///< null: the function gets None
  array_shape shape{};
  bool is_read_only = false;
};
/// Calls `f(*numbers, *arrays)`: see above. Throws `bad_argument` if an array is kept when the function has ended, because its memory is
/// used again then.
runtime::task<> run_with_arrays(function f, thrown_ptr into, std::vector<std::uint64_t> numbers,
                                std::vector<lent> arrays);

}  // namespace parley::python
