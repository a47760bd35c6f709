// A rank dies, restarts, or is stopped for so long that the others give it up, after each single message of a campaign (in a group:
// after every third message). Each fault has a run of its own, for each role of a pair, a group and an op without headers. All checkers
// look at every run.
#include <parley/simulation/world/job.hpp>
#include <parley/symmetric.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace parley::simulation;

namespace {

scenario campaign_of(op_spec op) {
  scenario s;
  s.ranks = 4;  // at least one of them takes no part
  op.calls = 30;
  op.calm = 10;
  op.pause_ns = 200'000;
  s.ops.push_back(std::move(op));
  s.faulty_ns = 100'000'000;
  s.detection_ns = 20'000'000;
  return s;
}

op_spec pair() {
  op_spec op;
  op.name = "activations";
  op.members = {0, 1};
  op.sizes = {512, 20'000};
  op.registered = true;
  op.configs = {"direct", "chunked:4096:2", "put:8192", "get"};
  op.in_flight = 2;
  return op;
}

op_spec group() {
  op_spec op;
  op.what = op_spec::kind::group;
  op.name = "gradients";
  op.members = {1, 0, 2};
  op.configs = {"star", "star:1024", "chain:1024"};
  op.depth = op.in_flight = 2;
  return op;
}

op_spec leased(bool rehearsed) {
  op_spec op;
  op.what = op_spec::kind::symmetric;
  op.name = "norms";
  op.members = {1, 0, 2};
  op.configs = {"timed:library:40000", "timed:ring:20000"};
  op.rehearse = rehearsed;
  return op;
}

std::uint64_t messages_of(const outcome& o) {
  std::uint64_t sent = 0;
  for (const auto& [type, by_state] : o.messages) {
    for (const message_counts& n : by_state) sent += n.sent;
  }
  return sent;
}

// Returns the number of runs.
std::uint64_t befall_everywhere(const scenario& s, mishap::kind what, std::uint64_t every) {
  const outcome undisturbed = run(s, tape(), 1);
  REQUIRE(undisturbed.violations.empty());
  REQUIRE(undisturbed.decided > 0);
  std::uint64_t runs = 0;
  for (const rank_id who : s.ops.front().members) {
    for (std::uint64_t after = 1; after < messages_of(undisturbed); after += every) {
      CAPTURE(who);
      CAPTURE(after);
      tape t;
      t.mishaps.push_back({.what = what, .rank = who, .for_ns = 30'000'000, .after = after});
      const outcome o = run(s, t, 1);
      std::string found;
      for (const violation& v : o.violations) found += v.invariant + ": " + v.text + "\n";
      CHECK(found == "");
      ++runs;
    }
  }
  return runs;
}

void befall_all(const op_spec& op, std::uint64_t every) {
  for (const mishap::kind what : {mishap::kind::crash, mishap::kind::restart, mishap::kind::pause}) {
    CAPTURE(name(what));
    CHECK(befall_everywhere(campaign_of(op), what, every) > 50);
  }
}

}  // namespace

TEST_CASE("all invariants hold when an end of a pair dies, restarts or is stopped after any message of its campaign") {
  befall_all(pair(), 1);
}

TEST_CASE("all invariants hold when a member of a group dies, restarts or is stopped after every third message") {
  befall_all(group(), 3);
}

TEST_CASE("all invariants hold when a member of an op without headers dies, restarts or is stopped after any message") {
  befall_all(leased(true), 1);
  befall_all(leased(false), 1);
}
