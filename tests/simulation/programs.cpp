// Each program here is broken in one way, and one checker must report it. These checkers need no scenario (program_checkers.hpp).
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/pipeline.hpp>
#include <parley/program.hpp>
#include <parley/simulation/checkers/program_checkers.hpp>
#include <parley/simulation/mutants.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::simulation;

namespace {

// The names of the checkers that found something, and the texts of their violations.
struct found {
  bool well = false;
  std::set<std::string> by;
  std::string text;
};
found watched(rank_function rank_main, world_options o, program_options p = {}) {
  found f;
  p.violated = [&f](const violation& v) {
    f.by.insert(v.invariant);
    f.text += v.invariant + ": " + v.text + "\n";
  };
  o.settings.flight_records = 1U << 16U;
  f.well = run_virtual(o, rank_main, p);
  return f;
}
const std::set<std::string> no_checker{};

transfer_options pair_from_0_to_1(std::vector<config_ptr> configs) {
  transfer_options op;
  op.name = "activations";
  op.edges = {{0, 1}};
  op.configs = std::move(configs);
  return op;
}

task<> stream(rank& self, transfer t, std::uint64_t sends, std::uint64_t receives) {
  std::vector<std::byte> data(10'000);
  for (std::uint64_t i = 0; self.id() == 0 && i < sends; ++i) {
    co_await t.send(data, {.to = 1});
    auto slept = co_await sleep_until(self.where().deadline_in(100'000));
    if (!slept) break;
  }
  for (std::uint64_t i = 0; self.id() == 1 && i < receives; ++i) co_await t.receive(data, {.from = 0});
}

task<> sound(rank& self) {
  transfer t(self, pair_from_0_to_1({direct(), chunked(4'000, 2)}));
  co_await stream(self, t, 200, 200);
}
task<> sends_one_too_many(rank& self) {
  transfer t(self, pair_from_0_to_1({direct(), chunked(4'000, 2)}));
  co_await stream(self, t, 201, 200);
}
task<> receives_one_too_many(rank& self) {
  transfer t(self, pair_from_0_to_1({direct(), chunked(4'000, 2)}));
  co_await stream(self, t, 200, 200);
  std::vector<std::byte> data(10'000);
  if (self.id() == 1) co_await t.receive(data, {.from = 0, .timeout = runtime::no_timeout});
}
// Both ranks wait for a message. Neither returns, which would give the other one an error.
task<> wait_for_each_other(rank& self) {
  auto op = pair_from_0_to_1({direct()});
  op.edges = {{0, 1}, {1, 0}};
  transfer t(self, op);
  std::vector<std::byte> data(10'000);
  co_await t.receive(data, {.from = 1 - self.id(), .timeout = runtime::no_timeout});
}

// A config whose receives wait until the op has agreed on its candidates. No call may wait for that.
rank* asking = nullptr;
task<> send_whole(part_sender& out, std::span<const std::byte> data) { co_await out.send(0, data); }
task<> receive_whole(part_receiver& in, std::span<std::byte> data) { co_await in.receive(0, data); }
task<> receive_after_merge(part_receiver& in, std::span<std::byte> data) {
  while (asking->participants().front()->candidates.empty()) {
    auto slept = co_await sleep_until(asking->where().deadline_in(1'000));
    if (!slept) raise(slept.reason());
  }
  co_await in.receive(0, data);
}
task<> waits_for_agreement(rank& self) {
  if (self.id() == 1) asking = &self;
  const auto patient = paired({.name = "patient", .wire_class = "patient"}, send_whole, receive_after_merge);
  transfer t(self, pair_from_0_to_1({patient, direct()}));
  co_await stream(self, t, 200, 200);
}

// A config that reports a live peer as failed.
task<> send_and_blame(part_sender& out, std::span<const std::byte>) {
  out.fail(errc::peer_failed);
  co_return;
}
task<> blames_the_living(rank& self) {
  transfer t(self, pair_from_0_to_1({paired({.name = "sly", .wire_class = "sly"}, send_and_blame, receive_whole)}));
  std::vector<std::byte> data(1'000);
  if (self.id() == 0) {
    auto sent = co_await attempt(t.send(data, {.to = 1}));
    static_cast<void>(sent);
  } else {
    auto got = co_await attempt(t.receive(data, {.from = 0}));
    static_cast<void>(got);
  }
}

// A default config that delivers other bytes than were sent. A default runs although its rehearsal fails.
task<> receive_and_spoil(part_receiver& in, std::span<std::byte> data) {
  co_await in.receive(0, data);
  co_await in.drain();
  data[data.size() / 2] ^= std::byte{1};
}
task<> brings_other_bytes(rank& self) {
  transfer t(self, pair_from_0_to_1({paired({.name = "liar", .wire_class = "liar"}, send_whole, receive_and_spoil)}));
  co_await stream(self, t, 3, 3);
}

// A stage of a pipeline that once writes a byte past the end of its activation, which the pipeline keeps.
struct wide_stage final : pipeline_stage {
  void forward(std::uint64_t microbatch, std::span<std::byte> activation) override {
    if (writes && microbatch == 1) activation.data()[activation.size()] = std::byte{1};
  }
  bool writes = false;
};
task<> writes_beside(rank& self) {
  pipeline pipe(self, {.name = "layers", .configs = {direct()}});
  wide_stage stage;
  stage.writes = self.id() == 1;
  const std::vector<std::uint64_t> bytes(3, 1'000);
  co_await pipe.run(bytes, stage);
}

// A group whose members get different sums, because one of its configs does not send the sum to the workers.
task<> lead_alone(group_call& g) {
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p != g.self()) g.receive(p, 0, g.scratch(g.data().size()));
  }
  co_await g.drain();
  for (std::size_t p = 0; p < g.size(); ++p) {
    if (p != g.self()) g.send(p, 0, g.data());
  }
  co_await g.drain();
}
task<> work_alone(group_call& g) {
  const auto sum = g.scratch(g.data().size());
  g.send(g.leader(), 0, g.data());
  g.receive(g.leader(), 0, sum);
  co_await g.drain();
}
task<> has_two_sums(rank& self) {
  collective_options op;
  op.name = "gradients";
  op.role = [](rank_id r) { return r == 0 ? role::leader : role::worker; };
  op.configs = {grouped({.name = "alone", .wire_class = "alone"}, lead_alone, work_alone)};
  collective g(self, op);
  std::vector<int> x(100, static_cast<int>(self.id()));
  co_await g.all_reduce(std::span(x));
}

task<> looks_for_ever(rank& self) {
  for (;;) {
    auto slept = co_await sleep_until(self.where().deadline_in(1'000));
    if (!slept) raise(slept.reason());
  }
}

// Candidates that each take a fixed time, some of them far longer than the default.
class slow final : public paired_config {
 public:
  slow(const std::string& name, time_ns takes_ns)
      : paired_config({.name = name, .wire_class = name}), takes_ns_(takes_ns) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(takes_ns_));
    if (!slept) raise(slept.reason());
    co_await in.receive(0, data);
  }

 private:
  time_ns takes_ns_;
};
task<> has_slow_candidates(rank& self) {
  std::vector<config_ptr> configs;
  const auto add = [&](const char* name, time_ns takes_ns) {
    configs.push_back(std::make_shared<slow>(name, takes_ns));
  };
  add("usual", 20'000);
  add("awful", 900'000);
  add("worse", 920'000);
  add("bad", 60'000);
  add("fast", 10'000);
  transfer t(self, pair_from_0_to_1(std::move(configs)));
  co_await stream(self, t, 1'000, 1'000);
}

// An op without headers, whose trials are leased calls.
class apart final : public symmetric_config {
 public:
  apart(const std::string& name, time_ns takes_ns)
      : symmetric_config({.name = name, .wire_class = name}), takes_ns_(takes_ns) {}
  task<> run(symmetric_call, std::span<std::byte>) const override {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(takes_ns_));
    if (!slept) raise(slept.reason());
  }

 private:
  time_ns takes_ns_;
};
task<> runs_without_headers(rank& self) {
  symmetric_options op;
  op.name = "gradients";
  op.ranks = {1, 0};  // rank 1 leads, because the mutant breaks rank 0
  op.configs = {std::make_shared<apart>("forward", 20'000), std::make_shared<apart>("backward", 10'000)};
  op.communicator = std::make_shared<communicator>();
  symmetric g(self, std::move(op));
  std::vector<std::byte> data(1'000);
  for (int i = 0; i < 2'000; ++i) {
    co_await g.run(data);
    auto slept = co_await sleep_until(self.where().deadline_in(100'000));
    if (!slept) break;
  }
}

const world_options two{.ranks = 2};

}  // namespace

TEST_CASE("no checker reports a sound program, in any weather and after any death") {
  for (const befalls what : {befalls::nothing, befalls::weather, befalls::control_weather, befalls::death}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      CAPTURE(static_cast<int>(what));
      CAPTURE(seed);
      const found f = watched(sound, {.ranks = 3, .seed = seed}, {.what = what});
      INFO(f.text);
      CHECK(f.well);
      CHECK(f.by == no_checker);
    }
  }
}

TEST_CASE(
    "S8 names a payload that arrives with other bytes than were sent, and a group whose members get different data") {
  const found f = watched(brings_other_bytes, two);
  CHECK_FALSE(f.well);
  CHECK(f.by == std::set<std::string>{"S8"});
  CHECK(f.text.find("0->1, generation ") != std::string::npos);
  CHECK(f.text.find("invocation 0: rank 1 has 10000 bytes, which are not the 10000 of rank 0") != std::string::npos);
  const found sums = watched(has_two_sums, two);
  CHECK_FALSE(sums.well);
  CHECK(sums.by == std::set<std::string>{"S8"});
}

TEST_CASE("S8 names a write past the end of a buffer that an op has made") {
  const found f = watched(writes_beside, two);
  CHECK_FALSE(f.well);
  CHECK(f.by == std::set<std::string>{"S8"});
  CHECK(f.text.find("1 buffers of ops were written outside their bounds") != std::string::npos);
}

TEST_CASE("a message that no rank receives does not fail a run, but makes the status 3 if the program asks for that") {
  const found f = watched(sends_one_too_many, two);
  INFO(f.text);
  CHECK(f.well);
  CHECK(f.by == no_checker);
  CHECK(status_of_virtual(two, sends_one_too_many, {.undelivered = undelivered_messages::fail}) == undelivered_status);
  CHECK(status_of_virtual(two, sound, {.undelivered = undelivered_messages::fail}) == 0);
}

// A record of two ranks: the tag-0 messages of an edge that were sent, and those that were received.
std::string delivery_of(const std::vector<std::uint64_t>& sent, const std::vector<std::uint64_t>& received,
                        std::vector<failed_call> failed = {}, bool told = true) {
  const scenario program;
  const tape nothing;
  run_record r;
  r.play = &program;
  r.faults = &nothing;
  r.failed_calls = std::move(failed);
  if (told) r.undelivered = {"activations 0->1, on rank 0: rank 1 has not taken some messages"};
  for (const rank_id rank : {0U, 1U}) {
    participant_view p;
    p.rank = rank;
    p.op = "activations";
    p.title = "activations 0->1";
    p.edge = true;
    p.leads = rank == 0;
    p.members = {0, 1};
    r.participants.push_back(p);
    for (const std::uint64_t i : rank == 0 ? sent : received) {
      flight_record f{.invocation = i, .bytes = 10'000};
      f.ended_ns = 1'000;
      f.what = rank == 0 ? flight_event::sent : flight_event::received;
      r.flights.push_back({0, rank, f});
    }
  }
  std::vector<violation> all;
  check_program(r, all);
  std::string text;
  for (const violation& v : all) {
    if (v.invariant == "delivery") text += v.text + "\n";
  }
  return text;
}

TEST_CASE("delivery names a message that was lost, and not one that its receiver never asked for") {
  CHECK(delivery_of({0, 1, 2}, {0, 1, 2}).empty());
  CHECK(delivery_of({0, 1, 2}, {0}).empty());
  CHECK(delivery_of({0, 1, 2}, {0, 2}) == "activations 0->1, invocation 1: ended well on rank 0, and rank 1 has no "
                                          "part in it, and has continued without it\n");
  CHECK(delivery_of({0, 1}, {0}, {}, false) ==
        "activations 0->1, invocation 1: ended well on rank 0, and rank 1 has no part in it, and no rank was told\n");
  CHECK(delivery_of({0, 1}, {0, 1, 1}) == "activations 0->1, invocation 1: was received twice by rank 1\n");
  const auto waited = [](std::uint32_t tag, time_ns at_ns) {
    const error_facts about{.op = "activations 0->1", .rank = 1, .invocation = 1, .begun = false, .tag = tag};
    return std::vector<failed_call>{{1, error{errc::timeout, about, "a receive was not met"}, at_ns}};
  };
  CHECK(delivery_of({0, 1}, {0}, waited(0, 2'000'000'000)) ==
        "activations 0->1, invocation 1: ended well on rank 0, and rank 1 has no part in it, and a call of it has "
        "waited there in vain\n");
  CHECK(delivery_of({0, 1}, {0}, waited(7, 2'000'000'000)).empty());
  CHECK(delivery_of({0, 1}, {0}, waited(0, 1'000)).empty());
}

TEST_CASE("L2 names a program that waits forever") {
  const found f = watched(wait_for_each_other, two);
  CHECK_FALSE(f.well);
  CHECK(f.by.contains("L2"));
}

TEST_CASE("a receive whose sender has returned fails the run, and no checker reports it") {
  const found f = watched(receives_one_too_many, two);
  INFO(f.text);
  CHECK_FALSE(f.well);
  CHECK(f.by == no_checker);
}

TEST_CASE("rest ends and names a program that is always busy and makes no progress") {
  const found f = watched(looks_for_ever, {.ranks = 2});
  CHECK(f.by == std::set<std::string>{"rest"});
  CHECK_FALSE(f.well);
}

TEST_CASE("N1 names a config that waits for agreement, in some runs with bad control weather and in no calm run") {
  std::size_t caught = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const found calm = watched(waits_for_agreement, {.ranks = 2, .seed = seed});
    INFO(calm.text);
    CHECK(calm.well);
    const found f = watched(waits_for_agreement, {.ranks = 2, .seed = seed}, {.what = befalls::control_weather});
    if (f.by.contains("N1")) ++caught;
  }
  CHECK(caught > 0);
}

TEST_CASE("N2 names a coordinator that restarts campaigns and so makes ranks wait at more gates than a search may") {
  const found sound_one = watched(runs_without_headers, two);
  INFO(sound_one.text);
  CHECK(sound_one.by == no_checker);
  const found f = watched(runs_without_headers, two, {.mutant = "impatient-coordinator"});
  INFO(f.text);
  CHECK(f.by.contains("N2"));
}

TEST_CASE("N4 names trials that exceed the budget, and no others") {
  CHECK(watched(has_slow_candidates, two).by == no_checker);
  const found f = watched(has_slow_candidates, two, {.mutant = "budget-ignored"});
  INFO(f.text);
  CHECK(f.by.contains("N4"));
}

TEST_CASE("oracle names a decision for a config that was not the fastest in its trials") {
  const scenario program;
  const tape nothing;
  run_record r;
  r.play = &program;
  r.faults = &nothing;
  search_view decided;
  decided.title = "activations 0->1";
  decided.key = "16KiB";
  decided.where = actors::search::stage::decided;
  decided.digest = 10;
  decided.winner = "fast";
  r.searches.push_back(decided);
  for (const rank_id rank : {0U, 1U}) {
    participant_view p;
    p.rank = rank;
    p.op = "activations";
    p.title = "activations 0->1";
    p.c0 = 20;
    p.edge = true;
    p.leads = rank == 0;
    p.members = {0, 1};
    r.participants.push_back(p);
    for (std::uint64_t i = 0; i < 8; ++i) {
      flight_record f{.invocation = i, .digest = i % 2 == 0 ? 10U : 20U, .bytes = 10'000};
      f.began_ns = static_cast<time_ns>(i) * 100'000;
      f.ended_ns = f.began_ns + (rank == 0 ? 1'000 : i % 2 == 0 ? 14'000 : 24'000);
      f.what = rank == 0 ? flight_event::sent : flight_event::received;
      f.flags = 1;
      r.flights.push_back({0, rank, f});
    }
  }
  std::vector<violation> all;
  check_program(r, all);
  CHECK(all.empty());
  r.searches[0].digest = 20;
  r.searches[0].winner = "usual";
  check_program(r, all);
  REQUIRE(all.size() == 1);
  CHECK(all[0].invariant == "oracle");
  CHECK(all[0].text.starts_with("activations 0->1, 16KiB: usual was decided"));
}

// When two messages begin together, the second one waits for the wire behind the first.
TEST_CASE("N4 and oracle do not blame a config for time that its calls waited behind calls that began with them") {
  const scenario program;
  const tape nothing;
  run_record r;
  r.play = &program;
  r.faults = &nothing;
  r.budget = 0.05;
  search_view decided;
  decided.title = "activations 0->1";
  decided.key = "512KiB";
  decided.where = actors::search::stage::decided;
  decided.digest = 10;
  decided.winner = "new";
  r.searches.push_back(decided);
  for (const rank_id rank : {0U, 1U}) {
    participant_view p;
    p.rank = rank;
    p.op = "activations";
    p.title = "activations 0->1";
    p.c0 = 20;
    p.edge = true;
    p.leads = rank == 0;
    p.members = {0, 1};
    r.participants.push_back(p);
    for (std::uint64_t i = 0; i < 6; ++i) {
      const bool first = i % 2 == 0;
      flight_record f{.invocation = i, .digest = first ? 20U : 10U, .bytes = 300'000};
      f.began_ns = static_cast<time_ns>(i / 2) * 100'000;
      f.ended_ns = f.began_ns + (first ? 33'000 : 63'000);
      f.what = rank == 0 ? flight_event::sent : flight_event::received;
      f.flags = 1;
      r.flights.push_back({0, rank, f});
    }
  }
  const auto found_by = [&] {
    std::vector<violation> all;
    check_program(r, all);
    std::set<std::string> names;
    for (const violation& v : all) names.insert(v.invariant);
    return names;
  };
  CHECK(found_by() == no_checker);
  for (flight_view& f : r.flights) {  // the calls no longer overlap, so the config itself is slow
    if (f.record.digest != 10) continue;
    f.record.began_ns += 33'000;
    f.record.ended_ns += 33'000;
  }
  CHECK(found_by() == std::set<std::string>{"N4", "oracle"});
}

TEST_CASE("errors names a call that reports a live peer as failed") {
  const found f = watched(blames_the_living, two);
  INFO(f.text);
  CHECK_FALSE(f.well);
  CHECK(f.by.contains("errors"));
}

TEST_CASE(
    "errors demands that a failed call names its op, its own rank and its invocation, or says that it had not begun") {
  const scenario program;
  const tape nothing;
  tape lost;
  lost.mishaps.push_back({.what = mishap::kind::crash, .rank = 0});
  const auto said_of = [&](const error& why, const tape* faults = nullptr) {
    run_record r;
    r.play = &program;
    r.faults = faults == nullptr ? &nothing : faults;
    participant_view p;
    p.rank = 1;
    p.op = "activations";
    r.participants.push_back(p);
    r.other_ops = {"layer"};  // a contextual op
    r.failed_calls.push_back({1, why});
    std::vector<violation> all;
    check_program(r, all);
    std::string told;
    for (const violation& v : all) {
      CHECK(v.invariant == "errors");
      told += v.text.substr(std::min(v.text.rfind(", which"), v.text.rfind(", and nothing has")));
    }
    return told;
  };
  const error_facts receive{.op = "activations 0->1", .rank = 1, .invocation = 3, .peer = 0};
  error_facts unmet = receive;
  unmet.begun = false;
  CHECK(said_of({errc::timeout, unmet, "a receive was not met"}).empty());
  CHECK(said_of({errc::config_failed, receive, "config direct threw"}).empty());
  const root_cause death{0, " is gone"};
  CHECK(said_of({errc::config_failed, unmet, "a receive was not met", &death}, &lost).empty());
  CHECK(said_of({errc::config_failed, unmet, "a receive was not met", &death}) == ", and nothing has befallen rank 0");
  CHECK(said_of({errc::config_failed, {.op = "layer 0->1", .rank = 1, .invocation = 3}, "no kernel is left"}).empty());
  CHECK(said_of({errc::closed, {.op = "activations", .rank = 1}, "a call has failed on rank 0"}).empty());
  CHECK(said_of({errc::closed, {.op = "gradients", .rank = 1}, "a call has failed on rank 0"}) ==
        ", which does not name op and rank");
  error_facts elsewhere = receive;
  elsewhere.rank = 0;
  CHECK(said_of({errc::config_failed, elsewhere, "config direct threw"}) == ", which does not name op and rank");
  error_facts another_op = receive;
  another_op.op = "gradients 0->1";
  CHECK(said_of({errc::config_failed, another_op, "config direct threw"}) == ", which does not name op and rank");
  CHECK(said_of({errc::timeout, {.op = "activations 0->1", .rank = 1}, "nothing came"}) ==
        ", which does not name the invocation");
}
