#pragma once
/// An op's implementation knows whose it is while it runs: a config's sending or receiving half, a group's role, a pipeline's stage, a
/// kernel. Everything that runs in its scope, and in the scopes below, is a part of it. So a call of the op itself can be refused before
/// it moves anything: its messages would be taken for those of the program's own calls.
///
///     const implementation mine(here, {.kind = "op", .name = "activations"}, config.id());
///     scope running(here, {.deadline = until, .inside = &mine});
///     running.spawn(config.send(out, data));
///     co_await running.join();
///
///     check_call(ex, {.kind = "op", .name = "activations"});     // where a call begins: throws `bad_argument` within `mine`
///
/// The same check refuses every call in a child that fork() made of the rank's process (fork_watch.hpp). While no implementation runs it
/// reads one number.
#include <parley/runtime/time/executor.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace parley::runtime {

/// An op as its user knows it: `op activations`, `kernel scale`. Holds no text of its own.
struct op_title {
  std::string_view kind;
  std::string_view name;
  bool operator==(const op_title&) const noexcept = default;
};

class implementation {
 public:
  /// `id` is its config's. What `op` and `id` name outlives it.
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
  /// The implementation of another op that has called this one's op; null: none has.
  const implementation* outer() const noexcept { return outer_; }

 private:
  executor& executor_;
  const implementation* outer_;
  op_title op_;
  std::string_view id_;
};

/// A root scope that is begun inside an implementation, as `start` does, belongs to that implementation. It keeps this copy, because the
/// scope may outlive the implementation.
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

/// The innermost implementation that the running coroutine belongs to; null: it belongs to none. Defined in coroutines/scope.cpp.
const implementation* running_implementation(const executor& ex) noexcept;

/// Throws what such a call ends with.
[[noreturn]] void refuse_own_call(const op_title& op, std::string_view id);
/// The same in a child that fork() made: `bad_argument`, of what was done.
[[noreturn]] void refuse_fork(std::string_view done);

namespace detail {
[[gnu::cold]] void check_guarded_call(const executor& ex, const op_title& op);
}  // namespace detail

/// Throws `bad_argument` where what runs is an implementation of `op`, and in a process that is not the executor's.
inline void check_call(const executor& ex, const op_title& op) {
  if (ex.guarded()) [[unlikely]]
    detail::check_guarded_call(ex, op);
}

}  // namespace parley::runtime
