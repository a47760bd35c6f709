#pragma once
/// A world in virtual time whose ranks each tune two kernels with a contextual op: the worked case of contextual tuning.
///
///     two_kernels w(3, takes({2'000, 1'000}), takes({3'000, 1'000, 2'000}));   // what each config takes
///     call_all(w, with_key(w, 8));
///     w.layers[0].end().best("kernel-1", "n=8") == "config_1"
#include <parley/tests/support/world.hpp>

#include <parley/compute.hpp>
#include <parley/contextual.hpp>
#include <parley/error.hpp>
#include <parley/kernel_key.hpp>
#include <parley/ops/job/rank_settings.hpp>
#include <parley/runtime/coroutines/run.hpp>
#include <parley/scope.hpp>
#include <parley/task.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_op.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests::contextual_layers {

using namespace parley::ops;
using namespace parley::runtime;
using tuning::kernel_key;

using timed_kernel = tunable_op<task<>(std::uint64_t)>;

/// The time that config `c` takes on a rank in its `n`-th run. A negative time makes the run throw.
using time_model = std::function<time_ns(rank_id, std::size_t c, std::size_t n)>;

/// The runs of one kernel on one rank, in order: the config, and the key.
struct ran_configs {
  std::vector<std::size_t> order;
  std::vector<std::uint64_t> keys;
  std::map<std::size_t, std::size_t> count;
};

inline task<> run_config(time_model takes, rank_id self, std::size_t c, ran_configs* ran, std::uint64_t key) {
  ran->order.push_back(c);
  ran->keys.push_back(key);
  const time_ns ns = takes(self, c, ran->count[c]++);
  co_await compute([] {}, ns < 0 ? 10 : ns);
  if (ns < 0) raise({errc::unavailable, "out of registers"});
}

inline timed_kernel::options kernel_of(std::string name, std::size_t configs, const time_model& takes, rank_id self,
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
  /// `of_last`: the last rank's declaration, if it differs.
  explicit two_kernels(rank_id n, const time_model& first, const time_model& second, contextual_options op = table(),
                       const rank_settings& settings = {}, const std::optional<contextual_options>& of_last = {})
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
  static contextual_options table() {
    contextual_options op;
    op.iterations = 2;
    op.timeout = 1s;
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

inline task<> both_kernels(two_kernels* w, rank_id r, std::uint64_t key) {
  ++w->runs[r];
  co_await (*w->kernel_0[r])(key);
  co_await (*w->kernel_1[r])(key);
}

using program = std::function<task<>(rank_id)>;
inline task<> tuned(two_kernels* w, rank_id r, program f) {
  const auto thunk = [&f, r] { return f(r); };
  auto outcome = co_await attempt(w->layers[r].run(thunk));
  w->outcomes[r] = outcome;
}

/// Makes one call on each rank of `on`. The other ranks make none.
inline void call_on(two_kernels& w, const program& f, const std::vector<rank_id>& on) {
  scope calls(w.clock);
  for (const rank_id r : on) calls.spawn(tuned(&w, r, f));
  run_until(w.clock, [&] { return calls.running() == 0; });
}
inline void call_all(two_kernels& w, const program& f) {
  std::vector<rank_id> all;
  for (rank_id r = 0; r < w.ranks.size(); ++r) all.push_back(r);
  call_on(w, f, all);
}
inline program with_key(two_kernels& w, std::uint64_t key) {
  return [&w, key](rank_id r) { return both_kernels(&w, r, key); };
}

inline time_model takes(std::vector<time_ns> ns) {
  return [ns = std::move(ns)](rank_id, std::size_t c, std::size_t) { return ns[c]; };
}

using order = std::vector<std::size_t>;

inline task<> run_layer(contextual* layer, std::function<task<>()> thunk, result<>* outcome) {
  *outcome = co_await attempt(layer->run(thunk));
}

}  // namespace parley::tests::contextual_layers
