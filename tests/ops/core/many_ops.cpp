#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <numeric>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

transfer_options numbered_op(std::size_t n) {
  auto op = pair_of({direct(), chunked(16_KiB, 2)});
  op.name = "op" + std::to_string(n);
  return op;
}

// A rank sets up the first 16 edges when they are declared. These fillers use up those 16.
void declare_fillers(world& w) {
  for (std::size_t n = 0; n < 16; ++n) {
    auto op = numbered_op(n);
    op.name = "filler" + std::to_string(n);
    static_cast<void>(transfer(w[0], op));
    static_cast<void>(transfer(w[1], op));
  }
  pass(w, 5'000'000'000);
}

std::uint64_t frames_sent(world& w) {
  return std::accumulate(w.ranks.begin(), w.ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const auto& r) { return sum + r->mail().statistics().sent; });
}

}  // namespace

TEST_CASE("unused ops send nothing, agree on nothing and end quietly") {
  world w(2);
  declare_fillers(w);
  const auto before = frames_sent(w);
  for (std::size_t n = 0; n < 1'000; ++n) {
    static_cast<void>(transfer(w[0], numbered_op(n)));
    static_cast<void>(transfer(w[1], numbered_op(n)));
  }
  pass(w, 5'000'000'000);
  CHECK(frames_sent(w) == before);
  CHECK(w[0].agreements().size() == 16);
  CHECK(w[0].results().entries().empty());
  run(w.clock, w[0].settle(1s));
  w[0].on_lost(1, "killed by signal 9");
  CHECK(frames_sent(w) == before);
}

TEST_CASE("the first data of an op sets it up at its receiver, and the op's second size is tuned like any other") {
  rank_settings settings;
  settings.plan.budget_fraction = 1e9;
  world w(2, settings);
  declare_fillers(w);
  const auto before = frames_sent(w);
  transfer out(w[0], numbered_op(1));
  transfer in(w[1], numbered_op(1));
  std::vector<std::byte> data(100);
  result<> sent = errc::pending;
  const auto send = [](transfer t, std::span<const std::byte> d, result<>& into) -> task<> {
    auto outcome = co_await attempt(t.send(d, {.to = 1}));
    into = std::move(outcome);
  };
  scope calls(w.clock);
  calls.spawn(send(out, data, sent));
  pass(w, 1'000'000'000);
  CHECK(sent);
  CHECK(frames_sent(w) != before);  // the receiver makes its offer although it has not called yet
  const auto all = move_each(w, out, in, {});
  CHECK(all.failed() == 0);
  std::vector<std::byte> into(100);
  const auto receive = [](transfer t, std::span<std::byte> i) -> task<> { co_await t.receive(i, {.from = 0}); };
  run(w.clock, receive(in, into));
  CHECK(move_each(w, out, in, std::vector<std::size_t>(100, 100'000)).failed() == 0);
  CHECK(search_of(w, "128KiB")->where() == actors::search::stage::decided);
  CHECK(join_flights(w).mismatches == 0);
}

TEST_CASE("a waiting receiver sets up the op at its sender, which has not called yet") {
  world w(2);
  declare_fillers(w);
  transfer out(w[0], numbered_op(1));
  transfer in(w[1], numbered_op(1));
  std::vector<std::byte> into(100);
  const auto receive = [](transfer t, std::span<std::byte> i) -> task<> { co_await t.receive(i, {.from = 0}); };
  scope calls(w.clock);
  calls.spawn(receive(in, into));
  pass(w, 1'000'000'000);
  REQUIRE(w[0].agreements().size() == 17);
  CHECK(w[0].agreements().back().assigned->opened());
  const std::vector<std::byte> data(100, std::byte{7});
  const auto send = [](transfer t, std::span<const std::byte> d) -> task<> { co_await t.send(d, {.to = 1}); };
  run(w.clock, send(out, data));
  pass(w, 1'000'000);
  CHECK(into == data);
}

TEST_CASE("an op that is first used after its peer was lost fails at once, and declaring an op twice is an error") {
  world w(2);
  transfer out(w[0], numbered_op(1));
  CHECK_THROWS_WITH_AS(transfer(w[0], numbered_op(1)), doctest::Contains("declared twice"), failure);
  w[0].on_lost(1, "killed by signal 9");
  const std::vector<std::byte> data(8);
  const auto send = [](transfer t, std::span<const std::byte> d) -> task<> { co_await t.send(d, {.to = 1}); };
  CHECK_THROWS_WITH_AS(run(w.clock, send(out, data)), doctest::Contains("rank 1 is gone"), failure);
}

TEST_CASE("a thousand ops all work, used one after the other") {
  world w(2);
  std::vector<transfer> outs;
  std::vector<transfer> ins;
  for (std::size_t n = 0; n < 1'000; ++n) {
    outs.emplace_back(w[0], numbered_op(n));
    ins.emplace_back(w[1], numbered_op(n));
  }
  for (std::size_t n = 0; n < 1'000; ++n) {
    const auto all = move_each(w, outs[n], ins[n], {n, n + 1});
    REQUIRE(all.failed() == 0);
    REQUIRE(all.wrong == 0);
  }
  CHECK(w[0].agreements().size() == 1'000);
  CHECK(join_flights(w).mismatches == 0);
}
