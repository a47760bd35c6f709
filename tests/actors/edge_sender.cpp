#include <parley/tests/support/edges.hpp>
#include <parley/tests/support/link_over.hpp>

#include <doctest/doctest.h>

#include <map>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using parley::tests::edge_pair;
using parley::tests::link_over;
using parley::tests::memory_link_options;
using parley::tests::pattern;
using parley::tests::receive_whole;
using parley::tests::send_whole;
using parley::tests::watched_receive;
using parley::tests::watched_send;

namespace {

struct both_ends : edge_pair {
  explicit both_ends(window_limits w = {}, memory_link_options o = {}, std::uint64_t first_invocation = 0)
      : edge_pair(w, std::move(o), first_invocation), tasks(clock) {}
  watched_send& send(std::size_t size, std::uint32_t tag = 0, time_ns deadline = never) {
    data.push_back(pattern(size, sent.size()));
    auto& w = sent.emplace_back(std::make_unique<watched_send>());
    tasks.spawn(send_whole(*this, tag, data.back(), *w, deadline));
    clock.turn();
    return *w;
  }
  watched_receive& receive(std::size_t size, std::uint32_t tag = 0, time_ns deadline = never) {
    auto& r = received.emplace_back(std::make_unique<watched_receive>());
    r->buffer.resize(size);
    tasks.spawn(receive_whole(in, tag, *r, deadline));
    clock.turn();
    return *r;
  }
  std::size_t admitted() const {
    return static_cast<std::size_t>(
        std::count_if(sent.begin(), sent.end(), [](const auto& s) { return s->invocation.has_value(); }));
  }
  std::list<std::vector<std::byte>> data;
  std::vector<std::unique_ptr<watched_send>> sent;
  std::vector<std::unique_ptr<watched_receive>> received;
  scope tasks;
};

}  // namespace

