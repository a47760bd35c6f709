#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <stdexcept>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

std::byte stepped(std::byte b, std::size_t stage, std::uint64_t microbatch) {
  return static_cast<std::byte>(static_cast<unsigned>(b) * 5U + stage * 3U + microbatch + 1);
}

struct worker final : pipeline_stage {
  worker(std::size_t s, std::size_t n) : stage(s), stages(n) {}
  void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
    if (microbatch == throws_at) throw std::runtime_error("the model is on fire");
    if (stage == 0) {
      const auto fresh = pattern(activation.size(), microbatch);
      std::copy(fresh.begin(), fresh.end(), activation.begin());
    }
    for (std::byte& b : activation) b = stepped(b, stage, microbatch);
    if (stage + 1 == stages) finished.emplace_back(activation.begin(), activation.end());
  }
  time_ns modelled_ns(std::uint64_t, std::size_t bytes) const override {
    return 1000 + static_cast<time_ns>(bytes / 10);
  }
  void on_done(std::uint64_t microbatch) override { done.push_back(microbatch); }

  std::size_t stage;
  std::size_t stages;
  std::uint64_t throws_at = ~std::uint64_t{0};
  std::vector<std::vector<std::byte>> finished;
  std::vector<std::uint64_t> done;
};

std::vector<std::byte> alone(std::uint64_t microbatch, std::size_t bytes, std::size_t stages) {
  auto activation = pattern(bytes, microbatch);
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::byte& b : activation) b = stepped(b, s, microbatch);
  }
  return activation;
}

struct pipe_world : world {
  explicit pipe_world(rank_id n, rank_settings s = {}) : world(n, std::move(s)) {
    for (rank_id r = 0; r < n; ++r) {
      pipes.push_back(pipeline(
          *ranks[r], {.name = "layers", .configs = {direct(), chunked(1_KiB, 2), chunked(32_KiB, 1)}, .timeout = 1s}));
      workers.push_back(std::make_unique<worker>(r, n));
    }
  }
  static task<> stage(pipeline p, std::span<const std::uint64_t> bytes, worker& w, result<>& outcome) {
    auto ended = co_await attempt(p.run(bytes, w));
    outcome = std::move(ended);
  }
  static task<> guarded(pipeline p, std::span<const std::uint64_t> bytes, worker& w, result<>& outcome) {
    std::exception_ptr thrown;
    try {
      co_await stage(p, bytes, w, outcome);
    } catch (...) {
      thrown = std::current_exception();
    }
    if (thrown) outcome = describe(thrown);
  }
  std::vector<result<>> run_all(std::span<const std::uint64_t> bytes) {
    std::vector<result<>> outcomes(pipes.size(), result<>(errc::pending));
    scope all(clock);
    for (std::size_t i = 0; i < pipes.size(); ++i) all.spawn(guarded(pipes[i], bytes, *workers[i], outcomes[i]));
    run_until(clock, [&] { return all.running() == 0; });
    return outcomes;
  }
  std::vector<pipeline> pipes;
  std::vector<std::unique_ptr<worker>> workers;
};

}  // namespace

