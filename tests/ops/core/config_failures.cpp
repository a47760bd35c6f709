#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/warnings.hpp>

#include <parley/actors/declaration.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <list>
#include <memory>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

rank_settings eager() {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  return s;
}

/// Sends two halves, and is the fastest config in these tests. On demand it throws at either end.
struct fragile final : paired_config {
  enum class end : std::uint8_t { nobody, sender, receiver };  // the receiver throws after it has received everything
  struct plan {
    end who = end::nobody;
    int breaks = 0;
  };
  explicit fragile(std::shared_ptr<plan> p)
      : paired_config({.name = "fragile", .wire_class = "halves"}), plan_(std::move(p)) {}
  void break_if(end who) const {
    if (plan_->who != who) return;
    ++plan_->breaks;
    throw std::runtime_error(who == end::sender ? "the sender's card is on fire" : "the receiver's card is on fire");
  }
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    const std::size_t half = data.size() / 2;
    out.keep_in_flight(2);
    co_await out.send(0, data.first(half));
    break_if(end::sender);
    co_await out.send(half, data.subspan(half));
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    const std::size_t half = data.size() / 2;
    in.keep_in_flight(2);
    co_await in.receive(0, data.first(half));
    co_await in.receive(half, data.subspan(half));
    co_await in.drain();
    break_if(end::receiver);
  }
  std::shared_ptr<plan> plan_;
};

constexpr std::size_t size = 100'000;

/// The receiver throws after the first of eight parts.
task<> send_eighths(part_sender& out, std::span<const std::byte> data) {
  for (std::size_t i = 0; i < 8; ++i)
    co_await out.send(data.size() / 8 * i, data.subspan(data.size() / 8 * i, data.size() / 8));
}
task<> receive_one_eighth(part_receiver& in, std::span<std::byte> data) {
  co_await in.receive(0, data.first(data.size() / 8));
  throw std::runtime_error("the receiver's card is on fire");
}

task<> send_halves(part_sender& out, std::span<const std::byte> data) {
  const std::size_t half = data.size() / 2;
  out.keep_in_flight(2);
  co_await out.send(half, data.subspan(half));
  co_await out.send(0, data.first(half));
}
task<> receive_halves(part_receiver& in, std::span<std::byte> data) {
  const std::size_t half = data.size() / 2;
  in.keep_in_flight(2);
  co_await in.receive(0, data.first(half));
  co_await in.receive(half, data.subspan(half));
}
task<> send_a_half_twice(part_sender& out, std::span<const std::byte> data) {
  const std::size_t half = data.size() / 2;
  co_await out.send(half, data.subspan(half));
  co_await out.send(half, data.subspan(half));
}
task<> send_half_by_quarters(part_sender* out, std::span<const std::byte> data, std::size_t first) {
  const std::size_t quarter = data.size() / 4;
  for (std::size_t i = first; i < first + 2; ++i) co_await out->send(quarter * i, data.subspan(quarter * i, quarter));
}
task<> send_by_two_coroutines(part_sender& out, std::span<const std::byte> data) {
  scope& here = co_await this_scope;
  scope both(here);
  both.spawn(send_half_by_quarters(&out, data, 0));
  both.spawn(send_half_by_quarters(&out, data, 2));
  co_await both.join();
}
/// Throws while a second coroutine still waits to send a part. That coroutine lives in a scope of this frame, and ends with it.
task<> send_and_throw_beside_a_wait(part_sender& out, std::span<const std::byte> data) {
  scope& here = co_await this_scope;
  scope helper(here);
  helper.spawn(send_half_by_quarters(&out, data, 0));
  co_await yield;
  throw std::runtime_error("the sender's card is on fire");
}
task<> receive_quarters(part_receiver& in, std::span<std::byte> data) {
  const std::size_t quarter = data.size() / 4;
  in.keep_in_flight(4);
  for (std::size_t i = 0; i < 4; ++i) co_await in.receive(quarter * i, data.subspan(quarter * i, quarter));
}
task<> receive_thirds(part_receiver& in, std::span<std::byte> data) {
  const std::size_t third = data.size() / 3;
  for (std::size_t i = 0; i < 3; ++i) co_await in.receive(third * i, data.subspan(third * i, third));
}
task<> wait_for_an_hour() {
  const scope& here = co_await this_scope;
  auto slept = co_await sleep_until(here.where().deadline_in(3600_s));
  static_cast<void>(slept);
}
task<> send_after_an_hour(part_sender& out, std::span<const std::byte> data) {
  co_await wait_for_an_hour();
  co_await send_halves(out, data);
}
task<> receive_and_wait_an_hour(part_receiver& in, std::span<std::byte> data) {
  co_await receive_halves(in, data);
  co_await in.drain();
  co_await wait_for_an_hour();
}

