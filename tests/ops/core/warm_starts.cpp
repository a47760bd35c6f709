// docs/results.md row by row: the results that each rank's file holds, and the decision that follows on every rank, for each kind of op.
#include <parley/tests/support/cases/schemes.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/tuning/results/warm_start.hpp>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using actors::decision_source;

namespace {

constexpr auto fine = scheme_job::fine;
constexpr auto coarse = scheme_job::coarse;

std::string of_rank(rank_id r) { return "rank " + std::to_string(r); }

std::string with_machines(std::uint64_t machines) {
  char text[32];
  std::snprintf(text, sizeof text, "@%016llx", static_cast<unsigned long long>(machines));
  return text;
}

/// Trials were made, and all ranks run the config that they chose.
void check_trials(scheme_job& j) {
  CHECK(j.failed == 0);
  CHECK(j.search().trials() > 0);
  CHECK(j.decision().source == decision_source::trials);
  CHECK(j.running() == j.search().chosen().config);
}

/// The decision came from files: no trial, no delayed call, and no further messages of the agreement.
void check_no_trial(scheme_job& j, const std::string& winner) {
  CHECK(j.failed == 0);
  CHECK(j.search().trials() == 0);
  CHECK(j.search().chosen().config == winner);
  CHECK(j.running() == winner);
  CHECK(join_group_flights(j.ranks).timed == 0);
  if (j.leased()) {
    const bool none = winner == "plain";  // the default already runs
    CHECK(j.led().campaigns == (none ? 0 : j.how == scheme::between_calls ? 2 : 1));
    CHECK(j.led().rounds == (none || j.how == scheme::on_calls ? 0 : 1));
    CHECK(j.led().aborted == 0);
    CHECK(j.gates_met() == 0);
    for (const auto& op : j.leased_ops) CHECK(op.end().leases().statistics().rehearsals == j.led().rounds);
  }
  const std::uint64_t before = j.agreement_messages();
  j.call(100);
  CHECK(j.agreement_messages() == before);
}

/// Every rank's file holds `solution`, as a later job reads it.
void check_kept(scheme_job& j, const std::string& solution) {
  for (rank_id r = 0; r < j.size; ++r) {
    CHECK(j.ranks[r]->write_results().value() == scheme_job::file_of(r));
    const auto read = tuning::parse_results(j.disks[r].files.at(scheme_job::file_of(r)));
    REQUIRE(read);
    REQUIRE(read->file.entries().size() == 1);
    CHECK(read->file.entries().front().solution == solution);
  }
}

}  // namespace

TEST_CASE("if no rank remembers anything, trials find a winner, and all ranks' files keep it for the next job") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    j.run();
    check_trials(j);
    const std::string winner = j.search().chosen().config;
    CHECK(j.learned_config() == winner);
    CHECK(j.learned()->time_ms > 0);
    check_kept(j, winner);
    j.run();
    CHECK(j.search().trials() == 0);
    CHECK(j.search().chosen().config == winner);
    check_kept(j, winner);
  }
}

TEST_CASE(
    "if some or all ranks remember one winner, the op makes no trial, and all ranks have the entry with its time") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    const rank_id ranks = scheme_job(how).size;
    for (unsigned who = 1; who < 1U << ranks; ++who) {
      CAPTURE(who);
      scheme_job j(how);
      const auto has = [who](rank_id r) { return (who >> r & 1U) != 0; };
      rank_id proposer = j.leader;
      for (rank_id r = ranks; r-- > 0;) {
        if (!has(r)) continue;
        j.remember(r, fine);
        if (!has(j.leader)) proposer = r;
      }
      j.run();
      CHECK(j.decision().source == decision_source::results);
      CHECK(j.decision().proposer == proposer);
      CHECK(j.learned_config() == "fine");
      CHECK(j.learned()->time_ms == 1.5);
      check_no_trial(j, "fine");
      check_kept(j, "fine");
    }
  }
}

