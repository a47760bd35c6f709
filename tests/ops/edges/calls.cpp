#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <list>
#include <tuple>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

struct seen_call {
  result<> outcome = errc::pending;
  std::uint64_t bytes = 0;
};

task<> keep(transfer t, std::span<const std::byte> data, send_options o, seen_call& into) {
  auto sent = co_await attempt(t.send(data, o));
  into.outcome = std::move(sent);
}
task<> keep(transfer t, std::span<std::byte> data, receive_options o, seen_call& into) {
  auto got = co_await attempt(t.receive(data, o));
  into.bytes = got ? *got : 0;
  into.outcome = got ? result<>{} : result<>{got.reason()};
}
// Awaits the call directly in a user's coroutine, instead of passing the call on as a task.
task<> keep_awaited(transfer t, std::span<std::byte> data, seen_call& into) {
  into.bytes = co_await t.receive(data, {.from = 0});
  into.outcome = {};
}

/// Two ranks whose only config moves payloads whole, so that every call runs in place.
struct direct_pair : world {
  explicit direct_pair(memory_link_options o = {}) : world(2, {}, std::move(o)) {
    out = transfer(*ranks[0], pair_of({direct()}));
    in = transfer(*ranks[1], pair_of({direct()}));
    calls.emplace(clock);
  }
  ~direct_pair() { calls.reset(); }

  seen_call& send(std::size_t size, send_options o = {.to = 1}) {
    buffers.push_back(pattern(size, buffers.size()));
    auto& kept = all.emplace_back();
    calls->spawn(keep(out, buffers.back(), o, kept));
    clock.turn();
    return kept;
  }
  seen_call& receive(std::size_t size, receive_options o = {.from = 0}) {
    buffers.emplace_back(size, std::byte{0xEE});
    auto& kept = all.emplace_back();
    calls->spawn(keep(in, buffers.back(), o, kept));
    clock.turn();
    return kept;
  }
  /// Sends rank 1 a part that is stamped as the sender on rank 0 would stamp it.
  void inject(std::uint32_t invocation, std::uint64_t total, std::span<const std::byte> part,
              actors::stamp_flags flags = actors::stamp_flags::none) {
    const auto op = actors::declare_edge("activations", 0, 1, "");
    actors::stamp s;
    s.op = op.id();
    s.generation = actors::first_generation(op, incarnations);
    s.digest = direct()->digest();
    s.total_bytes = total;
    s.invocation = invocation;
    s.flags = flags;
    static_cast<void>(links[0].send(1, runtime::link::channel::data, actors::bytes_of(s), part, nullptr));
  }

  transfer out, in;
  std::list<std::vector<std::byte>> buffers;
  std::list<seen_call> all;
  std::optional<scope> calls;
};

}  // namespace

TEST_CASE("a receive gets a message that was sent before the receive was posted") {
  direct_pair w;
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, std::size_t{100'000}}) {
    auto& sent = w.send(size);
    pass(w, 1'000'000);
    auto& got = w.receive(size + 1);
    pass(w, 1'000'000);
    CHECK(sent.outcome);
    CHECK(got.outcome);
    CHECK(got.bytes == size);
    w.buffers.back().pop_back();
    CHECK(w.buffers.back() == pattern(size, w.buffers.size() - 2));
  }
}

