// How ranks choose among configs, seen from outside: the times that a config is charged with, the configs that count as one,
// and what a decision says of each rank.
#include <parley/tests/support/cases/mixture_case.hpp>
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/ops/core/capability.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr time_ns us = 1'000;
constexpr time_ns ms = 1'000'000;

task<> let_pass(time_ns span) {
  auto woken = co_await sleep_for(std::chrono::nanoseconds(span));
  static_cast<void>(woken);
}

task<> send_at_once(part_sender& out, std::span<const std::byte> data) { co_await out.send(0, data); }
task<> send_after_work(part_sender& out, std::span<const std::byte> data) {
  co_await let_pass(500 * us);
  co_await out.send(0, data);
}
task<> receive_at_once(part_receiver& in, std::span<std::byte> data) { co_await in.receive(0, data); }
task<> receive_and_work(part_receiver& in, std::span<std::byte> data) {
  co_await in.receive(0, data);
  co_await let_pass(500 * us);
}

config_ptr made(const char* name, send_function s, receive_function r) {
  return paired({.name = name, .wire_class = name}, s, r);
}

/// A round starts every 10 ms. Each end begins its call `lateness(round)` after the start of the round.
using lateness = time_ns (*)(std::size_t round);
task<> keep_sending(transfer t, std::size_t rounds, std::size_t bytes, lateness late) {
  const std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < rounds; ++i) {
    scope& here = co_await this_scope;
    const time_ns next = (here.where().now() / (10 * ms) + 1) * 10 * ms;
    auto woken = co_await sleep_until(next + late(i));
    static_cast<void>(woken);
    co_await t.send(data, {.to = 1});
  }
}
task<> keep_receiving(transfer t, std::size_t rounds, std::size_t bytes, lateness late) {
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < rounds; ++i) {
    scope& here = co_await this_scope;
    const time_ns next = (here.where().now() / (10 * ms) + 1) * 10 * ms;
    auto woken = co_await sleep_until(next + late(i));
    static_cast<void>(woken);
    const std::uint64_t came = co_await t.receive(data, {.from = 0});
    static_cast<void>(came);
  }
}

decision chosen(const std::vector<config_ptr>& configs, std::size_t bytes, lateness sender, lateness receiver) {
  world w(2, eager_trials());
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  const auto both = [](transfer o, transfer i, std::size_t n, lateness s, lateness r) -> task<> {
    auto done = co_await when_all(keep_sending(o, 120, n, s), keep_receiving(i, 120, n, r));
    static_cast<void>(done);
  };
  run(w.clock, both(out, in, bytes, sender, receiver));
  pass(w, 1'000 * ms);
  return out.to(1).decision(bytes);
}

time_ns in_time(std::size_t) { return 0; }
time_ns always_late(std::size_t) { return 3 * ms; }
time_ns late_by_some(std::size_t round) { return static_cast<time_ns>(round * 7919 % 600) * us; }

const candidate_evidence* about(const decision& d, const std::string& config) {
  const auto at = std::find_if(d.evidence.begin(), d.evidence.end(), [&](const auto& e) { return e.config == config; });
  return at == d.evidence.end() ? nullptr : &*at;
}

std::string status_of(const decision& d, const std::string& config) {
  const candidate_evidence* const e = about(d, config);
  return e == nullptr ? "not there" : e->status;
}

}  // namespace