TEST_CASE(
    "if ranks remember different winners, the leader's runs, else the lowest rank's, and the decision names the rest") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    for (rank_id r = 0; r < j.size; ++r) j.remember(r, r == j.leader ? fine : r == 2 ? scheme_job::plain : coarse);
    j.run();
    CHECK(j.decision().source == decision_source::results);
    CHECK(j.decision().proposer == j.leader);
    const rank_id other = 1 - j.leader;
    CHECK(j.says(of_rank(j.leader) + "'s results file says so; " + of_rank(other) + "'s says coarse"));
    if (j.size == 3) CHECK(j.says("rank 2's says plain"));
    check_no_trial(j, "fine");
    check_kept(j, "fine");
    if (j.size == 2) continue;

    scheme_job without_leaders(how);
    without_leaders.remember(0, coarse);
    without_leaders.remember(2, fine);
    without_leaders.run();
    CHECK(without_leaders.decision().proposer == 0);
    CHECK(without_leaders.says("rank 0's results file says so; rank 2's says fine"));
    check_no_trial(without_leaders, "coarse");
    check_kept(without_leaders, "coarse");
  }
}

TEST_CASE("a remembered default runs like any other remembered winner, without trials") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    j.remember(j.leader, scheme_job::plain);
    j.remember(1 - j.leader, fine);
    j.run();
    CHECK(j.decision().source == decision_source::results);
    check_no_trial(j, "plain");
    check_kept(j, "plain");
  }
}

TEST_CASE("a remembered winner that is no candidate gives way to another rank's winner") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    const rank_id other = 1 - j.leader;
    j.remember(j.leader, j.line("telepathy"));
    j.remember(other, coarse);
    j.run();
    CHECK(j.decision().proposer == other);
    CHECK(j.says(of_rank(j.leader) + "'s says telepathy, which is not a candidate now"));
    check_no_trial(j, "coarse");
    check_kept(j, "coarse");
  }
}

TEST_CASE(
    "a remembered winner that one rank lacks gives way to another rank's, else to trials, and the decision says so") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    for (rank_id lacks = 0; lacks < scheme_job(how).size; ++lacks) {
      CAPTURE(lacks);
      scheme_job j(how);
      j.can[lacks][coarse] = false;
      const std::string lost = "'s says coarse, which is not a candidate now";
      j.remember_everywhere(coarse);
      j.run();
      check_trials(j);
      for (rank_id r = 0; r < j.size; ++r) CHECK(j.says(of_rank(r) + lost));
      CHECK(j.search().chosen().config != "coarse");
      check_kept(j, j.search().chosen().config);

      j.remember_everywhere(coarse);
      j.remember(1 - j.leader, fine);
      j.run();
      CHECK(j.decision().proposer == 1 - j.leader);
      CHECK(j.says(of_rank(j.leader) + lost));
      check_no_trial(j, "fine");
      check_kept(j, "fine");
    }
  }
}

TEST_CASE("a remembered winner that fails its rehearsal gives way to another rank's, else to trials") {
  for (const scheme how : all_schemes) {
    if (how == scheme::on_calls) continue;  // this scheme has no rehearsals
    CAPTURE(name(how));
    scheme_job j(how);
    j.let_all_have(scheme_job::fragile);
    j.configs[scheme_job::fragile].ill = j.size - 1;
    j.remember_everywhere(scheme_job::fragile);
    j.run();
    check_trials(j);
    CHECK(j.search().chosen().config != "fragile");
    CHECK(j.says("fragile, which is not a candidate now"));
    check_kept(j, j.search().chosen().config);

    j.remember_everywhere(scheme_job::fragile);
    j.remember(1 - j.leader, fine);
    j.run();
    CHECK(j.search().trials() == 0);
    CHECK(j.search().chosen().config == "fine");
    CHECK(j.decision().source == decision_source::results);
    CHECK(j.decision().proposer == 1 - j.leader);
    CHECK(j.learned()->time_ms == 1.5);
    CHECK(j.running() == "fine");
    check_kept(j, "fine");
  }
}

