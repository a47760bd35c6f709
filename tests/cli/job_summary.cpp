#include <parley/actors/declaration.hpp>
#include <parley/actors/group/rooted_group.hpp>
#include <parley/actors/stamp.hpp>
#include <parley/cli/job_summary.hpp>
#include <parley/cli/rank_report.hpp>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <string>
#include <vector>

using namespace parley;
using runtime::flight_event;
using runtime::flight_record;

namespace {

cli::spec one_edge() {
  return cli::parse_spec(
      R"json({"name": "t", "ranks": 2, "ops": [{"op": "transfer", "name": "x", "edges": [[0, 1]],
      "configs": ["direct", "chunked(chunk_bytes=4)"], "messages": [{"bytes": 16, "count": 9}]}]})json",
      "t.json", {});
}

flight_record record(const cli::spec& job, flight_event what, std::uint64_t invocation, std::size_t config,
                     unsigned flags = 0) {
  flight_record r;
  r.op = actors::declare_edge("x", 0, 1, "").id();
  r.invocation = invocation;
  r.digest = job.ops[0].configs[config]->digest();
  r.bytes = 16;
  r.began_ns = static_cast<runtime::time_ns>(100 + invocation);
  r.what = what;
  r.flags = static_cast<std::uint8_t>(flags);
  return r;
}

constexpr auto sent = flight_event::sent;
constexpr auto received = flight_event::received;
constexpr unsigned trial = 1;
constexpr unsigned rehearsal = 4;

}  // namespace

TEST_CASE("two ends that ran one config are no mismatch") {
  const cli::spec job = one_edge();
  const std::vector<cli::flight_records> ranks{
      {record(job, sent, 0, 0), record(job, sent, 1, 1, trial), record(job, sent, 0, 1, rehearsal)},
      {record(job, received, 1, 1, trial), record(job, received, 0, 0), record(job, received, 0, 1, rehearsal)}};
  const auto joined = cli::join_flights(job, ranks);
  CHECK(joined.mismatches == 0);
  CHECK(joined.unpaired == 0);
  CHECK(joined.invocations == 2);
  CHECK(joined.rehearsals == 1);
}

TEST_CASE("ends that ran different configs are counted and named, also in rehearsals") {
  const cli::spec job = one_edge();
  const std::vector<cli::flight_records> ranks{{record(job, sent, 5, 1), record(job, sent, 0, 1, rehearsal)},
                                               {record(job, received, 5, 0), record(job, received, 0, 0, rehearsal)}};
  const auto joined = cli::join_flights(job, ranks);
  CHECK(joined.mismatches == 2);
  REQUIRE(joined.examples.size() == 2);
  CHECK(joined.examples[0] ==
        "x 0->1, invocation 5: the sender ran chunked(chunk_bytes=4 in_flight=2), the receiver direct");
}

TEST_CASE("a receive that failed because of another config is a mismatch") {
  const cli::spec job = one_edge();
  const std::vector<cli::flight_records> ranks{{record(job, flight_event::send_failed, 0, 1)},
                                               {record(job, flight_event::receive_failed, 0, 0)}};
  CHECK(cli::join_flights(job, ranks).mismatches == 1);
}

TEST_CASE("an invocation that one end ran twice is a mismatch") {
  const cli::spec job = one_edge();
  const std::vector<cli::flight_records> ranks{{record(job, sent, 0, 0)},
                                               {record(job, received, 0, 0), record(job, received, 0, 0)}};
  CHECK(cli::join_flights(job, ranks).mismatches == 1);
}

TEST_CASE("a record without its counterpart is unpaired, not a mismatch") {
  const cli::spec job = one_edge();
  const std::vector<cli::flight_records> ranks{{record(job, sent, 0, 0), record(job, sent, 1, 0)},
                                               {record(job, received, 0, 0)}};
  const auto joined = cli::join_flights(job, ranks);
  CHECK(joined.mismatches == 0);
  CHECK(joined.unpaired == 1);
}

