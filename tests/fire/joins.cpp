// Ranks are killed, stopped or paused, or leave without a goodbye, while the job joins (ranks.hpp lists the steps). No other rank may wait
// for them longer than joining or noticing a death takes, each must name them, and a rank that resumes in time must join.
#include <parley/tests/fire/matrix.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

using namespace fire;

namespace {

constexpr auto detection = 1s;
constexpr auto join_limit = 3s;
constexpr auto verdict_of_rank_0 = 1s;  // the other ranks wait this much longer than rank 0

struct join_part {
  rank_id rank;
  std::vector<const char*> steps;
};
// Rank 1 sends to rank 2, and rank 0 sends to rank 3. Rank 0 hosts the rendezvous.
const std::vector<join_part>& parts() {
  static const std::vector<join_part> all{
      {2, {"join", "greeted", "presented", "admitted"}},
      {0, {"join", "greeted", "admits"}},
  };
  return all;
}

bool is_in(by_hand& job, rank_id r) { return job[r].says({"here is rank"}); }

/// Whether the survivor's error names the lost rank. A survivor that has not joined must name it directly. One that has joined may
/// instead name the other rank of its op, which has not joined and itself names the lost rank.
bool blames(by_hand& job, rank_id lost, rank_id survivor) {
  const std::string who = fmt::format("parley: rank {}: ", survivor);
  const std::string it = fmt::format("rank {}", lost);
  if (!is_in(job, survivor)) {
    return job[survivor].says({who.c_str(), "timeout: ", it.c_str()}) ||
           job[survivor].says({who.c_str(), "peer_failed: ", it.c_str(), "while the ranks were joining"});
  }
  if (job[survivor].says({who.c_str(), it.c_str(), "is gone"})) return true;
  const rank_id mate = 3 - survivor;
  const std::string other = fmt::format("rank {} is gone", mate);
  return mate != lost && !is_in(job, mate) && job[survivor].says({who.c_str(), other.c_str()}) &&
         blames(job, lost, mate);
}

void run_lost(const join_part& part, std::string_view action, const char* step) {
  const bool stops = action == "stop";
  by_hand job("pairs", 4,
              {{"PARLEY_DETECTION", std::to_string(detection.count())},
               {"PARLEY_TEST_JOIN_S", std::to_string(join_limit.count())},
               {"PARLEY_TEST_FAULT", fault_of(action, step, part.rank)}});
  process& victim = job[part.rank];
  REQUIRE_MESSAGE(job.until([&] { return victim.ended() || victim.stopped(); }), job.text());
  const parley::tests::fair_stopwatch since;
  if (!stops) CHECK_MESSAGE(victim.status() == status_after(action), job.text());
  // Rank 3 needs rank 0 for its op, and all ranks need it for the rendezvous.
  const rank_id mate = 3 - part.rank;
  const auto needs_it = [&](rank_id r) { return part.rank == 0 || r == mate || !is_in(job, r); };
  const auto over = [&] {
    for (rank_id r = 0; r < job.size(); ++r) {
      if (r != part.rank && !job[r].ended() && needs_it(r)) return false;
    }
    return true;
  };
  CHECK_MESSAGE(job.until(over), job.text());
  CHECK_MESSAGE(since.took() < join_limit + verdict_of_rank_0 + detection + leaving, job.text());
  for (rank_id r = 0; r < job.size(); ++r) {
    if (r == part.rank || !job[r].ended()) continue;
    CHECK_MESSAGE(job[r].status() == 1, job.text());
    CHECK_MESSAGE(blames(job, part.rank, r), job.text());
  }
  if (stops) {
    victim.signal(SIGCONT);
    // The victim may have to find out that no rank is left to join.
    CHECK_MESSAGE(job.within(join_limit + leaving, [&] { return victim.ended(); }), job.text());
    const std::string who = fmt::format("parley: rank {}: ", part.rank);
    CHECK_MESSAGE(victim.status() == 1, job.text());
    const auto says = [&](const char* what) { return victim.says({who.c_str(), what}); };
    CHECK_MESSAGE((is_in(job, part.rank) ? says("fenced: ") : says("timeout: ") || says("peer_failed: rank 0 ")),
                  job.text());
  }
  for (rank_id r = 0; r < job.size(); ++r) job[r].close_input();
  CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
  for (rank_id r = 0; r < job.size(); ++r) {
    if (r != part.rank && !needs_it(r)) CHECK_MESSAGE(job[r].status() == 0, job.text());
  }
  left_records(job.records()).check();
  CHECK(job.left_behind().empty());
}

void run_paused(const join_part& part, const char* step) {
  by_hand job("pairs", 4,
              {{"PARLEY_DETECTION", detection_of_pauses}, {"PARLEY_TEST_FAULT", fault_of("pause", step, part.rank)}});
  REQUIRE_MESSAGE(job.until([&] { return job[part.rank].ended() || job[part.rank].stopped(); }), job.text());
  job.until([] { return false; }, pause_length);
  job[part.rank].signal(SIGCONT);
  const auto all_say = [&](const char* words) {
    for (rank_id r = 0; r < job.size(); ++r) {
      if (!job[r].says({words})) return false;
    }
    return true;
  };
  CHECK_MESSAGE(job.until([&] { return all_say("it is decided"); }), job.text());
  for (rank_id r = 0; r < job.size(); ++r) job[r].close_input();
  CHECK_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
  CHECK_MESSAGE(all_say("fine on rank"), job.text());
  left_records(job.records()).check();
  CHECK(job.left_behind().empty());
}

void run_one(const join_part& part, std::string_view action, const char* step) {
  INFO(fmt::format("{}:{}:{}", action, step, part.rank));
  const auto before = pages();
  if (action == "pause") {
    run_paused(part, step);
  } else {
    run_lost(part, action, step);
  }
  // If rank 0 is lost between two rosters, hearts that have started keep a page for ranks that may never join.
  const bool some_never_came = action != "pause" && step == std::string_view("admits");
  if (!some_never_came) check_no_pages_but(before);
}

}  // namespace

TEST_CASE("the other ranks name a rank that is killed or stopped while the job joins, and do not wait for it forever") {
  run_one(parts()[0], "kill", "join");
  run_one(parts()[0], "exit", "presented");
  run_one(parts()[0], "stop", "presented");
  run_one(parts()[0], "stop", "admitted");
  run_one(parts()[1], "kill", "admits");
  run_one(parts()[1], "stop", "admits");
}

TEST_CASE("the other ranks wait for a rank that is stopped for a while as it joins") {
  run_one(parts()[0], "pause", "greeted");
  run_one(parts()[1], "pause", "join");
}

TEST_CASE("a rank that is lost or late at any step of joining ends the others in time, or is in" *
          doctest::skip(times_over() == 0)) {
  run_all(parts(), {"kill", "exit", "stop", "pause"}, run_one);
}