TEST_CASE_FIXTURE(both_ends, "at most 64 invocations of a stream are unmatched, and further sends wait") {
  for (int i = 0; i < 70; ++i) send(8);
  pass();
  CHECK(admitted() == 64);
  CHECK(out.statistics().waited_for_window == 6);
  for (int i = 0; i < 70; ++i) {
    receive(8);
    pass(2'000'000);
  }
  pass(1'000'000'000);
  CHECK(admitted() == 70);
  for (std::size_t i = 0; i < 70; ++i) {
    CHECK(sent[i]->invocation == i);  // in the order in which the sends asked
    CHECK(received[i]->ended == errc::none);
    CHECK(received[i]->buffer == pattern(8, i));
  }
}

TEST_CASE_FIXTURE(both_ends, "at most 4 MiB of a stream are unmatched, and further sends wait") {
  for (int i = 0; i < 5; ++i) send(1 << 20);
  pass();
  CHECK(admitted() == 4);
  for (int i = 0; i < 5; ++i) receive(1 << 20);
  pass(1'000'000'000);
  CHECK(admitted() == 5);
  for (std::size_t i = 0; i < 5; ++i) CHECK(received[i]->buffer == pattern(1 << 20, i));
}

TEST_CASE_FIXTURE(
    both_ends,
    "a send larger than the window starts only when nothing is unmatched, and smaller sends wait behind it") {
  auto& first = send(9 << 20);
  CHECK(first.invocation == 0);
  auto& second = send(9 << 20);
  auto& third = send(1);
  pass();
  CHECK_FALSE(second.invocation);
  CHECK_FALSE(third.invocation);  // a small send does not overtake the send that waits ahead of it
  receive(9 << 20);
  pass(1'000'000'000);
  CHECK(first.ended == errc::none);
  CHECK(second.invocation == 1);
  CHECK_FALSE(third.invocation);
  receive(9 << 20);
  receive(1);
  pass(1'000'000'000);
  CHECK(third.ended == errc::none);
  CHECK(received[1]->buffer == pattern(9 << 20, 1));
}

TEST_CASE_FIXTURE(both_ends, "a sender whose receiver keeps up never waits or asks") {
  for (int i = 0; i < 500; ++i) {
    receive(100);
    send(100);
    pass(100'000);
  }
  CHECK(out.statistics().waited_for_window == 0);
  CHECK(out.statistics().questions_sent == 0);
  CHECK(in.statistics().matched_sent <= 500 / 32);
  CHECK(received.back()->buffer == pattern(100, 499));
}

TEST_CASE_FIXTURE(both_ends,
                  "a send that times out while it waits for room uses no invocation and does not delay the next send") {
  for (int i = 0; i < 64; ++i) send(8);
  auto& late = send(8, 0, clock.deadline_in(5'000'000));
  auto& next = send(8);
  pass(10'000'000);
  CHECK(late.ended == errc::timeout);
  CHECK_FALSE(late.invocation);
  for (int i = 0; i < 65; ++i) receive(8);
  pass(1'000'000'000);
  CHECK(next.invocation == 64);
  CHECK(received[64]->ended == errc::none);
  CHECK(received[64]->buffer == pattern(8, 65));
}

TEST_CASE_FIXTURE(both_ends, "a send that is cancelled while it waits for room uses no invocation") {
  for (int i = 0; i < 64; ++i) send(8);
  watched_send given_up;
  const auto payload = pattern(8, 999);
  {
    scope inner(clock);
    inner.spawn(send_whole(*this, 0, payload, given_up));
    clock.turn();
    inner.cancel();
    pass();
  }
  CHECK(given_up.ended == errc::cancelled);
  auto& next = send(8);
  for (int i = 0; i < 65; ++i) receive(8);
  pass(1'000'000'000);
  CHECK(next.invocation == 64);
  CHECK(received[64]->buffer == pattern(8, 64));
}

TEST_CASE_FIXTURE(both_ends, "sends that wait behind one another and are cancelled together use no invocations") {
  send(3 << 20);
  const auto much = pattern(3 << 20, 998);
  const auto little = pattern(1 << 10, 999);
  // Each send runs in the scope itself or in a nested one.
  for (const bool large_below : {false, true}) {
    for (const bool small_below : {false, true}) {
      watched_send large;
      watched_send small;
      scope together(clock);
      scope first(together);
      scope second(together);
      (large_below ? first : together).spawn(send_whole(*this, 0, much, large));
      (small_below ? second : together).spawn(send_whole(*this, 0, little, small));
      clock.turn();
      together.cancel();
      pass();
      CHECK(together.running() + first.running() + second.running() == 0);
      CHECK(large.ended == errc::cancelled);
      CHECK(small.ended == errc::cancelled);
    }
  }
  auto& next = send(8);
  pass();
  CHECK(next.invocation == 1);
}

TEST_CASE_FIXTURE(both_ends, "the small send behind a large waiting send starts when the large one times out") {
  send(1 << 20);
  auto& large = send(8 << 20, 0, clock.deadline_in(5'000'000));
  auto& small = send(8);
  pass(3'000'000);
  CHECK_FALSE(small.invocation);
  pass(1'000'000'000);
  CHECK(large.ended == errc::timeout);
  CHECK(small.invocation == 1);
}

TEST_CASE_FIXTURE(both_ends, "sends that wait behind one another and time out together use no invocations") {
  send(3 << 20);
  const time_ns deadline = clock.deadline_in(5'000'000);
  auto& large = send(3 << 20, 0, deadline);
  auto& small = send(1 << 10, 0, deadline);
  pass(1'000'000'000);
  CHECK(large.ended == errc::timeout);
  CHECK(small.ended == errc::timeout);
  CHECK_FALSE(small.invocation);
  CHECK(send(8).invocation == 1);
}

TEST_CASE("an edge keeps working when the 32-bit invocation numbers of its stamps wrap around") {
  constexpr std::uint64_t first = 0xfffffff0U;
  both_ends e({.invocations = 8}, {}, first);
  for (std::size_t i = 0; i < 40; ++i) {
    e.send(100 + i);
    if (i % 3 == 2) {  // so some sends wait for their receives, and some receives wait for their sends
      for (int k = 0; k < 3; ++k) e.receive(200);
    }
  }
  e.receive(200);
  e.pass(1'000'000'000);
  for (std::size_t i = 0; i < 40; ++i) {
    CAPTURE(i);
    CHECK(e.sent[i]->invocation == first + i);
    CHECK(e.received[i]->invocation == first + i);
    CHECK(e.received[i]->ended == errc::none);
    CHECK(std::equal(e.data.begin()->begin(), e.data.begin()->end(), e.received[i]->buffer.begin()));
    e.data.pop_front();
  }
}

TEST_CASE("a sender recovers lost reports of matched messages by asking for them") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto dice = std::make_shared<random_stream>(seed, 1);
    memory_link_options o;
    o.lose = [dice](rank_id, rank_id, link::channel on) { return on == link::channel::control && dice->below(2) == 0; };
    both_ends e({}, o);
    for (int i = 0; i < 300; ++i) e.send(64);
    for (int i = 0; i < 300; ++i) e.receive(64);
    e.pass(60'000'000'000);
    CHECK(e.admitted() == 300);
    for (std::size_t i = 0; i < 300; ++i) REQUIRE(e.received[i]->buffer == pattern(64, i));
    CHECK(e.out.statistics().questions_sent > 0);
  }
}

TEST_CASE("a sender that has to wait again asks soon, however long its last wait was") {
  const auto dark = std::make_shared<bool>(true);
  memory_link_options o;
  o.lose = [dark](rank_id, rank_id, link::channel on) { return on == link::channel::control && *dark; };
  both_ends e({}, o);
  for (int i = 0; i < 65; ++i) e.send(64);
  for (int i = 0; i < 64; ++i) e.receive(64);
  e.pass(500'000'000);  // the pauses between the sender's questions grow
  CHECK(e.admitted() == 64);
  *dark = false;
  for (int i = 0; i < 200 && e.admitted() < 65; ++i) e.pass(1'000'000);
  REQUIRE(e.admitted() == 65);
  *dark = true;
  for (int i = 0; i < 64; ++i) {
    e.send(64);
    e.receive(64);
    e.pass(1'000);
  }
  *dark = false;
  e.send(64);
  e.send(64);
  e.pass(3'000'000);
  CHECK(e.admitted() == 131);
}

TEST_CASE("until its receiver has answered, all streams of an edge together send no more than the early allowance") {
  const auto dark = std::make_shared<bool>(true);
  memory_link_options o;
  o.lose = [dark](rank_id, rank_id, link::channel on) { return on == link::channel::control && *dark; };
  both_ends e({}, o);
  const early_allowance& allowance = e.out.allowance();
  REQUIRE(allowance.most_bytes() == 64U << 20U);
  constexpr std::size_t each = 4U << 20U;  // 20 tags; with the overhead per kept message, the allowance has room for 15
  for (std::uint32_t tag = 0; tag < 20; ++tag) e.send(each, tag);
  e.pass(500'000'000);
  CHECK(e.admitted() == 15);
  CHECK(allowance.taken_bytes() == 15 * early_allowance::cost_of(each));
  CHECK(e.out.awaits_answer(19, each));
  CHECK(e.out.statistics().questions_sent < 50);  // one question at a time, not one per stream
  auto& late = e.send(each, 20, e.clock.deadline_in(1'000'000));
  e.pass(500'000'000);
  CHECK(late.ended == errc::timeout);
  *dark = false;
  e.pass(500'000'000);
  CHECK(e.admitted() == 20);  // the receiver's answer is enough; no receive is posted
  CHECK(allowance.taken_bytes() == 0);
  CHECK_FALSE(e.out.awaits_answer(19, each));
  for (std::uint32_t tag = 0; tag < 20; ++tag) e.receive(each, tag);
  e.pass(1'000'000'000);
  for (std::size_t i = 0; i < 20; ++i) CHECK(e.received[i]->buffer == pattern(each, i));
}

TEST_CASE("a first message of any size leaves before its receiver has answered, and the next one waits") {
  memory_link_options o;
  o.lose = [](rank_id, rank_id, link::channel on) { return on == link::channel::control; };
  both_ends e({}, o);
  CHECK(e.send(100U << 20U, 0).invocation == 0);
  auto& other = e.send(8, 1);
  e.pass(500'000'000);
  CHECK_FALSE(other.invocation);
  e.out.fail(errc::peer_failed);
  e.pass();
  CHECK(other.ended == errc::peer_failed);
  CHECK(e.out.allowance().taken_bytes() == 0);  // the allowance is free for the process that replaces the failed one
}

TEST_CASE("the early share of a sender is its part of half the room, at most 64 MiB, and a share of zero has no room") {
  CHECK(early_share(1 << 20, 2) == 512 << 10);
  CHECK(early_share(most_early_bytes, 2) == 64U << 20U);
  CHECK(early_share(most_early_bytes, 1025) == 512 << 10);
  CHECK(early_share(10, 65'536) == 0);
  early_allowance none(0);
  CHECK_FALSE(none.has_room_for(early_allowance::cost_of(0)));
}

TEST_CASE("two tags under window pressure, received in the opposite order, do not wait for each other") {
  // With one window per edge instead of per stream, tag 1 would wait behind tag 0 forever.
  both_ends e({.invocations = 1, .bytes = 1 << 20});
  for (int i = 0; i < 3; ++i) e.send(100, 0);
  for (int i = 0; i < 3; ++i) e.send(100, 1);
  for (std::size_t i = 0; i < 3; ++i) {
    auto& r = e.receive(100, 1);
    e.pass(1'000'000'000);
    CHECK(r.ended == errc::none);
    CHECK(r.buffer == pattern(100, 3 + i));
  }
  for (std::size_t i = 0; i < 3; ++i) {
    auto& r = e.receive(100, 0);
    e.pass(1'000'000'000);
    CHECK(r.ended == errc::none);
    CHECK(r.buffer == pattern(100, i));
  }
}

TEST_CASE("receives that are too small for their messages do not use up the window") {
  both_ends e({.invocations = 2, .bytes = 1 << 20});
  for (int i = 0; i < 10; ++i) e.send(100);
  for (std::size_t i = 0; i < 10; ++i) {
    auto& r = e.receive(i % 2 == 0 ? 10 : 100);
    e.pass(1'000'000'000);
    CHECK(r.ended == (i % 2 == 0 ? errc::buffer_too_small : errc::none));
  }
}

TEST_CASE_FIXTURE(both_ends, "a failed send poisons its index and its receive ends with the send's first error") {
  const actors::outgoing failed = out.begin(0, 10, 0);
  {
    part_sender parts(links[0], 1, failed.mark);
    parts.fail(errc::config_failed);
    parts.fail(errc::timeout);  // only the first failure sets the error and sends a poison
  }
  out.end(failed, errc::config_failed);
  CHECK(receive(10).ended == std::nullopt);
  pass();
  REQUIRE(received[0]->ended);
  CHECK(*received[0]->ended == errc::config_failed);
  CHECK(sending.flight.in_order().back().what == flight_event::send_failed);
}

TEST_CASE_FIXTURE(both_ends, "when the edge fails, waiting sends and later sends end with its error") {
  for (int i = 0; i < 66; ++i) send(8);
  pass();
  out.fail(errc::peer_failed);
  clock.turn();
  CHECK(sent[64]->ended == errc::peer_failed);
  CHECK(sent[65]->ended == errc::peer_failed);
  CHECK(send(8).ended == errc::peer_failed);
}

TEST_CASE_FIXTURE(both_ends, "the sender's flight recorder has one correct record for each send") {
  for (std::size_t i = 0; i < 20; ++i) {
    receive(50, static_cast<std::uint32_t>(i % 3));
    send(50, static_cast<std::uint32_t>(i % 3));
    pass();
  }
  const auto sent_records = sending.flight.in_order();
  REQUIRE(sent_records.size() == 20);
  std::map<std::uint32_t, std::uint64_t> next;
  for (const flight_record& r : sent_records) {
    CHECK(r.what == flight_event::sent);
    CHECK(r.op == op.id());
    CHECK(r.generation == generation);
    CHECK(r.digest == 77);
    CHECK(r.bytes == 50);
    CHECK(r.invocation == next[r.tag]++);
    CHECK(r.ended_ns >= r.began_ns);
  }
}

TEST_CASE_FIXTURE(both_ends, "a sender may use 65536 tags, and one more is refused") {
  const std::vector<std::byte> one(1);
  std::list<watched_send> all;
  for (std::uint32_t tag = 0; tag < most_tags; ++tag) {
    tasks.spawn(send_whole(*this, tag, one, all.emplace_back(), never));
    clock.turn();
  }
  CHECK(std::all_of(all.begin(), all.end(), [](const auto& s) { return s.invocation.has_value(); }));
  CHECK_THROWS_WITH(static_cast<void>(out.awaits_answer(most_tags, 1)), doctest::Contains("more than 65536 tags"));
}

TEST_CASE("messages of random sizes and tags arrive exactly, in any order of receives and with any window") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream dice(seed, 2);
    both_ends e({.invocations = 1 + dice.below(8), .bytes = 1 + dice.below(20'000)});
    std::map<std::uint32_t, std::vector<std::size_t>> sent_by_tag;
    const std::size_t count = 5 + dice.below(40);
    for (std::size_t i = 0; i < count; ++i) {
      const auto tag = static_cast<std::uint32_t>(dice.below(4));
      sent_by_tag[tag].push_back(i);
      e.send(dice.below(3) == 0 ? dice.below(30'000) : dice.below(50), tag);
    }
    // The receiver takes the tags in an order of its own.
    std::map<std::uint32_t, std::size_t> taken;
    std::vector<std::pair<std::size_t, std::size_t>> pairs;  // (message received, send that it must match)
    while (e.received.size() < count) {
      const auto tag = static_cast<std::uint32_t>(dice.below(4));
      if (taken[tag] == sent_by_tag[tag].size()) continue;
      pairs.emplace_back(e.received.size(), sent_by_tag[tag][taken[tag]++]);
      e.receive(30'000, tag);
      if (dice.below(3) == 0) e.pass(static_cast<time_ns>(dice.below(3'000'000)) + 1);
    }
    e.pass(60'000'000'000);
    for (const auto& [r, s] : pairs) {
      auto got = e.received[r]->buffer;
      got.resize(e.received[r]->bytes);
      REQUIRE(e.received[r]->ended == errc::none);
      REQUIRE(got == pattern(got.size(), s));
      REQUIRE(e.sent[s]->ended == errc::none);
    }
  }
}

namespace {
struct out_of_memory final : link_over {
  explicit out_of_memory(runtime::link& below) : link_over(below) {}
  errc send(rank_id, channel, std::span<const std::byte>, std::span<const std::byte>, runtime::completion*) override {
    ++refused;
    return errc::unavailable;
  }
  int refused = 0;
};
}  // namespace

TEST_CASE("a poison that the transport refuses is sent later and ends the receive that the next stamp has matched") {
  edge_pair e;
  runtime::scope tasks(e.clock);
  std::array<watched_receive, 2> in;
  for (watched_receive& r : in) {
    r.buffer.resize(100);
    tasks.spawn(receive_whole(e.in, 0, r, e.clock.deadline_in(5'000'000)));
  }
  e.clock.turn();
  out_of_memory net(e.links[0]);
  const auto data = pattern(100, 1);
  {
    const outgoing inv = e.out.begin(0, 100, e.out.try_admit(0, 100));
    part_sender out(net, 1, inv.mark);
    out.start(0, data);
    CHECK(net.refused == 2);  // the part and its poison
    e.out.end(inv, out);
  }
  watched_send later;
  tasks.spawn(send_whole(e, 0, data, later));
  e.pass(1'000'000'000);
  CHECK(later.ended == errc::none);
  CHECK(in[1].ended == errc::none);
  REQUIRE(in[0].ended.has_value());
  CHECK(*in[0].ended == errc::config_failed);  // the error that the poison carries
}
