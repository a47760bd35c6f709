// The whole sentences of the errors of edges. Tests elsewhere compare facts, so a better sentence is changed only here and in the code.
#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/ring_case.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/wording.hpp>

#include <parley/config.hpp>
#include <parley/p2p.hpp>

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <list>
#include <stdexcept>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns second = 1'000'000'000;

/// Rank 0 sends to rank 1.
struct two_ends : world {
  explicit two_ends(const std::vector<config_ptr>& configs = {direct()}, rank_settings s = {})
      : world(2, std::move(s)), op(pair_of(configs)), out(*ranks[0], op), calls(clock) {}
  result<>& send(std::size_t bytes) {
    calls.spawn(keep_send(out, data.emplace_back(pattern(bytes, 1)), outcomes.emplace_back(errc::pending)));
    clock.turn();
    return outcomes.back();
  }
  result<>& receive(std::size_t bytes) {
    if (!in) in.emplace(*ranks[1], op);
    calls.spawn(keep_receive(*in, data.emplace_back(bytes), outcomes.emplace_back(errc::pending)));
    clock.turn();
    return outcomes.back();
  }
  /// Returns the sentence of a call that ends within 5 s.
  std::string text_of(const result<>& outcome) {
    pass(*this, 5 * second);
    return sentence_of(outcome);
  }

  static task<> keep_send(transfer t, std::span<const std::byte> data, result<>& into) {
    auto outcome = co_await attempt(t.send(data, {.to = 1, .timeout = std::chrono::nanoseconds(second)}));
    into = std::move(outcome);
  }
  static task<> keep_receive(transfer t, std::span<std::byte> data, result<>& into) {
    auto outcome = co_await attempt(t.receive(data, {.from = 0, .timeout = std::chrono::nanoseconds(second)}));
    into = outcome ? result<>() : result<>(outcome.reason());
  }
  std::list<std::vector<std::byte>> data;
  std::list<result<>> outcomes;
  transfer_options op;
  transfer out;
  std::optional<transfer> in;
  scope calls;
};

