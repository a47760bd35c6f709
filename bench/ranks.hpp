#pragma once
/// For a measuring program that is its own job: when started alone, it launches itself as ranks and reads their
/// reports.
///
///     if (!is_rank()) {
///       const auto figures = run_ranks(2, argc, argv);
///       report("transfer_16MiB", figures[1].at("transfer"), "ns");
///       return 0;
///     }
///     return as_rank([&](ops::job& here) { …  report("transfer", ns, "ns"); });       // to the launching process
///
/// If a rank fails, the program ends with the error of that rank.
#include <parley/bench/measure.hpp>
#include <parley/config.hpp>
#include <parley/run.hpp>
#include <parley/transports/launch/environment.hpp>
#include <parley/transports/launch/launcher.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace parley::bench {

using rank_figures = std::map<std::string, double>;

inline bool is_rank() { return std::getenv(transports::variable::rank) != nullptr; }

inline std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length < 0) give_up("the program cannot find itself");
  return std::string(path.data(), std::size_t(length));
}

/// Launches the ranks and returns the figures that each one reported, by name.
inline std::vector<rank_figures> run_ranks(runtime::rank_id ranks, int argc, char** argv) {
  std::vector<rank_figures> figures(ranks);
  std::string errors;
  transports::launch_options options;
  options.ranks = ranks;
  options.timeout_ns = 120'000'000'000;
  options.command.push_back(own_path());
  options.command.insert(options.command.end(), argv + 1, argv + argc);
  options.on_notice = [&](std::string_view text) { errors += std::string(text) + " "; };
  options.on_line = [&](runtime::rank_id rank, transports::output_stream stream, std::string_view line) {
    std::array<char, 64> name{};
    double value = 0;
    if (stream == transports::output_stream::error)
      errors += std::string(line) + " ";
    else if (std::sscanf(std::string(line).c_str(), "%63s %lf", name.data(), &value) == 2)
      figures[rank][name.data()] = value;
  };
  if (transports::launch(options).status != 0) give_up(errors.empty() ? "a rank failed" : errors);
  if (!errors.empty()) std::fprintf(stderr, "%s\n", errors.c_str());
  return figures;
}

inline double figure(const rank_figures& of, const std::string& name) {
  const auto found = of.find(name);
  if (found == of.end()) give_up("a rank did not report " + name);
  return found->second;
}

/// Runs `body(job&)` as a rank on its own core, with no limit on the rate of trials.
template <class Body>
int as_rank(const Body& body, ops::job_options options = {}) {
  pin_to_core(int(transports::from_environment().value().rank));
  options.settings.plan.budget_fraction = 1e3;
  return ops::run(body, options);
}

/// The configs that all tuning rows compare, the default first; peers/mpi_tuning.cpp has the same ones.
inline std::vector<ops::config_ptr> catalogue(std::size_t count) {
  constexpr std::array<std::pair<std::uint64_t, std::uint64_t>, 11> chunks{{{64 << 10, 2},
                                                                            {128 << 10, 2},
                                                                            {256 << 10, 2},
                                                                            {256 << 10, 4},
                                                                            {512 << 10, 2},
                                                                            {1 << 20, 2},
                                                                            {1 << 20, 4},
                                                                            {2 << 20, 2},
                                                                            {4 << 20, 2},
                                                                            {128 << 10, 8},
                                                                            {64 << 10, 16}}};
  if (count < 1 || count > chunks.size() + 1) give_up("--configs takes 1 to 12");
  std::vector<ops::config_ptr> list{configs::direct()};
  for (std::size_t i = 0; list.size() < count; ++i) list.push_back(configs::chunked(chunks[i].first, chunks[i].second));
  return list;
}

}  // namespace parley::bench
