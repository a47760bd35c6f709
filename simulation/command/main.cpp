// parley_sim: runs seeds of scenarios, reports violations and how to reproduce them; see docs/simulation.md.
#include <parley/error.hpp>
#include <parley/number_text.hpp>
#include <parley/simulation/mutants.hpp>
#include <parley/simulation/scenarios/many_seeds.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
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
  std::string save;
  std::string golden;
  std::string counts;
  std::vector<std::string> sum;
  bool renew = false;
  bool every_mutant = false;
  bool twice = false;
  bool hashes = false;
  bool no_coverage = false;
  bool keep_going = false;
  bool trace = false;
};

std::string text_in(const std::string& path) {
  std::ifstream in(path);
  if (!in || std::filesystem::is_directory(path))
    runtime::raise({runtime::errc::unavailable, path + " is not a file that can be read"});
  return {std::istreambuf_iterator<char>(in), {}};
}

// Throws, before anything runs, if the output could not be saved at `path` later.
void expect_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder))
    runtime::raise({runtime::errc::unavailable, path + " cannot be written: there is no folder " + folder.string()});
  if (std::filesystem::is_directory(path))
    runtime::raise({runtime::errc::unavailable, path + " cannot be written: it is a folder"});
}

void write(const std::string& path, const std::string& text) {
  std::ofstream out(path);
  if (!(out << text).flush()) runtime::raise({runtime::errc::unavailable, path + " cannot be written"});
}

sim::scenario scenario_in(const std::string& path) {
  const std::string text = text_in(path);
  try {
    return sim::read_scenario(text);
  } catch (const runtime::failure& f) {
    runtime::raise({f.code(), path + ": " + f.reason().text()});
  }
}

void expect_scenarios(const std::string& folder) {
  if (!std::filesystem::is_directory(folder))
    runtime::raise(
        {runtime::errc::unavailable, folder + " is not a folder: start this in the root of the repository, or say "
                                              "where scenarios are with --scenarios FOLDER"});
}

std::vector<std::string> all_in(const std::string& folder) {
  expect_scenarios(folder);
  std::vector<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == ".json") files.push_back(file.path().string());
  }
  if (files.empty()) runtime::raise({runtime::errc::unavailable, folder + " has no scenario (*.json)"});
  std::sort(files.begin(), files.end());
  return files;
}

// A word of a command, quoted for a shell.
std::string in_quotes(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_-+=./,:@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string command_for(const std::string& path, std::uint64_t seed, const std::string& mutant) {
  return "./dev sim --scenario " + in_quotes(path) + " --seed " + std::to_string(seed) +
         (mutant.empty() ? "" : " --mutant " + in_quotes(mutant));
}

std::string in_hex(std::uint64_t n) {
  std::ostringstream text;
  text << std::hex << std::setw(16) << std::setfill('0') << n;
  return text.str();
}

void show(const sim::outcome& o) {
  std::cout << "seed " << o.seed << ": hash " << in_hex(o.hash) << ", " << o.steps << " steps, " << o.calls
            << " calls, " << o.failed_calls << " of them failed, " << o.decided << " decisions, "
            << o.simulated_ns / 1'000'000 << " ms simulated\n"
            << std::flush;
}

// Prints the first violation of each checker, and the number of all violations.
void show_violations(const sim::outcome& o) {
  std::set<std::string> shown;
  for (const sim::violation& v : o.violations) {
    if (shown.insert(v.invariant).second) std::cout << "  " << v.invariant << ": " << v.text << "\n";
  }
  std::cout << "  " << o.violations.size() << " violations in all\n";
}

void make_small(const wishes& w, const std::string& path, const sim::scenario& s, const sim::outcome& o) {
  const sim::small f =
      sim::shrink(s, sim::draw(s, o.seed), o.seed, o.violations.front().invariant, {.mutant = w.mutant});
  const std::string saved =
      w.save.empty() ? "failing-" + std::filesystem::path(path).stem().string() + ".json" : w.save;
  write(saved, sim::write_scenario(f.play));
  std::cout << (f.fewer == 0 ? "  no smaller run breaks " : "  a smaller run that breaks ")
            << o.violations.front().invariant << " (after " << f.runs
            << (f.fewer == 0 ? " runs); the same one with its faults as a tape" : " runs)") << ": "
            << command_for(saved, o.seed, w.mutant) << "\n"
            << std::flush;
}

// Adds the faults of messages that one scenario allows.
void add(sim::fault_limits& all, const sim::fault_limits& more) {
  for (const auto field :
       {&sim::fault_limits::lose, &sim::fault_limits::double_control, &sim::fault_limits::delay_control,
        &sim::fault_limits::delay_data, &sim::fault_limits::double_data})
    all.*field = std::max(all.*field, more.*field);
}

// Runs one seed. If parley refuses something that the scenario asks for, the error names the file.
sim::outcome run_seed(const std::string& path, const sim::scenario& s, const sim::tape& t, std::uint64_t seed,
                      const sim::run_options& o) {
  try {
    return sim::run(s, t, seed, o);
  } catch (const runtime::failure& f) {
    runtime::raise({f.code(), path + ", seed " + std::to_string(seed) + ": " + f.reason().text()});
  } catch (const std::bad_alloc&) {
    runtime::raise({runtime::errc::full,
                    path + ", seed " + std::to_string(seed) +
                        ": there is not enough memory: take fewer ranks, members or calls, or smaller sizes"});
  }
}

// Runs the seeds of a scenario. True if none of them failed.
bool run_scenario(const wishes& w, const std::string& path, const sim::scenario& s, sim::coverage& seen) {
  const std::uint64_t first = w.seed.value_or(w.first);
  const std::uint64_t count = w.seed ? 1 : w.seeds;
  std::uint64_t failed = 0;
  std::uint64_t same = 0;  // seeds whose second run had the same hash
  std::uint64_t steps = 0;
  std::uint64_t calls = 0;
  std::uint64_t all = 0;  // a hash over all hashes
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const sim::tape t = sim::draw(s, seed);
    const sim::outcome o = run_seed(path, s, t, seed, {.mutant = w.mutant, .trace = w.trace ? &std::cout : nullptr});
    steps += o.steps;
    calls += o.calls;
    all = runtime::mix(all ^ o.hash) + 1;
    sim::add(seen, o.messages);
    if (w.seed || w.hashes) show(o);
    const bool differs = w.twice && run_seed(path, s, t, seed, {.mutant = w.mutant}).hash != o.hash;
    if (differs) std::cout << path << ", seed " << seed << ": a second run was different\n";
    if (!differs) ++same;
    if (o.violations.empty() && !differs) continue;
    ++failed;
    if (o.violations.empty()) continue;
    std::cout << path << ", seed " << seed << " fails; again: " << command_for(path, seed, w.mutant) << "\n";
    show_violations(o);
    if (failed == 1) make_small(w, path, s, o);
    if (!w.keep_going) break;
  }
  if (const sim::mutant_info* const m = sim::find_mutant(w.mutant); failed == 0 && m != nullptr)
    std::cout << "mutant " << m->name << " was not noticed; scenario " << m->scenario << " shows it within 100 seeds\n";
  std::cout << path << ": " << failed << " of " << count << " seeds failed; " << steps << " steps, " << calls
            << " calls, hash over all " << std::hex << all << std::dec;
  if (w.twice) std::cout << "; " << same << " of them did the same twice, by their hashes";
  std::cout << '\n' << std::flush;
  return failed == 0;
}

