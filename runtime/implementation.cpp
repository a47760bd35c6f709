#include <parley/runtime/implementation.hpp>

#include <unistd.h>

#include <string>

namespace parley::runtime {

void refuse_own_call(const op_title& op, std::string_view id) {
  raise({errc::bad_argument, std::string(op.kind) + " " + std::string(op.name) +
                                 " was called by its own implementation " + std::string(id) +
                                 "; an implementation may call other ops, but not its own"});
}

void refuse_fork(std::string_view done) {
  raise({errc::bad_argument, std::string(done) + " in process " + std::to_string(::getpid()) +
                                 ", which fork() made of a rank's process; only the process that joined the job has a "
                                 "part in it, so let the child call exec, or end"});
}

void detail::check_guarded_call(const executor& ex, const op_title& op) {
  if (ex.forked()) refuse_fork(std::string(op.kind) + " " + std::string(op.name) + " was called");
  const std::coroutine_handle<> running = ex.current().coroutine();
  if (!running) return;
  for (const implementation* i = promise_of(running).home->inside(); i != nullptr; i = i->outer()) {
    if (i->op() == op) refuse_own_call(op, i->id());
  }
}

}  // namespace parley::runtime
