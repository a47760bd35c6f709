#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

task<> send_one(transfer t, std::uint32_t tag, call_outcomes& all) {
  const auto data = pattern(96, tag);
  auto outcome = co_await attempt(t.send(data, {.to = 1, .tag = tag}));
  all.sent.push_back(std::move(outcome));
}
task<> receive_one(transfer t, std::uint32_t tag, call_outcomes& all) {
  std::vector<std::byte> buffer(96);
  auto outcome = co_await attempt(t.receive(buffer, {.from = 0, .tag = tag}));
  if (buffer != pattern(96, tag)) ++all.wrong;
  all.received.push_back(outcome ? result<>() : result<>(outcome.reason()));
}

// Rank 0 sends under many tags, or with many ops, before rank 1 declares the ops. Rank 1 then receives all messages, and leaves.
struct late_receiver : world {
  explicit late_receiver(memory_link_options o = {}) : world(2, {}, std::move(o)), calls(clock) {}
  static transfer_options numbered(std::size_t n) {
    auto op = pair_of({direct()});
    op.name = "op" + std::to_string(n);
    return op;
  }
  void move(std::size_t ops, std::uint32_t tags) {
    for (std::size_t n = 0; n < ops; ++n) {
      transfer out((*this)[0], numbered(n));
      for (std::uint32_t tag = 0; tag < tags; ++tag) calls.spawn(send_one(out, tag, all));
    }
    pass(*this, 500_ms);
    for (std::size_t n = 0; n < ops; ++n) {
      transfer in((*this)[1], numbered(n));
      for (std::uint32_t tag = tags; tag-- > 0;) calls.spawn(receive_one(in, tag, all));
    }
    run_until(clock, [&] { return calls.running() == 0; });
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    CHECK(all.received.size() == ops * tags);
  }
  // Rank 1 has left: from now on, it sends and receives nothing.
  void forget_rank_1() {
    links.options().lose = [](rank_id from, rank_id to, link::channel) { return from == 1 || to == 1; };
  }
  std::vector<std::string> told_when_receiver_has_left() {
    run(clock, (*this)[1].settle(1s));
    pass(*this, 1_ms);  // rank 1's last messages arrive
    forget_rank_1();
    (*this)[0].on_lost(1, "has returned", departure::returned);
    return (*this)[0].unfinished().undelivered;
  }
  call_outcomes all;
  scope calls;
};

}  // namespace

TEST_CASE(
    "a receiver that leaves first reports the messages that it took, so that its sender need not ask who is gone") {
  world w(2);
  transfer out(w[0], pair_of({direct()}));
  transfer in(w[1], pair_of({direct()}));
  CHECK(move_each(w, out, in, {100, 200, 300}).failed() == 0);
  run(w.clock, w[1].settle(1s));
  pass(w, 1_ms);  // the report arrives
  const time_ns before = w.clock.now();
  run(w.clock, w[0].settle(1s));
  CHECK(w.clock.now() - before < 100_ms);
  CHECK(w[0].flow_messages() == 0);
}

TEST_CASE("a receiver that is already leaving still reports to its sender the messages that it takes") {
  world w(2);
  transfer out(w[0], pair_of({direct()}));
  transfer in(w[1], pair_of({direct()}));
  auto back = pair_of({direct()});
  back.name = "gradients";
  back.role = [](rank_id r) { return r == 1 ? role::sender : role::receiver; };
  transfer out_again(w[1], back);
  transfer in_again(w[0], back);
  CHECK(move_each(w, out, in, {100}).failed() == 0);
  const auto data = pattern(10, 0);
  scope leaving(w.clock);
  leaving.spawn(out_again.send(data, {.to = 0}));
  leaving.spawn(w[1].settle(1s));
  pass(w, 5_ms);
  CHECK(leaving.running() != 0);  // rank 1 waits until rank 0 has received its message
  CHECK(move_each(w, out, in, {200}).failed() == 0);
  const auto receive = [](transfer t) -> task<> {
    std::vector<std::byte> buffer(10);
    co_await t.receive(buffer, {.from = 1});
  };
  run(w.clock, receive(in_again));
  run_until(w.clock, [&] { return leaving.running() == 0; });
  pass(w, 1_ms);  // rank 1's last messages arrive
  w.links.options().lose = [](rank_id from, rank_id, link::channel) { return from == 1; };
  CHECK(w[0].unfinished().undelivered.empty());
}