TEST_CASE("a rank of a group that ran another config than its leader is a mismatch") {
  const cli::spec job = cli::parse_spec(
      R"json({"name": "t", "ranks": 3, "ops": [{"op": "collective", "name": "x", "groups": [[1, 0, 2]],
      "configs": ["star", "chain"], "calls": [{"bytes": 16, "count": 9}]}]})json",
      "t.json", {});
  const auto of_group = [&](flight_event what, std::uint64_t invocation, std::size_t config) {
    flight_record r;
    r.op = actors::declare_group("x", {{0, "worker"}, {1, "leader"}, {2, "worker"}}, 1, "").id();
    r.invocation = invocation;
    r.digest = job.ops[0].group_configs[config]->digest();
    r.bytes = 16;
    r.what = what;
    return r;
  };
  std::vector<cli::flight_records> ranks{{of_group(received, 0, 0), of_group(received, 1, 1)},
                                         {of_group(sent, 0, 0), of_group(sent, 1, 1)},
                                         {of_group(received, 0, 0), of_group(received, 1, 1)}};
  const auto well = cli::join_flights(job, ranks);
  CHECK(well.invocations == 2);
  CHECK(well.mismatches == 0);
  CHECK(well.unpaired == 0);
  ranks[2][1] = of_group(received, 1, 0);
  const auto differs = cli::join_flights(job, ranks);
  CHECK(differs.mismatches == 1);
  REQUIRE(differs.examples.size() == 1);
  CHECK(differs.examples[0] == "x 1->0->2, invocation 1: the leader ran chain(chunk_bytes=65536), a worker star");
  ranks[2].pop_back();
  CHECK(cli::join_flights(job, ranks).unpaired == 1);
}

TEST_CASE("the stream of an edge shows c0, trials and the winner in their order") {
  const cli::spec job = one_edge();
  cli::flight_records records;
  for (std::uint64_t i = 0; i < 2; ++i) records.push_back(record(job, sent, i, 0));
  for (std::uint64_t i = 2; i < 5; ++i) records.push_back(record(job, sent, i, i % 2, trial));
  for (std::uint64_t i = 5; i < 9; ++i) records.push_back(record(job, sent, i, 1));
  records.push_back(record(job, sent, 0, 1, rehearsal));
  const auto runs = cli::stream_of(job.ops[0], actors::declare_edge("x", 0, 1, "").id(), "16B", records, 5);
  CHECK(cli::to_string(runs) == "c0 x2, trials x3, chunked(chunk_bytes=4 in_flight=2) x4");
}

TEST_CASE("a default that has won is called by its name") {
  const cli::spec job = one_edge();
  const cli::flight_records records{record(job, sent, 0, 0), record(job, sent, 1, 0, trial), record(job, sent, 2, 0)};
  CHECK(cli::to_string(cli::stream_of(job.ops[0], actors::declare_edge("x", 0, 1, "").id(), "16B", records, 2)) ==
        "c0 x1, trials x1, direct x1");
}

TEST_CASE("a long stream is shortened in its middle") {
  std::vector<cli::stream_run> runs;
  for (std::uint64_t i = 0; i < 20; ++i) runs.push_back({i % 2 == 0 ? "c0" : "trials", i + 1});
  CHECK(cli::to_string(runs) == "c0 x1, trials x2, c0 x3, trials x4, (13 more turns), trials x18, c0 x19, trials x20");
}

TEST_CASE("reports pass through a pipe unchanged, however the pipe cuts them") {
  std::array<int, 2> ends{};
  REQUIRE(::pipe(ends.data()) == 0);
  CHECK(cli::send_report(ends[1], boost::json::object{{"kind", "progress"}, {"done", 3}}));
  CHECK(cli::send_report(ends[1], boost::json::object{{"kind", "final"}}));
  ::close(ends[1]);
  std::string seen;
  cli::report_reader reader([&](boost::json::value&& v) { seen += boost::json::serialize(v); });
  std::byte one{};
  while (::read(ends[0], &one, 1) == 1) CHECK(reader.take(std::span(&one, 1)));
  ::close(ends[0]);
  CHECK(seen == R"({"kind":"progress","done":3}{"kind":"final"})");
}

TEST_CASE("bytes that are no report are refused, whatever length they claim") {
  cli::report_reader reader([](boost::json::value&&) { FAIL("this is no report"); });
  const std::string garbage = "\xff\xff\xff\xff and more";
  CHECK_FALSE(reader.take(std::as_bytes(std::span(garbage))));
  cli::report_reader other([](boost::json::value&&) { FAIL("this is no report"); });
  const std::string text{"\x02\x00\x00\x00[]", 6};
  CHECK_FALSE(other.take(std::as_bytes(std::span(text))));
  CHECK_FALSE(cli::send_report(-1, boost::json::object{}));
}
