#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/compute.hpp>
#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/paired_transfer.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>
#include <parley/tuning/planners/time_model.hpp>
#include <parley/when.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <optional>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using tuning::kernel_key;

namespace {

using timed_kernel = tunable_op<task<>(std::uint64_t)>;

/// How long config `c` takes on a rank in its `n`-th run; a negative time throws.
using time_model = std::function<time_ns(rank_id, std::size_t c, std::size_t n)>;

/// The configs of one kernel on one rank, in the order in which they ran.
struct ran_configs {
  std::vector<std::size_t> order;
  std::vector<std::uint64_t> keys;
  std::map<std::size_t, std::size_t> count;
};

task<> run_config(time_model takes, rank_id self, std::size_t c, ran_configs* ran, std::uint64_t key) {
  ran->order.push_back(c);
  ran->keys.push_back(key);
  const time_ns ns = takes(self, c, ran->count[c]++);
  co_await compute([] {}, ns < 0 ? 10 : ns);
  if (ns < 0) raise({errc::unavailable, "out of registers"});
}

timed_kernel::options kernel_of(std::string name, std::size_t configs, const time_model& takes, rank_id self,
                                ran_configs& ran) {
  timed_kernel::options o;
  o.name = std::move(name);
  o.key = [](std::uint64_t n) { return kernel_key{{"n", n}}; };
  for (std::size_t c = 0; c < configs; ++c)
    o.implementations.push_back({"config_" + std::to_string(c), [takes, self, c, r = &ran](std::uint64_t n) {
                                   return run_config(takes, self, c, r, n);
                                 }});
  return o;
}

/// Two kernels on each rank of a world, with 2 and 3 configs: the worked case.
struct two_kernels : world {
  /// `of_last`: as the last rank declares it.
  explicit two_kernels(rank_id n, const time_model& first, const time_model& second, contextual_op op = table(),
                       const rank_settings& settings = {}, const std::optional<contextual_op>& of_last = {})
      : world(n, settings), ran_0(n), ran_1(n), runs(n), outcomes(n) {
    for (rank_id r = 0; r < n; ++r) {
      kernel_0.push_back(
          std::make_unique<timed_kernel>(ranks[r]->kernels(), kernel_of("kernel-0", 2, first, r, ran_0[r])));
      kernel_1.push_back(
          std::make_unique<timed_kernel>(ranks[r]->kernels(), kernel_of("kernel-1", 3, second, r, ran_1[r])));
      if (r + 1 == n && of_last) op = *of_last;
      op.name = "layer";
      layers.emplace_back(*ranks[r], op);
    }
  }
  static contextual_op table() {
    contextual_op op;
    op.iterations = 2;
    op.timeout_ns = 1'000'000'000;
    return op;
  }
  std::string log(rank_id r) { return disk[r].files[".autotune_logs/rank-" + std::to_string(r) + ".log"]; }

  std::vector<ran_configs> ran_0;
  std::vector<ran_configs> ran_1;
  std::vector<std::size_t> runs;
  std::vector<result<>> outcomes;
  std::vector<std::unique_ptr<timed_kernel>> kernel_0;
  std::vector<std::unique_ptr<timed_kernel>> kernel_1;
  std::vector<contextual> layers;
};

task<> both_kernels(two_kernels* w, rank_id r, std::uint64_t key) {
  ++w->runs[r];
  co_await (*w->kernel_0[r])(key);
  co_await (*w->kernel_1[r])(key);
}

using program = std::function<task<>(rank_id)>;
task<> tuned(two_kernels* w, rank_id r, program f) {
  const auto thunk = [&f, r] { return f(r); };
  auto outcome = co_await attempt(w->layers[r].run(thunk));
  w->outcomes[r] = outcome;
}

/// One call on each rank of `on`; the others are silent.
void call_on(two_kernels& w, const program& f, const std::vector<rank_id>& on) {
  scope calls(w.clock);
  for (const rank_id r : on) calls.spawn(tuned(&w, r, f));
  run_until(w.clock, [&] { return calls.running() == 0; });
}
void call_all(two_kernels& w, const program& f) {
  std::vector<rank_id> all;
  for (rank_id r = 0; r < w.ranks.size(); ++r) all.push_back(r);
  call_on(w, f, all);
}
program with_key(two_kernels& w, std::uint64_t key) {
  return [&w, key](rank_id r) { return both_kernels(&w, r, key); };
}

time_model takes(std::vector<time_ns> ns) {
  return [ns = std::move(ns)](rank_id, std::size_t c, std::size_t) { return ns[c]; };
}

using order = std::vector<std::size_t>;

}  // namespace

