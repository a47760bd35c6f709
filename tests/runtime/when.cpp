#include <parley/when.hpp>

#include <parley/runtime/coroutines/mailbox.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

task<int> number_at(time_ns when, int n) {
  auto woken = co_await sleep_until(when);
  woken.value();
  co_return n;
}
task<std::string> word_at(time_ns when, std::string word) {
  auto woken = co_await sleep_until(when);
  woken.value();
  co_return word;
}
task<int> throw_at(time_ns when, std::string text) {
  auto woken = co_await sleep_until(when);
  woken.value();
  throw std::runtime_error(text);
}
task<std::pair<int, int>> two_at_once() { co_return std::pair{1, 2}; }
task<std::unique_ptr<int>> move_only() { co_return std::make_unique<int>(5); }
// Ends a while after its cancellation.
task<> slow_to_leave(script& play, time_ns more) {
  auto woken = co_await sleep_until(1_s);
  play.say(std::string(name(woken.code())));
  for (time_ns i = 0; i < more; ++i) co_await yield;
  play.say("left");
}

task<> both(script& play) {
  auto [n, word] = co_await when_all(number_at(3_ms, 1), word_at(8_ms, "w"));
  play.say(std::to_string(n) + word);
}
task<> pairs_and_pointers(script& play) {
  auto only_pair = co_await when_all(two_at_once());
  auto [pair, pointer] = co_await when_all(two_at_once(), move_only());
  play.say(std::to_string(std::get<0>(only_pair).second + pair.first + *pointer));
}
task<> all_with_one_that_throws(script& play) {
  std::string text;
  try {
    auto outcome = co_await when_all(number_at(3_ms, 1), throw_at(2_ms, "two"), slow_to_leave(play, 3));
    static_cast<void>(outcome);
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  play.say(text);
}
task<> any_of_two(script& play) {
  auto first = co_await when_any(number_at(9_ms, 1), word_at(4_ms, "w"), slow_to_leave(play, 5));
  play.say(std::to_string(first.index()) + std::get<1>(first));
}
task<> any_with_one_that_throws(script& play) {
  std::string text;
  try {
    auto first = co_await when_any(number_at(9_ms, 1), throw_at(1_ms, "one"));
    static_cast<void>(first);
  } catch (const std::runtime_error& e) {
    text = e.what();
  }
  play.say(text);
}
task<> any_that_is_ready(script& play) {
  auto first = co_await when_any(move_only(), slow_to_leave(play, 0));
  play.say(std::to_string(first.index()) + std::to_string(*std::get<0>(first)));
}
task<int> nested(script& play) {
  auto first = co_await when_any(number_at(9_ms, 1), slow_to_leave(play, 0));
  co_return std::get<0>(first);
}
task<> nested_in_all(script& play) {
  auto [a, b] = co_await when_all(nested(play), number_at(20_ms, 2));
  play.say(std::to_string(a + b));
}
task<> nested_in_any(script& play) {
  auto first = co_await when_any(nested(play), number_at(5_ms, 2));
  play.say(std::to_string(first.index()));
}
task<> in_time(script& play, time_ns deadline) {
  auto answer = co_await with_deadline(deadline, number_at(10_ms, 4));
  play.say(answer ? std::to_string(*answer) : std::string(name(answer.code())));
}
task<> void_in_time(script& play, time_ns deadline) {
  auto answer = co_await with_deadline(deadline, slow_to_leave(play, 0));
  play.say(answer ? "returned" : std::string(name(answer.code())));
}
task<> other_exceptions_come_out() {
  auto answer = co_await with_deadline(5_ms, throw_at(1_ms, "mine"));
  static_cast<void>(answer);
}

task<int> take_one(mailbox<int>& box) {
  auto m = co_await box.receive();
  co_return std::move(m).value();
}
task<> receive_or_time_out(script& play, mailbox<int>& box, time_ns limit) {
  auto first = co_await when_any(take_one(box), number_at(limit, 0));
  play.say(first.index() == 0 ? "got" + std::to_string(std::get<0>(first)) : "late");
}
task<> send_at(mailbox<int>& box, time_ns when, int n) {
  auto woken = co_await sleep_until(when);
  woken.value();
  static_cast<void>(box.try_send(int{n}));
}
task<> time_out_or_receive(script& play, mailbox<int>& box, time_ns limit) {
  auto first = co_await when_any(number_at(limit, 0), take_one(box));
  play.say(first.index() == 1 ? "got" + std::to_string(std::get<1>(first)) : "late");
}

}  // namespace

