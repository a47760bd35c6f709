#include <parley/schedule.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace parley::ops;
using parley::runtime::errc;
using parley::runtime::failure;

namespace {
std::string refused(std::string_view text) {
  const auto parsed = parse_schedule(text);
  return parsed ? "" : parsed.reason().what();
}
}  // namespace

TEST_CASE("schedules have the known makespans, idle shares, live microbatches and messages") {
  struct row {
    std::uint32_t ranks, microbatches;
    double plain, idle;
    std::vector<std::pair<std::uint32_t, double>> interleaved;
    std::vector<std::uint32_t> alive;
    std::vector<std::uint64_t> messages;
  };
  const std::vector<row> rows{{2, 8, 27, 0.111, {{2, 25.5}, {4, 24.75}}, {2, 1}, {16, 48, 112}},
                              {3, 8, 30, 0.2, {}, {3, 2, 1}, {32}},
                              {4, 8, 33, 0.273, {{2, 28.5}, {4, 26.25}}, {4, 3, 2, 1}, {48, 112, 240}},
                              {4, 16, 57, 0.158, {{2, 52.5}, {4, 50.25}}, {4, 3, 2, 1}, {96, 224, 480}}};
  for (const row& r : rows) {
    const auto plain = one_forward_one_backward(r.ranks, r.microbatches);
    REQUIRE(check(plain));
    const auto e = estimate(plain);
    CHECK(e.makespan == r.plain);
    CHECK(e.idle_share == doctest::Approx(r.idle).epsilon(0.005));
    CHECK(e.idle_share == doctest::Approx((r.ranks - 1.0) / (r.microbatches + r.ranks - 1.0)));
    CHECK(e.alive == r.alive);
    CHECK(plain.messages() == r.messages[0]);
    std::size_t column = 1;
    for (const auto& [chunks, makespan] : r.interleaved) {
      const auto s = interleaved(r.ranks, r.microbatches, chunks);
      REQUIRE(check(s));
      const auto i = estimate(s, {1.0 / chunks, 2.0 / chunks});
      CHECK(i.makespan == doctest::Approx(makespan).epsilon(1e-12));
      CHECK(i.idle_share == doctest::Approx((r.ranks - 1.0) / (chunks * r.microbatches + r.ranks - 1.0)));
      CHECK(s.messages() == r.messages[column++]);
    }
    const auto all_first = gpipe(r.ranks, r.microbatches);
    REQUIRE(check(all_first));
    CHECK(estimate(all_first).makespan == r.plain);
    CHECK(estimate(all_first).alive == std::vector<std::uint32_t>(r.ranks, r.microbatches));
  }
}

TEST_CASE("a schedule for a single rank is valid and has no idle time") {
  const auto s = one_forward_one_backward(1, 3);
  CHECK(text_of(s) == "0F0, 0B0, 0F1, 0B1, 0F2, 0B2\n");
  CHECK(estimate(s).idle_share == 0);
  CHECK(check(interleaved(1, 2, 3)));
}

TEST_CASE("a schedule survives conversion to text and back, and parsing adds messages where none are listed") {
  for (const auto& s : {gpipe(3, 4), one_forward_one_backward(4, 8), interleaved(2, 4, 3)}) {
    const auto again = parse_schedule(text_of(s));
    REQUIRE(again);
    CHECK(again->ranks == s.ranks);
    CHECK(again->stages == s.stages);
    CHECK(again->microbatches == s.microbatches);
  }
  const auto own = parse_schedule("0F0, 0F1, 0B0, 0B1\n1F0, 1B0, 1F1, 1B1\n");
  REQUIRE(own);
  CHECK(text_of(*own) == "0F0, 0SEND_F0, 0RECV_B0, 0F1, 0SEND_F1, 0RECV_B1, 0B0, 0B1\n"
                         "1RECV_F0, 1F0, 1RECV_F1, 1B0, 1SEND_B0, 1F1, 1B1, 1SEND_B1\n");
}

