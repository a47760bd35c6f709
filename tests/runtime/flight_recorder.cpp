#include <parley/runtime/record/flight_dump.hpp>

#include <doctest/doctest.h>

#include <limits>

using namespace parley::runtime;

TEST_CASE("the ring keeps the last records in their order, and the text says how many are lost") {
  flight_recorder flight(3);
  for (std::uint64_t i = 0; i < 4; ++i) flight.add({.invocation = i});
  CHECK(flight.in_order().size() == 4);  // the capacity is rounded up to a power of two
  for (std::uint64_t i = 4; i < 6; ++i) flight.add({.invocation = i});
  const auto records = flight.in_order();
  REQUIRE(records.size() == 4);
  for (std::uint64_t i = 0; i < 4; ++i) CHECK(records[i].invocation == 2 + i);
  CHECK(flight.total() == 6);
  CHECK(flight_text(flight, {}, {}).find("\"records_lost\":2,") != std::string::npos);
}

TEST_CASE("the text has one line per record, with the names that are known") {
  flight_recorder flight(8);
  flight.add({.op = 7,
              .generation = 0x1f,
              .invocation = 12,
              .digest = 5,
              .bytes = 100,
              .began_ns = 50,
              .ended_ns = 80,
              .tag = 3,
              .what = flight_event::sent,
              .flags = 1});
  flight.add({.op = 8, .invocation = 4, .began_ns = 90, .ended_ns = 90, .tag = 1, .what = flight_event::offered});
  const flight_names names{.op = [](std::uint64_t id) { return std::string(id == 7 ? "say \"a\"\n 0->1" : ""); },
                           .config = [](std::uint64_t) { return std::string("direct"); }};
  CHECK(
      flight_text(flight, names, {.rank = 2, .now_ns = 99, .why = "timeout: x"}) ==
      R"({"rank":2,"why":"timeout: x","now_ns":99,"records_lost":0,"waiting":[],"untaken":[],"decisions":[],"records":[
{"at_ns":50,"took_ns":30,"what":"sent","op":"say \"a\"\u000a 0->1","generation":"000000000000001f","config":"direct","invocation":12,"bytes":100,"tag":3,"trial":true,"rehearsal":false},
{"at_ns":90,"took_ns":0,"what":"offered","op":"0000000000000008","generation":"0000000000000000","count":4,"bytes":0,"peer":1}
]}
)");
}

TEST_CASE("the text lists decisions before the records") {
  CHECK(flight_text(flight_recorder(8), {}, {.rank = 1, .now_ns = 5, .why = "asked"},
                    {R"({"op":"a"})", R"({"op":"b"})"}) ==
        R"({"rank":1,"why":"asked","now_ns":5,"records_lost":0,"waiting":[],"untaken":[],"decisions":[
{"op":"a"},
{"op":"b"}],"records":[
]}
)");
}

TEST_CASE("the text lists waiting calls with their peers and times, then untaken messages, before the decisions") {
  waiting_list now;
  now.calls.resize(2);
  waiting_call& w = now.calls[0];
  w.what = "receive";
  w.lacks = "a message";
  w.op = "acts 1->0";
  w.generation = 0x1f;
  w.invocation = 5;
  w.tag = 3;
  w.peers = {1};
  w.bytes = 8;
  w.since_ns = 40;
  w.batch = 2;
  waiting_call& bare = now.calls[1];
  bare.what = "call";
  bare.lacks = "its config";
  bare.since_ns = 90;
  now.untaken.push_back({"acts 1->0", 7, 0x1f, 1, 4, 6, 2, 16});
  CHECK(flight_text(flight_recorder(8), {}, {.rank = 0, .now_ns = 100, .why = "asked"}, {}, now)
            .starts_with(R"({"rank":0,"why":"asked","now_ns":100,"records_lost":0,"waiting":[
{"since_ns":40,"for_ns":60,"what":"receive","op":"acts 1->0","generation":"000000000000001f","invocation":5,"tag":3,"bytes":8,"peers":[1],"lacks":"a message","batch":2,"rehearsal":false},
{"since_ns":90,"for_ns":10,"what":"call","op":"","generation":"0000000000000000","bytes":0,"peers":[],"lacks":"its config","rehearsal":false}],"untaken":[
{"op":"acts 1->0","generation":"000000000000001f","peer":1,"tag":4,"invocation":6,"parts":2,"bytes":16}],"decisions":[])"));
  CHECK(words_of(w, 2'000'000'040) ==
        "receive of acts 1->0, call 5, tag 3, 8 bytes, of batch 2: waits for rank 1 (a message) since 2.0 s");
  CHECK(words_of(bare, 90'000'090) == "call of , 0 bytes: waits for its config since 90 ms");
}

TEST_CASE("every event has a name of its own") {
  std::vector<std::string_view> seen;
  for (int i = 0; i <= static_cast<int>(flight_event::revoked); ++i) {
    const std::string_view text = name(static_cast<flight_event>(i));
    CHECK(text != "unknown");
    CHECK(std::find(seen.begin(), seen.end(), text) == seen.end());
    seen.push_back(text);
  }
  CHECK(is_transfer(flight_event::receive_failed));
  CHECK_FALSE(is_transfer(flight_event::offered));
}
