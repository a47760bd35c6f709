#pragma once
/// A thread that gives a rank's loop its turns while streams of a GPU wait for calls. Without it, calls go on only while a thread is in a
/// call of parley, and the program may be in one of CUDA that waits for the stream.
///
/// The thread takes turns without the GIL, and leaves them out while another thread uses the loop. It sleeps while no stream waits.
#include "ranks.hpp"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace parley::python {

class progress {
 public:
  explicit progress(rank_home& of);
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  /// Needs the GIL, which it gives up until the thread has ended. A thread that Python does not let in any more is left asleep.
  ~progress();
  /// A stream waits for a call.
  void go_on();

 private:
  struct state {
    explicit state(rank_home& h) noexcept : of(h) {}
    rank_home& of;
    std::mutex lock{};
    std::condition_variable changed{};
    bool is_wanted = false, is_over = false, has_ended = false;
  };
  static void run(const std::shared_ptr<state>& s);
  static bool take_turns(state& s);
  std::shared_ptr<state> state_;
  std::thread thread_;
};

}  // namespace parley::python
