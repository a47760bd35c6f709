// CAF as its users would write it: statically typed actors, one scheduler thread, 8-byte messages. CAF's mailboxes
// are unbounded, and its request timeouts run on CAF's own clock; both are its defaults.
//
//     caf --only pingpong|fanin|idle|spawn|request [--iterations N] [--policy sharing|stealing] [--burst 50]
//
// The defaults are the fastest settings found: with one thread, work sharing beats CAF's own default, work stealing.
#include <parley/bench/measure.hpp>

#include <atomic>
#include <caf/all.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace parley::bench;

using value_actor = caf::typed_actor<caf::reacts_to<std::int64_t>>;
using server_actor = caf::typed_actor<caf::replies_to<std::int64_t>::with<std::int64_t>>;

struct clock_marks {
  std::int64_t start = 0;
  std::int64_t end = 0;
};

class configuration : public caf::actor_system_config {
 public:
  explicit configuration(const arguments& given) {
    set("scheduler.max-threads", std::size_t{1});
    set("scheduler.policy", caf::atom_from_string(given.text("policy", "sharing")));
  }
};

// Two actors pass one number back and forth.
struct player_state {
  value_actor partner;
};

value_actor::behavior_type player(value_actor::stateful_pointer<player_state> self, value_actor partner,
                                  std::int64_t messages, clock_marks* marks) {
  self->state.partner = std::move(partner);
  return {[=](std::int64_t n) {
    if (!self->state.partner) self->state.partner = caf::actor_cast<value_actor>(self->current_sender());
    if (n == 0) marks->start = now_ns();
    if (n == messages) {
      marks->end = now_ns();
      self->quit();
      self->send_exit(self->state.partner, caf::exit_reason::user_shutdown);
      return;
    }
    self->send(self->state.partner, n + 1);
  }};
}

void pingpong(caf::actor_system& system, std::int64_t messages) {
  clock_marks marks;
  auto second = system.spawn(player, value_actor{}, messages, &marks);
  auto first = system.spawn(player, second, messages, &marks);
  second = nullptr;
  caf::anon_send(first, std::int64_t{0});
  first = nullptr;
  system.await_all_actors_done();
  report("caf_pingpong", double(marks.end - marks.start) / double(messages), "ns");
}

// A hundred senders, one receiver. The receiver starts a round with one message to each sender, which replies with
// `burst` messages. Nothing else limits CAF's mailbox.
value_actor::behavior_type burst_sender(value_actor::pointer self, value_actor receiver, std::int64_t burst) {
  return {[=](std::int64_t) {
    for (std::int64_t n = 0; n < burst; ++n) self->send(receiver, n);
  }};
}

struct fanin_state {
  std::vector<value_actor> senders;
  std::int64_t received = 0;
};

value_actor::behavior_type fanin_receiver(value_actor::stateful_pointer<fanin_state> self, std::int64_t senders,
                                          std::int64_t burst, std::int64_t messages, clock_marks* marks) {
  for (std::int64_t n = 0; n < senders; ++n)
    self->state.senders.push_back(self->spawn(burst_sender, value_actor{self}, burst));
  return {[=](std::int64_t n) {
    fanin_state& state = self->state;
    if (n < 0) {
      marks->start = now_ns();
    } else if (++state.received % (senders * burst) != 0) {
      return;
    }
    if (state.received >= messages) {
      marks->end = now_ns();
      for (auto& sender : state.senders) self->send_exit(sender, caf::exit_reason::user_shutdown);
      state.senders.clear();
      self->quit();
      return;
    }
    for (auto& sender : state.senders) self->send(sender, std::int64_t{0});
  }};
}

void fanin(caf::actor_system& system, std::int64_t messages, std::int64_t burst) {
  clock_marks marks;
  constexpr std::int64_t senders = 100;
  const std::int64_t round = senders * burst;
  const std::int64_t total = (messages + round - 1) / round * round;
  auto receiver = system.spawn(fanin_receiver, senders, burst, total, &marks);
  caf::anon_send(receiver, std::int64_t{-1});
  receiver = nullptr;
  system.await_all_actors_done();
  report("caf_fanin", double(marks.end - marks.start) / double(total), "ns");
}

