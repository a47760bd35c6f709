// docs/results.md row by row: which rank's results file has what, and what comes of it on every rank.
#include "../support/transfers.hpp"

#include <parley/runtime/version.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using actors::decision_source;

namespace {

const std::string key = "128KiB";
const std::string edge = "activations/0>1";
const std::string fine = "chunked(chunk_bytes=8192 in_flight=1)";
const std::string coarse = "chunked(chunk_bytes=65536 in_flight=4)";
std::vector<config_ptr> catalogue() { return {direct(), chunked(8_KiB, 1), chunked(64_KiB, 4)}; }

rank_settings settings_on(const std::string& processor = "test") {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  s.results_path = "results.csv";
  s.validators = {{"PARLEY_PROCESSOR", processor}};
  return s;
}

std::string line(const std::string& op, const std::string& solution, const std::string& time = "1.5") {
  return op + "," + key + "," + solution + "," + time + "\n";
}

/// A sender and a receiver, each with settings and a disk of its own.
struct pair_job {
  std::vector<rank_settings> settings{settings_on(), settings_on()};
  std::vector<std::vector<config_ptr>> configs{catalogue(), catalogue()};
  std::vector<memory_storage> disks{2};
  std::vector<std::uint64_t> hosts{};
  std::vector<std::string> kinds{};

