#pragma once
/// A source of work that the reactor must poll, such as a UCX worker.
///
/// The reactor calls `poll` on every turn. Before it sleeps, it calls `arm`. `busy` means that something has arrived since the last poll,
/// so the reactor must poll again. `armed` promises that `event_fd` becomes readable at the next event. Between a successful `arm` and the
/// sleep, no operation may be started on the poller.
namespace parley::runtime {

class poller {
 public:
  enum class arm_state { armed, busy };

  virtual ~poller() = default;
  /// Makes progress and delivers what has arrived. Returns true if anything happened. Never blocks.
  virtual bool poll() = 0;
  virtual arm_state arm() = 0;
  /// Owned by the poller and valid as long as the poller lives.
  virtual int event_fd() const = 0;
};

}  // namespace parley::runtime
