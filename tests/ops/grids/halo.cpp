#include <parley/tests/support/batches.hpp>
#include <parley/tests/support/cases/halo_grid.hpp>
#include <parley/tests/support/cases/jacobi_case.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/guarded.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/halo.hpp>
#include <parley/ops/core/neighbours.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::jacobi_case;

namespace {

std::size_t wrong_after(const halo_options& op, const std::vector<std::uint64_t>& cells, std::uint64_t padding = 0,
                        std::size_t fields = 1) {
  rank_id blocks = 1;
  for (const rank_id n : op.ranks) blocks *= n;
  world w(blocks);
  grid g(w, op, cells, padding, fields);
  const std::size_t before = g.wrong();
  for (const auto& outcome : exchange_all(w, g.plans)) CHECK(outcome);
  if (blocks > 1) CHECK(before > 0);
  return g.wrong();
}

}  // namespace

TEST_CASE("ghosts hold the neighbours' cells in one, two and three dimensions, across faces and across corners") {
  for (const auto reach : {halo_reach::faces, halo_reach::corners}) {
    for (const bool wraps : {false, true}) {
      const auto with = [&](std::vector<rank_id> ranks) {
        auto op = rims(std::move(ranks));
        op.reach = reach;
        op.periodic.assign(op.ranks.size(), wraps);
        return op;
      };
      CHECK(wrong_after(with({4}), {7}) == 0);
      CHECK(wrong_after(with({1, 4}), {5, 3}) == 0);
      CHECK(wrong_after(with({4, 1}), {5, 3}) == 0);
      CHECK(wrong_after(with({2, 2}), {5, 3}) == 0);
      CHECK(wrong_after(with({3, 2}), {2, 6}) == 0);
      CHECK(wrong_after(with({2, 2, 2}), {3, 4, 5}) == 0);
      CHECK(wrong_after(with({1, 1, 3}), {3, 4, 5}) == 0);
    }
  }
}

TEST_CASE("a field with more cells than any memory holds is refused, for example one with a negative size") {
  world w(1);
  std::vector<double> u(64);
  std::size_t ops = 0;
  const auto plan_with = [&](const std::vector<std::uint64_t>& cells, const std::vector<std::uint64_t>& strides) {
    halo_options op = rims(std::vector<rank_id>(cells.size(), 1));
    op.name += std::to_string(ops++);
    op.periodic.assign(cells.size(), true);
    return halo(w[0], op).plan({grid_field(u, cells, strides)});
  };
  constexpr auto minus_one = static_cast<std::uint64_t>(-1);
  const auto is_refused = [&](const std::vector<std::uint64_t>& cells, const std::vector<std::uint64_t>& strides = {}) {
    CHECK_THROWS_WITH_AS(static_cast<void>(plan_with(cells, strides)), doctest::Contains("than any memory holds"),
                         failure);
  };
  is_refused({minus_one});
  is_refused({minus_one, 4});
  is_refused({4, minus_one});
  is_refused({2, 2}, {minus_one, 1});
  is_refused({2, 2}, {minus_one / 2, 1});
  CHECK_THROWS_WITH_AS(static_cast<void>(plan_with({6, 7}, {})),
                       doctest::Contains("has 64 elements, and with its rim needs 72"), failure);
  CHECK(plan_with({6, 6}, {}).sent_bytes() != 0);
}

TEST_CASE("the middle one of 27 blocks has 26 different neighbours") {
  for (const bool wraps : {false, true}) {
    auto op = rims({3, 3, 3});
    op.reach = halo_reach::corners;
    op.periodic.assign(3, wraps);
    world w(27);
    grid g(w, op, {2, 3, 2}, 0, 1);
    for (rank_id r = 0; r < 27; ++r) {
      const bool midst = r == 13;
      CHECK((g.halos[r].neighbours() == 26) == (midst || wraps));
      for (rank_id other = 0; midst && other < 27; ++other) {
        if (other == r) continue;
        CHECK(g.halos[r].to(other).decision(4).op == "rims 13->" + std::to_string(other));
      }
    }
    for (const auto& outcome : exchange_all(w, g.plans, 2)) CHECK(outcome);
    CHECK(g.wrong() == 0);
  }
}

namespace {

task<> look_in_the_flow(dataflow& flow, halo_plan* plan, const std::vector<double>* u, std::vector<double>* seen) {
  auto moving = plan->start(flow);
  auto looked = flow.compute({reads(*u), writes(*seen)}, [u, seen] { *seen = *u; });
  co_await looked;
  co_await moving;
}

}  // namespace

