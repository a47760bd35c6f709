#pragma once
/// Both ends of one edge on a virtual clock, without the actors that tune it: rank 0 sends, rank 1 receives. A test either sends through
/// `edge_sender`, or injects stamped parts itself, in any order and number.
#include <parley/tests/support/cases/pattern.hpp>
#include <parley/tests/support/memory_link.hpp>

#include <parley/actors/edge/edge_receiver.hpp>
#include <parley/actors/edge/edge_sender.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/when.hpp>

#include <optional>
#include <vector>

namespace parley::tests {

/// The objects that the actors of one rank share.
struct node {
  node(runtime::executor& ex, runtime::link& net, std::uint64_t first_invocation = 0)
      : mail(ex, net, {}), data(net), actors(ex), shared{ex, actors, net, mail, data, flight, {{1000, 1001}}, 0} {
    shared.first_invocation = first_invocation;
  }
  runtime::flight_recorder flight;
  runtime::router mail;
  actors::data_hub data;
  runtime::scope actors;
  actors::services shared;
};

inline actors::op_declaration test_edge() {
  auto op = actors::declare_edge("edge", 0, 1, "");
  op.default_config = "whole";
  op.default_digest = 77;
  return op;
}

struct edge_pair {
  static constexpr std::uint64_t generation = 5;

  explicit edge_pair(actors::window_limits window = {}, memory_link_options o = {}, std::uint64_t first_invocation = 0)
      : links(clock, 2, std::move(o)), sending(clock, links[0], first_invocation),
        receiving(clock, links[1], first_invocation), op(test_edge()),
        assigned(77, "whole", "", {0, 1}, actors::tuning_policy::off, {}),
        out(sending.shared, op, generation, assigned, window), in(receiving.shared, op, generation) {}

  actors::stamp stamp(std::uint64_t invocation, std::uint64_t total, std::uint64_t offset = 0,
                      std::uint32_t tag = 0) const {
    actors::stamp s;
    s.op = op.id();
    s.generation = generation;
    s.digest = 77;
    s.total_bytes = total;
    s.offset = offset;
    s.invocation = static_cast<std::uint32_t>(invocation);
    s.tag = tag;
    s.source = 0;
    return s;
  }
  /// Sends a part as the sender would.
  void inject(const actors::stamp& s, std::span<const std::byte> part = {}) {
    static_cast<void>(links[0].send(1, runtime::link::channel::data, actors::bytes_of(s), part, nullptr));
  }
  /// Lets time pass, so that messages arrive.
  void pass(runtime::time_ns span = 1'000'000) {
    bool over = false;
    runtime::scope s(clock);
    s.spawn(sleep(clock.deadline_in(span), over));
    runtime::run_until(clock, [&] { return over; });
  }
  static runtime::task<> sleep(runtime::time_ns until, bool& over) {
    auto woken = co_await runtime::sleep_until(until);
    over = static_cast<bool>(woken);
  }

  runtime::virtual_time clock;
  memory_world links;
  node sending;
  node receiving;
  actors::op_declaration op;
  actors::assignment assigned;
  actors::edge_sender out;
  actors::edge_receiver in;
};

/// The state of a receive of one whole message.
struct watched_receive {
  std::vector<std::byte> buffer;
  std::optional<runtime::errc> ended;
  std::optional<std::uint64_t> invocation;
  std::uint64_t bytes = 0;
};

inline runtime::task<> receive_whole(actors::edge_receiver& edge, std::uint32_t tag, watched_receive& r,
                                     runtime::time_ns deadline = runtime::never) {
  actors::part_receiver in(edge, tag, r.buffer.size());
  auto seen = co_await in.match(deadline);
  if (in.matched()) r.invocation = in.invocation();
  if (!seen) {
    r.ended = seen.code();
    co_return;
  }
  r.bytes = seen->total_bytes;
  if (seen->total_bytes != 0) {
    try {
      co_await in.receive(0, std::span(r.buffer).first(seen->total_bytes));
    } catch (const runtime::failure&) {}
  }
  r.ended = co_await in.settle();
}

/// The state of a send.
struct watched_send {
  std::optional<runtime::errc> ended;
  std::optional<std::uint64_t> invocation;
};

inline runtime::task<> send_whole(edge_pair& e, std::uint32_t tag, std::span<const std::byte> data, watched_send& w,
                                  runtime::time_ns deadline = runtime::never) {
  auto number = co_await e.out.admit(tag, data.size(), deadline);
  if (!number) {
    w.ended = number.code();
    co_return;
  }
  w.invocation = *number;
  const actors::outgoing inv = e.out.begin(tag, data.size(), *number);
  actors::part_sender out(e.links[0], 1, inv.mark);
  co_await out.send(0, data);
  const runtime::errc outcome = co_await out.settle();
  e.out.end(inv, outcome);
  w.ended = outcome;
}

}  // namespace parley::tests
