// parley_sim: runs seeds of scenarios, says what did not hold and how to see it again; see docs/simulation.md.
#include <parley/runtime/error.hpp>
#include <parley/simulation/campaign.hpp>
#include <parley/simulation/mutants.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

using namespace parley;
namespace sim = parley::simulation;

namespace {

struct wishes {
  std::vector<std::string> files;
  std::uint64_t seeds = 100;
  std::uint64_t first = 1;
  std::optional<std::uint64_t> seed;
  std::string mutant;
  std::string save = "failing.json";
  bool every_mutant = false;
  bool twice = false;
  bool hashes = false;
  bool no_coverage = false;
  bool keep_going = false;
  bool trace = false;
};

sim::scenario scenario_in(const std::string& path) {
  std::ifstream in(path);
  if (!in) runtime::raise({runtime::errc::unavailable, path + " cannot be read"});
  return sim::read_scenario(std::string(std::istreambuf_iterator<char>(in), {}));
}

void show(const sim::outcome& o) {
  std::cout << "seed " << o.seed << ": hash " << std::hex << std::setw(16) << std::setfill('0') << o.hash << std::dec
            << ", " << o.steps << " steps, " << o.calls << " calls, " << o.failed_calls << " of them failed, "
            << o.decided << " decisions, " << o.simulated_ns / 1'000'000 << " ms simulated\n";
}

// Which checkers found something, and what each of them said first.
void show_violations(const sim::outcome& o) {
  std::set<std::string> shown;
  for (const sim::violation& v : o.violations) {
    if (shown.insert(v.invariant).second) std::cout << "  " << v.invariant << ": " << v.text << "\n";
  }
  std::cout << "  " << o.violations.size() << " violations in all\n";
}

void make_small(const wishes& w, const sim::scenario& s, const sim::outcome& o) {
  const sim::small f =
      sim::shrink(s, sim::draw(s, o.seed), o.seed, o.violations.front().invariant, {.mutant = w.mutant});
  std::ofstream(w.save) << sim::write_scenario(f.play);
  std::cout << "  a smaller run that breaks " << o.violations.front().invariant << " (after " << f.runs
            << " runs): ./dev sim --scenario " << w.save << " --seed " << o.seed
            << (w.mutant.empty() ? "" : " --mutant " + w.mutant) << "\n";
}

// Whether all of them held everything.
bool run_scenario(const wishes& w, const std::string& path, sim::coverage& seen) {
  const sim::scenario s = scenario_in(path);
  const std::uint64_t first = w.seed.value_or(w.first);
  const std::uint64_t count = w.seed ? 1 : w.seeds;
  std::uint64_t failed = 0;
  std::uint64_t steps = 0;
  std::uint64_t calls = 0;
  std::uint64_t all = 0;  // a hash over all hashes
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const sim::tape t = sim::draw(s, seed);
    const sim::outcome o = sim::run(s, t, seed, {.mutant = w.mutant, .trace = w.trace ? &std::cout : nullptr});
    steps += o.steps;
    calls += o.calls;
    all = runtime::mix(all ^ o.hash) + 1;
    sim::add(seen, o.messages);
    if (w.seed || w.hashes) show(o);
    if (w.twice && sim::run(s, t, seed, {.mutant = w.mutant}).hash != o.hash) {
      std::cout << path << ", seed " << seed << ": a second run did something else\n";
      ++failed;
    }
    if (o.violations.empty()) continue;
    ++failed;
    std::cout << path << ", seed " << seed << " fails; again: ./dev sim --scenario " << path << " --seed " << seed
              << (w.mutant.empty() ? "" : " --mutant " + w.mutant) << "\n";
    show_violations(o);
    if (failed == 1) make_small(w, s, o);
    if (!w.keep_going) break;
  }
  std::cout << path << ": " << failed << " of " << count << " seeds failed; " << steps << " steps, " << calls
            << " calls, hash over all " << std::hex << all << std::dec << '\n'
            << std::flush;
  return failed == 0;
}

// Whether one of its checkers names every mutant within so many seeds.
bool run_mutants(const wishes& w, const std::string& folder) {
  bool all = true;
  for (const sim::mutant_info& m : sim::mutants()) {
    if (!w.mutant.empty() && w.mutant != m.name) continue;
    const sim::scenario s = scenario_in(folder + "/" + std::string(m.scenario) + ".json");
    std::string caught;
    std::uint64_t seed = w.first;
    for (; caught.empty() && seed < w.first + w.seeds; ++seed) {
      const sim::outcome o = sim::run(s, sim::draw(s, seed), seed, {.mutant = std::string(m.name)});
      for (const sim::violation& v : o.violations) {
        if (std::find(m.caught_by.begin(), m.caught_by.end(), v.invariant) != m.caught_by.end() && caught.empty())
          caught = v.invariant + ": " + v.text;
      }
    }
    std::cout << m.name << (caught.empty() ? ": NOT CAUGHT" : ": seed " + std::to_string(seed - 1) + ", " + caught)
              << '\n'
              << std::flush;
    all = all && !caught.empty();
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  wishes w;
  std::string folder = "simulation/scenarios";
  CLI::App app("Runs simulated jobs with faults chosen by a seed and checks what must always hold", "parley_sim");
  app.add_option("--scenario", w.files, "scenario files; none: all of simulation/scenarios");
  app.add_option("--scenarios", folder, "the folder of scenarios");
  app.add_option("--seeds", w.seeds, "how many seeds of each");
  app.add_option("--first", w.first, "the first of them");
  app.add_option("--seed", w.seed, "this one only");
  app.add_option("--mutant", w.mutant, "break the protocol on purpose");
  app.add_option("--save", w.save, "where a smaller failing run is written to");
  app.add_flag("--mutants", w.every_mutant, "check that every mutant is caught, by a checker that should");
  app.add_flag("--twice", w.twice, "run every seed twice and compare");
  app.add_flag("--hashes", w.hashes, "print a line for every seed");
  app.add_flag("--no-coverage", w.no_coverage, "print no table of messages, and do not ask that every cell has one");
  app.add_flag("--trace", w.trace, "print every message and every call; with --seed");
  app.add_flag("--keep-going", w.keep_going, "do not stop a scenario at its first failure");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    if (w.every_mutant) return run_mutants(w, folder) ? 0 : 1;
    const bool whole = w.files.empty() && w.first == 1;
    if (w.files.empty()) {
      for (const auto& file : std::filesystem::directory_iterator(folder)) w.files.push_back(file.path().string());
      std::sort(w.files.begin(), w.files.end());
    }
    sim::coverage seen;
    bool fine = true;
    for (const std::string& path : w.files) fine = run_scenario(w, path, seen) && fine;
    if (w.seed || w.no_coverage || !w.mutant.empty()) return fine ? 0 : 1;
    std::cout << sim::coverage_table(seen);
    for (const std::string& gap : sim::coverage_gaps(seen, whole ? sim::campaign::whole : sim::campaign::part)) {
      std::cout << "not covered: " << gap << "\n";
      fine = false;
    }
    return fine ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "parley_sim: " << e.what() << "\n";
    return 2;
  }
}
