#include <parley/runtime/flow_step.hpp>

#include <parley/runtime/dataflow.hpp>

namespace parley::runtime {

namespace {

// Of a step that was not done. Those behind it blame what it blames.
struct input_failed final : failure {
  input_failed(const std::string& title, std::string input_title, error why)
      : failure({why.code(),
                 title + " was not done, because it needs what " + input_title + " was to bring: " + why.what(),
                 why.began_with()}),
        input(std::move(input_title)), cause(std::move(why)) {}
  std::string input;
  error cause;
};

}  // namespace

boost::intrusive_ptr<flow_batch> flow_batch::of(std::span<const flow_part> parts) {
  return boost::intrusive_ptr<flow_batch>(::new (frame_pool::allocate(bytes_for(parts.size()))) flow_batch(parts));
}

flow_batch::flow_batch(std::span<const flow_part> parts) noexcept : size_(parts.size()) {
  static_assert(alignof(part) <= alignof(flow_batch), "the parts can follow the batch");
  open = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    part& mine = *::new (first() + i) part;
    mine.whole = this;
    mine.is = parts[i];
    if (mine.is.step == nullptr) continue;
    flow_step& step = *mine.is.step;
    if (step.open != 0) {
      step.wholes_.push_back(mine);
      ++open;
    } else if (step.thrown && !thrown) {
      thrown = step.thrown;
    }
  }
}

// ---- whom it waits for ------------------------------------------------------------------------------------------------

void flow_step::wait_for(flow_step& earlier, bool data) {
  if (earlier.released_) {
    if (data && earlier.thrown && to_blame_ == nullptr) to_blame_ = &earlier;
    return;
  }
  // All that one step waits for is added in a row.
  if (!earlier.followers_.empty()) {
    follower& latest = earlier.followers_.back();
    if (latest.step == this && latest.how == follower::waits::to_begin) {
      latest.needs_data |= data;
      return;
    }
  }
  earlier.followers_.push_back({this, data, follower::waits::to_begin});
  ++unmet_;
}

// Where a device has the order. What comes behind this one must not overtake those that it has come after, if it is given up.
void flow_step::stay_behind(flow_step& earlier) {
  if (earlier.released_) return;
  earlier.followers_.push_back({this, false, follower::waits::to_be_released});
  ++behind_;
}

void flow_step::begin_behind(begin_sequence& sequence) {
  if (sequence.last_ != nullptr) {
    sequence.last_->sequence_ = nullptr;
    sequence.last_->next_begin_ = this;
    ++unmet_;
  }
  sequence.last_ = this;
  sequence_ = &sequence;
}

void flow_step::note_begun() noexcept {
  if (std::exchange(begun_, true)) return;
  if (sequence_ != nullptr) std::exchange(sequence_, nullptr)->last_ = nullptr;
  let_next_begin();
}

// It may be of another flow, which may have ended.
void flow_step::let_next_begin() noexcept {
  const auto next = std::exchange(next_begin_, nullptr);
  if (next != nullptr && !next->torn_) next->flow_->one_met(*next);
}

// ---- its turn, its end ------------------------------------------------------------------------------------------------

void flow_step::wait_in_scope() noexcept {
  if (!turn_.enter(home())) give_up(turn_.outcome, false);
}

scope& flow_step::home() noexcept { return own_ != nullptr ? own_->inside : flow_->all_; }

scope& flow_step::own_scope() noexcept {
  if (own_ == nullptr) {
    own_ = std::make_unique<own_place>(*this, flow_->all_, scope::options{});
    if (cancelled_ != errc::none) own_->inside.cancel(cancelled_);
  }
  return own_->inside;
}

void flow_step::begin() noexcept {
  if (to_blame_ == nullptr) {
    stage_ = stage::going;
    return go();
  }
  stage_ = stage::given_up;
  thrown = blame();
  on_abandoned();
  go_on_later();
}

task<> flow_step::run() { co_return; }

void flow_step::go() noexcept {
  scope& inside = own_scope();
  try {
    inside.spawn(run(), own_.get());
  } catch (...) {  // a `run` that is no coroutine
    end(std::current_exception());
  }
}

void flow_step::go_on_later() noexcept { flow_->where().schedule(as_continuation()); }

void flow_step::on_ready(ready_call& self) noexcept {
  auto& step = static_cast<flow_step&>(self);
  switch (step.stage_) {
    case stage::due: return step.flow_->begin(step);
    case stage::given_up: return step.end();
    default: return step.on_turn();
  }
}

void flow_step::turn::on_given_up(waiter& self, errc why) noexcept {
  flow_step& step = static_cast<turn&>(self).owner;
  const bool is_queued = step.stage_ == stage::due && !self.linked();  // and not among those that are being begun
  self.unlink();
  step.give_up(why, is_queued);
}

// It does not end at once: whoever cancels is going through the waits of its scope.
void flow_step::give_up(errc why, bool is_queued) noexcept {
  stage_ = stage::given_up;
  thrown = std::make_exception_ptr(
      failure({why, title() + ": it had not begun, because it waits for steps that came before it"}));
  on_abandoned();
  if (!is_queued) go_on_later();
}

void flow_step::cancel(errc why) noexcept {
  if (cancelled_ != errc::none) return;
  cancelled_ = why;
  if (stage_ == stage::waiting || stage_ == stage::due) return turn::on_given_up(turn_, why);
  if (stage_ != stage::going) return;
  if (own_ != nullptr) own_->inside.cancel(why);
  on_cancelled(why);
}

void flow_step::tear_down() noexcept {
  torn_ = true;
  if (sequence_ != nullptr) sequence_->last_ = nullptr;
  if (next_begin_ != nullptr && next_begin_->flow_ != flow_) let_next_begin();
  if (stage_ != stage::waiting && stage_ != stage::ended) flow_->where().forget(as_continuation());
  on_torn_down();
  own_.reset();
  on_abandoned();
  followers_.clear();
}

std::exception_ptr flow_step::blame() const {
  try {
    std::rethrow_exception(to_blame_->thrown);
  } catch (const input_failed& f) {
    return std::make_exception_ptr(input_failed(title(), f.input, f.cause));
  } catch (...) {
    const error cause = describe(std::current_exception());
    return std::make_exception_ptr(input_failed(title(), to_blame_->title(), cause));
  }
}

void flow_step::own_place::on_task_end(promise_base& ended) noexcept {
  std::exception_ptr failed = std::exchange(ended.thrown, nullptr);
  inside.on_task_end(ended);
  owner.end(std::move(failed));
}

void flow_step::end() noexcept {
  const flow_step_ptr self(this);
  stage_ = stage::ended;
  flow_->note_end(*this);
}

void flow_step::tell_end() noexcept {
  wholes_.for_each([this](flow_batch::part& p) {
    p.unlink();
    p.whole->one_ended(thrown);
  });
  one_ended(thrown);
}

}  // namespace parley::runtime
