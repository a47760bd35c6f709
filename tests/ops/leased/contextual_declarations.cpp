// Contextual ops that cannot work as they are declared, on one rank or on several together.
#include <parley/tests/ops/leased/two_kernels.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/tunable_op.hpp>
#include <parley/tuning/planners/contextual_plan.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::contextual_layers;

TEST_CASE(
    "when ranks declare a tuned thunk differently, every rank gets an error with both declarations, after one run") {
  const auto changed = [](const std::function<void(contextual_options&)>& change) {
    contextual_options op = two_kernels::table();
    change(op);
    return op;
  };
  struct other {
    contextual_options op;
    std::string words;
  };
  for (const auto& [op, words] :
       {other{changed([](auto& o) { o.iterations = 3; }), "3 iterations, 0 warm-ups, grouped"},
        other{changed([](auto& o) { o.warm_ups = 1; }), "2 iterations, 1 warm-ups, grouped"},
        other{changed([](auto& o) { o.order = tuning::contextual_order::interleaved; }),
              "2 iterations, 0 warm-ups, interleaved"}}) {
    CAPTURE(words);
    two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), two_kernels::table(), {}, op);
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < 3; ++r) {
      CHECK(w.outcomes[r].code() == errc::declaration_mismatch);
      CHECK(w.outcomes[r].reason().text().find("rank 0 has declared it with 2 iterations, 0 warm-ups, grouped, rank 2 "
                                               "with " +
                                               words) != std::string::npos);
      CHECK(w.runs[r] == 1);
    }
  }
}

TEST_CASE("a contextual op that cannot work is refused when it is declared") {
  world w(2);
  CHECK_THROWS_AS(contextual(w[0], {.name = "a", .iterations = 0}), failure);
  CHECK_THROWS_AS(contextual(w[0], {.name = "a", .ranks = {0, 7}}), failure);
  CHECK_THROWS_AS(contextual(w[0], {.name = "a,b"}), failure);
  contextual others(w[0], {.name = "a", .ranks = {1}});
  CHECK(others.idle());
  CHECK_THROWS_AS(static_cast<void>(others.run([] {})), failure);
  contextual once(w[0], {.name = "b", .ranks = {0}});
  CHECK_THROWS_AS(contextual(w[0], {.name = "b", .ranks = {0}}), failure);
}

TEST_CASE("ranks may list the members of a tuned thunk in different orders") {
  world w(2);
  std::vector<ran_configs> ran(2);
  std::vector<std::unique_ptr<timed_kernel>> kernels;
  std::vector<contextual> layers;
  std::vector<result<>> outcomes(2);
  const auto even = [](rank_id, std::size_t c, std::size_t) -> time_ns { return c == 1 ? 1'000'000 : 2'000'000; };
  for (rank_id r = 0; r < 2; ++r) {
    kernels.push_back(std::make_unique<timed_kernel>(w[r].kernels(), kernel_of("kernel", 2, even, r, ran[r])));
    contextual_options op;
    op.name = "layer";
    op.ranks = r == 0 ? std::vector<rank_id>{0, 1} : std::vector<rank_id>{1, 0};
    layers.emplace_back(w[r], op);
  }
  scope all(w.clock);
  for (rank_id r = 0; r < 2; ++r)
    all.spawn(run_layer(&layers[r], [k = kernels[r].get()]() -> task<> { return (*k)(1); }, &outcomes[r]));
  run_until(w.clock, [&] { return all.running() == 0; });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(outcomes[r]);
    CHECK(layers[r].end().best("kernel", "n=1") == "config_1");
  }
}
