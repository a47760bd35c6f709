#pragma once
/// The fault matrix: each step of each part, with each fault that may strike a rank there. Ordinary tests run a few of its cells.
/// PARLEY_TEST_MATRIX=N runs all cells N times, in the test cases whose names contain `at any step` (`./dev fire`).
#include <parley/tests/fire/supervisor.hpp>

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fire {

// The value of PARLEY_TEST_FAULT (ranks.hpp). A rank to be paused stops itself, and the test resumes it in time.
inline std::string fault_of(std::string_view action, const char* step, rank_id rank) {
  return std::string(action == "pause" ? "stop" : action) + ":" + step + ":" + std::to_string(rank);
}
/// The status of a rank that was killed, or that left without a goodbye.
inline int status_after(std::string_view action) { return action == "kill" ? -SIGKILL : 0; }

/// Long enough for retries to a paused rank, and far shorter than the detection time of these tests.
inline constexpr auto pause_length = 500ms;
inline constexpr const char* detection_of_pauses = "5";

/// The time in which a survivor must pass its error through its program and leave.
inline constexpr auto leaving = 1500ms;

/// How often to run all steps; 0: only the ordinary tests run.
inline int times_over() {
  const char* const told = std::getenv("PARLEY_TEST_MATRIX");
  return told == nullptr ? 0 : std::atoi(told);
}
template <class Part, class Run>
void run_all(const std::vector<Part>& parts, std::initializer_list<const char*> actions, Run run) {
  for (int i = 0; i < times_over(); ++i) {
    for (const Part& part : parts) {
      for (const char* step : part.steps) {
        for (const char* action : actions) run(part, action, step);
      }
    }
    if (times_over() > 1) MESSAGE("the whole matrix, run " << i + 1 << " of " << times_over());
  }
}

/// The shared pages of hearts that have a name in /dev/shm. A folder there belongs to a `parley run`, which keeps it until its job ends.
inline std::set<std::string> pages() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with("parley-") && !entry.is_directory())
      names.insert(entry.path().string());
  }
  return names;
}
/// Checks that this job has left no page. Other jobs on the machine may be joining: a page of theirs has its name only for a moment.
inline void check_no_pages_but(const std::set<std::string>& before) {
  const parley::tests::deadline limit;
  std::set<std::string> left = pages();
  std::erase_if(left, [&](const std::string& page) { return before.contains(page); });
  while (!left.empty() && !limit.is_over()) {
    ::poll(nullptr, 0, 10);
    std::erase_if(left, [now = pages()](const std::string& page) { return !now.contains(page); });
  }
  for (const std::string& page : left) FAIL_CHECK("left behind: " << page);
}

}  // namespace fire
