// The data path of a leader and of a worker against a peer that repeats messages, lies, or sends messages of other generations.
#include <parley/tests/support/awaited.hpp>
#include <parley/tests/support/edges.hpp>

#include <parley/actors/group/group_leader.hpp>
#include <parley/actors/group/group_worker.hpp>
#include <parley/runtime/invariant.hpp>

#include <doctest/doctest.h>

using namespace parley;
using namespace parley::actors;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::uint64_t generation = 5;
constexpr std::uint64_t c0 = 77;
constexpr std::uint64_t c1 = 78;

op_declaration test_group(std::uint64_t depth) {
  auto op = declare_group("group", {{0, "leader"}, {1, "worker"}}, depth, "");
  op.default_config = "whole";
  op.default_digest = c0;
  return op;
}

/// Rank 0 is real; the test injects the messages of rank 1; rank 2 is not a member.
struct leader_alone {
  explicit leader_alone(back_pressure pressure = back_pressure::contributions, window_limits window = {})
      : links(clock, 3), here(clock, links[0]), op(test_group(1)),
        assigned(c0, "whole", "", {0, 1}, tuning_policy::off, {}),
        group(here.shared, op, generation, assigned, 1, pressure, window) {}
  stamp from_worker(std::uint64_t invocation, std::uint64_t total, std::uint64_t offset = 0) const {
    stamp s;
    s.op = op.id();
    s.generation = generation;
    s.digest = c0;
    s.total_bytes = total;
    s.offset = offset;
    s.invocation = static_cast<std::uint32_t>(invocation);
    s.source = 1;
    return s;
  }
  void inject(const stamp& s, std::span<const std::byte> part = {}) {
    static_cast<void>(links[1].send(0, link::channel::data, bytes_of(s), part, nullptr));
  }
  virtual_time clock;
  memory_world links;
  node here;
  op_declaration op;
  assignment assigned;
  group_leader group;
};

/// Rank 1 is real; the test injects the messages of rank 0.
struct worker_alone {
  explicit worker_alone(std::uint64_t depth)
      : links(clock, 2), here(clock, links[1]), op(test_group(depth)), group(here.shared, op, generation, depth) {}
  void say(std::uint64_t invocation, std::uint64_t digest, std::uint64_t next) {
    stamp s;
    s.op = op.id();
    s.generation = generation;
    s.digest = digest;
    s.next_digest = next;
    s.total_bytes = 1;
    s.invocation = static_cast<std::uint32_t>(invocation);
    static_cast<void>(links[0].send(1, link::channel::data, bytes_of(s), {}, nullptr));
  }
  virtual_time clock;
  memory_world links;
  node here;
  op_declaration op;
  group_worker group;
};

struct watched {
  std::vector<std::byte> got;
  std::optional<errc> ended;
  rank_id culprit = 0;
};

// Receives two parts from rank 1, in order.
task<> receive_two(group_leader& group, watched& w) {
  group_invocation inv(group, w.got.size(), never);
  auto digest = co_await inv.begin();
  if (digest) {
    const std::size_t half = w.got.size() / 2;
    inv.receive(1, 0, std::span(w.got).first(half));
    inv.receive(1, half, std::span(w.got).subspan(half));
  }
  const group_fault fault = co_await inv.settle();
  w.ended = fault.why;
  w.culprit = fault.culprit;
  group.end(inv);
}

void go(leader_alone& a, const watched& w) {
  run_until(a.clock, [&] { return w.ended.has_value(); });
}

// The invocation ends while the transport still holds its part, as when its rank leaves during a rehearsal.
task<> send_and_go(group_leader& group, std::span<const std::byte> data) {
  group_invocation inv(group, data.size(), never);
  static_cast<void>(co_await inv.begin());
  inv.send(1, 0, data);
}

struct keeper final : link::handler {
  void on_arrival(arrival&& message) noexcept override { kept.emplace(std::move(message)); }
  std::optional<arrival> kept;
};

