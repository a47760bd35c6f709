#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>

#include <doctest/doctest.h>

#include <cstring>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

TEST_CASE("a group of 4 sums exactly with every config, whichever rank leads") {
  for (const auto& config : {star(), star(4_KiB), chain(4_KiB), star(10), chain(1), tree(), one_shot(), two_shot(),
                             two_shot(1_KiB), two_shot(1)}) {
    for (const rank_id leader : {0U, 2U, 3U}) {
      CAPTURE(config->id());
      CAPTURE(leader);
      world w(4);
      const auto groups = declare_all(w, led_by(leader, {config}));
      const auto all = reduce_all(w, groups, {1, 5, 1000, 0, 3000, 7});
      CHECK(all.failed() == 0);
      CHECK(all.wrong == 0);
    }
  }
}

TEST_CASE("a group agrees on one of several configs, and no invocation runs with two configs") {
  for (const std::uint64_t depth : {1U, 2U, 5U}) {
    CAPTURE(depth);
    world w(4, eager_trials());
    auto op = led_by(0, {star(), star(16_KiB), chain(8_KiB)});
    op.depth = depth;
    const auto groups = declare_all(w, op);
    auto all = reduce_all(w, groups, std::vector<std::size_t>(200, 20'000), depth);
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    wait_a_while(w, 1_s);
    all = reduce_all(w, groups, std::vector<std::size_t>(20, 20'000), depth);
    CHECK(all.failed() == 0);
    const auto agreed = w[0].agreements();
    REQUIRE(agreed.size() == 1);
    const auto* c = agreed.front().assigned->find(80'000);
    REQUIRE(c != nullptr);
    CHECK(c->is_decided());
    const auto flights = join_group_flights(w);
    CHECK(flights.mismatches == 0);
    CHECK(flights.invocations == 220);
    CHECK(flights.timed >= 3);
    CHECK(flights.digests.size() == 3);
    for (const auto& a : c->aggregates()) CHECK(a.status != tuning::aggregate_status::missing);
    // All ranks have stored the decision.
    wait_a_while(w, 1_s);
    for (auto& r : w.ranks) CHECK(r->results().find("gradients/0>1>2>3", "128KiB") != nullptr);
  }
}

TEST_CASE(
    "a group continues, and tries all its configs, after the 32-bit invocation numbers of its stamps have wrapped") {
  constexpr std::uint64_t first = 0xfffffff0U;
  for (const std::uint64_t depth : {1U, 2U, 5U}) {
    CAPTURE(depth);
    world w(4, eager_trials());
    for (auto& r : w.ranks) r->services().first_invocation = first;
    auto op = led_by(0, {star(), star(16_KiB), chain(8_KiB)});
    op.depth = depth;
    const auto groups = declare_all(w, op);
    const auto all = reduce_all(w, groups, std::vector<std::size_t>(100, 20'000), depth);
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    const auto flights = join_group_flights(w);
    CHECK(flights.mismatches == 0);
    CHECK(flights.invocations == 100);
    CHECK(flights.digests.size() == 3);
    CHECK(groups[1].details()->data_path().next_invocation() == first + 100);
  }
}

TEST_CASE("a trial whose size was guessed wrongly counts for no key, and is repeated") {
  world w(3, eager_trials());
  const auto groups = declare_all(w, led_by(0, {star(), chain()}));
  // The sizes are random, so a guess from the previous call is wrong about half of the time.
  std::vector<std::size_t> sizes;
  std::uint64_t dice = 1;
  for (int i = 0; i < 300; ++i) {
    dice = dice * 6364136223846793005ULL + 1442695040888963407ULL;
    sizes.push_back((dice >> 60U) % 2 == 0 ? 100 : 20'000);
  }
  const auto all = reduce_all(w, groups, sizes);
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(join_group_flights(w).mismatches == 0);
  const auto& searches = w[0].agreements().front().assigned->searches();
  REQUIRE(searches.size() == 2);
  for (const auto& c : searches) {
    CHECK(c->is_decided());
    for (const auto& a : c->aggregates()) CHECK(a.status == tuning::aggregate_status::measured);
    // Calls of 3 x 400 B take microseconds and calls of 80 kB take longer, so the times show a row of the other size.
    const bool small = c->bucket().contains(400);
    for (const auto& of_candidate : c->book().rows) {
      for (const auto& r : of_candidate) {
        if (r.digest != 0) CHECK((r.end_ns - r.start_ns < 9'000) == small);
      }
    }
  }
}

TEST_CASE("a chain sums correctly in any number of pieces, whichever rank leads") {
  for (rank_id leader = 0; leader < 4; ++leader) {
    CAPTURE(leader);
    world w(4);
    const auto groups = declare_all(w, led_by(leader, {chain(16_KiB)}));
    const auto all = reduce_all(w, groups, {25'000, 100'000});
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
  }
}

TEST_CASE("the groups of one op sum independently, even a group of one rank, and a rank in no group may not call") {
  world w(10, eager_trials());
  collective_options op;
  op.name = "gradients";
  op.groups = groups_of(4, 9);
  op.configs = {star(), chain()};
  REQUIRE(op.groups.size() == 3);
  REQUIRE(op.groups.back() == std::vector<rank_id>{8});
  const auto groups = declare_all(w, op);
  CHECK(groups[4].leads());
  CHECK_FALSE(groups[5].leads());
  CHECK(groups[9].idle());
  std::vector<std::vector<float>> x;
  for (rank_id r = 0; r < 9; ++r) x.push_back(contribution(r, 70));
  std::vector<result<>> outcomes(9);
  for (int i = 0; i < 50; ++i) {
    scope calls(w.clock);
    for (rank_id r = 0; r < 9; ++r) {
      x[r] = contribution(r, 70);
      calls.spawn(reduce_one(groups[r], x[r], outcomes[r]));
    }
    run_until(w.clock, [&] { return calls.running() == 0; });
    for (rank_id r = 0; r < 9; ++r) {
      REQUIRE(outcomes[r]);
      const float ranks = r < 4 ? 10.F : r < 8 ? 26.F : 9.F;
      CHECK(x[r][6] == ranks * 7);
    }
  }
  // N3: a rank that is in no group exchanges nothing, and may not call.
  CHECK(w.links[9].statistics().sent[0] + w.links[9].statistics().sent[1] == 0);
  CHECK(w.links[9].statistics().received[0] + w.links[9].statistics().received[1] == 0);
  collective idle = groups[9];
  CHECK_THROWS_AS(static_cast<void>(idle.all_reduce(std::span(x[0]))), failure);
}

TEST_CASE("sums of doubles have the same bits on all ranks and with every config, and maxima of integers are right") {
  std::set<std::uint64_t> bits;
  for (const auto& config : {star(), star(16), chain(24), one_shot(), two_shot(), two_shot(24)}) {
    for (const rank_id leader : {0U, 2U}) {
      world w(5);
      const auto groups = declare_all(w, led_by(leader, {config}));
      std::vector<std::vector<double>> x(5, std::vector<double>(50));
      std::vector<std::vector<int>> most(5, std::vector<int>(9));
      const auto reduce = [](collective g, std::span<double> sums, std::span<int> largest) -> task<> {
        co_await g.all_reduce(sums);
        struct larger {
          int operator()(int a, int b) const { return std::max(a, b); }
        };
        co_await g.all_reduce<larger>(largest);
      };
      scope calls(w.clock);
      for (rank_id r = 0; r < 5; ++r) {
        for (std::size_t i = 0; i < 50; ++i) x[r][i] = 0.1 * static_cast<double>(r + 1) + 1e-9 * static_cast<double>(i);
        for (std::size_t i = 0; i < 9; ++i) most[r][i] = static_cast<int>((r + i) % 5);
        calls.spawn(reduce(groups[r], x[r], most[r]));
      }
      run_until(w.clock, [&] { return calls.running() == 0; });
      for (rank_id r = 0; r < 5; ++r) {
        CHECK(x[r] == x[0]);
        CHECK(most[r] == std::vector<int>(9, 4));
      }
      std::uint64_t first = 0;
      std::memcpy(&first, &x[0][7], sizeof first);
      bits.insert(first);
    }
  }
  CHECK(bits.size() == 1);
}

TEST_CASE("a leader broadcasts to slower workers within its window, at depths 0, 1 and 3") {
  for (const std::uint64_t depth : {0U, 1U, 3U}) {
    CAPTURE(depth);
    rank_settings settings = eager_trials();
    settings.window = {.invocations = 8, .bytes = 1U << 20U};
    world w(4, settings);
    auto op = led_by(1, {star(), star(4_KiB), chain(2_KiB)});
    op.kind = collective_kind::broadcast;
    op.depth = depth;
    const auto groups = declare_all(w, op);
    const auto give = [](collective g) -> task<> {
      for (int i = 0; i < 400; ++i) {
        std::vector<int> data(3000, i);
        co_await g.broadcast(std::span(data));
      }
    };
    const auto take = [](collective g, rank_id me, executor& ex, int& wrong) -> task<> {
      for (int i = 0; i < 400; ++i) {
        std::vector<int> data(3000, -1);
        co_await g.broadcast(std::span(data));
        for (const int d : data) wrong += d == i ? 0 : 1;
        if (me != 3) continue;
        auto woken = co_await sleep_until(ex.deadline_in(200_us));
        static_cast<void>(woken);
      }
    };
    int wrong = 0;
    scope working(w.clock);
    working.spawn(give(groups[1]));
    for (const rank_id r : {0U, 2U, 3U}) working.spawn(take(groups[r], r, w.clock, wrong));
    run_until(w.clock, [&] { return working.running() == 0; });
    CHECK(wrong == 0);
    const auto flights = join_group_flights(w);
    CHECK(flights.mismatches == 0);
    CHECK(flights.invocations == 400);
    CHECK(groups[1].details()->data_path().statistics().waited > 0);
    CHECK(w[1].agreements().front().assigned->find(12'000)->is_decided());
  }
}

TEST_CASE("the leader gathers a block of each rank in the order of the ranks") {
  for (const std::uint64_t depth : {1U, 4U}) {
    world w(4, eager_trials());
    auto op = led_by(2, {star(), star(100)});
    op.kind = collective_kind::gather;
    op.depth = depth;
    const auto groups = declare_all(w, op);
    const auto bring = [](collective g, rank_id me, int& wrong) -> task<> {
      for (int i = 0; i < 100; ++i) {
        std::vector<int> mine(200, static_cast<int>(me) * 1000 + i);
        std::vector<int> all(g.leads() ? 800 : 0, -1);
        co_await g.gather(std::span(mine), std::span(all));
        for (std::size_t k = 0; k < all.size(); ++k) wrong += all[k] == static_cast<int>(k / 200) * 1000 + i ? 0 : 1;
      }
    };
    int wrong = 0;
    scope working(w.clock);
    for (rank_id r = 0; r < 4; ++r) working.spawn(bring(groups[r], r, wrong));
    run_until(w.clock, [&] { return working.running() == 0; });
    CHECK(wrong == 0);
    const auto flights = join_group_flights(w);
    CHECK(flights.mismatches == 0);
    CHECK(flights.invocations == 100);
    const auto* c = w[2].agreements().front().assigned->find(3200);
    CHECK(c->is_decided());
    for (const auto& a : c->aggregates()) CHECK(a.measured());
  }
}

TEST_CASE("leaders sum with each other between collecting and returning: 16 ranks need 30 messages") {
  world w(16);
  collective_options op;
  op.name = "in groups";
  op.groups = groups_of(4, 16);
  const auto inner = declare_all(w, op);
  op.name = "of leaders";
  op.groups = {{0, 4, 8, 12}};
  const auto outer = declare_all(w, op);
  wait_a_while(w, 1_s);  // rehearsals, if any
  std::uint64_t before = 0;
  for (rank_id r = 0; r < 16; ++r) before += w.links[r].statistics().sent[1];
  std::vector<std::vector<float>> x;
  for (rank_id r = 0; r < 16; ++r) x.push_back(contribution(r, 1000));
  const auto reduce = [](collective in, collective out, std::span<float> data) -> task<> {
    if (!in.leads()) {
      co_await in.all_reduce(data);
    } else {
      std::function<task<>(std::span<float>)> among_leaders = [out](std::span<float> partial) mutable {
        return out.all_reduce(partial);
      };
      co_await in.all_reduce(data, std::move(among_leaders));
    }
  };
  scope working(w.clock);
  for (rank_id r = 0; r < 16; ++r) working.spawn(reduce(inner[r], outer[r], x[r]));
  run_until(w.clock, [&] { return working.running() == 0; });
  std::uint64_t after = 0;
  for (rank_id r = 0; r < 16; ++r) {
    CHECK(wrong_sums(x[r], 16) == 0);
    after += w.links[r].statistics().sent[1];
  }
  CHECK(x[0][0] == 136);
  CHECK(after - before == 30);
}

TEST_CASE(
    "star, chain and tree let a leader apply a function between collecting and returning in any number of pieces") {
  for (const auto& config : {star(), star(16), chain(16), tree()}) {
    CAPTURE(config->id());
    world w(3);
    const auto groups = declare_all(w, led_by(0, {config}));
    std::vector<std::vector<float>> x;
    for (rank_id r = 0; r < 3; ++r) x.push_back(contribution(r, 1000));
    const auto reduce = [](collective g, std::span<float> data) -> task<> {
      std::function<task<>(std::span<float>)> twice;
      if (g.leads()) {
        twice = [](std::span<float> sum) {
          for (float& v : sum) v *= 2;
          return [](int) -> task<> { co_return; }(0);
        };
      }
      co_await g.all_reduce(data, std::move(twice));
    };
    scope working(w.clock);
    for (rank_id r = 0; r < 3; ++r) working.spawn(reduce(groups[r], x[r]));
    run_until(w.clock, [&] { return working.running() == 0; });
    for (const auto& mine : x) CHECK(mine[1] == 2 * (1 + 2 + 3) * 2);
  }
}

TEST_CASE("an op with one_shot or two_shot refuses a call with a function in between, and names that config") {
  for (const auto& config : {one_shot(), two_shot()}) {
    world w(2);
    const auto groups = declare_all(w, led_by(0, {star(), config}));
    std::vector<result<>> outcomes(2);
    const auto call = [](collective g, result<>* outcome) -> task<> {
      std::vector<float> data(4);
      std::function<task<>(std::span<float>)> nothing;
      auto how = co_await attempt(g.all_reduce(std::span(data), std::move(nothing)));
      *outcome = how;
    };
    scope all(w.clock);
    for (rank_id r = 0; r < 2; ++r) all.spawn(call(groups[r], &outcomes[r]));
    run_until(w.clock, [&] { return all.running() == 0; });
    for (const auto& o : outcomes) {
      CHECK(is(o, {.code = errc::bad_argument, .config = config->id()}));
    }
  }
}

TEST_CASE("a sum needs one network step with one_shot, and two with star or two_shot") {
  std::map<std::string, time_ns> took;
  for (const auto& config : {star(), one_shot(), two_shot()}) {
    world w(4);
    const auto groups = declare_all(w, led_by(0, {config}));
    wait_a_while(w, 1_s);
    const time_ns before = w.clock.now();
    CHECK(reduce_all(w, groups, {8}).wrong == 0);
    took[config->id()] = w.clock.now() - before;
  }
  CHECK(took["star"] == 2 * took["one_shot"]);
  CHECK(took["two_shot"] > 19 * took["one_shot"] / 10);
}

TEST_CASE("with two_shot each rank of n sends (n - 1) / n of twice its data, whatever n is") {
  for (const rank_id size : {2U, 5U}) {
    world w(size);
    const auto groups = declare_all(w, led_by(0, {two_shot()}));
    wait_a_while(w, 1_s);  // until the ranks have exchanged their declarations
    const auto sent = [&](rank_id r) { return w.links[r].statistics().payload_bytes_sent; };
    std::vector<std::uint64_t> before;
    for (rank_id r = 0; r < size; ++r) before.push_back(sent(r));
    CHECK(reduce_all(w, groups, {100'000}).wrong == 0);
    for (rank_id r = 0; r < size; ++r) {
      const std::uint64_t its = sent(r) - before[r];
      const std::uint64_t shares = 2 * 400'000 * (size - 1) / size;
      CHECK(its >= shares);
      CHECK(its < shares + 4'000);  // the rest: bodies of control messages
    }
  }
}

TEST_CASE("a group can be declared correctly after a wrong declaration of it was refused") {
  world w(2);
  collective_options op = led_by(0, {star(), chain(1024)});
  op.can_run = [](rank_id) { return std::vector<bool>{true}; };  // says nothing about the second config
  CHECK_THROWS_AS(static_cast<void>(collective(w[0], op)), failure);
  op.can_run = {};
  CHECK(!collective(w[0], op).idle());
}
