#include <parley/tests/support/awaited.hpp>

#include <parley/config.hpp>
#include <parley/simulation/world/network.hpp>
#include <parley/simulation/world/stage.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

using namespace parley::simulation;
using parley::runtime::arrival;
using parley::runtime::link;
using parley::runtime::timer;
using parley::runtime::virtual_time;
using parley::tests::awaited;

namespace {

constexpr auto data = link::channel::data;
constexpr auto control = link::channel::control;

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto all = std::as_bytes(std::span(text));
  return {all.begin(), all.end()};
}

struct catcher final : link::handler {
  void on_arrival(arrival&& message) noexcept override {
    got.emplace_back(reinterpret_cast<const char*>(message.header().data()), message.header().size());
    times.push_back(line->now());
    last = std::move(message);
  }
  explicit catcher(timeline& l) : line(&l) {}
  timeline* line;
  std::vector<std::string> got;
  std::vector<time_ns> times;
  arrival last;
};

struct script final : interference {
  fate judge(const parcel& p) override { return p.number <= fates.size() ? fates[p.number - 1] : fate{}; }
  std::vector<fate> fates;
};

struct lost_peer final : link::failure_handler {
  void on_peer_failed(rank_id peer) noexcept override { peers.push_back(peer); }
  std::vector<rank_id> peers;
};

}  // namespace

