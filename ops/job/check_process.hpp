#pragma once
/// Throws in a child process that fork() made of the rank's process: such a child may not use the rank.
///
///     check_process(loop, "its results were to be written");      // throws `bad_argument` in such a child
#include <parley/runtime/implementation.hpp>
#include <parley/runtime/time/executor.hpp>

#include <string_view>

namespace parley::ops {

inline void check_process(const runtime::executor& ex, std::string_view done) {
  if (ex.forked()) runtime::refuse_fork(done);
}

}  // namespace parley::ops
