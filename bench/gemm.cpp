// Matrix products on this machine's processors: how good the choices of `gemm` are, and what a decided call adds.
//
//     gemm --only choices [--shapes 50] [--rounds 11] [--busy yes]
//     gemm --only hit [--calls 200000]
//
// choices: each shape is tuned once. Then all its implementations run in turns, for --rounds rounds, which is the exhaustive long
// measurement. A turn begins with 2 ms that do not count, because the threads of some libraries spin for so long after the turn before.
// In the next 2 ms its runs count, 20 ms if busy. The usual time of an implementation is the median of its turns' means; if busy, the
// mean of them without the slowest. Regret is the usual time of the chosen implementation by that of the fastest, minus 1.
// --busy yes: another process keeps each core busy all the while.
#include <parley/bench/measure.hpp>
#include <parley/gemm.hpp>
#include <parley/ops/kernels/blocked_gemm.hpp>
#include <parley/runtime/random.hpp>
#include <parley/runtime/time/reactor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::ops;

struct shape {
  std::size_t m, n, k;
  bool trans_a, trans_b;
};

/// Sizes from 8 to 1,000, evenly in their logarithms, in all four layouts.
std::vector<shape> shapes(std::size_t count) {
  std::uint64_t drawn = 0;
  const auto size = [&] {
    const double share = double(parley::runtime::mix(++drawn) % 1'000) / 1'000;
    return std::size_t(std::lround(8 * std::pow(125.0, share)));
  };
  std::vector<shape> all;
  for (std::size_t i = 0; i < count; ++i) {
    shape s{};
    s.m = size(), s.n = size(), s.k = size();
    s.trans_a = i % 2 == 1, s.trans_b = i % 4 >= 2;
    all.push_back(s);
  }
  return all;
}

struct operands {
  explicit operands(const shape& s) : a(s.m * s.k, 1.0F), b(s.k * s.n, 2.0F), c(s.m * s.n) {
    call = {.m = s.m, .n = s.n, .k = s.k, .trans_a = s.trans_a, .trans_b = s.trans_b, .a = a, .b = b, .c = c};
  }
  std::vector<float> a, b, c;
  gemm_call<float> call;
};

tunable_context::options enabled() {
  tunable_context::options o;
  o.mine.enabled = true;
  o.mine.rotating_buffer_bytes = 0;  // the long measurement finds its matrices in the caches, so the search must, too
  return o;
}

/// A `gemm` that runs one implementation, whatever the sizes.
struct fixed {
  fixed(parley::runtime::executor& ex, std::string i)
      : id(std::move(i)), context(ex, nullptr, enabled()), multiply(context) {}
  void pin(const gemm_call<float>& call) {
    const std::string& title = multiply.decision(call).title;
    parley::tuning::results_file file;
    if (!file.add({title.substr(0, title.find(',')), multiply.decision(call).parameters, id, 1}))
      give_up("a pin was refused");
    context.remember(file);
  }
  std::string id;
  tunable_context context;
  gemm<float> multiply;
};

template <class Call>
double took_ns(Call&& call) {
  const std::int64_t began = now_ns();
  call();
  return double(now_ns() - began);
}

double mean_without_slowest(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  if (all.size() > 1) all.pop_back();
  return std::accumulate(all.begin(), all.end(), 0.0) / double(all.size());
}

void measure_choices(const arguments& given) {
  const bool busy = given.text("busy", "no") == "yes";
  const std::string suffix = busy ? "_busy" : "";
  if (busy) keep_cores_busy();
  parley::runtime::reactor ex;
  tunable_context context(ex, nullptr, enabled());
  gemm<float> multiply(context);
  std::vector<std::unique_ptr<fixed>> alone;
  for (const std::string& id : multiply.implementations()) alone.push_back(std::make_unique<fixed>(ex, id));
  const auto rounds = given.number("rounds", 11);
  const std::int64_t counted_ns = busy ? 20'000'000 : 2'000'000;
  std::vector<double> regrets, by_default, to_default;
  double search_ns = 0, exhaustive_ns = 0;
  for (const shape& s : shapes(std::size_t(given.number("shapes", 50)))) {
    operands of(s);
    search_ns += took_ns([&] { multiply(of.call); });
    std::vector<std::vector<double>> times(alone.size());
    for (auto& each : alone) each->pin(of.call);
    exhaustive_ns += took_ns([&] {
      for (std::int64_t round = 0; round < rounds; ++round)
        for (std::size_t i = 0; i < alone.size(); ++i) {
          const auto mean_over_ns = [&](std::int64_t span_ns) {
            const std::int64_t began_ns = now_ns();
            for (double runs = 1;; ++runs) {
              alone[i]->multiply(of.call);
              if (const std::int64_t so_far_ns = now_ns() - began_ns; so_far_ns >= span_ns)
                return double(so_far_ns) / runs;
            }
          };
          mean_over_ns(2'000'000);
          times[i].push_back(mean_over_ns(counted_ns));
        }
    });
    std::vector<double> usual;
    for (const auto& each : times) usual.push_back(busy ? mean_without_slowest(each) : median(each));
    const auto& ids = multiply.implementations();
    const auto chosen = std::size_t(std::find(ids.begin(), ids.end(), multiply.runs(of.call)) - ids.begin());
    const auto fastest = std::size_t(std::min_element(usual.begin(), usual.end()) - usual.begin());
    regrets.push_back(usual[chosen] / usual[fastest] - 1);
    by_default.push_back(usual[0] / usual[fastest] - 1);
    to_default.push_back(usual[chosen] / usual[0] - 1);
    if (given.text("verbose", "no") == "yes") {
      std::fprintf(stderr, "%zu x %zu x %zu %c%c: %s %.1f us, fastest %s %.1f us, default %.1f us\n", s.m, s.n, s.k,
                   s.trans_a ? 't' : 'n', s.trans_b ? 't' : 'n', ids[chosen].c_str(), usual[chosen] / 1e3,
                   ids[fastest].c_str(), usual[fastest] / 1e3, usual[0] / 1e3);
      if (regrets.back() > 0.05) std::fprintf(stderr, "  %s\n", multiply.decision(of.call).why.c_str());
    }
  }
  const auto percentile = [](std::vector<double> all, std::size_t which) {
    std::sort(all.begin(), all.end());
    return 100 * all[(all.size() - 1) * which / 100];
  };
  const auto off = std::count_if(regrets.begin(), regrets.end(), [](double r) { return r > 0.05; });
  report("gemm_regret" + suffix, percentile(regrets, 50), "percent");
  report("gemm_regret_95" + suffix, percentile(regrets, 95), "percent");
  report("gemm_regret_worst" + suffix, percentile(regrets, 100), "percent");
  report("gemm_more_than_5_off" + suffix, 100 * double(off) / double(regrets.size()), "percent");
  report("gemm_to_default_worst" + suffix, percentile(to_default, 100), "percent");
  report("gemm_default_regret" + suffix, percentile(by_default, 50), "percent");
  report("gemm_search_share" + suffix, 100 * search_ns / exhaustive_ns, "percent");
  report("gemm_exhaustive_share" + suffix, 100, "percent");
}

void measure_hit(const arguments& given) {
  parley::runtime::reactor ex;
  fixed one(ex, "blocked");
  operands of({1, 1, 1, false, false});
  one.pin(of.call);
  gemm_call<float> full = of.call;
  full.lda = full.ldb = full.ldc = full.stride_a = full.stride_b = full.stride_c = 1;
  const auto calls = given.number("calls", 200'000);
  std::vector<double> bare, tuned;
  for (int round = 0; round < 11; ++round) {
    bare.push_back(took_ns([&] {
      for (std::int64_t i = 0; i < calls; ++i) multiply_blocked(full);
    }));
    tuned.push_back(took_ns([&] {
      for (std::int64_t i = 0; i < calls; ++i) one.multiply(of.call);
    }));
  }
  report("gemm_hit", (median(tuned) - median(bare)) / double(calls), "ns");
  report("gemm_bare_call", median(bare) / double(calls), "ns");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "");
  if (only.empty() || only == "choices") measure_choices(given);
  if (only.empty() || only == "hit") measure_hit(given);
}
