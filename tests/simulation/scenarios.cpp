#include <parley/simulation/job.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

using namespace parley::simulation;

namespace {

std::vector<std::string> all_scenarios() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(PARLEY_SCENARIOS)) names.push_back(file.path().string());
  std::sort(names.begin(), names.end());
  return names;
}

scenario scenario_in(const std::string& path) {
  std::ifstream in(path);
  return read_scenario(std::string(std::istreambuf_iterator<char>(in), {}));
}

std::string in_words(const outcome& o) {
  std::string text;
  for (const violation& v : o.violations) text += v.invariant + ": " + v.text + "\n";
  return text;
}

}  // namespace

TEST_CASE("A few seeds of every scenario hold all invariants, and a seed does the same each time") {
  for (const std::string& path : all_scenarios()) {
    CAPTURE(path);
    const scenario s = scenario_in(path);
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      CAPTURE(seed);
      const tape t = draw(s, seed);
      const outcome first = run(s, t, seed);
      CHECK(in_words(first) == "");
      CHECK(first.calls > 0);
      const outcome again = run(s, t, seed);
      CHECK(again.hash == first.hash);
      CHECK(again.steps == first.steps);
    }
  }
}

TEST_CASE("Another seed is another run, and a scenario says the same after it was written and read") {
  const scenario s = scenario_in(all_scenarios().front());
  CHECK(run(s, draw(s, 1), 1).hash != run(s, draw(s, 2), 2).hash);
  const scenario again = read_scenario(write_scenario(s));
  CHECK(write_scenario(again) == write_scenario(s));
  scenario saved = s;
  saved.saved = draw(s, 5);
  const scenario replayed = read_scenario(write_scenario(saved));
  CHECK(run(replayed, draw(replayed, 5), 5).hash == run(s, draw(s, 5), 5).hash);
}

TEST_CASE("An op that only its members declare runs as if everybody had declared it") {
  scenario s = scenario_in(std::string(PARLEY_SCENARIOS) + "/pair.json");
  const outcome declared_by_all = run(s, draw(s, 1), 1);
  for (op_spec& op : s.ops) {
    REQUIRE(op.members.size() < s.ranks);
    op.everybody = false;
  }
  s = read_scenario(write_scenario(s));
  REQUIRE(!s.ops.front().everybody);
  const outcome o = run(s, draw(s, 1), 1);
  CHECK(in_words(o) == "");
  CHECK(o.hash == declared_by_all.hash);
}

TEST_CASE("A scenario that cannot be is refused with the field's name") {
  const auto refusal = [](const char* text) -> std::string {
    try {
      static_cast<void>(read_scenario(text));
    } catch (const parley::runtime::failure& f) {
      return f.what();
    }
    return "";
  };
  CHECK(refusal("{").find("no JSON") != std::string::npos);
  CHECK(refusal(R"({"rank": 2})").find("`rank`: there is no such field") != std::string::npos);
  CHECK(refusal(R"({"ranks": "two"})").find("`ranks`") != std::string::npos);
  CHECK(refusal(R"({"ops": [{"kind": "pear"}]})").find("pear") != std::string::npos);
  CHECK(refusal(R"({"ranks": 2, "ops": [{"members": [0, 2]}]})").find("outside the world") != std::string::npos);
}