TEST_CASE("the worked case: 7 runs in the stated order, and 1 at the next call") {
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

TEST_CASE("the log says each step, its averages and the best, byte for byte") {
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

TEST_CASE("averages are plain: one outlier counts") {
  const auto outlier = [](rank_id, std::size_t c, std::size_t n) -> time_ns {
    return c == 1 ? (n == 0 ? 100 : 7'900) : 3'000;  // 4000 on average
  };
  two_kernels w(1, outlier, takes({3'000, 2'000, 1'000}));
  call_all(w, with_key(w, 8));
  CHECK(w.layers[0].end().best("kernel-0", "n=8") == "config_0");
  CHECK(w.layers[0].end().best("kernel-1", "n=8") == "config_2");
}

TEST_CASE("the longest of all ranks counts, and one best holds for all") {
  // Rank 2 is slow with what is fastest on the others.
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

TEST_CASE("a contextual op says for each kernel and key what runs, why, and what this rank measured") {
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
    CHECK(d.why == "config_0 is the fastest by the longest of all ranks' averages, 0.005 ms");
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

TEST_CASE("who waits for a contextual decision that does not come is told so, and ends with the op") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  std::vector<errc> codes(2);
  const auto wait = [](contextual layer, time_ns timeout_ns, errc* into) -> task<> {
    try {
      auto d = co_await layer.decided("kernel-0", "n=8", {.timeout_ns = timeout_ns});
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

TEST_CASE("what is remembered, and what only some ranks could tune, is said so of a contextual decision") {
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

TEST_CASE("interleaved, the configs take turns") {
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
    // Key 9 takes 4 runs, key 8 of kernel-0 and kernel-1 take 2.
    CHECK(w.runs[r] == 5);
    CHECK(w.ran_1[r].order == order{0, 0, 1, 1, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1});
    order of_8;
    order of_9;
    for (std::size_t i = 0; i < w.ran_0[r].order.size(); ++i)
      (w.ran_0[r].keys[i] == 8 ? of_8 : of_9).push_back(w.ran_0[r].order[i]);
    CHECK(of_8 == order{0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
    CHECK(of_9 == order{0, 0, 1, 1, 1});
  }
  call_all(w, with_key(w, 10));  // new keys at a later call
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.runs[r] == 5 + 7);
    CHECK(w.layers[r].end().best("kernel-1", "n=10") == "config_1");
  }
}

TEST_CASE("a kernel may call another one, and a tuned thunk another one, on one rank and on several") {
  for (const rank_id n : {1U, 3U}) {
    CAPTURE(n);
    // On the last of three ranks the config that is faster elsewhere is slower than all.
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
      all[r].inner = std::make_unique<contextual>(w[r], contextual_op{.name = "inner"});
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

TEST_CASE("a config that fails on one rank is out on all, and what has not failed runs in its place") {
  for (const rank_id n : {1U, 3U}) {
    CAPTURE(n);
    const auto broken = [n](rank_id r, std::size_t c, std::size_t) -> time_ns {
      return c == 1 && r == n - 1 ? -1 : c == 1 ? 100 : 5'000;
    };
    two_kernels w(n, broken, takes({3'000, 1'000, 2'000}));
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < n; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 7);
      CHECK(w.layers[r].end().best("kernel-0", "n=8") == "config_0");
    }
    CHECK(w.ran_0[n - 1].order == order{0, 0, 1, 0, 0, 0, 0, 0});
    CHECK(w.log(n - 1).find("config-id: 1 | config: {config_1} | measure-iter: 1 | config-1 average latency: inf ms") !=
          std::string::npos);
    REQUIRE(w[n - 1].kernels().warnings().size() == 1);
    CHECK(w[n - 1].kernels().warnings()[0].find("config config_1 throws: unavailable: out of registers") !=
          std::string::npos);
  }
}

TEST_CASE("a config that was fast before it failed has no time") {
  const auto fails_later = [](rank_id r, std::size_t c, std::size_t n) -> time_ns {
    return c == 1 ? (r == 1 && n == 1 ? -1 : 100) : 5'000;
  };
  two_kernels w(2, fails_later, takes({3'000, 1'000, 2'000}));
  call_all(w, with_key(w, 8));
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.layers[r].end().best("kernel-0", "n=8") == "config_0");
  }
}

TEST_CASE("the last config, the default and each in turn may fail, and there is a decision on every rank") {
  for (const rank_id n : {1U, 3U}) {
    for (const std::size_t failing : {0U, 1U, 2U}) {
      CAPTURE(n);
      CAPTURE(failing);
      const auto broken = [failing](rank_id r, std::size_t c, std::size_t) -> time_ns {
        return c == failing && r == 0 ? -1 : static_cast<time_ns>(1'000 * (c + 1));
      };
      two_kernels w(n, takes({2'000, 1'000}), broken);
      call_all(w, with_key(w, 8));
      for (rank_id r = 0; r < n; ++r) {
        CHECK(w.outcomes[r]);
        CHECK(w.runs[r] == 7);
        CHECK(w.layers[r].end().best("kernel-1", "n=8") == (failing == 0 ? "config_1" : "config_0"));
      }
    }
  }
}

TEST_CASE("where each config has failed, on one rank or on different ones, every rank is told that there is none") {
  const auto all_on_one = [](rank_id r, std::size_t, std::size_t) -> time_ns { return r == 0 ? -1 : 1'000; };
  const auto one_on_each = [](rank_id r, std::size_t c, std::size_t) -> time_ns { return c == r ? -1 : 1'000; };
  for (const rank_id n : {1U, 3U}) {
    for (const bool on_one : {true, false}) {
      if (n == 1 && !on_one) continue;
      CAPTURE(n);
      CAPTURE(on_one);
      bool cured = false;
      const auto broken = [&](rank_id r, std::size_t c, std::size_t i) -> time_ns {
        return cured ? 1'000 : on_one ? all_on_one(r, c, i) : one_on_each(r, c, i);
      };
      two_kernels w(n, takes({2'000, 1'000}), broken);
      const time_ns began = w.clock.now();
      call_all(w, with_key(w, 8));
      CHECK(w.clock.now() - began < 1'000'000'000);
      for (rank_id r = 0; r < n; ++r) {
        CAPTURE(r);
        REQUIRE_FALSE(w.outcomes[r]);
        CHECK(w.outcomes[r].code() == errc::config_failed);
        CHECK(w.outcomes[r].reason().what().find("cannot find valid config") != std::string::npos);
      }
      cured = true;  // the next call begins again
      call_all(w, with_key(w, 8));
      for (rank_id r = 0; r < n; ++r) CHECK(w.outcomes[r]);
    }
  }
}

TEST_CASE("what the thunk throws on one rank while they tune ends the call on all, wherever they wait") {
  struct failing {
    two_kernels w{3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000})};
    std::uint64_t key;
    rank_id culprit;
    std::size_t run;
    bool cured = false;
  };
  const auto thunk = [](failing* in, rank_id r) -> task<> {
    co_await both_kernels(&in->w, r, in->key);
    if (in->cured || in->w.runs[r] != in->run) co_return;
    if (r == in->culprit) raise({errc::io, "no more disk"});
    if (r != 1) co_return;
    auto woken = co_await sleep_until(never - 1);  // for something that never comes
    if (!woken) raise(woken.reason());
  };
  for (const rank_id culprit : {0U, 2U}) {
    // In a call that is the first one, or the first with its key; in a run that tries something, or the one that meets the key.
    for (const auto& [later, run] : {std::pair(false, 1U), {false, 3U}, {true, 1U}, {true, 3U}}) {
      CAPTURE(culprit);
      CAPTURE(later);
      CAPTURE(run);
      failing f{.key = later ? 9U : 8U, .culprit = culprit, .run = run};
      if (later) call_all(f.w, with_key(f.w, 8));
      for (auto& runs : f.w.runs) runs = 0;
      const time_ns began = f.w.clock.now();
      const program call = [&](rank_id r) { return thunk(&f, r); };
      call_all(f.w, call);
      CHECK(f.w.clock.now() - began < 100'000'000);
      for (rank_id r = 0; r < 3; ++r) {
        CHECK(is(f.w.outcomes[r], {.code = errc::io, .rank = r, .quotes = "no more disk"}));
      }
      f.cured = true;
      for (auto& runs : f.w.runs) runs = 0;
      call_all(f.w, call);
      for (rank_id r = 0; r < 3; ++r) {
        CHECK(f.w.outcomes[r]);
        CHECK(f.w.runs[r] == 7);
      }
    }
  }
}

TEST_CASE("who waits in the last run of a first call for a rank whose run has failed is told") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    co_await both_kernels(all, r, 8);
    if (all->runs[r] != 7) co_return;
    if (r == 1) raise({errc::io, "no more disk"});
    auto woken = co_await sleep_until(never - 1);
    if (!woken) raise(woken.reason());
  };
  const time_ns began = w.clock.now();
  call_all(w, [&](rank_id r) { return thunk(&w, r); });
  CHECK(w.clock.now() - began < 100'000'000);
  for (rank_id r = 0; r < 2; ++r) CHECK(w.outcomes[r].code() == errc::io);
}

TEST_CASE("a settled run has nothing to do with another rank's failure, or death") {
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  call_all(w, with_key(w, 8));
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    co_await both_kernels(all, r, 8);
    if (r == 1) raise({errc::io, "no more disk"});
    auto slept = co_await sleep_until(all->clock.deadline_in(50'000'000));
    if (!slept) raise(slept.reason());
  };
  scope calls(w.clock);
  const program f = [&](rank_id r) { return thunk(&w, r); };
  for (const rank_id r : {0U, 1U}) calls.spawn(tuned(&w, r, f));
  run_until(w.clock, [&] { return !w.outcomes[1]; });
  w[0].on_lost(1, "killed");
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(w.outcomes[0]);
}

TEST_CASE("a rank that never comes ends in a time-out that names it, and one that dies in peer_failed, on all others") {
  for (const bool dies : {false, true}) {
    CAPTURE(dies);
    for (const rank_id missing : {0U, 2U}) {
      CAPTURE(missing);
      two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
      std::vector<rank_id> others{0, 1, 2};
      std::erase(others, missing);
      scope calls(w.clock);
      const auto f = with_key(w, 8);
      for (const rank_id r : others) calls.spawn(tuned(&w, r, f));
      const time_ns began = w.clock.now();
      run_until(w.clock, [&] { return w.runs[others[0]] == 1 && w.runs[others[1]] == 1; });
      if (dies) {
        for (const rank_id r : others) w[r].on_lost(missing, "killed");
      }
      run_until(w.clock, [&] { return calls.running() == 0; });
      CHECK(w.clock.now() - began < 1'200'000'000);
      for (const rank_id r : others) {
        REQUIRE_FALSE(w.outcomes[r]);
        const std::string rank = "rank " + std::to_string(missing);
        CHECK(
            is(w.outcomes[r], {.code = dies ? errc::peer_failed : errc::timeout,
                               .rank = r,
                               .quotes = dies ? rank : "; " + rank + " has made 0 calls of it; it waits in no call"}));
      }
    }
  }
}

TEST_CASE("a run that takes too long ends on every rank, and leaves a flight record there") {
  rank_settings settings;
  settings.flight_dir = "box";
  two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}), two_kernels::table(), settings);
  const auto thunk = [](two_kernels* all, rank_id r) -> task<> {
    co_await both_kernels(all, r, 8);
    if (r == 1) {
      auto woken = co_await sleep_until(never - 1);
      if (!woken) raise(woken.reason());
    }
  };
  call_all(w, [&](rank_id r) { return thunk(&w, r); });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r].code() == errc::timeout);
    const std::string& left = w.disk[r].files["box/parley-flight-" + std::to_string(r) + ".json"];
    CHECK(left.find("\"why\":\"timeout: ") != std::string::npos);
    CHECK(left.find(", invocation 0, on rank " + std::to_string(r)) != std::string::npos);
  }
}

TEST_CASE("ranks that declare a tuned thunk in other ways are all told which, before its first round is over") {
  const auto changed = [](const std::function<void(contextual_op&)>& change) {
    contextual_op op = two_kernels::table();
    change(op);
    return op;
  };
  struct other {
    contextual_op op;
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

TEST_CASE("what only some ranks could tune keeps its default there, and says so") {
  for (const rank_id odd : {0U, 1U}) {
    CAPTURE(odd);
    two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    call_all(w, with_key(w, 8));
    call_all(w, [&](rank_id r) { return both_kernels(&w, r, r == odd ? 9 : 8); });
    for (rank_id r = 0; r < 3; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 8);
      CHECK(w[r].kernels().warnings().size() == (r == odd ? 2 : 0));
    }
    CHECK(w.layers[odd].end().best("kernel-0", "n=9") == "config_0");
    call_all(w, with_key(w, 8));
    for (rank_id r = 0; r < 3; ++r) CHECK(w.runs[r] == 9);
  }
}

TEST_CASE("a kernel that is not called any more is decided by what was measured") {
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

TEST_CASE("lost, late and overtaking messages cost time, and never a decision that differs") {
  for (const std::uint64_t seed : {1U, 2U, 3U, 4U}) {
    CAPTURE(seed);
    two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    random_stream dice(seed, 5);
    w.links.options().lose = [&](rank_id, rank_id, link::channel) { return dice.below(4) == 0; };
    w.links.options().delay = [&](rank_id, rank_id, link::channel) { return static_cast<time_ns>(dice.below(90'000)); };
    for (int call = 0; call < 3; ++call) call_all(w, with_key(w, 8 + static_cast<std::uint64_t>(call % 2)));
    for (rank_id r = 0; r < 3; ++r) {
      CHECK(w.outcomes[r]);
      CHECK(w.runs[r] == 15);
      CHECK(w.layers[r].end().best("kernel-1", "n=9") == "config_1");
    }
  }
}

TEST_CASE("the best of a thunk is kept in results, for it alone, and a rank that lacks it takes the others'") {
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
      CHECK(w.runs[r] == 2);  // the first one is what tells the others
      CHECK(w.ran_1[r].order == order{0, 1});
    }
  }
}

TEST_CASE("alone a rank starts with what it remembers, and with tuning off it tries nothing") {
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

TEST_CASE("a contextual op that cannot work is refused when it is declared") {
  world w(2);
  CHECK_THROWS_AS(contextual(w[0], {.name = "a", .iterations = 0}), failure);
  CHECK_THROWS_AS(contextual(w[0], {.name = "a", .members = {0, 7}}), failure);
  CHECK_THROWS_AS(contextual(w[0], {.name = "a,b"}), failure);
  contextual others(w[0], {.name = "a", .members = {1}});
  CHECK(others.idle());
  CHECK_THROWS_AS(static_cast<void>(others.run([] {})), failure);
  contextual once(w[0], {.name = "b", .members = {0}});
  CHECK_THROWS_AS(contextual(w[0], {.name = "b", .members = {0}}), failure);
}

// ---- numbers are compared -----------------------------------------------------------------------------------------------

namespace {

using span_kernel = tunable_op<task<>(std::span<const float>, std::span<float>)>;

/// `slow`, the default, and `steady` are right; `quick` is the fastest, and what it writes is up to the test.
struct checked_kernel {
  using writes = std::function<void(rank_id, std::span<const float>, std::span<float>)>;
  static void doubled(rank_id, std::span<const float> in, std::span<float> out) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = 2 * in[i];
  }
  static void added(rank_id, std::span<const float> in, std::span<float> out) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] += in[i];
  }
  enum class declares : std::uint8_t { written, updated, nothing };

  static task<> run(const writes* write, rank_id self, time_ns ns, std::span<const float> in, std::span<float> out) {
    auto step = [write, self, in, out] { (*write)(self, in, out); };
    co_await compute(step, ns);
  }
  span_kernel::options options(rank_id self) const {
    span_kernel::options o;
    o.name = "kernel";
    o.key = [](std::span<const float> in, std::span<float>) { return kernel_key{{"n", in.size()}}; };
    if (outputs == declares::written) o.outputs = [](auto, std::span<float> out) { return kernel_outputs(out); };
    if (outputs == declares::updated)
      o.outputs = [](auto, std::span<float> out) { return kernel_outputs::updated(out); };
    const auto add = [&](const char* id, const writes& how, time_ns ns) {
      o.implementations.push_back({id, [w = &how, self, ns](std::span<const float> in, std::span<float> out) {
                                     return run(w, self, ns, in, out);
                                   }});
    };
    add("slow", right, 3'000'000);
    add("quick", quick, 100'000);
    add("steady", right, 1'000'000);
    return o;
  }
  writes right = doubled;
  writes quick = doubled;
  declares outputs = declares::written;
};

struct checked_layers : world {
  checked_layers(rank_id n, const checked_kernel& k, bool checks)
      : world(n, settings_with(checks)), kernel(k), outcomes(n) {
    contextual_op op;
    op.name = "layer";
    op.iterations = 2;
    for (rank_id r = 0; r < n; ++r) {
      kernels.push_back(std::make_unique<span_kernel>(ranks[r]->kernels(), kernel.options(r)));
      layers.emplace_back(*ranks[r], op);
      in.push_back({1, 2, 3, 4});
      half.emplace_back(4);
      out.emplace_back(4);
    }
  }
  static rank_settings settings_with(bool checks) {
    rank_settings s;
    s.kernels.check.on = checks;
    return s;
  }
  // Three calls with one key, the later ones on what the first one gave.
  static task<> thunk(checked_layers* w, rank_id r) {
    std::fill(w->half[r].begin(), w->half[r].end(), w->zero);
    std::fill(w->out[r].begin(), w->out[r].end(), w->zero);
    co_await (*w->kernels[r])(w->in[r], w->half[r]);
    co_await (*w->kernels[r])(w->half[r], w->out[r]);
    std::vector<float> again(4, w->zero);
    co_await (*w->kernels[r])(w->in[r], again);
  }
  static task<> call(checked_layers* w, rank_id r) {
    const auto f = [w, r] { return thunk(w, r); };
    auto outcome = co_await attempt(w->layers[r].run(f));
    w->outcomes[r] = outcome;
  }
  void call_all() {
    scope calls(clock);
    for (rank_id r = 0; r < ranks.size(); ++r) calls.spawn(call(this, r));
    run_until(clock, [&] { return calls.running() == 0; });
    for (const auto& o : outcomes) CHECK((o ? "" : o.reason().what()) == "");
  }
  std::string best(rank_id r) { return layers[r].end().best("kernel", "n=4"); }

  checked_kernel kernel;
  float zero = 0;
  std::vector<result<>> outcomes;
  std::vector<std::unique_ptr<span_kernel>> kernels;
  std::vector<contextual> layers;
  std::vector<std::vector<float>> in, half, out;
};

const std::vector<float> four_times{4, 8, 12, 16};

}  // namespace

TEST_CASE("with NUMERICAL_CHECK a fast config whose numbers are wrong on one rank wins on none") {
  checked_kernel k;
  k.quick = [](rank_id self, std::span<const float> in, std::span<float> out) {
    checked_kernel::doubled(self, in, out);
    if (self == 1) out[3] += 1;
  };
  checked_layers w(3, k, true);
  w.call_all();
  for (rank_id r = 0; r < 3; ++r) {
    CAPTURE(r);
    CHECK(w.best(r) == "steady");
    CHECK(w.out[r] == four_times);
    CHECK(w.layers[r].decision("kernel", "n=4").evidence[1].status == (r == 1 ? "failed" : "measured"));
  }
  const auto& warned = w[1].kernels().warnings();
  REQUIRE(warned.size() == 1);
  CHECK_MESSAGE(warned[0].find("kernel kernel, key {n=4}: config quick gives wrong numbers") != std::string::npos,
                warned[0]);
  CHECK(w.layers[1].decision("kernel", "n=4").evidence[1].detail.find("gives wrong numbers") == 0);
  CHECK(w[0].kernels().warnings().empty());
  const std::uint64_t before = w.layers[0].end().runs();
  w.call_all();
  CHECK(w.layers[0].end().runs() == before + 1);

  checked_layers trusting(3, k, false);
  trusting.call_all();
  CHECK(trusting.best(0) == "quick");
  CHECK(trusting.out[1] != four_times);
}

TEST_CASE("with NUMERICAL_CHECK a config that writes nothing is not taken for a fast one, and one that is right is") {
  checked_kernel k;
  k.quick = [](rank_id, std::span<const float>, std::span<float>) {};
  checked_layers w(2, k, true);
  w.zero = 4;  // what it leaves, where it is right
  w.in = {{2, 2, 2, 2}, {2, 2, 2, 2}};
  w.call_all();
  for (rank_id r = 0; r < 2; ++r) CHECK(w.best(r) == "steady");

  checked_layers right(2, checked_kernel{}, true);
  right.call_all();
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(right.best(r) == "quick");
    CHECK(right.out[r] == four_times);
    CHECK(right[r].kernels().warnings().empty());
  }
}

TEST_CASE("with NUMERICAL_CHECK what a wrong config has updated is put back before another one runs in its place") {
  checked_kernel k;
  k.right = checked_kernel::added;
  k.outputs = checked_kernel::declares::updated;
  k.quick = [](rank_id self, std::span<const float> in, std::span<float> out) {
    checked_kernel::added(self, in, out);
    checked_kernel::added(self, in, out);
  };
  checked_layers w(2, k, true);
  w.zero = 1;
  w.call_all();
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.best(r) == "steady");
    CHECK(w.out[r] == std::vector<float>{3, 4, 5, 6});
  }
}

TEST_CASE("with NUMERICAL_CHECK a kernel that declares no outputs keeps its default, and a warning says so, once") {
  checked_kernel k;
  k.outputs = checked_kernel::declares::nothing;
  checked_layers w(2, k, true);
  w.call_all();
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.best(r) == "slow");
    REQUIRE(w[r].kernels().warnings().size() == 1);
    CHECK(w[r].kernels().warnings()[0].find("NUMERICAL_CHECK is on, but the kernel declares no outputs") !=
          std::string::npos);
  }
}

namespace {

task<> run_layer(contextual* layer, std::function<task<>()> thunk, result<>* outcome) {
  *outcome = co_await attempt(layer->run(thunk));
}
task<> run_beside(timed_kernel* kernel, executor* ex, int* ended) {
  static_cast<void>(co_await sleep_until(ex->deadline_in(100)));
  co_await (*kernel)(1);
  ++*ended;
}

}  // namespace

TEST_CASE("a kernel of another coroutine goes on when the call that it was a part of has failed") {
  world w(1);
  ran_configs ran;
  std::size_t calls = 0;
  const auto slow_beside = [&](rank_id, std::size_t, std::size_t) -> time_ns {
    return ++calls == 2 ? 5'000'000 : 1'000'000;
  };
  timed_kernel kernel(w[0].kernels(), kernel_of("kernel", 3, slow_beside, 0, ran));
  contextual_op op;
  op.name = "layer";
  op.iterations = 2;
  contextual layer(w[0], op);
  int runs = 0;
  int ended = 0;
  result<> outcome;
  scope all(w.clock);
  const auto thunk = [&]() -> task<> {
    co_await kernel(1);
    if (++runs == 2) raise({errc::exception, "the thunk fails"});
  };
  all.spawn(run_layer(&layer, thunk, &outcome));
  all.spawn(run_beside(&kernel, &w.clock, &ended));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(outcome.code() == errc::exception);
  CHECK(ended == 1);
  CHECK(ran.order.size() == 3);
}

TEST_CASE("ranks that list the members of a tuned thunk in other orders mean the same op") {
  world w(2);
  std::vector<ran_configs> ran(2);
  std::vector<std::unique_ptr<timed_kernel>> kernels;
  std::vector<contextual> layers;
  std::vector<result<>> outcomes(2);
  const auto even = [](rank_id, std::size_t c, std::size_t) -> time_ns { return c == 1 ? 1'000'000 : 2'000'000; };
  for (rank_id r = 0; r < 2; ++r) {
    kernels.push_back(std::make_unique<timed_kernel>(w[r].kernels(), kernel_of("kernel", 2, even, r, ran[r])));
    contextual_op op;
    op.name = "layer";
    op.members = r == 0 ? std::vector<rank_id>{0, 1} : std::vector<rank_id>{1, 0};
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

// ---- what was agreed on, and was not heard ------------------------------------------------------------------------------

namespace {

/// What rank 0 says from its `from_run`-th run on is lost while `lossy`; the other ranks would each decide otherwise.
struct deaf_ranks : two_kernels {
  explicit deaf_ranks(rank_id n, std::size_t from_run) : two_kernels(n, takes({2'000, 1'000}), uneven) {
    links.options().lose = [this, from_run](rank_id from, rank_id to, link::channel) {
      return lossy && from == 0 && to + 1 == ranks.size() && runs[0] >= from_run;
    };
  }
  static time_ns uneven(rank_id r, std::size_t c, std::size_t) {
    return c == 1 ? (r == 0 ? 9'000 : 1'000) : c == 0 ? 5'000 : 3'000;
  }
  void check_alike(const std::string& key) {
    CAPTURE(key);
    for (const auto& layer : layers) {
      CHECK(layer.end().best("kernel-0", key) == layers[0].end().best("kernel-0", key));
      CHECK(layer.end().best("kernel-1", key) == layers[0].end().best("kernel-1", key));
      CHECK_FALSE(layer.end().best("kernel-1", key).empty());
    }
  }
  bool lossy = true;
};

task<> with_keys(two_kernels* w, rank_id r, std::vector<std::uint64_t> keys) {
  ++w->runs[r];
  for (const std::uint64_t key : keys) {
    co_await (*w->kernel_0[r])(key);
    co_await (*w->kernel_1[r])(key);
  }
}
task<> no_more_disk(two_kernels* w, rank_id r, std::uint64_t key) {
  co_await both_kernels(w, r, key);
  raise({errc::io, "no more disk"});
}

}  // namespace

TEST_CASE("what a rank has not heard in time it takes over in a later call, whatever that tunes on which ranks") {
  using keys = std::vector<std::uint64_t>;
  struct later {
    std::string what;
    keys leader, deaf;
  };
  for (const rank_id n : {2U, 3U}) {
    // After 4 runs kernel-0 is decided and kernel-1 is not, after 6 all is.
    for (const std::size_t from_run : {4U, 6U}) {
      for (const auto& [what, of_leader, of_deaf] :
           {later{"nothing new", {8}, {8}}, later{"another key on all", {8, 9}, {8, 9}},
            later{"another key on the leader alone", {8, 9}, {8}},
            later{"another key on the rank alone that has not heard", {8}, {8, 9}}}) {
        CAPTURE(n);
        CAPTURE(from_run);
        CAPTURE(what);
        deaf_ranks w(n, from_run);
        call_all(w, with_key(w, 8));
        CHECK((w.outcomes[0].code() == errc::none) == (from_run == 6));
        CHECK_FALSE(w.outcomes[n - 1]);
        w.lossy = false;
        const program call = [&](rank_id r) { return with_keys(&w, r, r + 1 == n ? of_deaf : of_leader); };
        for (int i = 0; i < 3; ++i) {
          call_all(w, call);
          for (rank_id r = 0; r < n; ++r) CHECK((w.outcomes[r] ? "" : w.outcomes[r].reason().what()) == "");
        }
        w.check_alike("n=8");
        CHECK(w.layers[0].end().best("kernel-0", "n=8") == "config_1");
        CHECK(w.layers[0].end().best("kernel-1", "n=8") == "config_2");
        for (rank_id r = 0; r < n; ++r) run_until(w.clock, [&] { return !w.layers[r].end().owes_messages(); });
        call_all(w, [&](rank_id r) { return with_keys(&w, r, {8, 9}); });
        w.check_alike("n=8");
        w.check_alike("n=9");
      }
    }
  }
}

TEST_CASE("an outcome that is lost ends its call, also after the leader has failed later ones, which say why") {
  for (const std::uint64_t failures : {1U, 3U, 30U}) {
    CAPTURE(failures);
    deaf_ranks w(2, 6);
    scope calls(w.clock);
    const program first = with_key(w, 8);
    const program failing = [&](rank_id r) { return no_more_disk(&w, r, 9); };
    calls.spawn(tuned(&w, 1, first));
    call_on(w, first, {0});
    CHECK(w.outcomes[0]);
    for (std::uint64_t i = 0; i < failures; ++i) {
      call_on(w, failing, {0});
      CHECK(w.outcomes[0].code() == errc::io);
    }
    w.lossy = false;
    run_until(w.clock, [&] { return calls.running() == 0; });
    CHECK(w.outcomes[1]);
    CHECK(w.runs[1] == 7);
    w.check_alike("n=8");
    run_until(w.clock, [&] { return !w.layers[0].end().owes_messages(); });
    std::size_t known = 0;
    for (std::uint64_t i = 0; i < failures; ++i) {
      call_on(w, with_key(w, 9), {1});
      REQUIRE_FALSE(w.outcomes[1]);
      if (w.outcomes[1].code() == errc::io)
        CHECK(is(w.outcomes[1], {.quotes = "rank 0: no more disk"}));
      else
        CHECK(is(w.outcomes[1], {.code = errc::closed, .op = "layer 0->1"}));
      known += w.outcomes[1].code() == errc::io ? 1 : 0;
    }
    CHECK(known == std::min<std::size_t>(failures, 16));  // the latest
    call_all(w, with_key(w, 9));
    for (rank_id r = 0; r < 2; ++r) CHECK(w.outcomes[r]);
    w.check_alike("n=9");
    CHECK(w.layers[1].decision("kernel-1", "n=9").source == actors::decision_source::trials);
  }
}

TEST_CASE("where one rank has kept a default, all keep it who meet the key later, beside other new keys too") {
  for (const rank_id odd : {0U, 1U, 2U}) {
    CAPTURE(odd);
    two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    call_all(w, with_key(w, 8));
    call_all(w, [&](rank_id r) { return both_kernels(&w, r, r == odd ? 9 : 8); });
    for (int i = 0; i < 2; ++i) {
      call_all(w, [&](rank_id r) { return with_keys(&w, r, {9, 10}); });
      for (rank_id r = 0; r < 3; ++r) {
        CAPTURE(r);
        CHECK((w.outcomes[r] ? "" : w.outcomes[r].reason().what()) == "");
        CHECK(w.layers[r].end().best("kernel-1", "n=9") == "config_0");
        CHECK(w.layers[r].end().best("kernel-1", "n=10") == "config_1");
        CHECK(w.layers[r].decision("kernel-0", "n=9").source == actors::decision_source::only_default);
        CHECK(w[r].kernels().warnings().size() == 2);
      }
    }
  }
}

TEST_CASE("who waits in a run is told that another's has failed, also when its word of the run before is late") {
  two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
  time_ns failed_at = never;
  w.links.options().delay = [&](rank_id from, rank_id, link::channel) -> time_ns { return from == 1 ? 20'000'000 : 0; };
  w.links.options().lose = [&](rank_id from, rank_id to, link::channel) {
    return from == 0 && to == 1 && failed_at != never && w.clock.now() < failed_at + 10'000'000;
  };
  const auto thunk = [](two_kernels* all, rank_id r, time_ns* at) -> task<> {
    co_await both_kernels(all, r, 8);
    if (all->runs[r] != 2) co_return;
    if (r == 2) {
      *at = all->clock.now();
      raise({errc::io, "no more disk"});
    }
    if (r == 0) co_return;
    auto woken = co_await sleep_until(never - 1);
    if (!woken) raise(woken.reason());
  };
  const time_ns began = w.clock.now();
  call_all(w, [&](rank_id r) { return thunk(&w, r, &failed_at); });
  CHECK(w.clock.now() - began < 200'000'000);
  for (rank_id r = 0; r < 3; ++r) CHECK(w.outcomes[r].code() == errc::io);
}

TEST_CASE("an agreement that fails because of one kernel decides none") {
  contextual_report fine;
  fine.kernel = "a";
  fine.complete = true;
  fine.digests = {1, 2};
  fine.average_ns = {2, 1};
  contextual_report out = fine;
  out.kernel = "b";
  out.average_ns = {-1, -1};
  const std::vector<contextual_said> said{{"alike", {fine, out}}};
  const std::vector<rank_id> members{0};
  contextual_progress progress;
  CHECK(agree(said, members, progress).code() == errc::config_failed);
  CHECK(progress.decided.empty());
}

TEST_CASE("whatever is lost, fails or is met by some ranks alone, calls end, and all ranks come to run the same") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    random_stream dice(seed, 7);
    const auto uneven = [](rank_id r, std::size_t c, std::size_t) -> time_ns {
      return c == r ? 9'000 - 1'000 * static_cast<time_ns>(c) : 1'000;
    };
    two_kernels w(3, uneven, uneven);
    std::uint64_t lost_of_64 = 0;
    w.links.options().lose = [&](rank_id, rank_id, link::channel) { return dice.below(64) < lost_of_64; };
    const auto call = [&](rank_id r) {
      const std::uint64_t key = 8 + (dice.below(3) == 0 ? dice.below(3) : 0);
      return dice.below(24) == 0 ? no_more_disk(&w, r, key) : both_kernels(&w, r, key);
    };
    for (int i = 0; i < 6; ++i) {
      lost_of_64 = dice.below(3) == 0 ? 0 : 40 + dice.below(25);
      call_all(w, call);
    }
    lost_of_64 = 0;
    for (int i = 0; i < 2; ++i) {
      call_all(w, [&](rank_id r) { return with_keys(&w, r, {8, 9, 10, 11}); });
    }
    for (rank_id r = 0; r < 3; ++r) {
      CHECK((w.outcomes[r] ? "" : w.outcomes[r].reason().what()) == "");
      run_until(w.clock, [&] { return !w.layers[r].end().owes_messages(); });
      for (const std::string key : {"n=8", "n=9", "n=10", "n=11"}) {
        CAPTURE(key);
        CHECK_FALSE(w.layers[r].end().best("kernel-1", key).empty());
        CHECK(w.layers[r].end().best("kernel-0", key) == w.layers[0].end().best("kernel-0", key));
        CHECK(w.layers[r].end().best("kernel-1", key) == w.layers[0].end().best("kernel-1", key));
      }
    }
  }
}

TEST_CASE("a contextual call of a rank that the others hold dead says so, whatever it met first") {
  for (const bool told_before : {true, false}) {
    CAPTURE(told_before);
    two_kernels w(2, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));
    w[1].on_lost(0, "its connection broke");
    if (told_before) w[1].on_fenced("it is held dead by the others");
    if (!told_before) w.held_dead[1] = "it is held dead by the others";
    call_on(w, with_key(w, 8), {1});
    CHECK(is(w.outcomes[1], {.code = errc::fenced, .rank = 1, .quotes = "it is held dead by the others"}));
  }
}

TEST_CASE("kernels of one config are not tried: the first call of a function that has no others runs it once") {
  bool checks = false;
  SUBCASE("a single config") {}
  SUBCASE("numbers are to be compared, and no outputs are declared") { checks = true; }
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
    layers.emplace_back(w[r], contextual_op{.name = "layer"});
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
