#pragma once
/// Marks code as part of an op's implementation while it runs: a config's sending or receiving half, a group's role, a pipeline's stage, or
/// a kernel. Everything that runs in the implementation's scope, and in the scopes below, is part of the implementation. If the
/// implementation calls its own op, the call is refused before it moves any data, because the receiver would mistake its messages for
/// messages of the program's calls.
///
///     const implementation mine(here, {.kind = "op", .name = "activations"}, config.id());
///     scope running(here, {.deadline = until, .inside = &mine});
///     running.spawn(config.send(out, data));
///     co_await running.join();
///
///     check_call(ex, {.kind = "op", .name = "activations"});     // where a call begins: throws `bad_argument` within `mine`
///
/// That check also refuses every call in a child that fork() made of the rank's process (fork_watch.hpp). While no implementation runs, the
/// check only reads one number.
#include <parley/runtime/time/executor.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace parley::runtime {

/// An op's name in errors: `op activations`, `kernel scale`. Does not own the texts.
struct op_title {
  std::string_view kind;
  std::string_view name;
  bool operator==(const op_title&) const noexcept = default;
};

class implementation {
 public:
  /// `id` is the id of the config. The texts of `op` and `id` must outlive this object.
  template <class Scope>
  implementation(const Scope& around, op_title op, std::string_view id) noexcept
      : implementation(around.where(), around.inside(), op, id) {}
  implementation(executor& ex, const implementation* outer, op_title op, std::string_view id) noexcept
      : executor_(ex), outer_(outer), op_(op), id_(id) {
    executor_.add_guard();
  }
  implementation(const implementation&) = delete;
  implementation& operator=(const implementation&) = delete;
  ~implementation() { executor_.remove_guard(); }

  const op_title& op() const noexcept { return op_; }
  std::string_view id() const noexcept { return id_; }
  /// The implementation of another op that called this one's op; null: none.
  const implementation* outer() const noexcept { return outer_; }

 private:
  executor& executor_;
  const implementation* outer_;
  op_title op_;
  std::string_view id_;
};

/// A copy of an implementation, for a root scope that begins inside it, as `start` does. The root scope belongs to the implementation
/// and keeps this copy, because the scope may outlive the implementation.
class inherited_implementation {
 public:
  inherited_implementation(executor& ex, const implementation& of);
  const implementation* innermost() const noexcept { return &mine_; }

 private:
  std::unique_ptr<inherited_implementation> outer_;
  std::string name_;
  std::string id_;
  implementation mine_;
};

/// The innermost implementation that the running coroutine is part of; null: none. Defined in coroutines/scope.cpp.
const implementation* running_implementation(const executor& ex) noexcept;

/// Throws `bad_argument`: `op` was called by its own implementation, config `id`.
[[noreturn]] void refuse_own_call(const op_title& op, std::string_view id);
/// Throws `bad_argument`: `done` happened in a child that fork() made.
[[noreturn]] void refuse_fork(std::string_view done);

namespace detail {
[[gnu::cold]] void check_guarded_call(const executor& ex, const op_title& op);
}  // namespace detail

/// Throws `bad_argument` if the running code is part of an implementation of `op`, or if this process is not the executor's.
inline void check_call(const executor& ex, const op_title& op) {
  if (ex.guarded()) [[unlikely]]
    detail::check_guarded_call(ex, op);
}

}  // namespace parley::runtime
