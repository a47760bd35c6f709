#include <parley/actor.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <variant>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

struct ping {
  int n = 0;
};
struct stop {};
using player = actor<ping, stop>;

task<> count_pings(player& self, script& play) {
  for (;;) {
    auto m = co_await self.receive();
    if (!m) {
      play.say(std::string(name(m.code())));
      co_return;
    }
    if (std::holds_alternative<stop>(*m)) co_return;
    play.say(std::to_string(std::get<ping>(*m).n));
  }
}
task<> fail_at_the_first(player& self) {
  auto m = co_await self.receive();
  if (m) throw std::runtime_error("no pings here");
}
task<> fail_with_a_reason(player& self) {
  auto m = co_await self.receive();
  if (m) raise({errc::config_failed, "rank 3: no kernel"});
}
task<> watch(actor<down>& self, script& play) {
  for (;;) {
    auto m = co_await self.receive();
    if (!m) co_return;
    play.say(std::to_string(m->monitored) + ":" + m->reason.what());
  }
}
task<> watch_later(actor<down, int>& self, script& play, time_ns when) {
  auto woken = co_await sleep_until(when);
  woken.value();
  for (int i = 0; i < 2; ++i) {
    auto m = co_await self.receive();
    play.say(m && std::holds_alternative<down>(*m) ? "down" : "other");
  }
}
task<> send_pings(script& play, address<ping, stop> to, int count) {
  for (int i = 0; i < count; ++i) {
    ping p{i};
    auto sent = co_await to.send(p);
    if (!sent) play.say(std::string(name(sent.code())));
  }
}
task<> say_when_done(actor<ping>& self, script& play, address<ping> next) {
  auto m = co_await self.receive();
  play.say(m ? "passed" + std::to_string(m->n) : std::string(name(m.code())));
  if (m && next) {
    ping p{m->n + 1};
    auto sent = co_await next.send(p);
    sent.value();
  }
}

struct gossip {
  address<gossip> about;
};
task<> ignore_gossip(actor<gossip>& self) {
  auto woken = co_await sleep_until(1_ms);
  static_cast<void>(woken);
  static_cast<void>(self);
}
task<> watch_each_other(actor<down>& self) {
  auto m = co_await self.receive();
  static_cast<void>(m);
}

}  // namespace

TEST_CASE("an actor receives messages sent to any copy of its address, and sends to an empty address return closed") {
  script play;
  auto a = spawn_actor<ping, stop>(*play.stage, count_pings, play);
  auto b = a;
  CHECK(a == b);
  CHECK(a.try_send(ping{1}) == errc::none);
  CHECK(b.try_send(ping{2}) == errc::none);
  auto c = std::move(b);
  CHECK(c.try_send(ping{3}) == errc::none);
  CHECK(c.try_send(stop{}) == errc::none);
  play.finish();
  CHECK(play.log == "1 2 3 ");
  address<ping, stop> nobody;
  CHECK_FALSE(nobody);
  CHECK(nobody.try_send(ping{}) == errc::closed);
  nobody = c;
  CHECK(nobody == a);
}

TEST_CASE("sends to an ended actor return closed, whether they wait or not") {
  script play;
  auto a = spawn_actor_with<ping, stop>(*play.stage, 1, count_pings, play);
  CHECK(a.try_send(stop{}) == errc::none);
  play.stage->spawn(send_pings(play, a, 2));  // the first ping fits after the actor has taken the stop; nobody reads it
  play.settle();
  CHECK(a.try_send(ping{}) == errc::closed);
  play.finish();
  CHECK(play.log == "closed closed ");
}

TEST_CASE("cancelling a scope ends its actors") {
  script play;
  auto a = spawn_actor<ping, stop>(*play.stage, count_pings, play);
  play.settle();
  play.stage->cancel();
  play.finish();
  CHECK(play.log == "cancelled ");
  CHECK(a.try_send(ping{}) == errc::closed);
}

TEST_CASE("an actor may pass messages on to another actor") {
  script play;
  auto last = spawn_actor<ping>(*play.stage, say_when_done, play, address<ping>{});
  auto middle = spawn_actor<ping>(*play.stage, say_when_done, play, last);
  auto first = spawn_actor<ping>(*play.stage, say_when_done, play, middle);
  CHECK(first.try_send({1}) == errc::none);
  play.finish();
  CHECK(play.log == "passed1 passed2 passed3 ");
}