/// Sends one message with a config that breaks the rules; a call of the op may take 2 seconds.
call_outcomes move_once(send_function sends, receive_function receives, time_ns& took) {
  world w(2, eager());
  const auto config = paired({.name = "odd", .wire_class = "odd"}, sends, receives);
  auto op = pair_of({config});
  op.timeout = 2s;
  transfer out(w[0], op);
  transfer in(w[1], op);
  const time_ns began = w.clock.now();
  auto all = move_each(w, out, in, {60'000});
  took = w.clock.now() - began;
  return all;
}

/// A pair that has agreed on `fragile`.
struct fragile_world : world {
  fragile_world() : world(2, eager()) {
    const std::vector<config_ptr> configs{direct(), std::make_shared<fragile>(plan), chunked(70'000, 2)};
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(configs));
    REQUIRE(move(100).failed() == 0);
    tests::pass(*this, 1'000'000'000);
    REQUIRE(in.decision(size).config == "fragile");
  }
  call_outcomes move(std::size_t count) { return move_each(*this, out, in, std::vector<std::size_t>(count, size)); }
  std::uint64_t last_run(rank_id r) { return ranks[r]->flight().in_order().back().digest; }
  std::shared_ptr<fragile::plan> plan = std::make_shared<fragile::plan>();
  transfer out, in;
};

}  // namespace

TEST_CASE("a config that fails at the sender ends the call as config_failed on both ends, and the default runs next") {
  fragile_world w;
  w.plan->who = fragile::end::sender;
  const auto failed = w.move(1);
  CHECK(w.plan->breaks == 1);
  for (rank_id r = 0; r < 2; ++r)
    CHECK(is(r == 0 ? failed.sent[0] : failed.received[0], {.code = errc::config_failed,
                                                            .op = "activations 0->1",
                                                            .rank = r,
                                                            .invocation = 100,
                                                            .begun = true,
                                                            .peer = 1 - r,
                                                            .config = "fragile",
                                                            .quotes = r == 0 ? "the sender's card is on fire" : ""}));
  const auto next = w.move(3);
  CHECK(next.failed() == 0);
  CHECK(w.plan->breaks == 1);
  CHECK(w.last_run(0) == direct()->digest());
  CHECK(w.last_run(1) == direct()->digest());
  pass(w, 1'000'000'000);
  for (const transfer& end : {w.out, w.in}) {
    const decision d = end.decision(size);
    CHECK(d.config == "direct");
    for (const char* word : {"fragile", "failed", "invocation 100", "sender", "the default runs"})
      CHECK(d.why.find(word) != std::string::npos);
  }
  CHECK(warned(w[0], {"activations 0->1", "128KiB", "fragile", "invocation 100"}));
}

TEST_CASE("a config that fails at the receiver is quarantined even if the send has completed") {
  fragile_world w;
  w.plan->who = fragile::end::receiver;
  const auto failed = w.move(1);
  CHECK(failed.sent[0]);  // the send had completed before the receiver failed
  CHECK(is(failed.received[0],
           {.code = errc::config_failed, .config = "fragile", .quotes = "the receiver's card is on fire"}));
  pass(w, 1'000'000'000);
  CHECK(w.move(3).failed() == 0);
  CHECK(w.last_run(1) == direct()->digest());
  CHECK(w.out.decision(size).config == "direct");
  CHECK(w.in.decision(size).config == "direct");
  CHECK(w.out.decision(size).why.find("failed on rank 1") != std::string::npos);
  CHECK(warned(w[0], {"fragile", "failed on rank 1", "the receiver's card is on fire"}));
  CHECK(w.plan->breaks == 1);
}

TEST_CASE("a send in flight fails with the error of its receiver") {
  world w(2, eager());
  const auto broken = paired({.name = "broken", .wire_class = "eighths"}, send_eighths, receive_one_eighth);
  transfer out(w[0], pair_of({broken}));
  transfer in(w[1], pair_of({broken}));
  const auto failed = move_each(w, out, in, {800'000});
  CHECK(failed.received[0].code() == errc::config_failed);
  CHECK(is(failed.sent[0], {.code = errc::config_failed,
                            .rank = 0,
                            .peer = 1,
                            .config = "broken",
                            .quotes = "the receiver's card is on fire"}));
}

TEST_CASE("after a failure a new search finds the next best config, and its evidence lists the quarantined one") {
  fragile_world w;
  w.plan->who = fragile::end::sender;
  w.move(1);
  w.plan->who = fragile::end::nobody;
  pass(w, 15'000'000'000);
  CHECK(w.move(200).failed() == 0);
  pass(w, 1'000'000'000);
  const decision d = w.in.decision(size);
  CHECK(d.search == 2);
  CHECK(d.config == chunked(70'000, 2)->id());
  REQUIRE(d.evidence.size() == 3);
  CHECK(d.evidence[1].config == "fragile");
  CHECK(d.evidence[1].status == "quarantined");
  CHECK(d.evidence[1].detail.find("on fire") == std::string::npos);  // the sender reports only the error code
  CHECK(d.evidence[1].detail.find("config_failed") != std::string::npos);
  CHECK(w.plan->breaks == 1);
}

TEST_CASE("a config is not blamed for calls that were cancelled or whose peer was late") {
  fragile_world w;
  const auto keep = [](transfer t, std::span<const std::byte> data, time_ns timeout, result<>& into) -> task<> {
    auto outcome = co_await attempt(t.send(data, {.to = 1, .timeout = std::chrono::nanoseconds(timeout)}));
    into = std::move(outcome);
  };
  const auto data = pattern(size, 1);
  result<> late, given_up;
  scope both(w.clock);
  both.spawn(keep(w.out, data, 50'000'000, late));
  pass(w, 100'000'000);
  CHECK(late.code() == errc::timeout);
  scope caller(w.clock);
  caller.spawn(keep(w.out, data, 0, given_up));
  pass(w, 1'000'000);
  caller.cancel();
  pass(w, 1'000'000);
  CHECK(given_up.code() == errc::cancelled);
  // Receives that match the two sends above.
  const auto take = [](transfer t, result<>& into) -> task<> {
    std::vector<std::byte> buffer(size);
    auto outcome = co_await attempt(t.receive(buffer, {.from = 0}));
    into = outcome ? result<>{} : result<>{outcome.reason()};
  };
  result<> first, second;
  both.spawn(take(w.in, first));
  both.spawn(take(w.in, second));
  pass(w, 1'000'000'000);
  CHECK(first.code() == errc::send_failed);
  CHECK(second.code() == errc::send_failed);
  CHECK(w.out.decision(size).config == "fragile");
  CHECK(w.move(2).failed() == 0);
  CHECK(w[0].warnings().empty());
}

TEST_CASE(
    "a stamp of a config that this rank has not warmed is refused with config_mismatch, and the leader gets a nack") {
  world w(2, eager());
  const auto broken = std::make_shared<fragile::plan>(fragile::plan{fragile::end::receiver});
  const std::vector<config_ptr> configs{direct(), std::make_shared<fragile>(broken)};
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  pass(w, 1'000'000'000);  // `fragile` has failed its rehearsal by now
  auto op = actors::declare_edge("activations", 0, 1, "");
  const std::vector<std::uint64_t> incarnations{1000, 1001};
  for (const std::uint64_t digest : {configs[1]->digest(), std::uint64_t{12345}}) {
    actors::stamp s;
    s.op = op.id();
    s.generation = actors::first_generation(op, incarnations);
    s.digest = digest;
    s.total_bytes = 10;
    s.invocation = digest == 12345 ? 1 : 0;
    s.source = 0;
    const std::vector<std::byte> data(10);
    static_cast<void>(w.links[0].send(1, link::channel::data, actors::bytes_of(s), data, nullptr));
    const auto take = [](transfer t, result<>& into) -> task<> {
      std::vector<std::byte> buffer(10);
      auto outcome = co_await attempt(t.receive(buffer, {.from = 0}));
      into = outcome ? result<>{} : result<>{outcome.reason()};
    };
    result<> got;
    run(w.clock, take(in, got));
    CHECK(got.code() == errc::config_mismatch);
  }
  pass(w, 1'000'000'000);
  CHECK(w[1].mail().sent_by_type()[actors::nack::message_type] == 2);
}

TEST_CASE("parts may be sent in any order, but an offset that is sent twice fails the call at both ends") {
  time_ns took = 0;
  CHECK(move_once(send_halves, receive_halves, took).failed() == 0);
  const auto failed = move_once(send_a_half_twice, receive_halves, took);
  CHECK(failed.sent[0].code() == errc::bad_argument);
  CHECK(failed.received[0].code() == errc::config_failed);
  CHECK(took < 1'000'000'000);
}

TEST_CASE("a config whose two functions cut differently fails with the offset and both sizes") {
  time_ns took = 0;
  const auto failed = move_once(send_halves, receive_thirds, took);
  CHECK(is(failed.received[0], {.code = errc::config_failed,
                                .rank = 1,
                                .quotes = "the part at offset 0 has 30000 bytes, but the receiver asked for 20000"}));
}

namespace {
/// The sender's fault ends the call on both ends, long before its timeout.
void check_ends_by_name(send_function sends, const char* why) {
  time_ns took = 0;
  const auto failed = move_once(sends, receive_quarters, took);
  CHECK(is(failed.sent[0], {.code = errc::config_failed, .rank = 0, .role = "sender", .quotes = why}));
  CHECK(failed.received[0].code() == errc::config_failed);
  CHECK(took < 1'000'000'000);
}
}  // namespace

TEST_CASE("a config fails by name and its call ends, if two of its coroutines wait for parts of one message") {
  check_ends_by_name(send_by_two_coroutines, "two coroutines wait for parts of one message");
}

TEST_CASE("a config that throws while its second coroutine waits for a part fails by name and ends its call") {
  check_ends_by_name(send_and_throw_beside_a_wait, "the sender's card is on fire");
}

TEST_CASE("a config that waits for an event of its own is ended at the deadline of its call, at either end") {
  time_ns took = 0;
  const auto at_sender = move_once(send_after_an_hour, receive_halves, took);
  CHECK(at_sender.sent[0].code() == errc::config_failed);
  CHECK_FALSE(at_sender.received[0]);
  CHECK(took < 5'000'000'000);
  const auto at_receiver = move_once(send_halves, receive_and_wait_an_hour, took);
  CHECK(at_receiver.sent[0]);
  CHECK(took < 5'000'000'000);
}

TEST_CASE(
    "a sender's half that hangs in its rehearsal is config_failed on both ranks, and only the sender's rank warns") {
  for (const time_ns timeout_ns : {time_ns{2'000'000'000}, time_ns{30'000'000'000}}) {
    CAPTURE(timeout_ns);
    world w(2, eager());
    auto op = pair_of({direct(), paired({.name = "hangs", .wire_class = "odd"}, send_after_an_hour, receive_halves)});
    op.timeout = std::chrono::nanoseconds(timeout_ns);
    static_cast<void>(transfer(w[0], op));
    static_cast<void>(transfer(w[1], op));
    pass(w, 60'000'000'000);
    for (rank_id r = 0; r < 2; ++r) {
      CAPTURE(r);
      const auto& errors = w[r].participants().at(0)->warm_errors;
      REQUIRE(errors.size() == 1);
      CHECK(errors[0].starts_with("hangs: config_failed"));
      CHECK((errors[0].find("rank 0, which sends,") != std::string::npos) == (r == 1));
    }
    CHECK(w[0].warnings().size() == 1);
    CHECK(w[1].warnings().empty());
  }
}

TEST_CASE("a deadline past the end of time counts as no deadline") {
  CHECK(deadline_of(5, 7) == 12);
  CHECK(deadline_of(5, never) == never);
  CHECK(deadline_of(5, never - 5) == never);
  CHECK(deadline_of(5, never - 6) == never - 1);
  world w(2, eager());
  auto op = pair_of({direct()});
  op.timeout = std::chrono::nanoseconds(never - 1);
  pass(w, 1'000'000);
  CHECK(move_each(w, transfer(w[0], op), transfer(w[1], op), {100, 100'000}).failed() == 0);
}

TEST_CASE("two ends that list different defaults both get an error with both names, for every size and start order") {
  const config_ptr other = chunked(16_KiB, 2);
  struct {
    std::vector<config_ptr> first, second;
  } const lists[] = {
      {{direct(), other}, {other, direct()}}, {{other, direct()}, {direct(), other}}, {{other}, {direct()}}};
  for (const auto& l : lists) {
    for (const std::size_t bytes : {std::size_t{100}, size}) {
      for (const time_ns later_ns : {time_ns{0}, time_ns{1'000'000'000}}) {
        CAPTURE(bytes);
        CAPTURE(later_ns);
        world w(2);
        std::size_t breaches = 0;
        const breach_watch watch([&](const breach&) { ++breaches; });
        transfer out(w[0], pair_of(l.first));
        if (later_ns != 0) pass(w, later_ns);
        transfer in(w[1], pair_of(l.second));
        const auto all = move_each(w, out, in, {bytes, bytes, bytes});
        CHECK(w.clock.now() < later_ns + 1'000'000'000);
        CHECK(all.received.size() == 3);
        CHECK(breaches == 0);
        const auto later = move_each(w, out, in, {bytes});
        CHECK_FALSE(later.sent[0]);
        for (const auto& side : {all.sent, all.received, later.sent, later.received}) {
          for (const auto& outcome : side) {
            if (outcome) continue;  // it was sent before either rank knew of the mismatch
            for (const config_ptr& first : {l.first.front(), l.second.front()})
              CHECK(is(outcome, {.code = errc::declaration_mismatch, .quotes = "default " + first->id()}));
          }
        }
        for (const auto& r : all.received) CHECK_FALSE(r);
      }
    }
  }
}

TEST_CASE(
    "a receiver itself reports in time that the defaults differ, if the sender's message about its configs is lost") {
  memory_link_options o;
  o.lose = [](rank_id, rank_id, link::channel on) { return on == link::channel::control; };
  world w(2, {}, std::move(o));
  transfer out(w[0], pair_of({chunked(16_KiB, 2), direct()}));
  transfer in(w[1], pair_of({direct(), chunked(16_KiB, 2)}));
  const auto all = move_each(w, out, in, {100'000});
  CHECK(w.clock.now() < 65'000'000'000);
  REQUIRE(all.received.size() == 1);
  CHECK(is(all.received[0], {.code = errc::declaration_mismatch,
                             .rank = 1,
                             .peer = 0,
                             .config = chunked(16_KiB, 2)->id(),
                             .quotes = "default is direct"}));
}
