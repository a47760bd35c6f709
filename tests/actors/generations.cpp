// Which data an edge takes, keeps and drops when there are several generations of its op.
#include "../support/edges.hpp"

#include <parley/actors/generations.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::tests;
using actors::generations;
using runtime::errc;

TEST_CASE("a generation is current, then ended, and after many others unknown") {
  generations all(1);
  CHECK(all.judge(1) == generations::verdict::current);
  CHECK(all.judge(2) == generations::verdict::unknown);
  all.enter(2);
  CHECK(all.judge(1) == generations::verdict::ended);
  CHECK(all.judge(2) == generations::verdict::current);
  for (std::uint64_t next = 3; next < 3 + generations::most_ended; ++next) all.enter(next);
  CHECK(all.judge(1) == generations::verdict::unknown);
  CHECK(all.judge(2) == generations::verdict::ended);
}

TEST_CASE("data of a generation that is not known yet waits for it, outside of this one") {
  edge_pair e;
  watched_receive r{std::vector<std::byte>(8), {}, {}};
  runtime::scope s(e.clock);
  s.spawn(receive_whole(e.in, 0, r));
  auto other = e.stamp(0, 8);
  other.generation = edge_pair::generation + 1;
  const auto part = pattern(8, 3);
  e.inject(other, part);
  e.pass();
  CHECK(!r.ended);
  CHECK(e.in.statistics().unjoined == 1);
  CHECK(e.in.statistics().dropped == 0);
  auto kept = e.in.retire();
  REQUIRE(kept.size() == 1);
  CHECK(std::equal(part.begin(), part.end(), kept[0].payload().begin(), kept[0].payload().end()));
  kept.clear();
  s.cancel();
  e.pass();
}

TEST_CASE("a sender ends when its receiver says that its generation has, and on no other word") {
  edge_pair e;
  int told = 0;
  e.out.on_ended([&] { ++told; });
  const auto say = [&](std::uint64_t generation) {
    static_cast<void>(e.receiving.shared.mail.send(0, actors::number_of(e.op.id(), actors::part::data_sender),
                                                   generation, actors::gen_end{}));
    e.pass();
  };
  say(edge_pair::generation - 1);
  CHECK(told == 0);
  say(edge_pair::generation);
  CHECK(told == 1);
}

TEST_CASE("what another generation says was matched opens no window") {
  edge_pair e;
  watched_send w;
  runtime::scope s(e.clock);
  const auto data = pattern(8, 1);
  s.spawn(send_whole(e, 0, data, w));
  e.pass();
  actors::matched m;
  m.what = actors::matched::kind::report;
  m.count = 1;
  const auto say = [&](std::uint64_t generation) {
    static_cast<void>(
        e.receiving.shared.mail.send(0, actors::number_of(e.op.id(), actors::part::data_sender), generation, m));
    e.pass();
  };
  say(edge_pair::generation + 1);
  CHECK(!e.out.all_matched());
  say(edge_pair::generation);
  CHECK(e.out.all_matched());
}

TEST_CASE("a router takes the frames of a new process, and of no other, once it has forgotten the old one") {
  runtime::virtual_time clock;
  memory_world links(clock, 2);
  std::vector<std::uint64_t> incarnations{5, 6};
  runtime::router here(clock, links[0], {}, incarnations);
  std::optional<runtime::router> there(std::in_place, clock, links[1], runtime::router::options{}, incarnations);
  int got = 0;
  here.bind<actors::gen_end>(7, [&](runtime::envelope, actors::gen_end&&) {
    ++got;
    return errc::none;
  });
  const auto say = [&] {
    CHECK(there->send(0, 7, 0, actors::gen_end{}) == errc::none);
    bool over = false;
    runtime::scope s(clock);
    s.spawn(edge_pair::sleep(clock.now() + 100'000, over));
    runtime::run_until(clock, [&] { return over; });
  };
  for (int i = 0; i < 200; ++i) say();
  CHECK(got == 200);
  incarnations[1] = 7;
  there.emplace(clock, links[1], runtime::router::options{}, incarnations);
  say();
  CHECK(got == 200);  // nobody here knows of it yet
  CHECK(here.statistics().foreign == 1);
  here.forget(1, 7);
  say();
  CHECK(got == 201);
}
