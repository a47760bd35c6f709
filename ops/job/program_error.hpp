#pragma once
/// The error of an exception that a rank's program has thrown, as the other ranks hear it and as its rank prints it:
///
///     const error why = error_of_program(std::current_exception());
#include <parley/error.hpp>

#include <exception>

namespace parley::ops {

/// If the exception has no text, the error says that the program threw no std::exception, and what to throw instead.
inline runtime::error error_of_program(const std::exception_ptr& thrown) {
  runtime::error why = runtime::describe(thrown);
  if (why.code() != runtime::errc::exception || !why.text().empty()) return why;
  return {runtime::errc::exception,
          "the program threw something that is no std::exception; throw one, so that its text can be shown"};
}

}  // namespace parley::ops
