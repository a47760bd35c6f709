// What a rank reports of calls that do not end: which calls wait, for which rank and since when, and what its peers do meanwhile.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/folder.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <set>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

transfer_options both_ways(const std::string& name) {
  transfer_options op;
  op.name = name;
  op.edges = {{0, 1}, {1, 0}};
  op.timeout = 8s;
  return op;
}

rank_settings to_box() {
  rank_settings s;
  s.flight_dir = "box";
  return s;
}

task<> receive_one(transfer t, rank_id from, std::uint32_t tag, std::size_t bytes, result<>& outcome) {
  std::vector<std::byte> into(bytes);
  auto got = co_await attempt(t.receive(into, {.from = from, .tag = tag}));
  outcome = got ? result<>() : result<>(got.reason());
}

task<> send_one(transfer t, rank_id to, std::uint32_t tag, std::size_t bytes, result<>& outcome) {
  const std::vector<std::byte> data(bytes);
  outcome = co_await attempt(t.send(data, {.to = to, .tag = tag}));
}

// Rank 0 sends a message with a tag under which rank 1 does not receive. Then each rank waits for the other.
struct crossed {
  crossed() : w(2, to_box()), calls(w.clock) {
    for (rank_id r = 0; r < 2; ++r) ends[r] = transfer(w[r], both_ways("acts"));
    calls.spawn(send_one(ends[0], 1, 3, 8, outcomes[0]));
    pass(w, 1'000'000);
    calls.spawn(receive_one(ends[0], 1, 0, 16, outcomes[1]));
    calls.spawn(receive_one(ends[1], 0, 7, 24, outcomes[2]));
    began_ns = w.clock.now();
    pass(w, 2'000'000'000);
  }
  void end() {
    run_until(w.clock, [&] { return calls.running() == 0; });
  }
  world w;
  std::array<transfer, 2> ends;
  std::array<result<>, 3> outcomes;
  time_ns began_ns = 0;
  scope calls;
};

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the n-th Python program of a page of the docs, counted from 0.
std::string script_of(const std::string& page, int n) {
  const std::string begins = "<<'END'\n";
  std::size_t at = 0;
  for (int i = 0; i <= n; ++i) {
    at = page.find(begins, at);
    REQUIRE(at != std::string::npos);
    at += begins.size();
  }
  return page.substr(at, page.find("\nEND", at) - at + 1);
}

std::string printed_by(const std::string& command) {
  std::FILE* const out = ::popen(command.c_str(), "r");
  REQUIRE(out != nullptr);
  std::string text;
  std::array<char, 256> some;
  while (std::fgets(some.data(), some.size(), out) != nullptr) text += some.data();
  CHECK(::pclose(out) == 0);
  return text;
}

std::multiset<std::string> failed_in(world& w, rank_id r) {
  std::multiset<std::string> all;
  for (const flight_record& f : w[r].flight().in_order()) {
    if (f.what == flight_event::send_failed || f.what == flight_event::receive_failed)
      all.insert(std::string(name(f.what)) + " tag " + std::to_string(f.tag) + " bytes " + std::to_string(f.bytes) +
                 (f.digest == 0 ? "" : " begun"));
  }
  return all;
}

}  // namespace