TEST_CASE(
    "a default whose sender works 500 us before it sends loses to a quicker config, however late the receiver is") {
  const std::vector<config_ptr> configs{made("thorough", send_after_work, receive_at_once),
                                        made("quick", send_at_once, receive_at_once)};
  for (const std::size_t bytes : {std::size_t{1'000}, std::size_t{4} << 20U}) {
    for (const lateness receiver : {in_time, always_late, late_by_some}) {
      CAPTURE(bytes);
      const decision d = chosen(configs, bytes, in_time, receiver);
      REQUIRE(d.decided);
      CHECK(d.config == "quick");
      CHECK(about(d, "thorough")->time_ns >= 500 * us);
      CHECK(about(d, "thorough")->time_ns - about(d, "quick")->time_ns <= 501 * us);  // no lateness is charged
    }
  }
}

TEST_CASE("a default whose receiver works 500 us loses to a quicker config, however late the sender is") {
  const std::vector<config_ptr> configs{made("thorough", send_at_once, receive_and_work),
                                        made("quick", send_at_once, receive_at_once)};
  for (const lateness sender : {in_time, always_late, late_by_some}) {
    const decision d = chosen(configs, 1'000, sender, in_time);
    REQUIRE(d.decided);
    CHECK(d.config == "quick");
    CHECK(about(d, "thorough")->time_ns >= 500 * us);
  }
}

namespace {
// Calls with pauses between them. In the pauses the ranks find their common configs, and report.
void move_with_pauses(world& w, const std::vector<config_ptr>& configs) {
  transfer out(w[0], pair_of(configs));
  transfer in(w[1], pair_of(configs));
  for (int i = 0; i < 10; ++i) {
    CHECK(move_each(w, out, in, std::vector<std::size_t>(50, 8192)).failed() == 0);
    pass(w, 1'000 * ms);
  }
}
}  // namespace

TEST_CASE("configs that do the same for a size count as one candidate, named after the first of them") {
  const auto small = chunked(1024, 2), middle = chunked(65'536, 2), large = chunked(1 << 20, 4);
  const std::vector<config_ptr> configs{direct(), middle, small, large};
  world w(2, eager_trials());
  move_with_pauses(w, configs);
  const actors::search* const c = search_of(w, "8KiB");
  REQUIRE(c != nullptr);
  REQUIRE(c->is_decided());
  CHECK(c->book().repetitions[1].empty());
  CHECK_FALSE(c->book().repetitions[2].empty());
  CHECK(c->book().repetitions[3].empty());
  const auto decisions = w[1].decisions();
  REQUIRE(decisions.size() == 1);
  for (const auto& e : decisions[0].decision.evidence) {
    const bool same = e.digest == middle->digest() || e.digest == large->digest();
    CHECK((e.status == "same") == same);
  }
  for (const auto& x : c->excluded()) CHECK((x.kind == actors::exclusion::reason::same && x.same_as == 0));
}

TEST_CASE("if all configs do the same for a size the ranks make no trials") {
  const std::vector<config_ptr> configs{direct(), chunked(65'536, 2), chunked(1 << 20, 4)};
  world w(2, eager_trials());
  move_with_pauses(w, configs);
  const actors::search* const c = search_of(w, "8KiB");
  REQUIRE(c != nullptr);
  CHECK(c->is_decided());
  CHECK(c->trials() == 0);
  CHECK(c->chosen().source == actors::decision_source::only_default);
}

TEST_CASE("built-in configs have equal shapes for a size exactly if they do the same for that size") {
  const auto alike = [](const auto& a, const auto& b, std::uint64_t bytes) {
    return a->shape(bytes) == b->shape(bytes);
  };
  CHECK(alike(direct(), chunked(8192), 8192));
  CHECK_FALSE(alike(direct(), chunked(8192), 8193));
  CHECK(alike(chunked(8192, 4), chunked(8192, 9), 4 * 8192));
  CHECK_FALSE(alike(chunked(8192, 4), chunked(8192, 9), 4 * 8192 + 1));
  CHECK_FALSE(alike(chunked(8192, 4), chunked(4096, 4), 65'536));
  CHECK(alike(put(), put(8192), 8192));
  CHECK_FALSE(alike(put(), put(8192), 8193));
  CHECK_FALSE(alike(put(), get(), 100));
  CHECK_FALSE(alike(put(), direct(), 100));
  CHECK_FALSE(alike(put(), put(0, 4, {.kernel_blocks = 4}), 100));
  CHECK(alike(get(), get(1 << 20, 8), 4096));
  CHECK_FALSE(alike(by_piece(2), by_piece(4), 4096));  // the number of pieces is unknown before the run
  CHECK(alike(star(), star(4096), 4096));
  CHECK_FALSE(alike(star(), star(4096), 4097));
  CHECK(alike(chain(8192), chain(65'536), 4096));
  CHECK(alike(two_shot(), two_shot(8192), 4096));
  CHECK_FALSE(alike(star(), chain(0), 4096));
  CHECK_FALSE(alike(one_shot(), two_shot(), 4096));
}

TEST_CASE("a decision on a mixture says which config each rank runs, and why some ranks run another one") {
  world w(4, eager_trials());
  mixture_case::machine_room room;
  collective_options op = led_by(0, {});
  op.configs = {
      std::make_shared<mixture_case::timed_star>(room, w.clock, "plain", "plain", mixture_case::everywhere(9 * ms)),
      std::make_shared<mixture_case::timed_star>(room, w.clock, "optimized", "wire", mixture_case::everywhere(2 * ms)),
      std::make_shared<mixture_case::timed_star>(room, w.clock, "older", "wire", mixture_case::everywhere(3 * ms))};
  op.can_run = [](rank_id r) { return std::vector<bool>{true, r < 2, r >= 2}; };
  const auto groups = declare_all(w, op);
  for (int round = 0; round < 5; ++round) {
    CHECK(reduce_all(w, groups, std::vector<std::size_t>(20, 1000)).failed() == 0);
    wait_a_while(w, 1'000 * ms);
  }
  for (rank_id r = 0; r < 4; ++r) {
    const decision d = groups[r].agreed().decision(4000);
    CAPTURE(d.why);
    REQUIRE(d.decided);
    REQUIRE(d.ranks.size() == 4);
    for (const rank_part& part : d.ranks) {
      CHECK(part.config == (part.rank < 2 ? "optimized" : "older"));
      if (part.rank == r) CHECK(part.config == d.here);
    }
    const candidate_evidence* const e = about(d, "optimized");
    REQUIRE(e != nullptr);
    CHECK(e->detail.find("rank 2 cannot run it: the capability function of rank 2") != std::string::npos);
  }
}

TEST_CASE("the evidence names each config that a rank lacks, with the reason, even if other configs are left") {
  world w(2, eager_trials());
  transfer_options op = pair_of({direct(), chunked(256 * 1024, 4), chunked(1 << 20, 1)});
  op.can_run = [](rank_id r) { return std::vector<bool>{true, true, r == 0}; };
  transfer out(w[0], op);
  transfer in(w[1], op);
  move_each(w, out, in, std::vector<std::size_t>(300, 4 << 20));
  pass(w, 1'000 * ms);
  for (const decision& d : {out.to(1).decision(4 << 20), in.from(0).decision(4 << 20)}) {
    REQUIRE(d.decided);
    CHECK(status_of(d, direct()->id()) == "measured");
    CHECK(status_of(d, chunked(256 * 1024, 4)->id()) == "measured");
    REQUIRE(status_of(d, chunked(1 << 20, 1)->id()) == "lacking");
    CHECK(about(d, chunked(1 << 20, 1)->id())->detail.find("rank 1 cannot run it: the capability function of rank 1") ==
          0);
    REQUIRE(d.ranks.size() == 2);
    CHECK(d.ranks[1].config == d.config);
    CHECK(d.here == d.config);
    CHECK(d.confidence != tuning::confidence::none);
  }
}

namespace {
class requiring final : public paired_config {
 public:
  explicit requiring(std::string what)
      : paired_config({.name = "requiring", .wire_class = "requiring"}), what_(std::move(what)) {}
  std::vector<std::string> requirements() const override { return {what_}; }
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override { co_await in.receive(0, data); }

 private:
  std::string what_;
};
}  // namespace

TEST_CASE("a requirement that is no known capability is an error that suggests the nearest one if there is one") {
  const auto declared_with = [](const std::string& required) {
    world w(2);
    return thrown_by(
        [&] { static_cast<void>(transfer(w[0], pair_of({direct(), std::make_shared<requiring>(required)}))); });
  };
  for (const char* known : {"sm_90", "gpu", "cuda_12.4", "nccl", "nvlink"}) CHECK(declared_with(known));
  for (const auto& [misspelt, meant] : {std::pair{"sm90", "did you mean sm_90?"},
                                        {"nvlnk", "did you mean nvlink?"},
                                        {"cuda-12.4", "did you mean cuda_12.4?"},
                                        {"avx512f", "is not a capability"},
                                        {"", "is not a capability"}}) {
    CAPTURE(misspelt);
    const auto why = declared_with(misspelt);
    CHECK(is(why, {.code = errc::bad_argument, .config = "requiring", .quotes = meant}));
  }
}

TEST_CASE("an op cannot be declared on a rank whose capability function rejects the default") {
  world w(2);
  transfer_options op = pair_of({direct(), chunked(256 * 1024, 4)});
  op.can_run = [](rank_id r) { return std::vector<bool>{r == 0, true}; };
  CHECK(thrown_by([&] { static_cast<void>(transfer(w[0], op)); }));
  const auto why = thrown_by([&] { static_cast<void>(transfer(w[1], op)); });
  CHECK(is(why, {.code = errc::bad_argument, .rank = 1, .config = "direct"}));
}

namespace {

/// A config that takes its time at the receiver, and counts how often it has run there.
class timed_at_receiver final : public paired_config {
 public:
  timed_at_receiver(const char* name, time_ns takes_ns, int& ran)
      : paired_config({.name = name, .wire_class = name}), takes_ns_(takes_ns), ran_(ran) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    ++ran_;
    co_await in.receive(0, data);
    co_await let_pass(takes_ns_);
  }

 private:
  time_ns takes_ns_;
  int& ran_;
};

/// A sender, rank 0, and two receivers. `ran_slow`: how often each receiver has run the config `slow`.
struct two_receivers : world {
  static constexpr std::size_t bytes = 8192;
  /// How long the configs take at one receiver.
  struct times {
    time_ns usual = 2 * ms, quick = 1 * ms, slow = 20 * ms;
  };
  two_receivers(const machines& of, const times& at_1, const times& at_2) : world(3, eager_trials(), {}, of) {
    const std::array<times, 3> all{at_1, at_1, at_2};
    for (rank_id r = 0; r < 3; ++r) {
      auto op = pair_of({std::make_shared<timed_at_receiver>("usual", all[r].usual, ran_others),
                         std::make_shared<timed_at_receiver>("quick", all[r].quick, ran_others),
                         std::make_shared<timed_at_receiver>("slow", all[r].slow, ran_slow[r])});
      op.role = [](rank_id i) { return i == 0 ? role::sender : role::receiver; };
      op.edges = {{0, 1}, {0, 2}};
      ends.emplace_back(*ranks[r], op);
    }
  }
  static task<> send_all(transfer t, rank_id to, int count) {
    const std::vector<std::byte> data(bytes);
    for (int i = 0; i < count; ++i) co_await t.send(data, {.to = to});
  }
  static task<> receive_all(transfer t, int count) {
    std::vector<std::byte> data(bytes);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t came = co_await t.receive(data, {.from = 0});
      static_cast<void>(came);
    }
  }
  void move_20(rank_id receiver) {
    scope both(clock);
    both.spawn(send_all(ends[0], receiver, 20));
    both.spawn(receive_all(ends[receiver], 20));
    run_until(clock, [&] { return both.running() == 0; });
    tests::pass(*this, 1'000 * ms);
  }
  decision decide(rank_id receiver) {
    for (int i = 0; i < 20 && !ends[0].to(receiver).decision(bytes).decided; ++i) move_20(receiver);
    return ends[0].to(receiver).decision(bytes);
  }

  std::array<int, 3> ran_slow{};
  int ran_others = 0;
  std::vector<transfer> ends;
};

}  // namespace

TEST_CASE(
    "what was 20 times slower on one edge of a sender is listed as hopeless on the next, with the expected time") {
  two_receivers w({.hosts = {1, 1, 1}}, {}, {});
  const decision first = w.decide(1);
  REQUIRE(first.decided);
  CHECK(first.config == "quick");
  CHECK(status_of(first, "slow") == "measured");
  REQUIRE(w.decide(2).decided);
  for (const decision& next : {w.ends[0].to(2).decision(w.bytes), w.ends[2].from(0).decision(w.bytes)}) {
    CHECK(next.config == "quick");
    CHECK(status_of(next, "usual") == "measured");
    REQUIRE(status_of(next, "slow") == "hopeless");
    const candidate_evidence& slow = *about(next, "slow");
    CHECK(slow.detail.find("it is expected to take at least") != std::string::npos);
    CHECK(slow.expected.time_ns == doctest::Approx(about(first, "slow")->time_ns).epsilon(0.01));
    CHECK(slow.expected.low_ns < slow.expected.time_ns);
    CHECK(slow.expected.low_ns > about(next, "quick")->time_ns);
    CHECK(slow.repetitions == 0);
  }
  CHECK(w.ran_slow[1] > 1);
  CHECK(w.ran_slow[2] == 1);  // its rehearsal
}

TEST_CASE(
    "an edge to another host tries what was 5 times slower on the first edge, and one to the same host does not") {
  for (const bool same_host : {true, false}) {
    CAPTURE(same_host);
    const two_receivers::times five{.slow = 5 * ms};
    two_receivers w({.hosts = {1, 1, same_host ? 1U : 2U}}, five, five);
    REQUIRE(w.decide(1).decided);
    const decision next = w.decide(2);
    REQUIRE(next.decided);
    CHECK(status_of(next, "slow") == (same_host ? "hopeless" : "measured"));
    CHECK((about(next, "slow")->expected.time_ns > 0) == same_host);
    CHECK((w.ran_slow[2] > 1) == !same_host);
  }
}

TEST_CASE("if an edge takes other times than the first edge, it tries after all what seemed hopeless there") {
  two_receivers w({.hosts = {1, 1, 1}}, {}, {.usual = 8 * ms, .quick = 4 * ms, .slow = 2 * ms});
  REQUIRE(w.decide(1).config == "quick");
  for (int i = 0; i < 20; ++i) w.move_20(2);
  const decision next = w.ends[2].from(0).decision(w.bytes);
  REQUIRE(next.decided);
  CHECK(next.config == "slow");
  CHECK(status_of(next, "slow") == "measured");
  CHECK(next.search == 2);
}
