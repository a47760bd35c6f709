#include <parley/runtime/coroutines/mailbox.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <parley/tests/runtime/script.hpp>

using namespace parley::runtime;

namespace {

struct offer {
  int from = 0;
};
struct report {
  int invocation = 0;
};
using letters = mailbox<offer, report>;
using parcels = mailbox<std::unique_ptr<int>>;

struct of_invocation {
  int wanted;
  bool operator()(const report& r) const { return r.invocation == wanted; }
};

std::string text(const letters::message& m) {
  if (const auto* o = std::get_if<offer>(&m)) return "offer" + std::to_string(o->from);
  return "report" + std::to_string(std::get<report>(m).invocation);
}

task<> receive_all(script& play, letters& box) {
  for (;;) {
    auto m = co_await box.receive();
    play.say(m ? text(*m) : std::string(name(m.code())));
    if (!m) co_return;
  }
}
task<> receive_until(script& play, mailbox<int>& box, time_ns deadline) {
  auto m = co_await box.receive(deadline);
  play.say(m ? std::to_string(*m) : std::string(name(m.code())));
}
task<> receive_report(script& play, letters& box, int invocation, time_ns deadline) {
  auto m = co_await box.receive<report>(of_invocation{invocation}, deadline);
  play.say(m ? "report" + std::to_string(m->invocation) : std::string(name(m.code())));
}
task<> send_number(script& play, mailbox<int>& box, int n, time_ns deadline) {
  auto sent = co_await box.send(n, deadline);
  play.say((sent ? "sent" : std::string(name(sent.code()))) + std::to_string(n));
}
task<> receive_numbers(script& play, mailbox<int>& box, int count) {
  for (int i = 0; i < count; ++i) {
    auto m = co_await box.receive();
    play.say(m ? std::to_string(*m) : std::string(name(m.code())));
  }
}
task<> receive_parcel(script& play, parcels& box) {
  auto m = co_await box.receive();
  play.say(m ? std::to_string(**m) : std::string(name(m.code())));
}
task<> send_parcel(script& play, parcels& box, int n) {
  auto parcel = std::make_unique<int>(n);
  auto sent = co_await box.send(std::move(parcel));
  play.say(sent ? "sent" : std::string(name(sent.code())));
}
task<> drop_everything(script& play, mailbox<int>& box) {
  play.say(std::to_string(box.drop_if([](int) { return true; })));
  co_return;
}

void fill(letters& box) {
  CHECK(box.try_send(offer{1}) == errc::none);
  CHECK(box.try_send(report{5}) == errc::none);
  CHECK(box.try_send(report{6}) == errc::none);
  CHECK(box.try_send(offer{2}) == errc::none);
  CHECK(box.try_send(report{7}) == errc::none);
}

}  // namespace

TEST_CASE("a mailbox delivers messages of several types in the order in which they were sent") {
  script play;
  letters box(play.clock);
  play.stage->spawn(receive_all(play, box));
  play.settle();
  fill(box);
  play.settle();
  box.close();
  play.finish();
  CHECK(play.log == "offer1 report5 report6 offer2 report7 closed ");
}

TEST_CASE("a mailbox accepts messages up to its capacity and a further send returns full") {
  script play;
  mailbox<int> box(play.clock, 3);
  for (int i = 0; i < 3; ++i) CHECK(box.try_send(int{i}) == errc::none);
  CHECK(box.try_send(3) == errc::full);
  CHECK(box.size() == 3);
  play.stage->spawn(receive_numbers(play, box, 3));
  play.finish();
  CHECK(play.log == "0 1 2 ");
  CHECK(box.try_send(3) == errc::none);
}

TEST_CASE("the ring keeps its order while it wraps around and grows") {
  script play;
  mailbox<int> box(play.clock, 1000);
  int sent = 0;
  int received = 0;
  for (int round = 1; round <= 40; ++round) {
    for (int i = 0; i < round; ++i) REQUIRE(box.try_send(int{sent++}) == errc::none);
    play.log.clear();
    play.stage->spawn(receive_numbers(play, box, round / 2));
    play.finish();
    std::string expected;
    for (int i = 0; i < round / 2; ++i) expected += std::to_string(received++) + ' ';
    REQUIRE(play.log == expected);
  }
}

TEST_CASE("a selective receive takes the first matching message and leaves the others in order") {
  script play;
  letters box(play.clock);
  fill(box);
  play.stage->spawn(receive_report(play, box, 6, never));
  play.finish();
  CHECK(play.log == "report6 ");
  play.stage->spawn(receive_report(play, box, 7, never));
  play.finish();
  CHECK(box.size() == 3);
  box.close();
  play.stage->spawn(receive_all(play, box));
  play.finish();
  CHECK(play.log == "report6 report7 offer1 report5 offer2 closed ");
}