// The scenario that shows a mutant.
std::string scenario_of(const std::string& mutant, const std::string& folder) {
  static_cast<void>(sim::make_mutant(mutant));  // throws for an unknown name
  expect_scenarios(folder);
  return folder + "/" + std::string(sim::find_mutant(mutant)->scenario) + ".json";
}

// A line `SCENARIO SEED HASH` for each of the first seeds of every scenario. The hashes must be the same with any compiler, on any machine.
std::vector<std::string> hashes_of(const std::string& folder) {
  constexpr std::uint64_t seeds = 2;
  std::vector<std::string> lines;
  for (const std::string& path : all_in(folder)) {
    const sim::scenario s = scenario_in(path);
    for (std::uint64_t seed = 1; seed <= seeds; ++seed)
      lines.push_back(std::filesystem::path(path).stem().string() + " " + std::to_string(seed) + " " +
                      in_hex(sim::run(s, sim::draw(s, seed), seed).hash));
  }
  return lines;
}

// True if the hashes are those of the golden file. With `renew`, writes that file instead.
bool compare_hashes(const wishes& w, const std::string& folder) {
  const std::vector<std::string> now = hashes_of(folder);
  if (w.renew) {
    std::ofstream out(w.golden);
    for (const std::string& line : now) out << line << '\n';
    std::cout << w.golden << ": " << now.size() << " hashes written\n";
    return static_cast<bool>(out);
  }
  std::istringstream known(text_in(w.golden));
  const auto seed_of = [](const std::string& line) { return line.substr(0, line.rfind(' ')); };  // scenario and seed
  std::multimap<std::string, std::string> before;
  for (std::string line; std::getline(known, line);) before.emplace(seed_of(line), line);
  std::size_t others = 0;
  std::size_t missing = 0;
  for (const std::string& line : now) {
    const auto [first, end] = before.equal_range(seed_of(line));
    const bool is_new = first == end;
    const auto same = std::find_if(first, end, [&](const auto& one) { return one.second == line; });
    const bool is_same = same != end;
    if (!is_new) before.erase(is_same ? same : first);
    if (is_same) continue;
    ++(is_new ? missing : others);
    std::cout << (is_new ? "no hash yet: " : "another hash: ") << line << '\n';
  }
  for (const auto& [seed, line] : before) std::cout << "of no scenario: " << line << '\n';
  const bool fine = others + missing + before.size() == 0;
  std::cout << now.size() << " hashes";
  if (fine) {
    std::cout << ", all as in " << w.golden << '\n';
  } else {
    std::cout << ": " << others << " differ from those in " << w.golden << ", " << missing << " are missing there, and "
              << before.size() << " there belong to no scenario; ./dev hashes --renew rewrites the file\n";
  }
  return fine;
}

