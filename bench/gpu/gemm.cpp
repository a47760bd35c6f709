// Matrix products of language models on a GPU: what tuning gains over cuBLAS, and what it costs.
//
//     gpu_gemm [--type bf16 | f8] [--shapes FILE] [--rounds 31] [--results FILE]
//
// A line of FILE is a name, m, n and k; without FILE, the layers of LLaMA-2-7B and 70B and of Mixtral 8x7B with 1, 16, 128 and 4,096
// tokens. In column-major order, as PyTorch calls it for `x @ w.T`: A is the weight, k x m and transposed, and B has a column for each token.
// Each shape is tuned once. Then cuBLAS (for f8: the choice of cuBLASLt's heuristic) and the tuned product run in turns, each behind a fill
// of the L2 cache. A row has their medians over the rounds in us, the ratio of these, and the time of the search. The product is compared
// with the default's.
#include <parley/bench/measure.hpp>
#include <parley/cuda_gemm.hpp>
#include <parley/cuda_kernels.hpp>
#include <parley/runtime/time/reactor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::ops;
using parley::runtime::bf16;
using parley::runtime::f8_e4m3;
using parley::transports::cuda_memory;

struct shape {
  std::string name;
  std::size_t m, n, k;
};

std::vector<shape> shapes_of_models() {
  struct layer {
    const char* name;
    std::size_t outputs, inputs;
  };
  // Queries, keys and values together; the output of attention; gate and up together; down.
  constexpr layer layers[] = {{"7b_qkv", 12'288, 4'096},
                              {"7b_out", 4'096, 4'096},
                              {"7b_gate_up", 22'016, 4'096},
                              {"7b_down", 4'096, 11'008},
                              {"70b_qkv", 10'240, 8'192},
                              {"70b_out", 8'192, 8'192},
                              {"70b_gate_up", 57'344, 8'192},
                              {"70b_down", 8'192, 28'672},
                              {"mixtral_expert_up", 28'672, 4'096},
                              {"mixtral_expert_down", 4'096, 14'336}};
  std::vector<shape> all;
  for (const layer& l : layers)
    for (const std::size_t tokens : {16U, 128U, 1'024U, 4'096U}) all.push_back({l.name, l.outputs, tokens, l.inputs});
  return all;
}

std::vector<shape> shapes_in(const std::string& path) {
  std::vector<shape> all;
  std::ifstream in(path);
  for (shape s; in >> s.name >> s.m >> s.n >> s.k;) all.push_back(s);
  if (all.empty()) give_up("no shapes in " + path);
  return all;
}

struct gpu_clock {
  explicit gpu_clock(cuda_kernels& g) : gpu(g) {}
  template <class Call>
  double us(Call&& call) {
    gpu.evict(gpu.cache_bytes(), false);
    device_timer timer(gpu);
    call();
    timer.end();
    return timer.took_ns() / 1e3;
  }
  cuda_kernels& gpu;
};