TEST_CASE(
    "members run the default without a communicator for rehearsals, and the remembered config once they have one") {
  for (const scheme how : {scheme::rehearsed, scheme::between_calls}) {
    CAPTURE(name(how));
    scheme_job j(how);
    j.remember_everywhere(fine);
    j.start();
    j.sources[2]->refuse = true;
    j.call(j.first_calls());
    CHECK(j.failed == 0);
    CHECK(j.running() == "plain");
    CHECK(j.led().rounds < 10);
    CHECK(j.search().chosen().config == "plain");
    CHECK(j.decision().source == decision_source::kept);
    CHECK(j.says("fine is remembered, but rehearsals are not possible, rank 2: "));
    check_kept(j, "fine");
    j.sources[2]->refuse = false;
    j.call(2000);
    j.call(2000);
    CHECK(j.search().trials() == 0);
    CHECK(j.decision().source == decision_source::results);
    CHECK(j.running() == "fine");
    CHECK(j.led().rounds < 14);
    check_kept(j, "fine");
  }
}

TEST_CASE(
    "a remembered winner that fails in a call gives way to the default, whose time is unknown, and then to trials") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    j.remember_everywhere(fine);
    j.run();
    REQUIRE(j.running() == "fine");
    j.call_meanwhile(40, [&] { j.configs[fine].ill = j.size - 1; });
    j.pass(1'000'000);
    CHECK(j.failed != 0);
    j.failed = 0;
    CHECK(j.search().trials() == 0);
    CHECK(j.decision().digest == j.search().chosen().digest);
    CHECK(j.running() == "plain");
    check_kept(j, "plain");
    CHECK(j.learned()->time_ms == 0);
    j.call(400);
    j.call(400);
    j.call(400);
    check_trials(j);
    CHECK(j.running() == "coarse");
    check_kept(j, "coarse");
  }
}

TEST_CASE("a pinned default wins whichever rank has it, and stays a pin only in the file that had it") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    for (rank_id pins = 0; pins < scheme_job(how).size; ++pins) {
      for (const bool on_hosts_of_their_own : {false, true}) {  // a pin names no hosts
        CAPTURE(pins);
        CAPTURE(on_hosts_of_their_own);
        scheme_job j(how);
        for (rank_id r = 0; r < j.size && !on_hosts_of_their_own; ++r) j.remember(r, coarse);
        j.remember(pins, j.line("Default", "0"));
        if (on_hosts_of_their_own)
          j.hosts = how == scheme::edge ? std::vector<std::uint64_t>{1, 2} : std::vector<std::uint64_t>{1, 2, 3};
        j.run();
        CHECK(j.decision().source == decision_source::pin);
        CHECK(j.decision().proposer == pins);
        check_no_trial(j, "plain");
        for (rank_id r = 0; r < j.size; ++r) {
          CHECK(j.ranks[r]->write_results());
          const bool had_a_file = r == pins || !on_hosts_of_their_own;
          CHECK(j.disks[r].files.contains(scheme_job::file_of(r)) == had_a_file);
          if (!had_a_file) continue;
          const auto read = tuning::parse_results(j.disks[r].files.at(scheme_job::file_of(r)));
          REQUIRE(read->file.entries().size() == 1);
          CHECK(read->file.entries().front().solution == (r == pins ? "Default" : "coarse"));
        }
      }
    }
  }
}

TEST_CASE("results from other machines do not count: only those measured on this combination of machines do") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    const rank_id odd = j.size - 1;
    j.settings[odd] = scheme_job::settings_on("another");
    j.remember_everywhere(fine);
    j.run();
    check_trials(j);
    for (rank_id r = 0; r < j.size; ++r) CHECK(j.says(of_rank(r) + "'s has it for other machines"));
    CHECK(j.learned_config() == "fine");  // unchanged, for machines that are alike
    REQUIRE(j.decision().machines != 0);
    const std::string machines = with_machines(j.decision().machines);
    CHECK(j.learned_config(machines) == j.search().chosen().config);

    j.forget();
    j.remember(odd, j.entry + machines + ",128KiB,coarse,2.5\n");
    j.run();
    CHECK(j.decision().proposer == odd);
    CHECK(j.learned_config(machines) == "coarse");
    check_no_trial(j, "coarse");

    j.settings[odd] = scheme_job::settings_on("test");  // its machine is now like the others'
    j.remember(odd, j.entry + machines + ",128KiB,coarse,2.5\n");
    j.run();
    check_trials(j);
    CHECK(j.says(of_rank(odd) + "'s has it for other machines"));
  }
}