/// Lets every injected message arrive.
void pass(virtual_time& clock) {
  bool over = false;
  scope s(clock);
  s.spawn(edge_pair::sleep(clock.deadline_in(1'000'000), over));
  run_until(clock, [&] { return over; });
}

// A call that neither sends nor receives.
task<> begin_and_end(rooted_group& group, std::optional<std::uint64_t>& ran, time_ns deadline = never) {
  group_invocation inv(group, 1, deadline);
  auto digest = co_await inv.begin();
  ran = digest ? *digest : 0;
  group.end(inv);
}

// A call that sends one byte to the leader.
task<> begin_and_send(rooted_group& group, std::optional<std::uint64_t>& ran) {
  group_invocation inv(group, 1, never);
  auto digest = co_await inv.begin();
  ran = digest ? *digest : 0;
  const std::byte one{};
  inv.send(group.leader(), 0, std::span(&one, 1));
  static_cast<void>(co_await inv.settle());
  group.end(inv);
}

// A call that waits for one byte from rank `from`.
task<> begin_and_wait(rooted_group& group, rank_id from, std::optional<std::uint64_t>& ran, group_fault& outcome) {
  group_invocation inv(group, 1, never);
  auto digest = co_await inv.begin();
  ran = digest ? *digest : 0;
  std::byte one{};
  inv.receive(from, 0, std::span(&one, 1));
  outcome = co_await inv.settle();
  group.end(inv);
}

}  // namespace

TEST_CASE("a worker's failure that the leader passes on has the trial flag of the leader's own stamp") {
  virtual_time clock;
  memory_world links(clock, 3);
  node here(clock, links[0]);
  auto op = declare_group("group", {{0, "leader"}, {1, "worker"}, {2, "worker"}}, 0, "");
  op.default_config = "whole";
  op.default_digest = c0;
  tuning::plan_options plan;
  plan.budget_fraction = 1e9;
  assignment assigned(c0, "whole", "", {0, 1, 2}, tuning_policy::online, plan);
  assigned.open({c0, c1}, {"whole", "other"}, {}, 0);
  group_leader group(here.shared, op, generation, assigned, 0, back_pressure::contributions, {});
  struct stamps final : link::handler {
    void on_arrival(arrival&& message) noexcept override {
      if (const auto s = read_stamp(message.header())) came.push_back(*s);
    }
    std::vector<stamp> came;
  };
  stamps other;
  links[2].listen(link::channel::data, &other);
  std::size_t trials = 0;
  for (std::uint64_t n = 0; n < 6; ++n) {
    CAPTURE(n);
    scope s(clock);
    std::optional<std::uint64_t> ran;
    s.spawn(begin_and_end(group, ran));
    pass(clock);
    REQUIRE(other.came.size() == 2 * n + 1);
    stamp failed = other.came.back();
    failed.source = 1;
    failed.flags = stamp_flags::none;
    write_poison({.why = errc::peer_failed, .culprit = 1}, failed);
    static_cast<void>(links[1].send(0, link::channel::data, bytes_of(failed), {}, nullptr));
    pass(clock);
    REQUIRE(other.came.size() == 2 * n + 2);
    const stamp &mine = other.came[2 * n], &passed_on = other.came[2 * n + 1];
    if (has(mine.flags, stamp_flags::timed)) ++trials;
    CHECK(passed_on.invocation == mine.invocation);
    CHECK(passed_on.flags == (mine.flags | stamp_flags::poison));
  }
  CHECK(trials != 0);
  links[2].listen(link::channel::data, nullptr);
}

