// Real ranks die and are started again: the job goes on, whatever the step at which they died, and nothing is left behind.
#include <parley/tests/fire/matrix.hpp>
#include <parley/tests/support/processes.hpp>

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <string_view>

using namespace fire;
using parley::transports::rank_end;

namespace {

/// Checks the records of all its processes, whether the job succeeded or not.
struct restarted_job : parley::tests::job_run {
  restarted_job(const char* scenario, rank_id world, const std::string& faults, std::uint32_t restarts,
                const char* patience_ms = "60000")
      : job_run(rank_of_a_job, scenario, world, {{"PARLEY_TEST_FAULT", faults}, {"PARLEY_TEST_MS", patience_ms}},
                restarts) {
    left_records(records).check();
  }
  bool has(const std::string& text) const { return all.find(text) != std::string::npos; }
};

/// Ranks 0 and 1 count to the end although `faults` strike rank 1, which restarts `restarts` times. Rank 2 notices nothing.
void check_counted(const std::string& faults, std::uint32_t restarts) {
  INFO(faults);
  const restarted_job job("counting", 3, faults, restarts);
  CHECK_MESSAGE(job.fine(), job.all);
  // A rank that dies at once may be back before rank 0 needs it.
  if (!faults.starts_with("kill:start")) CHECK_MESSAGE(job.says(0, {"it ended: peer_", "counter", "rank 1"}), job.all);
  CHECK_MESSAGE(job.says(0, {"counted"}), job.all);
  CHECK_MESSAGE(job.says(1, {"helped"}), job.all);
  CHECK_MESSAGE(job.end.ranks[1].restarts == restarts, job.all);
  CHECK(job.end.ranks[0].restarts + job.end.ranks[2].restarts == 0);
  CHECK_MESSAGE(job.has(fmt::format("it is started again (restart {0} of at most {0})", restarts)), job.all);
  CHECK_MESSAGE(!job.has("warning"), job.all);
}

// The steps at which a fault strikes the second process in a rank's place.
struct second_process {
  const char* scenario;
  rank_id rank;
  const char* role;
  std::vector<const char*> steps;
  std::vector<const char*> said;  // by rank: what it prints in the end
};
const std::vector<second_process>& second_processes() {
  static const std::vector<second_process> all{
      {"counting",
       1,
       "sender and receiver",
       {"join", "greeted", "presented", "admitted", "start", "offer", "merged", "warm", "warmed", "rehearsal", "trial",
        "report", "decide", "decided", "after"},
       {"counted", "helped"}},
      {"summing",
       2,
       "worker",
       {"join", "greeted", "presented", "admitted", "start", "offer", "warmed", "rehearsal", "trial", "report",
        "decided"},
       {"summed", "summed", "summed"}},
  };
  return all;
}

/// The first process is killed at a trial, and `action` strikes the second process at `step`. Unless it only pauses, a third follows.
void run_second(const second_process& part, std::string_view action, const char* step) {
  INFO(fmt::format("{} {} {}:{}:{}:1", part.scenario, part.role, action, step, part.rank));
  const bool stops = action == "stop";
  const bool pauses = action == "pause";
  const auto before = pages();
  {
    by_hand job(
        part.scenario, static_cast<rank_id>(part.said.size()),
        {{"PARLEY_MAX_RESTARTS", "2"},
         {"PARLEY_DETECTION", pauses ? detection_of_pauses : "1"},
         {"PARLEY_TEST_FAULT", fault_of("kill", "trial", part.rank) + "," + fault_of(action, step, part.rank) + ":1"},
         {"PARLEY_TEST_HOLD", "yes"},
         {"PARLEY_TEST_MS", "60000"}});
    const auto victim = [&]() -> process& { return job[part.rank]; };
    const auto ended_for_the_others = [&] { return job[0].times_said({"it ended: peer_", "rank"}); };
    REQUIRE_MESSAGE(job.until([&] { return victim().ended() && ended_for_the_others() == 1; }), job.text());
    job.start_again(part.rank, {{"PARLEY_RESTART_COUNT", "1"}});
    REQUIRE_MESSAGE(job.until([&] { return victim().ended() || victim().stopped(); }), job.text());
    if (pauses) {
      job.until([] { return false; }, pause_length);
      victim().signal(SIGCONT);
    } else {
      if (!stops) CHECK_MESSAGE(victim().status() == status_after(action), job.text());
      // The others know of the second process once rank 0 has sent it the roster.
      const bool has_come = step != std::string_view("join") && step != std::string_view("greeted");
      if (stops && has_come) CHECK_MESSAGE(job.until([&] { return ended_for_the_others() == 2; }), job.text());
      job.start_again(part.rank, {{"PARLEY_RESTART_COUNT", "2"}});
      CHECK_MESSAGE(job.until([&] { return victim().says({"here is rank"}); }), job.text());
    }
    if (stops) {
      job.former().signal(SIGCONT);
      CHECK_MESSAGE(job.within(5s, [&] { return job.former().ended(); }), job.text());
      CHECK(job.former().status() == 1);
      CHECK_MESSAGE(job.former().says({fmt::format("parley: rank {}: ", part.rank).c_str(), "fenced: "}), job.text());
    }
    job[0].close_input();
    CHECK_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
    for (rank_id r = 0; r < job.size(); ++r) {
      CHECK_MESSAGE(job[r].status() == 0, job.text());
      CHECK_MESSAGE(job[r].says({part.said[r]}), job.text());
    }
    if (pauses) CHECK_MESSAGE(ended_for_the_others() == 1, job.text());
    left_records(job.records()).check();
    CHECK(job.left_behind().empty());
  }
  check_no_pages_but(before);
}

}  // namespace