TEST_CASE("a wrong schedule is refused with its fault before it runs") {
  CHECK(refused("") == "malformed: schedule:1:1: it has no action");
  CHECK(
      refused("0F0, 0X1\n") ==
      "malformed: schedule:1:6: \"0X1\" is not an action; write a stage, F, B, SEND_F, RECV_F, SEND_B or RECV_B, and a "
      "microbatch, such as 0F0");
  CHECK(refused("0F0 0B0x\n").find("schedule:1:8: a comma belongs between two actions") != std::string::npos);
  CHECK(refused("0F0,0B0\n1F0\n") == "bad_argument: schedule: 1B0 is missing");
  CHECK(refused("0F0,0SEND_F0,0B0\n1F0,1B0\n") ==
        "bad_argument: schedule: 0RECV_B0 is missing; if messages are listed, all of them must be");
  CHECK(refused("0F0,0B0,0F0\n") == "bad_argument: schedule: 0F0 on rank 0 is listed twice");
  CHECK(refused("0F0,0B0,1F0,1B0\n1F0\n") == "bad_argument: schedule: 1RECV_F0 on rank 1: that stage is on rank 0");
  CHECK(refused("0F0,0B0,0SEND_F0\n") == "bad_argument: schedule: 0SEND_F0 on rank 0 crosses no boundary");
  CHECK(refused("0F0,0F1,0B0,0B1\n1F1,1F0,1B0,1B1\n") ==
        "bad_argument: schedule: activations between stages 0 and 1 are sent in another order than they are received");
  CHECK(refused("0RECV_B0,0B0,0F0,0SEND_F0\n1RECV_F0,1F0,1B0,1SEND_B0\n") ==
        "bad_argument: schedule: it can never end: rank 0 at 0B0, which needs 1SEND_B0, rank 1 at 1F0, which needs "
        "0SEND_F0");
  CHECK(refused("0F0,0B0\n2F0,2B0\n3F0,3B0\n") == "bad_argument: schedule: 1F0 is missing");
  CHECK(refused("0F99999999\n").find("has a number that is too large") != std::string::npos);
  CHECK_THROWS_WITH_AS(
      interleaved(4, 6, 2),
      "bad_argument: an interleaved pipeline of 4 ranks takes a multiple of that many microbatches, not 6", failure);
  CHECK_THROWS_AS(gpipe(0, 1), failure);
}

TEST_CASE("a row without an action is an error that names it, and does not move stages to another rank") {
  for (const std::string row : {"", "  \t", ",,,", ", ,\r"}) {
    CAPTURE(row);
    for (const auto& [before, line] : {std::pair(std::string(), 1), {"0F0,0B0\n", 2}}) {
      const auto wrong = parse_schedule(before + row + "\n1F0,1B0\n");
      CHECK(wrong.code() == errc::malformed);
      CHECK(refused(before + row + "\n1F0,1B0\n")
                .starts_with("malformed: schedule:" + std::to_string(line) + ":1: rank " + std::to_string(line - 1) +
                             " has no action here"));
    }
  }
  CHECK(refused("0F0,0B0\n1F0,1B0\n,,\n").starts_with("malformed: schedule:3:1: rank 2 has no action here"));
  const auto ends_in_blank_lines = parse_schedule("0F0,0B0\r\n1F0,1B0\r\n\r\n \n");
  REQUIRE(ends_in_blank_lines);
  CHECK(ends_in_blank_lines->ranks.size() == 2);
}

TEST_CASE("the estimate refuses a handmade schedule that names a missing stage or microbatch") {
  pipeline_schedule s = one_forward_one_backward(2, 4);
  s.ranks[1].push_back({7, pipeline_action::kind::forward, 0});
  CHECK_THROWS_WITH_AS(estimate(s), "bad_argument: schedule: 7F0 is outside of it", failure);
  s.ranks[1].back() = {1, pipeline_action::kind::backward, 4};
  CHECK_THROWS_WITH_AS(estimate(s), "bad_argument: schedule: 1B4 is outside of it", failure);
}

TEST_CASE("a list of actions determines which stages are on which rank") {
  const pipeline_schedule folded = parse_schedule("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n").value();
  CHECK(folded.stages == 4);
  CHECK(folded.places == std::vector<rank_id>{0, 1, 1, 0});
  CHECK(folded.messages() == 6);
  CHECK(estimate(folded).makespan == 12);  // the 12 units are those of one microbatch, whose actions cannot overlap
  const pipeline_schedule again = parse_schedule(text_of(folded)).value();
  CHECK(again.ranks == folded.ranks);
  CHECK(again.places == folded.places);
  CHECK(parse_schedule(text_of(interleaved(2, 4, 2))).value().places.empty());  // empty: the built-in placement
  pipeline_schedule wrong = folded;
  wrong.places.pop_back();
  CHECK(check(wrong).reason().text() == "schedule: it has places for 3 of its 4 stages");
  wrong.places.push_back(1);
  CHECK(check(wrong).reason().text() == "schedule: 3RECV_F0 on rank 0: that stage is on rank 1");
}