TEST_CASE("parts that arrive twice, early or in the wrong order are written once and in the right place") {
  leader_alone a;
  const auto data = pattern(100, 3);
  const auto other = pattern(100, 9);
  a.inject(a.from_worker(0, 100, 50), std::span(data).subspan(50));  // early, and the second half first
  a.inject(a.from_worker(0, 100, 50), std::span(other).subspan(50));
  watched w;
  w.got.resize(100);
  scope working(a.clock);
  working.spawn(receive_two(a.group, w));
  a.inject(a.from_worker(0, 100, 0), std::span(data).first(50));
  go(a, w);
  CHECK(*w.ended == errc::none);
  CHECK(w.got == data);
  CHECK(a.group.statistics().dropped == 1);
  a.inject(a.from_worker(0, 100, 0), std::span(other).first(50));  // of an invocation that has ended
  watched next;
  next.got.resize(100);
  working.spawn(receive_two(a.group, next));
  a.inject(a.from_worker(1, 100, 0), std::span(data).first(50));
  a.inject(a.from_worker(1, 100, 50), std::span(data).subspan(50));
  go(a, next);
  CHECK(w.got == data);
  CHECK(next.got == data);
  CHECK(a.group.statistics().dropped == 2);
}

TEST_CASE("messages of another generation, from a stranger, or far ahead change nothing") {
  leader_alone a;
  const auto data = pattern(100, 3);
  auto s = a.from_worker(0, 100);
  s.generation = 4;
  a.inject(s, data);
  s = a.from_worker(0, 100);
  s.source = 9;
  a.inject(s, data);
  s = a.from_worker(5'000'000, 100);
  a.inject(s, data);
  s = a.from_worker(0, 100);
  s.source = 0;  // the leader itself
  a.inject(s, data);
  pass(a.clock);
  watched w;
  w.got.resize(100);
  scope working(a.clock);
  working.spawn(receive_two(a.group, w));
  a.inject(a.from_worker(0, 100, 0), std::span(data).first(50));
  a.inject(a.from_worker(0, 100, 50), std::span(data).subspan(50));
  go(a, w);
  CHECK(*w.ended == errc::none);
  CHECK(a.group.statistics().dropped == 3);
  CHECK(a.group.statistics().refused == 1);
}

TEST_CASE(
    "a bounded number of unrequested parts waits; one more ends the invocation, and the next invocation has room") {
  leader_alone a;
  constexpr std::size_t total = 2 * unclaimed_room::most_parts + 2;
  watched w;
  w.got.resize(total);
  scope working(a.clock);
  working.spawn(receive_two(a.group, w));
  const std::byte one{1};
  for (std::size_t i = 1; i <= unclaimed_room::most_parts; ++i)
    a.inject(a.from_worker(0, total, i), std::span(&one, 1));
  pass(a.clock);
  CHECK_FALSE(w.ended);
  a.inject(a.from_worker(0, total, total - 1), std::span(&one, 1));
  go(a, w);
  CHECK(*w.ended == errc::full);
  CHECK(w.culprit == 1);
  CHECK(a.group.statistics().refused == 1);
  const auto data = pattern(100, 3);
  watched next;
  next.got.resize(100);
  working.spawn(receive_two(a.group, next));
  a.inject(a.from_worker(1, 100, 50), std::span(data).subspan(50));
  a.inject(a.from_worker(1, 100, 0), std::span(data).first(50));
  go(a, next);
  CHECK(*next.ended == errc::none);
  CHECK(next.got == data);
}

TEST_CASE("the group reports an overflow: parts of a call that has not begun here wait only in bounded number") {
  leader_alone a;
  int told = 0;
  a.group.on_overflow([&] { ++told; });
  constexpr std::size_t total = unclaimed_room::most_parts + 1;
  const std::byte one{1};
  for (std::size_t i = 0; i < unclaimed_room::most_parts; ++i) a.inject(a.from_worker(0, total, i), std::span(&one, 1));
  pass(a.clock);
  CHECK(told == 0);
  a.inject(a.from_worker(0, total, total - 1), std::span(&one, 1));
  pass(a.clock);
  CHECK(told == 1);
  CHECK(a.group.statistics().refused == 1);
}