template <class T, class Out>
void measure(const arguments& given, const char* type) {
  parley::runtime::reactor ex;
  auto& driver = *parley::transports::cuda_runtime().value();
  auto& blas = *parley::transports::cublas_runtime().value();
  const parley::transports::cuda_stream stream = driver.make_stream(0);
  cuda_kernels gpu(ex, driver, 0, stream);
  gpu_clock clock(gpu);
  tunable_context::options o;
  o.mine.enabled = true;
  o.mine.max_search_duration_ms = std::uint32_t(given.number("search-ms", 1'000));
  o.mine.flush_icache = given.text("icache", "yes") == "yes";
  tunable_context tuned_context(ex, nullptr, o), default_context(ex, nullptr, {});
  cuda_gemm<T, Out> tuned(tuned_context, driver, blas), usual(default_context, driver, blas);
  const std::string path = given.text("shapes", "");
  std::printf("# %s, cuBLAS %s, %s\n", driver.devices()[0].name.c_str(), blas.version().c_str(), type);
  std::printf("%-22s %6s %6s %6s %11s %11s %8s %9s  %s\n", "name", "m", "n", "k", "default us", "tuned us", "ratio",
              "search ms", "chosen");
  std::vector<double> ratios, searches;
  for (const shape& s : path.empty() ? shapes_of_models() : shapes_in(path)) {
    gemm_call<T, Out> call{.m = s.m, .n = s.n, .k = s.k, .trans_a = true};
    const gemm_memory needs = tuned.needs(call);
    const auto a = cuda_memory::on_device(driver, 0, needs.a * sizeof(T));
    const auto b = cuda_memory::on_device(driver, 0, needs.b * sizeof(T));
    const auto c = cuda_memory::on_device(driver, 0, needs.c * sizeof(Out));
    const auto fill = [&](const cuda_memory& m, std::size_t seed) {
      std::vector<T> some(std::min(m.bytes().size() / sizeof(T), std::size_t{1} << 20U));
      for (std::size_t i = 0; i < some.size(); ++i)
        some[i] = T(float((i * 2'654'435'761U + seed) >> 13U & 255U) / 128.0F - 1.0F);
      for (std::size_t done = 0; done < m.bytes().size(); done += some.size() * sizeof(T))
        gpu.copy(m.bytes().data() + done, some.data(), std::min(some.size() * sizeof(T), m.bytes().size() - done));
    };
    fill(a, 1), fill(b, 2);
    call.a = {reinterpret_cast<const T*>(a.bytes().data()), needs.a};
    call.b = {reinterpret_cast<const T*>(b.bytes().data()), needs.b};
    call.c = {reinterpret_cast<Out*>(c.bytes().data()), needs.c};
    usual(call, stream);
    std::vector<Out> expected(needs.c), seen(needs.c);
    gpu.copy(expected.data(), c.bytes().data(), c.bytes().size());
    const std::int64_t began = now_ns();
    tuned(call, stream);
    gpu.copy(seen.data(), c.bytes().data(), c.bytes().size());
    searches.push_back(double(now_ns() - began) / 1e6);
    for (std::size_t i = 0; i < needs.c; i += 97) {
      const double off = std::abs(double(float(seen[i])) - double(float(expected[i])));
      if (!(off <= 0.02 * std::abs(double(float(expected[i]))) + 0.5)) give_up(s.name + ": a wrong number");
    }
    std::vector<double> with_default, with_tuned;
    for (std::int64_t i = 0; i < given.number("rounds", 31); ++i) {
      const auto run_default = [&] { with_default.push_back(clock.us([&] { usual(call, stream); })); };
      if (i % 2 == 0) run_default();
      with_tuned.push_back(clock.us([&] { tuned(call, stream); }));
      if (i % 2 != 0) run_default();
    }
    ratios.push_back(median(with_default) / median(with_tuned));
    std::printf("%-22s %6zu %6zu %6zu %11.2f %11.2f %8.3f %9.0f  %s\n", s.name.c_str(), s.m, s.n, s.k,
                median(with_default), median(with_tuned), ratios.back(), searches.back(), tuned.runs(call).c_str());
    if (given.text("verbose", "no") == "yes") std::printf("    %s\n", tuned.decision(call).why.c_str());
    std::fflush(stdout);
  }
  report("gemm_tuned_vs_default", median(ratios), "ratio");
  report("gemm_tuned_vs_default_best", *std::max_element(ratios.begin(), ratios.end()), "ratio");
  report("gemm_tuned_vs_default_worst", *std::min_element(ratios.begin(), ratios.end()), "ratio");
  report("gemm_search_on_gpu", median(searches), "ms");
  driver.destroy(stream);
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string type = given.text("type", "bf16");
  if (type == "bf16") return measure<bf16, bf16>(given, "bf16"), 0;
  if (type == "f8") return measure<f8_e4m3, bf16>(given, "f8 to bf16"), 0;
  give_up("--type is bf16 or f8");
}