// Prints the coverage and its gaps. True if the runs have covered everything.
bool covered(const sim::coverage& seen, sim::scenarios_run c, const sim::fault_limits* allowed = nullptr) {
  std::cout << sim::coverage_table(seen);
  const std::vector<std::string> gaps = sim::coverage_gaps(seen, c, allowed);
  for (const std::string& gap : gaps) std::cout << "not covered: " << gap << '\n';
  if (!gaps.empty()) std::cout << "more seeds may cover this; --no-coverage switches this check off\n";
  return gaps.empty();
}

CLI::Validator whole(std::uint64_t least, std::uint64_t most) {
  const runtime::number_range<std::uint64_t> within{least, most};
  return {[within](std::string& text) { return runtime::fault_of_number(text, within); }, runtime::words_of(within)};
}

// True if, within so many seeds, one of the expected checkers catches each mutant.
bool run_mutants(const wishes& w, const std::string& folder) {
  expect_scenarios(folder);
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
    std::cout << m.name << ", " << m.scenario
              << (caught.empty() ? ": NOT CAUGHT" : ": seed " + std::to_string(seed - 1) + ", " + caught) << '\n'
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
  constexpr std::uint64_t most_seeds = 1'000'000'000;
  constexpr std::uint64_t last_seed = std::uint64_t{1} << 62U;
  app.add_option("--scenario", w.files, "scenario files; none: all of simulation/scenarios");
  app.add_option("--scenarios", folder, "the folder of scenarios")->capture_default_str();
  auto* const seeds =
      app.add_option("--seeds", w.seeds, "how many seeds of each")->check(whole(1, most_seeds))->capture_default_str();
  auto* const first =
      app.add_option("--first", w.first, "the first of them")->check(whole(0, last_seed))->capture_default_str();
  auto* const seed = app.add_option("--seed", w.seed, "this one only")->check(whole(0, last_seed));
  seed->excludes(seeds)->excludes(first);
  app.add_option("--mutant", w.mutant, "break the protocol on purpose; by default in the scenario that shows it");
  app.add_option("--save", w.save, "file for a smaller failing run (default: failing-SCENARIO.json)");
  auto* const golden =
      app.add_option("--golden", w.golden, "compare the hashes of a few seeds of every scenario with those of a file");
  app.add_flag("--renew", w.renew, "rewrite that file")->needs(golden);
  app.add_option("--counts", w.counts, "write what was covered to a file, for --sum");
  app.add_option("--sum", w.sum, "run nothing: say if the runs that wrote such files have covered everything together");
  app.add_flag("--mutants", w.every_mutant, "check that every mutant is caught, by a checker that should");
  app.add_flag("--twice", w.twice, "run every seed twice and compare the hashes, and ask for no coverage");
  app.add_flag("--hashes", w.hashes, "print a line for every seed");
  app.add_flag("--no-coverage", w.no_coverage, "print no table of messages, and do not ask that every cell has one");
  app.add_flag("--trace", w.trace, "print every message and every call; with --seed")->needs(seed);
  app.add_flag("--keep-going", w.keep_going, "do not stop a scenario at its first failure");
  app.footer("Ends with 0 when all held, 1 when a seed failed or a cell was not covered, 2 when it could not run.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    if (w.every_mutant) return run_mutants(w, folder) ? 0 : 1;
    if (!w.golden.empty()) return compare_hashes(w, folder) ? 0 : 1;
    sim::coverage seen;
    if (!w.sum.empty()) {
      for (const std::string& path : w.sum) sim::add(seen, sim::read_coverage(text_in(path)));
      return covered(seen, sim::scenarios_run::all) ? 0 : 1;
    }
    if (w.files.empty() && !w.mutant.empty()) w.files = {scenario_of(w.mutant, folder)};
    if (!w.save.empty()) expect_folder_of(w.save);
    if (!w.counts.empty()) expect_folder_of(w.counts);
    if (!w.save.empty() && w.files.size() != 1)
      runtime::raise(
          {runtime::errc::bad_argument, "--save FILE is for one scenario: each scenario would overwrite the file"});
    const bool whole = w.files.empty() && w.first == 1;
    if (w.files.empty()) w.files = all_in(folder);
    std::vector<sim::scenario> plays;  // all of them are read before the first one runs
    for (const std::string& path : w.files) plays.push_back(scenario_in(path));
    bool fine = true;
    sim::fault_limits allowed;
    for (std::size_t i = 0; i < plays.size(); ++i) {
      add(allowed, plays[i].faults);
      fine = run_scenario(w, w.files[i], plays[i], seen) && fine;
    }
    if (!w.counts.empty()) write(w.counts, sim::write_coverage(seen));
    if (w.seed || w.no_coverage || w.twice || !w.mutant.empty()) return fine ? 0 : 1;
    return covered(seen, whole ? sim::scenarios_run::all : sim::scenarios_run::some, &allowed) && fine ? 0 : 1;
  } catch (const std::exception& e) {
    std::cerr << "parley_sim: " << e.what() << "\n";
    return 2;
  }
}