TEST_CASE(
    "a message needs the latency and its time on the wire; with shared_wire payloads of one pair queue for the wire") {
  stage s(2, {});
  network net(s, 2, {.latency_ns = 1'000, .ns_per_byte = 1, .per_message_ns = 10, .shared_wire = true});
  catcher in(s);
  net[1].listen(data, &in);
  const std::vector<std::byte> payload(100);
  for (const char* name : {"a", "b"}) CHECK(net[0].send(1, data, bytes_of(name), payload, nullptr) == errc::none);
  s.run_to(10'000);
  CHECK(in.got == std::vector<std::string>{"a", "b"});
  CHECK(in.times == std::vector<time_ns>{1'110, 1'220});
}

TEST_CASE("payloads of two senders for one rank queue for its way in if and only if shared_ingress is set") {
  for (const bool shared : {false, true}) {
    stage s(4, {});
    network net(s, 4, {.latency_ns = 1'000, .ns_per_byte = 1, .per_message_ns = 10, .shared_ingress = shared});
    catcher in(s);
    catcher elsewhere(s);
    net[2].listen(data, &in);
    net[3].listen(data, &elsewhere);
    const std::vector<std::byte> payload(100);
    for (const rank_id from : {0U, 1U})
      CHECK(net[from].send(2, data, bytes_of("to 2"), payload, nullptr) == errc::none);
    CHECK(net[0].send(3, data, bytes_of("to 3"), payload, nullptr) == errc::none);
    s.run_to(10'000);
    CHECK(in.times == std::vector<time_ns>{1'100, shared ? 1'210 : 1'100});
    CHECK(elsewhere.times == std::vector<time_ns>{1'100});
  }
}

TEST_CASE("payloads of one sender for two ranks queue for its way out if and only if shared_egress is set") {
  for (const bool shared : {false, true}) {
    stage s(4, {});
    network net(s, 4, {.latency_ns = 1'000, .ns_per_byte = 1, .per_message_ns = 10, .shared_egress = shared});
    catcher first(s);
    catcher second(s);
    net[2].listen(data, &first);
    net[3].listen(data, &second);
    const std::vector<std::byte> payload(100);
    for (const rank_id to : {2U, 3U}) CHECK(net[0].send(to, data, bytes_of("from 0"), payload, nullptr) == errc::none);
    CHECK(net[1].send(2, data, bytes_of("from 1"), payload, nullptr) == errc::none);
    s.run_to(10'000);
    const time_ns alone = shared ? 1'110 : 1'100;
    CHECK(first.times == std::vector<time_ns>{alone, alone});
    CHECK(second.times == std::vector<time_ns>{shared ? 1'220 : 1'100});
  }
}

TEST_CASE("control messages are lost, doubled and overtaken as their fate says") {
  stage s(2, {});
  script weather;
  weather.fates = {{.lost = true}, {.doubled = true, .copy_extra_ns = 50}, {.extra_ns = 500}};
  network net(s, 2, {}, &weather);
  catcher in(s);
  net[1].listen(control, &in);
  for (const char* name : {"1", "2", "3", "4"})
    CHECK(net[0].send(1, control, bytes_of(name), {}, nullptr) == errc::none);
  s.run_to(10'000);
  CHECK(in.got == std::vector<std::string>{"2", "4", "2", "3"});
}

TEST_CASE("a large payload stays with its sender until it is fetched; a send whose payload is dropped succeeds") {
  stage s(2, {});
  network net(s, 2, {.eager_bytes = 16});
  catcher in(s);
  net[1].listen(data, &in);
  std::vector<std::byte> payload(1'000, std::byte{7});
  awaited sent, fetched, dropped;
  CHECK(net[0].send(1, data, bytes_of("x"), payload, &sent) == errc::pending);
  s.run_to(10'000);
  CHECK(in.last.remote());
  CHECK(sent.outcome == errc::pending);
  std::vector<std::byte> into(1'000);
  CHECK(net[1].fetch(std::move(in.last), into, &fetched) == errc::pending);
  s.run_to(20'000);
  CHECK(fetched.outcome == errc::none);
  CHECK(sent.outcome == errc::none);
  CHECK(into == payload);
  CHECK(net[0].send(1, data, bytes_of("y"), payload, &dropped) == errc::pending);
  s.run_to(30'000);
  in.last = {};
  s.run_to(40'000);
  CHECK(dropped.outcome == errc::none);
  CHECK(net.pending() == 0);
}

TEST_CASE("transfers with a dead rank wait until their rank gives it up, and a put to the dead rank lands nowhere") {
  stage s(3, {});
  network net(s, 3, {.eager_bytes = 16});
  catcher in(s), other(s);
  lost_peer told;
  net[1].listen(data, &in);
  net[0].listen(data, &other);
  net[0].on_failure(&told);
  std::vector<std::byte> memory(64);
  awaited to_dead, fence, fetched, own;
  std::vector<std::byte> payload(100);
  const auto region = net[1].expose(memory).value();
  CHECK(net[0].send(1, data, bytes_of("waits"), payload, &to_dead) == errc::pending);
  CHECK(net[1].send(0, data, bytes_of("held"), payload, &own) == errc::pending);
  s.run_to(5'000);
  awaited put;
  CHECK(net[0].put(1, {region.key, reinterpret_cast<std::uint64_t>(memory.data())}, std::span(payload).first(64),
                   &put) == errc::pending);
  s.run_to(7'500);
  CHECK(net[0].fence(1, &fence) == errc::pending);
  net.crash(1, [&] { memory.clear(); });
  CHECK(own.outcome == errc::peer_failed);  // the dead rank's own memory is free again
  std::vector<std::byte> into(100);
  CHECK(net[0].fetch(std::move(other.last), into, &fetched) == errc::pending);
  s.run_to(1'000'000);
  CHECK(net.puts().nowhere == 1);
  CHECK(to_dead.calls + fence.calls + fetched.calls == 0);
  s.as(0, [&] { net.give_up(0, 1); });
  for (const awaited* e : {&to_dead, &fence, &fetched}) {
    CHECK(e->outcome == errc::peer_failed);
    CHECK(e->calls == 1);
  }
  CHECK(told.peers == std::vector<rank_id>{1});
  CHECK(net[0].send(1, data, bytes_of("later"), payload, nullptr) == errc::peer_failed);
  CHECK(net.pending() == 0);
}

TEST_CASE(
    "messages for an ended process do not reach its replacement, and messages that the process sent still arrive") {
  stage s(2, {});
  network net(s, 2, {.latency_ns = 1'000});
  catcher at_old(s);
  catcher at_other(s);
  net[1].listen(data, &at_old);
  net[0].listen(data, &at_other);
  const std::vector<std::byte> large(50'000);
  awaited to_old;
  const auto say = [&](rank_id from, rank_id to, const char* what) {
    return net[from].send(to, data, bytes_of(what), std::span(large).first(1), nullptr);
  };
  CHECK(net[0].send(1, data, bytes_of("large"), large, &to_old) == errc::pending);
  CHECK(say(1, 0, "of the old one") == errc::none);
  net.crash(1, [] {});
  net.come_back(1);
  catcher at_new(s);
  net[1].listen(data, &at_new);
  CHECK(say(0, 1, "for the old one") == errc::none);
  CHECK(say(1, 0, "of the new one") == errc::none);
  s.run_to(100'000);
  CHECK(at_old.got.empty());
  CHECK(at_new.got.empty());
  CHECK(at_other.got == std::vector<std::string>{"of the old one", "of the new one"});
  CHECK(to_old.calls == 0);
  s.as(0, [&] {
    net.meet(0, 1);
    net.let_go(0, 1);
  });
  CHECK(to_old.outcome == errc::peer_failed);
  CHECK(say(0, 1, "for the new one") == errc::none);
  s.run_to(200'000);
  CHECK(at_new.got == std::vector<std::string>{"for the new one"});
  CHECK(net.pending() == 0);
}

TEST_CASE("a fence ignores puts that were made before one of its two processes was replaced") {
  stage s(2, {});
  for (const bool sender_returns : {true, false}) {
    CAPTURE(sender_returns);
    network net(s, 2, {.landing_ns = parley::runtime::never});
    std::vector<std::byte> memory(100);
    const std::vector<std::byte> bytes(100, std::byte{1});
    const auto exposed = net[1].expose(memory).value();
    const parley::runtime::remote_place there{.key = exposed.key,
                                              .address = reinterpret_cast<std::uint64_t>(memory.data())};
    awaited put;
    CHECK(net[0].put(1, there, bytes, &put) == errc::pending);
    s.run_to(s.now() + 100'000);
    REQUIRE(net.puts().in_the_air == 1);
    if (sender_returns) net[1].withdraw(exposed);
    const parley::runtime::rank_id gone = sender_returns ? 0 : 1;
    net.crash(gone, [] {});
    net.come_back(gone);
    net.meet(1 - gone, gone);
    awaited fence;
    const errc begun = net[0].fence(1, &fence);
    CHECK(begun == errc::pending);
    s.run_to(s.now() + 100'000);
    CHECK(fence.outcome == errc::none);
    CHECK(net.land());
    CHECK(net.puts().nowhere == 1);
    awaited next;
    CHECK(net[0].fence(1, &next) == errc::pending);
    s.run_to(s.now() + 100'000);
    CHECK(next.outcome == errc::none);
  }
}

TEST_CASE("a put lands after it has completed at its origin; a fence completes once all earlier puts have landed") {
  stage s(2, {});
  network net(s, 2, {.landing_ns = parley::runtime::never});
  std::vector<std::byte> memory(8), payload(8, std::byte{3});
  const auto region = net[1].expose(memory).value();
  awaited put, fence, outside;
  const auto address = reinterpret_cast<std::uint64_t>(memory.data());
  CHECK(net[0].put(1, {region.key, address}, payload, &put) == errc::pending);
  CHECK(net[0].fence(1, &fence) == errc::pending);
  s.run_to(100'000);
  CHECK(put.outcome == errc::none);
  CHECK(fence.calls == 0);
  CHECK(memory[0] == std::byte{0});
  CHECK(net.land());
  CHECK(memory == payload);
  s.run_to(200'000);
  CHECK(fence.outcome == errc::none);
  CHECK(net[0].put(1, {region.key, address + 1}, payload, &outside) == errc::bad_argument);
  CHECK(net.puts().outside == 1);
}

TEST_CASE("a frozen rank does nothing until it is thawed, and then handles all arrivals in order") {
  stage s(2, {});
  network net(s, 2);
  catcher in(s);
  net[1].listen(control, &in);
  s.freeze(1, 50'000);
  for (const char* name : {"1", "2"}) CHECK(net[0].send(1, control, bytes_of(name), {}, nullptr) == errc::none);
  s.run_to(49'999);
  CHECK(in.got.empty());
  s.run_to(60'000);
  CHECK(in.got == std::vector<std::string>{"1", "2"});
  CHECK(in.times == std::vector<time_ns>{50'000, 50'000});
}

TEST_CASE("a rank that computes inside a turn sends and receives after that, and its timers fire after the receives") {
  stage s(2, {.offsets = {0, 5'000}});
  network net(s, 2);
  catcher in(s);
  catcher back(s);
  net[1].listen(control, &in);
  net[0].listen(control, &back);
  struct late_timer : timer {
    explicit late_timer(const catcher& c) : timer(&on_time), seen(c) {}
    static void on_time(timer& self) noexcept {
      auto& mine = static_cast<late_timer&>(self);
      mine.taken_in = mine.seen.got.size();
    }
    const catcher& seen;
    std::size_t taken_in = 99;
  };
  late_timer before(in);
  s.as(1, [&] {
    s.clock(1).arm_in(before, 10'000);
    s.clock(1).spend(50'000);
    CHECK(s.clock(1).now() == 5'000);
    CHECK(s.clock(1).precise_now() == 55'000);
    CHECK(s.now() == 50'000);
    CHECK(net[1].send(0, control, bytes_of("late"), {}, nullptr) == errc::none);
    CHECK(s.clock(1).deadline_in(1'000) == 56'000);
  });
  CHECK(s.now() == 0);
  for (const char* name : {"1", "2"}) CHECK(net[0].send(1, control, bytes_of(name), {}, nullptr) == errc::none);
  s.run_to(49'999);
  CHECK(in.got.empty());
  CHECK(back.got.empty());
  CHECK(before.taken_in == 99);
  s.run_to(100'000);
  CHECK(in.got == std::vector<std::string>{"1", "2"});
  CHECK(in.times == std::vector<time_ns>{50'000, 50'000});
  CHECK(before.taken_in == 2);
  CHECK(back.got == std::vector<std::string>{"late"});
  CHECK(back.times == std::vector<time_ns>{50'000 + link_model{}.latency_ns});
}

TEST_CASE("a rank that computes again while it handles arrivals fires its timers after the last arrival") {
  stage s(2, {});
  network net(s, 2);
  struct busy_catcher final : link::handler {
    void on_arrival(arrival&&) noexcept override {
      ++got;
      clock.spend(20'000);
    }
    explicit busy_catcher(virtual_time& c) : clock(c) {}
    virtual_time& clock;
    int got = 0;
  } busy(s.clock(1));
  net[1].listen(control, &busy);
  struct late_timer : timer {
    explicit late_timer(const busy_catcher& c) : timer(&on_time), seen(c) {}
    static void on_time(timer& self) noexcept {
      auto& mine = static_cast<late_timer&>(self);
      mine.taken_in = mine.seen.got;
      mine.fired_at = mine.seen.clock.now();
    }
    const busy_catcher& seen;
    int taken_in = 99;
    time_ns fired_at = 0;
  } before(busy);
  s.as(1, [&] {
    s.clock(1).arm_in(before, 10'000);
    s.clock(1).spend(50'000);
  });
  for (const char* name : {"1", "2"}) CHECK(net[0].send(1, control, bytes_of(name), {}, nullptr) == errc::none);
  s.run_to(200'000);
  CHECK(before.taken_in == 2);
  CHECK(before.fired_at == 90'000);
}

TEST_CASE("a rank that is thawed while it computes handles arrivals at once, and is busy no longer") {
  stage s(2, {});
  network net(s, 2);
  catcher in(s);
  net[1].listen(control, &in);
  s.as(1, [&] { s.clock(1).spend(50'000); });
  CHECK(net[0].send(1, control, bytes_of("1"), {}, nullptr) == errc::none);
  s.run_to(20'000);
  CHECK(in.got.empty());
  s.thaw(1);
  s.run_to(20'001);
  CHECK(in.got == std::vector<std::string>{"1"});
  CHECK(s.clock(1).precise_now() == 20'000);
}
