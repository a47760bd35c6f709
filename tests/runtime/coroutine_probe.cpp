// Counts the objects that the compiler makes and destroys in each coroutine pattern in use, because g++ 12 has faults here.
#include <parley/actor.hpp>
#include <parley/compute.hpp>
#include <parley/when.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <utility>
#include <variant>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

struct counts {
  int made = 0;
  int copied = 0;
  int ended = 0;
};
counts seen;

struct tracer {
  tracer() { ++seen.made; }
  explicit tracer(int n) : number(n) { ++seen.made; }
  tracer(const tracer& other) : number(other.number) {
    ++seen.made;
    ++seen.copied;
  }
  tracer(tracer&& other) noexcept : number(std::exchange(other.number, -1)) { ++seen.made; }
  tracer& operator=(const tracer&) = default;
  tracer& operator=(tracer&& other) noexcept {
    number = std::exchange(other.number, -1);
    return *this;
  }
  ~tracer() { ++seen.ended; }
  int number = 0;
};

// On destruction, checks that every tracer made during its lifetime has been destroyed.
struct balance {
  balance() { seen = {}; }
  ~balance() {
    CHECK(seen.made > 0);
    CHECK(seen.made == seen.ended);
    CHECK(seen.copied == 0);
  }
};

task<int> take(tracer t) {
  co_await yield;
  co_return t.number;
}
task<int> take_two(tracer a, tracer b) {
  co_await yield;
  co_return a.number * 10 + b.number;
}
task<int> take_and_throw(tracer t) {
  co_await yield;
  if (t.number != 0) throw std::runtime_error("thrown");
  co_return 0;
}
task<tracer> give(int n) {
  tracer t(n);
  co_await yield;
  co_return t;
}
task<tracer> give_at_once(int n) { co_return tracer(n); }
task<result<tracer>> give_result(int n) {
  co_await yield;
  if (n < 0) co_return errc::timeout;
  tracer t(n);
  co_return t.number < 0 ? result<tracer>(errc::full) : result<tracer>(std::move(t));
}
task<int> arguments() {
  tracer named(1);
  int a = co_await take(std::move(named));
  int b = co_await take_two(tracer(2), tracer(3));
  co_return a * 100 + b;
}
task<int> arguments_and_an_exception() {
  int caught = 0;
  try {
    int a = co_await take_and_throw(tracer(4));
    static_cast<void>(a);
  } catch (const std::runtime_error&) {
    caught = 1;
  }
  co_return caught;
}
task<int> values() {
  tracer a = co_await give(5);
  tracer b = co_await give_at_once(6);
  auto c = co_await give_result(7);
  auto d = co_await give_result(-1);
  co_return a.number * 100 + b.number * 10 + c->number + (d ? 1000 : 0);
}
task<int> races() {
  auto [a, b] = co_await when_all(give(1), give(2));
  auto first = co_await when_any(give(3), give_at_once(4));
  auto in_time = co_await with_deadline(1_s, give(5));
  co_return a.number * 1000 + b.number * 100 + std::get<1>(first).number * 10 + in_time->number;
}
task<int> computes() {
  tracer held(6);
  auto work = [held = std::move(held)] { return tracer(held.number + 1); };
  tracer out = co_await compute(std::move(work));
  co_return out.number;
}

struct letter {
  tracer content;
};
struct question {
  tracer content;
  reply_to<tracer> reply;
};

task<> count_letters(actor<letter, question>& self, int& sum) {
  for (;;) {
    auto m = co_await self.receive();
    if (!m) co_return;
    if (auto* l = std::get_if<letter>(&*m)) {
      sum += l->content.number;
    } else {
      auto& q = std::get<question>(*m);
      tracer answer(q.content.number * 2);
      q.reply.send(std::move(answer));
    }
  }
}
task<int> correspond(address<letter, question> to) {
  for (int i = 1; i <= 10; ++i) {
    letter l{tracer(i)};
    auto sent = co_await to.send(std::move(l), 1_s);
    sent.value();
  }
  question q{tracer(21), {}};
  auto answer = co_await ask(to, std::move(q), 1_s);
  co_return answer->number;
}
task<int> receive_selectively(mailbox<letter, question>& box) {
  auto l = co_await box.receive<letter>([](const letter& m) { return m.content.number == 3; });
  co_return l->content.number;
}

}  // namespace

TEST_CASE("every parameter by value is destroyed exactly once and never copied") {
  virtual_time clock;
  {
    const balance b;
    CHECK(run(clock, arguments()) == 123);
  }
  const balance b;
  CHECK(run(clock, arguments_and_an_exception()) == 1);
}

TEST_CASE("tasks return values without copies") {
  virtual_time clock;
  const balance b;
  CHECK(run(clock, values()) == 567);
}

TEST_CASE("when_all, when_any and with_deadline return values without copies") {
  virtual_time clock;
  const balance b;
  CHECK(run(clock, races()) == 1245);
}

TEST_CASE("a computation's function and its value are each destroyed once") {
  virtual_time clock;
  const balance b;
  CHECK(run(clock, computes()) == 7);
}

TEST_CASE("messages, questions and answers pass through mailboxes without copies") {
  const balance b;
  script play;
  int sum = 0;
  auto a = spawn_actor_with<letter, question>(*play.stage, 2, count_letters, sum);
  CHECK(run(play.clock, correspond(a)) == 42);
  CHECK(sum == 55);
  letter unread{tracer(1)};
  CHECK(a.try_send(std::move(unread)) == errc::none);
  play.stage->cancel();
  play.finish();
}

TEST_CASE("messages that a selective receive passes over are destroyed once each") {
  const balance b;
  virtual_time clock;
  mailbox<letter, question> box(clock);
  for (int i = 0; i < 7; ++i) {
    letter l{tracer(i)};
    CHECK(box.try_send(std::move(l)) == errc::none);
  }
  CHECK(run(clock, receive_selectively(box)) == 3);
  CHECK(box.drop_if([](const auto& m) { return std::get<letter>(m).content.number < 2; }) == 2);
  CHECK(box.size() == 4);
}

TEST_CASE("destroying a program after any step destroys each of its objects exactly once") {
  for (std::size_t steps = 0; steps < 40; ++steps) {
    CAPTURE(steps);
    seen = {};
    {
      script play;
      int sum = 0;
      auto a = spawn_actor_with<letter, question>(*play.stage, 2, count_letters, sum);
      play.stage->spawn([](address<letter, question> to) -> task<> {
        int answer = co_await correspond(to);
        int all = co_await races();
        static_cast<void>(answer + all);
      }(a));
      for (std::size_t i = 0; i < steps; ++i) {
        if (play.clock.step() == 0 && !play.clock.wait()) break;
      }
    }
    REQUIRE(seen.made == seen.ended);
    REQUIRE(seen.copied == 0);
  }
}