TEST_CASE("a rank that is killed at one step of a campaign or another is started again, and its pair goes on") {
  for (const char* const step : {"start", "warmed", "trial", "after"}) check_counted(fmt::format("kill:{}:1", step), 1);
}

TEST_CASE("a group whose ranks rejoin continues with the new process of a killed worker") {
  for (const char* const step : {"start", "offer", "trial", "decided"}) {
    INFO(step);
    const restarted_job job("summing", 3, fmt::format("kill:{}:2", step), 1);
    CHECK_MESSAGE(job.fine(), job.all);
    for (rank_id r = 0; r < 3; ++r) {
      CHECK_MESSAGE(job.says(r, {"summed"}), job.all);
      CHECK(job.end.ranks[r].restarts == (r == 2 ? 1 : 0));
      const bool sure = r != 2 && (step == std::string_view("trial") || step == std::string_view("decided"));
      if (sure) CHECK_MESSAGE(job.says(r, {"it ended: peer_", "gradients", "rank 2"}), job.all);
    }
  }
}

TEST_CASE("a rank that dies while it comes back is restarted once more") {
  for (const char* const step : {"join", "start", "offer", "trial"})
    check_counted(fmt::format("kill:trial:1,kill:{}:1:1", step), 2);
}

TEST_CASE("two ranks of a group that die one after the other both come back") {
  const restarted_job job("summing", 3, "kill:trial:1,kill:decided:2,kill:offer:1:1", 3);
  CHECK_MESSAGE(job.fine(), job.all);
  for (rank_id r = 0; r < 3; ++r) CHECK_MESSAGE(job.says(r, {"summed"}), job.all);
  CHECK(job.end.ranks[1].restarts == 2);
  CHECK(job.end.ranks[2].restarts == 1);
}

TEST_CASE("a rank that was stopped is fenced, ends and is restarted, and so is a process that was itself a restart") {
  // The heart notices, by a page that no longer had a name when the new process joined.
  check_counted("stop:trial:1", 1);
  check_counted("kill:trial:1,stop:trial:1:1", 2);
}

TEST_CASE(
    "a rank that comes back and then leaves silently or is stopped is replaced, and one that is late is waited for") {
  run_second(second_processes()[0], "stop", "presented");
  run_second(second_processes()[0], "exit", "warm");
  run_second(second_processes()[1], "pause", "admitted");
  run_second(second_processes()[1], "stop", "trial");
}

TEST_CASE("a rank that comes back and is lost or late at any step is replaced, or waited for" *
          doctest::skip(times_over() == 0)) {
  run_all(second_processes(), {"kill", "exit", "stop", "pause"}, run_second);
}

