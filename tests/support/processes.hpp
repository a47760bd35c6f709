#pragma once
/// Tests with several processes over UCX. The launcher starts the test program itself as each rank, with one (skipped) test case and the
/// name of a scenario; the test reads the output of the ranks.
///
///     TEST_CASE("one rank of a job" * doctest::skip()) { … ops::run(scenarios().at(std::getenv(scenario_variable))); }
///     const job_run run("one rank of a job", "every_size", 2);
///     CHECK_MESSAGE(run.fine(), run.all);
///
/// A rank passes an error to the test as facts, so that the test need not read the sentence:
///
///     say_error("first send", outcome.reason());                                       // the rank
///     CHECK(is(run.error_of(0, "first send"), {.code = errc::peer_failed, .peer = 1}));  // the test; see errors.hpp
#include <parley/tests/support/deadline.hpp>
#include <parley/tests/support/error_lines.hpp>
#include <parley/tests/support/flights.hpp>

#include <parley/error.hpp>
#include <parley/rank.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/transports/launch/launcher.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace parley::tests {

inline constexpr const char* scenario_variable = "PARLEY_TEST_SCENARIO";

inline void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

/// Prints a line for each invocation, which the test joins. Leaves out invocations that failed before they had a config.
inline void say_flights(const ops::rank& self) {
  for (const runtime::flight_record& r : self.flight().in_order()) {
    if (!runtime::is_transfer(r.what) || !has_config(r)) continue;
    std::ostringstream line;
    line << "flight " << r.op << ' ' << r.generation << ' ' << r.tag << ' ' << r.invocation << ' ' << (r.flags & 4U)
         << ' ' << r.digest;
    say(line.str());
  }
}

/// Prints a line from which the test restores this error. `which` distinguishes it from the other errors of its rank.
inline void say_error(const std::string& which, const runtime::error& why) { say(line_of_error(which, why)); }

struct job_run {
  job_run(const std::string& rank_test, const std::string& scenario, runtime::rank_id ranks,
          std::vector<std::pair<std::string, std::string>> environment = {}, std::uint32_t restarts = 0) {
    transports::launch_options o;
    o.ranks = ranks;
    o.restarts = restarts;
    o.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "--no-skip", "--test-case=" + rank_test};
    o.environment = std::move(environment);
    o.environment.emplace_back(scenario_variable, scenario);
    o.timeout_ns = 90'000'000'000 * times_slower();
    o.grace_ns = 30'000'000'000;
    o.kill_after_ns = 500'000'000;
    o.on_line = [this](runtime::rank_id rank, transports::output_stream, std::string_view line) {
      if (line.starts_with("record ")) {
        records.emplace_back(line);
        return;
      }
      if (line.starts_with("flight ")) {
        flights[rank].emplace_back(line);
        return;
      }
      lines[rank].emplace_back(line);
      all += std::to_string(rank) + ": " + std::string(line) + "\n";
    };
    o.on_notice = [this](std::string_view text) { all += std::string(text) + "\n"; };
    const auto began = std::chrono::steady_clock::now();
    end = transports::launch(o);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  }
  bool fine() const { return end.status == 0; }
  bool says(runtime::rank_id rank, std::initializer_list<const char*> words) const {
    const auto of_rank = lines.find(rank);
    if (of_rank == lines.end()) return false;
    return std::any_of(of_rank->second.begin(), of_rank->second.end(), [&](const std::string& line) {
      return std::all_of(words.begin(), words.end(), [&](const char* w) { return line.find(w) != std::string::npos; });
    });
  }
  /// The error that the rank printed with `say_error`; success if it printed none.
  runtime::result<> error_of(runtime::rank_id rank, const std::string& which) const {
    const auto of_rank = lines.find(rank);
    if (of_rank == lines.end()) return {};
    for (const std::string& line : of_rank->second) {
      if (auto said = error_in_line(line, which)) return *std::move(said);
    }
    return {};
  }
  /// Joins the flights of all ranks: the number of invocations that both ends ran, and how many of these with different configs.
  std::pair<std::size_t, std::size_t> joined() const {
    std::map<std::string, std::string> one_end;
    std::size_t pairs = 0;
    std::size_t mismatches = 0;
    for (const auto& [rank, of_rank] : flights) {
      for (const std::string& line : of_rank) {
        const auto space = line.rfind(' ');
        const auto [at, first] = one_end.emplace(line.substr(0, space), line.substr(space));
        if (first) continue;
        ++pairs;
        if (at->second != line.substr(space)) ++mismatches;
      }
    }
    return {pairs, mismatches};
  }
  transports::launch_end end;
  std::map<runtime::rank_id, std::vector<std::string>> lines;
  std::map<runtime::rank_id, std::vector<std::string>> flights;
  std::vector<std::string>
      records;      ///< records that ranks, in whichever process, have left for checkers (tests/fire/records.hpp)
  std::string all;  ///< lines and notices
  double seconds = 0;
};

}  // namespace parley::tests