TEST_CASE("results of ranks that share a host do not count for ranks that share none, nor the reverse") {
  scheme_job j(scheme::edge);
  const auto run_on = [&](std::vector<std::uint64_t> hosts, std::vector<std::string> kinds) {
    j.hosts = std::move(hosts);
    j.kinds = std::move(kinds);
    j.run();
    for (auto& r : j.ranks) CHECK(r->write_results());
    return j.search().trials();
  };
  const std::string miss = "rank 0's has it for other machines";
  CHECK(run_on({1, 1}, {}) > 0);
  const std::string together = j.search().chosen().config;
  CHECK(j.learned_config() == together);
  CHECK(run_on({}, {}) == 0);  // by default all ranks share a host
  CHECK(run_on({9, 9}, {"A100", "A100"}) == 0);

  CHECK(run_on({1, 2}, {}) > 0);
  CHECK(j.says(miss));
  CHECK(j.search().missed().find(miss) != std::string::npos);
  CHECK(j.decision().machines != 0);
  CHECK(j.learned_config() == together);  // unchanged
  CHECK(run_on({2, 1}, {}) == 0);         // only who shares a host counts, not which hosts
  CHECK(run_on({1, 1}, {}) == 0);
  CHECK(j.search().chosen().config == together);

  // A result for two devices of one kind does not count for two kinds either, even where the validators do not tell them apart.
  CHECK(run_on({1, 1}, {"A100", "H100"}) > 0);
  CHECK(j.says(miss));
  CHECK(run_on({1, 1}, {"H100", "A100"}) > 0);
  CHECK(run_on({1, 1}, {"A100", "H100"}) == 0);
  CHECK(run_on({1, 2}, {"A100", "H100"}) > 0);
}

TEST_CASE("results of three ranks count only for jobs in which the same ranks share a host") {
  for (const scheme how : {scheme::group, scheme::rehearsed}) {
    CAPTURE(name(how));
    scheme_job j(how);
    const auto trials_on = [&](std::vector<std::uint64_t> hosts) {
      j.hosts = std::move(hosts);
      j.run();
      for (auto& r : j.ranks) CHECK(r->write_results());
      return j.search().trials();
    };
    CHECK(trials_on({1, 1, 2}) > 0);
    CHECK(trials_on({4, 4, 9}) == 0);
    CHECK(trials_on({1, 2, 2}) > 0);
    CHECK(trials_on({1, 1, 1}) > 0);
    CHECK(trials_on({7, 7, 1}) == 0);
  }
}

TEST_CASE("a results file that its rank rejects proposes nothing, and other ranks' entries count") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    j.remember(j.leader, coarse);
    for (auto& of_rank : j.settings) of_rank = scheme_job::settings_on("newer");
    j.remember(1 - j.leader, fine);
    j.run();
    CHECK(j.decision().proposer == 1 - j.leader);
    CHECK_FALSE(j.says("coarse"));
    CHECK(j.learned_config() == "fine");
    check_no_trial(j, "fine");
    const std::string before = j.disks[j.leader].files.at(scheme_job::file_of(j.leader));
    CHECK(j.ranks[j.leader]->write_results().value() != scheme_job::file_of(j.leader));
    CHECK(j.disks[j.leader].files.at(scheme_job::file_of(j.leader)) == before);
  }
}

TEST_CASE("if only the default is common all ranks learn this, and no file pins the default") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    const rank_id poor = j.size - 1;
    j.can[poor] = {true, false, false, false, false};
    j.run();
    CHECK(j.decision().source == decision_source::only_default);
    CHECK_FALSE(j.learned());
    check_no_trial(j, "plain");
  }
}

TEST_CASE("tuning that is off on any rank is off on all: they run the remembered config, else the default") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    for (rank_id off = 0; off < scheme_job(how).size; ++off) {
      CAPTURE(off);
      scheme_job j(how);
      j.settings[off].policy = actors::tuning_policy::off;
      j.run();
      CHECK(j.decision().source == decision_source::tuning_off);
      CHECK(j.says("tuning is switched off on " + of_rank(off)));
      CHECK_FALSE(j.learned());
      check_no_trial(j, "plain");
      j.remember(1 - j.leader, coarse);
      j.run();
      check_no_trial(j, "coarse");
    }
  }
}