TEST_CASE("a selective receive sleeps until a matching message arrives") {
  script play;
  letters box(play.clock);
  play.stage->spawn(receive_report(play, box, 7, never));
  play.settle();
  const auto before = play.clock.resumed();
  CHECK(box.try_send(offer{1}) == errc::none);
  CHECK(box.try_send(report{6}) == errc::none);
  play.settle();
  CHECK(play.clock.resumed() == before);
  CHECK(box.try_send(report{7}) == errc::none);
  play.finish();
  CHECK(play.log == "report7 ");
  CHECK(box.size() == 2);
}

TEST_CASE("a receiver that waits for another message makes no room in a full mailbox") {
  script play;
  letters box(play.clock, 2);
  play.stage->spawn(receive_report(play, box, 9, 5_ms));
  play.settle();
  CHECK(box.try_send(offer{1}) == errc::none);
  CHECK(box.try_send(offer{2}) == errc::none);
  CHECK(box.try_send(report{9}) == errc::full);
  play.finish();
  CHECK(play.log == "timeout ");
  CHECK(box.size() == 2);
}

TEST_CASE("senders wait for room and are admitted in their order") {
  script play;
  mailbox<int> box(play.clock, 1);
  for (int i = 1; i <= 4; ++i) play.stage->spawn(send_number(play, box, i, never));
  play.settle();
  CHECK(play.log == "sent1 ");
  CHECK(box.size() == 1);
  play.stage->spawn(receive_numbers(play, box, 4));
  play.finish();
  CHECK(play.log == "sent1 1 2 3 4 sent2 sent3 sent4 ");
}

TEST_CASE("a sender gives up at its deadline, or when it is cancelled, and its message is not delivered") {
  script play;
  mailbox<int> box(play.clock, 1);
  CHECK(box.try_send(0) == errc::none);
  auto other = std::make_unique<scope>(play.clock);
  play.stage->spawn(send_number(play, box, 1, 3_ms));
  other->spawn(send_number(play, box, 2, never));
  play.stage->spawn(send_number(play, box, 3, never));
  play.until(3_ms);
  CHECK(play.log == "timeout1 ");
  other->cancel();
  play.stage->spawn(receive_numbers(play, box, 2));
  play.finish();
  CHECK(play.log == "timeout1 cancelled2 0 3 sent3 ");
}

TEST_CASE("a receive ends at exactly its deadline and takes a waiting message even after the deadline") {
  script play;
  mailbox<int> box(play.clock);
  play.stage->spawn(receive_until(play, box, 4'000'001));
  play.finish();
  CHECK(play.log == "timeout ");
  CHECK(play.clock.now() == 4'000'001);
  CHECK(box.try_send(8) == errc::none);
  play.stage->spawn(receive_until(play, box, 1));
  play.finish();
  play.stage->spawn(receive_until(play, box, 1));
  play.finish();
  CHECK(play.log == "timeout 8 timeout ");
  CHECK(play.clock.now() == 4'000'001);
}

