#include <parley/halo.hpp>
#include <parley/simulation/world/job.hpp>

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
  for (const auto& file : std::filesystem::directory_iterator(PARLEY_SCENARIOS)) {
    if (file.path().extension() == ".json") names.push_back(file.path().string());
  }
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

TEST_CASE("two seeds of every scenario hold all invariants, and each seed gives the same run again") {
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

TEST_CASE("another seed gives another run, and a scenario is unchanged after it was written and read") {
  const scenario s = scenario_in(all_scenarios().front());
  CHECK(run(s, draw(s, 1), 1).hash != run(s, draw(s, 2), 2).hash);
  const scenario again = read_scenario(write_scenario(s));
  CHECK(write_scenario(again) == write_scenario(s));
  scenario saved = s;
  saved.saved = draw(s, 5);
  const scenario replayed = read_scenario(write_scenario(saved));
  CHECK(run(replayed, draw(replayed, 5), 5).hash == run(s, draw(s, 5), 5).hash);
}

TEST_CASE("a rehearsal that waits for seconds for its resources does not keep looking for them") {
  const scenario s = read_scenario(R"({"ranks": 2, "control_window": 1, "window": 4, "tape": {},
    "ops": [{"kind": "batch", "name": "b", "members": [1, 0], "sizes": [1000], "registered": true, "calls": 0, "calm": 1,
             "configs": ["timed:plain:40000", "torn:half:3"], "timeout_ns": 300000}]})");
  const outcome o = run(s, draw(s, 1), 1);
  CHECK(in_words(o) == "");
  CHECK(o.simulated_ns > 10'000'000'000);
  CHECK(o.steps < 10'000);
}

TEST_CASE("a run of over a million steps for one call comes to rest") {
  const scenario s = read_scenario(R"({"ranks": 2, "tape": {},
    "ops": [{"kind": "pair", "name": "a", "members": [0, 1], "sizes": [16777216], "configs": ["chunked:16:2"], "calls": 0, "calm": 1}]})");
  const outcome o = run(s, draw(s, 1), 1);
  CHECK(in_words(o) == "");
  CHECK(o.steps > 1'100'000);
}

TEST_CASE("an op that only its members declare runs as if all ranks had declared it") {
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

TEST_CASE("an invalid scenario is refused with an error that names the field or the line") {
  const auto refusal = [](const char* text) -> std::string {
    try {
      static_cast<void>(read_scenario(text));
    } catch (const parley::runtime::failure& f) {
      return f.what();
    }
    return "";
  };
  CHECK(refusal("{").find("not JSON") != std::string::npos);
  CHECK(refusal(R"({"rank": 2})").find("`rank`: there is no such field") != std::string::npos);
  CHECK(refusal(R"({"ranks": "two"})").find("`ranks`") != std::string::npos);
  CHECK(refusal(R"({"ops": [{"kind": "pear"}]})").find("pear") != std::string::npos);
  CHECK(refusal(R"({"ranks": 2, "ops": [{"members": [0, 2]}]})").find("outside the world") != std::string::npos);
  CHECK(
      refusal(
          R"({"ranks": 2, "ops": [{"name": "a", "members": [0, 1]}], "tape": {"mishaps": [{"what": "restart", "rank": 9, "at_ns": 1, "for_ns": 1}]}})")
          .find("`tape.mishaps[0].rank`: rank 9 is outside the world of 2") != std::string::npos);
  CHECK(refusal("{\n\n \"ranks\" 2}").find("line 3: this is not JSON") != std::string::npos);
  CHECK(refusal(R"({"ops": [{"members": [0, 1]}, {"memebers": [0, 1]}]})").find("`ops[1].memebers`") !=
        std::string::npos);
  CHECK(refusal(R"({"ops": [{"kind": "pear"}]})").find("pair, pipeline") != std::string::npos);
  CHECK(refusal(R"({"rank": 2})").find("known here are name, ranks") != std::string::npos);
}

TEST_CASE("a scenario that would break its own checkers is refused") {
  const auto refusal = [](const std::string& op, const std::string& rest = "",
                          const std::string& members = "[0, 1]") -> std::string {
    try {
      static_cast<void>(
          read_scenario(R"({"ranks": 3, "ops": [{"name": "a", "members": )" + members + op + "}]" + rest + "}"));
    } catch (const parley::runtime::failure& f) {
      return f.what();
    }
    return "";
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(refusal("").empty());
  CHECK(has(refusal(R"(, "sizes": [0])"), "`ops[0].sizes`: at least 1 is possible, not 0"));
  CHECK(has(refusal(R"(, "calls": 0, "calm": 0)"), "`ops[0].calls`"));
  CHECK(has(refusal(R"(, "in_flight": 0)"), "`ops[0].in_flight`"));
  CHECK(has(refusal(R"(, "configs": [])"), "`ops[0].configs`"));
  CHECK(has(refusal(R"(, "does": "reduce_all")"), "all_reduce, broadcast, gather"));
  CHECK(has(refusal(R"(, "kind": "group")", "", "[2, 0, 2]"), "`ops[0].members`: rank 2 is listed twice"));
  CHECK(refusal(R"(, "streams": 2, "calls": 20, "calm": 20, "in_flight": 10)").empty());
  CHECK(has(refusal(R"(, "streams": 2, "calls": 24, "calm": 24, "in_flight": 12)"), "`ops[0].in_flight`"));
  CHECK(has(refusal(R"(, "kind": "group", "streams": 2)"), "`ops[0].streams`: only a pair has several streams"));
  CHECK(has(refusal("", R"(, "window": 0)"), "`window`"));
  CHECK(has(refusal("", R"(, "budget": -1)"), "`budget`"));
  CHECK(has(refusal("", R"(, "faults": {"lose": 2000})"), "`faults.lose`: at most 1000"));
  CHECK(has(refusal("", R"(, "faulty_ns": -1)"), "`faulty_ns`: at least 0 is possible, not -1"));
  CHECK(has(refusal("", R"(, "detection_ns": 0)"), "`detection_ns`: at least 1"));
  CHECK(has(refusal("", R"(, "calm_after_ns": 1000)"), "`calm_after_ns`: at least 2000000000"));
  CHECK(has(refusal("", R"(, "faults": {"longest_delay_ns": -1})"), "`faults.longest_delay_ns`"));
  CHECK(has(refusal("", R"(, "faults": {"longest_mishap_ns": 5})"), "`faults.longest_mishap_ns`"));
  CHECK(has(refusal("", R"(, "link": {"latency_ns": -1})"), "`link.latency_ns`"));
  CHECK(has(refusal("", R"(, "link": {"ns_per_byte": -1})"), "`link.ns_per_byte`"));
  CHECK(has(refusal("", "", "[]"), "`ops[0].members`: op `a` needs members: its ranks, the sender"));
  CHECK(has(refusal(R"(, "kind": "halo")", "", "[]"), "`ops[0].members`: op `a` needs members: 0, 1, 2, …"));
  CHECK(has(refusal("", R"(, "tape": {"mishaps": [{"for_ns": -1}]})"), "`tape.mishaps[0].for_ns`"));
  const auto of_mishap = [&](const std::string& m) { return refusal("", R"(, "tape": {"mishaps": [{)" + m + "}]}"); };
  CHECK(of_mishap(R"("what": "pause", "rank": 1, "after": 3, "for_ns": 1)").empty());
  CHECK(of_mishap(R"("what": "crash", "rank": 1, "at_ns": 0)").empty());
  CHECK(has(of_mishap(R"("rank": 1, "at_ns": 3, "for_ns": 1)"), "`tape.mishaps[0].what`: it is missing"));
  CHECK(has(of_mishap(R"("what": "crash", "at_ns": 3)"), "`tape.mishaps[0].rank`: a crash needs the rank"));
  CHECK(has(of_mishap(R"("what": "crash", "rank": 1)"), "`tape.mishaps[0].at_ns`: a crash needs it, or `after`"));
  CHECK(has(of_mishap(R"("what": "pause", "rank": 1, "at_ns": 3)"), "`tape.mishaps[0].for_ns`: a pause needs it"));
  CHECK(has(of_mishap(R"("what": "crash", "rank": 1, "at_ns": 3, "after": 3)"),
            "`tape.mishaps[0].after`: it is given together"));
  CHECK(has(of_mishap(R"("what": "cut", "rank": 0, "at_ns": 3, "for_ns": 1)"), "`tape.mishaps[0].to`: a cut needs"));
  CHECK(has(of_mishap(R"("what": "clog", "rank": 1, "to": 0, "after": 3, "for_ns": 1)"), "give it `at_ns` instead"));
  CHECK(has(refusal("", R"(, "jobs": 0)"), "`jobs`: at least 1"));
  CHECK(has(refusal("", R"(, "other_version": [9])"), "`other_version[0]`: rank 9 is outside the world of 3"));
  CHECK(has(refusal("", R"(, "jobs": 1, "validators": [["a"], ["b"]])"),
            "`validators`: there are more entries than jobs"));
  CHECK(has(refusal("", R"(, "watch": {"every": 0})"), "`watch.every`: at least 1"));
  CHECK(has(refusal("", R"(, "ranks": 2)"), "line 1: field `ranks` is listed twice"));
  CHECK(has(refusal(R"(, "timeout_ns": -1)"), "`ops[0].timeout_ns`: at least 1"));
  CHECK(has(refusal(R"(, "depth": 0)"), "`ops[0].depth`: at least 1"));
  CHECK(has(refusal(R"(, "depth": 257)"), "`ops[0].depth`: at most 256"));
  CHECK(has(refusal(R"(, "sizes": [7])"), "`ops[0].sizes`: at least 8"));
  CHECK(has(refusal(R"(, "streams": 2, "in_flight": 10, "timeout_ns": 300000)"), "`ops[0].streams`"));
  CHECK(
      has(refusal(R"(, "streams": 2, "in_flight": 10)", R"(, "faults": {"early_timeouts": 30})"), "`ops[0].streams`"));
  CHECK(has(refusal(R"(, "kind": "halo", "grid": [4, 2147418113, 2147549185])"), "`ops[0].grid`: at most 2"));
  CHECK(has(refusal(R"(, "calls": 3, "c\u0061lls": 7)"), "field `calls` is listed twice"));
  CHECK(has(refusal("", R"(, "first_invocation": 18446744073709551615)"), "`first_invocation`: at most"));
  CHECK(has(refusal("", R"(, "tape": {"control_window": 4294967296})"), "`tape.control_window`: at most"));
  CHECK(has(refusal("", R"(, "tape": {"lose": 1001})"), "`tape.lose`: at most 1000"));
  CHECK(has(refusal("", R"(, "kernel": {"noise": 1000000000000})"), "`kernel.noise`: at most"));
  CHECK(has(refusal("", R"(, "link": {"ns_per_byte": 1e300})"), "`link.ns_per_byte`: at most"));
  CHECK(has(refusal("", R"(, "control_window": 4294967296)"), "`control_window`: a whole number from 0 to 4294967295"));
  CHECK(has(refusal(R"(, "sizes": [1000000000000000])"), "`ops[0].sizes`: at most 1073741824"));
  CHECK(has(refusal(R"(, "calls": -3)"),
            "`ops[0].calls`: a whole number from 0 to 18446744073709551615 is expected, not -3"));
}

TEST_CASE("a mishap that outlasts the calls that it delays is refused, unless those calls may time out for any fault") {
  const auto refusal = [](const std::string& timeout_ns, const std::string& rest) -> std::string {
    try {
      static_cast<void>(read_scenario(R"({"ranks": 3, "ops": [{"name": "a", "members": [0, 1], "timeout_ns": )" +
                                      timeout_ns + "}], " + rest + "}"));
    } catch (const parley::runtime::failure& f) {
      return f.what();
    }
    return "";
  };
  const auto tape_of = [](const std::string& mishaps) { return R"("tape": {"mishaps": [)" + mishaps + "]}"; };
  const std::string clog = tape_of(R"({"what": "clog", "rank": 0, "to": 1, "at_ns": 0, "for_ns": 3}, )"
                                   R"({"what": "clog", "rank": 1, "to": 0, "at_ns": 5, "for_ns": 2000000000})");
  CHECK(refusal("2000000000", clog)
            .find("`tape.mishaps[1].for_ns`: clogs, cuts, pauses and restarts may delay a call of op `a` for "
                  "2000000003 ns") != std::string::npos);
  CHECK(refusal("2100000004", clog).empty());
  CHECK(refusal("900000000", clog).empty());
  const std::string at_once = tape_of(R"({"what": "clog", "rank": 0, "to": 1, "at_ns": 0, "for_ns": 2000000000}, )"
                                      R"({"what": "clog", "rank": 1, "to": 0, "at_ns": 5, "for_ns": 2000000000})");
  CHECK(refusal("2100000006", at_once).empty());
  const std::string of_another = tape_of(R"({"what": "clog", "rank": 0, "to": 2, "at_ns": 0, "for_ns": 5000000000})");
  CHECK(refusal("2000000000", of_another).empty());
  // Such a long pause is no delay: the others declare the rank dead.
  const std::string pause = R"("rank": 1, "at_ns": 0, "for_ns": 5000000000})";
  CHECK(refusal("2000000000", tape_of(R"({"what": "pause", )" + pause)).empty());
  CHECK_FALSE(refusal("2000000000", tape_of(R"({"what": "restart", )" + pause)).empty());
  const std::string drawn = R"("faults": {"restarts": 1, "longest_mishap_ns": 40000000000})";
  CHECK(refusal("30000000000", drawn).find("`faults.longest_mishap_ns`") != std::string::npos);
  CHECK(refusal("40100000001", drawn).empty());
  CHECK(refusal("30000000000", R"("faults": {"crashes": 1, "longest_mishap_ns": 40000000000})").empty());
}

TEST_CASE("a rank that is stopped for longer than its calls' timeouts gives errors that pass all checkers") {
  const scenario s = read_scenario(R"({"ranks": 6, "must_decide": false,
    "ops": [{"kind": "halo", "name": "rims", "members": [0, 1, 2, 3, 4, 5], "grid": [3, 2], "sizes": [256],
             "configs": ["direct", "chunked:64:2"], "calls": 30, "calm": 60, "timeout_ns": 10000000}],
    "tape": {"mishaps": [{"what": "pause", "rank": 1, "at_ns": 2000000, "for_ns": 150000000}]}})");
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    CAPTURE(seed);
    CHECK(in_words(run(s, draw(s, seed), seed)) == "");
  }
}

TEST_CASE("a config that its op cannot have is refused with its position and the op's name") {
  const auto refusal = [](const std::string& kind, const std::string& config) -> std::string {
    try {
      static_cast<void>(read_scenario(R"({"ranks": 3, "ops": [{"kind": ")" + kind +
                                      R"(", "name": "a", "members": [0, 1], "configs": ["timed:plain:5", ")" + config +
                                      R"("]}]})"));
    } catch (const parley::runtime::failure& f) {
      return f.what();
    }
    return "";
  };
  const auto told = [&](const std::string& kind, const std::string& config, const char* part) {
    const std::string text = refusal(kind, config);
    CAPTURE(text);
    return text.find(part) != std::string::npos && text.find("`ops[0].configs[1]`") != std::string::npos &&
           text.find("op `a`") != std::string::npos;
  };
  CHECK(told("pair", "timed:slow", "word 3 must be a number"));
  CHECK(told("pair", "timed:slow:1e6", "word 3 must be a number"));
  CHECK(told("pair", "timed::5", "its name, the second word, is missing"));
  CHECK(told("pair", "direct:5", "`5` is a word too many"));
  CHECK(told("pair", "chunked:1024:2:5", "`5` is a word too many"));
  CHECK(told("pair", "torn:half", "word 3 must be a number"));
  CHECK(told("pair", "failing:x:5:boss:3", "no role `boss`"));
  CHECK(told("pair", "failing:x:5:sender", "word 5 must be a number"));
  CHECK(told("pair", "on:7:timed:x:5", "there is no such rank"));
  CHECK(told("pair", "abi:0:3:direct", "`abi` is for timed ones"));
  CHECK(told("pair", "star", "no such kind for edges"));
  CHECK(told("pair", "timed:x:5:1000001", "picoseconds for each byte"));
  CHECK(told("pipeline", "on:1:direct", "no such kind for edges"));
  CHECK(told("group", "direct", "no such kind for groups"));
  CHECK(told("group", "hanging:x:5:worker", "no role `worker`"));
  CHECK(told("group", "hanging:x:5:worker2", "no such place"));
  CHECK(told("group", "hanging:x:5:worker01", "no such place"));
  CHECK(told("group", "hanging:x:5:worker0", "the leader's place"));
  CHECK(told("pair", "abi:1:4294967297:timed:x:5", "32 bits"));
  CHECK(told("symmetric", "failing:x:5:2:0", "not a member of the op"));
  CHECK(told("symmetric", "direct", "no such kind for ops without headers"));
  CHECK(told("contextual", "hanging:x:5:1", "no such kind for kernels"));
  CHECK(refusal("pair", "on:2:timed:other:5").empty());
  CHECK(refusal("pair", "abi:2:3:timed:other:5").empty());
  CHECK(refusal("symmetric", "hanging:x:5:1").empty());
  CHECK(refusal("contextual", "failing:x:5:1:2").empty());
}
