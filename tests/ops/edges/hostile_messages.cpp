#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/actors/agreement/messages.hpp>
#include <parley/actors/agreement/participant.hpp>
#include <parley/actors/letters/pieces.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::actors;
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

/// Fills a message with random fields. The message is encoded correctly.
struct wild {
  random_stream& dice;
  const std::vector<std::uint64_t>& digests;

  template <class T>
  void fill(T& value) {
    if constexpr (has_fields<T>) {
      std::apply([this](auto&... field) { (this->fill(field), ...); }, value.fields());
    } else if constexpr (std::is_enum_v<T>) {
      value = static_cast<T>(dice.below(static_cast<std::uint64_t>(T::last) + 1));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = dice.below(2) == 0;
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      value = dice.below(2) == 0 ? digests[dice.below(digests.size())] : dice.below(300'000);
    } else if constexpr (std::is_floating_point_v<T>) {
      value = dice.below(2) == 0 ? -1e300 : std::numeric_limits<T>::infinity();
    } else if constexpr (std::is_arithmetic_v<T>) {
      value = dice.below(2) == 0 ? static_cast<T>(dice.below(200)) : std::numeric_limits<T>::max();
    } else {
      value.resize(dice.below(4));
      for (auto& element : value) fill_element(element);
    }
  }
  template <class E>
  void fill_element(E& element) {
    if constexpr (std::is_same_v<E, char>) {
      element = static_cast<char>(dice.below(256));
    } else {
      fill(element);
    }
  }
};

template <class M>
void throw_at(router& from, rank_id to, std::uint64_t actor, std::uint64_t generation, wild& w) {
  M message{};
  w.fill(message);
  static_cast<void>(from.send(to, actor, generation, message));
}

}  // namespace