  /// Gives a rank a results file, with the validators that it has today.
  void remember(rank_id r, const std::string& lines) {
    std::string text =
        "Validator,PARLEY_VERSION," + std::string(runtime::version_text) + "\nValidator,PARLEY_WORLD,2\n";
    for (const auto& v : settings[r].validators) text += "Validator," + v.name + "," + v.value + "\n";
    disks[r].files["results" + std::to_string(r) + ".csv"] = text + lines;
  }
  void run() {
    ranks.clear();
    for (rank_id r = 0; r < 2; ++r) {
      rank_foundation on{clock, links[r], &disks[r], {{1, 2}}, {}};
      on.hosts = hosts;
      on.kinds = kinds;
      ranks.push_back(std::make_unique<rank>(std::move(on), settings[r]));
    }
    out = ranks[0]->declare(pair_of(configs[0]));
    in = ranks[1]->declare(pair_of(configs[1]));
    move(std::vector<std::size_t>(120, 100'000));
  }
  /// Both ends run the same config for every message, and have heard of every decision afterwards.
  void move(const std::vector<std::size_t>& sizes) {
    const auto both = [](transfer o, transfer i, std::vector<std::size_t> s, time_ns until,
                         call_outcomes& c) -> task<> {
      auto done = co_await when_all(send_each(o, s, c), receive_each(i, s, 0, c));
      static_cast<void>(done);
      auto slept = co_await sleep_until(until);
      static_cast<void>(slept);
    };
    call_outcomes all;
    runtime::run(clock, both(out, in, sizes, clock.now() + 20'000'000'000, all));
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    std::map<std::uint64_t, std::uint64_t> sent;
    for (const auto& f : ranks[0]->flight().in_order()) {
      if (is_transfer(f.what)) sent[f.invocation] = (f.flags & 4U) != 0 ? 0 : f.digest;
    }
    for (const auto& f : ranks[1]->flight().in_order()) {
      if (!is_transfer(f.what)) continue;
      if ((f.flags & 4U) == 0 && sent[f.invocation] != 0) CHECK(f.digest == sent[f.invocation]);
    }
  }
  const actors::campaign& campaign() {
    const auto agreed = ranks[0]->agreements();
    REQUIRE(agreed.size() == 1);
    REQUIRE(agreed[0].assigned->campaigns().size() == 1);
    return *agreed[0].assigned->campaigns().front();
  }
  /// What both ranks were told, which must be one thing.
  actors::decision_record decision() {
    std::vector<actors::decision_record> all;
    for (const auto& r : ranks) {
      const auto known = r->decisions();
      REQUIRE(known.size() == 1);
      all.push_back(known[0].decision);
    }
    CHECK(all[0].digest == all[1].digest);
    CHECK(all[0].why == all[1].why);
    CHECK(all[0].source == all[1].source);
    CHECK(all[0].proposer == all[1].proposer);
    CHECK(all[0].digest == campaign().digest);
    return all[0];
  }
  /// What both ranks' files will say of the key; empty: nothing.
  std::string learned(const std::string& op = edge) {
    std::vector<std::string> all;
    for (const auto& r : ranks) {
      const auto file = r->results();
      const auto* entry = file.find(op, key);
      all.push_back(entry == nullptr ? "" : entry->solution);
    }
    CHECK(all[0] == all[1]);
    return all[0];
  }
  bool says(const std::string& part) {
    const auto why = decision().why;
    INFO(why);
    return why.find(part) != std::string::npos;
  }

  virtual_time clock;
  memory_world links{clock, 2};
  std::vector<std::unique_ptr<rank>> ranks;
  transfer out, in;
};

/// A config whose receiver does not work on this machine.
config_ptr broken_here() {
  return paired(
      {"broken", {}, "broken"},
      [](part_sender& out, std::span<const std::byte> data) -> task<> { co_await out.send(0, data); },
      [](part_receiver&, std::span<std::byte>) -> task<> {
        raise({errc::unavailable, "no such hardware"});
        co_return;
      });
}

}  // namespace

TEST_CASE("no rank remembers anything: trials, and the winner is in both ranks' results") {
  pair_job job;
  job.run();
  CHECK(job.campaign().trials > 0);
  CHECK(job.decision().source == decision_source::trials);
  CHECK(job.learned() == job.campaign().winner);
}

TEST_CASE("one rank remembers, or both the same: no trial, and both ranks have the entry with its time") {
  pair_job job;
  rank_id proposer = 0;
  SUBCASE("both") {
    job.remember(0, line(edge, fine));
    job.remember(1, line(edge, fine));
  }
  SUBCASE("the sender alone") { job.remember(0, line(edge, fine)); }
  SUBCASE("the receiver alone") {
    job.remember(1, line(edge, fine));
    proposer = 1;
  }
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.campaign().winner == fine);
  CHECK(job.decision().source == decision_source::results);
  CHECK(job.decision().proposer == proposer);
  CHECK(job.learned() == fine);
  for (const auto& r : job.ranks) CHECK(r->results().find(edge, key)->time_ms == 1.5);
}

TEST_CASE("different winners: the leader's, on both ranks, with word of the other's") {
  pair_job job;
  job.remember(0, line(edge, fine));
  job.remember(1, line(edge, coarse));
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.campaign().winner == fine);
  CHECK(job.decision().proposer == 0);
  CHECK(job.says("rank 0's results file says so; rank 1's says " + coarse));
  CHECK(job.learned() == fine);
}

TEST_CASE("a winner that is no candidate is passed over for another rank's") {
  pair_job job;
  job.remember(0, line(edge, "telepathy"));
  job.remember(1, line(edge, coarse));
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.campaign().winner == coarse);
  CHECK(job.decision().proposer == 1);
  CHECK(job.says("rank 0's says telepathy, which is no candidate now"));
  CHECK(job.learned() == coarse);
}

TEST_CASE("a winner that only one rank still has is a miss: trials, and the decision says so") {
  pair_job job;
  job.configs[1].pop_back();
  job.remember(0, line(edge, coarse));
  job.remember(1, line(edge, coarse));
  job.run();
  CHECK(job.campaign().trials > 0);
  CHECK(job.decision().source == decision_source::trials);
  CHECK(job.says("rank 1's says " + coarse + ", which is no candidate now"));
  CHECK(job.learned() == job.campaign().winner);
}

TEST_CASE("a winner that fails its rehearsal is a miss") {
  pair_job job;
  for (auto& c : job.configs) c.push_back(broken_here());
  job.remember(0, line(edge, "broken"));
  job.remember(1, line(edge, "broken"));
  job.run();
  CHECK(job.campaign().trials > 0);
  CHECK(job.campaign().winner != "broken");
  CHECK(job.says("broken, which is no candidate now"));
}

TEST_CASE("a pinned default wins on whichever rank it is, and stays a pin in both files") {
  pair_job job;
  SUBCASE("the sender's") {
    job.remember(0, line(edge, "Default", "0"));
    job.remember(1, line(edge, coarse));
  }
  SUBCASE("the receiver's") {
    job.remember(0, line(edge, coarse));
    job.remember(1, line(edge, "Default", "0"));
  }
  SUBCASE("for ranks on hosts of their own, too, though it does not name them") {
    job.hosts = {1, 2};
    job.remember(1, line(edge, "Default", "0"));
  }
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.campaign().winner == "direct");
  CHECK(job.decision().source == decision_source::pin);
  CHECK(job.says("pins the default"));
  CHECK(job.learned() == "Default");
  CHECK(job.ranks[0]->results().entries().size() == 1);
}

