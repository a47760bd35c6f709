#pragma once
/// What a rank's program has thrown, as the others hear of it and its rank prints it:
///
///     const error why = error_of_program(std::current_exception());
#include <parley/error.hpp>

#include <exception>

namespace parley::ops {

/// An exception without a text gets one that says what the program threw, and what to throw instead.
inline runtime::error error_of_program(const std::exception_ptr& thrown) {
  runtime::error why = runtime::describe(thrown);
  if (why.code() != runtime::errc::exception || !why.text().empty()) return why;
  return {runtime::errc::exception,
          "the program threw something that is no std::exception; throw one, so that its text can be shown"};
}

}  // namespace parley::ops
