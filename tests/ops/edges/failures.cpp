#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

task<> keep_send(transfer t, std::span<const std::byte> data, send_options o, result<>& into) {
  auto outcome = co_await attempt(t.send(data, o));
  into = std::move(outcome);
}
task<> keep_receive(transfer t, std::span<std::byte> data, receive_options o, result<>& into) {
  auto outcome = co_await attempt(t.receive(data, o));
  into = outcome ? result<>{} : result<>{outcome.reason()};
}

struct pair_world : world {
  explicit pair_world(rank_settings s = {}) : world(2, std::move(s)) {
    const std::vector configs{direct(), chunked(16_KiB, 2)};
    out = transfer(*ranks[0], pair_of(configs));
    in = transfer(*ranks[1], pair_of(configs));
    calls.emplace(clock);
  }
  ~pair_world() { calls.reset(); }
  result<>& send(std::size_t size, send_options o = {.to = 1}) {
    data.push_back(pattern(size, data.size()));
    auto& r = outcomes.emplace_back(std::make_unique<result<>>(errc::pending));
    calls->spawn(keep_send(out, data.back(), o, *r));
    clock.turn();
    return *r;
  }
  result<>& receive(std::size_t size, receive_options o = {.from = 0}) {
    data.emplace_back(size, std::byte{0xEE});
    auto& r = outcomes.emplace_back(std::make_unique<result<>>(errc::pending));
    calls->spawn(keep_receive(in, data.back(), o, *r));
    clock.turn();
    return *r;
  }
  std::list<std::vector<std::byte>> data;
  std::vector<std::unique_ptr<result<>>> outcomes;
  transfer out, in;
  std::optional<scope> calls;
};

}  // namespace

