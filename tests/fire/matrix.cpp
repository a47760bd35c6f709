// Kills or stops real ranks at every step of a campaign, or makes them leave without a goodbye. Each survivor must end in bounded time
// with an error that names op, rank and invocation. A stopped rank must be fenced when it resumes. A rank that resumes in time must declare
// no rank dead and must not be given up. Nothing may be left behind.
//
// The same faults strike inside calls of ops of several ranks (exchanges.hpp), whose memory must be right afterwards. They also strike
// puts and gets (one_sided.hpp). There, nothing may be written outside the payload or to memory that was given back, and no payload may
// arrive that was not written completely.
//
// The simulator's own checkers look at the records that ranks leave, whether the run succeeded or not (records.hpp).
//
// `./dev test` runs a few steps per role, `./dev fire` and `./dev all` run all of them (matrix.hpp).
#include <parley/tests/fire/matrix.hpp>

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <algorithm>

using namespace fire;
using parley::simulation::run_record;

namespace {

constexpr const char* all_decide = "it is decided";

struct campaign_part {
  const char* scenario;
  rank_id rank;
  const char* role;
  std::vector<const char*> steps;
  const char* op;
  std::vector<rank_id> others;  // the other ranks of the op
  std::chrono::seconds detection = 1s;
  const char* survivors_say = "";            // a text that survivors print in addition to their error
  std::size_t invocations_told_again = 0;    // recorded by a survivor and another rank, at least
  const char* all_come_to_say = all_decide;  // text that all print if the victim was only paused
};

// The sender leads an edge. It offers, warms and reports to itself, which sends no messages, so it has no such steps.
const std::vector<campaign_part>& parts() {
  static const std::vector<campaign_part> all{
      {"pairs",
       1,
       "sender",
       {"start", "merged", "warm", "rehearsal", "trial", "decide", "decided", "after"},
       "inner 1->2",
       {2}},
      {"pairs",
       2,
       "receiver",
       {"start", "offer", "warmed", "rehearsal", "trial", "report", "decided", "after"},
       "inner 1->2",
       {1}},
      {"group",
       1,
       "leader",
       {"start", "merged", "warm", "rehearsal", "trial", "decide", "decided", "after"},
       "gradients",
       {2, 3}},
      {"group",
       3,
       "worker",
       {"start", "offer", "warmed", "rehearsal", "trial", "report", "decided", "after"},
       "gradients",
       {1, 2}},
      // Ops without headers: trials, which are leased calls, and rehearsals.
      {"leased",
       1,
       "leader",
       {"start", "merged", "warm", "prepare", "schedule", "trial", "decide", "decided", "after"},
       "gradients",
       {2, 3}},
      {"leased",
       3,
       "member",
       {"start", "offer", "warmed", "promise", "trial", "report", "decided", "after"},
       "gradients",
       {1, 2}},
      {"rehearsed", 1, "leader", {"rehearsal", "prepare", "schedule"}, "gradients", {2, 3}},
      {"rehearsed", 3, "member", {"rehearsal", "report", "promise"}, "gradients", {1, 2}},
  };
  return all;
}

// Faults inside calls of ops of all ranks (exchanges.hpp).
const std::vector<campaign_part>& calls() {
  static const std::vector<campaign_part> all{
      {"rims", 2, "neighbour", {"begun", "midst"}, "rims", {0, 1, 3}, 1s, "", 20, "fine on rank"},
      {"attention", 1, "member", {"begun", "midst"}, "attention", {0, 2, 3}, 1s, "", 20, "fine on rank"},
      {"two_levels", 2, "leader", {"begun", "midst"}, "gradients", {0, 1, 3}, 1s, "", 20, "fine on rank"},
      {"two_levels", 3, "worker", {"begun"}, "gradients", {0, 1, 2}, 1s, "", 20, "fine on rank"},
      {"training", 1, "stage", {"begun", "midst"}, "training", {0, 2, 3}, 1s, "", 20, "fine on rank"},
      {"batches", 2, "neighbour", {"begun", "midst"}, "pairs", {0, 1, 3}, 1s, "", 20, "fine on rank"},
      {"one_group", 2, "worker", {"begun"}, "gradients", {0, 1, 3}, 1s, "", 20, "fine on rank"},
      {"stages", 1, "stage", {"begun", "midst"}, "layers", {0, 2, 3}, 1s, "", 20, "fine on rank"},
  };
  return all;
}

// Whether the survivor's error names the op, the dead rank and the survivor's own invocation. This must hold even if the dead rank had no
// part in that invocation: a rank that ends because of a death reports it, and when rank 0 is gone, a rank whose connection breaks
// without a goodbye blames rank 0.
bool blames(by_hand& job, const campaign_part& part, rank_id survivor) {
  const std::string who = fmt::format("parley: rank {}: peer_failed: ", survivor);
  const std::string gone = fmt::format("rank {} is gone", part.rank);
  return job[survivor].says({who.c_str(), part.op, gone.c_str(), "restart the job", "invocation "});
}

// The other ranks notice at most that the victim is late.
void run_paused(const campaign_part& part, const char* step) {
  by_hand job(part.scenario, 4,
              {{"PARLEY_DETECTION", detection_of_pauses},
               {"PARLEY_TEST_FAULT", fault_of("pause", step, part.rank)},
               {"PARLEY_TEST_CALLS", "200"}});
  process& victim = job[part.rank];
  REQUIRE_MESSAGE(job.until([&] { return victim.ended() || victim.stopped(); }), job.text());
  job.until([] { return false; }, pause_length);
  victim.signal(SIGCONT);
  const auto well = [&](rank_id r) { return job[r].says({part.all_come_to_say}); };
  const auto all_well = [&] { return well(part.rank) && std::all_of(part.others.begin(), part.others.end(), well); };
  CHECK_MESSAGE(job.until(all_well), job.text());
  for (rank_id r = 0; r < job.size(); ++r) job[r].close_input();
  CHECK_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
  for (rank_id r = 0; r < job.size(); ++r) {
    CHECK_MESSAGE(job[r].status() == 0, job.text());
    CHECK_FALSE_MESSAGE(job[r].says({"is gone"}), job.text());
    CHECK_FALSE_MESSAGE(job[r].says({"memory beside"}), job.text());
    CHECK_FALSE_MESSAGE(job[r].says({"something wrong"}), job.text());
  }
  const left_records left(job.records());
  left.check();
  CHECK_MESSAGE(left.told_again() > 0, job.text());
  const bool all_say_that = part.all_come_to_say == std::string_view(all_decide);
  if (all_say_that) CHECK_MESSAGE(left.decided_again() >= part.others.size(), job.text());
  CHECK(job.left_behind().empty());
}

void run_mortal(const campaign_part& part, std::string_view action, const char* step) {
  const bool stops = action == "stop";
  by_hand job(part.scenario, 4,
              {{"PARLEY_DETECTION", std::to_string(part.detection.count())},
               {"PARLEY_TEST_FAULT", fault_of(action, step, part.rank)}});
  process& victim = job[part.rank];
  REQUIRE_MESSAGE(job.until([&] { return victim.ended() || victim.stopped(); }), job.text());
  const parley::tests::fair_stopwatch since;
  if (!stops) CHECK_MESSAGE(victim.status() == status_after(action), job.text());
  for (const rank_id r : part.others) {
    CHECK_MESSAGE(job.until([&] { return job[r].ended(); }), job.text());
    CHECK_MESSAGE(since.took() < part.detection + leaving, job.text());
    CHECK_MESSAGE(job[r].status() == 1, job.text());
    CHECK_MESSAGE(blames(job, part, r), job.text());
    CHECK_MESSAGE(job[r].says({part.survivors_say}), job.text());
    CHECK_MESSAGE(job[r].has_left_record(), job.text());
    CHECK_FALSE_MESSAGE(job[r].says({"memory beside"}), job.text());
    CHECK_FALSE_MESSAGE(job[r].says({"something wrong"}), job.text());
  }
  if (stops) {
    victim.signal(SIGCONT);
    CHECK_MESSAGE(job.within(5s, [&] { return victim.ended(); }), job.text());
    const std::string who = fmt::format("parley: rank {}: fenced: ", part.rank);
    CHECK_MESSAGE(victim.says({who.c_str(), part.op, "declared it dead"}), job.text());
    CHECK(victim.status() == 1);
  }
  // Ranks that take no part have noticed nothing and run until their input ends.
  for (rank_id r = 0; r < job.size(); ++r) job[r].close_input();
  CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
  for (rank_id r = 0; r < job.size(); ++r) {
    const bool has_part = r == part.rank || std::count(part.others.begin(), part.others.end(), r) > 0;
    if (!has_part) CHECK_MESSAGE(job[r].status() == 0, job.text());
  }
  CHECK(victim.has_left_record() == stops);
  const left_records left(job.records());
  left.check();
  CHECK_MESSAGE(left.told_again() >= part.invocations_told_again, job.text());
  CHECK(job.left_behind().empty());
}

void run_one(const campaign_part& part, std::string_view action, const char* step) {
  INFO(fmt::format("{} {} {}:{}:{}", part.scenario, part.role, action, step, part.rank));
  const auto before = pages();
  if (action == "pause") {
    run_paused(part, step);
  } else {
    run_mortal(part, action, step);
  }
  check_no_pages_but(before);
}

// Faults of pairs that put and get (one_sided.hpp).
struct one_sided_part {
  const char* scenario;
  rank_id rank;
  std::vector<const char*> steps;
};
const std::vector<one_sided_part>& one_sided_parts() {
  static const std::vector<one_sided_part> all{
      {"puts", 1, {"holds_credit", "writes", "written", "fenced", "sent"}},
      {"puts", 2, {"gave_credit", "is_written", "landed", "received"}},
      {"lent_puts", 1, {"holds_credit", "writes", "written", "fenced", "sent"}},
      {"lent_puts", 2, {"gave_credit", "landed", "received"}},
      {"large_puts", 1, {"writes", "written", "fenced", "sent"}},
      {"large_puts", 2, {"is_written", "landed", "received"}},
      {"gets", 1, {"offers", "offered", "is_read", "sent"}},
      {"gets", 2, {"has_offer", "reads", "told", "received"}},
      {"lent_gets", 1, {"offers", "offered", "is_read", "sent"}},
      {"lent_gets", 2, {"has_offer", "reads", "told", "received"}},
  };
  return all;
}

void run_one_sided(const one_sided_part& part, std::string_view action, const char* step) {
  const bool stops = action == "stop";
  const bool pauses = action == "pause";
  const bool ends = !stops && !pauses;
  INFO(fmt::format("{} {}:{}:{}", part.scenario, action, step, part.rank));
  const std::chrono::seconds detection = pauses ? 4s : 1s;  // far longer than a pause
  by_hand job(part.scenario, 3,
              {{"PARLEY_DETECTION", std::to_string(detection.count())},
               {"PARLEY_TEST_FAULT", fault_of(action, step, part.rank)}});
  process& victim = job[part.rank];
  process& other = job[3 - part.rank];
  REQUIRE_MESSAGE(job.until([&] { return victim.ended() || victim.stopped(); }), job.text());
  const parley::tests::fair_stopwatch since;
  CHECK_MESSAGE(victim.stopped() == !ends, job.text());
  if (pauses) {
    victim.signal(SIGCONT);
    CHECK_MESSAGE(job.until([&] { return victim.says({"it is decided"}) && other.says({"it is decided"}); }),
                  job.text());
  } else {
    const std::string gone = fmt::format("rank {} is gone", part.rank);
    const auto says = [&] {
      return other.says({"it ended: peer_failed: activations 1->2", gone.c_str(), "restart the job", "invocation "});
    };
    CHECK_MESSAGE(job.until(says), job.text());
    CHECK_MESSAGE(since.took() < detection + leaving, job.text());
  }
  if (stops) {
    victim.signal(SIGCONT);
    const auto fenced = [&] { return victim.says({"it ended: fenced: activations 1->2", "declared it dead"}); };
    CHECK_MESSAGE(job.within(5s, fenced), job.text());
  }
  for (rank_id r = 0; r < job.size(); ++r) job[r].close_input();
  CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
  CHECK_MESSAGE(job[0].status() == 0, job.text());
  CHECK_MESSAGE(other.status() == (pauses ? 0 : 1), job.text());
  CHECK_MESSAGE(victim.status() == (stops ? 1 : status_after(action)), job.text());
  for (const process* p : {&victim, &other}) {
    CHECK_FALSE_MESSAGE(p->says({"memory beside"}), job.text());
    CHECK_FALSE_MESSAGE(p->says({"is not what was sent"}), job.text());
    CHECK_FALSE_MESSAGE(p->says({"may still be written"}), job.text());
    const bool failed = stops || (ends && p == &other);
    CHECK_MESSAGE(p->says({"nothing was written afterwards"}) == failed, job.text());
  }
  const left_records left(job.records());
  left.check();
  if (!ends) CHECK_MESSAGE(left.told_again() > 0, job.text());
  CHECK(job.left_behind().empty());
}

}  // namespace

