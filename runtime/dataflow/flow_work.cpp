#include <parley/runtime/dataflow/flow_work.hpp>

#include <parley/runtime/coroutines/run.hpp>

#include <exception>
#include <string>

namespace parley::runtime {

std::size_t flow_work::size() const noexcept {
  return batch_ != nullptr ? batch_->parts().size() : (step_ != nullptr ? 1 : 0);
}

bool flow_work::over() const noexcept {
  if (done()) return true;
  bool all = true;
  for_each_step([&all](const flow_step_ptr& s) { all = all && (s->open == 0 || s->torn_); });
  return all;
}

flow_work flow_work::share() const noexcept {
  flow_work same;
  same.where_ = where_;
  same.step_ = step_;
  same.batch_ = batch_;
  return same;
}

flow_work flow_work::operator[](std::size_t i) const {
  if (i >= size())
    raise({errc::bad_argument,
           "this work has " + std::to_string(size()) + " parts; there is no part " + std::to_string(i)});
  if (batch_ == nullptr) return {*where_, step_};
  const flow_part& one = batch_->parts()[i].is;
  if (one.step != nullptr) return {*where_, one.step};
  return {*where_, flow_batch::of({&one, 1})};
}

void flow_work::take() const {
  for_each_step([](const flow_step_ptr& s) {
    for (flow_step* seen = s.get(); seen != nullptr; seen = seen->to_blame_.get()) seen->seen_ = true;
  });
  if (end()->thrown) std::rethrow_exception(end()->thrown);
}

void flow_work::check_not_moved() const {
  if (end() == nullptr) raise({errc::bad_argument, "there is nothing to wait for: this work was moved away"});
}

void flow_work::outside_coroutines() const {
  if (where_->resuming())
    raise({errc::bad_argument,
           "a wait for a work inside a coroutine would block all other coroutines; co_await the work instead"});
}

bool flow_work::test() {
  if (done()) return true;
  outside_coroutines();
  where_->catch_up();
  return done();
}

void flow_work::wait() {
  check_not_moved();
  if (!done()) {
    outside_coroutines();
    run_until(*where_, [this] { return done(); });
  }
  take();
}

result<> flow_work::outcome() {
  try {
    wait();
    return {};
  } catch (const failure& f) {
    return f.reason();
  }
}

std::uint64_t flow_work::bytes() const noexcept {
  std::uint64_t sum = 0;
  for_each_step([&sum](const flow_step_ptr& s) { sum += s->bytes(); });
  if (batch_ == nullptr) return sum;
  for (const flow_batch::part& p : batch_->parts()) sum += p.is.bytes;
  return sum;
}

void flow_work::cancel(errc why) noexcept {
  for_each_step([why](const flow_step_ptr& s) {
    if (s->open != 0) s->cancel(why);
  });
}

void flow_work::wait_on(compute_queue& queue) const {
  for_each_step([&queue](const flow_step_ptr& s) { queue.tail_.push_back(s); });
}

}  // namespace parley::runtime