TEST_CASE("waiting parts are also bounded in bytes, and parts that are taken or dropped make room") {
  unclaimed_room room;
  const std::byte somewhere{};
  const auto part = [&](std::uint64_t bytes) { return arrival(nullptr, {}, bytes, &somewhere, false); };
  const auto drop = [](unclaimed_part p) { std::move(p).take().surrender(); };
  arrival whole = part(unclaimed_room::most_bytes);
  CHECK(room.has_room_for(whole));
  unclaimed_part first(std::move(whole), room);
  arrival more = part(1);
  CHECK_FALSE(room.has_room_for(more));
  const arrival remote(nullptr, {}, unclaimed_room::most_bytes, nullptr, true);
  CHECK(room.has_room_for(remote));  // its payload stays in the sender's memory
  unclaimed_part second(arrival(nullptr, {}, 5, nullptr, true), room);
  std::swap(first, second);
  drop(std::move(second));
  CHECK(room.has_room_for(more));
  CHECK(room.bytes() == 0);
  CHECK(room.parts() == 1);
  more.surrender();
}

TEST_CASE("another config, another size, another cut or a poison ends the invocation, and the worker is blamed") {
  const auto data = pattern(100, 3);
  const auto outcome_of = [&](auto&& change) {
    leader_alone a;
    watched w;
    w.got.resize(100);
    scope working(a.clock);
    working.spawn(receive_two(a.group, w));
    stamp s = a.from_worker(0, 100, 0);
    std::span<const std::byte> part = std::span(data).first(50);
    change(s, part);
    a.inject(s, part);
    go(a, w);
    CHECK(w.got == std::vector<std::byte>(100));  // nothing was written
    CHECK(w.culprit == 1);
    return *w.ended;
  };
  using bytes = std::span<const std::byte>;
  std::vector<breach> broken;
  {
    breach_watch watch([&](const breach& b) { broken.push_back(b); });
    CHECK(outcome_of([](stamp& s, bytes&) { s.digest = 78; }) == errc::config_mismatch);
  }
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].name == "S2");
  CHECK(broken[0].where.rank == 0);
  CHECK(broken[0].culprit == 1U);
  CHECK(outcome_of([](stamp& s, bytes&) { s.total_bytes = 99; }) == errc::bad_argument);
  CHECK(outcome_of([](stamp&, bytes& part) { part = part.first(20); }) == errc::config_failed);
  const auto poison = [](std::uint64_t said) {
    return [said](stamp& s, bytes& part) {
      s.flags = stamp_flags::poison;
      s.total_bytes = said | std::uint64_t{1} << 8U;
      part = {};
    };
  };
  CHECK(outcome_of(poison(static_cast<std::uint64_t>(errc::config_failed))) == errc::config_failed);
  CHECK(outcome_of(poison(0)) == errc::send_failed);    // not an error code
  CHECK(outcome_of(poison(255)) == errc::send_failed);  // an unknown error code
}

TEST_CASE("data that arrives after its poison is dropped, because its invocation may never begin") {
  leader_alone a;
  const auto data = pattern(100, 3);
  auto poison = a.from_worker(0, 100, 0);
  stamp_flags which{};
  SUBCASE("of a call") {}
  SUBCASE("of a rehearsal") { which = stamp_flags::rehearsal; }
  poison.flags = which | stamp_flags::poison;
  a.inject(poison);
  pass(a.clock);
  const auto before = a.group.statistics();
  auto late = a.from_worker(0, 100, 0);
  late.flags = which;
  a.inject(late, data);
  pass(a.clock);
  CHECK(a.group.statistics().dropped == before.dropped + 1);
  CHECK(a.group.statistics().early_parts == before.early_parts);
  late.invocation = 1;
  a.inject(late, data);
  pass(a.clock);
  CHECK(a.group.statistics().early_parts == before.early_parts + 1);  // a part of the next invocation is kept
}