TEST_CASE("a computation that reads a field runs after the field's packed ghosts have been unpacked") {
  world w(2);
  std::vector<std::vector<double>> u(2, std::vector<double>(5 * 4, -1));
  std::vector<std::vector<double>> seen(2, std::vector<double>(5 * 4));
  std::vector<halo_plan> plans;
  const auto value = [](rank_id r, std::size_t row, std::size_t column) {
    return static_cast<double>(100 * r + 10 * row + column);
  };
  for (rank_id r = 0; r < 2; ++r) {
    for (std::size_t row = 1; row < 4; ++row) {
      for (std::size_t column = 1; column < 3; ++column) u[r][row * 4 + column] = value(r, row, column);
    }
    halo h(w[r], rims({1, 2}));
    plans.push_back(h.plan({grid_field(u[r], {3, 2})}));
    CHECK(plans.back().packed_bytes() != 0);
  }
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(with_dataflow(look_in_the_flow, &plans[r], &u[r], &seen[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  for (std::size_t row = 1; row < 4; ++row) {
    CHECK(seen[0][row * 4 + 3] == value(1, row, 1));
    CHECK(seen[1][row * 4] == value(0, row, 2));
  }
}

namespace {

struct after_a_failure {
  std::span<const double> written;  // a failing computation writes it before the first of two exchanges
  std::vector<result<>> outcomes = std::vector<result<>>(3, result<>(errc::pending));
};

task<> exchange_behind_a_failure(dataflow& flow, halo_plan* plan, after_a_failure* with) {
  if (!with->written.empty()) {
    const auto fails = [] { raise({errc::exception, "planted"}); };
    auto computed = flow.compute({writes(with->written)}, fails, {.name = "interior"});
    with->outcomes[0] = co_await outcome_of(std::move(computed));
  }
  for (const std::size_t turn : {1U, 2U}) {
    try {
      auto moving = plan->start(flow);
      with->outcomes[turn] = co_await outcome_of(std::move(moving));
    } catch (const failure& f) {
      with->outcomes[turn] = f.reason();
    }
  }
}

/// Two blocks of 3 x 2 cells side by side. Their faces are columns, which have to be packed.
struct two_blocks : world {
  two_blocks() : world(2), u(2, std::vector<double>(20, -1)) {
    for (rank_id r = 0; r < 2; ++r) {
      for (std::size_t row = 1; row < 4; ++row) u[r][row * 4 + 1] = u[r][row * 4 + 2] = 10.0 * r + double(row);
      plans.push_back(halo(*ranks[r], rims({1, 2})).plan({grid_field(u[r], {3, 2})}));
    }
  }
  std::size_t wrong_ghosts() const {
    std::size_t wrong = 0;
    for (std::size_t row = 1; row < 4; ++row)
      wrong += (u[0][row * 4 + 3] == u[1][row * 4 + 1] ? 0U : 1U) + (u[1][row * 4] == u[0][row * 4 + 2] ? 0U : 1U);
    return wrong;
  }
  std::vector<std::vector<double>> u;
  std::vector<halo_plan> plans;
};

std::vector<after_a_failure> exchange_twice(two_blocks& w, std::span<const double> failing_on_0) {
  std::vector<after_a_failure> both(2);
  both[0].written = failing_on_0;
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(with_dataflow(exchange_behind_a_failure, &w.plans[r], &both[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  return both;
}

}  // namespace

TEST_CASE(
    "an exchange fails if a failed computation was to write its ghosts, and the next exchange in that flow succeeds") {
  two_blocks w;
  const auto both = exchange_twice(w, std::span(w.u[0]).subspan(3 * 4 + 3, 1));
  CHECK(both[0].outcomes[0].code() == errc::exception);
  CHECK(is(both[0].outcomes[1], {.quotes = "interior"}));
  CHECK(both[1].outcomes[1]);
  for (rank_id r = 0; r < 2; ++r) CHECK(both[r].outcomes[2]);
  CHECK(w.wrong_ghosts() == 0);
}

TEST_CASE("cells that a failed computation was to write are not sent, and the op is closed on both ranks") {
  two_blocks w;
  const auto before = w.u;
  const auto both = exchange_twice(w, std::span(w.u[0]).subspan(2 * 4 + 2, 1));
  CHECK(both[0].outcomes[0].code() == errc::exception);
  CHECK(is(both[0].outcomes[1], {.quotes = "interior"}));
  for (const result<>& outcome : {both[1].outcomes[1], both[0].outcomes[2], both[1].outcomes[2]})
    CHECK(is(outcome, {.code = errc::closed, .quotes = "interior"}));
  CHECK(w.u[1] == before[1]);
}

namespace {

task<> write_and_exchange(dataflow& flow, two_blocks* w, rank_id r, int times) {
  std::vector<flow_work> moving;
  auto* const u = &w->u[r];
  for (int i = 0; i < times; ++i) {
    const auto next = [u, r] {
      for (double& cell : *u) cell += 1 + r;
    };
    flow.compute({updates(*u)}, next, {.modelled_ns = 1000});
    moving.push_back(w->plans[r].start(flow));
  }
  co_await moving.back();
}

}  // namespace

TEST_CASE(
    "the last of several unawaited exchanges sends the values that earlier computations wrote, in the same flow") {
  two_blocks w;
  constexpr int times = 5;
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(with_dataflow(write_and_exchange, &w, r, times));
  run_until(w.clock, [&] { return all.running() == 0; });
  for (rank_id r = 0; r < 2; ++r) CHECK(w.u[r][5] == 10.0 * r + 1 + times * (1 + r));
  CHECK(w.wrong_ghosts() == 0);
}

TEST_CASE("without pending work start packs the cells before it returns, even outside a coroutine") {
  two_blocks w;
  const auto before = w.u;
  dataflow first(w.clock), second(w.clock);
  flow_work of_0 = w.plans[0].start(first);
  flow_work of_1 = w.plans[1].start(second);
  for (std::size_t row = 1; row < 4; ++row) w.u[0][row * 4 + 2] = 999;
  of_0.wait();
  of_1.wait();
  for (std::size_t row = 1; row < 4; ++row) CHECK(w.u[1][row * 4] == before[0][row * 4 + 2]);
}

namespace {

task<> looks_for(world* w, time_ns span) {
  auto slept = co_await sleep_until(w->clock.deadline_in(span));
  static_cast<void>(slept);
}

task<> torn_down(two_blocks* w, rank_id r, result<>* again) {
  scope& here = co_await this_scope;
  {
    dataflow flow(here);
    flow.compute({reads(w->u[r])}, [w] { return looks_for(w, 5'000'000'000); });
    auto moving = w->plans[r].start(flow);
    co_await looks_for(w, 500'000'000);  // the messages have arrived; the unpacking waits for the computation
  }
  dataflow flow(here);
  try {
    auto moving = w->plans[r].start(flow);
    *again = co_await outcome_of(std::move(moving));
  } catch (const failure& f) {
    *again = f.reason();
  }
}

task<> cancelled_in_front(two_blocks* w, result<>* joined) {
  scope& here = co_await this_scope;
  dataflow flow(here);
  auto slow = flow.compute({writes(w->u[0])}, [w] { return looks_for(w, 1'000'000'000); });
  auto moving = w->plans[0].start(flow);
  flow.cancel();
  static_cast<void>(co_await outcome_of(std::move(slow)));
  static_cast<void>(co_await outcome_of(std::move(moving)));
  try {
    co_await flow.join();
    *joined = {};
  } catch (const failure& f) {
    *joined = f.reason();
  }
}

}  // namespace

TEST_CASE("a plan can be used again after its flow was destroyed once its messages had arrived") {
  two_blocks w;
  std::vector<result<>> again(2, result<>(errc::pending));
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(torn_down(&w, r, &again[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  for (const result<>& outcome : again) CHECK(outcome);
  CHECK(w.wrong_ghosts() == 0);
}

TEST_CASE("the time-out of a plan that one rank has made anew alone says to compare the plans") {
  world w(2);
  std::vector<std::vector<double>> u(2, std::vector<double>(20));
  std::vector<halo> halos;
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 2; ++r) {
    halos.emplace_back(*w.ranks[r], rims({1, 2}));
    plans.push_back(halos[r].plan({grid_field(u[r], {3, 2})}));
  }
  for (const auto& outcome : exchange_all(w, plans)) CHECK(outcome);
  plans[0] = halos[0].plan({grid_field(u[0], {3, 2})});
  const auto outcomes = exchange_all(w, plans);
  CHECK(is(outcomes[0], {.code = errc::timeout, .peer = 1}));
  CHECK(says(outcomes[0], "see whether all ranks make the same plans, and start them in the same order"));
}

TEST_CASE("joining a flow succeeds after its exchange was cancelled before packing and its outcome was awaited") {
  two_blocks w;
  result<> joined = errc::pending;
  scope all(w.clock);
  all.spawn(cancelled_in_front(&w, &joined));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(joined);
}

TEST_CASE("an exchange cannot start in a second flow while it runs in the first one, and can once it has ended there") {
  two_blocks w;
  std::vector<result<>> outcomes(2, result<>(errc::pending));
  const auto twice = [](halo_plan* plan, result<>* second) -> task<> {
    scope& here = co_await this_scope;
    dataflow first(here);
    dataflow other(here);
    auto moving = plan->start(first);
    CHECK_THROWS_WITH_AS(plan->open(other), doctest::Contains("is still in flight, in another flow"), failure);
    try {
      auto at_once = plan->start(other);
      *second = {};
    } catch (const failure& f) {
      *second = f.reason();
    }
    co_await moving;
    auto again = plan->start(other);
    co_await again;
  };
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(twice(&w.plans[r], &outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  for (const result<>& outcome : outcomes) CHECK(says(outcome, "is still in flight, in another flow; await it before"));
  CHECK(w.wrong_ghosts() == 0);
}

TEST_CASE("an exchange that was opened in one flow cannot be started in another") {
  two_blocks w;
  std::vector<result<>> outcomes(2, result<>(errc::pending));
  const auto elsewhere = [](halo_plan* plan, result<>* refused) -> task<> {
    scope& here = co_await this_scope;
    dataflow first(here);
    dataflow other(here);
    plan->open(first);
    try {
      auto moving = plan->start(other);
      *refused = {};
    } catch (const failure& f) {
      *refused = f.reason();
    }
    auto moving = plan->start(first);
    co_await moving;
  };
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(elsewhere(&w.plans[r], &outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  for (const result<>& outcome : outcomes)
    CHECK(says(outcome, "it was opened in another flow; start the exchange there"));
  CHECK(w.wrong_ghosts() == 0);
}

TEST_CASE("fields of different element types are refused on both ranks with both types, and nothing is written") {
  world w(2);
  guarded_place at;
  const array<float> all_floats(at, 8);
  const array<std::int32_t> all_numbers(at, 8);
  std::fill(all_floats.begin(), all_floats.end(), 1.0F);
  std::fill(all_numbers.begin(), all_numbers.end(), 2);
  std::span<float> floats(all_floats.data(), all_floats.size());
  std::span<std::int32_t> numbers(all_numbers.data(), all_numbers.size());
  std::vector<std::byte> bytes(32);
  const auto exchange = [&](auto& of_0, auto& of_1, const char* name) {
    std::vector<halo_plan> plans;
    for (rank_id r = 0; r < 2; ++r) {
      halo_options op;
      op.name = name;
      op.neighbours = {1 - r};
      halo mesh(w[r], op);
      const auto list = [](auto& values) {
        const std::uint64_t each = 4 / sizeof(values[0]);
        std::vector<std::uint64_t> sent(each), taken(each);
        for (std::uint64_t i = 0; i < each; ++i) sent[i] = i, taken[i] = each + i;
        return index_field(values, {sent}, {taken});
      };
      plans.push_back(r == 0 ? mesh.plan({list(of_0)}) : mesh.plan({list(of_1)}));
    }
    return exchange_all(w, plans);
  };
  const auto before = at.contents();
  const auto differ = exchange(floats, numbers, "mesh");
  CHECK(w.clock.now() < 1_s);  // the timeout is 30 s
  for (rank_id r = 0; r < 2; ++r)
    CHECK(is(differ[r], {.code = errc::declaration_mismatch,
                         .op = r == 0 ? "mesh 1->0" : "mesh 0->1",
                         .rank = r,
                         .role = "receiver",
                         .invocation = 0,
                         .begun = true,
                         .peer = 1 - r}));
  CHECK(says(differ[0], "which is for f32 elements, but the message has i32 elements"));
  CHECK(says(differ[1], "which is for i32 elements, but the message has f32 elements"));
  CHECK(at.contents() == before);
  for (const auto& outcome : exchange(floats, floats, "same")) CHECK(outcome);
  for (const auto& outcome : exchange(floats, bytes, "raw")) CHECK(outcome);
  CHECK(at.clean());
}

TEST_CASE("rims may be wider, differ by dimension, and wrap in one dimension only") {
  auto op = rims({2, 3});
  op.width = {2, 3};
  op.periodic = {true, false};
  op.reach = halo_reach::corners;
  CHECK(wrong_after(op, {4, 5}) == 0);
  op.width = {0, 2};
  CHECK(wrong_after(op, {4, 5}) == 0);
}

TEST_CASE("a plan exchanges several fields together, and their rows may be padded") {
  auto op = rims({2, 2});
  op.reach = halo_reach::corners;
  CHECK(wrong_after(op, {6, 5}, 3, 3) == 0);
  auto cube = rims({2, 1, 2});
  CHECK(wrong_after(cube, {3, 3, 3}, 5, 2) == 0);
}

TEST_CASE("no config writes the padding between rows or the memory around the fields") {
  auto op = rims({2, 2});
  op.reach = halo_reach::corners;
  op.periodic = {true, true};
  op.width = {2, 1};
  for (const auto& config : {direct(), chunked(16)}) {
    CAPTURE(config->id());
    op.configs = {config};
    CHECK(wrong_after(op, {6, 5}, 3, 2) == 0);
    CHECK(wrong_after(op, {6, 700}, 1, 2) == 0);
  }
  // Each put or get is tried beside the default, and wins.
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  memory_link_options links;
  links.ns_per_byte = 1;
  links.one_sided_ns_per_byte = 0.001;
  for (const auto& config : {put(), put(16'384), get(), get(16'384)}) {
    CAPTURE(config->id());
    world w(4, s, links);
    op.configs = {direct(), config};
    grid g(w, op, {6, 7'000}, 1, 1);
    for (const auto& outcome : exchange_all(w, g.plans, 60)) CHECK(outcome);
    CHECK(g.wrong() == 0);
    const auto rim_of_rows = g.halos[0].to(2).decision(2 * 7'000 * sizeof(std::uint32_t));
    INFO(rim_of_rows.why);
    CHECK(rim_of_rows.config == config->id());
  }
}

TEST_CASE("contiguous faces are not packed and faces of columns are") {
  world w(4);
  grid rows(w, rims({4, 1}), {10, 20}, 0, 1);
  CHECK(rows.plans[1].sent_bytes() == 2 * 20 * 4);
  CHECK(rows.plans[1].packed_bytes() == 0);
  auto other = rims({1, 4});
  other.name = "columns";
  grid columns(w, other, {10, 20}, 0, 1);
  CHECK(columns.plans[1].packed_bytes() == 2 * 10 * 4);
}

TEST_CASE("neighbours decide for a config while they exchange") {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  world w(2, s);
  grid g(w, rims({2, 1}), {40, 30'000 / 4}, 0, 1);
  for (const auto& outcome : exchange_all(w, g.plans, 400)) CHECK(outcome);
  CHECK(g.wrong() == 0);
  CHECK(join_flights(w).mismatches == 0);
  const auto* search = search_of(w, "32KiB", 0);
  REQUIRE(search != nullptr);
  CHECK(search->is_decided());
}

TEST_CASE("a mesh exchanges the elements that its index lists name, for several fields at once") {
  for (const rank_id ranks : {2U, 3U}) {
    for (const std::size_t fields : {1U, 3U}) {
      CAPTURE(ranks);
      CAPTURE(fields);
      world w(ranks);
      std::vector<std::unique_ptr<halo_case::part_of_ring>> parts;
      std::vector<halo_plan> plans;
      for (rank_id r = 0; r < ranks; ++r) {
        const halo mesh(w[r], halo_case::part_of_ring::op_of(r, ranks));
        parts.push_back(std::make_unique<halo_case::part_of_ring>(mesh, r, ranks, fields));
        run(w.clock, parts.back()->begin());
        plans.push_back(std::move(parts.back()->plan()));
      }
      for (const auto& outcome : exchange_all(w, plans)) CHECK(outcome);
      for (auto& part : parts) CHECK(run(w.clock, part->wrong()) == 0);
    }
  }
}

TEST_CASE("an exchange that sends and receives the same element sends the element's old value") {
  world w(2);
  std::vector<std::vector<double>> values{{1.0}, {2.0}};
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 2; ++r) {
    halo_options op;
    op.name = "mesh";
    op.neighbours = {1 - r};
    plans.push_back(halo(w[r], op).plan({index_field(values[r], {{0}}, {{0}})}));
  }
  const auto late = [](halo_plan* plan, time_ns begins) -> task<> {
    auto slept = co_await sleep_until(begins);
    static_cast<void>(slept);
    co_await with_dataflow(halo_case::exchange, plan, 1, device_stream{});
  };
  scope all(w.clock);
  all.spawn(late(&plans[0], 0));
  all.spawn(late(&plans[1], 10'000'000));  // by then rank 0's element has arrived
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(values == std::vector<std::vector<double>>{{2.0}, {1.0}});
}

namespace {

/// Eight elements whose values tell their rank. Some of them are ghosts.
struct mesh_part {
  mesh_part(rank_id r, std::vector<std::size_t> where_ghosts_are) : ghosts(std::move(where_ghosts_are)) {
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = as_it_was[i] = 10.0 * r + double(i) + 1;
  }
  std::span<double> elements() const { return {all.data(), all.size()}; }
  bool untouched() const { return at->clean() && std::equal(all.begin(), all.end(), as_it_was.begin()); }
  /// Leaves out the ghosts, which are undefined after a failed exchange.
  bool untouched_beside_ghosts() const {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool is_ghost = std::find(ghosts.begin(), ghosts.end(), i) != ghosts.end();
      if (!is_ghost && all[i] != as_it_was[i]) return false;
    }
    return at->clean();
  }
  std::unique_ptr<guarded_place> at = std::make_unique<guarded_place>();
  array<double> all{*at, 8};
  std::array<double, 8> as_it_was{};
  std::vector<std::size_t> ghosts;
};

}  // namespace

namespace {
comparison differs(const result<>& outcome, rank_id rank, rank_id peer, std::uint64_t theirs, std::uint64_t ours) {
  return is(
      outcome,
      {.code = errc::bad_argument, .op = "mesh", .rank = rank, .peer = peer, .whole_bytes = theirs, .own_bytes = ours});
}
}  // namespace

TEST_CASE("a neighbour with another number of cells, or without the op, is named, and only ghosts may change") {
  world w(2);
  std::vector<mesh_part> parts;
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 2; ++r) {
    halo_options op;
    op.name = "mesh";
    op.neighbours = {1 - r};
    halo mesh(w[r], op);
    auto values = parts.emplace_back(r, std::vector<std::size_t>{5, 6}).elements();
    plans.push_back(mesh.plan(
        {index_field(values, {r == 0 ? std::vector<std::uint64_t>{1} : std::vector<std::uint64_t>{1, 2}}, {{5, 6}})}));
  }
  auto outcomes = exchange_all(w, plans);
  CHECK(w.clock.now() < 1_s);  // the timeout is 30 s
  CHECK(differs(outcomes[0], 0, 1, 16, 8));
  CHECK(differs(outcomes[1], 1, 0, 8, 16));
  for (const mesh_part& p : parts) CHECK(p.untouched_beside_ghosts());

  world lonely(2);
  halo_options op;
  op.name = "one-sided";
  op.timeout = 50ms;
  op.neighbours = {1};
  mesh_part alone(0, {5});
  auto values = alone.elements();
  std::vector<halo_plan> one;
  one.push_back(halo(lonely[0], op).plan({index_field(values, {{1}}, {{5}})}));
  outcomes = exchange_all(lonely, one);
  CHECK(lonely.clock.now() < 1_s);
  CHECK(is(outcomes[0], {.code = errc::timeout, .op = "one-sided 1->0", .rank = 0, .peer = 1}));
  CHECK(alone.untouched());
}

namespace {

template <class Values>
halo_plan mesh_plan(world& w, rank_id r, std::vector<rank_id> neighbours, Values& values,
                    const std::vector<std::uint64_t>& sent = {0, 1}, halo* declared = nullptr) {
  halo_options op;
  op.name = "mesh";
  op.neighbours = std::move(neighbours);
  const std::size_t n = op.neighbours.size();
  halo made(w[r], op);
  if (declared != nullptr) *declared = made;
  return made.plan({index_field(values, std::vector(n, sent), std::vector(n, std::vector<std::uint64_t>{2, 3}))});
}

task<> exchange_for_a_while(dataflow& flow, halo_plan* plan, int times) {
  for (int i = 0; i < times; ++i) {
    auto moving = plan->start(flow);
    co_await moving;
    auto slept = co_await sleep_until(flow.where().deadline_in(100'000'000));
    static_cast<void>(slept);
  }
}

}  // namespace

TEST_CASE("if one rank lists a neighbour that does not list it, both ranks fail, and each names the other") {
  for (const bool knows_others : {true, false}) {
    CAPTURE(knows_others);
    world w(3);
    std::vector<mesh_part> parts;
    std::vector<std::span<double>> values;
    for (rank_id r = 0; r < 3; ++r) values.push_back(parts.emplace_back(r, std::vector<std::size_t>{2, 3}).elements());
    std::vector<halo_plan> plans;
    plans.push_back(mesh_plan(w, 0, {1}, values[0]));
    plans.push_back(mesh_plan(w, 1, knows_others ? std::vector<rank_id>{2} : std::vector<rank_id>{}, values[1]));
    plans.push_back(mesh_plan(w, 2, knows_others ? std::vector<rank_id>{1} : std::vector<rank_id>{}, values[2]));
    std::vector<result<>> outcomes(3);
    const auto one = [](halo_plan* plan, result<>* outcome) -> task<> {
      std::exception_ptr thrown;
      try {
        co_await with_dataflow(exchange_for_a_while, plan, 5);
      } catch (...) {
        thrown = std::current_exception();
      }
      *outcome = thrown ? result<>(describe(thrown)) : result<>();
    };
    scope all(w.clock);
    for (rank_id r = 0; r < 3; ++r) all.spawn(one(&plans[r], &outcomes[r]));
    run_until(w.clock, [&] { return !outcomes[0] && !outcomes[1]; });
    CHECK(w.clock.now() < 1'000'000'000);
    const std::string why = "op mesh: rank 0 has rank 1 as a neighbour, but rank 1's neighbours are " +
                            std::string(knows_others ? "rank 2" : "none") + "; list each as a neighbour of the other";
    for (const rank_id r : {0U, 1U})
      CHECK(
          is(outcomes[r], {.code = errc::declaration_mismatch, .op = "mesh", .rank = r, .peer = 1 - r, .quotes = why}));
    CHECK(w[1].warnings() == std::vector<std::string>{why});
    run_until(w.clock, [&] { return all.running() == 0; });
    CHECK(parts[0].untouched());  // nobody sends to rank 0
    for (const mesh_part& p : parts) CHECK(p.untouched_beside_ghosts());
  }
}

TEST_CASE("a rank whose neighbour declares another grid gets declaration_mismatch, and an idle rank gets a warning") {
  world w(3);
  std::vector<std::vector<double>> values(3, std::vector<double>(6, 1.0));
  std::vector<halo_plan> plans;
  plans.push_back(halo(w[0], rims({3})).plan({grid_field(values[0], {4})}));
  plans.push_back(halo(w[1], rims({3})).plan({grid_field(values[1], {4})}));
  static_cast<void>(halo(w[2], rims({2})));
  const auto outcomes = exchange_all(w, plans);
  CHECK(w.clock.now() < 1'000'000'000);
  CHECK(is(outcomes[1], {.code = errc::declaration_mismatch, .op = "rims", .rank = 1, .peer = 2}));
  CHECK(!w[2].warnings().empty());
}

TEST_CASE("a neighbour that declares its list five seconds late is not refused") {
  world w(2);
  std::vector<std::vector<double>> values(2, std::vector<double>(8, 1.0));
  std::vector<halo_plan> plans;
  plans.push_back(mesh_plan(w, 0, {1}, values[0]));
  result<> first(errc::pending);
  scope all(w.clock);
  const auto one = [](halo_plan* plan, result<>* outcome) -> task<> {
    co_await with_dataflow(halo_case::exchange, plan, 1, device_stream{});
    *outcome = {};
  };
  all.spawn(one(&plans[0], &first));
  wait_a_while(w, 5'000'000'000);
  CHECK(first.code() == errc::pending);
  plans.push_back(mesh_plan(w, 1, {0}, values[1]));
  result<> second(errc::pending);
  all.spawn(one(&plans[1], &second));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(first);
  CHECK(second);
}

TEST_CASE("a neighbour that restarts with other sizes is compared again, on the ranks that stayed and on itself") {
  world w(3);
  std::vector<std::vector<double>> values(3, std::vector<double>(8, 1.0));
  std::vector<halo_plan> plans;
  std::vector<halo> halos(3);
  for (rank_id r = 0; r < 3; ++r)
    plans.push_back(mesh_plan(w, r, {(r + 1) % 3, (r + 2) % 3}, values[r], {0, 1}, &halos[r]));
  const auto come_back = [&](const std::vector<std::uint64_t>& sent) {
    w.restart(1);
    w.tell_of(1);
    plans[1] = mesh_plan(w, 1, {0, 2}, values[1], sent);
    for (const rank_id r : {0, 2}) CHECK(halos[r].rejoin());
  };
  for (const auto& outcome : exchange_all(w, plans)) CHECK(outcome);
  come_back({0, 1});
  for (const auto& outcome : exchange_all(w, plans)) CHECK(outcome);
  come_back({0});
  const auto outcomes = exchange_all(w, plans);
  CHECK(differs(outcomes[0], 0, 1, 8, 16));
  CHECK(differs(outcomes[1], 1, 0, 16, 8));
  CHECK(differs(outcomes[2], 2, 1, 8, 16));
  CHECK(w.clock.now() < 1'000'000'000);
}

TEST_CASE("a rank outside of the grid is idle, and may plan and start like all others") {
  world w(3);
  auto op = rims({2});
  std::vector<std::vector<double>> fields(3, std::vector<double>(12));
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 3; ++r) {
    halo mine(w[r], op);
    CHECK(mine.idle() == (r == 2));
    CHECK(mine.place().empty() == (r == 2));
    plans.push_back(mine.plan({grid_field(fields[r], {10})}));
  }
  for (const auto& o : exchange_all(w, plans, 2)) CHECK(o);
}

TEST_CASE("a block without neighbours is idle, and its exchanges end at once") {
  world w(1);
  halo alone(w[0], rims({1}));
  CHECK(alone.idle());
  std::vector<double> u(5);
  std::vector<halo_plan> plans;
  plans.push_back(alone.plan({grid_field(u, {3})}));
  for (const auto& o : exchange_all(w, plans)) CHECK(o);
}

TEST_CASE("impossible halo declarations and fields are refused with their reasons") {
  world w(4);
  const auto refused = [&](const halo_options& op) -> std::string {
    try {
      static_cast<void>(halo(w[0], op));
    } catch (const failure& f) {
      return f.what();
    }
    return "";
  };
  auto op = rims({3, 2});
  CHECK(refused(op) ==
        "bad_argument: op rims: its grid has 6 blocks in a world of 4; start a rank for each with `parley run -n 6 "
        "PROGRAM`, or virtual ones with --sim 6");
  op = rims({2, 2});
  op.width = {1};
  CHECK(refused(op) == "bad_argument: op rims: `width` needs one entry per dimension");
  op = rims({1, 1, 1, 1});
  CHECK(refused(op) == "bad_argument: op rims: a grid has 1 to 3 dimensions");
  halo_options mesh;
  mesh.name = "mesh";
  mesh.neighbours = {1, 1};
  CHECK(refused(mesh) == "bad_argument: op mesh: its neighbours name rank 1 twice");

  const halo grid(w[0], rims({2, 2}));
  std::vector<double> cells(6 * 6);
  const auto wrong = [&](const halo_field& field) -> std::string {
    try {
      static_cast<void>(grid.plan({field}));
    } catch (const failure& f) {
      return f.what();
    }
    return "";
  };
  CHECK(wrong(grid_field(cells, {4, 4})).empty());
  CHECK(wrong(grid_field(cells, {4, 5})) ==
        "bad_argument: op rims, rank 0: field 0 has 36 elements, and with its rim needs 42");
  CHECK(wrong(grid_field(cells, {3, 4})) ==
        "bad_argument: op rims, rank 0: field 0 has 36 elements, and its cells with their rim are 30; correct `cells`, "
        "give `strides`, or pass only the part that they fill");
  CHECK(wrong(grid_field(std::span(cells).first(30), {3, 4})).empty());
  CHECK(wrong(grid_field(cells, {3, 4}, {6, 1})).empty());
  CHECK(wrong(grid_field(cells, {4})) == "bad_argument: op rims, rank 0: field 0 has 1 dimensions where the op has 2");
  CHECK(wrong(grid_field(cells, {2, 4}, {5, 1})).find("rows that overlap") != std::string::npos);
  CHECK(wrong(grid_field(cells, {4, 0})).find("0 cells, but its rim alone is 1 wide") != std::string::npos);
}

TEST_CASE("a plan refuses fields whose ghosts overlap, and accepts fields that lie in each other's padding") {
  world w(2);
  const halo grid(w[0], rims({2, 1}));
  std::vector<double> cells(12 * 6);
  const std::span<double> all(cells);
  const auto plan_of = [&](const halo_field& a, const halo_field& b) { return grid.plan({a, b}).sent_bytes(); };
  CHECK(plan_of(grid_field(all.first(36), {4, 4}), grid_field(all.last(36), {4, 4})) == 2 * 4 * sizeof(double));
  const char* const overlap = "field 0 and field 1 of one plan overlap";
  for (const std::size_t begin : {0, 12, 24, 30}) {
    CAPTURE(begin);
    CHECK_THROWS_WITH_AS(plan_of(grid_field(all.first(36), {4, 4}), grid_field(all.subspan(begin, 36), {4, 4})),
                         doctest::Contains(overlap), failure);
  }
  // Accepted: two fields side by side in longer rows.
  CHECK(plan_of(grid_field(all, {4, 1}, {12, 1}), grid_field(all.subspan(6), {4, 1}, {12, 1})) == 2 * sizeof(double));
}

TEST_CASE("a halo_plan that is empty or was moved from has no bytes, and refuses to open and to start") {
  world w(2);
  const halo grid(w[0], rims({2, 1}));
  std::vector<double> cells(6 * 6);
  halo_plan moved = grid.plan({grid_field(cells, {4, 4})});
  const halo_plan kept = std::move(moved);
  halo_plan not_made;
  for (halo_plan* const plan : {&moved, &not_made}) {  // NOLINT(bugprone-use-after-move): that is what is tried
    CHECK(plan->sent_bytes() == 0);
    CHECK(plan->packed_bytes() == 0);
    CHECK(plan->packed_so_far_bytes() == 0);
    dataflow flow(w.clock);
    CHECK_THROWS_WITH_AS(static_cast<void>(plan->start(flow)), doctest::Contains("this halo_plan is empty"), failure);
    CHECK_THROWS_WITH_AS(plan->open(flow), doctest::Contains("this halo_plan is empty"), failure);
  }
  CHECK(kept.sent_bytes() == 4 * sizeof(double));
}

namespace {

struct jacobi_result {
  std::vector<double> field = std::vector<double>(size * size);
  std::vector<double> norms;
};

jacobi_result jacobi_on(rank_id rows, rank_id columns, std::vector<config_ptr> configs) {
  constexpr int sweeps = 100;
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  world w(rows * columns, s);
  auto op = rims({rows, columns});
  op.configs = std::move(configs);
  std::vector<std::unique_ptr<block>> blocks;
  scope all(w.clock);
  for (rank_id r = 0; r < w.ranks.size(); ++r) {
    const halo h(w[r], op);
    block& mine = *blocks.emplace_back(std::make_unique<block>(h, rows, columns));
    all.spawn(sweep_block(h, &mine, sweeps));
  }
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(all.cancelled() == errc::none);
  CHECK(join_flights(w).mismatches == 0);
  jacobi_result answer;
  for (const auto& b : blocks) {
    for (std::size_t i = 1; i <= b->u.rows; ++i) {
      for (std::size_t j = 1; j <= b->u.columns; ++j)
        answer.field[(b->top + i - 1) * size + b->left + j - 1] = b->u.cells[b->cell(i, j)];
    }
  }
  for (std::size_t k = 0; k < sweeps; ++k) {
    double sum = 0;
    for (const auto& b : blocks) sum += runtime::run(w.clock, b->sum_of_squares(k));
    answer.norms.push_back(std::sqrt(sum));
  }
  return answer;
}

}  // namespace

namespace {
// Each sweep waits for its exchange either after it has computed its interior, or before.
enum class waits : std::uint8_t { after_interior, before_interior };
constexpr int sweeps_made = 20;
constexpr time_ns interior_ns = 1'000'000;
task<> compute_interiors(dataflow& flow, halo_plan* plan, waits when) {
  scope& here = co_await this_scope;
  for (int k = 0; k < sweeps_made; ++k) {
    auto moving = plan->start(flow);
    if (when == waits::before_interior) co_await moving;
    auto computed = co_await sleep_until(here.where().deadline_in(interior_ns));
    static_cast<void>(computed);
    if (when == waits::after_interior) co_await moving;
  }
}
time_ns sweeping_ns(const config_ptr& config, waits when) {
  memory_link_options links;
  links.latency_ns = 300'000;
  world w(4, {}, std::move(links));
  auto op = rims({2, 2});
  op.configs = {config};
  std::vector<halo> halos;
  std::vector<std::vector<double>> sheets(4, std::vector<double>(32 * 32));
  std::vector<halo_plan> plans;
  for (rank_id r = 0; r < 4; ++r) {
    halos.emplace_back(w[r], op);
    plans.push_back(halos[r].plan({grid_field(sheets[r], {30, 30})}));
  }
  const time_ns began = w.clock.now();
  scope all(w.clock);
  for (halo_plan& plan : plans) all.spawn(with_dataflow(compute_interiors, &plan, when));
  run_until(w.clock, [&] { return all.running() == 0; });
  return w.clock.now() - began;
}
}  // namespace

TEST_CASE("a longer computation of the interior hides the exchange, whatever the config") {
  for (const auto& config : {direct(), chunked(64, 3)}) {
    CAPTURE(config->id());
    const time_ns apart = sweeping_ns(config, waits::before_interior);
    const time_ns hidden = sweeping_ns(config, waits::after_interior);
    const time_ns moving = apart - sweeps_made * interior_ns;
    CHECK(moving >= sweeps_made * 300'000);
    CHECK(hidden - sweeps_made * interior_ns <= moving / 5);
  }
}

TEST_CASE("Jacobi gives the known norms, and identical bits for every cut of the grid and every config") {
  const jacobi_result alone = jacobi_on(1, 1, {direct()});
  CHECK(alone.norms.front() == doctest::Approx(0.03915698160394615).epsilon(1e-11));
  CHECK(alone.norms.back() == doctest::Approx(0.03462020197359978).epsilon(1e-11));
  for (const auto& configs :
       {std::vector<config_ptr>{direct()}, {chunked(64, 3)}, {direct(), chunked(100, 2), put(), get()}}) {
    for (const auto& [rows, columns] : {std::pair<rank_id, rank_id>{1, 4}, {4, 1}, {2, 2}}) {
      const jacobi_result cut = jacobi_on(rows, columns, configs);
      CHECK(cut.field == alone.field);
      CHECK(cut.norms.back() == doctest::Approx(0.03462020197359978).epsilon(1e-11));
    }
  }
}

namespace {

/// A row of blocks. Each rank queues 20 exchanges at once, and behind each exchange a computation that updates all of its block.
struct queued_exchanges : world {
  explicit queued_exchanges(rank_id blocks, const halo_options& op, const std::vector<std::uint64_t>& cells = {3},
                            rank_settings settings = {}, memory_link_options o = {})
      : world(blocks, std::move(settings), std::move(o)), ended(blocks), ended_at(blocks) {
    std::size_t elements = 1;
    for (const std::uint64_t n : cells) elements *= n + 2;
    u.resize(blocks, std::vector<double>(elements));
    for (rank_id r = 0; r < blocks; ++r) {
      halos.emplace_back(*ranks[r], op);
      plans.push_back(halos.back().plan({grid_field(u[r], cells)}));
    }
  }
  explicit queued_exchanges(rank_id blocks) : queued_exchanges(blocks, rims({blocks})) {}
  static task<> all_of(dataflow& flow, queued_exchanges* w, rank_id r) {
    std::vector<double>& mine = w->u[r];
    for (int i = 0; i < 20; ++i) {
      auto moving = w->plans[r].start(flow);
      const auto work = [&w = *w, &mine, r] {
        for (double& cell : mine) cell += 1;
        if (r == w.failing) raise({errc::exception, "planted"});
      };
      flow.compute({updates(mine)}, work, {.name = "work", .modelled_ns = 1'000'000});
    }
    std::exception_ptr thrown;
    try {
      co_await flow.join();
    } catch (...) {
      thrown = std::current_exception();
    }
    w->ended[r] = thrown ? result<>(describe(thrown)) : result<>();
    w->ended_at[r] = w->clock.now();
  }
  void start_all(scope& all) {
    for (rank_id r = 0; r < ranks.size(); ++r) all.spawn(with_dataflow(&queued_exchanges::all_of, this, r));
  }
  std::vector<std::vector<double>> u;
  std::vector<halo> halos;
  std::vector<halo_plan> plans;
  std::vector<result<>> ended;
  std::vector<time_ns> ended_at;
  std::optional<rank_id> failing;
};

}  // namespace

TEST_CASE("no exchange queued in a flow waits for its time-out after a rank has died, however far away") {
  queued_exchanges w(4);
  scope all(w.clock);
  for (rank_id r = 0; r < 3; ++r) all.spawn(with_dataflow(&queued_exchanges::all_of, &w, r));
  pass(w, 2'000'000);
  for (rank_id r = 0; r < 3; ++r) w[r].on_lost(3, "it was killed");
  const time_ns died = w.clock.now();
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(w.clock.now() - died < 2'000'000'000);
  CHECK(is(w.ended[2], {.code = errc::peer_failed, .peer = 3}));
  for (rank_id r = 0; r < 2; ++r) {
    CAPTURE(r);
    REQUIRE(is(w.ended[r], {.code = errc::peer_failed, .op = "rims", .rank = r, .peer = 3}));
    REQUIRE(w.ended[r].reason().began_with() != nullptr);
    CHECK(w.ended[r].reason().began_with()->rank == 3);
  }
}

TEST_CASE("no exchange queued in a flow waits for its time-out after a computation of another rank has failed") {
  queued_exchanges w(4);
  w.failing = 3;
  scope all(w.clock);
  w.start_all(all);
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(w.clock.now() < 2'000'000'000);
  CHECK(is(w.ended[3], {.code = errc::exception, .quotes = "planted"}));
  for (rank_id r = 0; r < 3; ++r)
    CHECK(is(w.ended[r], {.code = errc::closed, .op = "rims", .rank = r, .quotes = "planted"}));
}

namespace {

/// Opens an exchange, so that its ghosts may arrive, and sends nothing for 5 s.
task<> open_early(dataflow& flow, queued_exchanges* w, rank_id r) {
  w->plans[r].open(flow);
  const auto slept = co_await sleep_for(5s);
  static_cast<void>(slept);
}

}  // namespace

TEST_CASE("an exchange does not end while a rank still reads its memory, even if a third rank has lost that reader") {
  rank_settings tries_at_once;
  tries_at_once.plan.budget_fraction = 1e9;
  memory_link_options fast_reads;
  fast_reads.one_sided_ns_per_byte = 0.001;
  auto op = rims({3, 1});
  op.periodic = {true, false};
  op.configs = {direct(), get()};
  op.can_run = [](rank_id r) { return std::vector<bool>{true, r != 1}; };  // rank 1 never runs get
  queued_exchanges w(3, op, {4, 10'000}, tries_at_once, std::move(fast_reads));
  constexpr std::uint64_t row_bytes = 10'000 * sizeof(double);
  for (int i = 0; i < 20; ++i) {
    scope all(w.clock);
    w.start_all(all);
    run_until(w.clock, [&] { return all.running() == 0; });
  }
  REQUIRE(w.halos[0].decision(row_bytes, 2).config == "get");
  w.links.options().one_sided_ns_per_byte = 2'000;  // a read of a row takes 160 ms
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(with_dataflow(&queued_exchanges::all_of, &w, r));
  all.spawn(with_dataflow(&open_early, &w, 2U));
  pass(w, 20'000'000);
  w[1].on_lost(2, "its link is cut");
  w[2].on_lost(1, "its link is cut");
  const time_ns cut = w.clock.now();
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(is(w.ended[0], {.code = errc::peer_failed, .op = "rims", .rank = 0}));
  CHECK(w.ended_at[0] - cut > 120'000'000);  // rank 2 reads rank 0's memory until then
  CHECK(w.ended_at[0] - cut < 2'000'000'000);
}
