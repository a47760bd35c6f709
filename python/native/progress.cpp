#include "progress.hpp"

#include "cuda.hpp"

#include <parley/cuda_copies.hpp>
#include <sys/prctl.h>

#include <chrono>
#include <exception>

namespace parley::python {

progress::progress(rank_home& of) : state_(std::make_shared<state>(of)), thread_([s = state_] { run(s); }) {}

progress::~progress() {
  constexpr std::chrono::seconds longest(2);
  const without_gil free;
  if (state_->of.loop.forked()) {  // the thread is one of the parent's
    thread_.detach();
    return;
  }
  std::unique_lock held(state_->lock);
  state_->is_over = true;
  state_->changed.notify_all();
  const bool has_ended = state_->changed.wait_for(held, longest, [this] { return state_->has_ended; });
  held.unlock();
  has_ended ? thread_.join() : thread_.detach();
}

void progress::go_on() {
  {
    const std::scoped_lock held(state_->lock);
    state_->is_wanted = true;
  }
  state_->changed.notify_all();
}

void progress::run(const std::shared_ptr<state>& s) {
  constexpr std::chrono::microseconds between_turns(10);
  ::prctl(PR_SET_TIMERSLACK, 1'000UL);  // nanoseconds: Linux would add 50 us to each sleep
  if (s->of.gpu != nullptr) s->of.gpu->copies().driver().make_current(s->of.gpu->copies().device());
  std::unique_lock held(s->lock);
  for (;;) {
    s->changed.wait(held, [&] { return s->is_wanted || s->is_over; });
    if (s->is_over) break;
    s->is_wanted = false;
    held.unlock();
    while (take_turns(*s)) std::this_thread::sleep_for(between_turns);
    held.lock();
  }
  s->has_ended = true;
  s->changed.notify_all();
}

/// False: no stream waits any more.
bool progress::take_turns(state& s) {
  constexpr int at_once = 8;
  {
    const std::scoped_lock held(s.lock);
    if (s.is_over) return false;
  }
  try {
    return s.of.turn_for_streams(at_once);
  } catch (const std::exception& e) {
    const with_gil held;
    PySys_WriteStderr("parley: rank %u: its loop has failed while streams wait: %.800s\n", s.of.id, e.what());
    return false;  // the rank's own threads meet the same error in their next call
  }
}

}  // namespace parley::python