TEST_CASE("the leader asserts that a worker runs the config that was assigned, even after the invocation has ended") {
  leader_alone a;
  const auto data = pattern(100, 3);
  scope working(a.clock);
  std::vector<std::string> broken;
  breach_watch watch([&](const breach& b) { broken.emplace_back(b.name); });
  constexpr std::uint64_t ended = 200;
  for (std::uint64_t n = 0; n < ended; ++n) {
    watched w;
    w.got.resize(100);
    working.spawn(receive_two(a.group, w));
    a.inject(a.from_worker(n, 100, 0), std::span(data).first(50));
    a.inject(a.from_worker(n, 100, 50), std::span(data).subspan(50));
    go(a, w);
    REQUIRE(*w.ended == errc::none);
  }
  CHECK(broken.empty());
  const auto come_late = [&](std::uint64_t n) {
    stamp s = a.from_worker(n, 100, 0);
    a.inject(s, std::span(data).first(50));
    s.digest = c1;
    a.inject(s, std::span(data).first(50));
    pass(a.clock);
  };
  // below the depth, every rank knows the config; for later invocations the leader remembers the latest ones
  come_late(0);
  come_late(ended - 1);
  come_late(ended - 100);
  CHECK(broken == std::vector<std::string>(3, "S2"));
  CHECK(a.group.statistics().contradictions == 3);
  come_late(1);
  CHECK(broken.size() == 3);
}

TEST_CASE("no rank reads the buffer of a part after its invocation has ended") {
  leader_alone a;
  keeper at_worker;
  a.links[1].listen(link::channel::data, &at_worker);
  auto data = pattern(100'000, 3);  // too large to be copied when it is sent
  scope working(a.clock);
  working.spawn(send_and_go(a.group, data));
  pass(a.clock);
  REQUIRE(at_worker.kept);
  std::fill(data.begin(), data.end(), std::byte{0});
  std::vector<std::byte> got(data.size(), std::byte{1});
  const std::vector<std::byte> untouched = got;
  parley::tests::awaited fetched;
  REQUIRE(a.links[1].fetch(std::move(*at_worker.kept), got, &fetched) == errc::pending);
  pass(a.clock);
  CHECK(fetched.outcome == errc::peer_failed);
  CHECK(got == untouched);
  a.links[1].listen(link::channel::data, nullptr);
}

TEST_CASE("a worker waits for the stamp of invocation n - d before it begins n, and for no later stamp") {
  worker_alone a(2);
  std::vector<std::optional<std::uint64_t>> ran(4);
  scope working(a.clock);
  for (auto& r : ran) working.spawn(begin_and_end(a.group, r));
  pass(a.clock);
  CHECK(*ran[0] == c0);
  CHECK(*ran[1] == c0);
  CHECK_FALSE(ran[2]);
  a.say(1, c0, c1);  // overtakes the stamp of invocation 0
  pass(a.clock);
  CHECK_FALSE(ran[2]);
  CHECK(*ran[3] == c1);
  a.say(0, c0, c0);
  pass(a.clock);
  CHECK(*ran[2] == c0);
  // contradicts the earlier stamp; invocation 0 is over, so the worker ignores it
  a.say(0, c0, c1);
  pass(a.clock);
  CHECK(working.running() == 0);
}

TEST_CASE("a worker that gets two configs for a running invocation ends it, notifies the leader, and blames it (S1)") {
  worker_alone a(1);
  keeper at_leader;
  a.links[0].listen(link::channel::data, &at_leader);
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  std::vector<std::optional<std::uint64_t>> ran(2);
  group_fault outcome;
  scope working(a.clock);
  working.spawn(begin_and_end(a.group, ran[0]));
  a.say(0, c0, c1);
  working.spawn(begin_and_wait(a.group, 0, ran[1], outcome));
  pass(a.clock);
  CHECK(*ran[1] == c1);
  a.say(1, c1, c1);  // a correct stamp
  pass(a.clock);
  CHECK(working.running() == 1);
  CHECK(broken.empty());
  a.say(1, c0, c1);
  pass(a.clock);
  CHECK(working.running() == 0);
  CHECK(outcome.why == errc::config_mismatch);
  CHECK(outcome.culprit == 0);
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].name == "S1");
  CHECK(broken[0].culprit == 0U);
  CHECK(a.group.statistics().contradictions == 1);
  REQUIRE(at_leader.kept);
  const auto told = read_stamp(at_leader.kept->header());
  REQUIRE(told);
  CHECK(has(told->flags, stamp_flags::poison));
  CHECK(poison_of(*told).why == errc::config_mismatch);
  a.links[0].listen(link::channel::data, nullptr);
}