TEST_CASE("after a peer is lost every pending and later receive gets peer_failed, with op, rank and invocation") {
  pair_world w;
  auto& done = w.receive(100);
  w.send(100);
  pass(w, 1'000'000);
  CHECK(done);
  auto& begun = w.receive(1 << 20);
  w.send(1 << 20);
  pass(w, 20'000);  // the stamp has arrived, the payload is on its way
  auto& pending = w.receive(100);
  auto& pending_too = w.receive(100, {.from = 0, .tag = 4});
  w[1].on_lost(0, "killed by signal 9");
  pass(w, 1'000'000);
  CHECK(is(begun, {.code = errc::peer_failed,
                   .op = "activations 0->1",
                   .rank = 1,
                   .invocation = 1,
                   .begun = true,
                   .peer = 0,
                   .tag = 0,
                   .culprit = 0}));
  auto& later = w.receive(64, {.from = 0, .tag = 7});
  pass(w, 1'000'000);
  // The errors name the calls: invocation 2 is the first of tag 0 that had not begun.
  CHECK(is(pending, {.invocation = 2, .begun = false, .tag = 0, .own_bytes = 100}));
  CHECK(is(pending_too, {.invocation = 0, .begun = false, .tag = 4, .own_bytes = 100}));
  CHECK(is(later, {.invocation = 0, .begun = false, .tag = 7, .own_bytes = 64}));
  for (auto* r : {&pending, &pending_too, &later}) {
    pass(w, 1'000'000);
    CHECK(is(*r, {.code = errc::peer_failed,
                  .op = "activations 0->1",
                  .rank = 1,
                  .peer = 0,
                  .unmet = awaited::message,
                  .culprit = 0,
                  .quotes = "killed by signal 9"}));
  }
}

TEST_CASE("a receive whose sender dies before its payload is fetched reports 0 received bytes") {
  for (const config_ptr& config : {direct(), chunked(512_KiB, 2)}) {
    CAPTURE(config->id());
    world w(2);
    const std::vector<config_ptr> configs{config};
    transfer out(w[0], pair_of(configs));
    transfer in(w[1], pair_of(configs));
    const auto sent = pattern(1 << 20, 1);
    std::vector<std::byte> came(sent.size());
    result<> of_send(errc::pending);
    result<> of_receive(errc::pending);
    scope calls(w.clock);
    calls.spawn(keep_receive(in, came, {.from = 0}, of_receive));
    calls.spawn(keep_send(out, sent, {.to = 1}, of_send));
    pass(w, 20'000);  // the stamp has arrived, the payload is on its way
    w.links.end_process(0);
    pass(w, 1'000'000);
    CHECK(is(of_receive, {.code = errc::peer_failed, .peer = 0, .done_bytes = 0, .whole_bytes = 1 << 20}));
  }
}

TEST_CASE("a receive error that quotes the peer's error about the same invocation names that invocation once") {
  pair_world w;
  auto& begun = w.receive(1 << 20);
  w.send(1 << 20);
  pass(w, 20'000);
  w[1].on_lost(0, "it ended with an error: peer_failed: activations 0->1; invocation 0 was in flight",
               departure::failed);
  pass(w, 1'000'000);
  REQUIRE_FALSE(begun);
  const std::string text = begun.reason().text();
  const std::string words = "invocation 0 was in flight";
  CHECK(text.find(words) != std::string::npos);
  CHECK_MESSAGE(text.find(words) == text.rfind(words), text);
}

TEST_CASE(
    "when a failure spreads along a chain of ranks the last error names its peer and the culprit, and no other rank") {
  constexpr rank_id n = 8;
  world w(n);
  const auto op = [](rank_id from) {
    transfer_options pair;
    pair.name = "from_" + std::to_string(from);
    pair.edges = {{from, from + 1}};
    return pair;
  };
  std::vector<std::vector<std::byte>> buffers(n, std::vector<std::byte>(100));
  std::vector<result<>> ended(n, result<>(errc::pending));
  scope calls(w.clock);
  for (rank_id from = 0; from + 1 < n; ++from) {
    transfer out(w[from], op(from));
    static_cast<void>(out);
    transfer in(w[from + 1], op(from));
    const auto take = [](transfer t, std::span<std::byte> into, rank_id peer, result<>* outcome) -> task<> {
      auto got = co_await attempt(t.receive(into, {.from = peer}));
      *outcome = got ? result<>() : result<>(got.reason());
    };
    calls.spawn(take(in, buffers[from + 1], from, &ended[from + 1]));
  }
  pass(w, 1'000'000);
  w[1].on_lost(0, "it was killed");
  for (rank_id r = 1; r + 1 < n; ++r) {
    pass(w, 1'000'000);
    REQUIRE(ended[r].code() == errc::peer_failed);
    w[r + 1].on_ended(r, w[r].cause_of(ended[r].reason()));
  }
  pass(w, 1'000'000);
  const std::string last = ended[n - 1].reason().what();
  CAPTURE(last);
  CHECK(is(ended[n - 1], {.peer = n - 2, .culprit = 0, .quotes = "it was killed"}));
  for (const char* between : {"rank 1 ", "rank 3 ", "rank 5 "}) CHECK(last.find(between) == std::string::npos);
}

TEST_CASE("when a peer vanishes after another rank has died the error names the dead rank as the culprit") {
  world w(3);
  auto op = pair_of({direct()});
  op.edges = {{1, 0}};
  transfer in(w[0], op);
  transfer out(w[1], op);
  static_cast<void>(out);
  std::vector<std::byte> buffer(100);
  result<> outcome = errc::pending;
  scope calls(w.clock);
  const auto take = [](transfer t, std::span<std::byte> into, result<>* ended) -> task<> {
    auto got = co_await attempt(t.receive(into, {.from = 1}));
    *ended = got ? result<>() : result<>(got.reason());
  };
  calls.spawn(take(in, buffer, &outcome));
  pass(w, 1'000'000);
  w[0].on_lost(2, "it was killed");  // rank 2 has no part in this op
  CHECK(outcome.code() == errc::pending);
  w[0].on_lost(1, "its connection broke", departure::vanished);
  pass(w, 1'000'000);
  for (const char* ended : {"its connection broke", "it was killed"})
    CHECK(is(outcome, {.code = errc::peer_failed, .peer = 1, .culprit = 2, .quotes = ended}));
}

TEST_CASE("sends that have not begun when a peer is lost get peer_failed and a later send names its invocation") {
  pair_world w;
  w.receive(100);
  w.send(100);
  pass(w, 1'000'000);
  auto& in_flight = w.send(1 << 20);
  std::vector<result<>*> behind;
  for (int i = 0; i < 5; ++i) behind.push_back(&w.send(1 << 20));
  pass(w, 1'000'000);
  w[0].on_lost(1, "its connection broke");
  pass(w, 1'000'000);
  // The sends that waited for room end at once. The send that the transport holds ends when the transport releases its buffer.
  CHECK(
      is(*behind.back(), {.code = errc::peer_failed, .begun = false, .peer = 1, .whole_bytes = 1 << 20, .culprit = 1}));
  static_cast<void>(in_flight);
  auto& later = w.send(8);
  pass(w, 1'000'000);
  CHECK(is(later,
           {.code = errc::peer_failed, .invocation = 5, .begun = false, .tag = 0, .whole_bytes = 8, .culprit = 1}));
}

TEST_CASE("an op that is declared after its peer was lost fails at once") {
  world w(2);
  w[0].on_lost(1, "killed by signal 9");
  transfer out(w[0], pair_of({direct()}));
  const std::vector<std::byte> data(8);
  result<> outcome;
  run(w.clock, keep_send(out, data, {.to = 1}, outcome));
  CHECK(outcome.code() == errc::peer_failed);
}

TEST_CASE("losing a rank that has no part in an op changes nothing") {
  world w(3);
  transfer out(w[0], pair_of({direct()}));
  transfer in(w[1], pair_of({direct()}));
  for (rank_id r = 0; r < 2; ++r) w[r].on_lost(2, "killed by signal 9");
  const auto all = move_each(w, out, in, {10, 100'000});
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
}

TEST_CASE("a receive without a send times out, and names the awaited rank and the invocation it would have got") {
  pair_world w;
  w.receive(100);
  w.send(100);
  pass(w, 1'000'000);
  auto& first = w.receive(100, {.from = 0, .timeout = 5ms});
  auto& second = w.receive(64, {.from = 0, .timeout = 1ms});
  auto& other = w.receive(64, {.from = 0, .tag = 4, .timeout = 1ms});
  pass(w, 2'000'000);
  CHECK(is(second, {.invocation = 2, .begun = false, .tag = 0, .own_bytes = 64}));
  CHECK(is(other, {.invocation = 0, .begun = false, .tag = 4, .own_bytes = 64}));
  pass(w, 4'000'000);
  CHECK(is(first, {.invocation = 1, .begun = false, .tag = 0, .own_bytes = 100}));
  for (auto* r : {&first, &second, &other})
    CHECK(is(*r, {.code = errc::timeout,
                  .op = "activations 0->1",
                  .rank = 1,
                  .role = "receiver",
                  .peer = 0,
                  .unmet = awaited::message}));
}

TEST_CASE("a send beyond the window times out, and names the peer that has no room") {
  pair_world w;
  for (int i = 0; i < 64; ++i) w.send(8);
  auto& r = w.send(8, {.to = 1, .timeout = 50ms});
  pass(w, 100'000'000);
  CHECK(is(r, {.code = errc::timeout,
               .op = "activations 0->1",
               .rank = 0,
               .role = "sender",
               .begun = false,
               .peer = 1,
               .unmet = awaited::room}));
}

TEST_CASE("a large send without a receive times out, and the next sends and receives still match") {
  pair_world w;
  auto& r = w.send(1 << 20, {.to = 1, .timeout = 50ms});
  pass(w, 200'000'000);
  CHECK(is(r, {.code = errc::timeout, .invocation = 0, .begun = true, .unmet = awaited::receive}));
  auto& first = w.receive(1 << 20);
  auto& second = w.receive(1 << 20);
  auto& again = w.send(1 << 20);
  pass(w, 200'000'000);
  CHECK(first.code() == errc::send_failed);
  CHECK(again);
  CHECK(second);
}

TEST_CASE("a receive into too small a buffer names both sizes and writes nothing, and the next receive succeeds") {
  pair_world w;
  for (const std::size_t size : {std::size_t{100}, std::size_t{1} << 20U}) {
    auto& small = w.receive(size - 1);
    const auto& untouched = w.data.back();
    w.send(size);
    pass(w, 10'000'000);
    CHECK(is(small, {.code = errc::buffer_too_small, .whole_bytes = size, .own_bytes = size - 1}));
    CHECK(std::all_of(untouched.begin(), untouched.end(), [](std::byte b) { return b == std::byte{0xEE}; }));
    auto& fine = w.receive(size);
    w.send(size);
    pass(w, 10'000'000);
    CHECK(fine);
  }
}

TEST_CASE("a cancelled receive leaves its message to the next receive") {
  pair_world w;
  std::vector<std::byte> never_used(100);
  result<> given_up;
  {
    scope inner(w.clock);
    inner.spawn(keep_receive(w.in, never_used, {.from = 0}, given_up));
    w.clock.turn();
    inner.cancel();
    pass(w, 1'000'000);
  }
  CHECK(given_up.code() == errc::cancelled);
  auto& next = w.receive(100);
  const auto& buffer = w.data.back();
  w.send(100);
  pass(w, 1'000'000);
  CHECK(next);
  CHECK(buffer == w.data.back());  // what was sent
}

TEST_CASE("a cancelled send in flight releases its buffer before it ends, and its receive gets send_failed") {
  pair_world w;
  auto payload = std::make_unique<std::vector<std::byte>>(pattern(1 << 20, 1));
  result<> given_up(errc::pending);
  scope inner(w.clock);
  inner.spawn(keep_send(w.out, *payload, {.to = 1}, given_up));
  pass(w, 1'000'000);
  CHECK(given_up.code() == errc::pending);
  inner.cancel();
  pass(w, 10'000'000);
  CHECK(given_up.code() == errc::cancelled);
  payload.reset();  // no send reads the buffer any more
  auto& r = w.receive(1 << 20);
  pass(w, 10'000'000);
  CHECK(r.code() == errc::send_failed);
}

TEST_CASE("each rank's flight recorder holds its end of the last invocations once the recorder is full") {
  rank_settings s;
  s.policy = actors::tuning_policy::off;
  s.flight_records = 16;
  pair_world w(s);
  for (std::size_t i = 0; i < 40; ++i) {
    w.receive(8);
    w.send(8);
    pass(w, 1'000'000);
  }
  for (rank_id r = 0; r < 2; ++r) {
    const auto records = w[r].flight().in_order();
    REQUIRE(records.size() == 16);
    CHECK(w[r].flight().total() >= 40);
    for (std::size_t i = 0; i < 16; ++i) {
      CHECK(records[i].invocation == 24 + i);
      CHECK(records[i].bytes == 8);
      CHECK(records[i].digest == direct()->digest());
      CHECK(records[i].what == (r == 0 ? flight_event::sent : flight_event::received));
    }
  }
}