TEST_CASE("a sender's report of untaken messages changes once the receiver has said how many it took") {
  world w(2);
  transfer out(w[0], pair_of({direct()}));
  transfer in(w[1], pair_of({direct()}));
  CHECK(move_each(w, out, in, {100, 200, 300}).failed() == 0);
  call_outcomes all;
  run(w.clock, send_each(out, {10, 20}, all));
  CHECK(all.failed() == 0);
  const auto left = w[0].unfinished().undelivered;
  REQUIRE(left.size() == 1);
  pass(w, 100_ms);  // rank 1 answers rank 0's question
  const auto asked = w[0].unfinished().undelivered;
  REQUIRE(asked.size() == 1);
  CHECK(asked != left);  // wording.cpp checks the counts
}

TEST_CASE("a sender reports untaken messages of a rank that has returned but not of one that died or failed") {
  for (const departure how : {departure::returned, departure::died, departure::failed}) {
    CAPTURE(static_cast<int>(how));
    world w(2);
    transfer out(w[0], pair_of({direct()}));
    transfer in(w[1], pair_of({direct()}));
    CHECK(move_each(w, out, in, {100}).failed() == 0);
    call_outcomes all;
    run(w.clock, send_each(out, {10, 20}, all));
    CHECK(all.failed() == 0);
    w[0].on_lost(1, "is no more", how);
    CHECK(w[0].unfinished().undelivered.size() == (how == departure::returned ? 1 : 0));
  }
}

TEST_CASE("a receiver that leaves reports all its tags, even 1,000, and its sender lists no message as untaken") {
  for (const std::uint32_t tags : {2U, 65U, 1000U}) {
    CAPTURE(tags);
    late_receiver w;
    w.move(1, tags);
    CHECK(w.told_when_receiver_has_left().empty());
    CHECK(w[1].flow_messages() <= 2 + tags / 100);
  }
}

TEST_CASE("a receiver that leaves reports all its ops, even 500, before it is gone") {
  late_receiver w;
  w.move(500, 1);
  CHECK(w.told_when_receiver_has_left().empty());
}

TEST_CASE("a receiver with many tags resends the reports that were lost while it leaves, and stays until they arrive") {
  random_stream luck(7, 7);
  late_receiver w;
  w.move(1, 1000);
  w.links.options().lose = [&](rank_id, rank_id, link::channel on) {
    return on == link::channel::control && luck.below(2) == 0;
  };
  CHECK(w.told_when_receiver_has_left().empty());
}

TEST_CASE("a receiver whose sender gets no report of its many tags leaves after the time limit") {
  late_receiver w;
  w.move(1, 1000);
  w.forget_rank_1();
  const time_ns before = w.clock.now();
  run(w.clock, w[1].settle(1s));
  CHECK(w.clock.now() - before >= 1_s);
  CHECK(w.clock.now() - before < 2_s);
}

TEST_CASE("a sender that leaves asks about many tags at once, and learns of all messages that its receiver has taken") {
  late_receiver w;
  w.move(1, 1000);
  const std::uint64_t before = w[0].flow_messages();
  run(w.clock, w[0].settle(1s));
  CHECK(w[0].flow_messages() - before < 50);
  w.forget_rank_1();
  CHECK(w[0].unfinished().undelivered.empty());
}

TEST_CASE(
    "a sender that leaves learns which of its many ops were taken, though the receiver took none of the first 200") {
  late_receiver w;
  std::vector<transfer> never_taken;
  for (std::size_t n = 1000; n < 1200; ++n) {
    never_taken.emplace_back(w[0], late_receiver::numbered(n));
    w.calls.spawn(send_one(never_taken.back(), 0, w.all));
    transfer(w[1], late_receiver::numbered(n));
  }
  w.move(300, 1);
  run(w.clock, w[0].settle(1s));
  w.forget_rank_1();
  CHECK(w[0].unfinished().undelivered.size() == never_taken.size());
}