TEST_CASE("a time-out says for how long the peer's program has been computing") {
  world w(2, to_box());
  std::array<transfer, 2> ends;
  for (rank_id r = 0; r < 2; ++r) ends[r] = transfer(w[r], both_ways("acts"));
  const auto computes_and_sends = [](transfer t) -> task<> {
    co_await compute([] {}, 100'000'000'000);
    const std::vector<std::byte> data(8);
    co_await t.send(data, {.to = 0});
  };
  result<> outcome;
  scope calls(w.clock);
  calls.spawn(computes_and_sends(ends[1]));
  calls.spawn(receive_one(ends[0], 1, 0, 16, outcome));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(is(outcome, {.code = errc::timeout, .peer = 1}));
  CHECK(says(outcome, "it waits in: a computation of its program, which has run for "));
}

TEST_CASE("a rank lists its waiting calls, with the peer and the time of each, and the messages that its program has "
          "not taken") {
  crossed c;
  const waiting_list first = c.w[0].waiting();
  REQUIRE(first.calls.size() == 1);
  CHECK(first.untaken.empty());
  CHECK(first.calls[0].what == "receive");
  CHECK(first.calls[0].op == "acts 1->0");
  CHECK(first.calls[0].invocation == 0);
  CHECK(first.calls[0].tag == 0);
  CHECK(first.calls[0].peers == std::vector<rank_id>{1});
  CHECK(first.calls[0].bytes == 16);
  CHECK(first.calls[0].since_ns == c.began_ns);
  const waiting_list second = c.w[1].waiting();
  REQUIRE(second.calls.size() == 1);
  CHECK(second.calls[0].tag == 7);
  REQUIRE(second.untaken.size() == 1);
  CHECK(second.untaken[0].op == "acts 0->1");
  CHECK(second.untaken[0].peer == 0);
  CHECK(second.untaken[0].tag == 3);
  CHECK(second.untaken[0].parts == 1);
  CHECK(second.untaken[0].bytes == 8);
  c.end();
  CHECK(c.w[0].waiting().calls.empty());
  CHECK(c.w[1].waiting().calls.empty());
}

TEST_CASE("the list of waiting calls includes sends that wait for room or are in flight, and calls of a group") {
  world w(2);
  auto pair = both_ways("acts");
  std::array<transfer, 2> ends;
  for (rank_id r = 0; r < 2; ++r) ends[r] = transfer(w[r], pair);
  auto op = led_by(0, {star()});
  op.timeout = 8s;
  const auto groups = declare_all(w, op);
  scope calls(w.clock);
  std::array<result<>, 4> outcomes;
  calls.spawn(send_one(ends[0], 1, 5, 10'000'000, outcomes[0]));  // fills its window
  calls.spawn(send_one(ends[0], 1, 5, 8, outcomes[1]));           // waits for room behind the first one
  std::vector<float> x(25);
  calls.spawn(reduce_one(groups[0], x, outcomes[2]));
  pass(w, 1'000'000'000);
  std::multiset<std::string> seen;
  for (const waiting_call& each : w[0].waiting().calls) {
    REQUIRE(each.peers == std::vector<rank_id>{1});
    seen.insert(std::string(each.what) + " of " + each.op + ", call " + std::to_string(*each.invocation) + ", " +
                std::to_string(each.bytes));
  }
  CHECK(seen == std::multiset<std::string>{"lead of gradients 0->1, call 0, 100", "send of acts 0->1, call 0, 10000000",
                                           "send of acts 0->1, call 1, 8"});
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(failed_in(w, 0).count("send_failed tag 5 bytes 8") == 1);  // it never had room
}

TEST_CASE("the flight recorder holds receives that timed out, and receives that refused their message") {
  crossed c;
  c.end();
  CHECK(failed_in(c.w, 0) == std::multiset<std::string>{"receive_failed tag 0 bytes 16"});
  CHECK(failed_in(c.w, 1) == std::multiset<std::string>{"receive_failed tag 7 bytes 24"});
  scope calls(c.w.clock);
  std::array<result<>, 2> outcomes;
  calls.spawn(receive_one(c.ends[1], 0, 9, 4, outcomes[0]));
  calls.spawn(send_one(c.ends[0], 1, 9, 8, outcomes[1]));
  run_until(c.w.clock, [&] { return calls.running() == 0; });
  CHECK(outcomes[0].code() == errc::buffer_too_small);
  CHECK(failed_in(c.w, 1).count("receive_failed tag 9 bytes 8") == 1);
}

TEST_CASE("the script in docs/flight.md finds which rank waits for which, and the message that no rank receives") {
  crossed c;
  const scratch_folder where;
  std::string paths;
  for (rank_id r = 0; r < 2; ++r) {
    REQUIRE(c.w[r].dump_flight("asked"));
    const std::string file = "parley-flight-" + std::to_string(r) + ".json";
    where.write(file, c.w.disk[r].files["box/" + file]);
    paths += " " + where.file(file);
  }
  where.write("read.py", script_of(read_text(PARLEY_SOURCE "/docs/flight.md"), 0));
  const std::string text = printed_by("python3 " + where.file("read.py") + paths);
  CAPTURE(text);
  CHECK(text.find("rank 0: receive of acts 1->0, call 0, tag 0, 16 bytes, waits 2.0 s for a message of rank 1\n") !=
        std::string::npos);
  CHECK(text.find("rank 1: receive of acts 0->1, call 0, tag 7, 24 bytes, waits 2.0 s for a message of rank 0\n") !=
        std::string::npos);
  CHECK(text.find("rank 1: nobody takes 1 messages of acts 0->1, tag 3, 8 bytes\n") != std::string::npos);
  CHECK(text.find("rank 0 waits for rank 1 waits for rank 0\n") != std::string::npos);
  c.end();
}

TEST_CASE("a call that times out names the rank that it waited for, and the need that was not met") {
  crossed c;
  c.end();
  CHECK(is(c.outcomes[1], {.code = errc::timeout,
                           .op = "acts 1->0",
                           .rank = 0,
                           .peer = 1,
                           .tag = 0,
                           .unmet = awaited::message,
                           .own_bytes = 16}));
  CHECK(is(c.outcomes[2], {.code = errc::timeout,
                           .op = "acts 0->1",
                           .rank = 1,
                           .peer = 0,
                           .tag = 7,
                           .unmet = awaited::message,
                           .own_bytes = 24}));
}

TEST_CASE("a call whose timeout is too short for an answer asks no peer") {
  world w(2);
  auto op = both_ways("acts");
  op.timeout = 10ms;
  const transfer first(w[0], op);
  static_cast<void>(transfer(w[1], op));
  std::array<result<>, 1> outcomes;
  scope calls(w.clock);
  calls.spawn(receive_one(first, 1, 0, 8, outcomes[0]));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(is(outcomes[0], {.code = errc::timeout, .rank = 0, .peer = 1, .unmet = awaited::message}));
  CHECK(w[0].mail().sent_by_type()[actors::peer_question::message_type] == 0);
}

TEST_CASE("when one rank of a group calls with another size, the error on every rank names that rank and its size") {
  for (const rank_id odd : {0U, 2U}) {
    CAPTURE(odd);
    world w(3);
    const auto groups = declare_all(w, led_by(1, {star()}));
    scope calls(w.clock);
    std::array<std::vector<float>, 3> x;
    std::array<result<>, 3> outcomes;
    for (rank_id r = 0; r < 3; ++r) x[r].resize(r == odd ? 64 : 100);
    for (rank_id r = 0; r < 3; ++r) calls.spawn(reduce_one(groups[r], x[r], outcomes[r]));
    run_until(w.clock, [&] { return calls.running() == 0; });
    for (rank_id r = 0; r < 3; ++r) {
      CAPTURE(r);
      CHECK(is(outcomes[r], {.code = errc::bad_argument,
                             .rank = r,
                             .peer = odd,
                             .whole_bytes = 256,
                             .own_bytes = x[r].size() * sizeof(float)}));
    }
  }
}

namespace {
task<> exchange_once(halo h, std::vector<double>& field, result<>& outcome) {
  std::exception_ptr thrown;
  try {
    runtime::scope& here = co_await this_scope;
    dataflow flow(here);
    halo_plan plan = h.plan({grid_field(field, {4})});
    auto work = plan.start(flow);
    co_await work;
    co_await flow.join();
  } catch (...) {
    thrown = std::current_exception();
  }
  outcome = thrown ? result<>(describe(thrown)) : result<>();
}
}  // namespace

TEST_CASE("when two ranks declare a halo differently, rank 0 gets an error at once, with both values") {
  world w(2);
  std::array<halo, 2> ends;
  for (rank_id r = 0; r < 2; ++r) {
    halo_options op;
    op.name = "ghosts";
    op.ranks = {2};
    op.periodic = {r == 0};
    ends[r] = halo(w[r], op);
  }
  scope calls(w.clock);
  std::array<std::vector<double>, 2> fields{std::vector<double>(6), std::vector<double>(6)};
  std::array<result<>, 2> outcomes;
  for (rank_id r = 0; r < 2; ++r) calls.spawn(exchange_once(ends[r], fields[r], outcomes[r]));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(w.clock.now() < 1'000'000'000);
  for (const char* declared : {"periodic yes", "periodic no"})
    CHECK(is(outcomes[0], {.code = errc::declaration_mismatch, .op = "ghosts", .quotes = declared}));
}
