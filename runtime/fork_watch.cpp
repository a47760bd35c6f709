#include <parley/runtime/fork_watch.hpp>

#include <pthread.h>

#include <mutex>

namespace parley::runtime {

namespace {

struct watches {
  // fork() runs with this mutex locked, so that the list is consistent in the child, even if another thread has called fork().
  std::mutex mutex;
  intrusive_list<fork_watch> all;
};
watches& known() noexcept {
  static auto* const made = new watches;  // never destroyed, because static objects may also be watched
  return *made;
}

}  // namespace

void fork_watch::in_child() noexcept {
  known().all.for_each([](fork_watch& w) {
    w.forked_ = true;
    w.on_fork();
  });
  known().mutex.unlock();
}

fork_watch::fork_watch() {
  static const int registered = pthread_atfork([] { known().mutex.lock(); }, [] { known().mutex.unlock(); }, &in_child);
  static_cast<void>(registered);
  const std::lock_guard lock(known().mutex);
  known().all.push_back(*this);
}

fork_watch::~fork_watch() {
  const std::lock_guard lock(known().mutex);
  unlink();
}

}  // namespace parley::runtime
