#include <parley/runtime/flow_step.hpp>

#include <parley/runtime/dataflow.hpp>

namespace parley::runtime {

namespace {

// Of a step that was not done. Those behind it blame what it blames.
struct input_failed final : failure {
  input_failed(const std::string& title, std::string input_title, error why)
      : failure({why.code(),
                 title + " was not done, because it needs what " + input_title + " was to bring: " + why.what()}),
        input(std::move(input_title)), cause(std::move(why)) {}
  std::string input;
  error cause;
};

}  // namespace

void flow_end::one_ended(const std::exception_ptr& by) noexcept {
  if (by && !thrown) thrown = by;
  if (--open == 0) told.tell();
}

flow_batch::flow_batch(std::span<const flow_step_ptr> steps)
    : size_(steps.size()), parts_(std::make_unique<part[]>(steps.size())) {
  open = 0;
  for (std::size_t i = 0; i < size_; ++i) {
    flow_step& step = *steps[i];
    parts_[i].whole = this;
    parts_[i].step = steps[i];
    if (step.open != 0) {
      step.wholes_.push_back(parts_[i]);
      ++open;
    } else if (step.thrown && !thrown) {
      thrown = step.thrown;
    }
  }
}

// ---- whom it waits for ------------------------------------------------------------------------------------------------

void flow_step::set_uses(std::span<const buffer_access> uses) {
  if (uses.size() == 1) {
    use_ = uses[0];
  } else {
    uses_.assign(uses.begin(), uses.end());
  }
}

std::span<const buffer_access> flow_step::uses() const noexcept {
  return uses_.empty() ? std::span(&use_, 1) : std::span<const buffer_access>(uses_);
}

void flow_step::wait_for(flow_step& earlier, bool data) {
  if (earlier.released_) {
    if (data && earlier.thrown && to_blame_ == nullptr) to_blame_ = &earlier;
    return;
  }
  // All that one step waits for is added in a row.
  if (!earlier.followers_.empty() && earlier.followers_.back().step == this) {
    earlier.followers_.back().needs_data |= data;
    return;
  }
  earlier.followers_.push_back({this, data});
  ++unmet_;
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
  if (sequence_ != nullptr) sequence_->last_ = nullptr;
  if (const auto next = std::exchange(next_begin_, nullptr)) flow_->one_met(*next);
}

// ---- its turn, its end ------------------------------------------------------------------------------------------------

void flow_step::wait_in_scope() noexcept {
  if (!turn_.enter(*own_)) give_up(turn_.outcome);
}

void flow_step::begin() noexcept {
  turn_.unlink();
  stage_ = stage::going;
  if (to_blame_ != nullptr) on_abandoned();
  try {
    own_->spawn(to_blame_ == nullptr ? run() : fail(blame()), this);
  } catch (...) {  // a `run` that is no coroutine
    own_->spawn(fail(std::current_exception()), this);
  }
}

void flow_step::turn::on_given_up(waiter& self, errc why) noexcept {
  self.unlink();
  static_cast<turn&>(self).owner.give_up(why);
}

// Not at once: whoever cancels is going through the waits of its scope.
void flow_step::give_up(errc why) noexcept {
  stage_ = stage::going;
  on_abandoned();
  own_->spawn(fail(std::make_exception_ptr(
                  failure({why, title() + ": it had not begun, because it waits for steps that came before it"}))),
              this);
}

task<> flow_step::fail(std::exception_ptr why) {
  std::rethrow_exception(why);
  co_return;
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

void flow_step::on_task_end(promise_base& ended) noexcept {
  const flow_step_ptr self(this);
  thrown = std::exchange(ended.thrown, nullptr);
  own_->on_task_end(ended);
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
