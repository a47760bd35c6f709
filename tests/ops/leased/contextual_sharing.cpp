// Ranks that share the trials of kernels: who measures what, what they agree on, and what ends a call.
#include <parley/tests/ops/leased/two_kernels.hpp>
#include <parley/tests/support/world.hpp>

#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/runtime/random.hpp>
#include <parley/task.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::contextual_layers;

namespace {

rank_settings quick() {
  rank_settings s;
  s.kernels.rotating_buffer_bytes = 0;
  s.kernels.max_tuning_iterations = 8;
  return s;
}

/// One kernel on each rank of a world, whose trials the ranks share.
struct shared_kernel : world {
  shared_kernel(rank_id n, std::size_t configs, const time_model& takes, const rank_settings& settings = quick())
      : world(n, settings), ran(n), runs(n), outcomes(n) {
    for (rank_id r = 0; r < n; ++r) {
      kernels.push_back(
          std::make_unique<timed_kernel>(ranks[r]->kernels(), kernel_of("scale", configs, takes, r, ran[r])));
      layers.emplace_back(*ranks[r], contextual_options{.name = "layer", .share = true, .timeout = 1s});
    }
  }
  task<> call(rank_id r, std::uint64_t key) {
    ++runs[r];
    return (*kernels[r])(key);
  }
  void call_all(const program& f) {
    scope calls(clock);
    std::vector<std::function<task<>()>> thunks;
    for (rank_id r = 0; r < ranks.size(); ++r) thunks.emplace_back([&f, r] { return f(r); });
    for (rank_id r = 0; r < ranks.size(); ++r) calls.spawn(run_layer(&layers[r], thunks[r], &outcomes[r]));
    run_until(clock, [&] { return calls.running() == 0; });
  }
  void call_all(std::uint64_t key) {
    call_all([this, key](rank_id r) { return call(r, key); });
  }
  std::string best(rank_id r, std::uint64_t key) const {
    return layers[r].end().best("scale", "n=" + std::to_string(key));
  }
  std::vector<ran_configs> ran;
  std::vector<std::size_t> runs;
  std::vector<result<>> outcomes;
  std::vector<std::unique_ptr<timed_kernel>> kernels;
  std::vector<contextual> layers;
};

/// The ranks that have run this config, in calls that begin with the default.
std::set<rank_id> who_ran(const shared_kernel& w, std::size_t config) {
  std::set<rank_id> all;
  for (rank_id r = 0; r < w.ran.size(); ++r)
    if (w.ran[r].count.contains(config)) all.insert(r);
  return all;
}

time_model with_noise(std::vector<time_ns> ns, double most, std::uint64_t seed) {
  return [=, drawn = std::make_shared<std::uint64_t>(seed << 32U)](rank_id, std::size_t c, std::size_t) {
    const double share = double(mix(++*drawn) % 1'000) / 1'000;
    return time_ns(double(ns[c]) * (1 + most * (2 * share - 1)));
  };
}

}  // namespace

TEST_CASE(
    "ranks that are alike measure different configs, and all run the fastest of all, also outside of the function") {
  std::vector<time_ns> ns(10, 2'000'000);
  ns[6] = 1'500'000;
  shared_kernel w(4, ns.size(), takes(ns));
  w.call_all(8);
  for (rank_id r = 0; r < 4; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.runs[r] == 3);  // to find the kernel; this rank's part; the winner
    CHECK(w.best(r, 8) == "config_6");
    const auto d = w.layers[r].decision("scale", "n=8");
    CHECK(d.why == "config_6 is the fastest, with 1.5 ms, as measured by the ranks together");
    REQUIRE(d.evidence[6].ranks.size() == 1);
    CHECK(d.evidence[6].ranks[0].rank == 1);
    CHECK(d.evidence[6].ranks[0].median_ns == 1.5e6);
    REQUIRE(d.evidence[0].ranks.size() == 4);
    for (rank_id member = 0; member < 4; ++member) {
      CHECK(d.evidence[0].ranks[member].rank == member);
      CHECK(d.evidence[0].ranks[member].median_ns == 2e6);
    }
    CHECK(w.ranks[r]->kernels().learned().at(0) == tuning::result_entry{"scale", "n=8", "config_6", 1.5});
  }
  CHECK(who_ran(w, 0).size() == 4);
  for (std::size_t c = 1; c < ns.size(); ++c) {
    CAPTURE(c);
    CHECK(who_ran(w, c) == (c == 6 ? std::set<rank_id>{0, 1, 2, 3} : std::set<rank_id>{rank_id((c - 1) % 4)}));
  }
  w.ranks[2]->kernels().enable_tunable_op(true);
  const auto before = w.ran[2].order.size();
  run(w.clock, (*w.kernels[2])(8));
  CHECK(w.ran[2].order.size() == before + 1);
  CHECK(w.ran[2].order.back() == 6);
}

