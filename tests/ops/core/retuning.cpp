// Searches for a config that is already decided, requested while every rank continues to call.
#include <parley/tests/support/cases/schemes.hpp>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using actors::decision_source;

namespace {

void switch_drift_off(scheme_job& j) {
  for (auto& of_rank : j.settings) of_rank.plan.drift.on = false;
}

}  // namespace

TEST_CASE("for every kind of op, any rank may request a search while all ranks call, and all ranks change together") {
  for (const auto& [how, depth] : all_variants) {
    for (rank_id asks = 0; asks < scheme_job(how).size; ++asks) {
      CAPTURE(name(how));
      CAPTURE(depth);
      CAPTURE(asks);
      scheme_job j(how);
      j.depth = depth;
      switch_drift_off(j);
      j.run();
      REQUIRE(j.running() == "fine");
      j.configs[scheme_job::fine].takes_ns = {300'000, 300'000, 300'000};
      j.call_meanwhile(800, [&] {
        CHECK(j.search().number() == 1);
        CHECK(j.ranks[asks]->retune("activations", "the switch was changed") == 1);
      });
      CHECK(j.running() == "coarse");  // at the latest in the last of these calls
      j.pass(1'000'000'000);
      CHECK(j.failed == 0);
      CHECK(j.search().reason() == "rank " + std::to_string(asks) + " asked for it: the switch was changed");
      CHECK(j.decision().search == 2);
      CHECK(j.decision().source == decision_source::trials);
      CHECK(j.learned_config() == "coarse");
      if (j.leased()) CHECK(j.gates_met() <= 2 * 2 * j.size);  // N2: at most two gates a search, on each rank
      const std::uint64_t before = j.agreement_messages();
      j.call(100);
      CHECK(j.agreement_messages() == before);
      CHECK(j.running() == "coarse");
    }
  }
}

TEST_CASE("for every kind of op, requests of all ranks at once lead to one search, and the best config stays") {
  for (const auto& [how, depth] : all_variants) {
    CAPTURE(name(how));
    CAPTURE(depth);
    scheme_job j(how);
    j.depth = depth;
    switch_drift_off(j);
    j.run();
    j.call_meanwhile(800, [&] {
      for (const auto& r : j.ranks) CHECK(r->retune("activations") == 1);
    });
    j.call(400);
    CHECK(j.failed == 0);
    CHECK(j.running() == "fine");
    CHECK(j.decision().search == 2);
  }
}

TEST_CASE("for every kind of op, a search requested while another one measures follows that one") {
  for (const auto& [how, depth] : all_variants) {
    for (rank_id asks = 0; asks < scheme_job(how).size; ++asks) {
      CAPTURE(name(how));
      CAPTURE(depth);
      CAPTURE(asks);
      scheme_job j(how);
      j.depth = depth;
      switch_drift_off(j);
      const auto measures = [&] {
        if (j.assigned().searches().empty() || j.decided()) return false;
        const auto some = [](const auto& of) { return !of.empty(); };
        const auto& c = j.search();
        return j.leased() ? std::any_of(c.book().rows.begin(), c.book().rows.end(), some)
                          : std::any_of(c.book().repetitions.begin(), c.book().repetitions.end(), some);
      };
      j.start();
      j.call_and_when(j.first_calls() + 800, measures, [&] {
        j.configs[scheme_job::fine].takes_ns = {1'000'000, 1'000'000, 1'000'000};
        for (int i = 0; i < 3; ++i) CHECK(j.ranks[asks]->retune("activations", "the link is another one") == 1);
      });
      j.call(400);
      CHECK(j.failed == 0);
      CHECK(j.running() == "coarse");
      CHECK(j.decision().search == 2);  // repeated requests lead to one search
      CHECK(j.search().reason() == "rank " + std::to_string(asks) + " asked for it: the link is another one");
      CHECK(j.learned_config() == "coarse");
    }
  }
}

TEST_CASE(
    "for every kind of op, a requested search skips a config that failed in a call, even if it would be the fastest") {
  for (const auto& [how, depth] : all_variants) {
    for (rank_id ill = 0; ill < scheme_job(how).size; ++ill) {
      CAPTURE(name(how));
      CAPTURE(depth);
      CAPTURE(ill);
      scheme_job j(how);
      j.depth = depth;
      switch_drift_off(j);
      j.let_all_have(scheme_job::fragile);
      j.run();
      REQUIRE(j.running() == "fragile");
      config_state& fragile = j.configs[scheme_job::fragile];
      j.call_meanwhile(40, [&] { fragile.ill = ill; });
      fragile.ill = nobody;
      CHECK(j.failed != 0);
      j.failed = 0;
      j.call(200);
      CHECK(j.running() != "fragile");
      const auto runs = fragile.runs;
      j.call_meanwhile(800, [&] { CHECK(j.ranks[1]->retune("activations") == 1); });
      j.pass(1'000'000'000);
      CHECK(j.failed == 0);
      CHECK(j.running() == "fine");
      CHECK(j.decision().search >= 2);
      CHECK(fragile.runs == runs);
      bool told = false;
      for (const auto& e : j.decision().evidence) told = told || e.status == "quarantined";
      CHECK(told);
      CHECK(j.learned_config() == "fine");
    }
  }
}

TEST_CASE("a group whose ranks have several calls in flight changes its config together, at every look-ahead") {
  for (const std::uint64_t depth : {1U, 2U, 5U}) {
    for (rank_id asks = 0; asks < 3; ++asks) {
      CAPTURE(depth);
      CAPTURE(asks);
      scheme_job j(scheme::group);
      j.depth = depth;
      j.at_once = static_cast<std::size_t>(depth);
      switch_drift_off(j);
      j.run();
      j.call_meanwhile(800, [&] { CHECK(j.ranks[asks]->retune("activations") == 1); });
      j.pass(1'000'000'000);
      CHECK(j.failed == 0);
      CHECK(j.decided());
      CHECK(j.decision().search == 2);
      const auto flights = join_group_flights(j.ranks);
      CHECK(flights.digests.size() == 3);  // all configs have been tried
      CHECK(flights.timed >= 6);
    }
  }
}

TEST_CASE(
    "for every kind of op, a config that hangs in its trials is excluded for good once two calls have timed out") {
  for (const auto& [how, depth] : all_variants) {
    for (rank_id hangs = 0; hangs < scheme_job(how).size; ++hangs) {
      CAPTURE(name(how));
      CAPTURE(depth);
      CAPTURE(hangs);
      scheme_job j(how);
      j.depth = depth;
      switch_drift_off(j);
      j.let_all_have(scheme_job::fragile);
      j.start();
      j.pass(5'000'000'000);  // long enough for the rehearsals before the first trial
      config_state& fragile = j.configs[scheme_job::fragile];
      fragile.takes_ns[hangs] = 40'000'000'000;  // longer than the timeout of a call or a rehearsal
      for (int i = 0; i < 4; ++i) j.call(200);
      CHECK(j.failed <= 2 * j.size);
      REQUIRE(j.decided());
      CHECK(j.running() == "fine");
      bool told = false;
      for (const auto& e : j.decision().evidence) told = told || e.status == "quarantined";
      CHECK(told);
      j.failed = 0;
      const std::uint32_t search = j.decision().search;
      const auto runs = fragile.runs;
      j.call_meanwhile(800, [&] { CHECK(j.ranks[1]->retune("activations") == 1); });
      j.pass(1'000'000'000);
      CHECK(j.failed == 0);
      CHECK(j.running() == "fine");
      CHECK(j.decision().search == search + 1);
      CHECK(fragile.runs == runs);
    }
  }
}

TEST_CASE(
    "a search requested on an edge while a config hangs in its trial fails no other call and excludes that config") {
  for (rank_id asks = 0; asks < 2; ++asks) {
    CAPTURE(asks);
    scheme_job j(scheme::edge);
    switch_drift_off(j);
    j.let_all_have(scheme_job::fragile);
    j.start();
    j.pass(5'000'000'000);  // long enough to warm it
    config_state& fragile = j.configs[scheme_job::fragile];
    const auto rehearsed = fragile.runs;
    fragile.takes_ns[1] = 1'000'000'000'000;
    j.call_and_when(
        400, [&] { return fragile.runs[1] != rehearsed[1]; },
        [&] {
          j.pass(1'000'000'000);
          CHECK_FALSE(j.decided());
          CHECK(j.ranks[asks]->retune("activations", "it takes so long") == 1);
        });
    CHECK(j.failed == 2);  // one message fails, at both ends
    j.call(400);
    CHECK(j.failed == 2);
    CHECK(j.running() == "fine");
    const std::uint32_t search = j.decision().search;
    const auto runs = fragile.runs;
    j.call_meanwhile(800, [&] { CHECK(j.ranks[asks]->retune("activations") == 1); });
    j.pass(1'000'000'000);
    CHECK(j.failed == 2);
    CHECK(j.running() == "fine");
    CHECK(j.decision().search == search + 1);
    CHECK(fragile.runs == runs);
  }
}
