// A call fails on one rank, or only some ranks make it: later calls never accept the messages of that call as their own.
#include <parley/tests/support/cases/attention_case.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/collective.hpp>
#include <parley/group_config.hpp>
#include <parley/halo.hpp>
#include <parley/pipeline.hpp>
#include <parley/ring_attention.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

using calls_of_rank = std::function<task<>(rank_id)>;

task<> attempted(const calls_of_rank* call, rank_id r, result<>* how) {
  std::exception_ptr thrown;
  try {
    co_await (*call)(r);
  } catch (...) {
    thrown = std::current_exception();
  }
  *how = thrown ? result<>(describe(thrown)) : result<>();
}

/// Runs one call on each rank, all at once, and returns how each call ended.
std::vector<result<>> call_all(world& w, const calls_of_rank& call) {
  std::vector<result<>> outcomes(w.ranks.size(), result<>(errc::pending));
  scope all(w.clock);
  for (rank_id r = 0; r < w.ranks.size(); ++r) all.spawn(attempted(&call, r, &outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  return outcomes;
}

void check_closed(const std::vector<result<>>& outcomes, const std::string& op, const std::string& thrown = "",
                  errc with = errc::closed) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    CAPTURE(r);
    CHECK(is(outcomes[r], {.code = with, .op = op, .rank = static_cast<rank_id>(r), .quotes = thrown}));
  }
}

// ---- pipelines --------------------------------------------------------------------------------------------------------

/// The first stage fills each activation with the number of the run. The other stages count activations of another run.
struct stage final : pipeline_stage {
  void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
    ++computed;
    if (microbatch == throws_at) throw std::runtime_error("the model is on fire");
    if (first) {
      std::fill(activation.begin(), activation.end(), run);
    } else {
      wrong += activation[0] == run ? 0 : 1;
    }
  }
  bool first = false;
  std::uint64_t throws_at = ~std::uint64_t{0};
  std::byte run{};
  int computed = 0;
  int wrong = 0;
};

struct stages {
  explicit stages(rank_id n, const memory_link_options& links = {}) : w(n, {}, links), of(n) {
    for (rank_id r = 0; r < n; ++r) pipes.push_back(pipeline(w[r], {.name = "layers", .timeout = 1s}));
    of[0].first = true;
  }
  /// Runs `microbatches[r]` microbatches of `bytes` bytes on each rank r, all ranks at once.
  std::vector<result<>> run(const std::vector<std::size_t>& microbatches, std::uint64_t bytes = 1000) {
    pass(w, 1'000'000);  // a stage that waits for nothing would otherwise be runs ahead of all news
    for (stage& s : of) {
      s.run = static_cast<std::byte>(runs);
      s.computed = 0;
    }
    ++runs;
    std::vector<std::vector<std::uint64_t>> sizes;
    for (const std::size_t n : microbatches) sizes.emplace_back(n, bytes);
    return call_all(w, [&](rank_id r) { return pipes[r].run(sizes[r], of[r]); });
  }
  int wrong() const {
    int sum = 0;
    for (const stage& s : of) sum += s.wrong;
    return sum;
  }
  world w;
  std::vector<stage> of;
  std::vector<pipeline> pipes;
  int runs = 0;
};

}  // namespace

TEST_CASE("an exception in one pipeline stage closes the op on all stages with its text, and no later run computes") {
  for (const std::uint64_t bytes : {1'000U, 500'000U}) {
    for (const std::size_t thrower : {0, 1, 3}) {
      CAPTURE(bytes);
      CAPTURE(thrower);
      stages all(4);
      for (const auto& o : all.run({5, 5, 5, 5}, bytes)) CHECK(o);
      all.of[thrower].throws_at = 3;
      const time_ns began = all.w.clock.now();
      const auto outcomes = all.run({10, 10, 10, 10}, bytes);
      CHECK(all.w.clock.now() - began < 100'000'000);  // a tenth of a timeout
      CHECK(is(outcomes[thrower], {.code = errc::exception, .quotes = "the model is on fire"}));
      for (std::size_t r = thrower + 1; r < 4; ++r) CHECK_FALSE(outcomes[r]);
      all.of[thrower].throws_at = ~std::uint64_t{0};
      // The stages before the thrower may send all their messages before they hear that the next stage accepts no more. So these runs
      // are checked only from the thrower on.
      for (int again = 0; again < 3; ++again) {
        const auto later = all.run({10, 10, 10, 10}, bytes);
        for (std::size_t r = thrower; r < 4; ++r) CHECK(later[r].code() == errc::closed);
      }
      check_closed(all.run({10, 10, 10, 10}, bytes), "layers", "the model is on fire");
      for (const stage& s : all.of) CHECK(s.computed == 0);
      CHECK(all.wrong() == 0);
    }
  }
}

