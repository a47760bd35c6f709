#include <parley/runtime/implementation.hpp>

#include <parley/error.hpp>

#include <unistd.h>

#include <string>

namespace parley::runtime {

inherited_implementation::inherited_implementation(executor& ex, const implementation& of)
    : outer_(of.outer() == nullptr ? nullptr : std::make_unique<inherited_implementation>(ex, *of.outer())),
      name_(of.op().name), id_(of.id()),
      mine_(ex, outer_ == nullptr ? nullptr : outer_->innermost(), {of.op().kind, name_}, id_) {}

void refuse_own_call(const op_title& op, std::string_view id) {
  raise({errc::bad_argument, std::string(op.kind) + " " + std::string(op.name) +
                                 " was called by its own implementation " + std::string(id) +
                                 "; an implementation may call other ops, but not its own"});
}

void refuse_fork(std::string_view done) {
  raise({errc::bad_argument, std::string(done) + " in process " + std::to_string(::getpid()) +
                                 ", which fork() made of a rank's process; only the process that joined the job has a "
                                 "part in it, so the child must call exec or end"});
}

void detail::check_guarded_call(const executor& ex, const op_title& op) {
  if (ex.forked()) refuse_fork(std::string(op.kind) + " " + std::string(op.name) + " was called");
  for (const implementation* i = running_implementation(ex); i != nullptr; i = i->outer()) {
    if (i->op() == op) refuse_own_call(op, i->id());
  }
}

}  // namespace parley::runtime
