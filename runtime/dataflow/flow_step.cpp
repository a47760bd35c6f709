#include <parley/runtime/dataflow/flow_step.hpp>

#include <algorithm>

namespace parley::runtime {

namespace {

// The failure of a step that did not run. Steps that depend on this step name the same cause.
struct input_failed final : failure {
  input_failed(const std::string& title, std::string input_title, error why)
      : failure(error::in_words(
            why.code(), why.about(),
            title + " was not done, because it needs what " + input_title + " would have brought: " + why.what(),
            why.began_with())),
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

// ---- what it waits for ------------------------------------------------------------------------------------------------

void flow_step::wait_for(flow_step& earlier, bool data) {
  if (earlier.released_) {
    if (data && earlier.thrown && to_blame_ == nullptr) to_blame_ = &earlier;
    return;
  }
  // A step adds all its waits in a row. So if this step already waits for `earlier`, it is the latest follower.
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

// For an order that a device maintains. Even if this step is given up, later steps must not overtake the steps before it.
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

// The next step may belong to another flow, which may have ended.
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
  } catch (...) {  // from a `run` that is no coroutine
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
  const bool is_queued = step.stage_ == stage::due && !self.linked();  // in the ready queue, and not in `beginning_`
  self.unlink();
  step.give_up(why, is_queued);
}

// The step ends later, from the ready queue, because the caller may be a scope that still visits its waits.
void flow_step::give_up(errc why, bool is_queued) noexcept {
  stage_ = stage::given_up;
  thrown = std::make_exception_ptr(failure({why, title() + ": it had not begun, because it waits for earlier steps"}));
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

// ---- all of a flow ------------------------------------------------------------------------------------------------------

step_graph::~step_graph() {
  if (running_ != 0 && all_.cancelled() == errc::none) where().note_dropped();
  // The step's coroutine keeps the step alive, and the step's scope keeps the coroutine, so each step must be torn down explicitly.
  while (!live_.empty()) {
    const auto held = std::exchange(live_.pop_front().held_, nullptr);
    held->tear_down();
  }
}

void step_graph::put(const flow_step_ptr& step, std::span<const buffer_access> uses, const step_options& o) {
  flow_step& s = *step;
  s.flow_ = this;
  if (o.timeout_ns != never) {
    s.own_ = std::make_unique<flow_step::own_place>(s, all_, scope::options{where().deadline_in(o.timeout_ns)});
  }
  s.set_uses(uses);
  for (auto& named : s.uses()) {
    named.at = order_.add(step, named.access, [&](const auto& earlier, bool data) {
      if (s.comes_after(*earlier, named.access)) {
        s.stay_behind(*earlier);
      } else {
        s.wait_for(*earlier, data);
      }
    });
  }
  if (o.after != nullptr) {
    for (const auto& earlier : o.after->tail_) s.wait_for(*earlier, true);
  }
  if (o.sequence != nullptr) s.begin_behind(*o.sequence);
  s.held_ = step;
  live_.push_back(s);
  ++running_;
  if (s.unmet_ == 0) {
    begin(s);
  } else {
    s.wait_in_scope();
  }
}

// Begins the step at once, so that a message is sent before its caller continues. If each step of a chain lets the next one begin, a loop
// here begins them, not recursion. Outside of the loop's turns the clock may be old, so the next turn begins the step.
void step_graph::begin(flow_step& step) noexcept {
  step.turn_.unlink();
  step.stage_ = flow_step::stage::due;
  if (!where().resuming()) return step.go_on_later();
  if (std::exchange(is_beginning_, true)) return beginning_.push_back(step.turn_);
  step.begin();
  while (!beginning_.empty()) beginning_.pop_front().owner.begin();
  is_beginning_ = false;
}

void step_graph::note_end(flow_step& step) noexcept {
  if (step.thrown) {
    std::erase_if(failed_, [](const auto& f) { return f->seen_; });
    if (failed_.size() < most_unseen) failed_.emplace_back(&step);
    if (stops_at_failure_ && !stopped_by_) {
      stopped_by_ = step.thrown;
      cancel();
    }
  }
  --running_;
  step.tell_end();
  // A step that was given up while it waited keeps its place: later steps must not overtake the steps that it waited for.
  release_if_free(step);
  if (running_ != 0) return;
  while (!joiners_.empty()) where().schedule(joiners_.pop_front().waiting_);
}

void step_graph::one_met(flow_step& step) noexcept {
  if (--step.unmet_ != 0) return;
  if (step.stage_ == flow_step::stage::waiting) {
    begin(step);
  } else if (step.stage_ == flow_step::stage::ended) {
    release_if_free(step);
  }
}

void step_graph::one_passed(flow_step& step) noexcept {
  --step.behind_;
  if (step.stage_ == flow_step::stage::ended) return release_if_free(step);
  if (step.behind_ == 0) step.on_passed();
}

void step_graph::release_if_free(flow_step& step) noexcept {
  if (step.unmet_ == 0 && step.behind_ == 0) release(step);
}

// Uses a loop for a long chain of given-up steps, not recursion.
void step_graph::release(flow_step& step) noexcept {
  static_cast<list_hook&>(step).unlink();
  if (std::exchange(is_releasing_, true)) return releasing_.push_back(step);
  let_go(step);
  while (!releasing_.empty()) let_go(releasing_.pop_front());
  is_releasing_ = false;
}

void step_graph::let_go(flow_step& step) noexcept {
  using list = buffer_order<flow_step_ptr>;
  const auto held = std::exchange(step.held_, nullptr);
  step.released_ = true;
  // A failed step stays as the writer, so that later readers know that it did not write.
  const auto then = step.thrown ? list::afterwards::still_the_writer : list::afterwards::forgotten;
  for (const auto& named : step.uses()) order_.remove(step, named.access, named.at, then);
  step.note_begun();
  if (step.followers_.empty()) return;
  for (const flow_step::follower& f : std::exchange(step.followers_, {})) {
    if (step.thrown && f.needs_data && f.step->to_blame_ == nullptr) f.step->to_blame_ = &step;
    f.how == flow_step::follower::waits::to_begin ? one_met(*f.step) : one_passed(*f.step);
  }
}

// True if the error may mean only that another rank has ended its part.
static bool is_of_others(errc why) noexcept {
  return why == errc::peer_failed || why == errc::send_failed || why == errc::cancelled || why == errc::closed;
}

std::exception_ptr step_graph::cause_of(std::exception_ptr thrown) const {
  errc why = describe(thrown).code();
  if (why == errc::cancelled && stopped_by_) {
    thrown = stopped_by_;
    why = describe(thrown).code();
  }
  // A receiver also gets `config_failed` when its sender failed, perhaps for the same reason as a step of this rank.
  if (!is_of_others(why) && why != errc::config_failed) return thrown;
  for (const auto& f : failed_) {
    if (!f->seen_ && !is_of_others(describe(f->thrown).code())) return f->thrown;
  }
  return thrown;
}

void step_graph::throw_unseen() {
  for (const auto& f : std::exchange(failed_, {})) {
    if (!f->seen_) std::rethrow_exception(f->thrown);
  }
}

}  // namespace parley::runtime