TEST_CASE("when_all returns all values once the last task has ended") {
  script play;
  play.stage->spawn(both(play));
  play.finish();
  CHECK(play.log == "1w ");
  CHECK(play.clock.now() == 8_ms);
}

TEST_CASE("when_all returns pairs and move-only values unchanged") {
  script play;
  play.stage->spawn(pairs_and_pointers(play));
  play.finish();
  CHECK(play.log == "8 ");
}

TEST_CASE("when_all cancels and joins the others before it rethrows the first exception") {
  script play;
  play.stage->spawn(all_with_one_that_throws(play));
  play.finish();
  CHECK(play.log == "cancelled left two ");
  CHECK(play.clock.now() == 2_ms);
}

TEST_CASE("when_any returns the first value after it has cancelled and joined the losers") {
  script play;
  play.stage->spawn(any_of_two(play));
  play.finish();
  CHECK(play.log == "cancelled left 1w ");
  CHECK(play.clock.now() == 4_ms);
}

TEST_CASE("when_any rethrows the exception of the first task to end") {
  script play;
  play.stage->spawn(any_with_one_that_throws(play));
  play.finish();
  CHECK(play.log == "one ");
  CHECK(play.clock.now() == 1_ms);
}

TEST_CASE("a task that completes at once wins when_any, and the others end at their first wait") {
  script play;
  play.stage->spawn(any_that_is_ready(play));
  play.finish();
  CHECK(play.log == "cancelled left 05 ");
}

TEST_CASE("a nested when_any cancels its losers, when it ends and when it loses itself") {
  script play;
  SUBCASE("in when_all") {
    play.stage->spawn(nested_in_all(play));
    play.finish();
    CHECK(play.log == "cancelled left 3 ");
    CHECK(play.clock.now() == 20_ms);
  }
  SUBCASE("in when_any") {
    play.stage->spawn(nested_in_any(play));
    play.finish();
    CHECK(play.log == "cancelled left 1 ");
    CHECK(play.clock.now() == 5_ms);
  }
}

TEST_CASE("cancelling a scope ends its nested when_any") {
  script play;
  play.stage->spawn(nested_in_any(play));
  play.until(1_ms);
  play.stage->cancel();
  CHECK_THROWS_AS(play.finish(), failure);
  CHECK(play.log == "cancelled left ");
  CHECK(play.clock.now() == 1_ms);
}

TEST_CASE("with_deadline returns a value in time and timeout at exactly the deadline") {
  script play;
  SUBCASE("a value in time") {
    play.stage->spawn(in_time(play, 11_ms));
    play.finish();
    CHECK(play.log == "4 ");
    CHECK(play.clock.now() == 10_ms);
  }
  SUBCASE("a timeout when the task is late") {
    play.stage->spawn(in_time(play, 6_ms));
    play.finish();
    CHECK(play.log == "timeout ");
    CHECK(play.clock.now() == 6_ms);
  }
  SUBCASE("the value that the task returns after the timeout") {
    play.stage->spawn(void_in_time(play, 15_ms));
    play.finish();
    CHECK(play.log == "timeout left returned ");
    CHECK(play.clock.now() == 15_ms);
  }
}

TEST_CASE("with_deadline lets exceptions that are no failure pass") {
  virtual_time clock;
  CHECK_THROWS_WITH_AS(run(clock, other_exceptions_come_out()), "mine", std::runtime_error);
}

TEST_CASE("a receive that loses a when_any leaves the message for the next receive") {
  script play;
  mailbox<int> box(play.clock);
  play.stage->spawn(receive_or_time_out(play, box, 5_ms));
  play.stage->spawn(send_at(box, 6_ms, 1));
  play.finish();
  CHECK(play.log == "late ");
  play.stage->spawn(receive_or_time_out(play, box, 20_ms));
  play.finish();
  CHECK(play.log == "late got1 ");
}

TEST_CASE("a message that arrives at the instant of the timeout is received now or later, never lost") {
  // Each order of the three events at 5 ms, and both orders of the branches.
  for (int order = 0; order < 4; ++order) {
    CAPTURE(order);
    script play;
    mailbox<int> box(play.clock);
    if ((order & 1) != 0) play.stage->spawn(send_at(box, 5_ms, 1));
    play.stage->spawn((order & 2) != 0 ? receive_or_time_out(play, box, 5_ms) : time_out_or_receive(play, box, 5_ms));
    if ((order & 1) == 0) play.stage->spawn(send_at(box, 5_ms, 1));
    play.finish();
    CHECK((play.log == "late " || play.log == "got1 "));
    CHECK(box.size() == (play.log == "late " ? 1 : 0));
  }
}
