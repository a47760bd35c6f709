// Actors of one rank on the reactor: typed messages, bounded mailboxes, and a deadline in every receive.
//
//     actors --only pingpong|fanin|idle|spawn|request [--iterations N] [--burst 10]
//
// Each mode is the counterpart of the mode with the same name in peers/caf.cpp: the same messages between as many
// actors.
#include <parley/actor.hpp>
#include <parley/bench/measure.hpp>
#include <parley/runtime/coroutines/frame_pool.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/reactor.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::runtime;

struct note {
  std::int64_t value = 0;
};
static_assert(sizeof(note) == 8);

constexpr time_ns patience_ns = 10'000'000'000;

// Two actors pass one number back and forth. As in CAF, a send to a mailbox with room does not suspend.
task<> partner(actor<note>& self, address<note> back) {
  for (;;) {
    auto m = co_await self.receive(self.where().deadline_in(patience_ns));
    if (!m) co_return;
    if (back.try_send({m->value + 1}) != errc::none) co_return;
  }
}

task<> player(actor<note>& self, std::int64_t messages) {
  scope& here = co_await this_scope;
  const address<note> other = spawn_actor<note>(here, partner, self.self());
  const std::int64_t start = now_ns();
  for (note ball; ball.value < messages;) {
    if (other.try_send(ball) != errc::none) co_return;
    auto m = co_await self.receive(self.where().deadline_in(patience_ns));
    if (!m) co_return;
    ball.value = m->value + 1;
  }
  report("actor_pingpong", double(now_ns() - start) / double(messages), "ns");
  here.cancel();
}

task<> pingpong(executor&, const arguments& given) {
  scope game(co_await this_scope);
  spawn_actor<note>(game, player, given.number("iterations", 1'000'000));
  co_await game.join();
}

// A hundred senders, one bounded mailbox. The receiver starts a round with one message to each sender. Each sender
// replies with `burst` messages, and waits when the mailbox is full.
task<> burst_sender(actor<note>& self, address<note> receiver, std::int64_t burst) {
  for (;;) {
    auto go = co_await self.receive(self.where().deadline_in(patience_ns));
    if (!go) co_return;
    for (note m; m.value < burst; ++m.value) {
      auto sent = co_await receiver.send(m);
      if (!sent) co_return;
    }
  }
}

task<> fanin_receiver(actor<note>& self, std::int64_t messages, std::int64_t burst) {
  constexpr std::size_t senders = 100;
  scope& here = co_await this_scope;
  std::vector<address<note>> all;
  for (std::size_t i = 0; i < senders; ++i) all.push_back(spawn_actor<note>(here, burst_sender, self.self(), burst));
  const std::int64_t round = std::int64_t{senders} * burst;
  const std::int64_t start = now_ns();
  std::int64_t received = 0;
  while (received < messages) {
    for (const auto& sender : all) static_cast<void>(sender.try_send({}));
    for (std::int64_t n = 0; n < round; ++n) {
      auto m = co_await self.receive(self.where().deadline_in(patience_ns));
      if (!m) co_return;
    }
    received += round;
  }
  report("actor_fanin", double(now_ns() - start) / double(received), "ns");
  here.cancel();
}

task<> fanin(executor&, const arguments& given) {
  scope crowd(co_await this_scope);
  spawn_actor<note>(crowd, fanin_receiver, given.number("iterations", 1'000'000), given.number("burst", 10));
  co_await crowd.join();
}

// Actors that have started, hold a partner's address, and wait for a message until a deadline.
task<> idler(actor<note>& self, address<note> other) {
  auto m = co_await self.receive(self.where().deadline_in(patience_ns));
  if (!m) co_return;
  static_cast<void>(other.try_send(*m));
}

task<> idle(executor&, const arguments& given) {
  const auto actors = std::size_t(given.number("iterations", 10'000));
  scope sleepers(co_await this_scope);
  std::vector<address<note>> all(actors);
  const std::size_t before = heap_bytes();
  for (std::size_t i = 0; i < actors; ++i) {
    all[i] = spawn_actor<note>(sleepers, idler, address<note>(i == 0 ? address<note>{} : all[i - 1]));
    if (i % 32 == 31) co_await yield;  // lets them start, so that the heap does not count a queue of unstarted actors
  }
  co_await yield;
  report("actor_idle_bytes", double(heap_bytes() - before) / double(actors), "bytes");
  sleepers.cancel();
  co_await sleepers.join();
}

// Actors that are spawned, run once and end, in batches.
task<> child(actor<note>&, std::int64_t* ended) {
  ++*ended;
  co_return;
}

task<> spawn(executor&, const arguments& given) {
  const std::int64_t actors = given.number("iterations", 1'000'000);
  constexpr std::int64_t batch = 100;
  scope nursery(co_await this_scope);
  std::int64_t ended = 0;
  const std::int64_t start = now_ns();
  while (ended < actors) {
    for (std::int64_t n = 0; n < batch; ++n) spawn_actor<note>(nursery, child, &ended);
    co_await nursery.join();
  }
  report("actor_spawn", double(now_ns() - start) / double(ended), "ns");
}

// Sequential requests, each with a deadline that is armed and never reached.
struct question {
  std::int64_t value = 0;
  reply_to<std::int64_t> reply{};
};

task<> server(actor<question>& self) {
  for (;;) {
    auto m = co_await self.receive(self.where().deadline_in(patience_ns));
    if (!m) co_return;
    m->reply.send(m->value + 1);
  }
}

task<> client(actor<note>& self, std::int64_t requests) {
  scope& here = co_await this_scope;
  const address<question> to = spawn_actor<question>(here, server);
  const std::int64_t start = now_ns();
  for (std::int64_t n = 0; n < requests;) {
    const question q{n, {}};
    auto answer = co_await ask(to, q, self.where().deadline_in(patience_ns));
    if (!answer) co_return;
    n = *answer;
  }
  report("actor_request_deadline", double(now_ns() - start) / double(requests), "ns");
  here.cancel();
}

task<> request(executor&, const arguments& given) {
  scope pair(co_await this_scope);
  spawn_actor<note>(pair, client, given.number("iterations", 500'000));
  co_await pair.join();
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "pingpong");
  pin_to_core(int(given.number("core", 0)));
  reactor loop;
  if (only == "pingpong")
    run(loop, pingpong(loop, given));
  else if (only == "fanin")
    run(loop, fanin(loop, given));
  else if (only == "idle")
    run(loop, idle(loop, given));
  else if (only == "spawn")
    run(loop, spawn(loop, given));
  else if (only == "request")
    run(loop, request(loop, given));
  else
    give_up("--only takes pingpong, fanin, idle, spawn or request, not " + only);
}