std::string of_unmet_receive() {
  two_ends w;
  return w.text_of(w.receive(100));
}
std::string of_receive_from_lost_rank() {
  two_ends w;
  const auto& r = w.receive(100);
  w[1].on_lost(0, "killed by signal 9");
  return w.text_of(r);
}
std::string of_receive_in_flight_from_lost_rank() {
  two_ends w;
  const auto& r = w.receive(1 << 20);
  w.send(1 << 20);
  pass(w, 20'000);
  w[1].on_lost(0, "killed by signal 9");
  return w.text_of(r);
}
std::string of_send_without_room() {
  two_ends w;
  w.in.emplace(transfer(w[1], w.op));
  pass(w, second / 10);
  for (int i = 0; i < 64; ++i) w.send(8);
  return w.text_of(w.send(8));
}
std::string of_send_to_undeclared() {
  rank_settings s;
  s.early_bytes = 1 << 20;
  two_ends w({direct()}, s);
  w.send(520'000);
  return w.text_of(w.send(10'000));
}
std::string of_send_to_lost_rank() {
  two_ends w;
  w[0].on_lost(1, "killed by signal 9");
  return w.text_of(w.send(8));
}
std::string of_untaken_send() {
  two_ends w;
  w.in.emplace(transfer(w[1], w.op));
  pass(w, second / 10);
  return w.text_of(w.send(1 << 20));
}
std::string of_small_buffer(bool at_sender) {
  two_ends w;
  auto& received = w.receive(1'000);
  auto& sent = w.send(1 << 20);
  return w.text_of(at_sender ? sent : received);
}
/// The receiver refuses a short message that has already left. Returns the sentence of a later send.
std::string of_small_buffer_later() {
  two_ends w;
  w.receive(4);
  pass(w, second / 10);
  w.send(8);
  pass(w, second / 10);
  w.receive(8);
  return w.text_of(w.send(8));
}

task<> send_whole_data(part_sender& out, std::span<const std::byte> data) { co_await out.send(0, data); }
task<> send_half(part_sender& out, std::span<const std::byte> data) {
  co_await out.send(0, data.first(data.size() / 2));
}
task<> send_that_throws(part_sender&, std::span<const std::byte>) {
  throw std::runtime_error("no such card");
  co_return;
}
task<> send_on_faulty_device(part_sender&, std::span<const std::byte>) {
  raise({errc::device_failed, "no such card"});
  co_return;
}
task<> receive_whole_data(part_receiver& in, std::span<std::byte> data) { co_await in.receive(0, data); }
task<> receive_that_throws(part_receiver&, std::span<std::byte>) {
  throw std::runtime_error("no such card");
  co_return;
}
std::string of_config(send_function s, receive_function r, bool at_sender) {
  two_ends w({paired({.name = "mine", .wire_class = "mine"}, s, r)});
  auto& received = w.receive(100);
  auto& sent = w.send(100);
  return w.text_of(at_sender ? sent : received);
}

std::string of_overflow(bool at_sender) {
  rank_settings s;
  s.early_bytes = 1 << 20;
  two_ends w({chunked(2'048, 4)}, s);
  w.send(16 << 20);
  pass(w, second / 2);
  auto& sent = w.send(8);
  return w.text_of(at_sender ? sent : w.receive(16 << 20));
}
std::string of_other_declaration(bool at_sender) {
  two_ends w;
  w.op.dtype = "bf16";
  w.receive(8);
  w.send(8);
  pass(w, second / 2);
  return w.text_of(at_sender ? w.send(8) : w.receive(8));
}

/// Rank 0 sends `sent` elements of type `Sent` to itself, and receives `taken` elements of type `Taken`. 0 elements: no such operation.
template <class Sent, class Taken>
std::string of_itself(std::size_t sent, std::size_t taken) {
  world w(1);
  auto op = ring_case::pairs_named("own");
  op.timeout = std::chrono::nanoseconds(second);
  std::vector<Sent> from(sent);
  std::vector<Taken> into(taken);
  const batch_program alone = [&](dataflow& flow, ops::rank&, p2p& pairs) {
    if (sent == 0) return end_of(pairs.start(flow, {p2p::irecv(into, {.from = 0})}));
    if (taken == 0) return end_of(pairs.start(flow, {p2p::isend(from, {.to = 0})}));
    return end_of(pairs.start(flow, {p2p::isend(from, {.to = 0}), p2p::irecv(into, {.from = 0})}));
  };
  const auto outcomes = run_each(w, {alone}, op);
  return sentence_of(outcomes[0]);
}

}  // namespace

TEST_CASE("the errors of edges have exactly the listed sentences") {
  check_sentences({
      {of_unmet_receive(),
       "timeout: activations 0->1, on rank 1 (receiver): no message matched a receive of up to 100 bytes from rank 0 "
       "(tag 0, invocation 0); that rank is late; rank 0 has sent 0 messages of tag 0; it is not waiting in any call"},
      {of_receive_from_lost_rank(),
       "peer_failed: activations 0->1, on rank 1: rank 0 is gone: killed by signal 9; restart the job to continue; no "
       "message matched a receive of up to 100 bytes from rank 0 (tag 0, invocation 0)"},
      {of_receive_in_flight_from_lost_rank(),
       "peer_failed: activations 0->1, on rank 1: rank 0 is gone: killed by signal 9; restart the job to continue; "
       "invocation 0 was in flight"},
      {of_send_without_room(),
       "timeout: activations 0->1, on rank 0 (sender): a send of 8 bytes (tag 0, invocation 64) had not begun: rank 1 "
       "has no room, because it has not posted receives for the earlier messages; rank 1 has "
       "posted 0 receives of tag 0; it is not waiting in any call"},
      {of_send_to_undeclared(),
       "timeout: activations 0->1, on rank 0 (sender): a send of 10000 bytes (tag 0, invocation 1) had not begun: rank "
       "1 has not answered for this op and may not have declared it yet, and 520224 of the 524288 bytes that this rank "
       "may send to it for undeclared ops are in use; declare the op earlier on rank 1, or send less before that rank "
       "declares it; rank 1 has not declared this op; it is not waiting in any call; rank 0 also "
       "waits in: send of activations 0->1, call 0, tag 0, 520000 bytes: waits for rank 1 (its payload to be taken) "
       "since 1.0 s"},
      {of_send_to_lost_rank(), "peer_failed: activations 0->1, on rank 0: rank 1 is gone: killed by signal 9; restart "
                               "the job to continue; a send of 8 bytes (tag 0, invocation 0) had not begun"},
      {of_untaken_send(),
       "timeout: activations 0->1, invocation 0, on rank 0 (sender): config direct to rank 1 sent 1048576 of 1048576 "
       "bytes; that rank has posted no receive, or reads too slowly for this deadline; rank 1 "
       "has posted 0 receives of tag 0; it is not waiting in any call"},
      {of_small_buffer(true),
       "buffer_too_small: activations 0->1, invocation 0, on rank 0 (sender): rank 1 did not take this message of tag "
       "0: its receive has a buffer of 1000 bytes, which is too small for the message of 1048576 bytes; nothing was "
       "written"},
      {of_small_buffer(false), "buffer_too_small: activations 0->1, invocation 0, on rank 1 (receiver): a receive from "
                               "rank 0 into a buffer of 1000 "
                               "bytes, which is too small for the message of 1048576 bytes; nothing was written"},
      {of_small_buffer_later(),
       "buffer_too_small: activations 0->1, invocation 0, on rank 0 (sender): rank 1 did not take this message of tag "
       "0: its receive has a buffer of 4 bytes, which is too small for the message of 8 bytes; nothing was written; "
       "this rank learned of it only after it had sent that message, and has now sent the next one"},
      {of_config(send_that_throws, receive_whole_data, true),
       "config_failed: activations 0->1, invocation 0, on rank 0 (sender): config mine to rank 1 sent 0 of 100 bytes; "
       "exception: no such card"},
      {of_config(send_that_throws, receive_whole_data, false),
       "config_failed: activations 0->1, invocation 0, on rank 1 (receiver): a receive from rank 0 into a buffer of "
       "100 bytes, "
       "tag 0; config mine failed at the sender"},
      {of_config(send_on_faulty_device, receive_whole_data, false),
       "device_failed: activations 0->1, invocation 0, on rank 1 (receiver): a receive from rank 0 into a buffer of "
       "100 bytes, "
       "tag 0; the device of rank 0 failed in config mine"},
      {of_config(send_whole_data, receive_that_throws, false),
       "config_failed: activations 0->1, invocation 0, on rank 1 (receiver): config mine received 0 of 100 bytes from "
       "rank 0; exception: no such card"},
      {of_config(send_half, receive_whole_data, true),
       "config_failed: activations 0->1, invocation 0, on rank 0 (sender): config mine to rank 1 sent 50 of 100 bytes"},
      {of_overflow(true),
       "full: activations 0->1: rank 1 received more than 1048576 bytes for ops that it has not declared, including "
       "this op, and dropped this op's messages; declare the op earlier on rank 1, or send less, or fewer and larger "
       "parts, before that rank declares it; a send of 8 bytes (tag 0, invocation 1) had not begun"},
      {of_overflow(false),
       "full: activations 0->1: rank 1 received more than 1048576 bytes before it declared their ops, joined the ops' "
       "generations or posted the receives; do so earlier, or send less, or fewer and larger parts, before then; no "
       "message matched a receive of up to 16777216 bytes from rank 0 (tag 0, invocation 0)"},
      {of_other_declaration(true),
       "declaration_mismatch: activations 0->1: rank 1 declares dtype bf16, the leader rank 0 declares dtype bytes; "
       "declare the op alike on all its ranks; a send of 8 bytes (tag 0, invocation 1) had not begun"},
      {of_other_declaration(false),
       "declaration_mismatch: activations 0->1: rank 1 declares dtype bf16, the leader rank 0 declares dtype bytes; "
       "declare the op alike on all its ranks; no message matched a receive of up to 8 bytes from rank 0 (tag 0, "
       "invocation 1)"},
      {of_itself<int, int>(0, 3),
       "timeout: own, on rank 0: a receive from itself, tag 0: its other side was not posted"},
      {of_itself<int, int>(3, 0), "timeout: own, on rank 0: a send to itself, tag 0: its other side was not posted"},
      {of_itself<int, int>(3, 2), "buffer_too_small: own, on rank 0: a receive from itself, tag 0: 12 bytes do not fit "
                                  "into 8; nothing was written"},
      {of_itself<float, int>(3, 3), "declaration_mismatch: own, on rank 0: a receive from itself, tag 0: the send has "
                                    "f32 elements, but the receive expects i32 elements; nothing was written"},
  });
}
