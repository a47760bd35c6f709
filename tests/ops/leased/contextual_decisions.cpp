// Trials of contextual ops and their order, the decisions, and how these are logged, stored and reported.
#include <parley/tests/ops/leased/two_kernels.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/actors/policy.hpp>
#include <parley/agreement.hpp>
#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>
#include <parley/tuning/planners/contextual_plan.hpp>
#include <parley/tuning/results/results.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::contextual_layers;

TEST_CASE("the worked case makes 7 runs in the stated order, and 1 run at the next call") {
  for (const rank_id n : {1U, 3U}) {
    CAPTURE(n);
    two_kernels w(n, takes({2'000'000, 1'000'000}), takes({3'000'000, 1'000'000, 2'000'000}));
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < n; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 7);
      CHECK(w.ran_0[r].order == order{0, 0, 1, 1, 1, 1, 1});
      CHECK(w.ran_1[r].order == order{0, 0, 1, 1, 2, 2, 1});
    }
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < n; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 8);
      CHECK(w.ran_0[r].order.back() == 1);
      CHECK(w.ran_1[r].order.back() == 1);
      CHECK(w.layers[r].end().runs() == 8);
    }
  }
}

TEST_CASE("the log holds warm-ups, and each process begins it anew") {
  auto op = two_kernels::table();
  op.warm_ups = 1;
  two_kernels w(1, takes({2'500'000, 1'000'000}), takes({3'000'000, 1'000'000, 2'000'000}), op);
  w.disk[0].files[".autotune_logs/rank-0.log"] = "[rank-0] of an earlier job\n";
  call_all(w, with_key(w, 8));
  CHECK(w.log(0).find("earlier job") == std::string::npos);
  CHECK(w.log(0).find("func: kernel-0 | key: {n=8} | config-id: 1 | config: {config_1} | warmup-iter: 0\n") !=
        std::string::npos);
  const std::string before = w.log(0);
  call_all(w, with_key(w, 9));
  CHECK(w.log(0).starts_with(before));
  CHECK(w.log(0).size() > before.size());
}

TEST_CASE("the log holds each step, its averages and the best config, byte for byte") {
  two_kernels w(1, takes({2'500'000, 1'000'000}), takes({3'000'000, 1'000'000, 2'000'000}));
  call_all(w, with_key(w, 8));
  std::string expected;
  const auto step = [&](int kernel, int config, int iteration, const std::string& average) {
    expected += "[rank-0] func: kernel-" + std::to_string(kernel) +
                " | key: {n=8} | config-id: " + std::to_string(config) + " | config: {config_" +
                std::to_string(config) + "} | measure-iter: " + std::to_string(iteration);
    if (iteration == 1) expected += " | config-" + std::to_string(config) + " average latency: " + average + " ms";
    expected += "\n";
  };
  const auto best = [&](int kernel, const std::string& latency) {
    expected += "[rank-0] func: kernel-" + std::to_string(kernel) +
                " | key: {n=8} | best-config-id: 1 | best-config: {config_1} | best-latency: " + latency + " ms\n";
  };
  for (const int i : {0, 1}) {
    step(0, 0, i, "2.5");
    step(1, 0, i, "3");
  }
  for (const int i : {0, 1}) {
    step(0, 1, i, "1");
    step(1, 1, i, "1");
  }
  best(0, "1");
  step(1, 2, 0, "2");
  step(1, 2, 1, "2");
  best(1, "1");
  CHECK(w.log(0) == expected);
}

