#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/services.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/invariant.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/version.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <map>
#include <set>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

rank_settings eager() {
  rank_settings s;
  s.plan.budget_fraction = 1e9;
  return s;
}

/// A config that sends the whole payload at once, as `direct` does, under a name of the caller's choice.
config_ptr whole(const std::string& name) {
  const send_function out = [](part_sender& o, std::span<const std::byte> d) -> task<> { co_await o.send(0, d); };
  const receive_function in = [](part_receiver& i, std::span<std::byte> d) -> task<> { co_await i.receive(0, d); };
  return paired({.name = name, .wire_class = name}, out, in);
}

std::set<std::string> candidates(world& w) {
  const auto& ids = w[0].agreements().front().assigned->ids();
  return {ids.begin(), ids.end()};
}

memory_link_options losing(std::uint64_t seed, std::uint64_t percent) {
  auto dice = std::make_shared<random_stream>(seed, 7);
  memory_link_options o;
  o.lose = [dice, percent](rank_id, rank_id, link::channel on) {
    return on == link::channel::control && dice->below(100) < percent;
  };
  return o;
}

}  // namespace

TEST_CASE(
    "with a fifth of all control messages lost every campaign ends, and both ends run the same config for each call") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    world w(3, eager(), losing(seed, 20));
    const std::vector configs{direct(), chunked(16_KiB, 1), chunked(32_KiB, 4)};
    std::vector<config_ptr> reversed{configs[0], configs[2], configs[1]};
    transfer out(w[0], pair_of(configs));
    transfer in(w[1], pair_of(seed % 2 == 0 ? configs : reversed));
    static_cast<void>(transfer(w[2], pair_of(configs)));
    const actors::search* c = nullptr;
    for (int round = 0; round < 60; ++round) {
      const auto all = move_each(w, out, in, std::vector<std::size_t>(10, 100'000));
      REQUIRE(all.failed() == 0);
      REQUIRE(all.wrong == 0);
      pass(w, 500'000'000);
      c = search_of(w, "128KiB");
      if (c != nullptr && c->is_decided()) break;
    }
    REQUIRE(c != nullptr);
    REQUIRE(c->is_decided());
    // The decision reaches both sides, however often its message is lost.
    pass(w, 60'000'000'000);
    move_each(w, out, in, std::vector<std::size_t>(3, 100'000));
    const auto flights = join_flights(w);
    REQUIRE(flights.mismatches == 0);
    REQUIRE(flights.timed > 0);
    const auto mine = w[0].results().find("activations/0>1", "128KiB");
    const auto theirs = w[1].results();
    REQUIRE(theirs.find("activations/0>1", "128KiB") != nullptr);
    CHECK(theirs.find("activations/0>1", "128KiB")->solution == c->chosen().config);
    static_cast<void>(mine);
    CHECK(w[2].mail().statistics().sent == 0);
    CHECK(w[2].mail().statistics().received == 0);
  }
}

TEST_CASE("with nearly all control messages lost all data arrives, and both ends run the same config for each call") {
  world w(2, eager(), losing(1, 97));
  const std::vector configs{direct(), chunked(16_KiB, 1)};
  const auto all = move_each(w, configs, configs, std::vector<std::size_t>(30, 50'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(join_flights(w).mismatches == 0);
}

TEST_CASE("a config that only one end has is never assigned") {
  for (const bool sender_has_more : {true, false}) {
    world w(2, eager());
    const std::vector common{direct(), chunked(64_KiB, 2)};
    auto more = common;
    more.insert(more.begin() + 1, chunked(8_KiB, 8));
    more.push_back(whole("special"));
    const auto all = move_each(w, sender_has_more ? more : common, sender_has_more ? common : more,
                               std::vector<std::size_t>(200, 100'000));
    CHECK(all.failed() == 0);
    CHECK(candidates(w) == std::set<std::string>{"direct", chunked(64_KiB, 2)->id()});
    CHECK(search_of(w, "128KiB")->where() == actors::search::stage::decided);
    CHECK(join_flights(w).mismatches == 0);
    CHECK(w[0].agreements().front().no_common_config.empty());
  }
}

TEST_CASE("both ends pair configs by digest although their lists are in opposite order") {
  world w(2, eager());
  const std::vector<config_ptr> mine{direct(), chunked(8_KiB, 1), chunked(64_KiB, 2), whole("special")};
  const std::vector<config_ptr> theirs{direct(), whole("special"), chunked(64_KiB, 2), chunked(8_KiB, 1)};
  const auto all = move_each(w, mine, theirs, std::vector<std::size_t>(200, 100'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(candidates(w).size() == 4);
  const auto flights = join_flights(w);
  CHECK(flights.mismatches == 0);
  CHECK(flights.timed > 4);
}

TEST_CASE("if only the default is common, the leader names the other configs of both ends, and the default runs") {
  world w(2, eager());
  const auto all =
      move_each(w, {direct(), chunked(8_KiB, 1)}, {direct(), whole("special")}, std::vector<std::size_t>(50, 1000));
  CHECK(all.failed() == 0);
  CHECK(search_of(w, "1KiB")->trials() == 0);
  pass(w, 1'000'000'000);
  const auto text = w[0].agreements().front().no_common_config;
  CHECK(text.find("special") != std::string::npos);
  CHECK(text.find("chunked(chunk_bytes=8192 in_flight=1)") != std::string::npos);
}

TEST_CASE("a config that is not available on one rank is no candidate") {
  class absent final : public paired_config {
   public:
    absent() : paired_config({.name = "absent", .wire_class = "absent"}) {}
    task<> send(part_sender& o, std::span<const std::byte> d) const override { co_await o.send(0, d); }
    task<> receive(part_receiver& i, std::span<std::byte> d) const override { co_await i.receive(0, d); }
    result<> available() const override { return error{errc::unavailable, "no such card here"}; }
  };
  world w(2, eager());
  const std::vector<config_ptr> mine{direct(), std::make_shared<absent>(), chunked(8_KiB, 1)};
  const auto all = move_each(w, mine, mine, std::vector<std::size_t>(100, 20'000));
  CHECK(all.failed() == 0);
  CHECK(candidates(w) == std::set<std::string>{"direct", chunked(8_KiB, 1)->id()});
}

TEST_CASE("if only the default may run both ends have the same decision with the same reason") {
  world w(2, eager());
  transfer out(w[0], pair_of({direct(), chunked(8_KiB, 1)}));
  transfer in(w[1], pair_of({direct()}));
  CHECK(move_each(w, out, in, {1000, 1000}).failed() == 0);
  pass(w, 1'000'000'000);
  CHECK(out.decision(1000).decided);
  CHECK(out.decision(1000).source == actors::decision_source::only_default);
  CHECK(in.decision(1000).why == out.decision(1000).why);  // wording.cpp checks the sentence
}

TEST_CASE("a sender that is late for one rehearsal fails that one alone, and every config stays a candidate") {
  memory_link_options o;
  o.eager_bytes = 1 << 20;
  std::optional<world> job;
  o.delay = [&](rank_id, rank_id, link::channel on) -> time_ns {
    return on == link::channel::data && job && job->clock.now() < 24'000'000'000 ? 25'000'000'000 : 0;
  };
  job.emplace(2, eager(), o);
  const std::vector configs{direct(), chunked(8_KiB, 1), chunked(8_KiB, 2), chunked(16_KiB, 1), chunked(16_KiB, 2)};
  transfer out((*job)[0], pair_of(configs));
  transfer in((*job)[1], pair_of(configs));
  pass(*job, 200'000'000'000);
  const auto& errors = (*job)[1].participants().front()->warm_errors;
  REQUIRE(errors.size() == 1);
  CHECK(errors.front().starts_with("direct: timeout: rank 0"));
  const auto all = move_each(*job, out, in, std::vector<std::size_t>(100, 20'000));
  CHECK(all.failed() == 0);
  CHECK(candidates(*job).size() == configs.size());
  CHECK(join_flights(*job).mismatches == 0);
}

TEST_CASE(
    "if the declarations of two ends differ, all calls fail at both ends with an error that quotes the difference") {
  const auto check = [](const transfer_options& mine, const transfer_options& theirs,
                        std::initializer_list<const char*> words) {
    world w(2);
    transfer out(w[0], mine);
    transfer in(w[1], theirs);
    pass(w, 2'000'000'000);
    const auto all = move_each(w, out, in, {10, 20});
    for (const auto& side : {all.sent, all.received}) {
      REQUIRE(side.size() == 2);
      for (const auto& outcome : side) {
        for (const char* word : words) CHECK(is(outcome, {.code = errc::declaration_mismatch, .quotes = word}));
      }
    }
  };
  auto bf16 = pair_of({direct(), chunked(8_KiB)});
  bf16.dtype = "bf16";
  auto fp32 = bf16;
  fp32.dtype = "fp32";
  check(bf16, fp32, {"activations 0->1", "dtype bf16", "dtype fp32", "declare the op alike"});
  check(pair_of({direct(), chunked(8_KiB)}), pair_of({chunked(8_KiB), direct()}),
        {"default direct", "default chunked"});
}

TEST_CASE("a waiting receive fails with declaration_mismatch once the ranks find that their declarations differ") {
  world w(2);
  auto mine = pair_of({direct()});
  auto theirs = pair_of({direct()});
  theirs.dtype = "fp32";
  transfer out(w[0], mine);
  transfer in(w[1], theirs);
  std::vector<std::byte> buffer(10);
  const auto wait = [](transfer t, std::span<std::byte> into) -> task<result<std::uint64_t>> {
    auto got = co_await attempt(t.receive(into, {.from = 0}));
    co_return got;
  };
  const auto got = run(w.clock, wait(in, buffer));
  CHECK(got.code() == errc::declaration_mismatch);
  CHECK(w.clock.now() < 2'000'000'000);
}

TEST_CASE("equally fast configs keep the default, after trials") {
  world w(2, eager());
  const std::vector<config_ptr> equals{whole("a"), whole("b"), whole("c")};
  const auto all = move_each(w, equals, equals, std::vector<std::size_t>(300, 100'000));
  CHECK(all.failed() == 0);
  const auto* c = search_of(w, "128KiB");
  REQUIRE(c != nullptr);
  CHECK(c->is_decided());
  CHECK(c->trials() > 0);
  CHECK(c->chosen().config == "a");
}

TEST_CASE("after a decision the ranks send no control messages except flow control and credits") {
  world w(2, eager());
  const std::vector configs{direct(), chunked(16_KiB, 1)};
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  move_each(w, out, in, std::vector<std::size_t>(200, 20'000));
  REQUIRE(search_of(w, "32KiB")->where() == actors::search::stage::decided);
  pass(w, 5'000'000'000);
  const auto tuning_messages = [](rank& r) {
    return r.mail().statistics().sent - r.flow_messages() - r.mail().statistics().credits_sent;
  };
  const auto before = tuning_messages(w[0]) + tuning_messages(w[1]);
  move_each(w, out, in, std::vector<std::size_t>(300, 20'000));  // fewer than there are calls between two drift checks
  CHECK(tuning_messages(w[0]) + tuning_messages(w[1]) == before);
}

TEST_CASE("the joined flight recorders reveal a receiver that ignores the stamp") {
  auto settings = eager();
  settings.mutant_ignores_stamp = true;
  world w(2, settings);
  const std::vector configs{direct(), chunked(16_KiB, 2)};
  move_each(w, configs, configs, std::vector<std::size_t>(50, 100'000));
  CHECK(join_flights(w).mismatches > 0);
}

namespace {
/// Sends one part as the default does, but declares no shape, so that parley takes it for a different config.
struct in_one_part final : paired_config {
  in_one_part() : paired_config({.name = "in_one_part", .wire_class = "in_one_part"}) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }
};
}  // namespace

TEST_CASE(
    "both ends find an ignored stamp (S2): the receiver in each call, its sender in the trials that are reported") {
  // Each message is one part under either config, so all bytes arrive although the receiver ignores the stamp.
  // A remembered config runs without being timed.
  const std::vector<config_ptr> configs{direct(), std::make_shared<in_one_part>()};
  for (const bool remembered : {false, true}) {
    CAPTURE(remembered);
    auto settings = eager();
    settings.mutant_ignores_stamp = true;
    settings.results_path = "results.csv";
    world w(2, settings);
    w.disk[0].files["results0.csv"] = "Validator,PARLEY_VERSION," + std::string(version_text) +
                                      "\nValidator,PARLEY_WORLD,2\nactivations/0>1,16KiB," + configs[1]->id() +
                                      ",0.001\n";
    for (rank_id r = 0; r < 2 && remembered; ++r) {  // a rank reads its results file when it starts
      w.restart(r);
      w.tell_of(r);
    }
    std::size_t own = 0;
    std::size_t reported = 0;
    const breach_watch watch([&](const breach& b) {
      CHECK(b.name == "S2");
      ++(b.culprit ? reported : own);
    });
    transfer out(w[0], pair_of(configs));
    transfer in(w[1], pair_of(configs));
    pass(w, 1'000'000'000);
    const auto all = move_each(w, out, in, std::vector<std::size_t>(200, 10'000));
    pass(w, 1'000'000'000);
    CHECK(own >= 1);
    CHECK(own < 10);  // the config is left out after that
    CHECK((reported == 0) == remembered);
    CHECK(join_flights(w).mismatches == own);
    std::size_t mismatched = 0;
    for (const auto& r : all.received) mismatched += r.code() == errc::config_mismatch ? 1 : 0;
    CHECK(mismatched == own);
  }
}

TEST_CASE(
    "a sender also checks untimed calls (S2), by the receiver's occasional reports of the config that it ran last") {
  const std::vector configs{direct(), chunked(16_KiB, 2)};
  world w(2);
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  std::size_t blamed = 0;
  const breach_watch watch([&](const breach& b) {
    CHECK(b.name == "S2");
    CHECK(b.culprit == 1);
    ++blamed;
  });
  CHECK(move_each(w, out, in, std::vector<std::size_t>(511, 10'000)).failed() == 0);
  CHECK(blamed == 0);
  // The receiver's next report names the config that it recorded last. This forged record names another one.
  auto ran = w[1].flight().in_order().back();
  REQUIRE(ran.what == flight_event::received);
  REQUIRE(ran.invocation == 510);
  ran.digest ^= 1;
  w[1].services().flight.add(ran);
  CHECK(move_each(w, out, in, {10'000}).failed() == 0);
  pass(w, 1'000'000);
  CHECK(blamed == 1);
}

TEST_CASE("ranks outside the op send and receive nothing") {
  world w(4, eager());
  const std::vector configs{direct(), chunked(16_KiB, 2)};
  static_cast<void>(transfer(w[2], pair_of(configs)));
  const auto all = move_each(w, configs, configs, std::vector<std::size_t>(200, 100'000));
  CHECK(all.failed() == 0);
  for (const rank_id idle : {rank_id{2}, rank_id{3}}) {
    for (const std::size_t channel : {std::size_t{0}, std::size_t{1}}) {
      CHECK(w.links[idle].statistics().sent[channel] == 0);
      CHECK(w.links[idle].statistics().received[channel] == 0);
    }
  }
}

TEST_CASE("a tuning phase ends with every size decided, and later calls make no trials") {
  world w(2, eager());
  const std::vector configs{direct(), chunked(16_KiB, 2)};
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  const auto both = [](transfer o, transfer i) -> task<> {
    const std::vector<std::uint64_t> sizes{1000, 100'000};
    auto done = co_await when_all(o.tune(sizes), i.tune(sizes));
    static_cast<void>(done);
  };
  run(w.clock, both(out, in));
  const auto trials = search_of(w, "128KiB")->trials();
  CHECK(trials > 0);
  CHECK(search_of(w, "1KiB")->where() == actors::search::stage::decided);
  const auto all = move_each(w, out, in, {1000, 100'000});
  CHECK(all.wrong == 0);
  CHECK(search_of(w, "128KiB")->trials() == trials);
}

TEST_CASE("a tuning phase waits long enough for credits, so that a put is tried and can win") {
  memory_link_options slow;
  slow.ns_per_byte = 1;
  slow.one_sided_ns_per_byte = 0.1;
  slow.delay = [](rank_id, rank_id, link::channel on) -> time_ns { return on == link::channel::control ? 300'000 : 0; };
  world w(2, eager(), std::move(slow));
  const std::vector configs{direct(), put()};
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  const auto both = [](transfer o, transfer i) -> task<> {
    const std::vector<std::uint64_t> sizes(1, 100'000);
    auto done = co_await when_all(o.tune(sizes), i.tune(sizes));
    static_cast<void>(done);
  };
  run(w.clock, both(out, in));
  CHECK(search_of(w, "128KiB")->where() == actors::search::stage::decided);
  CHECK(search_of(w, "128KiB")->chosen().config == configs[1]->id());
}

TEST_CASE("a wait for a decision through a temporary handle ends with a timeout that names op and size") {
  world w(2);
  transfer out(w[0], pair_of({direct(), chunked(16_KiB, 2)}));
  std::optional<result<>> outcome;
  const auto await_it = [&](time_ns timeout_ns) -> task<> {
    auto d = co_await attempt(out.decided(1000, {.timeout = std::chrono::nanoseconds(timeout_ns)}));
    outcome.emplace(d ? result<>() : result<>(d.reason()));
  };
  run(w.clock, await_it(2'000'000'000));
  CHECK(
      is(*outcome, {.code = errc::timeout, .op = "activations 0->1", .rank = 0, .own_bytes = 1000, .quotes = "1KiB"}));
}

TEST_CASE("with random catalogues, sizes and tags all data is exact and both ends run the same config for each call") {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    random_stream dice(seed, 5);
    world w(2, dice.below(2) == 0 ? eager() : rank_settings{}, losing(seed, dice.below(2) * 10));
    const std::vector<config_ptr> known{chunked(1'000 + dice.below(50'000), 1 + dice.below(5)), chunked(4_KiB, 3),
                                        whole("x"), whole("y"), chunked(64_KiB, 2)};
    const auto catalogue = [&] {
      std::vector<config_ptr> list{direct()};
      for (const auto& c : known) {
        if (dice.below(3) != 0) list.insert(list.begin() + 1 + static_cast<std::ptrdiff_t>(dice.below(list.size())), c);
      }
      return list;
    };
    transfer out(w[0], pair_of(catalogue()));
    transfer in(w[1], pair_of(catalogue()));
    struct message {
      std::size_t size;
      std::uint32_t tag;
    };
    std::vector<message> messages;
    std::map<std::uint32_t, std::vector<std::size_t>> by_tag;
    const std::size_t count = 20 + dice.below(60);
    for (std::size_t i = 0; i < count; ++i) {
      messages.push_back(
          {dice.below(4) == 0 ? dice.below(200'000) : dice.below(3'000), static_cast<std::uint32_t>(dice.below(3))});
      by_tag[messages.back().tag].push_back(i);
    }
    const auto send = [](transfer t, message m, std::size_t i, std::size_t& failed) -> task<> {
      const auto data = pattern(m.size, i);
      auto sent = co_await attempt(t.send(data, {.to = 1, .tag = m.tag}));
      if (!sent) ++failed;
    };
    const auto receive = [](transfer t, message m, std::size_t i, std::size_t spare, std::size_t& failed) -> task<> {
      std::vector<std::byte> buffer(m.size + spare);
      auto got = co_await attempt(t.receive(buffer, {.from = 0, .tag = m.tag}));
      if (got) buffer.resize(*got);
      if (!got || buffer != pattern(m.size, i)) ++failed;
    };
    std::size_t failed = 0;
    scope all(w.clock);
    for (std::size_t i = 0; i < count; ++i) all.spawn(send(out, messages[i], i, failed));
    // The receiver posts its receives tag by tag, the highest tag first.
    for (auto tag = by_tag.rbegin(); tag != by_tag.rend(); ++tag) {
      for (const std::size_t i : tag->second) all.spawn(receive(in, messages[i], i, dice.below(100), failed));
    }
    run_until(w.clock, [&] { return all.running() == 0; });
    REQUIRE(failed == 0);
    const auto flights = join_flights(w);
    REQUIRE(flights.mismatches == 0);
    REQUIRE(flights.pairs >= count);
  }
}
