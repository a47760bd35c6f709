// Tests of the checkers that no mutant names: each finds its violation in a made-up record.
#include <parley/actors/leases/lease_messages.hpp>
#include <parley/runtime/wire/frame.hpp>
#include <parley/simulation/checkers/checkers.hpp>
#include <parley/simulation/checkers/window_book.hpp>
#include <parley/simulation/world/stage.hpp>
#include <parley/simulation/world/watchers.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

using namespace parley::simulation;
using parley::runtime::errc;
using parley::runtime::error;
using parley::runtime::error_facts;
using parley::runtime::rank_id;
using parley::runtime::root_cause;

namespace {

/// Facts of an error of invocation 1 of the pair, which rank 0 has begun.
const error_facts call_1{.op = "pair 0->1", .rank = 0, .invocation = 1};

/// A run in which nothing is wrong: ranks 0 and 1 have a pair, and rank 2 takes no part.
struct quiet_run {
  quiet_run() {
    play.ranks = 3;
    op_spec pair;
    pair.name = "pair";
    pair.members = {0, 1};
    play.ops.push_back(pair);
    faults = draw(play, 1);
    record.play = &play;
    record.faults = &faults;
    record.windows = &windows;
    participant_view sender;
    sender.op = sender.title = "pair";
    sender.id = 4;
    sender.edge = sender.leads = true;
    sender.members = {0, 1};
    record.participants.push_back(sender);
    record.of_op[{4, 0, 1}] = record.between[{0, 1}] = 7;
    record.calls.emplace_back().sends = true;
    record.received[{0, 0, 0}] = {true};
  }
  call_record& failed(const error& why) {
    call_record& c = record.calls.emplace_back();
    c.number = 1;
    c.failed = why;
    return c;
  }
  /// The first text that the checker `name` reports; empty if it finds nothing.
  std::string of(std::string_view name) const {
    for (const violation& v : check(record)) {
      if (v.invariant == name) return v.text;
    }
    return {};
  }
  scenario play;
  tape faults;
  stage time{1, {}};
  window_book windows{time, {.invocations = 64, .bytes = 1U << 20U}};
  run_record record;
};

/// An invocation of the pair, as one of its two ends has recorded it.
flight_view flight(rank_id rank, std::uint64_t invocation, std::uint64_t digest, std::uint8_t flags = 0) {
  flight_view f;
  f.rank = rank;
  f.record.op = 4;
  f.record.invocation = invocation;
  f.record.digest = digest;
  f.record.what = rank == 0 ? parley::runtime::flight_event::sent : parley::runtime::flight_event::received;
  f.record.flags = flags;
  return f;
}

bool says(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the checkers find nothing in a run in which nothing is wrong") {
  const quiet_run run;
  for (const violation& v : check(run.record)) FAIL_CHECK((v.invariant + ": " + v.text));
}

TEST_CASE("N3 finds a rank that sees messages of an op that it is not in, and a rank in no op that sees any message") {
  quiet_run run;
  run.record.of_op[{4, 0, 2}] = 1;
  CHECK(says(run.of("N3"), "rank 2, which is not in it, saw 1 of its messages"));
  run.record.of_op.erase({4, 0, 2});
  run.record.between[{1, 2}] = 5;
  CHECK(says(run.of("N3"), "rank 2 takes part in no op and saw 5 messages"));
}

TEST_CASE("fencing finds a call of a fenced rank that ends with an error other than `fenced`") {
  quiet_run run;
  run.record.fenced.emplace_back().at_ns = 100;
  call_record& c = run.failed({errc::peer_failed, call_1, "…"});
  c.began_ns = 101;
  CHECK(says(run.of("fencing"), "call 1 of rank 0, which the others have declared dead, ended with peer_failed"));
  c.failed = error{errc::fenced, call_1, "…"};
  CHECK(run.of("fencing").empty());
  c.failed = error{errc::peer_failed, call_1, "…"};
  c.began_ns = 99;
  CHECK(run.of("fencing").empty());
  c.began_ns = 101;
  run.record.fenced.front().until_ns = 101;  // the fenced rank has a new process
  CHECK(run.of("fencing").empty());
}

TEST_CASE(
    "leftovers finds transfers, memory, files and messages that outlive their job, and L2 finds programs that do") {
  quiet_run run;
  run.record.pending_left = 2;
  CHECK(says(run.of("leftovers"), "2 transfers never end"));
  run.record.pending_left = 0;
  run.record.exposed_left = 3;
  CHECK(says(run.of("leftovers"), "3 pieces of memory are still exposed"));
  run.record.exposed_left = 0;
  run.record.lost_reads = 1;
  CHECK(says(run.of("leftovers"), "1 reads of memory that had been withdrawn"));
  run.record.lost_reads = 0;
  run.record.files_left = {"results.csv.new of rank 1"};
  CHECK(says(run.of("leftovers"), "results.csv.new of rank 1 is still there"));
  run.record.files_left.clear();
  run.record.participants.front().owed = 2;
  CHECK(says(run.of("leftovers"), "2 messages of rank 0 were never acknowledged"));
  run.record.participants.front().owed = 0;
  CHECK(run.of("leftovers").empty());
  run.record.programs_left = 1;
  CHECK(says(run.of("L2"), "1 programs wait for ever"));
}

TEST_CASE("errors finds a failure that no fault explains, and a text that lacks op, rank or invocation") {
  quiet_run run;
  call_record& c = run.failed({errc::timeout, call_1, "too late"});
  c.sends = true;
  CHECK(says(run.of("errors"), "which no fault explains"));
  run.play.ops.front().timeout_ns = 1'000'000;
  CHECK(run.of("errors").empty());
  const auto found_about = [&](const error_facts& about) {
    c.failed = error{errc::timeout, about, "too late"};
    return run.of("errors");
  };
  CHECK(says(found_about({.rank = 0, .invocation = 1}), "which does not name op and rank"));
  CHECK(says(found_about({.op = "pair 0->1", .invocation = 1}), "which does not name op and rank"));
  CHECK(says(found_about({.op = "pair 0->1", .rank = 0}), "which does not name the invocation"));
  CHECK(says(found_about({.op = "pair 0->1", .rank = 1, .invocation = 1}), "which does not name op and rank"));
  CHECK(says(found_about({.op = "pairs 0->1", .rank = 0, .invocation = 1}), "which does not name op and rank"));
}

TEST_CASE("errors also demands the right rank and invocation in errors that a death causes") {
  quiet_run run;
  run.faults.mishaps.push_back({.what = mishap::kind::crash, .rank = 1});
  const root_cause death{1, " is gone: it died"};
  for (const errc code : {errc::peer_failed, errc::fenced}) {
    CAPTURE(parley::runtime::name(code));
    call_record& c = run.failed(code);
    const auto found_about = [&](const error_facts& about) {
      c.failed = error{code, about, "rank 1 is gone", &death};
      return run.of("errors");
    };
    CHECK(found_about(call_1).empty());
    CHECK(found_about({.op = "pair 0->1", .rank = 0, .invocation = 1, .begun = false}).empty());
    CHECK(says(found_about({.op = "pair 0->1", .rank = 0}), "which does not name the invocation"));
    CHECK(says(found_about({.op = "pair 0->1", .rank = 1, .invocation = 1}), "which does not name op and rank"));
    CHECK(says(found_about({.op = "pair 0->1", .rank = 10, .invocation = 1}), "which does not name op and rank"));
    run.play.ops.front().what = op_spec::kind::group;  // all calls of a group begin
    CHECK(says(found_about({.op = "pair 0->1", .rank = 0, .invocation = 1, .begun = false}),
               "which does not name the invocation"));
    run.play.ops.front().what = op_spec::kind::pair;
    run.record.calls.pop_back();
  }
}

TEST_CASE("a restart explains failed calls of the ops of the restarted rank, and of no other ops") {
  quiet_run run;
  run.faults.mishaps.push_back({.what = mishap::kind::restart, .rank = 1});
  run.failed({errc::peer_failed, call_1, "rank 1 is gone"});
  CHECK(run.of("errors").empty());
  run.faults.mishaps.back().rank = 2;
  CHECK(says(run.of("errors"), "which no fault explains"));
}

TEST_CASE("errors finds a rank that is called gone though no fault has befallen it, or not yet") {
  quiet_run run;
  run.faults.mishaps.push_back({.what = mishap::kind::crash, .rank = 1, .at_ns = 500});
  const auto gone = [](rank_id r) {
    const root_cause death{r, " is gone: it died"};
    return error(errc::peer_failed, call_1, "it says who is gone", &death);
  };
  call_record& c = run.failed(gone(1));
  c.ended_ns = 1'000;
  CHECK(run.of("errors").empty());
  c.failed = gone(11);
  CHECK(says(run.of("errors"), "nothing has befallen rank 11"));
  c.failed = gone(0);
  CHECK(says(run.of("errors"), "nothing has befallen rank 0"));
  c.failed = gone(1);
  c.ended_ns = 400;
  CHECK(says(run.of("errors"), "nothing has befallen rank 1"));
}

TEST_CASE(
    "errors finds a call that the flight recorder shows as begun and failed, if no failed call names its invocation") {
  quiet_run run;
  run.faults.mishaps.push_back({.what = mishap::kind::crash, .rank = 1});
  const auto call = [](std::uint64_t invocation, bool begun) {
    return error(errc::peer_failed, {.op = "pair 0->1", .rank = 0, .invocation = invocation, .begun = begun},
                 "rank 1 is gone");
  };
  call_record& c = run.failed(call(7, true));
  flight_view& f = run.record.flights.emplace_back(flight(0, 7, 0));
  f.record.what = parley::runtime::flight_event::send_failed;
  f.record.digest = 1;  // the digest of its config: the invocation had begun
  CHECK(run.of("errors").empty());
  c.failed = call(8, true);
  CHECK(says(run.of("errors"), "invocation 7: it had begun and failed, and no failed call names it"));
  c.failed = call(7, false);
  CHECK(says(run.of("errors"), "invocation 7: it had begun and failed, and no failed call names it"));
  f.record.flags = 4;  // a rehearsal, which is not a call
  CHECK(run.of("errors").empty());
}

TEST_CASE("L2 finds a call that takes longer than its timeout and all possible delays, in every kind of op") {
  using kind = op_spec::kind;
  constexpr parley::runtime::time_ns timeout_ns = 30'000'000'000;
  for (auto k = static_cast<int>(kind::pair); k <= static_cast<int>(kind::last); ++k) {
    CAPTURE(k);
    quiet_run run;
    op_spec& op = run.play.ops.front();
    op.what = static_cast<kind>(k);
    op.configs = {"timed:slow:1000000"};
    const parley::runtime::time_ns longest = op.what == kind::hierarchy ? timeout_ns / 4 * 7 : timeout_ns;
    const parley::runtime::time_ns transfers = op.what == kind::pipeline    ? 12
                                               : op.what == kind::training  ? 12
                                               : op.what == kind::attention ? 2
                                               : op.what == kind::hierarchy ? 3
                                                                            : 0;
    call_record& c = run.record.calls.front();
    c.timeout_ns = timeout_ns;
    c.began_ns = 5;
    c.ended_ns = c.began_ns + longest + longest / 8 + transfers * 1'000'000 + run.play.detection_ns + 100'000'000;
    CHECK(run.of("L2").empty());
    ++c.ended_ns;
    CHECK(says(run.of("L2"), "call 0 took "));
    run.faults.mishaps.push_back({.what = mishap::kind::pause, .for_ns = 1});
    CHECK(run.of("L2").empty());
    // A lost control message delays transfers that follow each other, each by at most one second.
    run.faults.lose = 1;
    c.ended_ns += 20'000'000'000;
    CHECK(run.of("L2").empty() == (transfers != 0));
    ++c.ended_ns;
    CHECK_FALSE(run.of("L2").empty());
  }
}

TEST_CASE("agreement finds two decisions of one version, even after a death, and a decision that some members lack") {
  quiet_run run;
  participant_view receiver = run.record.participants.front();
  receiver.rank = 1;
  receiver.leads = false;
  run.record.participants.push_back(receiver);
  for (participant_view& p : run.record.participants) {
    auto& d = p.decisions.emplace_back();
    d.key = "4KiB";
    d.digest = 7;
    d.version = 1;
  }
  auto& known = run.record.participants.back().decisions;
  CHECK(run.of("agreement").empty());
  known.front().version = 2;
  CHECK(says(run.of("agreement"), "rank 1 knows unknown 0000000000000007 version 2, and rank 0 knows"));
  known.front().version = 1;
  known.front().digest = 8;
  CHECK(says(run.of("agreement"), "rank 1 knows unknown 0000000000000008 version 1, and rank 0 knows"));
  REQUIRE(!check_flights(run.record).empty());
  CHECK(check_flights(run.record).back().invariant == "agreement");
  run.faults.mishaps.push_back({.what = mishap::kind::crash, .rank = 1});
  CHECK(says(run.of("agreement"), "rank 1 knows unknown 0000000000000008 version 1, and rank 0 knows"));
  known.front().version = 2;
  CHECK(run.of("agreement").empty());
  CHECK(check_flights(run.record).empty());
  known.clear();
  CHECK(run.of("agreement").empty());
  run.faults.mishaps.clear();
  CHECK(says(run.of("agreement"), "only 1 of 2 participants know the decision"));
}

TEST_CASE("errors finds an op that says it is closed, though no call of it has failed before") {
  quiet_run run;
  const auto closed_by = [](rank_id r) {
    return error::in_words(errc::closed, {.op = "pair", .rank = 0},
                           "op pair: a call has failed on rank " + std::to_string(r) + " (timeout), …");
  };
  run.play.ops.front().timeout_ns = 1'000'000;
  run.failed(closed_by(0)).began_ns = 50;
  CHECK(says(run.of("errors"), "which no fault explains"));
  run.failed({errc::timeout, call_1, "too late"}).began_ns = 60;
  CHECK(says(run.of("errors"), "which no fault explains"));
  for (call_record& c : run.record.calls) c.ended_ns = 70;
  CHECK(run.of("errors").empty());
  run.record.calls[1].failed = closed_by(1);  // where no rank has closed the op
  CHECK(says(run.of("errors"), "which no fault explains"));
}

TEST_CASE("results finds a decision that is remembered, though no process of these versions has run before") {
  quiet_run run;
  run.record.participants.front().job = 2;
  run.play.validators = {{"1", "1", "1"}, {"1", "2", "1"}};
  search_view c;
  c.job = 2;
  c.op = 4;
  c.title = "pair 0->1";
  c.key = "4KiB";
  c.winner = "fast";
  c.source = parley::actors::decision_source::results;
  run.record.searches.push_back(c);
  CHECK(says(run.of("results"), "pair 0->1, 4KiB: fast is remembered, and never before did all of its ranks"));
  run.play.validators.front() = run.play.validators.back();
  CHECK(run.of("results").empty());
  run.record.searches.front().source = parley::actors::decision_source::trials;
  run.play.validators.front().front() = "2";
  CHECK(run.of("results").empty());
}

TEST_CASE("S3 finds a config that ran where it was not warmed, and one that ran before it was rehearsed") {
  quiet_run run;
  flight_view rehearsal = flight(0, 0, 7, 4);
  rehearsal.record.began_ns = 10;
  rehearsal.record.ended_ns = 20;
  flight_view one = flight(0, 5, 7);
  one.record.ended_ns = 30;
  run.record.flights = {rehearsal, one};
  CHECK(says(run.of("S3"), "which this rank has not warmed"));
  run.record.participants.front().ready = {7};
  CHECK(run.of("S3").empty());
  run.record.flights.back().record.ended_ns = 15;
  CHECK(says(run.of("S3"), "before it was rehearsed there"));
}

TEST_CASE("S1 finds an invocation that its sender has begun twice") {
  quiet_run run;
  run.record.flights = {flight(0, 0, 7), flight(1, 0, 7), flight(0, 1, 8)};
  CHECK(run.of("S1").empty());
  run.record.flights.push_back(flight(0, 0, 8));
  CHECK(says(run.of("S1"), "began twice"));
}

TEST_CASE(
    "S1 finds two stamps of one invocation with different configs, and a log entry that is written twice differently") {
  std::vector<std::string> found;
  watchers all([&](std::string_view invariant,
                   const std::string& text) { found.push_back(std::string(invariant) + ": " + text); },
               64);
  const auto stamped = [&](std::uint32_t invocation, std::uint64_t digest) {
    parley::actors::stamp s;
    s.op = 4;
    s.invocation = invocation;
    s.digest = digest;
    parcel p{.from = 0, .to = 1, .on = parley::runtime::link::channel::data};
    p.header = std::as_writable_bytes(std::span(&s, 1));
    static_cast<void>(all.on_deliver(p));
  };
  const auto logged = [&](std::uint64_t from) {
    parley::actors::lease_schedule m;
    m.entries.push_back({.what = parley::actors::lease_entry::kind::scheduled, .from = from, .segments = {}});
    std::vector<std::byte> body;
    parley::runtime::encode(m, body);
    parley::runtime::frame_header h{};
    h.type = parley::actors::lease_schedule::message_type;
    h.actor = 4;
    parcel p{.from = 0, .to = 1};
    p.header = std::as_writable_bytes(std::span(&h, 1));
    p.payload = body;
    static_cast<void>(all.on_deliver(p));
  };
  stamped(3, 7);
  stamped(4, 8);
  stamped(3, 7);
  logged(10);
  logged(10);
  CHECK(found.empty());
  stamped(3, 8);
  REQUIRE(found.size() == 1);
  CHECK(found.back() == "S1: rank 0 stamped invocation 3 with two configs");
  logged(11);
  REQUIRE(found.size() == 2);
  CHECK(found.back() == "S1: rank 0 wrote entry 0 of its log twice, and not the same");
}

TEST_CASE("delivery finds a message that was sent successfully and that no rank received") {
  quiet_run run;
  run.record.received.clear();
  CHECK(says(run.of("delivery"), "pair: message 0 was sent without an error, and no rank received it"));
}

TEST_CASE("S8 finds a put outside the memory that its key names") {
  quiet_run run;
  run.record.puts_outside = 1;
  CHECK(says(run.of("S8"), "1 puts outside the memory that their key names"));
}

TEST_CASE("oracle finds a decision for a slower candidate, when nothing but the candidates differs") {
  quiet_run run;
  run.faults = tape();
  op_spec& op = run.play.ops.front();
  op.in_flight = 1;
  op.configs = {"timed:slow:30000", "timed:fast:10000"};
  search_view c;
  c.title = "pair 0->1";
  c.where = parley::actors::search::stage::decided;
  c.winner = "fast";
  c.bucket = parley::tuning::size_bucket::of(op.sizes.front());
  run.record.searches.push_back(c);
  CHECK(run.of("oracle").empty());
  run.record.searches.front().winner = "slow";
  CHECK(says(run.of("oracle"), "slow was decided, and fast is the fastest"));
}

namespace {}  // namespace

TEST_CASE(
    "S5 finds an invocation of a generation that its rank was never in, and of an op that its rank never declared") {
  quiet_run run;
  run.record.flights.push_back(flight(0, 0, 0));
  CHECK(run.of("S5").empty());
  run.record.flights.back().record.generation = 9;
  CHECK(says(run.of("S5"), "the op was never in generation 0000000000000009 there"));
  run.record.flights.back().record.op = 8;
  CHECK(says(run.of("S5"), "the op was never declared there"));
}

TEST_CASE("S6 finds a decision that counts more repetitions than all participants have completed") {
  quiet_run run;
  constexpr std::uint8_t timed = 1;
  for (const rank_id r : {0U, 1U}) {
    for (std::uint64_t i = 0; i < 3; ++i) run.record.flights.push_back(flight(r, i, 7, timed));
  }
  participant_view receiver = run.record.participants.front();
  receiver.rank = 1;
  receiver.leads = false;
  run.record.participants.push_back(receiver);
  for (participant_view& p : run.record.participants) p.candidates = p.ready = {7};
  parley::actors::wire_evidence evidence;
  evidence.digest = 7;
  evidence.status = "measured";
  evidence.repetitions = 3;
  for (participant_view& p : run.record.participants) p.decisions.emplace_back().evidence.push_back(evidence);
  CHECK(run.of("S6").empty());
  // One of the three failed at its receiver, so it does not count.
  run.record.flights.back().record.what = parley::runtime::flight_event::receive_failed;
  CHECK(says(run.of("S6"), "3 repetitions of unknown 0000000000000007 were counted, and all participants ran only 2"));
  // Lost flight records of either end may explain the difference; those of another rank cannot.
  run.record.flights_lost[{0, 2}] = 1;
  CHECK(!run.of("S6").empty());
  run.record.flights_lost[{0, 1}] = 1;
  CHECK(run.of("S6").empty());
  run.record.flights_lost.clear();
  CHECK(!run.of("S6").empty());
  // The receiver was killed and left no record, so nothing can be compared.
  run.record.participants.pop_back();
  std::erase_if(run.record.flights, [](const flight_view& f) { return f.rank == 1; });
  CHECK(run.of("S6").empty());
}

TEST_CASE("the records of real ranks are checked without a scenario, even if one rank has left no record") {
  run_record record;
  participant_view sender = quiet_run().record.participants.front();
  sender.candidates = sender.ready = {7};
  sender.available = {7};
  participant_view receiver = sender;
  receiver.rank = 1;
  receiver.leads = false;
  record.participants = {sender, receiver};
  record.flights = {flight(0, 0, 7), flight(1, 0, 7), flight(0, 1, 7)};
  CHECK(check_flights(record).empty());
  const auto names_only = [&](std::string_view invariant) {
    const auto found = check_flights(record);
    return found.size() == 1 && found.front().invariant == invariant;
  };
  record.flights.push_back(flight(1, 1, 0));  // it ended before its rank knew the config
  CHECK(check_flights(record).empty());
  record.flights.back().record.digest = sender.c0 = receiver.c0 = 5;
  record.participants = {sender, receiver};
  CHECK(names_only("S2"));
  record.flights.pop_back();
  record.participants.back().ready.clear();
  CHECK(names_only("S3"));
  record.participants.back().ready = {7};
  record.participants.front().candidates = {6};
  CHECK(!check_flights(record).empty());
  CHECK(check_flights(record).front().invariant == "S4");
  // A killed rank leaves neither a view nor a flight record.
  record.participants = {receiver};
  record.flights = {flight(1, 0, 7)};
  CHECK(check_flights(record).empty());
  record.flights.push_back(flight(0, 0, 7));
  CHECK(names_only("S5"));
}

TEST_CASE("L1 finds a campaign that never ends and a gate that stays shut, unless a member has died") {
  quiet_run run;
  search_view c;
  c.title = "pair 0->1";
  c.key = "4KiB";
  c.op = 4;
  c.where = parley::actors::search::stage::trying;
  run.record.searches.push_back(c);
  CHECK(says(run.of("L1"), "pair 0->1, 4KiB: after 0 invocations and all faults, the search is still trying"));
  run.faults.mishaps.push_back({.what = mishap::kind::crash, .rank = 2});  // rank 2 takes no part in the op
  CHECK(says(run.of("L1"), "the search is still trying"));
  run.faults.mishaps.back().rank = 1;
  CHECK(run.of("L1").empty());
  run.faults.mishaps.clear();
  run.record.searches.front().where = parley::actors::search::stage::decided;
  CHECK(run.of("L1").empty());
  lease_view& gate = run.record.leases.emplace_back();
  gate.op = gate.title = "pair";
  gate.closed = "at a gate";
  CHECK(says(run.of("L1"), "rank 0 is still held at a gate"));
  run.faults.mishaps.push_back({.what = mishap::kind::crash, .rank = 0});
  CHECK(run.of("L1").empty());
}

TEST_CASE("a death exempts the ops of the dead rank from checks, and no other ops") {
  quiet_run run;
  run.faults.mishaps.push_back({.what = mishap::kind::crash, .rank = 2});
  run.record.received.clear();
  run.record.participants.front().owed = 2;
  run.failed({errc::peer_failed, call_1, "rank 1 is gone"});
  for (int i = 0; i < 20; ++i) run.failed({errc::config_failed, call_1, "it threw"});
  for (const char* const name : {"delivery", "leftovers", "errors", "quarantine"}) {
    CAPTURE(name);
    CHECK_FALSE(run.of(name).empty());
  }
  run.faults.mishaps.back().rank = 1;
  for (const char* const name : {"delivery", "leftovers", "errors", "quarantine"}) {
    CAPTURE(name);
    CHECK(run.of(name).empty());
  }
}

TEST_CASE("oracle compares candidates at the sizes of a decision's own key, and allows for the run's noise") {
  quiet_run run;
  run.faults = tape();
  op_spec& op = run.play.ops.front();
  op.sizes = {1'000, 100'000};
  op.configs = {"timed:even:30000",
                "timed:short:10000:1000"};  // `short` is faster for small messages and slower for large ones
  search_view c;
  c.title = "pair 0->1";
  c.where = parley::actors::search::stage::decided;
  c.winner = "short";
  c.bucket = parley::tuning::size_bucket::of(1'000);
  run.record.searches.push_back(c);
  CHECK(run.of("oracle").empty());
  run.record.searches.front().bucket = parley::tuning::size_bucket::of(100'000);
  CHECK(says(run.of("oracle"), "short was decided, and even is the fastest"));
  run.faults.noise = 3'000;
  CHECK(run.of("oracle").empty());
}

TEST_CASE("leftovers finds coroutines that were never destroyed") {
  quiet_run run;
  run.record.frames_left = 2;
  CHECK(says(run.of("leftovers"), "2 coroutines were never destroyed"));
}