TEST_CASE("each receive has its own deadline, earlier or later than that of the receive before") {
  script play;
  mailbox<int> box(play.clock);
  const auto answered = [&](time_ns deadline) {
    play.stage->spawn(receive_until(play, box, deadline));
    play.settle();
    CHECK(box.try_send(1) == errc::none);
    play.settle();
  };
  const auto unanswered = [&](time_ns deadline) {
    play.stage->spawn(receive_until(play, box, deadline));
    play.until(deadline - 1);
    CHECK(play.log.ends_with("1 "));
    play.until(deadline);
    CHECK(play.log.ends_with("timeout "));
  };
  answered(10_ms);
  unanswered(4_ms);  // sooner than the time to which the timer was last set
  answered(10_ms);
  unanswered(20_ms);  // later than that
  answered(30_ms);
  play.until(40_ms);  // nobody waits at 30 ms any more
  answered(never);
  play.stage->spawn(receive_until(play, box, never));
  play.until(1'000_ms);
  CHECK(play.log.ends_with("1 "));
  box.close();
  play.finish();
}

TEST_CASE("a receive that is cancelled after a message has arrived leaves the message in the mailbox") {
  script play;
  mailbox<int> box(play.clock);
  scope cancelled(play.clock);
  cancelled.spawn(receive_until(play, box, never));
  play.settle();
  CHECK(box.try_send(1) == errc::none);  // makes the receiver ready
  CHECK(box.try_send(2) == errc::none);
  cancelled.cancel();
  play.settle();
  CHECK(play.log == "cancelled ");
  play.stage->spawn(receive_numbers(play, box, 2));
  play.finish();
  CHECK(play.log == "cancelled 1 2 ");
}

TEST_CASE("a receiver that is destroyed takes no message out of the mailbox") {
  script play;
  mailbox<int> box(play.clock);
  auto destroyed = std::make_unique<scope>(play.clock);
  destroyed->spawn(receive_until(play, box, 5_ms));
  play.settle();
  SUBCASE("when it is ready") { CHECK(box.try_send(1) == errc::none); }
  SUBCASE("while it waits") {}
  destroyed = nullptr;
  if (box.size() == 0) CHECK(box.try_send(1) == errc::none);
  play.stage->spawn(receive_numbers(play, box, 1));
  play.finish();
  CHECK(play.log == "1 ");
}

TEST_CASE("a receive in a cancelled scope takes no message") {
  script play;
  mailbox<int> box(play.clock);
  CHECK(box.try_send(1) == errc::none);
  play.stage->cancel();
  play.stage->spawn(receive_until(play, box, never));
  play.finish();
  CHECK(play.log == "cancelled ");
  CHECK(box.size() == 1);
}

TEST_CASE("closing a mailbox wakes the receiver and all senders, and waiting messages can still be received") {
  script play;
  letters idle(play.clock);
  mailbox<int> full(play.clock, 1);
  CHECK(full.try_send(0) == errc::none);
  play.stage->spawn(receive_all(play, idle));
  play.stage->spawn(send_number(play, full, 1, never));
  play.stage->spawn(send_number(play, full, 2, 7_ms));
  play.settle();
  idle.close();
  full.close();
  CHECK(full.closed());
  CHECK(full.try_send(3) == errc::closed);
  play.stage->spawn(send_number(play, full, 4, never));
  play.stage->spawn(receive_numbers(play, full, 2));
  play.finish();
  CHECK(play.log == "closed closed1 closed2 closed4 0 closed ");
  CHECK(play.clock.now() == 0);
}

TEST_CASE("a mailbox may be destroyed while a coroutine waits at it") {
  script play;
  auto box = std::make_unique<mailbox<int>>(play.clock, 1);
  SUBCASE("a receiver") {
    play.stage->spawn(receive_until(play, *box, 9_ms));
    play.settle();
    box = nullptr;
    play.finish();
    CHECK(play.log == "closed ");
  }
  SUBCASE("a sender") {
    CHECK(box->try_send(0) == errc::none);
    play.stage->spawn(send_number(play, *box, 1, 9_ms));
    play.settle();
    box = nullptr;
    play.finish();
    CHECK(play.log == "closed1 ");
  }
}

TEST_CASE("drop_if drops stale messages, counts them, keeps the order of the others and makes room") {
  script play;
  mailbox<int> box(play.clock, 6);
  for (int i = 1; i <= 6; ++i) CHECK(box.try_send(int{i}) == errc::none);
  play.stage->spawn(send_number(play, box, 7, never));
  play.stage->spawn(send_number(play, box, 8, never));
  play.settle();
  CHECK(box.drop_if([](int n) { return n % 2 == 0; }) == 3);
  CHECK(box.drop_if([](int n) { return n == 1; }) == 1);
  CHECK(box.dropped() == 4);
  play.stage->spawn(receive_numbers(play, box, 4));
  play.finish();
  CHECK(play.log == "sent7 sent8 3 5 7 8 ");
}

TEST_CASE("a receiver whose message is dropped before it runs fails with bad_argument") {
  script play;
  mailbox<int> box(play.clock);
  play.stage->spawn(receive_until(play, box, never));
  play.settle();
  play.stage->spawn(drop_everything(play, box));  // runs before the receiver, which the next line makes ready
  CHECK(box.try_send(1) == errc::none);
  try {
    play.finish();
    FAIL("must throw");
  } catch (const failure& f) {
    CHECK(f.code() == errc::bad_argument);
  }
  CHECK(box.size() == 0);
}

TEST_CASE("a second receiver throws, and the first receiver is not disturbed") {
  script play;
  mailbox<int> box(play.clock);
  play.stage->spawn(receive_until(play, box, never));
  play.settle();
  CHECK_THROWS_AS(run(play.clock, receive_until(play, box, never)), failure);
  CHECK(box.try_send(1) == errc::none);
  play.finish();
  CHECK(play.log == "1 ");
}

TEST_CASE("a mailbox carries move-only messages") {
  script play;
  parcels box(play.clock, 1);
  play.stage->spawn(send_parcel(play, box, 1));
  play.stage->spawn(send_parcel(play, box, 2));
  play.settle();
  play.stage->spawn(receive_parcel(play, box));
  play.settle();
  play.stage->spawn(receive_parcel(play, box));
  play.finish();
  CHECK(play.log == "sent 1 sent 2 ");
}

TEST_CASE("a mailbox that is destroyed frees its unreceived messages") {
  virtual_time clock;
  auto held = std::make_shared<int>(1);
  {
    mailbox<std::shared_ptr<int>> box(clock);
    for (int i = 0; i < 5; ++i) {
      auto copy = held;
      CHECK(box.try_send(std::move(copy)) == errc::none);
    }
    CHECK(held.use_count() == 6);
  }
  CHECK(held.use_count() == 1);
}