TEST_CASE("a rank that is slower than the others measures all configs itself, and the slowest rank's time counts") {
  // Rank 3 takes twice as long, and three times with the config that is fastest on the others.
  const auto uneven = [](rank_id r, std::size_t c, std::size_t) -> time_ns {
    return (c == 1 ? 1'000'000 : c == 2 ? 1'200'000 : 2'000'000) * (r == 3 ? (c == 1 ? 5 : 2) : 1);
  };
  shared_kernel w(4, 5, uneven);
  w.call_all(8);
  for (rank_id r = 0; r < 4; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.best(r, 8) == "config_2");
  }
  for (std::size_t c = 1; c < 5; ++c) {
    CAPTURE(c);
    CHECK(who_ran(w, c).contains(3));
    CHECK(who_ran(w, c).size() == (c == 2 ? 4 : 2));
  }
}

TEST_CASE("ranks whose clocks differ a little are alike, and their times count relative to their defaults") {
  // Rank 1 is 8 % faster, so its configs seem to be the faster ones. Config 3, which is rank 2's, is the best by 4 %.
  const auto near = [](rank_id r, std::size_t c, std::size_t) -> time_ns {
    return time_ns((c == 0 ? 2'000'000 : c == 3 ? 1'440'000 : 1'500'000) * (r == 1 ? 0.92 : 1));
  };
  shared_kernel w(3, 7, near);
  w.call_all(8);
  for (rank_id r = 0; r < 3; ++r) CHECK(w.best(r, 8) == "config_3");
  CHECK(who_ran(w, 2) == std::set<rank_id>{1});
}

TEST_CASE("a config that fails on the rank that measures it is out on all ranks, and says why there") {
  const auto failing = [](rank_id, std::size_t c, std::size_t) -> time_ns {
    return c == 2 ? -1 : 2'000'000 - 100'000 * time_ns(c);
  };
  shared_kernel w(3, 5, failing);
  w.call_all(8);
  for (rank_id r = 0; r < 3; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.best(r, 8) == "config_4");
  }
  CHECK(w.layers[1].decision("scale", "n=8").evidence[2].detail.find("out of registers") != std::string::npos);
  CHECK(w.layers[1].decision("scale", "n=8").evidence[2].status == "failed");
}

TEST_CASE("a failure of the function on one rank ends the shared call on all, and the next call begins anew") {
  std::vector<time_ns> ns{2'000'000, 1'000'000, 1'500'000};
  shared_kernel w(3, ns.size(), takes(ns));
  const auto second_run_fails = [&w](rank_id r) -> task<> {
    co_await w.call(r, 8);
    if (r == 1 && w.runs[r] == 2) raise({errc::unavailable, "the second run"});
  };
  w.call_all(second_run_fails);
  for (rank_id r = 0; r < 3; ++r) {
    CHECK_FALSE(w.outcomes[r]);
    CHECK(w.best(r, 8).empty());
  }
  w.call_all(8);
  for (rank_id r = 0; r < 3; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.best(r, 8) == "config_1");
  }
}

TEST_CASE("ranks adopt what one of them remembers, and measure nothing") {
  std::vector<time_ns> ns{2'000'000, 1'000'000, 1'500'000};
  shared_kernel w(3, ns.size(), takes(ns));
  tuning::results_file file;
  CHECK(file.add(tuning::result_entry{"scale", "n=8", "config_2", 1.5}));
  w.ranks[1]->kernels().remember(file);
  w.call_all(8);
  for (rank_id r = 0; r < 3; ++r) {
    CHECK(w.best(r, 8) == "config_2");
    CHECK_FALSE(w.ran[r].count.contains(1));
  }
}

