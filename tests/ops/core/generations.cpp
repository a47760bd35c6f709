// A rank restarts as a new process: calls in progress end, and its pairs continue in a new generation.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/declaration.hpp>
#include <parley/actors/generations.hpp>
#include <parley/config.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::tests;
using runtime::errc;

namespace {

std::vector<ops::config_ptr> some_configs() {
  return {configs::direct(), configs::chunked(64 << 10, 2), configs::put()};
}

runtime::task<> receive_one(ops::transfer t, std::vector<std::byte>& into, std::optional<runtime::result<>>& outcome) {
  auto got = co_await ops::attempt(t.receive(into, {.from = 0}));
  if (got) {
    outcome.emplace();
  } else {
    outcome.emplace(got.reason());
  }
}
runtime::task<> send_one(ops::transfer t, std::vector<std::byte> data, std::optional<runtime::result<>>& outcome) {
  auto sent = co_await ops::attempt(t.send(data, {.to = 1}));
  outcome.emplace(std::move(sent));
}
runtime::task<> rest(world& w, time_ns span, bool& over) {
  auto woken = co_await runtime::sleep_until(w.clock.deadline_in(span));
  static_cast<void>(woken);
  over = true;
}
void let_pass(world& w, time_ns span) {
  bool over = false;
  runtime::scope s(w.clock);
  s.spawn(rest(w, span, over));
  runtime::run_until(w.clock, [&] { return over; });
}
template <class Outcome>
void wait_for(world& w, const std::optional<Outcome>& outcome) {
  runtime::run_until(w.clock, [&] { return outcome.has_value(); });
}
ops::transfer pair_on(world& w, rank_id r) { return transfer(w[r], pair_of(some_configs())); }

runtime::task<> tune_both(ops::transfer out, ops::transfer in) {
  const std::vector<std::size_t> sizes(1, 5'000);
  auto done = co_await runtime::when_all(out.tune(sizes), in.tune(sizes));
  static_cast<void>(done);
}

void agree(world& w, const ops::transfer& out, const ops::transfer& in) {
  runtime::run(w.clock, tune_both(out, in));
  REQUIRE(out.decision(5'000).decided);
  const auto all = move_each(w, out, in, {5'000, 100, 5'000, 0, 300'000});
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  let_pass(w, 1'000'000'000);
  CHECK(in.decision(5'000).digest == out.decision(5'000).digest);
}

}  // namespace

TEST_CASE("a pair whose receiver has restarted continues and agrees again") {
  world w(2);
  auto out = pair_on(w, 0);
  agree(w, out, pair_on(w, 1));
  w.restart(1);
  w.tell_of(1);
  CHECK(!out.decision(5'000).decided);  // the earlier decision belonged to the ended generation
  agree(w, out, pair_on(w, 1));
}

TEST_CASE("a pair whose sender has restarted continues and agrees again") {
  world w(2);
  auto in = pair_on(w, 1);
  agree(w, pair_on(w, 0), in);
  w.restart(0);
  w.tell_of(0);
  agree(w, pair_on(w, 0), in);
}

TEST_CASE("a receive in flight when its sender restarts ends with peer_restarted, which names the sender") {
  world w(2);
  auto in = pair_on(w, 1);
  agree(w, pair_on(w, 0), in);
  std::vector<std::byte> buffer(100);
  std::optional<runtime::result<>> outcome;
  runtime::scope s(w.clock);
  s.spawn(receive_one(in, buffer, outcome));
  let_pass(w, 1'000'000);
  w.restart(0);
  w.tell_of(0);
  wait_for(w, outcome);
  CHECK(is(*outcome, {.code = errc::peer_restarted, .op = "activations 0->1", .rank = 1, .peer = 0, .culprit = 0}));
}

TEST_CASE("a message of a new process that its peer does not know yet is not lost, and does not fill an old receive") {
  world w(2);
  auto in = pair_on(w, 1);
  agree(w, pair_on(w, 0), in);
  std::vector<std::byte> first(100);
  std::optional<runtime::result<>> old_receive;
  runtime::scope s(w.clock);
  s.spawn(receive_one(in, first, old_receive));
  let_pass(w, 1'000'000);

  w.restart(0);
  auto out = pair_on(w, 0);
  std::optional<runtime::result<>> sent;
  s.spawn(send_one(out, pattern(100, 9), sent));
  let_pass(w, 10'000'000);
  CHECK(!old_receive);
  CHECK(first == std::vector<std::byte>(100));

  w.tell_of(0);
  wait_for(w, old_receive);
  CHECK(old_receive->code() == errc::peer_restarted);
  std::vector<std::byte> second(100);
  std::optional<runtime::result<>> new_receive;
  s.spawn(receive_one(in, second, new_receive));
  wait_for(w, new_receive);
  CHECK(*new_receive);
  CHECK(second == pattern(100, 9));
}

TEST_CASE("late data of an ended generation is dropped, and its sender gets one message about it") {
  world w(2);
  auto in = pair_on(w, 1);
  agree(w, pair_on(w, 0), in);
  auto op = actors::declare_edge("activations", 0, 1, "");
  actors::stamp late;
  late.op = op.id();
  late.generation = actors::first_generation(op, w.incarnations);
  late.digest = configs::direct()->digest();
  late.total_bytes = 8;
  w.restart(0);
  w.tell_of(0);
  auto out = pair_on(w, 0);
  constexpr std::size_t word = actors::gen_end::message_type;
  CHECK(w[1].mail().sent_by_type()[word] == 0);
  const auto part = pattern(8, 1);
  for (int i = 0; i < 10; ++i)
    static_cast<void>(w.links[0].send(1, runtime::link::channel::data, actors::bytes_of(late), part, nullptr));
  let_pass(w, 1'000'000);
  CHECK(w[1].mail().sent_by_type()[word] == 1);  // one message, not one for each late arrival
  agree(w, out, in);
}

TEST_CASE("decisions of an ended generation are written, unless the next generation has decided otherwise") {
  ops::rank_settings s;
  s.results_path = "results.csv";
  for (const rank_id returns : {0U, 1U}) {
    CAPTURE(returns);
    world w(2, s);
    const rank_id stays = 1 - returns;
    auto out = pair_on(w, 0);
    auto in = pair_on(w, 1);
    agree(w, out, in);
    const std::string decided = in.decision(5'000).config;
    w.restart(returns);
    w.tell_of(returns);
    const auto entries = w[stays].learned();
    REQUIRE(entries.size() == 1);
    CHECK(entries[0].solution == decided);
    REQUIRE(w[stays].write_results());
    CHECK(w.disk[stays].files.at("results" + std::to_string(stays) + ".csv").find(decided) != std::string::npos);
    (returns == 0 ? out : in) = pair_on(w, returns);
    agree(w, out, in);
    CHECK(w[stays].learned().size() == 1);
    CHECK(w[stays].learned()[0].solution == in.decision(5'000).config);
  }
}

TEST_CASE("a rank that restarts 32 times exchanges data with its peer each time") {
  world w(2);
  auto in = pair_on(w, 1);
  for (int n = 0; n < 32; ++n) {
    auto out = pair_on(w, 0);
    const auto all = move_each(w, out, in, {100, 20'000, 300'000});
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    w.restart(0);
    w.tell_of(0);
  }
}

TEST_CASE("a rank refuses the news that it has restarted itself, or that a rank outside the world has") {
  world w(2);
  CHECK_THROWS_AS(w[0].on_restarted(0, 7), runtime::failure);
  CHECK_THROWS_AS(w[0].on_restarted(2, 7), runtime::failure);
}
