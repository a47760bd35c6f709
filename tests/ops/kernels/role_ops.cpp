// Ops in which each rank chooses a config for its own role (register_asymmetric_autotuning). They follow the rules of ops of several ranks.
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/registration.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <map>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using actors::decision_source;

namespace {

constexpr std::uint64_t bytes = 1000;
const std::string key = "1KiB";

rank_settings kept_in_files() {
  rank_settings s = eager_trials();
  s.results_path = "results.csv";
  return s;
}

/// Rank 0 produces and rank 1 consumes; `slow`, the default, takes 2 ms and `fast` 1 ms in either role.
struct role_job : world {
  explicit role_job(const rank_settings& s, std::vector<memory_storage> disks = {}, const tuning::demands& of_fast = {},
                    const std::string& name = "stage")
      : world(2, s, {}, {}, std::move(disks)) {
    const auto function = [this](const std::string& role, const std::string& id) -> operation_function {
      return [this, id, role](std::span<std::byte>) { return work(*this, role, id); };
    };
    const std::vector<role_operation> operations{{"produce", function("produce", "slow")},
                                                 {"consume", function("consume", "slow")}};
    const std::vector<role_config> configs{{"produce", "fast", function("produce", "fast"), of_fast},
                                           {"consume", "fast", function("consume", "fast"), of_fast}};
    for (auto& r : ranks) {
      ops.push_back(register_asymmetric_autotuning(
          *r, name, operations, configs, [](rank_id i) { return std::string(i == 0 ? "produce" : "consume"); }));
    }
  }
  static task<> work(role_job& j, std::string role, std::string id) {
    ++j.ran[role + " " + id];
    auto slept = co_await sleep_until(j.clock.deadline_in(j.takes[id]));
    if (!slept) raise(slept.reason());
    if (j.broken == id) raise({j.breaks_with, "it is broken"});
  }
  /// Returns the number of calls that threw.
  int call(int n, rank_id who = 0) {
    int failed = 0;
    const auto all = [](role_op op, int times, int& threw) -> task<> {
      std::vector<std::byte> data(bytes);
      for (int i = 0; i < times; ++i) {
        auto outcome = co_await attempt(op.run(data));
        threw += outcome ? 0 : 1;
      }
    };
    run(clock, all(ops[who], n, failed));
    pass(*this, 1_ms);  // time to announce the decision
    return failed;
  }
  decision now(rank_id who = 0) { return ops[who].decision(bytes); }

  std::map<std::string, time_ns> takes{{"slow", 2_ms}, {"fast", 1_ms}};
  std::map<std::string, int> ran;
  std::string broken;
  errc breaks_with = errc::unavailable;
  std::vector<role_op> ops;
};

std::vector<memory_storage> disks_of(role_job& j) {
  for (auto& r : j.ranks) REQUIRE(r->write_results());
  return j.disk;
}

}  // namespace

TEST_CASE("a role's decision says who measured which config and why the winner won, and no message is sent for it") {
  role_job j(eager_trials());
  CHECK_FALSE(j.now().decided);
  CHECK(j.call(60) == 0);
  const decision d = j.now();
  CHECK(d.op == "stage/produce 0");
  CHECK(d.decided);
  CHECK(d.config == "fast");
  CHECK(d.time_ns == 1e6);
  REQUIRE(d.evidence.size() == 2);
  CHECK(d.evidence[0].config == "operation");
  CHECK(d.evidence[0].time_ns == 2e6);
  const auto told = j[0].decisions();
  REQUIRE(told.size() == 1);
  CHECK(told[0].op == "stage/produce");
  CHECK(told[0].decision.why == d.why);
  CHECK(told[0].decision.participants == std::vector<rank_id>{0});
  REQUIRE(told[0].decision.evidence.size() == 2);
  CHECK(told[0].decision.evidence[1].ranks.size() == 1);
  CHECK(j[1].decisions().empty());
  const auto agreed = j[0].agreements();
  REQUIRE(agreed.size() == 1);
  CHECK(agreed[0].assigned->find(bytes)->chosen().config == "fast");
  REQUIRE(j[0].dump_flight("asked", "here"));
  CHECK(j.disk[0].files["here/parley-flight-0.json"].find("stage/produce 0") != std::string::npos);
  for (auto& r : j.ranks) CHECK(r->mail().statistics().sent == 0);
}

TEST_CASE("a program can await the decision of a role") {
  role_job j(eager_trials());
  decision d;
  const auto wait = [](role_op op, decision& into) -> task<> { into = co_await op.decided(bytes); };
  scope waiting(j.clock);
  waiting.spawn(wait(j.ops[0], d));
  j.call(60);
  run_until(j.clock, [&] { return waiting.running() == 0; });
  CHECK(d.config == "fast");
}

TEST_CASE("a role's winner is kept, and the next job runs it without a trial") {
  role_job first(kept_in_files());
  first.call(60);
  const auto disks = disks_of(first);
  CHECK(disks[0].files.at("results0.csv").find("stage/produce/0," + key + ",fast,1\n") != std::string::npos);

  for (const auto policy : {actors::tuning_policy::online, actors::tuning_policy::off}) {
    rank_settings s = kept_in_files();
    s.policy = policy;
    role_job second(s, disks);
    second.call(20);
    CHECK(second.now().source == decision_source::results);
    CHECK(second.now().config == "fast");
    CHECK(second.ops[0].search_of(bytes)->trials() == 0);
    CHECK(second.ran["produce slow"] <= 1);  // the actors may read the file after the first call, as in every op
  }
}