// Actors that have started, hold a partner's address, and wait for a message.
value_actor::behavior_type idler(value_actor::stateful_pointer<player_state> self, std::atomic<std::int64_t>* started) {
  started->fetch_add(1);
  return {[=](std::int64_t n) { self->send(self->state.partner, n); }};
}

void idle(caf::actor_system& system, std::int64_t actors) {
  std::atomic<std::int64_t> started{0};
  std::vector<value_actor> all(static_cast<std::size_t>(actors));
  const std::size_t before = heap_bytes();
  for (auto& one : all) one = system.spawn(idler, &started);
  while (started < actors) std::this_thread::yield();
  report("caf_idle_bytes", double(heap_bytes() - before) / double(actors), "bytes");
  for (auto& one : all) caf::anon_send_exit(one, caf::exit_reason::user_shutdown);
  all.clear();
  system.await_all_actors_done();
}

// An actor spawns children that run once and end. The child that completes a batch requests the next one.
struct spawner_state {
  std::int64_t spawned = 0;
  std::int64_t ended = 0;
};

value_actor::behavior_type spawner(value_actor::stateful_pointer<spawner_state> self, std::int64_t actors,
                                   clock_marks* marks) {
  return {[=](std::int64_t) {
    constexpr std::int64_t batch = 100;
    spawner_state* state = &self->state;
    if (state->spawned == 0) marks->start = now_ns();
    if (state->spawned >= actors) {
      marks->end = now_ns();
      self->quit();
      return;
    }
    const value_actor parent{self};
    for (std::int64_t n = 0; n < batch; ++n)
      self->spawn([state, parent](caf::event_based_actor* child) {
        if (++state->ended % batch == 0) child->send(parent, std::int64_t{0});
      });
    state->spawned += batch;
  }};
}

void spawn(caf::actor_system& system, std::int64_t actors) {
  clock_marks marks;
  auto parent = system.spawn(spawner, actors, &marks);
  caf::anon_send(parent, std::int64_t{0});
  parent = nullptr;
  system.await_all_actors_done();
  report("caf_spawn", double(marks.end - marks.start) / double(actors), "ns");
}

// Sequential requests, each with a deadline that is armed and never reached.
server_actor::behavior_type server() {
  return {[](std::int64_t n) { return n + 1; }};
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): CAF gives a behaviour its arguments by value
void request_next(value_actor::pointer self, server_actor to, std::int64_t n, std::int64_t requests,
                  clock_marks* marks) {
  self->request(to, std::chrono::seconds(10), n).then([=](std::int64_t answer) {
    if (answer < requests) return request_next(self, to, answer, requests, marks);
    marks->end = now_ns();
    self->send_exit(to, caf::exit_reason::user_shutdown);
    self->quit();
  });
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): CAF gives a behaviour its arguments by value
value_actor::behavior_type client(value_actor::pointer self, server_actor to, std::int64_t requests,
                                  clock_marks* marks) {
  return {[=](std::int64_t n) {
    marks->start = now_ns();
    request_next(self, to, n, requests, marks);
  }};
}

void request(caf::actor_system& system, std::int64_t requests) {
  clock_marks marks;
  auto to = system.spawn(server);
  auto asking = system.spawn(client, to, requests, &marks);
  to = nullptr;
  caf::anon_send(asking, std::int64_t{0});
  asking = nullptr;
  system.await_all_actors_done();
  report("caf_request_deadline", double(marks.end - marks.start) / double(requests), "ns");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "pingpong");
  pin_to_core(int(given.number("core", 0)));
  configuration settings(given);
  caf::actor_system system(settings);
  if (only == "pingpong")
    pingpong(system, given.number("iterations", 1'000'000));
  else if (only == "fanin")
    fanin(system, given.number("iterations", 1'000'000), given.number("burst", 50));
  else if (only == "idle")
    idle(system, given.number("iterations", 10'000));
  else if (only == "spawn")
    spawn(system, given.number("iterations", 200'000));
  else if (only == "request")
    request(system, given.number("iterations", 100'000));
  else
    give_up("--only takes pingpong, fanin, idle, spawn or request, not " + only);
}