TEST_CASE("a pipeline of one to four stages computes the same as one process, bit for bit") {
  for (const rank_id stages : {rank_id{1}, rank_id{2}, rank_id{3}, rank_id{4}}) {
    for (const std::size_t count : {0, 1, 2, 3, 20}) {
      pipe_world w(stages);
      std::vector<std::uint64_t> bytes;
      for (std::size_t i = 0; i < count; ++i) bytes.push_back(i % 5 == 4 ? 0 : (i % 3) * 40'000 + i);
      for (const auto& outcome : w.run_all(bytes)) CHECK(outcome);
      const auto& last = *w.workers.back();
      REQUIRE(last.finished.size() == count);
      for (std::size_t i = 0; i < count; ++i) CHECK(last.finished[i] == alone(i, bytes[i], stages));
      for (const auto& worker : w.workers) CHECK(worker->done.size() == count);
      CHECK(join_flights(w).mismatches == 0);
    }
  }
}

TEST_CASE("a rank without a stage is neither the first nor the last, and its run is refused") {
  world w(2);
  pipeline p(w[1], {.name = "p", .stages = {0}});
  CHECK(p.idle());
  CHECK_FALSE(p.first());
  CHECK_FALSE(p.last());
  struct nothing final : pipeline_stage {
    void forward(std::uint64_t, std::span<std::byte>) override { FAIL("it has no part"); }
  } none;
  result<> outcome;
  const auto guarded = [](pipeline of, pipeline_work& stage, result<>* how) -> task<> {
    const std::vector<std::uint64_t> bytes{8};
    auto ended = co_await attempt(of.run(bytes, stage));
    *how = std::move(ended);
  };
  scope working(w.clock);
  working.spawn(guarded(p, none, &outcome));
  run_until(w.clock, [&] { return working.running() == 0; });
  CHECK(outcome.code() == errc::bad_argument);
}

TEST_CASE(
    "a run of a pipeline that begins while another one is in progress on its rank is refused, and disturbs nothing") {
  pipe_world w(3);
  const std::vector<std::uint64_t> bytes(5, 1'000);
  std::vector<std::unique_ptr<worker>> late;
  std::vector<result<>> refused(3, result<>(errc::pending));
  std::vector<result<>> outcomes(3, result<>(errc::pending));
  scope all(w.clock);
  for (std::size_t i = 0; i < 3; ++i) {
    late.push_back(std::make_unique<worker>(i, 3));
    all.spawn(pipe_world::guarded(w.pipes[i], bytes, *w.workers[i], outcomes[i]));
    all.spawn(pipe_world::guarded(w.pipes[i], bytes, *late[i], refused[i]));
  }
  run_until(w.clock, [&] { return all.running() == 0; });
  for (const result<>& outcome : refused) {
    CHECK(is(outcome, {.code = errc::bad_argument, .quotes = "op layers: a run of it is in progress on this rank"}));
  }
  for (const result<>& outcome : outcomes) CHECK(outcome);
  for (std::size_t i = 0; i < bytes.size(); ++i) CHECK(w.workers.back()->finished[i] == alone(i, bytes[i], 3));
  for (const auto& outcome : w.run_all(bytes)) CHECK(outcome);
}

TEST_CASE("every edge of a pipeline tunes itself while microbatches flow") {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  pipe_world w(4, s);
  std::vector<std::uint64_t> bytes;
  for (std::size_t i = 0; i < 300; ++i) bytes.push_back(i % 2 == 0 ? 100'000 : 3'000);
  for (const auto& outcome : w.run_all(bytes)) CHECK(outcome);
  for (rank_id sender = 0; sender < 3; ++sender) {
    for (const char* key : {"128KiB", "4KiB"}) {
      const auto* c = search_of(w, key, sender);
      REQUIRE(c != nullptr);
      CHECK(c->where() == actors::search::stage::decided);
      CHECK(c->trials() > 0);
    }
  }
  const auto flights = join_flights(w);
  CHECK(flights.mismatches == 0);
  CHECK(flights.timed > 0);
}

TEST_CASE("a stage's exception ends its run, and the runs of all later stages fail") {
  for (const std::size_t stage : {0, 1, 2}) {
    pipe_world w(3);
    w.workers[stage]->throws_at = 3;
    const std::vector<std::uint64_t> bytes(10, 500'000);
    const auto outcomes = w.run_all(bytes);
    CHECK(is(outcomes[stage], {.code = errc::exception, .quotes = "the model is on fire"}));
    for (std::size_t s = 0; s < 3; ++s) {
      if (s > stage) CHECK_FALSE(outcomes[s]);
    }
    pass(w, 5'000'000'000);
  }
}

TEST_CASE("both runs of a two-stage pipeline end with an error after their scope is cancelled") {
  pipe_world w(2);
  const std::vector<std::uint64_t> bytes(10, 2'000'000);
  std::vector<result<>> outcomes(2, result<>(errc::pending));
  scope all(w.clock);
  for (std::size_t i = 0; i < 2; ++i) all.spawn(pipe_world::guarded(w.pipes[i], bytes, *w.workers[i], outcomes[i]));
  pass(w, 600'000);  // in the middle of the run
  all.cancel();
  run_until(w.clock, [&] { return all.running() == 0; });
  for (const auto& outcome : outcomes) CHECK_FALSE(outcome);
  pass(w, 1'000'000'000);
}

TEST_CASE("stages that disagree about a size both fail, with both sizes") {
  for (const std::uint64_t expected : {200'000, 50'000, 100'001}) {
    CAPTURE(expected);
    pipe_world w(2);
    const std::vector<std::uint64_t> mine{100, 100'000};
    const std::vector<std::uint64_t> theirs{100, expected};
    std::vector<result<>> outcomes(2, result<>(errc::pending));
    scope all(w.clock);
    all.spawn(pipe_world::guarded(w.pipes[0], mine, *w.workers[0], outcomes[0]));
    all.spawn(pipe_world::guarded(w.pipes[1], theirs, *w.workers[1], outcomes[1]));
    run_until(w.clock, [&] { return all.running() == 0; });
    for (rank_id r = 0; r < 2; ++r)
      CHECK(is(outcomes[r], {.code = expected < 100'000 ? errc::buffer_too_small : errc::bad_argument,
                             .op = r == 0 ? "layers" : "layers 0->1",
                             .rank = r,
                             .invocation = 1,
                             .begun = true,
                             .peer = 1 - r,
                             .whole_bytes = 100'000,
                             .quotes = std::to_string(expected) + " bytes"}));
  }
}

TEST_CASE("a stage whose sent activation was refused later gets the error in its next run") {
  pipe_world w(2);
  const std::vector<std::uint64_t> mine{100};
  const std::vector<std::uint64_t> theirs{200};
  for (const bool again : {false, true}) {
    std::vector<result<>> outcomes(2, result<>(errc::pending));
    scope all(w.clock);
    all.spawn(pipe_world::guarded(w.pipes[0], mine, *w.workers[0], outcomes[0]));
    all.spawn(pipe_world::guarded(w.pipes[1], again ? mine : theirs, *w.workers[1], outcomes[1]));
    run_until(w.clock, [&] { return all.running() == 0; });
    pass(w, 1'000'000);
    CHECK(outcomes[0].code() == (again ? errc::bad_argument : errc::none));
    CHECK(outcomes[1].code() == errc::bad_argument);
    if (again)
      CHECK(is(outcomes[0], {.op = "layers", .rank = 0, .peer = 1, .quotes = "layers 0->1, invocation 0, on rank 1"}));
  }
}
