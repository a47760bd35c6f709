// Exceptions in the actors of an op: the actors try again, or the op's tuning ends with a warning. Calls are not affected.
#include <parley/tests/support/transfers.hpp>
#include <parley/tests/support/warnings.hpp>

#include <doctest/doctest.h>

#include <stdexcept>
#include <string>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr rank_id leader = 0;    // the coordinator's rank
constexpr rank_id follower = 1;  // its participant has its leader on the other rank

/// An edge on which `left` control messages from `who` to the other rank fail: the link throws instead of sending them.
struct fragile_world {
  explicit fragile_world(rank_id who, int times) : left(times) {
    memory_link_options o;
    o.lose = [this, who](rank_id from, rank_id to, link::channel on) {
      if (on != link::channel::control || from != who || to == who || left == 0) return false;
      --left;
      throw std::runtime_error("the link is out of order");
    };
    rank_settings s;
    s.plan.budget_fraction = 1e9;
    job.emplace(2, s, std::move(o));
    out = transfer((*job)[0], pair_of({direct(), chunked(8_KiB, 2)}));
    in = transfer((*job)[1], pair_of({direct(), chunked(8_KiB, 2)}));
  }
  call_outcomes move(std::size_t calls) {
    auto all = move_each(*job, out, in, std::vector<std::size_t>(calls, 20'000));
    pass(*job, 20'000'000'000);
    return all;
  }
  const actors::search& search() { return *(*job)[0].agreements()[0].assigned->searches().at(0); }
  std::uint64_t said() { return (*job)[0].mail().statistics().sent + (*job)[1].mail().statistics().sent; }
  int left;
  std::optional<world> job;
  transfer out, in;
};

}  // namespace

TEST_CASE("an actor that throws tries again from the op's state: on either end, while joining and later") {
  for (const rank_id who : {leader, follower}) {
    for (const bool joining : {true, false}) {
      CAPTURE(who);
      CAPTURE(joining);
      fragile_world w(who, joining ? 3 : 0);
      pass(*w.job, 30'000'000'000);
      if (!joining) w.left = 1;  // only one, because a second exception could hit a flow-control message
      CHECK(w.move(300).failed() == 0);
      const auto all = w.move(300);
      CHECK(w.left == 0);
      CHECK(all.failed() == 0);
      CHECK(all.wrong == 0);
      CHECK((*w.job)[0].agreements()[0].assigned->candidates().size() == 2);
      CHECK(w.search().is_decided());
      CHECK(w.search().chosen().source == actors::decision_source::trials);
      CHECK((*w.job)[1].decisions().size() == 1);
      CHECK((*w.job)[who].warnings().size() == 1);
      CHECK(warned((*w.job)[who], {"the link is out of order; "}));
    }
  }
}

TEST_CASE(
    "an actor that throws repeatedly ends the tuning of its op, with the reason on both ends; then no rank sends") {
  for (const rank_id who : {leader, follower}) {
    CAPTURE(who);
    fragile_world w(who, 6);
    pass(*w.job, 100'000'000'000);
    CHECK(w.left == 0);
    const auto all = w.move(100);
    CHECK(all.failed() == 0);
    CHECK(all.wrong == 0);
    CHECK(w.search().is_decided());
    CHECK(w.search().chosen().config == "direct");
    CHECK(w.search().chosen().source == actors::decision_source::tuning_off);
    CHECK(w.search().chosen().why.find("the link is out of order") != std::string::npos);
    REQUIRE((*w.job)[1].decisions().size() == 1);
    CHECK((*w.job)[1].decisions()[0].decision.why == w.search().chosen().why);
    CHECK(warned((*w.job)[who], {"tuning of the op has ended"}));
    const std::uint64_t before = w.said();
    pass(*w.job, 1'000'000'000'000);
    CHECK(w.said() == before);
  }
}
