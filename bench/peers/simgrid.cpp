// SimGrid's simulator as its users would write it: actors that sleep, put and get through mailboxes, with two hosts
// per pair. Measures the same as simulator.cpp does for parley, with one difference: SimGrid also models how
// transfers share bandwidth.
//
//     simgrid [--ranks 1000] [--calls 600]      pairs that exchange 128 bytes every 10 us: events a second
//
// An event is a message received, or the end of an actor's sleep.
#include <parley/bench/measure.hpp>

#include <simgrid/s4u.hpp>

#include <cstdint>
#include <string>

namespace {

using namespace parley::bench;
namespace s4u = simgrid::s4u;

constexpr double pace_s = 10e-6;
constexpr std::uint64_t message_bytes = 128;

void sender(s4u::Mailbox* to, std::int64_t calls) {
  static std::int64_t payload = 0;  // messages pass a pointer to it
  for (std::int64_t n = 0; n < calls; ++n) {
    s4u::this_actor::sleep_for(pace_s);
    to->put(&payload, message_bytes);
  }
}

void receiver(s4u::Mailbox* mine, std::int64_t calls) {
  for (std::int64_t n = 0; n < calls; ++n) {
    s4u::this_actor::sleep_for(pace_s);
    mine->get<std::int64_t>();
  }
}

s4u::Host* add_host(s4u::NetZone& net, std::int64_t number) {
  const std::string name = std::to_string(number);
  s4u::Host* const host = net.create_host("host" + name, 1e9);
  s4u::Link* const link = net.create_link("link" + name, 10e9)->set_latency(0.5e-6);
  net.add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {s4u::LinkInRoute(link)}, true);
  return host;
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::int64_t ranks = given.number("ranks", 1'000);
  const std::int64_t calls = given.number("calls", 600);
  int own_arguments = 1;
  s4u::Engine engine(&own_arguments, argv);
  s4u::NetZone& net = *s4u::create_star_zone("net");
  for (std::int64_t pair = 0; pair < ranks / 2; ++pair) {
    s4u::Mailbox* const mailbox = s4u::Mailbox::by_name(std::to_string(pair));
    s4u::Actor::create("sender", add_host(net, 2 * pair), sender, mailbox, calls);
    s4u::Actor::create("receiver", add_host(net, 2 * pair + 1), receiver, mailbox, calls);
  }
  net.seal();
  const std::int64_t start = now_ns();
  engine.run();
  const double seconds = double(now_ns() - start) / 1e9;
  report("simgrid_events", double(calls * (ranks / 2) + calls * ranks) / seconds, "per_s");
}
