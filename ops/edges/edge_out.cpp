// The sending end of an edge: a call from its admission to its end. Refusals, error texts and rehearsals are in other
// files.
#include <parley/ops/edges/edge_out.hpp>

#include <parley/actors/inquiries.hpp>
#include <parley/ops/core/call_error.hpp>

#include <algorithm>
#include <exception>
#include <utility>

namespace parley::ops {

using actors::stamp_flags;
using runtime::errc;
using runtime::error;
using runtime::failure;
using runtime::task;

namespace {

// Watches all work that was enqueued for `memory`; the loop polls it once per turn.
class kernels_at_work final : private runtime::completion {
 public:
  kernels_at_work(runtime::memory_space& where, std::span<const std::byte> memory) noexcept
      : completion(&on_over), where_(where), outcome_(where.when_settled(memory, this)) {}
  kernels_at_work(const kernels_at_work&) = delete;
  kernels_at_work& operator=(const kernels_at_work&) = delete;
  ~kernels_at_work() {
    if (outcome_ == errc::pending) where_.forget(this);
  }
  errc outcome() const noexcept { return outcome_; }

 private:
  static void on_over(completion& self, errc how) noexcept { static_cast<kernels_at_work&>(self).outcome_ = how; }
  runtime::memory_space& where_;
  errc outcome_;
};

}  // namespace

edge_out::edge_out(actors::services& s, const edge_options& o, const tuning::plan_options& plan)
    : edge_end(s, o, s.net.rank(), o.peer, "sender"),
      assigned_(options_.configs.front()->digest(), options_.configs.front()->id(), options_.dtype,
                {s.net.rank(), options_.peer}, options_.policy, plan),
      sender_(s, participant_.declaration, participant_.generation, assigned_, options_.window) {
  coordinator_.declaration = participant_.declaration;
  coordinator_.generation = participant_.generation;
  coordinator_.configs = participant_.configs;
  coordinator_.assigned = &assigned_;
  if (one_sided()) sender_.allow_one_sided(those_that_need(needs::credit), those_that_need(needs::known_payload));
  // `digest` may belong to another rank's variant, which one of these configs replaces here.
  if (!those_that_need(needs::like_pieces).empty())
    sender_.allow_pieces([this](std::uint64_t digest) {
      const paired_config* const config = find(digest);
      return config != nullptr && config->goes_by_piece();
    });
  // A config that sends by the piece does so only for payloads in pieces; it sends all others whole.
  const auto has_it_whole = [this](const config_ptr& c) { return c->goes_by_piece() || c->goes_whole(short_bytes_); };
  if (std::all_of(options_.configs.begin(), options_.configs.end(), has_it_whole)) at_once_below_ = short_bytes_ + 1;
  // The sender does not read payloads in a device's memory.
  if (options_.constraints.compare_trials && options_.memory == nullptr) sender_.compare_trials(std::move(inexact_));
  coordinator_.failed_there = [this](const actors::nack& n) { on_nack(n); };
  participant_.assigned = &assigned_;
  assigned_.ask_shapes([this](std::uint64_t digest, std::uint64_t bytes) {
    const paired_config* const config = find(digest);
    return config == nullptr ? std::string() : config->shape(bytes);
  });
  leads_ = actors::spawn_coordinator(services_, coordinator_);
  sender_.on_late_soon(services_.asked_before(options_.timeout_ns), [this](std::uint32_t tag) { ask_peer(tag); });
  sender_.on_ended([this] {
    fail({errc::fenced, about(),
          "rank " + std::to_string(options_.peer) +
              " has ended this generation of the op: it considers this rank dead or restarted"});
  });
  start(sender_.rows());
}

void edge_out::retire() noexcept {
  retire_participant();
  actors::unbind_coordinator(services_, coordinator_);
  leads_.stop();
  sender_.retire();
}

edge_out::~edge_out() { actors::unbind_coordinator(services_, coordinator_); }

void edge_out::fail(const error& why) noexcept {
  failed_ = why;
  participant_.changed.tell();
  // A restart or failure of another rank may also end this edge, while its peer lives and still reads.
  const errc code = why.code();
  const bool restarted =
      code == errc::peer_restarted && (why.began_with() == nullptr || why.began_with()->rank == peer());
  const bool gone = restarted || code == errc::peer_failed || code == errc::fenced;
  using reader = actors::one_sided_sender::reader;
  sender_.fail(code, gone ? reader::gone : reader::may_live);
}

// Also ends sends in flight: roles are in conflict, or a neighbour has said that a rank is gone. This rank has not seen that itself: even
// if the rank is this edge's peer, the peer may live and continue to read until this rank itself has lost it.
void edge_out::on_rejected(const error& why) noexcept {
  failed_ = why;
  participant_.changed.tell();
  const errc code = why.code() == errc::peer_failed ? errc::closed : why.code();
  sender_.fail(code, actors::one_sided_sender::reader::may_live);
  in_flight_.for_each([&](send_in_flight& send) { send.out.fail(code); });
  wholes_.for_each([&](whole_send& send) { send.out->fail(code); });
}

// Ends an invocation at its deadline. If nothing of the invocation is in flight then, the config waits for something else, and is to blame.
struct edge_out::late_guard : runtime::timer {
  late_guard(edge_out& e, actors::part_sender& p, time_ns until) noexcept
      : timer(&on_late), edge(e), out(p), deadline_ns(until) {
    if (until != runtime::never) edge.services_.ex.arm(*this, edge.sender_.late_soon_at(until));
  }
  static void on_late(timer& self) noexcept {
    auto& mine = static_cast<late_guard&>(self);
    runtime::executor& ex = mine.edge.services_.ex;
    const bool moves = mine.out.in_flight() != 0;
    if (mine.deadline_ns <= ex.now()) return mine.out.fail(moves ? errc::timeout : errc::config_failed);
    if (moves && !has(mine.out.mark().flags, stamp_flags::rehearsal)) mine.edge.sender_.late_soon(mine.out.mark().tag);
    ex.arm(mine, mine.deadline_ns);
  }
  edge_out& edge;
  actors::part_sender& out;
  time_ns deadline_ns;
};

void edge_out::list_waiting(runtime::waiting_list& all) {
  const runtime::waiting_call of = waiting("send");
  const auto add = [&](const actors::outgoing& inv, const part_sender& out, std::uint64_t batch) {
    if (out.failed() != errc::none && out.in_flight() == 0) return;  // it has ended
    runtime::waiting_call& w = all.calls.emplace_back(of);
    w.invocation = inv.invocation;
    w.tag = inv.mark.tag;
    w.bytes = inv.mark.total_bytes;
    w.since_ns = inv.began_ns;
    w.batch = batch;
    w.rehearsal = has(inv.mark.flags, stamp_flags::rehearsal);
    const bool moves = out.in_flight() != 0;
    if (moves) w.peers = {options_.peer};
    w.lacks = moves ? "its payload to be taken" : "its config";
  };
  in_flight_.for_each([&](const send_in_flight& send) { add(send.invocation, send.out, send.batch); });
  wholes_.for_each([&](const whole_send& send) { add(*send.invocation, *send.out, send.batch); });
  sender_.list_waiting(of, all);
}

void edge_out::take_memory(const std::shared_ptr<actors::memory_region>& region) {
  sender_.one_sided()->add_memory(region);
}

// ---- a call: admission, its config, its end ----------------------------------------------------------------------------

task<> edge_out::send_when_admitted(std::span<const std::byte> data, call_options call) {
  const time_ns until = deadline(call);
  std::optional<runtime::until_free> payload;
  if (may_wait_for_credit(call.tag, data))
    payload.emplace(*options_.memory, data, [this, &call] { sender_.readmit(call.tag); });
  const time_ns asked_ns = sender_.rows().clock();
  auto number = co_await sender_.admit(call.tag, data.size(), until, payload ? &*payload : nullptr, data.data());
  if (!number) {
    record_unbegun(runtime::flight_event::send_failed, call.tag, sender_.next_invocation(call.tag), data.size(),
                   asked_ns);
    runtime::error_facts facts = about_next(sender_.next_invocation(call.tag), call.tag,
                                            why_not_admitted(call.tag, data.size(), payload && !payload->is_over()));
    facts.whole_bytes = data.size();
    throw explained(number.code(), facts,
                    "a send of " + std::to_string(data.size()) + " bytes (tag " + std::to_string(call.tag) +
                        ", invocation " + std::to_string(sender_.next_invocation(call.tag)) + ") had not begun" +
                        (failed_ ? "" : ": " + words_of(facts.unmet)) +
                        (number.code() == errc::timeout ? words_of_peer() : ""));
  }
  payload.reset();
  if (call.watcher != nullptr) call.watcher->on_begun();
  actors::outgoing begun = sender_.begin(call.tag, data.size(), *number, call.trials, data.data(), call.pieces);
  begun.mark.more_type = call.type;
  actors::payload_pieces* const by_piece = packed_unless_by_piece(begun, call.pieces);
  show_payload(begun, data);
  co_await run(begun, data, until, by_piece, call.trials.batch);
}

actors::payload_pieces* edge_out::pack(const actors::outgoing& inv, actors::payload_pieces& pieces) {
  const bool by_piece = find(inv.mark.digest)->goes_by_piece();
  if (!by_piece) pieces.packed_bytes += pieces.packed.size();
  if (!by_piece || services_.watcher != nullptr) pieces.gather();
  return by_piece ? &pieces : nullptr;
}

bool edge_out::send_at_once(std::span<const std::byte> data, const call_options& o) {
  if (data.size() >= at_once_below_ || unusual_) return false;
  const std::uint64_t number = sender_.try_admit(o.tag, data.size());
  if (number == actors::edge_sender::not_admitted) return false;
  actors::outgoing begun = sender_.begin(o.tag, data.size(), number, o.trials, data.data());
  begun.mark.more_type = o.type;
  show_payload(begun, data);
  if (!data.empty()) check_trial(begun);
  if (const errc sent = send_short(begun, data); sent != errc::none) [[unlikely]] {
    part_sender out(services_.net, peer(), begun.mark);
    out.fail(sent);
    end(begun, out, data.size());
  } else {
    sender_.end(begun, errc::none);
  }
  return true;
}

bool edge_out::is_still_written(const actors::outgoing& inv, std::span<const std::byte> data) {
  const bool matters = sender_.rows().measuring() || has(inv.mark.flags, actors::stamp_flags::timed) ||
                       find(inv.mark.digest)->what_it_needs() == needs::known_payload;
  return matters && options_.memory->busy(data);
}

// A trial's time begins when kernels were last seen at work. Between the kernels' end and the moment when the host notices it, nothing
// moves. A config that has to wait for the host is charged for that gap.
task<time_ns> edge_out::until_written(std::span<const std::byte> data) {
  const kernels_at_work kernels(memory(), data);
  // The loop polls the device before coroutines run, and kernels may end between that poll and the clock reading here. So the latest time
  // at which they were certainly at work is the clock reading of the previous turn.
  time_ns seen_ns = sender_.rows().clock();
  time_ns turn_ns = seen_ns;
  while (kernels.outcome() == errc::pending) {
    seen_ns = std::exchange(turn_ns, sender_.rows().clock());
    co_await runtime::yield;
  }
  if (kernels.outcome() != errc::none) runtime::raise({kernels.outcome(), memory().words_of(kernels.outcome())});
  co_return seen_ns;
}

void edge_out::check_warmed(std::uint64_t digest) const {
  runtime::invariant(participant_.may_run(digest),
                     {"S3", "only what was warmed here is tried", {declaration().id(), services_.net.rank()}});
}

void edge_out::note_worked(actors::outgoing& inv, time_ns waited_ns) {
  inv.worked_ns = std::max<time_ns>(sender_.rows().clock() - inv.began_ns - waited_ns, 0);
}

task<> edge_out::run(actors::outgoing inv, std::span<const std::byte> data, time_ns until,
                     actors::payload_pieces* by_piece, std::uint64_t batch) {
  part_sender out(services_.net, options_.peer, inv.mark, inv.access);
  out.lies_in(by_piece);
  if (inv.timed()) out.count_waits(services_.ex);
  send_in_flight mine(inv, out);
  mine.batch = batch;
  in_flight_.push_back(mine);
  const late_guard guard(*this, out, until);
  std::optional<runtime::until_free> written;
  try {
    if (data.empty()) {
      co_await out.send(0, data);
    } else if (services_.ex.is_over(until)) {
      out.fail(errc::timeout);  // it was admitted in time and resumed too late; the config is not to blame
    } else {
      check_trial(inv);
      if (waits_for_kernels(inv, data)) {
        if (find(inv.mark.digest)->what_it_needs() == needs::credit) {
          // The config's copies are enqueued behind the kernels, and its time begins when the kernels end. The host notices the end of the
          // kernels late, but it notices the end of the copies equally late.
          written.emplace(memory(), data, [&] { inv.began_ns = sender_.rows().clock(); });
        } else if (has(inv.mark.flags, stamp_flags::timed)) {
          inv.began_ns = co_await until_written(data);
        } else {
          co_await memory().settled(data);
          inv.began_ns = sender_.rows().clock();
        }
      }
      const paired_config& config = *find(inv.mark.digest);
      if (config.puts_whole()) {
        out.start_put(0, data, {});
      } else {
        runtime::scope& here = co_await runtime::this_scope;
        const runtime::implementation half(here, title(), config.id());
        runtime::scope running(here, {.deadline = until, .inside = &half});
        running.spawn(config.send(out, data));
        co_await running.join();
      }
      if (out.has_put()) out.fence();  // now, so that the acknowledgement arrives as soon as the last put has landed
    }
  } catch (...) {
    if (mine.why.empty()) mine.why = runtime::describe(std::current_exception()).what();
    out.fail(failure_of_config(std::current_exception()));
  }
  errc settled = co_await out.settle();
  if (out.has_put()) {  // first a fence, then the announcement, which releases the receiver's buffer
    if (out.sent_bytes() != data.size()) out.fail(errc::config_failed);
    if (!out.fenced()) {
      out.fence();
      settled = co_await out.settle();
    }
    out.announce();
    if (out.fence_failed()) after_failed_fence(out.fence_outcome());
  }
  static_cast<void>(settled);
  if (inv.timed()) note_worked(inv, out.waited_ns());
  end(inv, out, data.size(), mine.why);
}

// The peer may release its buffer only when nothing more can arrive in it. If this rank's own device has failed, this rank has to leave the
// job: the other ranks see its connections end.
void edge_out::after_failed_fence(errc how) {
  if (how != errc::device_failed) return lose_peer();
  std::string why =
      "its device failed before its writes into memory of rank " + std::to_string(options_.peer) + " had completed";
  why += said_by(&memory(), how, why);
  services_.give_up(services_.net.rank(), why);
}

void edge_out::lose_peer() {
  if (failed_) return;  // it has ended already, and a new process may be in the peer's place
  fail({errc::peer_failed, about(),
        "the fence after a put to rank " + std::to_string(options_.peer) +
            " failed, so that rank is considered dead; restart the job to continue"});
  sender_.one_sided()->say_ended();
  services_.give_up(options_.peer, "the fence after a put to it failed");
}

// ---- reports from the receiver ----------------------------------------------------------------------------------------

// Sends the message. If that succeeds, throws the refusal of an earlier message.
task<> edge_out::send_and_tell(std::span<const std::byte> data, call_options call) {
  if (!refused_.owes()) {  // another call has reported it
    co_await send_when_admitted(data, call);
    co_return;
  }
  refusal earlier = refused_.next();
  std::exception_ptr thrown;
  try {
    co_await send_when_admitted(data, call);
  } catch (...) {
    thrown = std::current_exception();
  }
  if (thrown) {
    refused_.put_back(std::move(earlier));
    std::rethrow_exception(thrown);
  }
  throw explained(earlier.code, about_refused(earlier),
                  words_of(earlier) +
                      "; this rank learned of it only after it had sent that message, and has now sent the next one");
}

// A send in flight ends with the refusal. If the send has ended already, the next call reports the refusal.
void edge_out::on_refused(refusal r) {
  bool is_in_flight = false;
  const auto end = [&](const actors::stamp& mark, part_sender& out) {
    const bool is_it = mark.tag == r.tag && mark.invocation == static_cast<std::uint32_t>(r.invocation);
    if (!is_it || has(mark.flags, stamp_flags::rehearsal)) return;
    is_in_flight = true;
    out.fail(errc::buffer_too_small);  // this code does not blame the config
  };
  in_flight_.for_each([&](send_in_flight& send) { end(send.invocation.mark, send.out); });
  wholes_.for_each([&](whole_send& send) { end(send.out->mark(), *send.out); });
  refused_.add(std::move(r), is_in_flight ? refusals::call::goes_on : refusals::call::has_ended);
  unusual_ = true;
}

void edge_out::on_nack(const actors::nack& n) noexcept {
  if (n.refused) return on_refused({n.tag, n.invocation, n.bytes, runtime::errc_of(n.code, errc::send_failed), n.text});
  in_flight_.for_each([&](send_in_flight& send) {
    if (send.invocation.invocation != n.invocation || send.invocation.mark.tag != n.tag ||
        send.invocation.mark.digest != n.digest || send.out.failed() != errc::none)
      return;
    send.why = "it failed on rank " + std::to_string(options_.peer) + ": " + n.text;
    const errc there = runtime::errc_of(n.code, errc::config_failed);
    send.out.fail(there == errc::device_failed ? there : errc::config_failed);
  });
}

}  // namespace parley::ops
