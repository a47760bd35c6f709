#pragma once
/// Notifies objects that fork() has copied them into a child process. A rank's transports belong to the parent: messages that the child
/// sends would arrive as the parent's, and the parent would lose messages that the child receives.
///
///     struct state : fork_watch {
///       void on_fork() noexcept override { pollers.clear(); }     // in the child, before fork() returns there
///     };
///     if (state.forked()) …
///
/// Costs nothing except at a fork(). A program started by vfork(), posix_spawn() or clone() is not notified, because it calls exec.
#include <parley/runtime/intrusive_list.hpp>

namespace parley::runtime {

class fork_watch : private list_hook {
 public:
  fork_watch();
  fork_watch(const fork_watch&) = delete;
  fork_watch& operator=(const fork_watch&) = delete;
  virtual ~fork_watch();
  /// True for a copy in a child.
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
