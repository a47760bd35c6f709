// Which data an edge accepts, keeps and drops when its op has several generations.
#include <parley/tests/support/edges.hpp>

#include <parley/actors/generations.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::tests;
using actors::generation_of;
using actors::generation_verdict;
using actors::judge;
using runtime::errc;

TEST_CASE("a generation that counts more restarts is to come, and any other different generation has ended") {
  const std::uint64_t mine = generation_of(0x123, 7);
  CHECK(judge(mine, mine) == generation_verdict::current);
  CHECK(judge(generation_of(0x123, 8), mine) == generation_verdict::to_come);
  CHECK(judge(generation_of(0x99, 8), mine) == generation_verdict::to_come);
  CHECK(judge(generation_of(0x123, 6), mine) == generation_verdict::ended);
  // the same number of restarts, but of other ranks: the sender's generation lacks a restart that we know of
  CHECK(judge(generation_of(0x99, 7), mine) == generation_verdict::ended);
  CHECK(judge(generation_of(1, 0), generation_of(1, 0xffff)) == generation_verdict::to_come);
  CHECK(judge(generation_of(1, 0xffff), generation_of(1, 0)) == generation_verdict::ended);
}

TEST_CASE("a generation counts the restarts of its participants and of the ranks that are coupled with them") {
  const auto op = actors::declare_edge("activations", 0, 1, "");
  runtime::incarnations all(std::vector<std::uint64_t>{11, 12, 13});
  const auto restarts = [&](const std::vector<runtime::rank_id>& coupled) {
    return actors::first_generation(op, all, coupled) >> actors::generation_hash_bits;
  };
  const std::uint64_t first = actors::first_generation(op, all);
  // a list of all ranks gives the same generation as no list
  CHECK(actors::first_generation(op, all, {0, 1, 2}) == first);
  all.replace(2, runtime::incarnation_of(14, 2));
  CHECK(actors::first_generation(op, all) == first);
  CHECK(actors::first_generation(op, all, {0, 1, 2}) != first);
  CHECK(restarts({0, 1, 2}) == 2);
  all.replace(0, runtime::incarnation_of(15, 1));
  CHECK(restarts({}) == 1);
  CHECK(restarts({0, 1, 2}) == 3);
}

TEST_CASE(
    "data of a generation that is not known yet is kept for that generation and not received in the current one") {
  edge_pair e;
  watched_receive r{std::vector<std::byte>(8), {}, {}};
  runtime::scope s(e.clock);
  s.spawn(receive_whole(e.in, 0, r));
  auto other = e.stamp(0, 8);
  other.generation = edge_pair::generation + generation_of(0, 1);
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

TEST_CASE(
    "a sender ends when its receiver says that the sender's generation has ended, and not for another generation") {
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

TEST_CASE("a report of matched messages from another generation opens no window") {
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

TEST_CASE("a router accepts the frames of a new process only after it has forgotten the old process") {
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
    s.spawn(edge_pair::sleep(clock.deadline_in(100'000), over));
    runtime::run_until(clock, [&] { return over; });
  };
  for (int i = 0; i < 200; ++i) say();
  CHECK(got == 200);
  incarnations[1] = 7;
  there.emplace(clock, links[1], runtime::router::options{}, incarnations);
  say();
  CHECK(got == 200);  // this rank does not know of the new process yet
  CHECK(here.statistics().foreign == 1);
  here.forget(1, 7);
  say();
  CHECK(got == 201);
}