TEST_CASE("a rank that is killed or stopped at one step of a campaign ends its op for the others, whatever its role") {
  run_one(parts()[0], "stop", "warm");
  run_one(parts()[1], "kill", "report");
  run_one(parts()[1], "stop", "trial");
  run_one(parts()[2], "kill", "trial");
  run_one(parts()[2], "stop", "decide");
  run_one(parts()[3], "stop", "offer");
}

TEST_CASE("a rank that leaves without a goodbye, even with status 0, ends its op for the others like a killed rank") {
  run_one(parts()[1], "exit", "trial");
  run_one(parts()[2], "exit", "warm");
  run_one(parts()[5], "exit", "promise");
  run_one(calls()[1], "exit", "midst");
  run_one_sided(one_sided_parts()[0], "exit", "fenced");
}

TEST_CASE("the others wait for a rank that is stopped for less than the detection time, and all ranks succeed") {
  run_one(parts()[0], "pause", "decide");
  run_one(parts()[3], "pause", "warmed");
  run_one(parts()[5], "pause", "trial");
  run_one(parts()[6], "pause", "rehearsal");
  run_one(calls()[0], "pause", "midst");
}

TEST_CASE("when a member of an op without headers is killed or stopped, the calls of the others end, also at gates") {
  run_one(parts()[4], "kill", "prepare");
  run_one(parts()[4], "stop", "trial");
  // Detection takes 3 s here, because the coordinator checks once a second whether the budget allows trials.
  const campaign_part gated{"gated", 3, "member", {}, "gradients", {1, 2}, 3s, "gates met 1"};
  run_one(gated, "stop", "asked");
  run_one(parts()[5], "stop", "warmed");
  run_one(parts()[5], "kill", "decided");
  run_one(parts()[6], "stop", "rehearsal");
  run_one(parts()[7], "kill", "rehearsal");
}