TEST_CASE("averages are plain: one outlier may decide") {
  const auto outlier = [](rank_id, std::size_t c, std::size_t n) -> time_ns {
    return c == 1 ? (n == 0 ? 100 : 7'900) : 3'000;  // 4,000 on average
  };
  two_kernels w(1, outlier, takes({3'000, 2'000, 1'000}));
  call_all(w, with_key(w, 8));
  CHECK(w.layers[0].end().best("kernel-0", "n=8") == "config_0");
  CHECK(w.layers[0].end().best("kernel-1", "n=8") == "config_2");
}

TEST_CASE("the slowest rank's average counts, and one best config holds for all ranks") {
  // Rank 2 is slow with the config that is fastest on the others.
  const auto uneven = [](rank_id r, std::size_t c, std::size_t) -> time_ns {
    return c == 1 ? (r == 2 ? 9'000 : 1'000) : 5'000;
  };
  two_kernels w(3, uneven, takes({3'000, 2'000, 1'000}));
  call_all(w, with_key(w, 8));
  for (rank_id r = 0; r < 3; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.layers[r].end().best("kernel-0", "n=8") == "config_0");
    CHECK(w.log(r).find("best-config-id: 0 | best-config: {config_0} | best-latency: 0.005 ms") != std::string::npos);
  }
}

TEST_CASE("a contextual op reports for each kernel and key the config that runs, the reason, and this rank's times") {
  const auto uneven = [](rank_id r, std::size_t c, std::size_t) -> time_ns {
    return c == 1 ? (r == 2 ? 9'000 : 1'000) : 5'000;
  };
  two_kernels w(3, uneven, takes({3'000, -1, 1'000}));
  std::vector<decision> awaited(3);
  const auto wait = [](contextual layer, decision* into) -> task<> {
    auto d = co_await layer.decided("kernel-0", "n=8");
    *into = std::move(d);
  };
  scope waiting(w.clock);
  for (rank_id r = 0; r < 3; ++r) {
    CHECK_FALSE(w.layers[r].decision("kernel-0", "n=8").decided);
    waiting.spawn(wait(w.layers[r], &awaited[r]));
  }
  call_all(w, with_key(w, 8));
  run_until(w.clock, [&] { return waiting.running() == 0; });
  for (rank_id r = 0; r < 3; ++r) {
    CAPTURE(r);
    const decision d = w.layers[r].decision("kernel-0", "n=8");
    CHECK(d.decided);
    CHECK(d.op == "layer 0->1->2, kernel kernel-0");
    CHECK(d.key == "n=8");
    CHECK(d.config == "config_0");
    CHECK(d.source == actors::decision_source::trials);
    CHECK(d.time_ns == 5'000);
    CHECK(d.why == "config_0 is the fastest: its average on the slowest rank is 0.005 ms");
    REQUIRE(d.evidence.size() == 2);
    CHECK(d.evidence[1].config == "config_1");
    CHECK(d.evidence[1].time_ns == (r == 2 ? 9'000 : 1'000));
    CHECK(d.evidence[1].repetitions == 2);
    CHECK(awaited[r].config == d.config);
    CHECK(awaited[r].why == d.why);
    const decision other = w.layers[r].decision("kernel-1", "n=8");
    CHECK(other.config == "config_2");
    CHECK(other.evidence[1].status == "failed");
    CHECK_FALSE(w.layers[r].decision("kernel-1", "n=9").decided);
    const auto known = w[r].decisions();
    REQUIRE(known.size() == 2);
    CHECK(known[0].op == "layer/kernel-0");
    CHECK(known[0].decision.digest == d.digest);
    CHECK(known[0].decision.why == d.why);
    CHECK(known[0].decision.evidence[1].time_ns == d.evidence[1].time_ns);
    CHECK(known[0].decision.participants == std::vector<rank_id>{0, 1, 2});
    REQUIRE(w[r].dump_flight("asked", "here"));
    const std::string flown = w.disk[r].files["here/parley-flight-" + std::to_string(r) + ".json"];
    CHECK(flown.find("layer 0->1->2, kernel kernel-1") != std::string::npos);
    CHECK(flown.find("config_2") != std::string::npos);
  }
}

TEST_CASE("a wait for a contextual decision ends in a timeout, or with the op when a rank is lost") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  std::vector<errc> codes(2);
  const auto wait = [](contextual layer, time_ns timeout_ns, errc* into) -> task<> {
    try {
      auto d = co_await layer.decided("kernel-0", "n=8", {.timeout = std::chrono::nanoseconds(timeout_ns)});
      static_cast<void>(d);
    } catch (const failure& f) {
      *into = f.code();
    }
  };
  scope waiting(w.clock);
  waiting.spawn(wait(w.layers[0], 1'000'000, &codes[0]));
  waiting.spawn(wait(w.layers[0], 10'000'000, &codes[1]));
  run_until(w.clock, [&] { return waiting.running() == 1; });
  CHECK(codes[0] == errc::timeout);
  w[0].on_lost(1, "it was killed");
  run_until(w.clock, [&] { return waiting.running() == 0; });
  CHECK(codes[1] == errc::peer_failed);
}

TEST_CASE("a contextual decision names its source, a results file or trials") {
  two_kernels w(1, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  tuning::results_file known;
  static_cast<void>(known.add(tuning::result_entry{"layer/kernel-1", "n=8", "config_2", 1.0}));
  w[0].kernels().remember(known);
  call_all(w, with_key(w, 8));
  const decision d = w.layers[0].decision("kernel-1", "n=8");
  CHECK(d.source == actors::decision_source::results);
  CHECK(d.time_ns == 1e6);
  CHECK(w.layers[0].decision("kernel-0", "n=8").source == actors::decision_source::trials);
}

TEST_CASE("in interleaved order, the configs take turns") {
  auto op = two_kernels::table();
  op.order = tuning::contextual_order::interleaved;
  op.warm_ups = 1;
  two_kernels w(1, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), op);
  call_all(w, with_key(w, 8));
  CHECK(w.ran_0[0].order == order{0, 1, 0, 1, 0, 1, 1, 1, 1, 1});
  CHECK(w.ran_1[0].order == order{0, 1, 2, 0, 1, 2, 0, 1, 2, 1});
  CHECK(w.runs[0] == 10);
}

TEST_CASE("a kernel that is called m times per run advances m steps, and each key is tuned on its own") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    ++all->runs[r];
    for (int i = 0; i < 2; ++i) co_await (*all->kernel_0[r])(8);
    co_await (*all->kernel_0[r])(9);
    for (int i = 0; i < 3; ++i) co_await (*all->kernel_1[r])(8);
  };
  call_all(w, [&](rank_id r) { return thunk(&w, r); });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    // Key 9 takes 4 runs. Key 8 takes 2 runs, of kernel-0 as of kernel-1.
    CHECK(w.runs[r] == 5);
    CHECK(w.ran_1[r].order == order{0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1});
    order of_8;
    order of_9;
    for (std::size_t i = 0; i < w.ran_0[r].order.size(); ++i)
      (w.ran_0[r].keys[i] == 8 ? of_8 : of_9).push_back(w.ran_0[r].order[i]);
    CHECK(of_8 == order{0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
    CHECK(of_9 == order{0, 0, 1, 1, 1});
  }
  call_all(w, with_key(w, 10));  // a later call meets new keys
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.runs[r] == 5 + 7);
    CHECK(w.layers[r].end().best("kernel-1", "n=10") == "config_1");
  }
}

TEST_CASE("a kernel may call another kernel, and a tuned thunk another thunk, on one rank and on several") {
  for (const rank_id n : {1U, 3U}) {
    CAPTURE(n);
    // On the last of three ranks, the config that is fastest elsewhere is the slowest.
    const time_model uneven = [](rank_id r, std::size_t c, std::size_t) -> time_ns {
      return r == 2 && c == 1 ? 2'500 : c == 1 ? 1'000 : 2'000;
    };
    two_kernels w(n, uneven, takes({3'000, 2'700, 2'800}));
    struct layer {
      std::unique_ptr<tunable_op<task<>(int)>> outer;
      std::unique_ptr<contextual> inner;
    };
    std::vector<layer> all(n);
    for (rank_id r = 0; r < n; ++r) {
      all[r].outer = std::make_unique<tunable_op<task<>(int)>>(
          w[r].kernels(), tunable_op<task<>(int)>::options{
                              .name = "outer",
                              .implementations = {{"slower", [&w, r](int) { return (*w.kernel_1[r])(8); }},
                                                  {"slow", [&w, r](int) { return (*w.kernel_0[r])(8); }}}});
      all[r].inner = std::make_unique<contextual>(w[r], contextual_options{.name = "inner"});
    }
    const auto within = [](tunable_op<task<>(int)>* o, std::size_t* runs) -> task<> {
      ++*runs;
      co_await (*o)(1);
    };
    const auto thunk = [](layer* mine, std::size_t* runs, auto f) -> task<> {
      const auto part = [=] { return f(mine->outer.get(), runs); };
      co_await mine->inner->run(part);
    };
    call_all(w, [&](rank_id r) { return thunk(&all[r], &w.runs[r], within); });
    for (rank_id r = 0; r < n; ++r) {
      CAPTURE(r);
      CHECK((w.outcomes[r] ? "" : w.outcomes[r].reason().what()) == "");
      CHECK(all[r].inner->end().runs() == 0);
      CHECK(w.runs[r] == w.runs[0]);
      CHECK(w.layers[r].end().best("outer", "all") == "slow");
      CHECK(w.layers[r].end().best("kernel-0", "n=8") == (n == 1 ? "config_1" : "config_0"));
    }
  }
}

TEST_CASE("a first call ends even if its thunk stops calling a kernel in the middle of the trials") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    if (++all->runs[r] <= 3) co_await (*all->kernel_1[r])(8);
  };
  call_all(w, [&](rank_id r) { return thunk(&w, r); });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.runs[r] == 5);
  }
}

TEST_CASE(
    "results keep the best config under the thunk's name, and a rank that lacks the entry gets it from the others") {
  rank_settings s;
  s.results_path = "results.csv";
  std::vector<std::map<std::string, std::string>> files;
  {
    two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), two_kernels::table(), s);
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < 2; ++r) {
      static_cast<void>(w[r].write_results().value());
      files.push_back(w.disk[r].files);
    }
  }
  CHECK(files[0].at("results0.csv").find("\nlayer/kernel-1,n=8,config_1,0.001\n") != std::string::npos);
  for (const bool on_both : {true, false}) {
    CAPTURE(on_both);
    two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), two_kernels::table(), s);
    for (rank_id r = on_both ? 0 : 1; r < 2; ++r)
      w[r].kernels().remember(tuning::parse_results(files[r].at("results" + std::to_string(r) + ".csv")).value().file);
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < 2; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 2);  // the first run tells the other rank what this one remembers
      CHECK(w.ran_1[r].order == order{0, 1});
    }
  }
}

