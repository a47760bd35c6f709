#include <parley/runtime/time/virtual_time.hpp>

#include <parley/task.hpp>

#include <iterator>
#include <limits>
#include <utility>

namespace parley::runtime {

// Keeps a computation alive until its modelled time has passed.
struct virtual_time::modelled_end : timer {
  modelled_end(virtual_time& ex, std::shared_ptr<compute_job> j) noexcept
      : timer(&on_end), owner(ex), job(std::move(j)) {}
  static void on_end(timer& self) noexcept {
    auto& end = static_cast<modelled_end&>(self);
    end.job->on_done();
    end.owner.ends_.erase(end.place);
  }
  virtual_time& owner;
  std::shared_ptr<compute_job> job;
  std::list<std::unique_ptr<modelled_end>>::iterator place;
};

virtual_time::virtual_time(std::uint64_t seed) : executor(0, seed) {}
virtual_time::~virtual_time() = default;

void virtual_time::submit(std::shared_ptr<compute_job> job) {
  job->execute();
  const time_ns when = deadline_in(job->modelled_ns());
  ends_.push_back(std::make_unique<modelled_end>(*this, std::move(job)));
  ends_.back()->place = std::prev(ends_.end());
  arm(*ends_.back(), when);
}

std::size_t virtual_time::run_posted() {
  std::vector<std::function<void()>> posted;
  posted.swap(posted_);
  for (auto& f : posted) f();
  return posted.size();
}

std::size_t virtual_time::step(std::size_t limit) {
  const std::size_t posted = posted_.empty() ? 0 : run_posted();
  advance_to(precise_now());
  if (choose_ == nullptr) return run_ready(limit) + posted;
  std::size_t resumed = 0;
  for (; resumed < limit && has_ready(); ++resumed) {
    bring_forward(in_order_of_spawning((*choose_)(ready_count())));
    if (const auto next = ready_at(0).coroutine()) promise_of(next).begun = true;
    run_ready(1);
  }
  return resumed + posted;
}

std::uint32_t virtual_time::task_of(std::size_t i) const noexcept {
  const auto part = ready_at(i).coroutine();
  return part ? promise_of_whole(part).number : 0;
}

// If the chosen task has not begun, returns the first task that has not begun.
std::size_t virtual_time::in_order_of_spawning(std::size_t chosen) const noexcept {
  const auto number_if_new = [this](std::size_t i) -> std::uint32_t {
    const auto part = ready_at(i).coroutine();
    if (!part) return 0;
    const promise_base& p = promise_of(part);
    return p.begun ? 0 : p.number;
  };
  std::uint32_t first = number_if_new(chosen);
  if (first == 0) return chosen;
  for (std::size_t i = 0; i < ready_count(); ++i) {
    const std::uint32_t other = number_if_new(i);
    if (other == 0 || other >= first) continue;
    first = other;
    chosen = i;
  }
  return chosen;
}

bool virtual_time::turn() { return step(std::numeric_limits<std::size_t>::max()) != 0; }

bool virtual_time::wait() {
  if (has_ready() || !posted_.empty()) return true;
  const time_ns next = timers().next();
  if (next == never) return false;
  set_now(next);
  timers().advance(now());
  return true;
}

}  // namespace parley::runtime