TEST_CASE("two configs for a later invocation end that invocation, and not the one whose stamp contradicts (S1)") {
  worker_alone a(1);
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  std::vector<std::optional<std::uint64_t>> ran(2);
  std::vector<group_fault> outcome(2);
  scope working(a.clock);
  for (std::size_t i = 0; i < 2; ++i) working.spawn(begin_and_wait(a.group, 0, ran[i], outcome[i]));
  a.say(0, c0, c1);
  pass(a.clock);
  REQUIRE(ran[1] == c1);
  CHECK(broken.empty());
  a.say(0, c0, c0);
  pass(a.clock);
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].name == "S1");
  CHECK(outcome[0].why == errc::none);
  CHECK(outcome[1].why == errc::config_mismatch);
  CHECK(working.running() == 1);
  working.cancel();
  pass(a.clock);
  CHECK(outcome[0].why == errc::cancelled);
}

TEST_CASE(
    "a worker that sends nothing reports the config it ran; a wrong config is a breach of S2, and the leader excludes "
    "the config that it had assigned") {
  for (const bool obeys : {true, false}) {
    CAPTURE(obeys);
    virtual_time clock;
    memory_world links(clock, 2);
    node at_leader(clock, links[0]);
    node at_worker(clock, links[1]);
    const auto op = test_group(1);
    assignment assigned(c0, "whole", "", {0, 1}, tuning_policy::off, {});
    assigned.open({c0, c1}, {"whole", "halves"}, {{"1B", "halves", 1.0}}, 0);
    group_leader leads(at_leader.shared, op, generation, assigned, 1, back_pressure::window);
    group_worker works(at_worker.shared, op, generation, 1);
    if (!obeys) works.ignore_stamps();
    std::vector<breach> broken;
    breach_watch watch([&](const breach& b) { broken.push_back(b); });
    std::vector<std::uint64_t> differ;
    const auto call = [&](std::uint64_t n) {
      std::optional<std::uint64_t> here;
      std::optional<std::uint64_t> there;
      scope working(clock);
      working.spawn(begin_and_end(works, there));  // ends before its stamp arrives
      working.spawn(begin_and_end(leads, here));
      pass(clock);
      if (*here != *there) differ.push_back(n);
      return *here;
    };
    CHECK(call(0) == c0);
    for (std::uint64_t n = 1; n < 40; ++n) static_cast<void>(call(n));
    CHECK(works.statistics().flow_messages == 1);
    if (obeys) {
      CHECK(broken.empty());
      CHECK(differ.empty());
      CHECK(call(40) == c1);
      continue;
    }
    REQUIRE(broken.size() == 1);
    CHECK(broken[0].name == "S2");
    CHECK(broken[0].culprit == 1U);
    CHECK(broken[0].where.rank == 0);
    CHECK(call(40) == c0);
    CHECK(assigned.find(1)->chosen().why.find("rank 1 says that it ran another config in invocation 30") !=
          std::string::npos);
    CHECK(differ.front() == 1);
  }
}