TEST_CASE("a single rank starts with its remembered configs, and with tuning off it tries nothing") {
  rank_settings s;
  for (const bool off : {false, true}) {
    CAPTURE(off);
    if (off) s.policy = actors::tuning_policy::off;
    two_kernels w(1, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), two_kernels::table(), s);
    tuning::results_file known;
    static_cast<void>(known.add(tuning::result_entry{"layer/kernel-1", "n=8", "config_2", 1.0}));
    static_cast<void>(known.add(tuning::result_entry{"layer/kernel-0", "n=8", "Default", 0}));
    w[0].kernels().remember(known);
    call_all(w, with_key(w, 8));
    CHECK(w.outcomes[0]);
    CHECK(w.runs[0] == 1);
    CHECK(w.ran_0[0].order == order{0});
    CHECK(w.ran_1[0].order == order{2});
    call_all(w, with_key(w, 9));
    CHECK(w.runs[0] == (off ? 2 : 8));
  }
}

TEST_CASE("a config whose family is switched off is neither tried nor taken from a results file") {
  std::size_t configs = 3;
  SUBCASE("the other configs are tried") {}
  SUBCASE("without another config the default runs, and nothing is tried") { configs = 2; }
  world w(2);
  std::vector<ran_configs> ran(2);
  std::vector<std::unique_ptr<timed_kernel>> kernels;
  std::vector<contextual> layers;
  for (rank_id r = 0; r < 2; ++r) {
    // The config of the family would win.
    const auto takes = [](rank_id, std::size_t c, std::size_t) -> time_ns { return c == 1 ? 1'000 : 50'000; };
    timed_kernel::options o = kernel_of("kernel", configs, takes, r, ran[r]);
    o.implementations[1].family = "simd";
    w[r].kernels().enable_family("simd", false);
    kernels.push_back(std::make_unique<timed_kernel>(w[r].kernels(), std::move(o)));
    layers.emplace_back(w[r], contextual_options{.name = "layer", .iterations = 2});
  }
  const auto call = [](contextual* layer, timed_kernel* kernel) -> task<> {
    const auto thunk = [kernel] { return (*kernel)(8); };
    co_await layer->run(thunk);
  };
  scope both(w.clock);
  for (rank_id r = 0; r < 2; ++r) both.spawn(call(&layers[r], kernels[r].get()));
  run_until(w.clock, [&] { return both.running() == 0; });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(ran[r].count[1] == 0);
    if (configs == 2) CHECK(ran[r].order.size() == 1);
    const decision d = layers[r].decision("kernel", "n=8");
    CHECK(d.config != "config_1");
    if (configs == 2) CHECK(d.why.find("family simd is switched off") != std::string::npos);
  }
}

