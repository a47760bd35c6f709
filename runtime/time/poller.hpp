#pragma once
/// What the reactor needs from a source of work that it has to ask, such as a UCX worker.
///
/// The reactor calls `poll` on every turn. Before it sleeps it calls `arm`: `busy` means that something came meanwhile and
/// that it must poll again; `armed` promises that `event_fd` becomes readable at the next event. Between a successful `arm`
/// and the sleep nothing may start an operation on the poller.
namespace parley::runtime {

class poller {
 public:
  enum class arm_state { armed, busy };

  virtual ~poller() = default;
  /// Makes progress and delivers what came. Returns whether anything happened. Never blocks.
  virtual bool poll() = 0;
  virtual arm_state arm() = 0;
  /// Owned by the poller and valid as long as it.
  virtual int event_fd() const = 0;
};

}  // namespace parley::runtime