TEST_CASE("sends and receives on one tag are matched in call order, whatever their sizes") {
  direct_pair w;
  std::vector<seen_call*> got;
  for (std::size_t i = 0; i < 10; ++i) w.send(i % 3 == 0 ? 100'000 + i : i);
  for (std::size_t i = 0; i < 10; ++i) got.push_back(&w.receive(200'000));
  pass(w, 10'000'000);
  auto sent = w.buffers.begin();
  for (std::size_t i = 0; i < 10; ++i, ++sent) {
    CHECK(got[i]->outcome);
    CHECK(got[i]->bytes == sent->size());
  }
}

TEST_CASE("a call can be used like a task: in when_all, in when_any, in a scope and under a deadline") {
  direct_pair w;
  const auto all = [](direct_pair& p, std::vector<std::byte>& data, std::vector<std::byte>& into) -> task<> {
    auto [sent, got] = co_await when_all(p.out.send(data, {.to = 1}), p.in.receive(into, {.from = 0}));
    static_cast<void>(sent);
    CHECK(got == data.size());
    scope here(p.clock);
    here.spawn(p.out.send(data, {.to = 1}));
    auto late = co_await with_deadline(p.clock.deadline_in(1'000'000), p.in.receive(into, {.from = 0}));
    CHECK(late);
    co_await here.join();
    auto first =
        co_await when_any(p.in.receive(into, {.from = 0}), p.in.receive(into, {.from = 0, .tag = 3, .timeout = 1us}));
    static_cast<void>(first);
  };
  auto data = pattern(300, 1);
  std::vector<std::byte> into(300);
  const auto run_all = [&] { run(w.clock, all(w, data, into)); };
  CHECK_THROWS_WITH_AS(run_all(), doctest::Contains("timeout"), failure);  // of when_any: tag 3 ended first
  CHECK(into == data);
}

TEST_CASE("a waiting receive that is cancelled ends at once and the next receive gets its message") {
  direct_pair w;
  seen_call first;
  std::vector<std::byte> buffer(100);
  {
    scope mine(w.clock);
    mine.spawn(keep(w.in, std::span<std::byte>(buffer), {.from = 0}, first));
    w.clock.turn();
    mine.cancel();
    w.clock.turn();
    w.clock.turn();
    CHECK(first.outcome.code() == errc::cancelled);
  }
  auto& second = w.receive(100);
  w.send(60);
  pass(w, 1'000'000);
  CHECK(second.outcome);
  CHECK(second.bytes == 60);
}

TEST_CASE("a call in a cancelled scope does not wait") {
  direct_pair w;
  seen_call seen;
  std::vector<std::byte> buffer(100);
  scope mine(w.clock);
  mine.cancel();
  mine.spawn(keep(w.in, std::span<std::byte>(buffer), {.from = 0}, seen));
  w.clock.turn();
  w.clock.turn();
  CHECK(seen.outcome.code() == errc::cancelled);
}

TEST_CASE("a cancelled receive whose payload is in flight ends only when the transport releases its buffer") {
  direct_pair w;
  seen_call seen;
  std::vector<std::byte> buffer(1 << 20);
  scope mine(w.clock);
  mine.spawn(keep(w.in, std::span<std::byte>(buffer), {.from = 0}, seen));
  auto& sent = w.send(1 << 20);
  pass(w, 20'000);  // the stamp has arrived, the payload has not
  mine.cancel();
  pass(w, 10'000);
  CHECK(seen.outcome.code() == errc::pending);
  pass(w, 1'000'000);
  CHECK(seen.outcome.code() == errc::cancelled);
  CHECK(sent.outcome);
}

TEST_CASE("each receive ends at its own deadline, in whatever order the receives were posted") {
  direct_pair w;
  auto& late = w.receive(8, {.from = 0, .timeout = 50ms});
  auto& early = w.receive(8, {.from = 0, .timeout = 10ms});
  auto& patient = w.receive(8, {.from = 0});
  pass(w, 20'000'000);
  CHECK(early.outcome.code() == errc::timeout);
  CHECK(late.outcome.code() == errc::pending);
  pass(w, 40'000'000);
  CHECK(late.outcome.code() == errc::timeout);
  CHECK(patient.outcome.code() == errc::pending);
  w.send(8);
  pass(w, 1'000'000);
  CHECK(patient.outcome);
}

TEST_CASE("a send without a receive times out at its deadline, and a later receive gets send_failed") {
  direct_pair w;
  auto& sent = w.send(1 << 20, {.to = 1, .timeout = 5ms});
  pass(w, 4'000'000);
  CHECK(sent.outcome.code() == errc::pending);
  pass(w, 2'000'000);
  CHECK(sent.outcome.code() == errc::timeout);
  auto& got = w.receive(1 << 20);
  pass(w, 1'000'000);
  CHECK(got.outcome.code() == errc::send_failed);
}

TEST_CASE("sends beyond the window of 64 wait for room, and arrive in order") {
  direct_pair w;
  std::vector<seen_call*> sent;
  for (std::size_t i = 0; i < 70; ++i) sent.push_back(&w.send(i + 1));
  pass(w, 1'000'000);
  CHECK(sent[63]->outcome);
  CHECK(sent[64]->outcome.code() == errc::pending);
  for (std::size_t i = 0; i < 70; ++i) {
    auto& got = w.receive(100);
    pass(w, 3'000'000);
    CHECK(got.bytes == i + 1);
  }
  CHECK(sent[69]->outcome);
}

TEST_CASE("a duplicate part is dropped, and poison or a short part or a too small buffer fails the receive with its "
          "own error") {
  direct_pair w;
  const auto part = pattern(40, 5);
  auto& first = w.receive(40);
  auto& second = w.receive(40);
  w.inject(0, 40, part);
  w.inject(0, 40, part);  // dropped: invocation 0 has ended
  pass(w, 1'000'000);
  CHECK(first.bytes == 40);
  CHECK(second.outcome.code() == errc::pending);
  w.inject(1, 40, {}, actors::stamp_flags::poison);
  pass(w, 1'000'000);
  CHECK(second.outcome.code() == errc::send_failed);
  auto& small = w.receive(39);
  w.inject(2, 40, part);
  pass(w, 1'000'000);
  CHECK(small.outcome.code() == errc::buffer_too_small);
  CHECK(w.buffers.back() == std::vector<std::byte>(39, std::byte{0xEE}));
  auto& cut = w.receive(40);
  w.inject(3, 40, std::span(part).first(20));  // a part, where the receiver expects the whole payload
  pass(w, 1'000'000);
  CHECK(cut.outcome.code() == errc::config_failed);
  auto& fine = w.receive(40);
  w.inject(4, 40, part);
  pass(w, 1'000'000);
  CHECK(fine.bytes == 40);
}

TEST_CASE("a receive awaited directly in the user's coroutine fails when its peer dies") {
  direct_pair w;
  seen_call seen;
  std::vector<std::byte> buffer(8);
  scope mine(w.clock);
  mine.spawn(keep_awaited(w.in, buffer, seen));
  w.clock.turn();
  w[1].on_lost(0, "killed by signal 9");
  const auto joined = [](scope& s) -> task<> { co_await s.join(); };
  CHECK_THROWS_WITH_AS(run(w.clock, joined(mine)), doctest::Contains("rank 0 is gone: killed by signal 9"), failure);
  CHECK(seen.outcome.code() == errc::pending);
}