TEST_CASE("machines that differ: only what was measured on this very combination counts") {
  pair_job job;
  job.settings[1] = settings_on("another");
  job.remember(0, line(edge, fine));
  job.remember(1, line(edge, fine));
  job.run();
  CHECK(job.campaign().trials > 0);
  CHECK(job.says("rank 0's has it for other machines than these"));
  CHECK(job.learned() == fine);  // as it was: for machines that are alike
  const std::uint64_t machines = job.decision().machines;
  REQUIRE(machines != 0);
  char text[32];
  std::snprintf(text, sizeof text, "@%016llx", static_cast<unsigned long long>(machines));
  const std::string winner = job.campaign().winner;
  CHECK(job.learned(edge + text) == winner);

  job.remember(0, line(edge + text, coarse));
  job.disks[1].files.clear();
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.campaign().winner == coarse);
  CHECK(job.learned(edge + text) == coarse);

  job.settings[1] = settings_on();  // the second machine has become like the first
  job.run();
  CHECK(job.campaign().trials > 0);
}

TEST_CASE("what was measured where ranks share a host does not count where they do not, nor the reverse") {
  pair_job job;
  const auto run_on = [&](std::vector<std::uint64_t> hosts, std::vector<std::string> kinds) {
    job.hosts = std::move(hosts);
    job.kinds = std::move(kinds);
    job.run();
    for (auto& r : job.ranks) CHECK(r->write_results());
    return job.campaign().trials;
  };
  const std::string miss = "rank 0's has it for other machines than these";
  CHECK(run_on({1, 1}, {}) > 0);
  const std::string together = job.campaign().winner;
  CHECK(job.learned() == together);
  CHECK(run_on({}, {}) == 0);  // nothing else is known than that they share one
  CHECK(run_on({9, 9}, {"A100", "A100"}) == 0);

  CHECK(run_on({1, 2}, {}) > 0);
  CHECK(job.says(miss));
  CHECK(job.campaign().missed.find(miss) != std::string::npos);
  CHECK(job.decision().machines != 0);
  CHECK(job.learned() == together);  // as it was
  CHECK(run_on({2, 1}, {}) == 0);    // which hosts they are says nothing
  CHECK(run_on({1, 1}, {}) == 0);
  CHECK(job.campaign().winner == together);

  // Nor is one on two kinds of device what it is on two of one kind, also where validators do not tell them apart.
  CHECK(run_on({1, 1}, {"A100", "H100"}) > 0);
  CHECK(job.says(miss));
  CHECK(run_on({1, 1}, {"H100", "A100"}) > 0);
  CHECK(run_on({1, 1}, {"A100", "H100"}) == 0);
  CHECK(run_on({1, 2}, {"A100", "H100"}) > 0);
}

TEST_CASE("a file that its rank rejects proposes nothing, the other rank's entry counts") {
  pair_job job;
  job.remember(0, line(edge, coarse));
  job.settings[0] = settings_on("newer");
  job.settings[1] = settings_on("newer");
  job.remember(1, line(edge, fine));
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.campaign().winner == fine);
  CHECK(job.decision().proposer == 1);
  CHECK_FALSE(job.says(coarse));
  CHECK(job.learned() == fine);
}

TEST_CASE("when only the default is common both ranks are told, and no file pins it") {
  pair_job job;
  job.configs[1] = {direct()};
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.decision().source == decision_source::only_default);
  CHECK(job.learned().empty());
}

TEST_CASE("tuning that is off on either rank is off: what is remembered runs, else the default") {
  pair_job job;
  std::string who;
  SUBCASE("the sender's") {
    job.settings[0].policy = actors::tuning_policy::off;
    who = "rank 0";
  }
  SUBCASE("the receiver's") {
    job.settings[1].policy = actors::tuning_policy::off;
    who = "rank 1";
  }
  job.run();
  CHECK(job.campaign().trials == 0);
  CHECK(job.decision().source == decision_source::tuning_off);
  CHECK(job.says("tuning is switched off on " + who));
  CHECK(job.learned().empty());
  job.remember(1, line(edge, coarse));
  job.run();
  CHECK(job.campaign().winner == coarse);
}

TEST_CASE("a key that is first met later, on the data path, is announced as well") {
  pair_job job;
  job.remember(1, line(edge, fine) + edge + ",16KiB," + coarse + ",2\n");
  job.run();
  job.move({16'000});
  for (const auto& r : job.ranks) {
    REQUIRE(r->decisions().size() == 2);
    CHECK(r->decisions()[1].decision.key == "16KiB");
    CHECK(r->decisions()[1].decision.source == decision_source::results);
  }
}
