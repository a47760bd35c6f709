// Death and stop of real ranks: which ranks notice, how soon, and what they report.
#include <parley/tests/fire/ranks.hpp>
#include <parley/tests/fire/supervisor.hpp>

#include <doctest/doctest.h>

using namespace fire;

namespace {

bool all_here(by_hand& job) {
  return job.until([&] {
    for (rank_id r = 0; r < job.size(); ++r) {
      if (!job[r].says({"here is rank"})) return false;
    }
    return true;
  });
}

/// Signals rank 2 and checks that rank 1, whose pair needs it, notices in time. Rank 1 prints when its program ended, so that a delay of
/// the test itself does not count; neither does time that the machine withheld.
void check_noticed_of_2(by_hand& job, int signal) {
  constexpr auto noticed_within = 2s;
  constexpr auto left_within = 500ms;
  const parley::tests::fair_stopwatch since;
  job[2].signal(signal);
  REQUIRE_MESSAGE(job.until([&] { return job[1].program_ended().has_value(); }), job.text());
  CHECK_MESSAGE(since.took() - (clock::now() - *job[1].program_ended()) <= noticed_within, job.text());
  CHECK_MESSAGE(job.within(left_within, [&] { return job[1].ended(); }), job.text());
  CHECK_MESSAGE(job[1].says({"parley: rank 1: peer_failed: inner 1->2", "on rank 1", "rank 2 is gone", "invocation"}),
                job.text());
  CHECK(job[1].status() == 1);
}

}  // namespace

TEST_CASE("this program as one rank" * doctest::skip()) {
  if (std::getenv(scenario_variable) != nullptr) ::_exit(run_as_rank());
}

TEST_CASE("a stopped rank is noticed within two seconds, and is fenced when it resumes") {
  by_hand job("pairs", 4);
  REQUIRE_MESSAGE(all_here(job), job.text());
  check_noticed_of_2(job, SIGSTOP);
  CHECK(job[2].stopped());
  // The other pair keeps running, and rank 0 still hosts.
  CHECK_FALSE(job[0].ended());
  CHECK_FALSE(job[3].ended());
  job[2].signal(SIGCONT);
  CHECK_MESSAGE(job.within(3s, [&] { return job[2].ended(); }), job.text());
  CHECK(job[2].status() == 1);
  CHECK_MESSAGE(job[2].says({"parley: rank 2: fenced: inner 1->2", "rank 2 was stopped", "declared it dead"}),
                job.text());
  job[0].close_input();
  CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
  CHECK(job[0].status() == 0);
  CHECK(job[3].status() == 0);
  CHECK(job.left_behind().empty());
}

TEST_CASE("a killed rank is noticed within two seconds") {
  by_hand job("pairs", 4);
  REQUIRE_MESSAGE(all_here(job), job.text());
  check_noticed_of_2(job, SIGKILL);
  for (const rank_id r : {0U, 3U}) job[r].close_input();
  CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
  for (const rank_id r : {0U, 3U}) CHECK_MESSAGE(job[r].status() == 0, job.text());
}

TEST_CASE("a rank that is stopped for less than the detection time continues as if nothing had happened") {
  by_hand job("pairs", 4, {{"PARLEY_DETECTION", "4"}});
  REQUIRE_MESSAGE(all_here(job), job.text());
  job[2].signal(SIGSTOP);
  job.until([] { return false; }, 1800ms);
  job[2].signal(SIGCONT);
  for (const rank_id sender : {0U, 1U}) job[sender].close_input();
  CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
  for (rank_id r = 0; r < 4; ++r) CHECK_MESSAGE(job[r].status() == 0, job.text());
}

TEST_CASE("a job that is stopped as a whole continues as a whole") {
  by_hand job("pairs", 4, {{"PARLEY_DETECTION", "2"}});
  REQUIRE_MESSAGE(all_here(job), job.text());
  for (rank_id r = 0; r < 4; ++r) job[r].signal(SIGSTOP);
  job.until([] { return false; }, 2500ms);
  for (rank_id r = 0; r < 4; ++r) job[r].signal(SIGCONT);
  job.until([] { return false; }, 500ms);
  for (const rank_id sender : {0U, 1U}) job[sender].close_input();
  CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
  for (rank_id r = 0; r < 4; ++r) CHECK_MESSAGE(job[r].status() == 0, job.text());
}

TEST_CASE("when the rank that hosts the rendezvous dies or stops, ops without it continue, with a warning") {
  for (const int how : {SIGKILL, SIGSTOP}) {
    by_hand job("pairs", 4, {{"PARLEY_DETECTION", "1"}});
    REQUIRE_MESSAGE(all_here(job), job.text());
    job[0].signal(how);
    CHECK_MESSAGE(job.within(4s, [&] { return job[3].ended(); }), job.text());
    CHECK_MESSAGE(job[3].says({"peer_failed: outer 0->3", "on rank 3", "rank 0 is gone"}), job.text());
    const auto warned = [&](rank_id r) { return job[r].says({"warning: rank 0", "ops without that rank continue"}); };
    CHECK_MESSAGE(job.within(2s, [&] { return warned(1) && warned(2); }), job.text());
    // The survivors notice a second death without a host.
    job[2].signal(SIGSTOP);
    CHECK_MESSAGE(job.within(4s, [&] { return job[1].ended(); }), job.text());
    CHECK_MESSAGE(job[1].says({"peer_failed: inner 1->2", "rank 2 is gone"}), job.text());
  }
}

TEST_CASE("a rank that computes for ten seconds without polling stays alive") {
  by_hand job("computing", 2, {{"PARLEY_TEST_MS", "10000"}});
  CHECK_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
  for (rank_id r = 0; r < 2; ++r) CHECK_MESSAGE(job[r].says({"fine"}), job.text());
}