TEST_CASE("a rank that is killed or stopped in the midst of an exchange ends the calls of all others") {
  run_one(calls()[0], "kill", "midst");
  run_one(calls()[0], "stop", "begun");
  run_one(calls()[1], "kill", "midst");
  run_one(calls()[1], "stop", "midst");
  run_one(calls()[2], "kill", "midst");
  run_one(calls()[3], "stop", "begun");
  run_one(calls()[4], "kill", "midst");
  run_one(calls()[5], "kill", "midst");
  run_one(calls()[6], "kill", "begun");
  run_one(calls()[7], "kill", "midst");
}

TEST_CASE("a rank that is killed, stopped or resumed in the midst of a put or a get leaves its peer an error and its "
          "memory") {
  run_one_sided(one_sided_parts()[0], "stop", "writes");
  run_one_sided(one_sided_parts()[1], "kill", "landed");
  run_one_sided(one_sided_parts()[2], "kill", "fenced");
  run_one_sided(one_sided_parts()[4], "pause", "fenced");
  run_one_sided(one_sided_parts()[5], "stop", "is_written");
  run_one_sided(one_sided_parts()[6], "kill", "is_read");
  run_one_sided(one_sided_parts()[7], "stop", "reads");
}

TEST_CASE("S2 finds ranks that ran another config than their leader stamped, in the records of real processes") {
  for (const bool broken : {false, true}) {
    CAPTURE(broken);
    by_hand job("pairs", 4, {{"PARLEY_TEST_MUTANT", broken ? "ignores_stamp" : ""}});
    const auto settled = [&] { return job[1].says({"it is decided"}) || job[1].ended(); };
    CHECK_MESSAGE(job.until(settled), job.text());
    for (rank_id r = 0; r < job.size(); ++r) job[r].close_input();
    CHECK_MESSAGE(job.within(10s, [&] { return job.all_ended(); }), job.text());
    const left_records left(job.records());
    CHECK(left.told_again() > 0);
    const auto found = left.violations();
    CHECK(found.empty() == !broken);
    for (const auto& v : found) CHECK_MESSAGE(v.invariant == "S2", v.text);
  }
}