TEST_CASE("kernels with one config have no trials: the first call of a function that has no others runs it once") {
  bool checks = false;
  SUBCASE("a single config") {}
  SUBCASE("numbers must be compared, and no outputs are declared") { checks = true; }
  rank_settings s;
  s.kernels.check.on = checks;
  world w(2, s);
  std::vector<ran_configs> ran(2);
  std::vector<std::unique_ptr<timed_kernel>> kernels;
  std::vector<contextual> layers;
  std::vector<std::size_t> runs(2);
  for (rank_id r = 0; r < 2; ++r) {
    const auto takes = [](rank_id, std::size_t, std::size_t) -> time_ns { return 1'000; };
    kernels.push_back(
        std::make_unique<timed_kernel>(w[r].kernels(), kernel_of("kernel", checks ? 2 : 1, takes, r, ran[r])));
    layers.emplace_back(w[r], contextual_options{.name = "layer"});
  }
  const auto call = [](contextual* layer, timed_kernel* kernel, std::size_t* count) -> task<> {
    const auto thunk = [kernel, count] {
      ++*count;
      return (*kernel)(8);
    };
    co_await layer->run(thunk);
  };
  for (std::size_t calls = 1; calls <= 2; ++calls) {
    scope both(w.clock);
    for (rank_id r = 0; r < 2; ++r) both.spawn(call(&layers[r], kernels[r].get(), &runs[r]));
    run_until(w.clock, [&] { return both.running() == 0; });
    CHECK(runs == std::vector<std::size_t>(2, calls));
  }
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(layers[r].decision("kernel", "n=8").config == "config_0");
    CHECK(layers[r].decision("kernel", "n=8").source == actors::decision_source::only_default);
    CHECK(w[r].kernels().learned().empty());
    CHECK(w[r].kernels().warnings().size() == (checks ? 1 : 0));
  }
}
