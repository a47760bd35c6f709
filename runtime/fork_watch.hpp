#pragma once
/// Tells what belongs to one process that it has been copied into another by fork(). A rank's transports are its process's own: what
/// the child sends would arrive as the parent's, and what it takes would be lost to the parent.
///
///     struct state : fork_watch {
///       void on_fork() noexcept override { pollers.clear(); }     // in the child, before fork() returns there
///     };
///     if (state.forked()) …
///
/// Costs nothing but at a fork(). A program that is started by vfork(), posix_spawn() or clone() is not told, and need not be: it calls exec.
#include <parley/runtime/intrusive_list.hpp>

namespace parley::runtime {

class fork_watch : private list_hook {
 public:
  fork_watch();
  fork_watch(const fork_watch&) = delete;
  fork_watch& operator=(const fork_watch&) = delete;
  virtual ~fork_watch();
  /// Whether this is a copy in a child.
  bool forked() const noexcept { return forked_; }

 protected:
  /// Called in the child, before fork() returns there.
  virtual void on_fork() noexcept {}

 private:
  friend class intrusive_list<fork_watch>;
  static void in_child() noexcept;
  bool forked_ = false;
};

}  // namespace parley::runtime
