// Death notices, by which ranks tell ranks of other hosts of a death on their own host: which ranks get a notice, and which notices they
// believe.
#include <parley/ops/job/death_notices.hpp>

#include <parley/tests/support/memory_link.hpp>

#include <parley/runtime/coroutines/run.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/runtime/wire/incarnations.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace parley;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

using heard = std::vector<std::pair<rank_id, std::string>>;

/// Ranks 0 and 1 on one host, 2 to 4 on another one.
struct two_hosts {
  static constexpr rank_id ranks = 5;
  explicit two_hosts(std::uint32_t window = 64) : links(clock, ranks, {}), heard_on(ranks) {
    for (rank_id r = 0; r < ranks; ++r) {
      transports::member m;
      m.rank = r;
      m.host = r < 2 ? 7 : 8;
      m.incarnation = incarnation_of(100 + r, 0);
      members.push_back(m);
      newest.push_back(m.incarnation);
    }
    for (rank_id r = 0; r < ranks; ++r) {
      mail.push_back(std::make_unique<router>(clock, links[r], router::options{.window = window}));
      notices.push_back(std::make_unique<death_notices>(
          clock, *mail[r], members, r, [this](rank_id place) { return newest.at(place); },
          [this, r](rank_id dead, const std::string& why) { heard_on[r].emplace_back(dead, why); }));
    }
  }
  void pass(time_ns span) { clock.advance_to(clock.deadline_in(span)); }
  void settle() {
    for (int i = 0; i < 200; ++i) {
      pass(1'000'000);
      while (clock.ready() || clock.next_timer() <= clock.now()) clock.turn();
    }
  }
  virtual_time clock;
  memory_world links;
  std::vector<transports::member> members;
  std::vector<std::uint64_t> newest;  // of each rank: the newest incarnation that all have heard of
  std::vector<heard> heard_on;
  std::vector<std::unique_ptr<router>> mail;
  std::vector<std::unique_ptr<death_notices>> notices;
};

}  // namespace

TEST_CASE(
    "a rank reports a death to each rank of other hosts once, and reports the death of a replacement process again") {
  two_hosts w;
  for (int i = 0; i < 2; ++i) w.notices[3]->tell(2, "rank 2 was stopped");
  w.settle();
  for (const rank_id r : {0U, 1U}) CHECK(w.heard_on[r] == heard{{2, "rank 2 was stopped"}});
  for (const rank_id r : {2U, 3U, 4U}) CHECK(w.heard_on[r].empty());
  w.members[2].incarnation = w.newest[2] = incarnation_of(7, 1);
  w.notices[3]->tell(2, "and again");
  w.settle();
  CHECK(w.heard_on[0] == heard{{2, "rank 2 was stopped"}, {2, "and again"}});
}

TEST_CASE("a rank believes a notice only from a rank of the dead rank's host, about another rank's current process") {
  two_hosts w;
  const auto says = [&](rank_id from, rank_id to, rank_id dead, std::uint64_t incarnation) {
    death_notice m;
    m.rank = dead;
    m.incarnation = incarnation;
    m.why = "it says so";
    CHECK(w.mail[from]->send(to, 0x6465617468, 0, m) == errc::none);
    w.settle();
    return std::exchange(w.heard_on[to], {}).size();
  };
  const auto now = [&](rank_id r) { return w.members[r].incarnation; };
  CHECK(says(3, 0, 2, now(2)) == 1);
  CHECK(says(3, 1, 2, now(2)) == 1);
  CHECK(says(1, 0, 2, now(2)) == 0);  // rank 1 is not on rank 2's host
  CHECK(says(3, 4, 2, now(2)) == 0);  // rank 4 has rank 2's heartbeat page
  CHECK(says(3, 0, 3, now(3)) == 0);
  CHECK(says(3, 0, 1, now(1)) == 0);
  CHECK(says(3, 0, 2, now(2) + 1) == 0);
  CHECK(says(3, 0, 99, 0) == 0);
}

TEST_CASE("once a rank has heard of a newer process, it ignores notices about the old one and believes those about the "
          "new one") {
  two_hosts w;
  w.notices[3]->tell(2, "rank 2 was stopped");
  w.newest[2] = incarnation_of(7, 1);  // rank 0 hears of it before the notice
  w.settle();
  CHECK(w.heard_on[0].empty());
  w.members[2].incarnation = w.newest[2];  // rank 4 has accepted the new process
  w.notices[4]->tell(2, "that one, too");
  w.settle();
  CHECK(w.heard_on[0] == heard{{2, "that one, too"}});
}

TEST_CASE("a notice that a full window holds back is sent when there is room again") {
  two_hosts w(2);
  bool busy = true;
  w.mail[0]->bind_raw(9, router::type_bit(1),
                      [&](envelope, std::span<const std::byte>) { return busy ? errc::full : errc::none; });
  for (int i = 0; i < 2; ++i) REQUIRE(w.mail[3]->send_raw(0, 9, 0, 1, {}) == errc::none);
  REQUIRE(w.mail[3]->send_raw(0, 9, 0, 1, {}) == errc::full);
  w.notices[3]->tell(2, "rank 2 was stopped");
  w.settle();
  CHECK(w.heard_on[0].empty());
  CHECK(w.heard_on[1].size() == 1);
  busy = false;
  w.settle();
  CHECK(w.heard_on[0].size() == 1);
  CHECK(w.heard_on[1].size() == 1);
}