TEST_CASE("a stage between a failed and a lost stage ends with peer_failed and names the invocation it had reached") {
  stages all(3);
  for (const auto& o : all.run({5, 5, 5})) CHECK(o);
  all.w[1].on_lost(2, "it has crashed");
  all.of[0].throws_at = 0;
  const auto outcomes = all.run({2, 2, 0});
  CHECK(is(outcomes[0], {.code = errc::exception, .quotes = "the model is on fire"}));
  CHECK(is(outcomes[1], {.code = errc::peer_failed,
                         .op = "layers 1->2",
                         .rank = 1,
                         .invocation = 5,
                         .begun = false,
                         .peer = 2,
                         .culprit = 2,
                         .quotes = "it has crashed"}));
}

TEST_CASE("the ranks of a closed op stop sending control messages, and later calls still fail with closed") {
  bool slow = false;
  std::size_t control_messages = 0;
  memory_link_options links;
  links.lose = [&](rank_id, rank_id, link::channel on) {
    control_messages += on == link::channel::control ? 1 : 0;
    return false;
  };
  links.delay = [&](rank_id, rank_id, link::channel) -> time_ns {
    return slow ? 300'000'000 : 0;
  };  // longer than the first repeat intervals of control messages
  stages all(3, links);
  for (const auto& o : all.run({5, 5, 5})) CHECK(o);
  slow = true;
  all.of[1].throws_at = 3;
  CHECK(is(all.run({5, 5, 5})[1], {.code = errc::exception, .quotes = "the model is on fire"}));
  pass(all.w, 10'000'000'000);
  const std::size_t until_then = control_messages;
  CHECK(until_then < 1'000);
  pass(all.w, 10'000'000'000);
  CHECK(control_messages == until_then);
  check_closed(all.run({5, 5, 5}), "layers", "the model is on fire");
}

TEST_CASE(
    "a stage that gets another number of microbatches than it expects names both, and both stages refuse later runs") {
  for (const auto& [first, second] : {std::pair<std::size_t, std::size_t>(4, 6), {6, 4}, {4, 0}, {0, 4}}) {
    CAPTURE(first);
    CAPTURE(second);
    stages all(2);
    for (const auto& o : all.run({4, 4})) CHECK(o);
    std::vector<result<>> outcomes = all.run({first, second});
    // A stage that expects no microbatch sees the unexpected message only in its next run.
    if (second == 0) outcomes = all.run({4, 4});
    CHECK(outcomes[1].code() == (first == 0 ? errc::timeout : errc::declaration_mismatch));
    if (first != 0) {
      const auto of_a_run = [](std::size_t run, std::size_t count) {
        const auto or_more = [](std::size_t n, std::size_t period) {
          return std::to_string(n) + " (or " + std::to_string(n + period) + ", " + std::to_string(n + 2 * period) +
                 " …)";
        };
        return "run " + or_more(run, 64) + ", of " + or_more(count, 256) + " microbatches";
      };
      const std::size_t expected = second == 0 ? 4 : second;
      CHECK(says(outcomes[1], "which is for an activation of " + of_a_run(second == 0 ? 2 : 1, expected)));
      CHECK(says(outcomes[1], of_a_run(1, first) + "; give all stages the same microbatches"));
    }
    static_cast<void>(all.run({4, 4}));
    check_closed(all.run({4, 4}), "layers", "layers 0->1", first == 0 ? errc::closed : errc::declaration_mismatch);
    CHECK(all.wrong() == 0);
  }
}

TEST_CASE(
    "a cancelled run closes the pipeline on its own stage at once, and on the others after at most one more run") {
  stages all(3);
  for (const auto& o : all.run({5, 5, 5})) CHECK(o);
  std::vector<result<>> outcomes(3, result<>(errc::pending));
  const std::vector<std::uint64_t> sizes(10, 500'000);
  const calls_of_rank call = [&](rank_id r) { return all.pipes[r].run(sizes, all.of[r]); };
  scope one(all.w.clock);
  scope others(all.w.clock);
  for (rank_id r = 0; r < 3; ++r) (r == 1 ? one : others).spawn(attempted(&call, r, &outcomes[r]));
  pass(all.w, 200'000);
  one.cancel();
  run_until(all.w.clock, [&] { return one.running() == 0; });
  CHECK(outcomes[1].code() == errc::cancelled);
  result<> next(errc::pending);
  one.spawn(attempted(&call, 1, &next));
  run_until(all.w.clock, [&] { return one.running() + others.running() == 0; });
  CHECK(is(next, {.code = errc::closed, .op = "layers", .rank = 1, .quotes = "on rank 1 (cancelled"}));
  static_cast<void>(all.run({5, 5, 5}));
  check_closed(all.run({5, 5, 5}), "layers");
}

// ---- rings ------------------------------------------------------------------------------------------------------------

TEST_CASE("an exception in one rank's attention block closes the ring on all ranks, and the next call fails on all") {
  using namespace attention_case;
  constexpr rank_id ranks = 4;
  for (const rank_id thrower : {rank_id{0}, rank_id{2}}) {
    CAPTURE(thrower);
    world w(ranks);
    const problem<float> whole;
    std::vector<part<float>> parts;
    std::vector<ops::ring_attention> rings;
    for (rank_id r = 0; r < ranks; ++r) {
      parts.emplace_back(whole, ranks, r);
      rings.push_back(ring_attention(w[r], {.name = "attention", .timeout = 1s}));
    }
    const attention_shape shape{heads, sequence / ranks, dimensions};
    int blocks = 0;
    bool fails = true;
    const calls_of_rank call = [&](rank_id r) {
      part<float>& p = parts[r];
      attention_block<float> block = [&, r](attention_state<float>& state, auto... in) {
        if (fails && r == thrower && ++blocks == 2) throw std::runtime_error("the kernel is on fire");
        add_attention_block<float>(state, in...);
      };
      return rings[r].forward<float>(shape, p.q, p.k, p.v, std::span(p.out), std::move(block));
    };
    const auto outcomes = call_all(w, call);
    CHECK(is(outcomes[thrower], {.code = errc::exception, .quotes = "the kernel is on fire"}));
    CHECK(w.clock.now() < 500'000'000);
    fails = false;
    check_closed(call_all(w, call), "attention", "on rank " + std::to_string(thrower));
  }
}

// ---- halos ------------------------------------------------------------------------------------------------------------

namespace {

/// Makes `times` exchanges with the plans in turn. Before exchange i, the rank fills its cells with i. `wrong` counts ghosts of another
/// exchange.
task<> exchange_often(dataflow& flow, std::vector<halo_plan>* plans, std::vector<double>* u,
                      std::vector<std::size_t> ghosts, std::vector<result<>>* outcomes, int times, int* wrong) {
  for (int i = 0; i < times; ++i) {
    std::fill(u->begin(), u->end(), i);
    for (const std::size_t g : ghosts) (*u)[g] = -1;
    std::exception_ptr thrown;
    try {
      auto moving = (*plans)[static_cast<std::size_t>(i) % plans->size()].start(flow);
      co_await moving;
    } catch (...) {
      thrown = std::current_exception();
    }
    outcomes->push_back(thrown ? result<>(describe(thrown)) : result<>());
    if (thrown) continue;
    for (const std::size_t g : ghosts) *wrong += (*u)[g] == i ? 0 : 1;
  }
}

}  // namespace

TEST_CASE(
    "after one rank's exchange times out no rank gets ghosts of another exchange, and both ranks end with closed") {
  for (const bool in_place : {true, false}) {
    CAPTURE(in_place);
    world w(2);
    const std::size_t columns = in_place ? 1 : 3;
    std::vector<std::vector<halo_plan>> plans(2);
    std::vector<std::vector<double>> u(2);
    std::vector<std::vector<std::size_t>> ghosts(2);
    for (rank_id r = 0; r < 2; ++r) {
      halo_options op;
      op.name = "rims";
      op.ranks = in_place ? std::vector<rank_id>{2} : std::vector<rank_id>{1, 2};
      op.timeout = 50ms;
      halo h(w[r], op);
      u[r].assign(in_place ? 5 : 5 * (columns + 2), 0);
      for (int i = 0; i < 2; ++i)
        plans[r].push_back(h.plan({in_place ? grid_field(u[r], {3}) : grid_field(u[r], {3, columns})}));
      for (std::size_t row = 1; row < (in_place ? 2U : 4U); ++row) {
        const std::size_t width = in_place ? 5 : columns + 2;
        ghosts[r].push_back((in_place ? 0 : row * width) + (r == 0 ? width - 1 : 0));
      }
    }
    std::vector<std::vector<result<>>> outcomes(2);
    int wrong = 0;
    const calls_of_rank call = [&](rank_id r) {
      return with_dataflow(exchange_often, &plans[r], &u[r], ghosts[r], &outcomes[r], 6, &wrong);
    };
    std::vector<result<>> ended(2);
    scope all(w.clock);
    all.spawn(attempted(&call, 0, &ended[0]));
    pass(w, 70'000'000);  // rank 0's first exchange has timed out (50 ms)
    all.spawn(attempted(&call, 1, &ended[1]));
    run_until(w.clock, [&] { return all.running() == 0; });
    CHECK(wrong == 0);
    CHECK(outcomes[0][0].code() == errc::timeout);
    for (rank_id r = 0; r < 2; ++r) {
      CAPTURE(r);
      CHECK(is(outcomes[r].back(), {.code = errc::closed, .op = "rims", .rank = r, .quotes = "on rank 0 (timeout"}));
    }
  }
}

// ---- groups -----------------------------------------------------------------------------------------------------------

TEST_CASE("a gather that its leader refuses still counts as a call, so that the next calls match") {
  world w(3);
  collective_options op = led_by(0, {star()});
  op.kind = collective_kind::gather;
  op.timeout = 1s;
  const auto groups = declare_all(w, op);
  std::vector<std::vector<int>> all(3);
  for (int i = 0; i < 4; ++i) {
    const std::size_t room = i == 1 ? 5 : 6;
    const calls_of_rank call = [&](rank_id r) {
      const auto bring = [](collective g, rank_id me, int number, std::vector<int>* into) -> task<> {
        std::vector<int> mine(2, static_cast<int>(me) * 100 + number);
        co_await g.gather(std::span(mine), std::span(*into));
      };
      all[r].assign(r == 0 ? room : 0, -1);
      return bring(groups[r], r, i, &all[r]);
    };
    const auto outcomes = call_all(w, call);
    if (i == 1) {
      CHECK(is(outcomes[0], {.code = errc::bad_argument, .whole_bytes = 24, .own_bytes = 20}));
      continue;
    }
    for (const auto& o : outcomes) CHECK(o);
    for (int k = 0; k < 6; ++k) CHECK(all[0][static_cast<std::size_t>(k)] == k / 2 * 100 + i);
  }
}

TEST_CASE(
    "an all_reduce whose leader passes a function its config cannot run fails on all ranks, and the next succeeds") {
  world w(3);
  const auto groups = declare_all(w, led_by(0, {one_shot()}));
  for (int i = 0; i < 3; ++i) {
    std::vector<std::vector<float>> x;
    for (rank_id r = 0; r < 3; ++r) {
      x.push_back(contribution(r, 100));
      for (float& v : x.back()) v *= static_cast<float>(i + 1);
    }
    const calls_of_rank call = [&](rank_id r) -> task<> {
      const auto plain = [](collective g, std::span<float> data) -> task<> { co_await g.all_reduce(data); };
      const auto in_between = [](collective g, std::span<float> data) -> task<> {
        std::function<task<>(std::span<float>)> nothing = [](std::span<float>) {
          return [](int) -> task<> { co_return; }(0);
        };
        co_await g.all_reduce(data, std::move(nothing));
      };
      return i == 1 && r == 0 ? in_between(groups[0], x[0]) : plain(groups[r], x[r]);
    };
    const auto outcomes = call_all(w, call);
    if (i == 1) {
      for (const auto& o : outcomes) CHECK(o.code() == errc::bad_argument);
      continue;
    }
    for (const auto& o : outcomes) CHECK(o);
    for (auto& mine : x) {
      for (float& v : mine) v /= static_cast<float>(i + 1);
      CHECK(wrong_sums(mine, 3) == 0);
    }
  }
}
