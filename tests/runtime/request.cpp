#include <parley/runtime/coroutines/request.hpp>

#include <parley/actor.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

struct price {
  int item = 0;
  reply_to<int> reply;
};
struct parcel {
  int item = 0;
  reply_to<std::unique_ptr<int>> reply;
};
using shop = address<price>;

task<> answer_at_once(actor<price>& self) {
  for (;;) {
    auto m = co_await self.receive();
    if (!m) co_return;
    m->reply.send(m->item * 10);
  }
}
task<> answer_at(actor<price>& self, script& play, time_ns when) {
  auto m = co_await self.receive();
  auto woken = co_await sleep_until(when);
  woken.value();
  play.say(m->reply.send(1) ? "taken" : "dropped");
  play.say(m->reply.send(2) ? "taken twice" : "dropped");
}
task<> answer_backwards(actor<price>& self, int count) {
  std::vector<price> asked;
  for (int i = 0; i < count; ++i) {
    auto m = co_await self.receive();
    asked.push_back(*m);
  }
  for (auto m = asked.rbegin(); m != asked.rend(); ++m) m->reply.send(m->item * 10);
}
task<> wrap(actor<parcel>& self) {
  auto m = co_await self.receive();
  m->reply.send(std::make_unique<int>(m->item));
}
task<> read_nothing(actor<price>& self, time_ns until) {
  auto woken = co_await sleep_until(until);
  static_cast<void>(woken);
  static_cast<void>(self);
}
task<> read_words(actor<std::string, price>& self, time_ns until) {
  auto woken = co_await sleep_until(until);
  static_cast<void>(woken);
  auto word = co_await self.receive<std::string>();
  static_cast<void>(word);
}
task<> customer_of_two(script& play, address<std::string, price> to, int item) {
  static_cast<void>(to.try_send(std::string("go")));
  price question{item, {}};
  auto answer = co_await ask(to, question, never);
  play.say(answer ? std::to_string(*answer) : std::string(name(answer.code())));
}
task<> customer(script& play, shop to, int item, time_ns deadline) {
  price question{item, {}};
  auto answer = co_await ask(to, question, deadline);
  play.say(answer ? std::to_string(*answer) : std::string(name(answer.code())));
}
task<> unwrap(script& play, address<parcel> to) {
  parcel question{3, {}};
  auto answer = co_await ask(to, question, never);
  play.say(std::to_string(*answer.value()));
}
task<> ask_many(script& play, shop to, int count) {
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    price question{i, {}};
    auto answer = co_await ask(to, question, play.clock.deadline_in(1_ms));
    sum += answer.value();
  }
  play.say(std::to_string(sum));
}

}  // namespace

TEST_CASE("ask returns the actor's answer") {
  script play;
  scope shops(play.clock);
  auto s = spawn_actor<price>(shops, answer_at_once);
  play.stage->spawn(customer(play, s, 4, 1_ms));
  play.finish();
  CHECK(play.log == "40 ");
  CHECK(play.clock.now() == 0);
  play.stage->spawn(ask_many(play, s, 1000));
  play.finish();
  CHECK(play.log == "40 4995000 ");
}

TEST_CASE("each answer reaches its question in whatever order the actor sends them") {
  script play;
  auto s = spawn_actor<price>(*play.stage, answer_backwards, 3);
  for (int i = 1; i <= 3; ++i) play.stage->spawn(customer(play, s, i, never));
  play.finish();
  CHECK(play.log == "30 20 10 ");
}

TEST_CASE("an answer may be a move-only value") {
  script play;
  auto s = spawn_actor<parcel>(*play.stage, wrap);
  play.stage->spawn(unwrap(play, s));
  play.finish();
  CHECK(play.log == "3 ");
}

TEST_CASE("ask returns timeout at exactly the deadline, and the late answer is dropped") {
  script play;
  auto s = spawn_actor<price>(*play.stage, answer_at, play, 9_ms);
  play.stage->spawn(customer(play, s, 1, 5_ms));
  play.until(5_ms);
  CHECK(play.log == "timeout ");
  // When the late answer arrives, the number of the first question is in use again.
  scope shops(play.clock);
  auto other = spawn_actor<price>(shops, read_nothing, 1_s);
  play.stage->spawn(customer(play, other, 2, 20_ms));
  play.until(10_ms);
  CHECK(play.log == "timeout dropped dropped ");
  play.finish();
  CHECK(play.log == "timeout dropped dropped timeout ");
}

TEST_CASE("only the first answer to a question is delivered") {
  script play;
  auto s = spawn_actor<price>(*play.stage, answer_at, play, 2_ms);
  play.stage->spawn(customer(play, s, 1, 5_ms));
  play.finish();
  CHECK(play.log == "taken dropped 1 ");
}

TEST_CASE("ask returns at once if the actor has ended or has no room") {
  script play;
  auto ended = spawn_actor<price>(*play.stage, read_nothing, 0);
  auto full = spawn_actor_with<price>(*play.stage, 1, read_nothing, 9_ms);
  play.until(1_ms);
  CHECK(full.try_send({}) == errc::none);
  play.stage->spawn(customer(play, ended, 1, 5_ms));
  play.stage->spawn(customer(play, full, 1, 5_ms));
  play.until(1_ms);
  CHECK(play.log == "closed full ");
  play.finish();
}

TEST_CASE("a question that an actor leaves unread ends with closed as soon as the actor ends") {
  script play;
  auto leaving = spawn_actor<price>(*play.stage, read_nothing, 2_ms);
  auto serving = spawn_actor<std::string, price>(*play.stage, read_words, 2_ms);
  play.stage->spawn(customer(play, leaving, 1, 50_ms));
  play.stage->spawn(customer(play, leaving, 2, never));
  play.stage->spawn(customer_of_two(play, serving, 3));
  play.until(1_ms);
  CHECK(play.log.empty());
  play.until(2_ms);
  CHECK(play.log == "closed closed closed ");
}

TEST_CASE("destroying an actor ends its unread questions with closed") {
  script play;
  auto shops = std::make_unique<scope>(play.clock);
  auto s = spawn_actor<price>(*shops, read_nothing, 1_s);
  play.stage->spawn(customer(play, s, 1, never));
  play.until(1_ms);
  shops = nullptr;
  play.settle();
  CHECK(play.log == "closed ");
}

TEST_CASE("a request can be cancelled or destroyed, and its answer is dropped") {
  script play;
  scope shops(play.clock);
  auto s = spawn_actor<price>(shops, answer_at, play, 9_ms);
  play.stage->spawn(customer(play, s, 1, 20_ms));
  play.until(1_ms);
  SUBCASE("cancelled") {
    play.stage->cancel();
    play.finish();
    CHECK(play.log == "cancelled ");
  }
  SUBCASE("destroyed") { play.stage = nullptr; }
  play.log.clear();
  play.until(10_ms);
  CHECK(play.log == "dropped dropped ");
}

TEST_CASE("a reply_to that belongs to no question drops its answer") {
  reply_to<int> nobody;
  CHECK_FALSE(nobody.send(1));
}
