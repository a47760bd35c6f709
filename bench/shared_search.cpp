// How much time ranks save that share the trials of a kernel, and whether they agree, in virtual time.
//
//     shared_search --only share [--configs 64] [--keys 40] [--searches 20]    the time of 4 ranks by that of one
//     shared_search --only agree [--runs 1000] [--keys 20]                     4 ranks, with other times in each run
//
// A function calls the kernel once with each key. Each run of a kernel varies by up to 3 % in either direction. Regret is the usual time
// of the agreed config by that of the fastest, minus 1. A disagreement is a key for which two ranks run different configs.
#include <parley/bench/measure.hpp>
#include <parley/compute.hpp>
#include <parley/parley.hpp>
#include <parley/runtime/random.hpp>
#include <parley/simulation/world/world.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::simulation;
using parley::task;
using parley::runtime::mix;

using kernel = parley::tunable_op<task<>(std::uint64_t)>;

struct search {
  std::size_t configs = 0;
  std::uint64_t keys = 0;
  std::uint64_t seed = 0;
  std::uint64_t drawn = 0;
  std::vector<std::vector<std::string>> best{};  // by rank and key

  /// From 1 to 1.5 ms. The default is in the middle.
  std::int64_t usual_ns(std::size_t config, std::uint64_t key) const {
    return config == 0 ? 1'250'000 : std::int64_t(1'000'000 + mix((seed << 20U) + (key << 10U) + config) % 500'000);
  }
  std::int64_t fastest_ns(std::uint64_t key) const {
    std::int64_t least = usual_ns(0, key);
    for (std::size_t c = 1; c < configs; ++c) least = std::min(least, usual_ns(c, key));
    return least;
  }
};

task<> run_kernel(search* s, std::size_t config, std::uint64_t key) {
  const auto noise = std::int64_t(mix((s->seed << 40U) + ++s->drawn) % 61) - 30;  // thousandths
  co_await parley::compute([] {}, s->usual_ns(config, key) * (1'000 + noise) / 1'000);
}

task<> call_all(kernel* k, std::uint64_t keys) {
  for (std::uint64_t key = 0; key < keys; ++key) co_await (*k)(key);
}

task<> rank_main(parley::rank* self, search* s) {
  kernel::options o{
      .name = "kernel", .key = [](std::uint64_t key) { return parley::kernel_key{{"n", key}}; }, .implementations = {}};
  for (std::size_t c = 0; c < s->configs; ++c)
    o.implementations.push_back(
        {"config_" + std::to_string(c), [s, c](std::uint64_t key) { return run_kernel(s, c, key); }});
  kernel k(self->kernels(), std::move(o));
  self->kernels().set_rotating_buffer_size(0);
  self->kernels().set_max_tuning_iterations(16);
  parley::contextual layer(*self, {.name = "layer", .share = true, .log_folder = ""});
  const auto step = [&k, s] { return call_all(&k, s->keys); };
  co_await layer.run(step);
  for (std::uint64_t key = 0; key < s->keys; ++key)
    s->best[self->id()].push_back(layer.best("kernel", "n=" + std::to_string(key)));
}

/// The virtual time that all keys take.
double hold(search& s, rank_id ranks) {
  world_options o;
  o.ranks = ranks;
  o.seed = s.seed;
  s.best.assign(ranks, {});
  world w(o, nullptr);
  const auto began_ns = w.stage().now();
  w.start_all([&](rank_id r) { w.programs_of(r).spawn(rank_main(&w[r], &s)); });
  if (!w.stage().run_until([&] { return w.all_ended(); }, parley::runtime::never)) give_up("a search hangs");
  for (const auto& of_rank : s.best)
    if (of_rank.size() != s.keys) give_up("a rank has not decided all keys");
  return double(w.stage().now() - began_ns);
}

double regret(const search& s, std::uint64_t key) {
  const std::size_t config = std::stoul(s.best[0][key].substr(sizeof "config_" - 1));
  return 100 * (double(s.usual_ns(config, key)) / double(s.fastest_ns(key)) - 1);
}

void measure_share(const arguments& given) {
  std::vector<double> shares;
  for (std::int64_t seed = 1; seed <= given.number("searches", 20); ++seed) {
    search s{.configs = std::size_t(given.number("configs", 64)),
             .keys = std::uint64_t(given.number("keys", 40)),
             .seed = std::uint64_t(seed)};
    const double together = hold(s, 4);
    shares.push_back(100 * together / hold(s, 1));
  }
  report("shared_search", median(shares), "percent");
  report("shared_search_worst", *std::max_element(shares.begin(), shares.end()), "percent");
  report("shared_search_alone", 100, "percent");
}

void measure_agreement(const arguments& given) {
  std::vector<double> regrets;
  std::int64_t apart = 0;
  for (std::int64_t seed = 1; seed <= given.number("runs", 1'000); ++seed) {
    search s{.configs = 8, .keys = std::uint64_t(given.number("keys", 20)), .seed = std::uint64_t(seed)};
    hold(s, 4);
    for (std::uint64_t key = 0; key < s.keys; ++key) {
      for (const auto& of_rank : s.best) apart += of_rank[key] != s.best[0][key] ? 1 : 0;
      regrets.push_back(regret(s, key));
    }
  }
  std::sort(regrets.begin(), regrets.end());
  report("shared_search_disagreements", double(apart), "keys");
  report("shared_search_regret", median(regrets), "percent");
  report("shared_search_regret_95", regrets[regrets.size() * 95 / 100], "percent");
  report("shared_search_regret_worst", regrets.back(), "percent");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "");
  if (only.empty() || only == "share") measure_share(given);
  if (only.empty() || only == "agree") measure_agreement(given);
}
