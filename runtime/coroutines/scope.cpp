#include <parley/runtime/coroutines/scope.hpp>

#include <parley/runtime/implementation.hpp>

#include <algorithm>
#include <utility>

namespace parley::runtime {

scope::scope(executor& ex, scope* parent, options o) noexcept
    : executor_(ex), deadline_(parent == nullptr ? o.deadline : std::min(o.deadline, parent->deadline_)),
      meter_(o.meter != nullptr || parent == nullptr ? o.meter : parent->meter_),
      inside_(o.inside != nullptr || parent == nullptr ? o.inside : parent->inside_), deadline_timer_(*this) {
  if (parent == nullptr && inside_ == nullptr && ex.guarded()) [[unlikely]] {
    if (const implementation* const around = running_implementation(ex)) {
      inherited_ = std::make_unique<inherited_implementation>(ex, *around);
      inside_ = inherited_->innermost();
    }
  }
  if (parent != nullptr) {
    if (o.meter != nullptr) o.meter->lies_in(parent->meter_);
    parent->inner_.push_back(*this);
    cancelled_ = parent->cancelled_;
  }
  if (deadline_ != never && (parent == nullptr || deadline_ < parent->deadline_)) ex.arm(deadline_timer_, deadline_);
}

const implementation* running_implementation(const executor& ex) noexcept {
  const std::coroutine_handle<> running = ex.current().coroutine();
  return running ? promise_of(running).home->inside() : nullptr;
}

scope::~scope() {
  if (!tasks_.empty() && cancelled_ == errc::none) executor_.note_dropped();
  // A frame owns the frames that it awaits, down to the innermost, so that destroying the outermost frame unlinks all their waits.
  while (!tasks_.empty()) {
    promise_base& p = tasks_.pop_front();
    task_observer* const told = p.observer;
    p.self.destroy();
    told->on_task_destroyed();
  }
}

void scope::spawn(promise_base& p, task_observer* also) {
  take(p, also != nullptr ? *also : *this);
  begin_in_order(executor_, p);
}

void scope::begin(promise_base& p) {
  take(p, *this);
  p.state = promise_base::progress::waiting;
  p.number = executor_.number_task();
  p.begun = true;
  const continuation outer = executor_.exchange_current(p.self);
  detail::begin_nested(p);
  executor_.exchange_current(outer);
}

void scope::take(promise_base& p, task_observer& told) noexcept {
  p.home = this;
  p.observer = &told;
  tasks_.push_back(p);
  ++running_;
}

void scope::on_task_end(promise_base& ended) noexcept {
  ended.unlink();
  if (ended.thrown && !thrown_) {
    thrown_ = ended.thrown;
    cancel();
  }
  executor_.retire(ended.self);
  if (--running_ != 0) return;
  while (!joiners_.empty()) {
    joiner& woken = joiners_.pop_front();
    woken.thrown_ = std::exchange(thrown_, nullptr);
    executor_.schedule(woken.waiting_);
  }
}

// Marks all scopes below before it wakes the first waiter. A waiter that gives up may let the next waiter in its queue proceed, unless that
// one is also about to be cancelled.
void scope::cancel(errc why) noexcept {
  if (cancelled_ != errc::none) return;
  mark_cancelled(why);
  tell_waiters();
}

void scope::mark_cancelled(errc why) noexcept {
  if (cancelled_ != errc::none) return;
  cancelled_ = why;
  untold_ = true;
  timer_wheel::disarm(deadline_timer_);
  inner_.for_each([why](scope& s) { s.mark_cancelled(why); });
}

void scope::tell_waiters() noexcept {
  if (!std::exchange(untold_, false)) return;
  intrusive_list<waiter> to_visit;
  to_visit.take_all(waiters_);
  while (!to_visit.empty()) {
    waiter& w = to_visit.pop_front();
    waiters_.push_back(w);
    w.on_cancel(w, cancelled_);
  }
  inner_.for_each([](scope& s) { s.tell_waiters(); });
}

}  // namespace parley::runtime