TEST_CASE("an op moves its data and ends its campaign, whatever messages an outsider with the key sends") {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    random_stream dice(seed, 9);
    // Rank 2 is an outsider, which has a router of its own and sends to any rank.
    virtual_time clock;
    memory_world links(clock, 3);
    const std::vector<std::uint64_t> incarnations{1000, 1001, 1002};
    std::vector<std::unique_ptr<ops::rank>> ranks;
    for (rank_id r = 0; r < 2; ++r)
      ranks.push_back(
          std::make_unique<ops::rank>(rank_foundation{clock, links[r], nullptr, incarnations, {}}, eager()));
    router outsider(clock, links[2], {}, incarnations);
    const std::vector configs{direct(), chunked(16_KiB, 2), chunked(40'000, 3)};
    transfer out(*ranks[0], pair_of(configs));
    transfer in(*ranks[1], pair_of(configs));
    const auto op = declare_edge("activations", 0, 1, "");
    const std::uint64_t generation = first_generation(op, incarnations);
    std::vector<std::uint64_t> digests{0, 1, op.hash(), op.id(), generation, std::numeric_limits<std::uint64_t>::max()};
    for (const auto& c : configs) digests.push_back(c->digest());
    wild any{dice, digests};
    const auto once = [](transfer o, transfer i, int& wrong) -> task<> {
      const auto data = pattern(100'000, 3);
      std::vector<std::byte> buffer(data.size());
      auto done = co_await when_all(o.send(data, {.to = 1}), i.receive(buffer, {.from = 0}));
      static_cast<void>(done);
      if (buffer != data) ++wrong;
    };
    int wrong = 0;
    for (int round = 0; round < 150; ++round) {
      for (int burst = 0; burst < 5; ++burst) {
        const auto to = static_cast<rank_id>(dice.below(2));
        const std::uint64_t actor = number_of(op.id(), static_cast<part>(dice.below(4)));
        const std::uint64_t of = dice.below(8) == 0 ? generation + 1 : generation;
        switch (dice.below(13)) {
          case 0: throw_at<ack>(outsider, to, actor, of, any); break;
          case 1: throw_at<offer>(outsider, to, actor, of, any); break;
          case 2: throw_at<merged>(outsider, to, actor, of, any); break;
          case 3: throw_at<op_reject>(outsider, to, actor, of, any); break;
          case 4: throw_at<warm>(outsider, to, actor, of, any); break;
          case 5: throw_at<warmed>(outsider, to, actor, of, any); break;
          case 6: throw_at<report>(outsider, to, actor, of, any); break;
          case 7: throw_at<decide>(outsider, to, actor, of, any); break;
          case 8: throw_at<tuning_request>(outsider, to, actor, of, any); break;
          case 9: throw_at<nack>(outsider, to, actor, of, any); break;
          case 10: throw_at<piece>(outsider, to, actor, of, any); break;
          case 11: {  // random bytes, under a type number that may be a known one
            std::vector<std::byte> garbage(dice.below(300));
            for (std::byte& b : garbage) b = static_cast<std::byte>(dice.below(256));
            static_cast<void>(outsider.send_raw(to, actor, of, static_cast<std::uint16_t>(dice.below(40)), garbage));
            break;
          }
          default: {
            std::vector<std::byte> large(900'000);
            static_cast<void>(outsider.send_raw(to, actor, of, static_cast<std::uint16_t>(dice.below(40)), large));
          }
        }
      }
      run(clock, once(out, in, wrong));
    }
    CHECK(wrong == 0);
    CHECK(out.decision(100'000).decided);
    CHECK(in.decision(100'000).decided);
    CHECK(out.decision(100'000).digest == in.decision(100'000).digest);
  }
}

TEST_CASE("when a peer rejects the op with any error number, the receive ends with an error that has a name") {
  for (unsigned code = 0; code < 256; ++code) {
    CAPTURE(code);
    virtual_time clock;
    memory_world links(clock, 2);
    const std::vector<std::uint64_t> incarnations{1000, 1001};
    router liar(clock, links[0], {}, incarnations);
    ops::rank mine(rank_foundation{clock, links[1], nullptr, incarnations, {}}, rank_settings{});
    const auto op = declare_edge("activations", 0, 1, "");
    transfer in(mine, pair_of({direct()}));
    op_reject said;
    said.number = 1;
    said.code = static_cast<std::uint8_t>(code);
    said.text = "said by rank 0";
    std::optional<errc> ended;
    const auto receive_one = [&]() -> task<> {
      std::vector<std::byte> buffer(100);
      ended = (co_await attempt(in.receive(buffer, {.from = 0, .timeout = 1s}))).code();
    };
    scope calls(clock);
    calls.spawn(receive_one());
    clock.turn();
    REQUIRE(liar.send(1, number_of(op.id(), part::participant), first_generation(op, incarnations), said) ==
            errc::none);
    run_until(clock, [&] { return ended.has_value(); });
    CHECK(*ended == errc_of(code, errc::declaration_mismatch));
    CHECK(*ended > errc::pending);
  }
}

TEST_CASE(
    "a catalogue of 4,096 configs too large for one message is sent in pieces, and the common configs are tuned") {
  world w(2, eager());
  const auto named = [](std::string_view kind, std::size_t i) {
    tuning::config_identity identity{.name = std::string(kind) + std::to_string(i), .wire_class = std::string(kind)};
    for (int p = 0; p < 3; ++p)
      identity.parameters.emplace_back("parameter" + std::to_string(p) + std::string(40, 'x'), std::string(100, 'v'));
    const send_function out = [](part_sender& o, std::span<const std::byte> d) -> task<> { co_await o.send(0, d); };
    const receive_function in = [](part_receiver& i2, std::span<std::byte> d) -> task<> { co_await i2.receive(0, d); };
    return paired(std::move(identity), out, in);
  };
  std::vector<config_ptr> mine{direct(), chunked(16_KiB, 8)}, theirs{direct()};
  for (std::size_t i = 0; i + 2 < 4096; ++i) {
    mine.push_back(named("mine", i));
    theirs.push_back(named("theirs", i));
  }
  theirs.push_back(chunked(16_KiB, 8));
  transfer out(w[0], pair_of(mine));
  transfer in(w[1], pair_of(theirs));
  const auto all = move_each(w, out, in, std::vector<std::size_t>(60, 100'000));
  CHECK(all.failed() == 0);
  pass(w, 1'000'000'000);
  const auto more = move_each(w, out, in, std::vector<std::size_t>(60, 100'000));
  CHECK(more.failed() == 0);
  pass(w, 1'000'000'000);
  CHECK(w[1].mail().sent_by_type()[piece::message_type] >= 8);
  CHECK(w[0].agreements().front().assigned->ids().size() == 2);
  CHECK(in.decision(100'000).decided);
  CHECK(in.decision(100'000).config == chunked(16_KiB, 8)->id());
}

TEST_CASE("configs whose digests collide are excluded, and the other configs stay candidates") {
  world w(2, eager());
  const send_function out_of = [](part_sender& o, std::span<const std::byte> d) -> task<> { co_await o.send(0, d); };
  const receive_function into = [](part_receiver& i, std::span<std::byte> d) -> task<> { co_await i.receive(0, d); };
  const auto salted = [&](const char* salt) {
    return paired({.name = "salted", .parameters = {{"salt", salt}}, .wire_class = "w"}, out_of, into);
  };
  const auto ours = salted("nhLBBMn-HTJ"), theirs = salted("6iDp8QsCDrH");
  REQUIRE(ours->digest() == theirs->digest());
  transfer out(w[0], pair_of({direct(), ours, chunked(16_KiB, 8)}));
  transfer in(w[1], pair_of({direct(), theirs, chunked(16_KiB, 8)}));
  const auto all = move_each(w, out, in, std::vector<std::size_t>(100, 100'000));
  CHECK(all.failed() == 0);
  std::string candidates;
  for (const std::string& id : w[0].agreements().front().assigned->ids()) candidates += id + ";";
  CHECK(candidates == "direct;" + chunked(16_KiB, 8)->id() + ";");
  CHECK(join_flights(w).mismatches == 0);
}

namespace {

/// Rank 1 is a real rank. Rank 0 holds the key and sends what the test lets it send. Rank 1 receives from rank 0, or sends to rank 0.
struct beside_a_liar {
  explicit beside_a_liar(std::uint64_t early_bytes = most_early_bytes)
      : links(clock, 2), liar(clock, links[0], {}, incarnations) {
    rank_settings s = eager();
    s.early_bytes = early_bytes;
    mine = std::make_unique<ops::rank>(rank_foundation{clock, links[1], nullptr, incarnations, {}}, s);
  }
  void say(const stamp& s, std::span<const std::byte> payload) {
    static_cast<void>(links[0].send(1, link::channel::data, bytes_of(s), payload, nullptr));
  }
  stamp stamp_of(std::uint32_t invocation, std::uint64_t total, std::uint64_t offset, const paired_config& c) const {
    return {.op = op.id(),
            .generation = generation,
            .digest = c.digest(),
            .total_bytes = total,
            .offset = offset,
            .invocation = invocation,
            .source = 0};
  }
  void pass(time_ns span) {
    const auto sleep = [](time_ns until) -> task<> {
      auto woken = co_await sleep_until(until);
      static_cast<void>(woken);
    };
    run(clock, sleep(clock.deadline_in(span)));
  }
  virtual_time clock;
  memory_world links;
  std::vector<std::uint64_t> incarnations{1000, 1001};
  router liar;
  std::unique_ptr<ops::rank> mine;
  op_declaration op = declare_edge("activations", 0, 1, "");
  std::uint64_t generation = first_generation(op, incarnations);
};

/// Rank 0 is a receiver that has offered all its configs to rank 1. Rank 1 sends and leads.
struct beside_a_lying_receiver : beside_a_liar {
  explicit beside_a_lying_receiver(const std::vector<config_ptr>& configs) {
    op = declare_edge("activations", 1, 0, "");
    generation = first_generation(op, incarnations);
    auto declared = pair_of(configs);
    declared.role = [](rank_id r) { return r == 1 ? role::sender : role::receiver; };
    static_cast<void>(transfer(*mine, declared));
    const participant_state& leader = *mine->participants().front();
    offer o;
    o.number = 1;
    o.decl_hash = leader.declaration.hash();
    o.role = "receiver";
    o.catalogue_hash = leader.configs.hash();
    o.available.assign(configs.size(), 1);
    say(o);
  }
  template <class M>
  void say(const M& message) {
    static_cast<void>(liar.send(1, number_of(op.id(), part::coordinator), generation, message));
    pass(100'000'000);
  }
};

task<> receive_once(transfer in, std::vector<std::byte>& buffer, result<std::uint64_t>& outcome) {
  outcome = co_await attempt(in.receive(buffer, {.from = 0}));
}

}  // namespace

TEST_CASE("a rank limits what it keeps of a flood on an edge without receives, and both ends get the error full") {
  beside_a_liar job(std::uint64_t{1} << 20U);
  transfer in(*job.mine, pair_of({direct()}));
  std::string told;
  job.liar.bind<op_reject>(number_of(job.op.id(), part::participant), [&](envelope, op_reject&& r) {
    CHECK(r.code == static_cast<std::uint8_t>(errc::full));
    told = r.text;
    return errc::none;
  });
  const std::vector<std::byte> payload(8'000);
  std::vector<std::byte> buffer(8'000);
  // Below the limit, early messages are kept and received.
  for (std::uint32_t i = 0; i < 100; ++i) job.say(job.stamp_of(i, 8'000, 0, *direct()), payload);
  job.pass(1'000'000'000);
  result<std::uint64_t> outcome = errc::pending;
  run(job.clock, receive_once(in, buffer, outcome));
  CHECK(outcome);
  CHECK(told.empty());
  for (std::uint32_t i = 100; i < 300; ++i) job.say(job.stamp_of(i, 8'000, 0, *direct()), payload);
  job.pass(1'000'000'000);
  CHECK(told.find("activations 0->1: rank 1 received more than 1048576 bytes") == 0);
  run(job.clock, receive_once(in, buffer, outcome));
  CHECK(outcome.code() == errc::full);
  // Parts that hold nothing but their stamps count as well.
  beside_a_liar other(std::uint64_t{1} << 20U);
  in = transfer(*other.mine, pair_of({direct()}));
  for (std::uint32_t i = 0; i < 8'000; ++i) other.say(other.stamp_of(i, 0, 0, *direct()), {});
  other.pass(1'000'000'000);
  run(other.clock, receive_once(in, buffer, outcome));
  CHECK(outcome.code() == errc::full);
}

TEST_CASE("overlapping parts fail the receive as a breach of S8, and empty parts are ignored") {
  const auto config = chunked(600, 1);
  beside_a_liar job;
  transfer in(*job.mine, pair_of({config}));
  std::vector<std::byte> payload(1'000), buffer(1'000);
  std::uint64_t blamed = 0;
  breach_watch watch([&](const breach& b) { blamed += b.culprit == 0U && b.name == "S8" ? 1 : 0; });
  for (std::uint64_t offset = 0; offset < 400; ++offset)
    job.say(job.stamp_of(0, 1'000, offset, *config), std::span(payload).first(600));
  result<std::uint64_t> outcome = errc::pending;
  run(job.clock, receive_once(in, buffer, outcome));
  CHECK(outcome.code() == errc::config_failed);
  if (!outcome) CHECK(outcome.reason().what().find("more bytes arrived than the payload has") != std::string::npos);
  CHECK(blamed == 1);
  // Empty parts are ignored, and the correct parts are received.
  for (std::uint64_t offset = 0; offset < 1'000; ++offset) job.say(job.stamp_of(1, 1'000, offset, *config), {});
  job.say(job.stamp_of(1, 1'000, 0, *config), std::span(payload).first(600));
  job.say(job.stamp_of(1, 1'000, 600, *config), std::span(payload).subspan(600));
  outcome = errc::pending;
  run(job.clock, receive_once(in, buffer, outcome));
  CHECK(outcome);
}

TEST_CASE("the leader keeps a participant's rehearsal errors up to a limit of number and length") {
  beside_a_lying_receiver job({direct(), chunked(16_KiB, 2)});
  warmed w;
  w.number = 2;
  w.errors.assign(5'000, "y");
  w.errors.front() = std::string(10'000, 'z');
  job.say(w);
  const auto agreed = job.mine->agreements().front();
  CHECK(agreed.warm_errors->size() == most_warm_errors);
  for (const std::string& e : *agreed.warm_errors) CHECK(e.size() < most_error_bytes + 50);
}

namespace {

/// Notes the names of rank 0's breaches for as long as this object lives.
struct blamed {
  std::vector<std::string> names;
  breach_watch watch{[this](const breach& b) {
    if (b.culprit == 0U) names.emplace_back(b.name);
  }};
};

struct idle_config final : symmetric_config {
  explicit idle_config(std::string name) : symmetric_config({.name = std::move(name), .wire_class = "idle"}) {}
  task<> run(symmetric_call, std::span<std::byte>) const override { co_return; }
};

}  // namespace

TEST_CASE("a participant that claims to have warmed a config that the leader did not ask for commits a breach (S3)") {
  const std::vector configs{direct(), chunked(16_KiB, 2)};
  beside_a_lying_receiver job(configs);
  const blamed seen;
  warmed w;
  w.number = 2;
  w.ready = {configs[0]->digest(), 4711};
  job.say(w);
  CHECK(seen.names == std::vector<std::string>{"S3"});
}

TEST_CASE("a decision for a config not warmed here, or not measured by all, is its sender's breach and is not stored") {
  beside_a_liar job;
  const blamed seen;
  symmetric_options op;
  op.name = "sums";
  op.configs = {std::make_shared<idle_config>("default"), std::make_shared<idle_config>("other")};
  op.communicator = std::make_shared<communicator>();
  static_cast<void>(symmetric(*job.mine, op));
  const participant_state& mine = *job.mine->participants().front();
  const std::uint64_t c0 = op.configs[0]->digest();
  const std::uint64_t other = op.configs[1]->digest();
  std::uint32_t number = 0;
  const auto say = [&](auto message) {
    message.number = ++number;
    static_cast<void>(job.liar.send(1, number_of(mine.declaration.id(), part::participant), mine.generation, message));
    job.pass(100'000'000);
  };
  merged m;
  m.candidates = {c0, other};
  m.ids = {"default", "other"};
  say(m);
  decide d;
  d.key = "4KiB";
  d.digest = other;
  d.version = 1;
  d.search = 1;
  d.source = decision_source::results;
  say(d);
  CHECK(seen.names == std::vector<std::string>{"S3"});
  warm w;
  w.candidates = w.variants = {c0, other};
  say(w);
  d.source = decision_source::trials;
  wire_evidence e;
  e.digest = other;
  e.time_ns = 1000;
  e.repetitions = 3;
  e.status = "measured";
  e.ranks = {{.rank = 0, .time_ns = 1000, .repetitions = 3, .status = "measured"}};
  say(d);  // no evidence
  d.evidence = {e};
  say(d);  // no measurement of rank 1
  CHECK(seen.names == std::vector<std::string>{"S3", "S6", "S6"});
  CHECK(mine.decisions.empty());
  d.evidence[0].ranks.push_back({.rank = 1, .time_ns = 900, .repetitions = 3, .status = "measured"});
  say(d);
  CHECK(seen.names.size() == 3);
  REQUIRE(mine.decisions.size() == 1);
  CHECK(mine.decisions[0].digest == other);
  d.digest = 4711;
  d.version = 2;
  say(d);  // 4711 is no candidate
  CHECK(seen.names == std::vector<std::string>{"S3", "S6", "S6", "S4"});
  CHECK(mine.decisions[0].digest == other);
}

TEST_CASE(
    "a stamp that names a config listed but not warmed here is its leader's breach (S3), and the config is not run") {
  beside_a_liar job;
  const blamed seen;
  const std::vector configs{star(), chain()};
  auto op = led_by(0, configs);
  op.kind = collective_kind::broadcast;
  collective group(*job.mine, op);
  const participant_state& mine = *job.mine->participants().front();
  std::vector<float> data(100);
  const auto receive = [](collective g, std::vector<float>& into, result<>& outcome) -> task<> {
    outcome = co_await attempt(g.broadcast(std::span(into)));
  };
  const auto say = [&](std::uint32_t invocation, std::uint64_t digest) {
    stamp s = job.stamp_of(invocation, data.size() * sizeof(float), 0, *direct());
    s.op = mine.declaration.id();
    s.generation = mine.generation;
    s.digest = digest;
    s.next_digest = configs[1]->digest();
    put_type(call_type_of<float>(), s);
    const std::vector<std::byte> payload(s.total_bytes, std::byte{1});
    job.say(s, payload);
  };
  merged m;
  m.number = 1;
  m.candidates = {configs[0]->digest(), configs[1]->digest()};
  m.ids = {configs[0]->id(), configs[1]->id()};
  static_cast<void>(job.liar.send(1, number_of(mine.declaration.id(), part::participant), mine.generation, m));
  job.pass(100'000'000);
  result<> outcome = errc::pending;
  say(0, configs[0]->digest());
  run(job.clock, receive(group, data, outcome));
  CHECK(outcome);
  CHECK(seen.names.empty());
  const std::vector<float> before = data;
  say(1, configs[1]->digest());
  run(job.clock, receive(group, data, outcome));
  CHECK(is(outcome, {.code = errc::config_mismatch, .config = configs[1]->id(), .quotes = "cannot run config"}));
  CHECK(seen.names == std::vector<std::string>{"S3"});
  CHECK(data == before);
}