TEST_CASE("the records of real ranks are enough to find violations of S3 to S6 and of agreement") {
  by_hand job("summing", 3, {{"PARLEY_TEST_MS", "60000"}});
  REQUIRE_MESSAGE(job.until([&] { return job.all_ended(); }), job.text());
  const left_records left(job.records());
  left.check();
  const auto is_named = [&left](std::string_view invariant, auto breaks) {
    run_record broken = left.all();
    breaks(broken);
    const auto found = check_flights(broken);
    return std::any_of(found.begin(), found.end(), [&](const auto& v) { return v.invariant == invariant; });
  };
  CHECK(is_named("S3", [](run_record& r) { r.participants.back().ready.clear(); }));
  CHECK(is_named("S4", [](run_record& r) {
    for (auto& p : r.participants) p.candidates = {1};
  }));
  CHECK(is_named("S5", [](run_record& r) { r.participants.pop_back(); }));
  constexpr unsigned timed = 1;
  CHECK(is_named("S6", [](run_record& r) {
    std::erase_if(r.flights, [](const parley::simulation::flight_view& f) {
      return f.rank == 2 && (f.record.flags & timed) != 0;
    });
  }));
  REQUIRE(left.decided_again() > 0);
  CHECK(is_named("agreement", [](run_record& r) {
    for (auto& d : r.participants.back().decisions) ++d.digest;
  }));
}

TEST_CASE("a rank that is lost or late at any step of a campaign ends its op for the others, or holds it up, whatever "
          "its role" *
          doctest::skip(times_over() == 0)) {
  run_all(parts(), {"kill", "exit", "stop", "pause"}, run_one);
}

TEST_CASE("a rank that is lost or late at any step of an exchange ends the calls of all others, or holds them up" *
          doctest::skip(times_over() == 0)) {
  run_all(calls(), {"kill", "exit", "stop", "pause"}, run_one);
}

TEST_CASE("a rank that is lost or late at any step of a put or a get leaves its peer its memory, and an error or all "
          "that was sent" *
          doctest::skip(times_over() == 0)) {
  run_all(one_sided_parts(), {"kill", "exit", "stop", "pause"}, run_one_sided);
}
