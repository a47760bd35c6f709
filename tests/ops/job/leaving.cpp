#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

TEST_CASE("a receiver that leaves first tells its sender what it took, so that the sender need not ask who is gone") {
  world w(2);
  auto out = w[0].declare(pair_of({direct()}));
  auto in = w[1].declare(pair_of({direct()}));
  CHECK(move_each(w, out, in, {100, 200, 300}).failed() == 0);
  run(w.clock, w[1].settle(1_s));
  pass(w, 1_ms);  // the report is on its way
  const time_ns before = w.clock.now();
  run(w.clock, w[0].settle(1_s));
  CHECK(w.clock.now() - before < 100_ms);
  CHECK(w[0].flow_messages() == 0);
}

TEST_CASE("a receiver tells its sender, too, what it takes while it is leaving itself") {
  world w(2);
  auto out = w[0].declare(pair_of({direct()}));
  auto in = w[1].declare(pair_of({direct()}));
  auto back = pair_of({direct()});
  back.name = "gradients";
  back.role = [](rank_id r) { return std::string(r == 1 ? "sender" : "receiver"); };
  auto out_again = w[1].declare(back);
  auto in_again = w[0].declare(back);
  CHECK(move_each(w, out, in, {100}).failed() == 0);
  const auto data = pattern(10, 0);
  scope leaving(w.clock);
  leaving.spawn(out_again.send(data, {.to = 0}));
  leaving.spawn(w[1].settle(1_s));
  pass(w, 5_ms);
  CHECK(leaving.running() != 0);  // until rank 0 has taken that
  CHECK(move_each(w, out, in, {200}).failed() == 0);
  const auto receive = [](transfer t) -> task<> {
    std::vector<std::byte> buffer(10);
    co_await t.receive(buffer, {.from = 1});
  };
  run(w.clock, receive(in_again));
  run_until(w.clock, [&] { return leaving.running() == 0; });
  pass(w, 1_ms);  // what it has said is on its way
  w.links.options().lose = [](rank_id from, rank_id, link::channel) { return from == 1; };
  CHECK(w[0].unfinished().undelivered.empty());
}

TEST_CASE("what nobody has taken is told with a count") {
  world w(2);
  auto out = w[0].declare(pair_of({direct()}));
  auto in = w[1].declare(pair_of({direct()}));
  CHECK(move_each(w, out, in, {100, 200, 300}).failed() == 0);
  call_outcomes all;
  run(w.clock, send_each(out, {10, 20}, all));
  CHECK(all.failed() == 0);
  const auto left = w[0].unfinished().undelivered;
  REQUIRE(left.size() == 1);
  pass(w, 100_ms);  // its question is answered
  const auto asked = w[0].unfinished().undelivered;
  REQUIRE(asked.size() == 1);
  CHECK(asked != left);  // what it counts is in wording.cpp
}

TEST_CASE("of messages to a rank that did not return nothing is said: how it ended is") {
  for (const departure how : {departure::returned, departure::died, departure::failed}) {
    CAPTURE(static_cast<int>(how));
    world w(2);
    auto out = w[0].declare(pair_of({direct()}));
    auto in = w[1].declare(pair_of({direct()}));
    CHECK(move_each(w, out, in, {100}).failed() == 0);
    call_outcomes all;
    run(w.clock, send_each(out, {10, 20}, all));
    CHECK(all.failed() == 0);
    w[0].on_lost(1, "is no more", how);
    CHECK(w[0].unfinished().undelivered.size() == (how == departure::returned ? 1 : 0));
  }
}
