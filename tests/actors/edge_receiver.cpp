#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/edges.hpp>

#include <doctest/doctest.h>

#include <array>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using parley::tests::edge_pair;
using parley::tests::pattern;
using parley::tests::receive_whole;
using parley::tests::watched_receive;

namespace {

struct receiving : edge_pair {
  receiving() : tasks(clock) {}
  watched_receive& post(std::size_t size = 100, std::uint32_t tag = 0, time_ns deadline = never) {
    auto& r = posted.emplace_back(std::make_unique<watched_receive>());
    r->buffer.assign(size, std::byte{0xEE});
    tasks.spawn(receive_whole(in, tag, *r, deadline));
    clock.turn();
    return *r;
  }
  void bring(std::uint64_t invocation, std::size_t size = 100, std::uint32_t tag = 0) {
    inject(stamp(invocation, size, 0, tag), pattern(size, invocation));
    pass();
  }
  std::vector<std::unique_ptr<watched_receive>> posted;
  scope tasks;
};

bool holds(const watched_receive& r, std::uint64_t invocation, std::size_t size = 100) {
  auto got = r.buffer;
  got.resize(size);
  return r.ended == errc::none && r.bytes == size && r.invocation == invocation && got == pattern(size, invocation);
}
bool untouched(const watched_receive& r) {
  return std::all_of(r.buffer.begin(), r.buffer.end(), [](std::byte b) { return b == std::byte{0xEE}; });
}

}  // namespace

TEST_CASE_FIXTURE(receiving, "a receive's index is its place in the queue, in whatever order the messages arrive") {
  auto& a = post();
  auto& b = post();
  auto& c = post();
  CHECK(in.next_invocation(0) == 3);
  bring(2);
  CHECK(holds(c, 2));
  CHECK_FALSE(a.ended);
  bring(0);
  CHECK(holds(a, 0));
  bring(1);
  CHECK(holds(b, 1));
}

TEST_CASE_FIXTURE(receiving, "messages that arrive before their receives wait for them, even in several parts") {
  bring(0);
  const auto data = pattern(100, 1);
  inject(stamp(1, 100, 60), std::span(data).subspan(60));
  inject(stamp(1, 100, 0), std::span(data).first(60));
  pass();
  CHECK(in.statistics().early_parts == 3);
  CHECK(holds(post(), 0));
  part_receiver second(in, 0, 100);
  std::vector<std::byte> buffer(100);
  const auto run_it = [](part_receiver& r, std::span<std::byte> into) -> task<> {
    auto seen = co_await r.match(never);
    CHECK(seen);
    r.keep_in_flight(2);
    co_await r.receive(0, into.first(60));
    co_await r.receive(60, into.subspan(60));
    co_await r.drain();
  };
  run(clock, run_it(second, buffer));
  CHECK(buffer == data);
  CHECK(second.received_bytes() == 100);
}

TEST_CASE_FIXTURE(receiving, "an unmatched receive that times out leaves the queue and the later ones move up") {
  auto& a = post(100, 0, clock.deadline_in(5'000'000));
  auto& b = post();
  auto& c = post();
  pass(10'000'000);
  CHECK(a.ended == errc::timeout);
  CHECK_FALSE(a.invocation);
  CHECK(in.next_invocation(0) == 2);
  bring(0);
  bring(1);
  CHECK(holds(b, 0));
  CHECK(holds(c, 1));
}

TEST_CASE_FIXTURE(receiving, "only the later receives move up when a receive in the middle of the queue times out") {
  auto& a = post();
  auto& b = post(100, 0, clock.deadline_in(5'000'000));
  auto& c = post();
  pass(10'000'000);
  CHECK(b.ended == errc::timeout);
  bring(1);
  bring(0);
  CHECK(holds(a, 0));
  CHECK(holds(c, 1));
}

TEST_CASE_FIXTURE(receiving, "a later stamp matches earlier receives, which no longer time out") {
  auto& a = post(100, 0, clock.deadline_in(5'000'000));
  auto& b = post(100, 0, clock.deadline_in(5'000'000));
  bring(1);
  CHECK(holds(b, 1));
  pass(20'000'000);
  CHECK_FALSE(a.ended);  // its message has started to arrive
  bring(0);
  CHECK(holds(a, 0));
}