TEST_CASE("a report from another generation or from a stranger makes no room and blames no rank (S5)") {
  leader_alone a(back_pressure::window, {.invocations = 2});
  router worker(a.clock, a.links[1], {});
  router stranger(a.clock, a.links[2], {});
  std::uint64_t blamed = 0;
  breach_watch watch([&](const breach&) { ++blamed; });
  std::vector<std::optional<std::uint64_t>> ran(3);
  scope working(a.clock);
  for (auto& r : ran) working.spawn(begin_and_end(a.group, r));
  pass(a.clock);
  CHECK(ran[1]);
  CHECK_FALSE(ran[2]);
  matched m;
  m.count = 2;
  m.ran = c1;  // a config that nobody was assigned
  m.ran_invocation = 1;
  const auto say = [&](router& from, std::uint64_t of) {
    static_cast<void>(from.send(0, number_of(a.op.id(), part::data_sender), of, m));
    pass(a.clock);
  };
  say(worker, generation - 1);
  say(worker, generation + 1);
  say(stranger, generation);
  CHECK_FALSE(ran[2]);
  CHECK(blamed == 0);
  say(worker, generation);
  CHECK(ran[2]);
  CHECK(blamed == 1);
}

TEST_CASE("many more calls than the log has places for may wait and time out, and later calls succeed") {
  virtual_time clock;
  memory_world links(clock, 2);
  node at_leader(clock, links[0]);
  node at_worker(clock, links[1]);
  const auto op = test_group(2);
  assignment assigned(c0, "whole", "", {0, 1}, tuning_policy::off, {});
  group_leader leads(at_leader.shared, op, generation, assigned, 2, back_pressure::window, {.invocations = 2});
  group_worker works(at_worker.shared, op, generation, 2);
  const auto fail_many = [&](rooted_group& group) {
    constexpr std::size_t many = 2 * invocation_log<std::uint64_t>::most + 500;
    std::vector<std::optional<std::uint64_t>> ran(many);
    scope working(clock);
    for (auto& r : ran) working.spawn(begin_and_end(group, r, clock.deadline_in(1000)));
    pass(clock);
    CHECK(working.running() == 0);
    CHECK(ran.back() == 0);
  };
  fail_many(leads);
  fail_many(works);
  std::vector<std::optional<std::uint64_t>> here(20);
  std::vector<std::optional<std::uint64_t>> there(20);
  std::vector<group_fault> outcome(20);
  scope working(clock);
  for (std::size_t i = 0; i < 20; ++i) {  // the leader waits for the worker's data
    working.spawn(begin_and_wait(leads, 1, here[i], outcome[i]));
    working.spawn(begin_and_send(works, there[i]));
  }
  for (int i = 0; i < 1000 && working.running() != 0; ++i) pass(clock);
  CHECK(working.running() == 0);
  for (std::size_t i = 0; i < 20; ++i) {
    CHECK(there[i] == c0);
    CHECK(outcome[i].why == errc::none);
  }
}

TEST_CASE("in every build, a leader that finds no place for its assignment breaks S1") {
  leader_alone a;
  // The largest depth that the log allows; no op is declared with it.
  constexpr std::uint64_t depth = invocation_log<std::uint64_t>::most;
  auto op = declare_group("far", {{0, "leader"}, {1, "worker"}}, depth, "");
  op.default_digest = c0;
  group_leader far(a.here.shared, op, generation, a.assigned, depth, back_pressure::contributions);
  std::vector<breach> broken;
  breach_watch watch([&](const breach& b) { broken.push_back(b); });
  std::optional<errc> thrown;
  const auto send_one = [](rooted_group& group, std::optional<errc>& code) -> task<> {
    group_invocation inv(group, 1, never);
    static_cast<void>(co_await inv.begin());
    const std::byte one{1};
    try {
      inv.send(1, 0, std::span(&one, 1));
    } catch (const failure& f) {
      code = f.code();
    }
  };
  scope working(a.clock);
  working.spawn(send_one(far, thrown));
  pass(a.clock);
  CHECK(thrown == errc::invariant_broken);
  REQUIRE(broken.size() == 1);
  CHECK(broken[0].name == "S1");
  CHECK_FALSE(broken[0].culprit);
}
