// Ranks that are killed, stopped or paused, or leave without a word, while the job joins (ranks.hpp has the steps): no other rank waits
// for them for longer than it takes to join or to notice a death, each names them, and who comes back in time is in.
#include <parley/tests/fire/matrix.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

using namespace fire;

namespace {

constexpr auto detection = 1s;
constexpr auto join_limit = 3s;
constexpr auto verdict_of_rank_0 = 1s;  // for which the others wait longer than it does

struct join_part {
  rank_id rank;
  std::vector<const char*> steps;
};
// Rank 2 receives from rank 1. Rank 0, which sends to rank 3, hosts the rendezvous.
const std::vector<join_part>& parts() {
  static const std::vector<join_part> all{
      {2, {"join", "greeted", "presented", "admitted"}},
      {0, {"join", "greeted", "admits"}},
  };
  return all;
}

bool is_in(by_hand& job, rank_id r) { return job[r].says({"here is rank"}); }

/// Of who has not joined, that its error names that rank; of who has, that it ends its op, or that it warns of it and the op's other
/// rank has not joined; or that it names that one, which has ended first, and itself names the lost one.
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
  // Rank 0's op is that of rank 3, and of the rendezvous all.
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
    // It may have to find out that nobody is there to join.
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
  // Where rank 0 is lost between two rosters, hearts that have begun keep a page for some that may never come.
  const bool some_never_came = action != "pause" && step == std::string_view("admits");
  if (!some_never_came) check_no_pages_but(before);
}

}  // namespace

TEST_CASE(
    "a rank that is killed or stopped while the job joins is named by the others, which do not wait for it for ever") {
  run_one(parts()[0], "kill", "join");
  run_one(parts()[0], "exit", "presented");
  run_one(parts()[0], "stop", "presented");
  run_one(parts()[0], "stop", "admitted");
  run_one(parts()[1], "kill", "admits");
  run_one(parts()[1], "stop", "admits");
}

TEST_CASE("a rank that is stopped for a while as it joins is waited for") {
  run_one(parts()[0], "pause", "greeted");
  run_one(parts()[1], "pause", "join");
}

TEST_CASE("a rank that is lost or late at any step of joining ends the others in time, or is in" *
          doctest::skip(times_over() == 0)) {
  run_all(parts(), {"kill", "exit", "stop", "pause"}, run_one);
}
