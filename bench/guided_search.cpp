// How good is a search that tries few of very many implementations of a kernel, and how long does it take? A blocked multiplication of
// matrices has three tile sizes and so 1,728 implementations. For each of several shapes, all of them are measured, and one tunable kernel
// searches.
//
//     guided_search [--shapes 12]
//
// Regret is the time of the implementation that the search chose by that of the best, minus 1. The best is the fastest of the ten that were
// best when all were measured; these and the chosen one run in turns, and the median of each counts.
#include <parley/bench/measure.hpp>
#include <parley/parley.hpp>
#include <parley/run.hpp>
#include <parley/runtime/time/reactor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

struct tiles {
  std::size_t m = 0, n = 0, k = 0;
};

struct matrices {
  matrices(std::size_t rows, std::size_t columns, std::size_t depth)
      : m(rows), n(columns), k(depth), a(m * k, 1.0F), b(k * n, 2.0F), c(m * n) {}
  std::size_t m, n, k;
  std::vector<float> a, b, c;
};

void multiply(const tiles& t, matrices& x) {
  std::fill(x.c.begin(), x.c.end(), 0.0F);
  for (std::size_t k0 = 0; k0 < x.k; k0 += t.k) {
    for (std::size_t m0 = 0; m0 < x.m; m0 += t.m) {
      for (std::size_t n0 = 0; n0 < x.n; n0 += t.n) {
        const std::size_t m1 = std::min(m0 + t.m, x.m), n1 = std::min(n0 + t.n, x.n), k1 = std::min(k0 + t.k, x.k);
        for (std::size_t i = m0; i < m1; ++i) {
          for (std::size_t l = k0; l < k1; ++l) {
            const float factor = x.a[i * x.k + l];
            for (std::size_t j = n0; j < n1; ++j) x.c[i * x.n + j] += factor * x.b[l * x.n + j];
          }
        }
      }
    }
  }
}

constexpr std::array<std::size_t, 12> sizes{4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256};

std::vector<tiles> space() {
  std::vector<tiles> all{{4, 4, 4}};  // the default
  for (const std::size_t m : sizes) {
    for (const std::size_t n : sizes) {
      for (const std::size_t k : sizes) {
        if (m != 4 || n != 4 || k != 4) all.push_back({m, n, k});
      }
    }
  }
  return all;
}

double took_ns(const tiles& t, matrices& x) {
  const std::int64_t began = now_ns();
  multiply(t, x);
  return double(now_ns() - began);
}

/// The ten implementations with the shortest times, of three runs each.
std::vector<std::size_t> best_of_all(const std::vector<tiles>& all, matrices& x) {
  std::vector<std::pair<double, std::size_t>> times;
  for (std::size_t i = 0; i < all.size(); ++i) {
    double least = took_ns(all[i], x);
    for (int again = 0; again < 2; ++again) least = std::min(least, took_ns(all[i], x));
    times.emplace_back(least, i);
  }
  std::sort(times.begin(), times.end());
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < 10; ++i) best.push_back(times[i].second);
  return best;
}

double regret_of(std::size_t chosen, std::vector<std::size_t> best, const std::vector<tiles>& all, matrices& x) {
  best.push_back(chosen);
  std::vector<std::vector<double>> times(best.size());
  for (int round = 0; round < 31; ++round) {
    for (std::size_t i = 0; i < best.size(); ++i) times[i].push_back(took_ns(all[best[i]], x));
  }
  double least = parley::bench::median(times.back());
  const double mine = least;
  for (auto& t : times) least = std::min(least, parley::bench::median(t));
  return mine / least - 1;
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  pin_to_core(0);
  const std::vector<tiles> all = space();
  parley::runtime::reactor ex;
  parley::tunable_context::options o;
  o.mine.enabled = true;
  o.mine.rotating_buffer_bytes = 0;  // measured as the exhaustive search does
  parley::tunable_context context(ex, nullptr, o);
  using kernel = parley::tunable_op<void(matrices&)>;
  kernel::options op{.name = "multiply",
                     .key = [](const matrices& x) { return parley::kernel_key{{"m", x.m}, {"n", x.n}, {"k", x.k}}; },
                     .implementations = {}};
  for (const tiles& t : all)
    op.implementations.push_back(
        {"tiled(k=" + std::to_string(t.k) + " m=" + std::to_string(t.m) + " n=" + std::to_string(t.n) + ")",
         [t](matrices& x) { multiply(t, x); }});
  kernel tuned(context, std::move(op));
  std::vector<double> regrets, searches_ms;
  double exhaustive_ns = 0, search_ns = 0;
  for (std::size_t i = 0; i < std::size_t(given.number("shapes", 12)); ++i) {
    const std::array<std::size_t, 5> extents{64, 96, 128, 160, 192};
    matrices x(extents[i % 5], extents[(i / 2 + 2) % 5], extents[(i / 3 + 1) % 5]);
    std::int64_t began = now_ns();
    tuned(x);
    searches_ms.push_back(double(now_ns() - began) / 1e6);
    search_ns += double(now_ns() - began);
    began = now_ns();
    const auto best = best_of_all(all, x);
    exhaustive_ns += double(now_ns() - began);
    regrets.push_back(regret_of(tuned.decision(x).winner, best, all, x));
  }
  report("guided_regret", 100 * parley::bench::median(regrets), "percent");
  report("guided_regret_worst", 100 * *std::max_element(regrets.begin(), regrets.end()), "percent");
  report("guided_search", parley::bench::median(searches_ms), "ms");
  report("guided_share", 100 * search_ns / exhaustive_ns, "percent");
}
