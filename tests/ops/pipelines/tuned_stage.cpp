// Stages with several ways to compute, tuned together with the transfers of their pipeline. A way is charged for the time that it computes,
// and not for its waits. Both decisions must be the right ones.
#include <parley/tests/support/cases/training_case.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/config.hpp>
#include <parley/ops/core/neighbours.hpp>
#include <parley/pipeline.hpp>
#include <parley/training_pipeline.hpp>
#include <parley/transfer.hpp>
#include <parley/tuned_stage.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::training_case;

namespace {

constexpr std::uint64_t activation = 100'000;
constexpr time_ns ms = 1'000'000;

// Sending the pieces one after another takes several times as long.
std::vector<config_ptr> slow_and_fast() { return {chunked(16_KiB, 1), direct()}; }

/// Each call first receives its weights from rank 2, which sends them late.
struct way_that_waits final : pipeline_work {
  way_that_waits(transfer from, time_ns ns) : weights(std::move(from)), takes_ns(ns) {}
  task<> work(std::uint64_t, std::span<std::byte> bytes) override {
    std::vector<std::byte> came(100);
    co_await weights.receive(came, {.from = 2});
    auto step = [bytes] { bytes[0] = std::byte{1}; };
    co_await compute(step, takes_ns);
  }
  transfer weights;
  time_ns takes_ns;
};

// Takes 10 ms for every third activation, and 1 ms for the others.
struct late_at_times final : pipeline_stage {
  void forward(std::uint64_t, std::span<std::byte>) override {}
  time_ns modelled_ns(std::uint64_t microbatch, std::size_t) const override {
    return microbatch % 3 == 0 ? 10 * ms : ms;
  }
};

task<> send_weights(transfer to, int times) {
  const std::vector<std::byte> weights(100);
  for (int i = 0; i < times; ++i) {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(5 * ms));
    static_cast<void>(slept);
    co_await to.send(weights, {.to = 1});
  }
}

}  // namespace

TEST_CASE("a stage between late neighbours is charged only for its computing, and the fastest way and transfers win") {
  constexpr int microbatches = 120;
  world w(3, eager_trials());
  std::vector<pipeline> pipes;
  std::vector<transfer> weights;
  for (rank_id r = 0; r < 3; ++r) {
    pipes.push_back(pipeline(w[r], {.name = "layers", .configs = slow_and_fast()}));
    transfer_options side;
    side.name = "weights";
    side.edges = {{2, 1}};
    weights.emplace_back(w[r], side);
  }
  late_at_times first, last;
  way_that_waits slow(weights[1], 2 * ms), fast(weights[1], ms);
  tuned_stage second(w[1], {.name = "layers", .ways = {{"slow", slow}, {"fast", fast}}});
  const std::vector<std::uint64_t> bytes(microbatches, activation);
  scope all(w.clock);
  all.spawn(pipes[0].run(bytes, first));
  all.spawn(pipes[1].run(bytes, second));
  all.spawn(pipes[2].run(bytes, last));
  all.spawn(send_weights(weights[2], microbatches));
  run_until(w.clock, [&] { return all.running() == 0; });
  pass(w, ms);

  const decision computed = second.forward().decision(activation);
  CHECK(computed.op == "layers/forward 1");
  CHECK(computed.decided);
  CHECK(computed.config == "fast");
  CHECK(computed.time_ns == ms);
  REQUIRE(computed.evidence.size() == 2);
  CHECK(computed.evidence[0].config == "slow");
  CHECK(computed.evidence[0].time_ns == 2 * ms);
  for (const rank_id r : {0U, 1U}) {
    const decision moved = pipes[r].outgoing().decision(activation);
    CHECK(moved.decided);
    CHECK(moved.config == "direct");
    CHECK(moved.time_ns < ms / 10);  // the wait for a late stage is not charged to the transfer either
  }
}

