// How long a rank takes to read a large results file, and to have it ready for its kernels.
//
//     results_load [--entries 100000]
#include <parley/bench/measure.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tuning/results/results.hpp>

#include <cstdint>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace parley::bench;
  const arguments given(argc, argv);
  const auto entries = given.number("entries", 100'000);
  std::string text = "Validator,PT_VERSION,2.2.0\n";
  for (std::int64_t i = 1; i <= entries; ++i)
    text += "GemmTunableOp_float_NT,nt_" + std::to_string(i) + "_4096_64,openblas(threads=2),0.5\n";
  std::vector<double> took_ms;
  for (int round = 0; round < 5; ++round) {
    parley::runtime::virtual_time clock;
    const parley::ops::tunable_context::options none;
    parley::ops::tunable_context kernels(clock, nullptr, none);
    const std::int64_t began = now_ns();
    kernels.remember(parley::tuning::parse_results(text).value().file);
    took_ms.push_back(double(now_ns() - began) / 1e6);
    if (kernels.remembered("GemmTunableOp_float_NT", "nt_7_4096_64") == nullptr) give_up("an entry is missing");
  }
  report("results_load", median(took_ms), "ms");
}
