#pragma once
/// Converts an exception of a rank's program into the error that the rank prints and sends to the other ranks:
///
///     const error why = error_of_program(std::current_exception());
#include <parley/error.hpp>

#include <exception>

namespace parley::ops {

/// If the exception has no text, the error says that the program threw no std::exception, and what to throw instead.
inline runtime::error error_of_program(const std::exception_ptr& thrown) {
  runtime::error why = runtime::describe(thrown);
  if (why.code() != runtime::errc::exception || !why.text().empty()) return why;
  return {runtime::errc::exception, "the program threw an object that is not a std::exception; throw a std::exception, "
                                    "so that its text can be shown"};
}

}  // namespace parley::ops