TEST_CASE("a remembered mixture runs again without a trial, but counts for nothing as a different mixture") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    j.mixed = true;
    const rank_id poor = j.size - 1;  // it runs `fine` in place of `twin`
    j.let_all_have(scheme_job::twin);
    j.can[poor][scheme_job::twin] = false;
    j.run();
    const auto& ids = j.assigned().ids();
    const auto place = std::find(ids.begin(), ids.end(), "twin") - ids.begin();
    REQUIRE(static_cast<std::size_t>(place) < ids.size());
    const std::uint64_t mixture = j.assigned().mixture_of(static_cast<std::size_t>(place));
    REQUIRE(mixture != 0);
    const std::string solution = tuning::name_in_file("twin", mixture);

    j.forget();
    j.remember(poor, j.line(solution));
    j.run();
    CHECK(j.decision().proposer == poor);
    check_no_trial(j, "twin");
    check_kept(j, solution);

    // The name without a mixture means that all ranks run the config.
    j.forget();
    j.remember(poor, j.line("twin"));
    j.run();
    check_trials(j);
    CHECK(j.says(of_rank(poor) + "'s says twin, for which ranks run other configs now"));

    j.can[poor][scheme_job::twin] = true;
    j.forget();
    j.remember(j.leader, j.line(solution));
    j.run();
    check_trials(j);
    CHECK(j.says("'s says twin, for which ranks run other configs now"));
  }
}

TEST_CASE("ranks also announce the decision for a key that first occurs later on the data path") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job j(how);
    j.remember(1, j.line("fine") + j.entry + ",16KiB,coarse,2\n");
    j.run();
    j.call(100, 16'000);
    for (const auto& r : j.ranks) {
      REQUIRE(r->decisions().size() == 2);
      CHECK(r->decisions()[1].decision.key == "16KiB");
      CHECK(r->decisions()[1].decision.source == decision_source::results);
    }
    for (const auto& c : j.assigned().searches()) CHECK(c->trials() == 0);
  }
}

TEST_CASE(
    "for every kind of op, jobs share a results folder: the first result of an op stays, and the next job reads it") {
  for (const scheme how : all_schemes) {
    CAPTURE(name(how));
    scheme_job one(how);
    scheme_job other_op(how, "sums");
    scheme_job same_op(how);
    same_op.configs[coarse].takes_ns = {20'000, 20'000, 20'000};
    for (scheme_job* const j : {&one, &other_op, &same_op}) j->run();
    check_kept(one, "fine");
    for (rank_id r = 0; r < one.size; ++r) {
      auto& folder = one.disks[r].files;
      for (scheme_job* const j : {&other_op, &same_op}) {
        j->disks[r].files = folder;
        CHECK(j->ranks[r]->write_results().value() == scheme_job::file_of(r));
        folder = j->disks[r].files;
      }
      const auto together = tuning::parse_results(folder.at(scheme_job::file_of(r)));
      REQUIRE(together);
      CHECK(together->file.entries().size() == 2);
      CHECK(together->file.find(one.entry, "128KiB")->solution == "fine");
      CHECK(together->file.find(other_op.entry, "128KiB")->solution == "fine");
      scheme_job next(how);
      next.disks[r] = one.disks[r];
      next.run();
      check_no_trial(next, "fine");
      next.disks[r].locked.insert(scheme_job::file_of(r));  // before the job writes its decision by itself
      next.configs[fine].ill = 0;                           // now `fine` fails on rank 0, and the job decides otherwise
      next.call_meanwhile(20, [] {});
      next.call(400);
      next.call(400);
      REQUIRE(next.running() == "coarse");
      CHECK(next.ranks[r]->write_results().value().starts_with("results" + std::to_string(r) + ".unmerged-"));
      CHECK(next.disks[r].files.at(scheme_job::file_of(r)) == folder.at(scheme_job::file_of(r)));
      next.disks[r].locked.clear();
      CHECK(next.ranks[r]->write_results().value() == scheme_job::file_of(r));
      const auto after = tuning::parse_results(next.disks[r].files.at(scheme_job::file_of(r)));
      CHECK(after->file.find(one.entry, "128KiB")->solution == "coarse");
      CHECK(after->file.find(other_op.entry, "128KiB")->solution == "fine");
    }
  }
}
