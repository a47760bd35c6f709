#include <parley/runtime/dataflow.hpp>

#include <parley/runtime/enqueued_step.hpp>

#include <algorithm>

namespace parley::runtime {

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
    const auto held = std::exchange(live_.pop_front().held_, nullptr);
    held->tear_down();
  }
}

flow_work dataflow::add(flow_step_ptr step, std::span<const buffer_access> uses, const step_options& o) {
  put(step, uses, o);
  return {where(), std::move(step)};
}

void dataflow::put(const flow_step_ptr& step, std::span<const buffer_access> uses, const step_options& o) {
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

flow_work dataflow::enqueue(std::span<const buffer_access> uses, const std::function<void(device_stream)>& f,
                            const compute_options& o) {
  if (o.memory == nullptr)
    raise({errc::bad_argument, o.name + ": a computation in a stream needs the `memory` of the stream's device"});
  const auto step = new_step<enqueued_step>(o.name, *o.memory, o.stream);
  flow_work made = add(step, uses, {.after = o.queue});
  step->enqueue(uses, f);
  return made;
}

flow_work dataflow::together(const std::vector<flow_work>& works) {
  std::vector<flow_part> parts;
  for (const flow_work& w : works) {
    if (w.step_ != nullptr) parts.push_back({w.step_});
    if (w.batch_ == nullptr) continue;
    for (const flow_batch::part& p : w.batch_->parts()) parts.push_back(p.is);
  }
  return together(parts);
}

flow_work dataflow::together(std::span<const flow_part> parts) {
  if (parts.size() == 1 && parts[0].step != nullptr) return {where(), parts[0].step};
  return {where(), flow_batch::of(parts)};
}

// At once, so that a message leaves before its caller goes on. But a line of steps of which each lets the next one begin is gone
// through here and not on the stack, and outside of the loop's turns, where its clock may be old, the next turn does it.
void dataflow::begin(flow_step& step) noexcept {
  step.turn_.unlink();
  step.stage_ = flow_step::stage::due;
  if (!where().resuming()) return step.go_on_later();
  if (std::exchange(is_beginning_, true)) return beginning_.push_back(step.turn_);
  step.begin();
  while (!beginning_.empty()) beginning_.pop_front().owner.begin();
  is_beginning_ = false;
}

void dataflow::note_end(flow_step& step) noexcept {
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
  // One that was given up while it waited keeps its place: who comes behind it must not overtake those whom it waited for.
  release_if_free(step);
  if (running_ != 0) return;
  while (!joiners_.empty()) where().schedule(joiners_.pop_front().waiting_);
}

void dataflow::one_met(flow_step& step) noexcept {
  if (--step.unmet_ != 0) return;
  if (step.stage_ == flow_step::stage::waiting) {
    begin(step);
  } else if (step.stage_ == flow_step::stage::ended) {
    release_if_free(step);
  }
}

void dataflow::one_passed(flow_step& step) noexcept {
  --step.behind_;
  if (step.stage_ == flow_step::stage::ended) return release_if_free(step);
  if (step.behind_ == 0) step.on_passed();
}

void dataflow::release_if_free(flow_step& step) noexcept {
  if (step.unmet_ == 0 && step.behind_ == 0) release(step);
}

// A long chain of given-up steps is gone through here, not on the stack.
void dataflow::release(flow_step& step) noexcept {
  static_cast<list_hook&>(step).unlink();
  if (std::exchange(is_releasing_, true)) return releasing_.push_back(step);
  let_go(step);
  while (!releasing_.empty()) let_go(releasing_.pop_front());
  is_releasing_ = false;
}

void dataflow::let_go(flow_step& step) noexcept {
  using list = buffer_order<flow_step_ptr>;
  const auto held = std::exchange(step.held_, nullptr);
  step.released_ = true;
  // Who reads later what a failed step did not write has to hear of it.
  const auto then = step.thrown ? list::afterwards::still_the_writer : list::afterwards::forgotten;
  for (const auto& named : step.uses()) order_.remove(step, named.access, named.at, then);
  step.note_begun();
  if (step.followers_.empty()) return;
  for (const flow_step::follower& f : std::exchange(step.followers_, {})) {
    if (step.thrown && f.needs_data && f.step->to_blame_ == nullptr) f.step->to_blame_ = &step;
    f.how == flow_step::follower::waits::to_begin ? one_met(*f.step) : one_passed(*f.step);
  }
}

// Whether it only says that another rank has ended its part.
static bool is_of_others(errc why) noexcept {
  return why == errc::peer_failed || why == errc::send_failed || why == errc::cancelled || why == errc::closed;
}

std::exception_ptr dataflow::cause_of(std::exception_ptr thrown) const {
  errc why = describe(thrown).code();
  if (why == errc::cancelled && stopped_by_) {
    thrown = stopped_by_;
    why = describe(thrown).code();
  }
  // A config fails at a receiver, too, when its sender has failed: perhaps for want of the same thing.
  if (!is_of_others(why) && why != errc::config_failed) return thrown;
  for (const auto& f : failed_) {
    if (!f->seen_ && !is_of_others(describe(f->thrown).code())) return f->thrown;
  }
  return thrown;
}

void dataflow::throw_unseen() {
  for (const auto& f : std::exchange(failed_, {})) {
    if (!f->seen_) std::rethrow_exception(f->thrown);
  }
}

}  // namespace parley::runtime