TEST_CASE("if no restart is left, or rank 0 has died, the job ends as it does without restarts") {
  const restarted_job spent("counting", 2, "kill:trial:1,kill:offer:1:1", 1, "5000");
  CHECK(spent.end.status == 1);
  CHECK(spent.end.first_failed == rank_id{1});
  CHECK_MESSAGE(spent.has("rank 1 was killed by SIGKILL; the other 1 rank is ended"), spent.all);
  CHECK(spent.end.ranks[1].kind == rank_end::how::signalled);
  CHECK(spent.end.ranks[1].restarts == 1);

  const restarted_job never("counting", 2, "kill:trial:1", 0);
  CHECK(never.end.status == 1);
  CHECK_MESSAGE(never.says(0, {"parley: rank 0: peer_failed: counter"}), never.all);

  const restarted_job headless("counting", 2, "kill:trial:0", 5);
  CHECK(headless.end.status == 1);
  CHECK(headless.end.first_failed == rank_id{0});
  for (const rank_end& r : headless.end.ranks) CHECK(r.restarts == 0);
  CHECK_MESSAGE(headless.says(1, {"peer_failed", "rank 0 is gone", "restart the job"}), headless.all);
}

TEST_CASE("a process without the job's key does not get a dead rank's place; the job's own new process does") {
  by_hand job("counting", 2,
              {{"PARLEY_MAX_RESTARTS", "3"}, {"PARLEY_TEST_FAULT", "kill:trial:1"}, {"PARLEY_TEST_MS", "60000"}});
  REQUIRE_MESSAGE(job.until([&] { return job[1].ended() && job[0].says({"it ended"}); }), job.text());
  job.start_again(1, {{"PARLEY_RESTART_COUNT", "1"}, {"PARLEY_KEY_FILE", job.another_key()}});
  REQUIRE_MESSAGE(job.until([&] { return job[1].ended(); }), job.text());
  CHECK(job[1].status() == 1);
  CHECK_MESSAGE(job[1].says({"unauthenticated", "does not have the key"}), job.text());
  CHECK_FALSE(job[0].ended());
  // A process whose restart count is not higher does not get the place either.
  job.start_again(1, {});
  REQUIRE_MESSAGE(job.until([&] { return job[1].ended(); }), job.text());
  CHECK_MESSAGE(job[1].says({"fenced", "PARLEY_RESTART_COUNT"}), job.text());
  CHECK_FALSE(job[0].ended());
  job.start_again(1, {{"PARLEY_RESTART_COUNT", "1"}});
  CHECK_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
  CHECK_MESSAGE(job[0].status() == 0, job.text());
  CHECK_MESSAGE(job[1].status() == 0, job.text());
  left_records(job.records()).check();
}

TEST_CASE(
    "a process that was only stopped when another took its place is shut out, and the job continues with that one") {
  // Detection takes 600 s, so no rank has noticed: calls with the old process fail at the moment in which the new one joins.
  by_hand job("counting", 2,
              {{"PARLEY_MAX_RESTARTS", "1"},
               {"PARLEY_DETECTION", "600"},
               {"PARLEY_TEST_FAULT", "stop:trial:1"},
               {"PARLEY_TEST_MS", "60000"}});
  REQUIRE_MESSAGE(job.until([&] { return job[1].stopped(); }), job.text());
  job.start_again(1, {{"PARLEY_RESTART_COUNT", "1"}});
  CHECK_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
  CHECK_MESSAGE(job[0].status() == 0, job.text());
  CHECK_MESSAGE(job[1].status() == 0, job.text());
  CHECK_MESSAGE(job[0].says({"it ended: peer_", "counter", "rank 1"}), job.text());
  // Rank 0 resumes the old process. Which of its errors the old process meets first is a matter of chance.
  CHECK(job.until([&] { return job.former().ended(); }));
  CHECK(job.former().status() == 1);
  CHECK(job.former().says({"parley: rank 1: ", "counter"}));
  left_records(job.records()).check();
}

TEST_CASE("ranks with GPUs refuse to start if restarts are requested, which they do not support yet") {
  by_hand job("counting", 2, {{"PARLEY_MAX_RESTARTS", "1"}, {"PARLEY_TEST_GPU", "yes"}});
  REQUIRE_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
  for (rank_id r = 0; r < 2; ++r) {
    CHECK(job[r].status() == 1);
    CHECK_MESSAGE(job[r].says({"unavailable: ranks with GPUs cannot be restarted yet", "--restarts"}), job.text());
  }
}
