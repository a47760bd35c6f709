// parley_sim: runs seeds of scenarios and says what did not hold; see docs/simulation.md.
#include <parley/simulation/job.hpp>

#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

using namespace parley;

int main(int argc, char** argv) {
  std::ifstream in(argv[1]);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  const auto s = simulation::read_scenario(text);
  const std::uint64_t from = argc > 2 ? std::stoull(argv[2]) : 1;
  const std::uint64_t n = argc > 3 ? std::stoull(argv[3]) : 1;
  std::uint64_t bad = 0;
  for (std::uint64_t seed = from; seed < from + n; ++seed) {
    const auto t = simulation::draw(s, seed);
    const auto o = simulation::run(s, t, seed);
    std::cout << "seed " << seed << " hash " << std::hex << o.hash << std::dec << " steps " << o.steps << " calls "
              << o.calls << " failed " << o.failed_calls << " decided " << o.decided << " at "
              << o.simulated_ns / 1'000'000 << " ms\n";
    for (const auto& v : o.violations) std::cout << "  " << v.invariant << ": " << v.text << "\n";
    bad += o.violations.empty() ? 0 : 1;
  }
  std::cout << bad << " of " << n << " bad\n";
}
