// How well a search chooses when times are noisy, in virtual time. Two ranks, or a leader and its workers, tune 8
// configs whose usual times are known; each run varies by up to 3 % in either direction. Each search has its own
// times and is run twice with different noise.
//
//     searches [--searches 1000] [--noise 30] [--ranks 2]         noise in thousandths; more than two ranks form a group
//
// Regret is the usual time of the agreed config divided by that of the fastest, minus 1. A search has a gap if its
// fastest config is usually ahead of the next by more than the noise. A search with a gap is a flip if its two
// runs chose different configs.
#include <parley/bench/measure.hpp>
#include <parley/parley.hpp>
#include <parley/simulation/programs/config_text.hpp>
#include <parley/simulation/programs/kernels.hpp>
#include <parley/simulation/world/dice.hpp>
#include <parley/simulation/world/world.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::simulation;
using parley::task;

constexpr std::size_t configs = 8;
constexpr int most_calls = 600;  // more than a search of 8 configs needs

struct search {
  std::array<std::int64_t, configs> usual_ns{};
  std::uint64_t noise = 0;  // thousandths
  std::string winner{};
};

std::string config_name(std::size_t i) { return "config" + std::to_string(i); }

std::string text_of(const search& s, std::size_t i) {
  return "timed:" + config_name(i) + ":" + std::to_string(s.usual_ns[i] * std::int64_t(1'000 - s.noise) / 1'000);
}

// Converts the noise for the simulator, which adds up to this many thousandths to a minimum: the minimum is `noise`
// below the usual time, the maximum `noise` above.
std::uint64_t above_least(std::uint64_t noise) { return (2'000 * noise + (1'000 - noise) / 2) / (1'000 - noise); }

task<> group_main(parley::rank* self, search* s, kernel_times* times) {
  std::vector<parley::group_config_ptr> list;
  for (std::size_t i = 0; i < configs; ++i) list.push_back(group_config_from(text_of(*s, i), *times));
  parley::collective op(*self, {.name = "op", .configs = list});
  std::vector<float> numbers(2);
  for (int n = 0; n < most_calls; ++n) co_await op.all_reduce(std::span(numbers));
  if (self->id() != 0) co_return;
  const auto d = op.agreed().decision(numbers.size() * sizeof(float));
  if (d.decided) s->winner = d.config;
}

task<> pair_main(parley::rank* self, search* s, kernel_times* times) {
  std::vector<parley::config_ptr> list;
  for (std::size_t i = 0; i < configs; ++i) list.push_back(config_from(text_of(*s, i), *times));
  parley::transfer op(*self, {.name = "op", .edges = {{0, 1}}, .configs = list});
  std::vector<std::byte> word(8);
  for (int n = 0; n < most_calls; ++n) {
    if (self->id() == 0) {
      co_await op.send(word, {.to = 1});
    } else {
      co_await op.receive(word, {.from = 0});
    }
  }
  if (self->id() == 0 && op.to(1).decision(word.size()).decided) s->winner = op.to(1).decision(word.size()).config;
}

// Runs one search and returns the usual time of the agreed config.
std::int64_t hold(std::array<std::int64_t, configs> usual_ns, std::uint64_t seed, std::uint64_t noise, rank_id ranks) {
  world_options o;
  o.ranks = ranks;
  o.seed = seed;
  o.settings.plan.budget_fraction = 1e3;
  world w(o, nullptr);
  search s{usual_ns, noise};
  kernel_times times({.noise_per_thousand = above_least(noise)}, dice(seed, purpose::kernel, 0));
  const auto rank_main = ranks == 2 ? pair_main : group_main;
  w.start_all([&](rank_id r) { w.programs_of(r).spawn(rank_main(&w[r], &s, &times)); });
  if (!w.stage().run_until([&] { return w.all_ended(); }, parley::runtime::never)) give_up("a search hangs");
  for (std::size_t i = 0; i < configs; ++i) {
    if (s.winner.find(config_name(i)) != std::string::npos) return usual_ns[i];
  }
  give_up("a search did not end within " + std::to_string(most_calls) + " calls: " + s.winner);
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::int64_t searches = given.number("searches", 1'000);
  const auto noise = std::uint64_t(given.number("noise", 30));
  const auto ranks = rank_id(given.number("ranks", 2));
  if (noise >= 1'000) give_up("--noise takes thousandths of what is usual: 0 to 999");
  std::vector<double> regrets;
  std::int64_t gaps = 0;
  std::int64_t flips = 0;
  for (std::int64_t n = 0; n < searches; ++n) {
    dice luck(std::uint64_t(n), purpose::kernel, 1);
    std::array<std::int64_t, configs> usual_ns{};
    for (std::int64_t& t : usual_ns) t = 20'000 + std::int64_t(luck.below(80'000));
    auto in_order = usual_ns;
    std::sort(in_order.begin(), in_order.end());
    const std::int64_t fastest = in_order[0];
    std::array<std::int64_t, 2> chosen{};
    for (std::size_t i = 0; i < 2; ++i) {
      chosen[i] = hold(usual_ns, std::uint64_t(2 * n) + i + 1, noise, ranks);
      regrets.push_back(100 * (double(chosen[i]) / double(fastest) - 1));
    }
    const bool has_gap = in_order[1] * 1'000 > fastest * std::int64_t(1'000 + noise);
    gaps += has_gap ? 1 : 0;
    flips += has_gap && chosen[0] != chosen[1] ? 1 : 0;
  }
  std::sort(regrets.begin(), regrets.end());
  report("tuning_regret", median(regrets), "percent");
  report("tuning_regret_95", regrets[regrets.size() * 95 / 100], "percent");
  report("tuning_regret_worst", regrets.back(), "percent");
  report("tuning_gaps", 100 * double(gaps) / double(searches), "percent");
  report("tuning_flips", 100 * double(flips) / double(std::max<std::int64_t>(gaps, 1)), "percent");
}