TEST_CASE("a training pipeline tunes the ways of each direction separately, and its transfers") {
  world w(2, eager_trials());
  training_pipeline_options op;
  op.name = "layers";
  op.schedule = one_forward_one_backward(2, 8);
  op.configs = slow_and_fast();
  std::vector<training_pipeline> pipes;
  std::vector<std::unique_ptr<part_of_model>> slow, fast;
  std::vector<std::unique_ptr<tuned_stages>> stages;
  for (rank_id r = 0; r < 2; ++r) {
    pipes.emplace_back(w[r], op);
    for (auto* const ways : {&slow, &fast}) {
      ways->push_back(std::make_unique<part_of_model>(2, ways == &slow ? 2 * ms : ms));
      ways->back()->elements = activation / sizeof(double);
    }
    stages.push_back(std::make_unique<tuned_stages>(
        w[r], tuned_stage_options<training_work>{.name = "layers", .ways = {{"slow", *slow[r]}, {"fast", *fast[r]}}}));
  }
  constexpr int passes = 20;
  const auto train = [](training_pipeline pipe, tuned_stages* mine, time_ns late_ns) -> task<> {
    for (int i = 0; i < passes; ++i) {
      scope& here = co_await this_scope;
      auto slept = co_await sleep_until(here.where().deadline_in(late_ns));
      static_cast<void>(slept);
      auto report = co_await pipe.run(*mine);
      static_cast<void>(report);
    }
  };
  // Rank 0 starts each pass late, so rank 1 waits for it.
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r) all.spawn(train(pipes[r], stages[r].get(), r == 0 ? 30 * ms : 0));
  run_until(w.clock, [&] { return all.running() == 0; });
  pass(w, ms);
  for (rank_id r = 0; r < 2; ++r) {
    CAPTURE(r);
    const decision forward = stages[r]->forward().decision(activation);
    CHECK(forward.config == "fast");
    CHECK(forward.time_ns == ms);
    const decision backward = stages[r]->backward().decision(activation);
    CHECK(backward.config == "fast");
    CHECK(backward.time_ns == 2 * ms);
    REQUIRE(backward.evidence.size() == 2);
    CHECK(backward.evidence[0].time_ns == 4 * ms);
    CHECK(pipes[r].to(1 - r).decision(activation).config == "direct");
  }
  const std::vector<double> once = gradients_alone(2, 8);
  for (std::uint32_t s = 0; s < 2; ++s) {
    const double sum = slow[s]->m.weight_gradient[s] + fast[s]->m.weight_gradient[s];
    CHECK(sum == doctest::Approx(passes * once[s]).epsilon(1e-9));
  }
}

TEST_CASE("the way that computed a microbatch gets its on_done, and no other way does") {
  struct way final : pipeline_stage {
    explicit way(time_ns ns) : takes_ns(ns) {}
    void forward(std::uint64_t microbatch, std::span<std::byte>) override { computed.push_back(microbatch); }
    time_ns modelled_ns(std::uint64_t, std::size_t) const override { return takes_ns; }
    void on_done(std::uint64_t microbatch) override { done.push_back(microbatch); }
    time_ns takes_ns;
    std::vector<std::uint64_t> computed, done;
  } slow(2 * ms), fast(ms);
  world w(1, eager_trials());
  pipeline pipe(w[0], {.name = "layers"});
  tuned_stage mine(w[0], {.name = "layers", .ways = {{"slow", slow}, {"fast", fast}}});
  const std::vector<std::uint64_t> bytes(60, activation);
  run(w.clock, pipe.run(bytes, mine));
  for (const way* each : {&slow, &fast}) {
    CHECK(each->computed.size() >= 5);
    CHECK(each->done == each->computed);
  }
}

TEST_CASE("a way that only enqueues for a device is refused, because its time cannot be measured") {
  struct enqueued final : training_work {
    std::uint64_t activation_bytes(std::uint32_t) const override { return activation; }
    task<> work(pipeline_action, pipeline_memory) override { co_return; }
    bool waits_on_device() const override { return true; }
  } way;
  part_of_model waits(1, ms);
  world w(1);
  CHECK_THROWS_WITH_AS(tuned_stages(w[0], {.name = "layers", .ways = {{"host", waits}, {"stream", way}}}),
                       doctest::Contains("its way stream only enqueues (waits_on_device)"), failure);
}

TEST_CASE("a way that throws ends its run and never runs again, and the next runs work without it") {
  world w(1, eager_trials());
  struct throwing final : pipeline_stage {
    void forward(std::uint64_t, std::span<std::byte>) override { raise({errc::unavailable, "out of registers"}); }
  } bad;
  late_at_times good;
  pipeline pipe(w[0], {.name = "layers"});
  tuned_stage mine(w[0], {.name = "layers", .ways = {{"good", good}, {"bad", bad}}});
  const std::vector<std::uint64_t> bytes(60, activation);
  int failed = 0;
  const auto runs = [](pipeline p, std::span<const std::uint64_t> sizes, tuned_stage* stage, int* threw) -> task<> {
    for (int i = 0; i < 4; ++i) {
      auto outcome = co_await attempt(p.run(sizes, *stage));
      *threw += outcome.code() == errc::unavailable ? 1 : 0;
    }
  };
  run(w.clock, runs(pipe, bytes, &mine, &failed));
  CHECK(failed == 1);
  CHECK(mine.forward().decision(activation).config == "good");
  CHECK_THROWS_AS(tuned_stage(w[0], {.name = "none", .ways = {}}), failure);
  CHECK_THROWS_AS(tuned_stage(w[0], {.name = "layers", .ways = {{"good", good}}}), failure);
}