TEST_CASE(
    "monitors learn of an actor's normal end, of its exception or failure, and of an end before the monitoring began") {
  script play;
  scope watchers(play.clock);
  auto w = spawn_actor<down>(watchers, watch, play);
  auto normal = spawn_actor<ping, stop>(*play.stage, count_pings, play);
  auto throwing = spawn_actor<ping, stop>(*play.stage, fail_at_the_first);
  auto failing = spawn_actor<ping, stop>(*play.stage, fail_with_a_reason);
  normal.monitor(w, 1);
  throwing.monitor(w, 2);
  failing.monitor(w, 3);
  CHECK(normal.try_send(stop{}) == errc::none);
  CHECK(throwing.try_send(ping{}) == errc::none);
  CHECK(failing.try_send(ping{}) == errc::none);
  play.finish();  // the scope lets no exception out
  normal.monitor(w, 4);
  address<ping, stop>{}.monitor(w, 5);
  play.settle();
  CHECK(play.log == "1:none 2:exception: no pings here 3:config_failed: rank 3: no kernel 4:closed 5:closed ");
  CHECK(play.stage->cancelled() == errc::none);
  watchers.cancel();
  play.settle();
}

TEST_CASE("an actor that throws leaves its siblings running") {
  script play;
  auto throwing = spawn_actor<ping, stop>(*play.stage, fail_at_the_first);
  auto other = spawn_actor<ping, stop>(*play.stage, count_pings, play);
  CHECK(throwing.try_send(ping{}) == errc::none);
  play.until(1_ms);
  CHECK(play.stage->running() == 1);
  CHECK(other.try_send(ping{4}) == errc::none);
  CHECK(other.try_send(stop{}) == errc::none);
  play.finish();
  CHECK(play.log == "4 ");
}

TEST_CASE("a monitor with a full mailbox still receives the message that an actor has ended") {
  script play;
  auto w = spawn_actor_with<down, int>(*play.stage, 1, watch_later, play, 5_ms);
  auto a = spawn_actor<ping, stop>(*play.stage, count_pings, play);
  a.monitor(w, 1);
  CHECK(w.try_send(7) == errc::none);
  CHECK(w.try_send(8) == errc::full);
  CHECK(a.try_send(stop{}) == errc::none);
  play.finish();
  CHECK(play.log == "other down ");
}

TEST_CASE("destroying a scope closes its actors' mailboxes and notifies their monitors") {
  script play;
  scope outer(play.clock);
  auto w = spawn_actor<down>(outer, watch, play);
  auto a = spawn_actor_with<ping, stop>(*play.stage, 1, count_pings, play);
  a.monitor(w, 1);
  CHECK(a.try_send(ping{}) == errc::none);
  outer.spawn(send_pings(play, a, 1));
  SUBCASE("before the actor has started") {}
  SUBCASE("while the actor waits") { play.settle(); }
  play.stage = nullptr;
  CHECK(a.try_send(ping{}) == errc::closed);
  play.settle();
  CHECK(play.log.find("1:cancelled") != std::string::npos);
  outer.cancel();
  play.settle();
}

TEST_CASE("actors whose unread messages hold each other's addresses are freed") {
  // LeakSanitizer reports whatever is left behind.
  script play;
  auto a = spawn_actor<gossip>(*play.stage, ignore_gossip);
  auto b = spawn_actor<gossip>(*play.stage, ignore_gossip);
  CHECK(a.try_send({b}) == errc::none);
  CHECK(b.try_send({a}) == errc::none);
  CHECK(a.try_send({a}) == errc::none);
  SUBCASE("when they end") { play.finish(); }
  SUBCASE("when their scope is destroyed") { play.stage = nullptr; }
}

TEST_CASE("actors that monitor each other are freed") {
  script play;
  auto a = spawn_actor<down>(*play.stage, watch_each_other);
  auto b = spawn_actor<down>(*play.stage, watch_each_other);
  a.monitor(b, 1);
  b.monitor(a, 2);
  play.settle();
  SUBCASE("when they end") {
    play.stage->cancel();
    play.finish();
  }
  SUBCASE("when their scope is destroyed") { play.stage = nullptr; }
}

namespace {

task<> hold_it(actor<std::shared_ptr<int>>& self) {
  auto woken = co_await sleep_until(1_ms);
  static_cast<void>(woken);
  static_cast<void>(self);
}

}  // namespace

TEST_CASE("an actor's unread messages are freed when it ends, even if its address is kept") {
  script play;
  auto held = std::make_shared<int>(1);
  auto a = spawn_actor<std::shared_ptr<int>>(*play.stage, hold_it);
  CHECK(a.try_send(held) == errc::none);
  CHECK(held.use_count() == 2);
  SUBCASE("when it returns") { play.finish(); }
  SUBCASE("when its scope is destroyed") { play.stage = nullptr; }
  CHECK(held.use_count() == 1);
}
