#pragma once
/// The matrix of faults: each step of each part, and each thing that may befall a rank there. Ordinary tests run a few of its cells;
/// PARLEY_TEST_MATRIX=N runs all of them N times, in the test cases whose names have `at any step` (`./dev fire`).
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

// What a rank is told to do (ranks.hpp) is what befalls it, but for one that is paused: it stops itself, and is resumed in time.
inline std::string fault_of(std::string_view action, const char* step, rank_id rank) {
  return std::string(action == "pause" ? "stop" : action) + ":" + step + ":" + std::to_string(rank);
}
/// How it ends that was killed, or left without a word.
inline int status_after(std::string_view action) { return action == "kill" ? -SIGKILL : 0; }

/// Long enough for what waits for a rank to be said again, and far less than the detection time that goes with it.
inline constexpr auto pause_length = 500ms;
inline constexpr const char* detection_of_pauses = "5";

/// For a survivor to take its error through its program, and to leave.
inline constexpr auto leaving = 1500ms;

/// How often to go through all steps; 0 where that is not asked for.
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

/// Those of hearts that have a name.
inline std::set<std::string> pages() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with("parley-")) names.insert(entry.path().string());
  }
  return names;
}
/// None that this job has made is left. Other jobs of this machine may be joining just now: each of their pages has its name for a moment only.
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