TEST_CASE("only some ranks ask to share: all get the same error") {
  world w(2);
  std::vector<ran_configs> ran(2);
  std::vector<std::unique_ptr<timed_kernel>> kernels;
  std::vector<contextual> layers;
  std::vector<result<>> outcomes(2);
  scope calls(w.clock);
  for (rank_id r = 0; r < 2; ++r) {
    kernels.push_back(
        std::make_unique<timed_kernel>(w.ranks[r]->kernels(), kernel_of("scale", 2, takes({2'000, 1'000}), r, ran[r])));
    layers.emplace_back(*w.ranks[r], contextual_options{.name = "layer", .share = r == 0, .timeout = 1s});
  }
  for (rank_id r = 0; r < 2; ++r) {
    const std::function<task<>()> thunk = [&kernels, r] { return (*kernels[r])(8); };
    calls.spawn(run_layer(&layers[r], thunk, &outcomes[r]));
  }
  run_until(w.clock, [&] { return calls.running() == 0; });
  for (const auto& outcome : outcomes) {
    REQUIRE_FALSE(outcome);
    CHECK(outcome.code() == errc::declaration_mismatch);
    CHECK(outcome.reason().what().find("shared work") != std::string::npos);
  }
}

TEST_CASE("if a rank was slow for a while, its earlier times count relative to the default of that time") {
  // Rank 2 takes twice as long until it has measured its part, which has the best config.
  const auto slow_at_first = [](rank_id r, std::size_t c, std::size_t n) -> time_ns {
    const time_ns usual = c == 0 ? 2'000'000 : c == 3 ? 1'000'000 : 1'500'000;
    return r == 2 && n < 9 ? 2 * usual : usual;
  };
  shared_kernel w(3, 7, slow_at_first);
  w.call_all(8);
  for (rank_id r = 0; r < 3; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.runs[r] == 4);
    CHECK(w.best(r, 8) == "config_3");
  }
}

TEST_CASE("trials that take longer than the timeout of a run are made in several runs") {
  std::vector<time_ns> ns(10, 2'000'000);
  ns[7] = 1'000'000;
  shared_kernel w(2, ns.size(), takes(ns));
  w.call_all([&w](rank_id r) -> task<> {
    for (std::uint64_t key = 0; key < 16; ++key) co_await w.call(r, key);
  });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.runs[r] > 3 * 16);
    for (std::uint64_t key = 0; key < 16; ++key) CHECK(w.best(r, key) == "config_7");
  }
}

TEST_CASE("if a rank stops calling a kernel before it has measured its part, the default stays") {
  std::vector<time_ns> ns{1'000'000, 1'500'000, 500'000};
  shared_kernel w(2, ns.size(), takes(ns));
  w.call_all([&w](rank_id r) -> task<> {
    if (r == 0 || w.runs[r] == 0) return w.call(r, 8);
    return [](shared_kernel* of) -> task<> {
      ++of->runs[1];
      co_return;
    }(&w);
  });
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(w.outcomes[r]);
    CHECK(w.best(r, 8) == "config_0");
  }
}

TEST_CASE("with 3 % noise, 4 ranks agree on every key, choose well, and take under a third of the time of one") {
  std::vector<time_ns> ns;
  for (std::size_t c = 0; c < 64; ++c) ns.push_back(time_ns(1'000'000 + 500'000 * (mix(c) % 1'000) / 1'000));
  ns[0] = 1'400'000;
  const time_ns fastest = *std::min_element(ns.begin(), ns.end());
  const auto took = [&](rank_id n, std::uint64_t seed) {
    shared_kernel w(n, ns.size(), with_noise(ns, 0.03, seed));
    const time_ns began = w.clock.now();
    const auto all_keys = [&w](rank_id r) -> task<> {
      for (std::uint64_t key = 0; key < 8; ++key) co_await w.call(r, key);
    };
    w.call_all(all_keys);
    for (std::uint64_t key = 0; key < 8; ++key) {
      for (rank_id r = 0; r < n; ++r) {
        CHECK(w.outcomes[r]);
        CHECK(w.best(r, key) == w.best(0, key));
      }
      const auto winner = std::stoul(w.best(0, key).substr(sizeof "config_" - 1));
      CHECK(double(ns[winner]) <= 1.05 * double(fastest));  // 3 % count as equal, and 2 % are chance
    }
    return double(w.clock.now() - began);
  };
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    CHECK(took(4, seed) <= 0.33 * took(1, seed));  // bench/shared_search.cpp has exact figures
}