TEST_CASE("results of another role, or of another op, do not count") {
  role_job first(kept_in_files());
  first.call(60, 0);
  auto disks = disks_of(first);
  std::swap(disks[0], disks[1]);
  disks[1].files["results1.csv"] = disks[1].files["results0.csv"];  // rank 1 reads the results that rank 0 wrote
  role_job second(kept_in_files(), disks);
  second.call(60, 1);
  CHECK(second.now(1).source == decision_source::trials);

  role_job other(kept_in_files(), first.disk, {}, "other");
  other.call(60);
  CHECK(other.now().source == decision_source::trials);
}

TEST_CASE("a role whose remembered winner no longer exists is tuned again, with a warning") {
  role_job first(kept_in_files());
  first.call(60);
  auto disks = disks_of(first);
  auto& text = disks[0].files["results0.csv"];
  text.replace(text.find(",fast,"), 6, ",gone,");
  role_job second(kept_in_files(), disks);
  second.call(60);
  CHECK(second.now().source == decision_source::trials);
  REQUIRE_FALSE(second[0].warnings().empty());
  CHECK(second[0].warnings().front().find("gone") != std::string::npos);
}

TEST_CASE("with tuning off a role runs its default, and the list of untuned keys names it") {
  rank_settings s = eager_trials();
  s.policy = actors::tuning_policy::off;
  role_job j(s);
  j.call(60);
  CHECK(j.ran["produce slow"] == 60);
  CHECK(j.now().source == decision_source::tuning_off);
  CHECK(j[0].untuned() == std::vector<std::string>{"stage/produce/0," + key});
}

TEST_CASE("constraints exclude a role's configs before times are compared") {
  rank_settings s = eager_trials();
  s.constraints.relative_error = 1e-3;
  role_job j(s, {}, {.relative_error = 1e-2});
  j.call(60);
  CHECK(j.ran["produce fast"] == 0);
  CHECK(j.now().config == "operation");

  role_job of_memory(eager_trials(), {}, {.memory_per_byte = 2});
  const auto fast = [](std::span<std::byte>) -> task<> { co_return; };
  auto limited = register_asymmetric_autotuning(of_memory[0], "limited", {{"it", fast}},
                                                {{"it", "large", fast, {.memory_bytes = 100}}},
                                                [](rank_id) { return std::string("it"); }, {.memory_bytes = 99});
  const auto once = [](role_op op) -> task<> {
    std::vector<std::byte> data(bytes);
    for (int i = 0; i < 3; ++i) co_await op.run(data);
  };
  run(of_memory.clock, once(limited));
  pass(of_memory, 1_ms);
  CHECK(limited.decision(bytes).why.find("constraint on memory: it needs at least 100 bytes") != std::string::npos);
}

TEST_CASE("with NUMERICAL_CHECK only the default of a role runs, and a warning says why") {
  rank_settings s = eager_trials();
  s.constraints.compare_trials = true;
  role_job j(s);
  j.call(60);
  CHECK(j.ran["produce slow"] == 60);
  REQUIRE(j[0].warnings().size() == 1);
  CHECK(j[0].warnings().front().find("stage/produce 0: NUMERICAL_CHECK is on") != std::string::npos);
}

TEST_CASE("a role searches again on request, by its handle or by the name of its op") {
  role_job j(eager_trials());
  j.call(60);
  REQUIRE(j.now().config == "fast");
  j.takes["fast"] = 3_ms;
  j.ops[0].agreed().retune({}, "it has become slow");
  pass(j, 1_ms);
  j.call(60);
  CHECK(j.now().search == 2);
  CHECK(j.now().config == "operation");
  j.takes["fast"] = 1_ms;
  CHECK(j[0].retune("stage") == 1);
  CHECK(j[0].retune("stag") == 0);
  pass(j, 1_ms);
  j.call(60);
  CHECK(j.now().search == 3);
  CHECK(j.now().config == "fast");
}

TEST_CASE("a role function that becomes permanently slow is searched again") {
  rank_settings s = eager_trials();
  s.plan.drift.every = 50;
  s.plan.drift.pause_ns = 0;
  role_job j(s);
  j.call(200);
  REQUIRE(j.now().config == "fast");
  j.takes["fast"] = 3_ms;
  j.call(1000);
  CHECK(j.now().search == 2);
  CHECK(j.now().config == "operation");
  CHECK(j.ops[0].search_of(bytes)->reason().find("its times have drifted") == 0);
}

TEST_CASE("a role's candidate that throws never runs again, unless it throws peer_failed") {
  for (const errc why : {errc::unavailable, errc::peer_failed}) {
    role_job j(eager_trials());
    j.broken = "fast";
    j.breaks_with = why;
    CHECK(j.call(8) >= 1);
    j.broken.clear();
    const int before = j.ran["produce fast"];
    j.call(60);
    CHECK((j.ran["produce fast"] > before) == (why == errc::peer_failed));
    CHECK(j.now().config == (why == errc::peer_failed ? "fast" : "operation"));
  }
}

TEST_CASE("a second registration of a role is refused, and the first one still works") {
  role_job j(eager_trials());
  const auto nothing = [](std::span<std::byte>) -> task<> { co_return; };
  const auto code_of = [&](const std::string& name) {
    try {
      register_asymmetric_autotuning(j[0], name, {{"produce", nothing}}, {},
                                     [](rank_id) { return std::string("produce"); });
    } catch (const failure& f) {
      return f.code();
    }
    return errc::none;
  };
  CHECK(code_of("stage") == errc::bad_argument);
  CHECK(code_of("a,b") == errc::bad_argument);
  CHECK(code_of("stage2") == errc::none);
  j.call(60);
  CHECK(j.now().config == "fast");
}

TEST_CASE("a role's calls fail on a rank that was fenced") {
  role_job j(eager_trials());
  j[0].on_fenced("this rank was fenced");
  CHECK(j.call(3) == 3);
  CHECK(j.ran["produce slow"] == 0);
}