TEST_CASE_FIXTURE(receiving,
                  "a matched receive whose stamp does not arrive ends a second after its deadline, with its index") {
  auto& a = post(100, 0, clock.deadline_in(5'000'000));
  auto& b = post();
  auto& c = post();
  bring(1);
  CHECK(holds(b, 1));
  pass(900'000'000);
  CHECK_FALSE(a.ended);
  pass(200'000'000);
  CHECK(a.ended == errc::timeout);
  CHECK(a.invocation == 0);
  bring(0);  // too late: no other receive gets this message
  CHECK(untouched(a));
  CHECK_FALSE(c.ended);
  bring(2);
  CHECK(holds(c, 2));
}

TEST_CASE_FIXTURE(receiving, "a matched receive whose later parts do not arrive ends a second after its deadline") {
  watched_receive a;
  a.buffer.resize(100);
  const auto in_two = [](edge_receiver& edge, watched_receive& r, time_ns deadline) -> task<> {
    part_receiver parts(edge, 0, r.buffer.size());
    auto seen = co_await parts.match(deadline);
    CHECK(seen);
    try {
      co_await parts.receive(60, std::span(r.buffer).subspan(60));
      co_await parts.receive(0, std::span(r.buffer).first(60));
    } catch (const failure&) {}
    r.ended = co_await parts.settle();
    r.invocation = parts.invocation();
  };
  tasks.spawn(in_two(in, a, clock.deadline_in(5'000'000'000)));
  pass();
  inject(stamp(0, 100, 60), pattern(40, 0));
  pass(5'900'000'000);
  CHECK_FALSE(a.ended);
  pass(200'000'000);
  CHECK(a.ended == errc::timeout);
  CHECK(a.invocation == 0);
  bring(1);
  CHECK(holds(post(), 1));
}

TEST_CASE_FIXTURE(receiving, "a part that overlaps the requested range but differs from it ends its receive at once") {
  SUBCASE("requested before the part arrives") {
    auto& a = post(100);
    inject(stamp(0, 100, 60), pattern(40, 0));
    pass();
    CHECK(a.ended == errc::config_failed);
    CHECK(untouched(a));
  }
  SUBCASE("requested after the part has arrived") {
    inject(stamp(0, 100, 60), pattern(40, 0));
    pass();
    auto& a = post(100);
    CHECK(a.ended == errc::config_failed);
    CHECK(untouched(a));
  }
  bring(1);
  CHECK(holds(post(), 1));
}

TEST_CASE_FIXTURE(receiving, "a matched receive continues past its deadline as long as its parts keep arriving") {
  watched_receive w;
  w.buffer.resize(100);
  const auto by_tens = [](edge_receiver& edge, watched_receive& r, time_ns deadline) -> task<> {
    part_receiver parts(edge, 0, r.buffer.size());
    auto seen = co_await parts.match(deadline);
    CHECK(seen);
    parts.keep_in_flight(10);
    try {
      for (std::size_t at = 0; at < 100; at += 10) co_await parts.receive(at, std::span(r.buffer).subspan(at, 10));
    } catch (const failure&) {}
    r.ended = co_await parts.settle();
  };
  tasks.spawn(by_tens(in, w, clock.deadline_in(1'000'000'000)));
  const auto data = pattern(100, 7);
  for (std::size_t at = 0; at < 100; at += 10) {
    inject(stamp(0, 100, at), std::span(data).subspan(at, 10));
    pass(900'000'000);
  }
  CHECK(w.ended == errc::none);
  CHECK(w.buffer == data);
}

TEST_CASE_FIXTURE(receiving,
                  "a matched receive past its deadline waits for a payload that the transport is still delivering") {
  auto& slow = post(1U << 20U, 0, clock.deadline_in(5'000'000));
  links.options().ns_per_byte = 10'000;  // 10 s for the payload
  const auto data = pattern(1U << 20U, 3);
  runtime::completion ignored([](runtime::completion&, errc) noexcept {});
  static_cast<void>(links[0].send(1, link::channel::data, bytes_of(stamp(0, data.size())), data, &ignored));
  pass(8'000'000'000);
  CHECK_FALSE(slow.ended);
  pass(10'000'000'000);
  CHECK(slow.ended == errc::none);
  CHECK(slow.buffer == data);
}

TEST_CASE_FIXTURE(receiving, "a receive posted after a later stamp arrived is matched at once") {
  bring(1);
  auto& a = post(100, 0, clock.deadline_in(5'000'000));
  pass(20'000'000);
  CHECK_FALSE(a.ended);
  bring(0);
  CHECK(holds(a, 0));
}

TEST_CASE_FIXTURE(receiving, "a poison of a later invocation matches earlier receives, but ends only its own receive") {
  auto& a = post(100, 0, clock.deadline_in(5'000'000));
  auto& b = post();
  auto poison = stamp(1, 100);
  poison.flags = stamp_flags::poison;
  inject(poison);
  pass(20'000'000);
  CHECK(b.ended == errc::send_failed);
  CHECK(b.invocation == 1);
  CHECK(untouched(b));
  CHECK_FALSE(a.ended);
  bring(0);
  CHECK(holds(a, 0));
  auto& c = post();
  bring(2);
  CHECK(holds(c, 2));
}

TEST_CASE_FIXTURE(receiving,
                  "a receive whose sender takes the payload back waits a second for the reason, and ends with it") {
  links.options().takes_back = true;
  constexpr std::size_t large = 100'000;
  const auto payload = pattern(large, 0);
  const auto data = stamp(0, large);
  tests::awaited sent;
  REQUIRE(links[0].send(1, link::channel::data, bytes_of(data), payload, &sent) == errc::pending);
  pass();
  links[0].cancel(sent);
  auto& receive = post(large);
  pass(500'000'000);
  CHECK_FALSE(receive.ended);
  SUBCASE("the device of the sender failed") {
    auto poison = data;
    poison.flags = stamp_flags::poison;
    poison.next_digest = static_cast<std::uint64_t>(errc::device_failed);
    inject(poison);
    pass();
    CHECK(receive.ended == errc::device_failed);
  }
  SUBCASE("this end's op was refused") {
    in.fail(errc::declaration_mismatch);
    pass();
    CHECK(receive.ended == errc::declaration_mismatch);
  }
  SUBCASE("no reason comes") {
    pass(2'000'000'000);
    CHECK(receive.ended == errc::send_failed);
  }
  CHECK(untouched(receive));
}

TEST_CASE_FIXTURE(receiving, "a poison that arrives before its receive ends that receive when it is posted") {
  auto poison = stamp(0, 100);
  poison.flags = stamp_flags::poison;
  inject(poison);
  pass();
  CHECK(post().ended == errc::send_failed);
}

TEST_CASE_FIXTURE(receiving, "data that arrives after its poison is dropped, because no receive may ever ask for it") {
  auto data = stamp(0, 100);
  SUBCASE("of a call") {}
  SUBCASE("of a rehearsal") { data.flags = stamp_flags::rehearsal; }
  auto poison = data;
  poison.flags = data.flags | stamp_flags::poison;
  inject(poison);
  pass();
  const auto kept = in.statistics().early_bytes;
  const auto dropped = in.statistics().dropped;
  inject(data, pattern(100, 0));
  pass();
  CHECK(in.statistics().early_bytes == kept);
  CHECK(in.statistics().dropped == dropped + 1);
  auto other = data;
  SUBCASE("but not data of the next invocation") { other.invocation = 1; }
  SUBCASE("but not data of the other stream") {
    other.flags = has(data.flags, stamp_flags::rehearsal) ? stamp_flags{} : stamp_flags::rehearsal;
  }
  if (other.invocation == data.invocation && other.flags == data.flags) return;
  inject(other, pattern(100, 0));
  pass();
  CHECK(in.statistics().early_bytes > kept);
  CHECK(in.statistics().dropped == dropped + 1);
}

TEST_CASE_FIXTURE(receiving, "after an early poison has ended its receive, messages that arrive early are kept again") {
  auto poison = stamp(0, 100);
  poison.flags = stamp_flags::poison;
  inject(poison);
  inject(poison);  // a repeated poison counts once
  pass();
  CHECK(post().ended == errc::send_failed);
  bring(1);
  CHECK(holds(post(), 1));
}

TEST_CASE_FIXTURE(receiving, "a poison after the first part ends the receive") {
  part_receiver r(in, 0, 100);
  const auto first = pattern(60, 0);
  inject(stamp(0, 100, 0), first);
  pass();
  auto poison = stamp(0, 100);
  poison.flags = stamp_flags::poison;
  inject(poison);
  pass();
  CHECK(r.failed() == errc::send_failed);
}

TEST_CASE_FIXTURE(receiving, "duplicates and parts of ended invocations are dropped") {
  auto& a = post();
  bring(0);
  CHECK(holds(a, 0));
  const auto before = in.statistics().dropped;
  bring(0);
  CHECK(in.statistics().dropped == before + 1);
  auto& b = post();
  bring(0);
  CHECK_FALSE(b.ended);
  bring(1);
  CHECK(holds(b, 1));
}

TEST_CASE_FIXTURE(receiving, "a part that arrives twice is written once") {
  part_receiver r(in, 0, 100);
  std::vector<std::byte> buffer(100);
  const auto data = pattern(100, 3);
  inject(stamp(0, 100, 0), std::span(data).first(60));
  inject(stamp(0, 100, 0), std::span(data).first(60));
  inject(stamp(0, 100, 60), std::span(data).subspan(60));
  inject(stamp(0, 100, 60), std::span(data).subspan(60));
  pass();
  const auto run_it = [](part_receiver& p, std::span<std::byte> into) -> task<> {
    auto seen = co_await p.match(never);
    CHECK(seen);
    co_await p.receive(0, into.first(60));
    co_await p.receive(60, into.subspan(60));
    co_await p.drain();
  };
  run(clock, run_it(r, buffer));
  CHECK(buffer == data);
  CHECK(r.received_bytes() == 100);
  CHECK(in.statistics().dropped == 2);
}

TEST_CASE_FIXTURE(receiving, "parts of another generation or another rank change nothing") {
  auto& a = post();
  auto other = stamp(0, 100);
  other.generation = generation + actors::generation_of(0, 1);  // a generation with one restart more
  inject(other, pattern(100, 8));
  auto past = stamp(0, 100);
  past.generation = generation + 1;
  inject(past, pattern(100, 8));
  auto foreign = stamp(5, 100);
  foreign.source = 3;
  inject(foreign, pattern(100, 8));
  pass();
  CHECK_FALSE(a.ended);
  CHECK(in.statistics().unjoined == 1);
  CHECK(in.statistics().dropped == 2);
  bring(0);
  CHECK(holds(a, 0));
}

TEST_CASE_FIXTURE(receiving, "a buffer that is too small is not written, and the next invocation succeeds") {
  auto& a = post(99);
  bring(0, 100);
  CHECK(a.ended == errc::buffer_too_small);
  CHECK(a.invocation == 0);
  CHECK(untouched(a));
  auto& b = post(100);
  bring(1, 100);
  CHECK(holds(b, 1));
}

TEST_CASE_FIXTURE(receiving, "a part that reaches beyond its message is dropped and never written") {
  part_receiver r(in, 0, 100);
  inject(stamp(0, 50, 20), pattern(31, 0));
  pass();
  CHECK(in.statistics().dropped == 1);
  CHECK(r.received_bytes() == 0);
}

TEST_CASE_FIXTURE(receiving, "parts of one invocation that name different configs are a mismatch") {
  part_receiver r(in, 0, 100);
  inject(stamp(0, 100, 0), pattern(60, 0));
  auto other = stamp(0, 100, 60);
  other.digest = 78;
  inject(other, pattern(40, 0));
  pass();
  CHECK(r.failed() == errc::config_mismatch);
}

TEST_CASE_FIXTURE(receiving, "tags are independent of each other and may be received in any order") {
  bring(0, 10, 7);
  bring(0, 20, 3);
  bring(1, 30, 7);
  CHECK(holds(post(100, 3), 0, 20));
  CHECK(holds(post(100, 7), 0, 10));
  auto& late = post(100, 3);
  CHECK(holds(post(100, 7), 1, 30));
  CHECK_FALSE(late.ended);
  CHECK(in.next_invocation(3) == 2);
  CHECK(in.next_invocation(7) == 2);
}

TEST_CASE_FIXTURE(receiving, "a receiver keeps a bounded number of streams for any number of tags that its peer uses") {
  constexpr std::uint32_t made_up = 70'000;
  std::size_t told = 0;
  in.on_too_many_tags([&] { ++told; });  // in a job, the op ends at this point
  for (std::uint32_t tag = 0; tag < made_up; ++tag) inject(stamp(0, 1, 0, tag), std::vector<std::byte>(1));
  pass();
  constexpr std::size_t most = actors::stream_table<actors::receive_stream>::most;
  CHECK(in.statistics().early_parts == most);
  CHECK(in.statistics().dropped == made_up - most);
  CHECK(told == made_up - most);
  CHECK_THROWS_AS(actors::part_receiver(in, made_up, 1), failure);
  for (const std::uint32_t tag : {std::uint32_t{0}, std::uint32_t{most - 1}}) {
    actors::part_receiver known(in, tag, 1);
    CHECK(known.decided());
  }
}

TEST_CASE_FIXTURE(receiving, "500 receives may be posted ahead of their messages") {
  std::vector<watched_receive*> ahead;
  for (int i = 0; i < 500; ++i) ahead.push_back(&post());
  for (std::uint64_t i = 500; i-- > 0;) inject(stamp(i, 100), pattern(100, i));
  pass();
  for (std::uint64_t i = 0; i < 500; ++i) CHECK(holds(*ahead[i], i));
}

TEST_CASE_FIXTURE(receiving, "the next receive gets the message of an unmatched receive that is cancelled") {
  watched_receive first;
  first.buffer.resize(100);
  scope inner(clock);
  inner.spawn(receive_whole(in, 0, first));
  clock.turn();
  auto& second = post();
  inner.cancel();
  pass();
  CHECK(first.ended == errc::cancelled);
  bring(0);
  CHECK(holds(second, 0));
}

TEST_CASE_FIXTURE(receiving,
                  "a matched receive that is cancelled keeps its index, so that no other receive gets its message") {
  watched_receive first;
  first.buffer.resize(100);
  scope inner(clock);
  inner.spawn(receive_whole(in, 0, first));
  clock.turn();
  auto& second = post();
  bring(1);
  CHECK(holds(second, 1));
  inner.cancel();
  pass();
  CHECK(first.ended == errc::cancelled);
  auto& third = post();
  bring(0);
  CHECK_FALSE(third.ended);
  bring(2);
  CHECK(holds(third, 2));
}

TEST_CASE_FIXTURE(receiving, "a large receive that is cancelled ends only when the transport releases its buffer") {
  const auto data = pattern(1 << 20, 0);
  watched_receive r;
  r.buffer.resize(data.size());
  parley::tests::watched_send s;
  scope inner(clock);
  inner.spawn(receive_whole(in, 0, r));
  tasks.spawn(parley::tests::send_whole(*this, 0, data, s));
  pass(50'000);  // the stamp has arrived; the payload is in flight
  CHECK_FALSE(r.ended);
  inner.cancel();
  clock.turn();
  CHECK_FALSE(r.ended);
  pass();
  CHECK(r.ended == errc::cancelled);
  CHECK(s.ended == errc::none);
}

TEST_CASE_FIXTURE(receiving, "a message may have zero bytes") {
  auto& a = post(0);
  auto& b = post(100);
  bring(0, 0);
  bring(1, 0);
  CHECK(a.ended == errc::none);
  CHECK(b.ended == errc::none);
  CHECK(untouched(b));
}

TEST_CASE_FIXTURE(receiving, "rehearsals have a stream of their own") {
  auto& user = post();
  part_receiver r(in, 0, 100, part_receiver::kind::rehearsal);
  auto s = stamp(0, 100);
  s.flags = stamp_flags::rehearsal;
  inject(s, pattern(100, 0));
  pass();
  CHECK(r.matched());
  CHECK_FALSE(user.ended);
  bring(0);
  CHECK(holds(user, 0));
}

TEST_CASE_FIXTURE(receiving, "when the edge fails, all posted receives and all later ones end with its error") {
  auto& a = post();
  auto& b = post(100, 5);
  in.fail(errc::peer_failed);
  clock.turn();
  CHECK(a.ended == errc::peer_failed);
  CHECK(b.ended == errc::peer_failed);
  CHECK(post().ended == errc::peer_failed);
}
