// The implementation of calls (calls.hpp).
#include <parley/ops/edges/calls.hpp>
#include <parley/ops/edges/edge_in.hpp>
#include <parley/ops/edges/edge_out.hpp>

#include <string>
#include <utility>

namespace parley::ops {

using runtime::errc;
using runtime::task;

// ---- sending ----------------------------------------------------------------------------------------------------------

// Each send begins here. It is inlined into `await_ready`, which saves a function call.
[[gnu::always_inline]] inline send_call::invocation::invocation(actors::edge_sender& edge, const call_options& o,
                                                                std::span<const std::byte> data, std::uint64_t number)
    : begun(edge.begin(o.tag, data.size(), number, o.trials, data.data(), o.pieces)) {
  begun.mark.more_type = o.type;
}

bool send_call::await_ready() {
  if (options_.watcher == nullptr) edge_.check_caller();  // the batch of a step has been checked already
  edge_.check(data_);
  const std::uint64_t number = edge_.goes_slowly(options_.tag, data_)
                                   ? actors::edge_sender::not_admitted
                                   : edge_.sender_.try_admit(options_.tag, data_.size());
  if (number == actors::edge_sender::not_admitted) {
    go_on_in(edge_.owes_refusal() ? edge_.send_and_tell(data_, options_) : edge_.send_when_admitted(data_, options_));
    return false;
  }
  if (options_.watcher != nullptr) options_.watcher->on_begun();
  auto& [begun, whole] = invocation_.emplace(edge_.sender_, options_, data_, number);
  actors::payload_pieces* const by_piece = edge_.packed_unless_by_piece(begun, options_.pieces);
  edge_.show_payload(begun, data_);
  if (!edge_.find(begun.mark.digest)->goes_whole(data_.size()) || edge_.waits_for_kernels(begun, data_)) {
    go_on_in(edge_.run(begun, data_, edge_.deadline(options_), by_piece));
    return false;
  }
  if (!data_.empty()) edge_.check_trial(begun);
  runtime::link& net = edge_.services_.net;
  if (data_.size() <= edge_.short_bytes_) {
    const errc sent = edge_.send_short(begun, data_);
    if (sent != errc::none) whole.emplace(net, edge_.peer(), begun.mark).out.fail(sent);
    return true;
  }
  auto& out = whole.emplace(net, edge_.peer(), begun.mark).out;
  out.start(0, data_);
  return out.in_flight() == 0;
}

// Waits while the transport still holds the buffer. False: it does not.
bool send_call::wait() {
  auto& [begun, payload] = *invocation_;
  auto& whole = *payload;
  if (whole.out.in_flight() == 0) {
    waiter::unlink();
    return false;
  }
  if (begun.timed()) edge_.note_worked(begun, 0);
  whole.edge = &edge_;
  whole.deadline_ns = edge_.deadline(options_);
  if (whole.deadline_ns != runtime::never) home->where().arm(whole, edge_.sender_.late_soon_at(whole.deadline_ns));
  whole.out.wake_at(0, *this);
  whole.listed.out = &whole.out;
  whole.listed.invocation = &invocation_->begun;
  whole.listed.batch = options_.trials.batch;
  edge_.wholes_.push_back(whole.listed);
  return true;
}

void send_call::await_resume() {
  wait_.end();
  if (rest_.child) return rest_.await_resume();
  auto& [begun, whole] = *invocation_;
  if (whole) {
    edge_.end(begun, whole->out, data_.size());
  } else {
    edge_.sender_.end(begun, errc::none);
  }
}

void send_call::on_cancelled(waiter& self, errc why) noexcept {
  self.unlink();
  static_cast<send_call&>(self).invocation_->whole->out.fail(why);
}

void send_call::whole_payload::on_late(timer& self) noexcept {
  auto& mine = static_cast<whole_payload&>(self);
  if (mine.out.in_flight() == 0) return;
  runtime::executor& ex = mine.edge->services_.ex;
  if (mine.deadline_ns <= ex.now()) return mine.out.fail(errc::timeout);
  mine.edge->sender_.late_soon(mine.out.mark().tag);
  ex.arm(mine, mine.deadline_ns);
}

namespace {
task<> send_in_task(edge_out& edge, std::span<const std::byte> data, call_options options) {
  // Checked first, because a short payload never waits: it would be sent although the call is cancelled.
  runtime::scope& here = co_await runtime::this_scope;
  if (here.cancelled() != errc::none)
    runtime::raise({here.cancelled(), edge.declaration().title() + ": a send of " + std::to_string(data.size()) +
                                          " bytes, tag " + std::to_string(options.tag) +
                                          ", was given up before it had begun; nothing was sent"});
  co_await edge.send(data, options);
}
}  // namespace

send_call::operator task<>() && { return send_in_task(edge_, data_, options_); }

// ---- receiving --------------------------------------------------------------------------------------------------------

bool receive_call::await_ready() {
  if (options_.watcher == nullptr) edge_.check_caller();
  edge_.check(into_);
  actors::receive_room takes(into_.size());
  takes.least_bytes = options_.least_bytes;
  takes.type = options_.type;
  in_.emplace(edge_.receiver_, options_.tag, takes, actors::part_receiver::kind::user,
              static_cast<actors::match_watcher*>(this), into_.data(), options_.expected);
  if (options_.watcher != nullptr) options_.watcher->on_begun();
  return in_->decided() && in_->in_flight() == 0 && !rest_.child;
}

// Waits while the stamp or the payload is still in flight. False: both have arrived.
bool receive_call::wait() {
  if (in_->decided() && in_->in_flight() == 0) {
    waiter::unlink();
    return false;
  }
  if (in_->decided()) {
    in_->wake_at(0, *this);
    if (in_->awaits_parts()) expire_decided();
  } else {
    in_->expire_at(edge_.deadline(options_));
  }
  suspended_ = true;
  return true;
}

// The stamp arrived before the call could wait for it. This sets the deadline for the rest of the payload.
void receive_call::expire_decided() noexcept {
  in_->expire_at(edge_.services_.until(options_.timeout_ns != 0 ? options_.timeout_ns : edge_.timeout_ns()));
}

// Wakes the caller if it is suspended. Otherwise `await_ready` sees the outcome.
std::span<std::byte> receive_call::on_decided(actors::part_receiver& in) noexcept {
  in.lies_in(options_.pieces);
  if (in.failed() == errc::none) {
    const actors::stamp& s = *in.mark();
    ran_ = edge_.chosen(s);
    const std::span<std::byte> into = into_.first(s.total_bytes);
    const paired_config* const config = edge_.runnable(ran_);
    const bool is_simple =
        config != nullptr && (in.landed() ? config->is_over_once_landed() : config->goes_whole(into.size()));
    if (!is_simple) {
      try {
        go_on_in(edge_.receive_in_parts(in, into));
        if (suspended_) start_rest();
        return {};
      } catch (...) {  // no memory for its coroutine
        in.fail(errc::exception);
      }
    } else if (!into.empty() && !in.landed()) {
      if (suspended_) in.wake_at(0, *this);
      return into;
    }
  }
  if (suspended_) wake(errc::none);
  return {};
}

std::uint64_t receive_call::await_resume() {
  wait_.end();
  if (rest_.child) return rest_.await_resume();
  if (in_->mark() == nullptr) edge_.throw_unmatched(*in_, into_.size(), options_.tag);
  return edge_.end(*in_, ran_);
}

void receive_call::stop(errc why) noexcept {
  if (in_->decided()) {
    in_->fail(why);
  } else {
    in_->give_up(why);
  }
}

// Also runs when the call is torn down, because device work must not wait for a message that will not arrive.
void receive_call::tell_memory() noexcept {
  const bool over = in_ && in_->decided() && in_->in_flight() == 0;
  edge_.memory().came(options_.expected, over ? in_->failed() : errc::cancelled);
}

void receive_call::on_cancelled(waiter& self, errc why) noexcept { static_cast<receive_call&>(self).stop(why); }

namespace {
task<std::uint64_t> receive_in_task(edge_in& edge, std::span<std::byte> into, call_options options) {
  const std::uint64_t got = co_await edge.receive(into, options);
  co_return got;
}
}  // namespace

receive_call::operator task<std::uint64_t>() && { return receive_in_task(edge_, into_, options_); }

}  // namespace parley::ops
