#include <parley/runtime/dataflow.hpp>

#include <algorithm>

namespace parley::runtime {

// ---- one step ---------------------------------------------------------------------------------------------------------

void flow_step::wait_for(flow_step& earlier, bool data) {
  if (earlier.open == 0) {
    if (data && earlier.thrown && to_blame_ == nullptr) to_blame_ = earlier.shared_from_this();
    return;
  }
  // All that one step waits for is added in a row.
  if (!earlier.followers_.empty() && earlier.followers_.back().step.get() == this) {
    earlier.followers_.back().needs_data |= data;
    return;
  }
  earlier.followers_.push_back({shared_from_this(), data});
  ++unmet_;
}

void flow_step::one_met() noexcept {
  if (--unmet_ == 0) ready_.tell();
}

void flow_step::note_begun() noexcept {
  begun_ = true;
  if (const auto next = std::exchange(next_begin_, nullptr)) next->one_met();
}

void flow_step::end() noexcept {
  note_begun();
  const auto end_of = [this](flow_end& e) {
    if (thrown && !e.thrown) e.thrown = thrown;
    if (--e.open == 0) e.told.tell();
  };
  for (const auto& whole : wholes_) end_of(*whole);
  end_of(*this);
  for (const follower& f : std::exchange(followers_, {})) {
    if (thrown && f.needs_data && f.step->to_blame_ == nullptr) f.step->to_blame_ = shared_from_this();
    f.step->one_met();
  }
}

// ---- what was started -------------------------------------------------------------------------------------------------

flow_work flow_work::operator[](std::size_t i) const {
  if (i >= steps_.size())
    raise({errc::bad_argument,
           "this work has " + std::to_string(steps_.size()) + " parts; there is no part " + std::to_string(i)});
  flow_work one;
  one.where_ = where_;
  one.end_ = steps_[i];
  one.steps_ = {steps_[i]};
  return one;
}

void flow_work::take() const {
  for (const auto& s : steps_) {
    s->seen_ = true;
    for (auto* cause = s->to_blame_.get(); cause != nullptr; cause = cause->to_blame_.get()) cause->seen_ = true;
  }
  if (end_->thrown) std::rethrow_exception(end_->thrown);
}

void flow_work::outside_coroutines() const {
  if (where_->resuming())
    raise({errc::bad_argument,
           "a work was asked to wait inside a coroutine, which would hold up all others; co_await it there"});
}

bool flow_work::test() {
  if (done()) return true;
  outside_coroutines();
  where_->catch_up();
  return done();
}

void flow_work::wait() {
  if (end_ == nullptr) raise({errc::bad_argument, "there is nothing to wait for: this work was moved away"});
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
  for (const auto& s : steps_) sum += s->bytes();
  return sum;
}

void flow_work::cancel(errc why) noexcept {
  for (const auto& s : steps_) {
    if (s->open != 0) s->own_->cancel(why);
  }
}

void flow_work::wait_on(compute_queue& queue) const {
  queue.tail_.insert(queue.tail_.end(), steps_.begin(), steps_.end());
}

// ---- the flow ---------------------------------------------------------------------------------------------------------

dataflow::dataflow(scope& parent) noexcept : all_(parent), at_end_(at_end::torn_down) {}
dataflow::dataflow(executor& ex) noexcept : all_(ex), at_end_(at_end::joined) {}

dataflow::~dataflow() {
  if (at_end_ == at_end::joined && running_ != 0) {
    cancel();
    try {
      run_until(where(), [this] { return running_ == 0; });
    } catch (...) {  // NOLINT(bugprone-empty-catch): nothing can end it any more, so nothing uses its buffers either
    }
  }
  // A step lives in its own coroutine, which lives in its scope.
  while (!live_.empty()) {
    const auto held = live_.pop_front().shared_from_this();
    held->own_.reset();
    held->followers_.clear();
  }
}

flow_work dataflow::add(std::shared_ptr<flow_step> step, std::span<const buffer_access> uses, const step_options& o) {
  flow_step& s = *step;
  s.own_.emplace(all_, scope::options{deadline_of(where().now(), o.timeout_ns)});
  s.uses_.assign(uses.begin(), uses.end());
  for (const buffer_access& a : uses)
    order_.add(step, a, [&s](const auto& earlier, bool data) { s.wait_for(*earlier, data); });
  if (o.after != nullptr) {
    for (const auto& earlier : o.after->tail_) s.wait_for(*earlier, true);
  }
  if (o.sequence != nullptr) {
    if (const auto before = o.sequence->last_.lock(); before != nullptr && !before->begun_) {
      before->next_begin_ = step;
      ++s.unmet_;
    }
    o.sequence->last_ = step;
  }
  live_.push_back(s);
  ++running_;
  flow_work made;
  made.where_ = &where();
  made.end_ = step;
  made.steps_ = {step};
  s.own_->spawn(perform(*this, std::move(step)));
  return made;
}

flow_work dataflow::together(std::vector<flow_work> parts) {
  flow_work all;
  all.where_ = &where();
  all.end_ = std::make_shared<flow_end>();
  all.end_->open = 0;
  for (flow_work& part : parts) {
    for (auto& step : part.steps_) {
      if (step->open != 0) {
        step->wholes_.push_back(all.end_);
        ++all.end_->open;
      } else if (step->thrown && !all.end_->thrown) {
        all.end_->thrown = step->thrown;
      }
      all.steps_.push_back(std::move(step));
    }
  }
  return all;
}

task<> dataflow::perform(dataflow& flow, std::shared_ptr<flow_step> step) {
  flow_step& s = *step;
  if (s.unmet_ != 0) {
    auto met = co_await s.ready_.next(never);
    if (!met)
      s.thrown = std::make_exception_ptr(
          failure({met.code(), s.title() + ": it had not begun, because it waits for steps that came before it"}));
  }
  if (!s.thrown && s.to_blame_ != nullptr) {
    const error cause = describe(s.to_blame_->thrown);
    s.thrown =
        std::make_exception_ptr(failure({cause.code(), s.title() + " was not done, because it needs what " +
                                                           s.to_blame_->title() + " was to bring: " + cause.what()}));
  }
  if (!s.thrown) {
    try {
      co_await s.run();
    } catch (...) {
      s.thrown = std::current_exception();
    }
  }
  flow.note_end(s);
}

void dataflow::note_end(flow_step& step) noexcept {
  using list = buffer_order<flow_step>;
  // Who reads later what a failed step did not write has to hear of it.
  const auto then = step.thrown ? list::afterwards::still_the_writer : list::afterwards::forgotten;
  for (const buffer_access& a : step.uses_) order_.remove(step, a, then);
  if (step.thrown) {
    std::erase_if(failed_, [](const auto& f) { return f->seen_; });
    if (failed_.size() < most_unseen) failed_.push_back(step.shared_from_this());
  }
  static_cast<list_hook&>(step).unlink();
  --running_;
  step.end();
  if (running_ != 0) return;
  while (!joiners_.empty()) where().schedule(joiners_.pop_front().waiting_);
}

void dataflow::throw_unseen() {
  for (const auto& f : std::exchange(failed_, {})) {
    if (!f->seen_) std::rethrow_exception(f->thrown);
  }
}

}  // namespace parley::runtime
