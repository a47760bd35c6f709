#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/core/op_results.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

transfer_options with_role(std::function<role(rank_id)> who) {
  transfer_options op;
  op.name = "activations";
  op.role = std::move(who);
  return op;
}

/// Checks the code and one quote; wording.cpp checks whole sentences.
void check_wrong(const transfer_options& op, rank_id world_size, errc code, const std::string& quotes = "activations") {
  CHECK(is(pair_up(op, world_size), {.code = code, .quotes = quotes}));
}

}  // namespace

TEST_CASE("senders and receivers are paired in the order of their ranks") {
  const auto even_sends = with_role([](rank_id r) { return r % 2 == 0 ? role::sender : role::receiver; });
  using edges = std::vector<std::pair<rank_id, rank_id>>;
  CHECK(pair_up(even_sends, 4).value() == edges{{0, 1}, {2, 3}});
  CHECK(pair_up(even_sends, 8).value() == edges{{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  const auto spread = with_role([](rank_id r) {
    return r == 5 || r == 1 ? role::sender : r == 0 || r == 7 ? role::receiver : role::idle;
  });
  CHECK(pair_up(spread, 8).value() == edges{{1, 0}, {5, 7}});
}

TEST_CASE("two senders for one receiver are a role_conflict") {
  const auto two = with_role([](rank_id r) { return r < 2 ? role::sender : role::receiver; });
  check_wrong(two, 3, errc::role_conflict);
  // rank % 3 on 4 ranks makes ranks 0 and 3 senders to receiver 1
  const auto thirds = with_role([](rank_id r) {
    return r % 3 == 0 ? role::sender : r % 3 == 1 ? role::receiver : role::idle;
  });
  check_wrong(thirds, 4, errc::role_conflict);
}

TEST_CASE("the error names a role of another kind of op, and it tells a rank that runs alone how to start two") {
  const auto leads = with_role([](rank_id r) { return r == 0 ? role::leader : role::receiver; });
  check_wrong(leads, 2, errc::role_conflict, "\"leader\"");
  const auto pair = with_role([](rank_id r) { return r == 0 ? role::sender : role::receiver; });
  check_wrong(pair, 1, errc::role_conflict, "give -n 2 to `parley run`");
}

TEST_CASE("a sender without a receiver, an op with only idle ranks, and an op without roles and edges are errors") {
  check_wrong(with_role([](rank_id) { return role::sender; }), 2, errc::role_conflict);
  check_wrong(with_role([](rank_id) { return role::idle; }), 2, errc::role_conflict);
  check_wrong(with_role(nullptr), 2, errc::bad_argument);
}

TEST_CASE("an edge that links a rank to itself or leaves the world or is listed twice is an error") {
  auto op = with_role(nullptr);
  op.edges = {{1, 1}};
  check_wrong(op, 2, errc::bad_argument, "1->1");
  op.edges = {{0, 4}};
  check_wrong(op, 4, errc::bad_argument, "0->4");
  op.edges = {{0, 1}, {1, 2}, {0, 1}};
  check_wrong(op, 3, errc::role_conflict, "0->1");
  op.edges = {{0, 1}, {1, 0}, {2, 1}};
  CHECK(pair_up(op, 3));
}

TEST_CASE("an empty catalogue and a null config are errors") {
  auto op = with_role([](rank_id r) { return r == 0 ? role::sender : r == 1 ? role::receiver : role::idle; });
  op.configs = {};
  check_wrong(op, 3, errc::bad_argument);
  op.configs = {direct(), nullptr};
  check_wrong(op, 3, errc::bad_argument);
}

TEST_CASE("every rank refuses a declaration with two senders for one receiver") {
  world w(3);
  for (rank_id r = 0; r < 3; ++r) {
    CHECK_THROWS_WITH_AS(transfer(w[r], with_role([](rank_id x) { return x < 2 ? role::sender : role::receiver; })),
                         doctest::Contains("role_conflict"), failure);
  }
}

TEST_CASE("transfers, pipelines and collectives refuse a name that no results file could hold, on every rank") {
  const std::pair<std::string, const char*> wrong_names[] = {{"", "has no name"},
                                                             {"a,b", "free of commas"},
                                                             {"a\nb", "control characters"},
                                                             {std::string(100'000, 'a'), "longer"}};
  world w(2);
  for (const auto& [name, why] : wrong_names) {
    const doctest::Contains says(why);
    transfer_options pair = pair_of({direct()});
    pair.name = name;
    for (rank_id r = 0; r < 2; ++r) {
      CHECK_THROWS_WITH_AS(transfer(w[r], pair), says, failure);
      CHECK_THROWS_WITH_AS(pipeline(w[r], {.name = name}), says, failure);
      CHECK_THROWS_WITH_AS(collective(w[r], {.name = name, .groups = {{0, 1}}, .configs = {star()}}), says, failure);
    }
  }
  transfer_options typed = pair_of({direct()});
  typed.dtype = "f,32";
  CHECK_THROWS_WITH_AS(transfer(w[0], typed), doctest::Contains("the type's name"), failure);
}

TEST_CASE("declaring an op twice on one rank is an error, and the first declaration still works") {
  world w(2);
  transfer out(w[0], pair_of({direct()}));
  transfer in(w[1], pair_of({direct()}));
  CHECK_THROWS_WITH_AS(transfer(w[0], pair_of({direct()})), doctest::Contains("declared twice"), failure);
  CHECK_THROWS_WITH_AS(transfer(w[1], pair_of({direct()})), doctest::Contains("declared twice"), failure);
  const auto all = move_each(w, out, in, {10, 20});
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
}

TEST_CASE("a call to a rank that is no partner fails at once") {
  world w(3);
  transfer out(w[0], pair_of({direct()}));
  transfer idle(w[2], pair_of({direct()}));
  CHECK(idle.idle());
  CHECK_FALSE(out.idle());
  const std::vector<std::byte> data(4);
  std::vector<std::byte> buffer(4);
  CHECK_THROWS_WITH_AS(static_cast<void>(out.send(data, {.to = 2})),
                       doctest::Contains("rank 0 does not send to rank 2"), failure);
  CHECK_THROWS_WITH_AS(static_cast<void>(out.receive(buffer, {.from = 1})),
                       doctest::Contains("rank 0 does not receive from rank 1"), failure);
  CHECK_THROWS_AS(static_cast<void>(idle.send(data, {.to = 1})), failure);
}

TEST_CASE("many disjoint pairs are legal and exchange their own data") {
  for (const rank_id n : {rank_id{4}, rank_id{8}}) {
    world w(n);
    const auto op = with_role([](rank_id r) { return r % 2 == 0 ? role::sender : role::receiver; });
    std::vector<transfer> ends;
    for (rank_id r = 0; r < n; ++r) ends.emplace_back(w[r], op);
    const auto pair = [](transfer from, transfer to, rank_id sender, int& wrong_bytes) -> task<> {
      for (std::size_t i = 0; i < 10; ++i) {
        const auto data = pattern(1000 * (i + 1), sender + i);
        std::vector<std::byte> buffer(data.size());
        auto done = co_await when_all(from.send(data, {.to = sender + 1}), to.receive(buffer, {.from = sender}));
        static_cast<void>(done);
        if (buffer != data) ++wrong_bytes;
      }
    };
    int wrong_bytes = 0;
    scope all(w.clock);
    for (rank_id r = 0; r < n; r += 2) all.spawn(pair(ends[r], ends[r + 1], r, wrong_bytes));
    run_until(w.clock, [&] { return all.running() == 0; });
    CHECK(wrong_bytes == 0);
    const auto flights = join_flights(w);
    CHECK(flights.mismatches == 0);
    CHECK(flights.pairs >= n / 2 * 10);
  }
}

TEST_CASE("a pipeline refuses a stage outside the world and two stages on one rank") {
  world w(2);
  CHECK_THROWS_WITH_AS(pipeline(w[0], {.name = "p", .stages = {0, 2}}),
                       doctest::Contains("stage 1 is on rank 2, which is outside the world of 2; ranks count from 0, "
                                         "and `parley run -n N PROGRAM`"),
                       failure);
  CHECK_THROWS_WITH_AS(pipeline(w[0], {.name = "p", .stages = {0, 0}}),
                       doctest::Contains("stage 1 is on rank 0, which is stage 0 already"), failure);
  CHECK_THROWS_WITH_AS(pipeline(w[0], {.name = "p", .configs = {}}), doctest::Contains("empty catalogue"), failure);
  CHECK_THROWS_WITH_AS(pipeline(w[0], {.name = "p", .configs = {nullptr}}), doctest::Contains("null"), failure);
}

namespace {

transfer_options between(rank_id from, rank_id to) {
  transfer_options op;
  op.name = "activations";
  op.edges = {{from, to}};
  return op;
}

task<> receive_from(transfer t, rank_id peer, std::vector<std::byte>& data, result<>& outcome) {
  auto got = co_await attempt(t.receive(data, {.from = peer}));
  outcome = got ? result<>() : result<>(got.reason());
}

task<> send_to(transfer t, rank_id to, std::span<const std::byte> data, std::size_t times, result<>& outcome) {
  for (std::size_t i = 0; i < times && outcome; ++i) {
    auto sent = co_await attempt(t.send(data, {.to = to}));
    outcome = sent;
  }
}

void check_both_are_told(const world& w, const std::array<result<>, 2>& outcomes) {
  CHECK(w.clock.now() < 3'000'000'000);
  for (const result<>& outcome : outcomes) CHECK(is(outcome, {.code = errc::role_conflict, .quotes = "activations"}));
}

}  // namespace

TEST_CASE("two ranks that both receive from each other fail at once with role_conflict, on both sides") {
  world w(2);
  transfer first(w[0], between(1, 0));
  transfer second(w[1], between(0, 1));
  std::vector<std::byte> here(10'000'000), there(10'000'000);
  std::array<result<>, 2> outcomes;
  scope s(w.clock);
  s.spawn(receive_from(first, 1, here, outcomes[0]));
  s.spawn(receive_from(second, 0, there, outcomes[1]));
  run_until(w.clock, [&] { return s.running() == 0; });
  check_both_are_told(w, outcomes);
}

TEST_CASE("two ranks that both send to each other fail at once with role_conflict, whatever their sends wait for") {
  struct way {
    std::size_t bytes;
    std::size_t times;
    config_ptr config;
  };
  // One message too large to be sent before its receive; more messages than the window holds; one message in parts.
  for (const way& how :
       {way{10'000'000, 1, direct()}, way{100, 200, direct()}, way{1'000'000, 1, chunked(64_KiB, 2)}}) {
    CAPTURE(how.bytes);
    world w(2);
    auto first_op = between(0, 1);
    auto second_op = between(1, 0);
    first_op.configs = second_op.configs = {how.config};
    transfer first(w[0], first_op);
    transfer second(w[1], second_op);
    const std::vector<std::byte> data(how.bytes);
    std::array<result<>, 2> outcomes;
    scope s(w.clock);
    s.spawn(send_to(first, 1, data, how.times, outcomes[0]));
    s.spawn(send_to(second, 0, data, how.times, outcomes[1]));
    run_until(w.clock, [&] { return s.running() == 0; });
    check_both_are_told(w, outcomes);
  }
}

TEST_CASE("two ends that declare different types both get an error with both types, in pairs and in batches") {
  const auto check = [](const world& w, const std::array<result<>, 2>& outcomes) {
    CHECK(w.clock.now() < 3'000'000'000);
    for (const result<>& outcome : outcomes) {
      for (const char* words : {"activations", "dtype f32", "dtype i32"})
        CHECK(is(outcome, {.code = errc::declaration_mismatch, .quotes = words}));
    }
  };
  const std::vector<std::byte> data(100'000);
  std::vector<std::byte> into(100'000);
  const std::array<std::string, 2> types{"f32", "i32"};
  {
    world w(2);
    std::array<transfer, 2> ends;
    for (rank_id r = 0; r < 2; ++r) {
      auto op = between(0, 1);
      op.dtype = types[r];
      ends[r] = transfer(w[r], op);
    }
    std::array<result<>, 2> outcomes;
    scope s(w.clock);
    s.spawn(send_to(ends[0], 1, data, 200, outcomes[0]));
    s.spawn(receive_from(ends[1], 0, into, outcomes[1]));
    run_until(w.clock, [&] { return s.running() == 0; });
    check(w, outcomes);
  }
  world w(2);
  std::array<result<>, 2> outcomes;
  std::vector<std::byte> mine(100'000);
  const auto swap = [](dataflow& flow, p2p ends, rank_id peer, std::span<const std::byte> out,
                       std::span<std::byte> in) -> task<> {
    for (int i = 0; i < 200; ++i) {
      auto both = ends.start(flow, {p2p::isend(out, {.to = peer}), p2p::irecv(in, {.from = peer})});
      co_await both;
    }
  };
  const auto attempted = [](auto body, result<>* outcome) -> task<> {
    std::exception_ptr thrown;
    try {
      co_await body();
    } catch (...) {
      thrown = std::current_exception();
    }
    *outcome = thrown ? result<>(describe(thrown)) : result<>();
  };
  scope s(w.clock);
  for (rank_id r = 0; r < 2; ++r) {
    p2p_options op;
    op.name = "activations";
    op.dtype = types[r];
    const p2p ends(w[r], op);
    const std::span<std::byte> here = r == 0 ? std::span(mine) : std::span(into);
    s.spawn(attempted([&swap, &data, ends, r, here] { return with_dataflow(swap, ends, 1 - r, std::span(data), here); },
                      &outcomes[r]));
  }
  run_until(w.clock, [&] { return s.running() == 0; });
  check(w, outcomes);
}

TEST_CASE("an op with edges in both directions is no conflict, even if one rank declares it much later") {
  world w(2);
  auto op = between(0, 1);
  op.edges = {{0, 1}, {1, 0}};
  transfer first(w[0], op);
  wait_a_while(w, 5'000'000'000);
  transfer second(w[1], op);
  const auto all = move_each(w, first, second, {100, 1000});
  CHECK(all.failed() == 0);
}

TEST_CASE("two large groups with the same ends and the same size have separate names in results files") {
  actors::op_declaration one, other;
  one.name = other.name = "gradients";
  for (rank_id r = 0; r < 20; ++r) one.participants.push_back({r == 19 ? 39 : r, "worker"});
  for (rank_id r = 0; r < 20; ++r) other.participants.push_back({r == 19 ? 39 : 2 * r, "worker"});
  CHECK(entry_name(one).find("gradients/0>..>39 of 20 ") == 0);
  CHECK(entry_name(one) != entry_name(other));
}
