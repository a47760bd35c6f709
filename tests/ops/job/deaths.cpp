// A rank of each op dies at any moment of its calls. Each other rank's call ends in bounded time, with an error that names the op, the
// call, the rank and the dead rank. Nothing is written outside a call's own buffers, or to them after the call has ended.
#include <parley/tests/support/cases/op_cases.hpp>
#include <parley/tests/support/errors.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::op_cases;

namespace {

constexpr time_ns detection_ns = 1'000'000;
constexpr time_ns leaving_ns = 100'000;

/// Makes calls until one fails.
struct caller {
  std::size_t calls = 0;
  std::size_t wrong = 0;
  std::optional<error> why;
  bool has_told = false;
  time_ns ended_ns = 0;
  std::vector<std::vector<std::byte>> left{};  // the rank's memory when its last call had ended

  static task<> call(op_case* op, rank_id r, caller* mine) {
    std::exception_ptr thrown;
    try {
      for (;; ++mine->calls) {
        co_await op->call(r);
        mine->wrong += op->right(r) ? 0 : 1;
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    mine->ended_ns = op->w->clock.now();
    mine->why = describe(thrown);
    mine->left = op->at[r].contents();
  }
};

enum class noticed : std::uint8_t { by_transports, by_silence };

template <class Op>
struct job {
  explicit job(rank_id dies, memory_link_options wires = {})
      : victim(dies), lends(wires.takes_back), w(ranks, {}, std::move(wires)) {
    for (rank_id r = 0; r < ranks; ++r) op.declare(r);
    for (rank_id r = 0; r < ranks; ++r) {
      programs[r].emplace(w.clock);
      programs[r]->spawn(caller::call(&op, r, &callers[r]));
    }
  }
  ~job() {
    for (auto& p : programs) p.reset();  // programs end before their ranks
  }

  void kill(noticed how) {
    if (how == noticed::by_silence) {
      w.links.options().lose = [dead = victim](rank_id from, rank_id to, link::channel) {
        return from == dead || to == dead;
      };
    }
    w.links.options().takes_back = false;  // a killed process takes no payload back
    programs[victim].reset();
    w.ranks[victim].reset();
    w.links.options().takes_back = lends;
    if (how == noticed::by_transports) w.links.end_process(victim);
    died_ns = w.clock.now();
  }
  /// Tells the other ranks of the death, as a job does. Each rank whose call fails tells the others why, and leaves.
  void tell() {
    wait_a_while(w, detection_ns);
    w.links.end_process(victim);
    others_leave("it was killed");
  }
  void others_leave(const char* because) {
    tell_of(victim, because, departure::died);
    const time_ns limit = w.clock.deadline_in(100'000'000);
    for (std::size_t gone = 1; gone < ranks && w.clock.now() < limit; wait_a_while(w, 10'000)) {
      for (rank_id r = 0; r < ranks; ++r) {
        if (r == victim) continue;
        caller& mine = callers[r];
        if (mine.why && !std::exchange(mine.has_told, true)) tell_ended(r);
        if (!mine.why || !w.ranks[r] || w.clock.now() < mine.ended_ns + leaving_ns) continue;
        w.ranks[r].reset();
        w.links.end_process(r);
        ++gone;
      }
    }
    wait_a_while(w, 50'000'000);  // for messages in flight
  }
  void tell_of(rank_id lost, const std::string& why, departure how) {
    for (rank_id r = 0; r < ranks; ++r) {
      if (r != lost && w.ranks[r]) w[r].on_lost(lost, why, how);
    }
  }
  void tell_ended(rank_id ended) {
    const root_cause cause = w[ended].cause_of(*callers[ended].why);
    for (rank_id r = 0; r < ranks; ++r) {
      if (r != ended && w.ranks[r]) w[r].on_ended(ended, cause);
    }
  }

  rank_id victim;
  bool lends;
  world w;
  Op op{w};
  std::array<caller, ranks> callers;
  std::array<std::optional<scope>, ranks> programs;
  time_ns died_ns = 0;
};

template <class Op>
void die_and_see(rank_id victim, time_ns when, noticed how, bool lends) {
  CAPTURE(lends);
  CAPTURE(static_cast<int>(how));
  CAPTURE(victim);
  CAPTURE(when);
  memory_link_options wires;
  wires.takes_back = lends;
  job<Op> all(victim, std::move(wires));
  wait_a_while(all.w, when);
  for (const caller& c : all.callers) REQUIRE_MESSAGE(!c.why, c.why->what());
  all.kill(how);
  all.tell();
  for (rank_id r = 0; r < ranks; ++r) {
    if (r == victim) continue;
    CAPTURE(r);
    const caller& mine = all.callers[r];
    CHECK(mine.wrong == 0);
    CHECK(all.op.at[r].clean());
    CHECK(all.op.of_op[r].clean());
    REQUIRE(mine.why);
    CHECK(is(*mine.why, {.code = errc::peer_failed, .rank = r, .culprit = victim, .quotes = all.op.name()}));
    CHECK((mine.why->about().invocation || mine.why->about().tag));
    CHECK(mine.ended_ns - all.died_ns < 2 * detection_ns);
    CHECK(mine.left == all.op.at[r].contents());
  }
}

/// The victim was only stopped. When it goes on, the others have given it up and left, and its heartbeat has not told it yet.
template <class Op>
void come_back_and_see(rank_id victim, time_ns when) {
  CAPTURE(victim);
  CAPTURE(when);
  job<Op> all(victim);
  wait_a_while(all.w, when);
  const std::string because = "it was not heard for 2 s";
  all.w.held_dead[victim] = because;
  all.others_leave("it was stopped");
  const caller& mine = all.callers[victim];
  REQUIRE(mine.why);
  for (const std::string& words : {because, std::string(all.op.name())})
    CHECK(is(*mine.why, {.code = errc::fenced, .quotes = words}));
}

}  // namespace

TEST_CASE_TEMPLATE("when a rank dies during an op, the calls of all others end in time with its name, and write only "
                   "their own buffers",
                   Op, batches, one_group, two_levels, stages, rims, turning, passes) {
  for (rank_id victim = 0; victim < ranks; ++victim) {
    for (const time_ns when : {1'000, 23'000, 140'000, 410'000})
      for (const noticed how : {noticed::by_transports, noticed::by_silence})
        for (const bool lends : {false, true}) die_and_see<Op>(victim, when, how, lends);
  }
}

TEST_CASE_TEMPLATE(
    "a rank that resumes after the others have left gets `fenced` with the reason, not the news that they are gone", Op,
    batches, one_group, two_levels, stages, rims, turning, passes) {
  for (rank_id victim = 0; victim < ranks; ++victim) {
    for (const time_ns when : {23'000, 410'000}) come_back_and_see<Op>(victim, when);
  }
}
