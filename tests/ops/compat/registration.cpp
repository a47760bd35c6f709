// The traps of paired transfers, (a) to (f), that CASES section 3 lists. Each case names its trap.
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/config.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/p2p.hpp>
#include <parley/registration.hpp>
#include <parley/runtime/wire/router.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

const send_function send_whole = [](part_sender& o, std::span<const std::byte> d) -> task<> { co_await o.send(0, d); };
const receive_function receive_whole = [](part_receiver& i, std::span<std::byte> d) -> task<> {
  co_await i.receive(0, d);
};
const send_function send_halves = [](part_sender& o, std::span<const std::byte> d) -> task<> {
  co_await o.send(0, d.first(d.size() / 2));
  co_await o.send(d.size() / 2, d.subspan(d.size() / 2));
};
const receive_function receive_halves = [](part_receiver& i, std::span<std::byte> d) -> task<> {
  co_await i.receive(0, d.first(d.size() / 2));
  co_await i.receive(d.size() / 2, d.subspan(d.size() / 2));
};

std::string sends_to_the_next(rank_id r) { return r % 2 == 0 ? "send" : "receive"; }

std::set<std::string> ids_of(rank& r) {
  const auto agreed = r.agreements();
  const auto& ids = agreed.front().assigned->ids();
  return {ids.begin(), ids.end()};
}

}  // namespace

TEST_CASE(
    "(a) both ends cut a payload by the agreed config and its byte count, not by the size of the receive buffer") {
  world w(2, eager_trials());
  auto op = pair_of({chunked(1_MiB)});
  transfer out(w[0], op);
  transfer in(w[1], op);
  const auto sizes = std::vector<std::size_t>{std::size_t{1024} * 1025 * sizeof(float), 1, 1U << 20U, (1U << 20U) + 1};
  CHECK(move_each(w, out, in, sizes, 77).failed() == 0);
}

namespace {
const send_function send_cut = [](part_sender& o, std::span<const std::byte> d) -> task<> {
  const std::size_t chunk = o.config().number("chunk_bytes").value();
  for (std::size_t at = 0; at < d.size(); at += chunk)
    co_await o.send(at, d.subspan(at, std::min(chunk, d.size() - at)));
};
const receive_function receive_cut = [](part_receiver& i, std::span<std::byte> d) -> task<> {
  const std::size_t chunk = i.config().number("chunk_bytes").value();
  for (std::size_t at = 0; at < d.size(); at += chunk)
    co_await i.receive(at, d.subspan(at, std::min(chunk, d.size() - at)));
};
}  // namespace

TEST_CASE("one pair of functions serves several configs, whose parameters it finds with the call") {
  world w(2, eager_trials());
  const role_function role = [](rank_id r) { return std::string(r == 0 ? "send" : "recv"); };
  std::vector<registered_pair> made;
  for (auto& r : w.ranks)
    made.push_back(register_paired_op_autotuning(
        *r, "send", "recv",
        {{"cut(chunk_bytes=1000)", send_cut, receive_cut}, {"cut(chunk_bytes=70)", send_cut, receive_cut}}, role));
  std::vector<int> out(500), in(500);
  std::iota(out.begin(), out.end(), 0);
  for (int i = 0; i < 40; ++i) {
    std::fill(in.begin(), in.end(), -1);
    auto sent = made[0].op.start_send(out, {.to = 1});
    auto received = made[1].op.start_receive(in, {.from = 0});
    run_until(w.clock, [&] { return sent.test() && received.test(); });
    CHECK(in == out);
  }
  pass(w, 1'000'000'000);
  CHECK(made[0].op.decision(2000, 1).config.starts_with("cut(chunk_bytes="));
}

TEST_CASE("(b) and (c) configs are paired by id, not by place; a config that one role lacks is named and never runs") {
  world w(4, eager_trials());
  const std::vector<paired_entry> entries{{"direct", send_whole, nullptr},
                                          {"chunked", nullptr, receive_halves},
                                          {"halves", send_halves, nullptr},
                                          {"direct", nullptr, receive_whole},
                                          {"halves", nullptr, receive_halves}};
  std::vector<registered_pair> made;
  for (auto& r : w.ranks)
    made.push_back(register_paired_op_autotuning(*r, "send", "receive", entries, sends_to_the_next));
  CHECK(made[0].left_out == std::vector<std::string>{"chunked: the sender has no implementation of it"});
  const auto all = move_each(w, made[0].op, made[1].op, std::vector<std::size_t>(100, 10'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  CHECK(ids_of(w[0]) == std::set<std::string>{"direct", "halves"});
  CHECK(w[0].agreements().front().assigned->ids().front() == "direct");
  CHECK(join_flights(w).mismatches == 0);
  CHECK_FALSE(made[2].op.idle());  // ranks 2 and 3 form another pair

  const auto registering = [&](const std::vector<paired_entry>& list) {
    try {
      register_paired_op_autotuning(w[0], "a", "b", list, sends_to_the_next);
    } catch (const failure& f) {
      return f.code();
    }
    return errc::none;
  };
  CHECK(registering({{"x", send_whole, nullptr}, {"y", nullptr, receive_whole}}) == errc::no_common_config);
  CHECK(registering({{"x", send_whole, receive_whole}, {"x", send_halves, nullptr}}) == errc::bad_argument);
  CHECK(registering({}) == errc::no_common_config);
}

TEST_CASE("(d) roles by rank % 3 on 4 ranks are refused, naming two senders for one receiver; rank % 2 makes pairs") {
  world w(4);
  const std::vector<paired_entry> entries{{"direct", send_whole, receive_whole}};
  const auto by_three = [](rank_id r) { return std::string(r % 3 == 0 ? "send" : r % 3 == 1 ? "receive" : "idle"); };
  try {
    register_paired_op_autotuning(w[2], "send", "receive", entries, by_three);
    FAIL("it was registered");
  } catch (const failure& f) {
    CHECK(f.code() == errc::role_conflict);
    CHECK(std::string(f.what()).find("senders are 0, 3 and the receivers 1") != std::string::npos);
  }
  for (auto& r : w.ranks)
    CHECK_FALSE(register_paired_op_autotuning(*r, "send", "receive", entries, sends_to_the_next).op.idle());
}

TEST_CASE("(e) times of [1 1 9] on one rank and [1 9 1] on the other aggregate to 9") {
  const std::vector<std::vector<double>> times{{1, 1, 9}, {1, 9, 1}};
  CHECK(tuning::aggregate_times(times).time_ns == 9);
}

TEST_CASE("(f) each role alone chooses among its configs without ids, and its registered operation is the default") {
  world w(3, eager_trials());
  std::map<std::string, int> ran;
  const auto taking = [&](const std::string& name, time_ns span) -> operation_function {
    struct body {
      std::map<std::string, int>& ran;
      executor& ex;
      std::string name;
      time_ns span;
      task<> operator()(std::span<std::byte> data) const { return run(ran, ex, name, span, data); }
      static task<> run(std::map<std::string, int>& ran, executor& ex, std::string name, time_ns span,
                        std::span<std::byte>) {
        ++ran[name];
        auto woken = co_await sleep_until(ex.deadline_in(span));
        static_cast<void>(woken);
        if (name == "broken") runtime::raise({errc::unavailable, "no such instruction"});
      }
    };
    return body{ran, w.clock, name, span};
  };
  const std::vector<role_operation> operations{{"produce", taking("slow", 2_ms)}, {"consume", taking("default", 1_ms)}};
  const std::vector<role_config> configs{{"produce", "fast", taking("fast", 1_ms)},
                                         {"consume", "slower", taking("slower", 3_ms)},
                                         {"consume", "broken", taking("broken", 1_us)}};
  const role_function role = [](rank_id r) { return std::string(r == 0 ? "produce" : r == 1 ? "consume" : "idle"); };
  std::vector<role_op> ops;
  for (auto& r : w.ranks) ops.push_back(register_asymmetric_autotuning(*r, "stage", operations, configs, role));
  CHECK(ops[2].idle());
  int failures = 0;
  const auto repeat = [](role_op op, int& failed) -> task<> {
    std::vector<std::byte> data(1000);
    for (int i = 0; i < 60; ++i) {
      auto outcome = co_await attempt(op.run(data));
      failed += outcome ? 0 : 1;
    }
  };
  scope working(w.clock);
  working.spawn(repeat(ops[0], failures));
  working.spawn(repeat(ops[1], failures));
  run_until(w.clock, [&] { return working.running() == 0; });
  REQUIRE(ops[0].search_of(1000) != nullptr);
  CHECK(ops[0].search_of(1000)->chosen().config == "fast");
  CHECK(ops[1].search_of(1000)->chosen().config == "operation");
  CHECK(ran["broken"] == 1);
  CHECK(failures == 1);
  CHECK(ran["slow"] > 0);
  for (auto& r : w.ranks) CHECK(r->mail().statistics().sent == 0);

  const auto registering = [&](const std::vector<role_operation>& o, const std::vector<role_config>& c,
                               const role_function& f) {
    try {
      register_asymmetric_autotuning(w[0], "again", o, c, f);
    } catch (const failure& fault) {
      return fault.code();
    }
    return errc::none;
  };
  CHECK(registering({{"produce", taking("a", 1)}, {"produce", taking("b", 1)}}, {}, role) == errc::role_conflict);
  CHECK(registering({{"other", taking("a", 1)}}, {}, role) == errc::bad_argument);
  CHECK(registering(operations, {{"nobody", "x", taking("x", 1)}}, role) == errc::bad_argument);
}

namespace {

/// Two roles whose functions fit together or not: a consumer is quick only if the producer has made what it expects.
struct coupled_roles {
  explicit coupled_roles(world& w) : clock(w.clock) {}

  task<> produce(char form, time_ns span) {
    made = form;
    ++ran[{form, 0}];
    auto woken = co_await sleep_until(clock.deadline_in(span));
    static_cast<void>(woken);
  }
  task<> consume(char expects) {
    auto woken = co_await sleep_until(clock.deadline_in(1_us));  // by then the producer has begun
    static_cast<void>(woken);
    ++ran[{made, expects}];
    woken = co_await sleep_until(clock.deadline_in(made == expects ? 1_ms : 4_ms));
    static_cast<void>(woken);
  }
  std::vector<role_operation> operations() {
    return {{"produce", [this](auto) { return produce('r', 2_ms); }},
            {"consume", [this](auto) { return consume('r'); }}};
  }
  std::vector<role_config> configs() {
    return {{"produce", "columns(width=8)", [this](auto) { return produce('c', 500_us); }},
            {"consume", "columns(width=8)", [this](auto) { return consume('c'); }},
            {"consume", "blocks", [this](auto) { return consume('b'); }}};
  }

  executor& clock;
  char made = 0;
  std::map<std::pair<char, char>, int> ran;  // what was made, and what its consumer expected
};

std::string coupled_role(rank_id r) { return r == 0 ? "produce" : r == 1 ? "consume" : "idle"; }

task<> one_call(symmetric op) {
  std::vector<std::byte> data(1000);
  co_await op.run(data);
}

}  // namespace

TEST_CASE("roles that are registered as coordinated find the combination of functions that is fastest as a whole") {
  world w(3, eager_trials());
  coupled_roles both(w);
  std::vector<symmetric> ops;
  for (auto& r : w.ranks)
    ops.push_back(register_coordinated_autotuning(*r, "step", both.operations(), both.configs(), coupled_role));
  CHECK(ops[2].idle());
  for (int i = 0; i < 300 && !ops[0].decision(1000).decided; ++i) {
    scope working(w.clock);
    working.spawn(one_call(ops[0]));
    working.spawn(one_call(ops[1]));
    run_until(w.clock, [&] { return working.running() == 0; });
  }
  pass(w, 1'000'000'000);
  for (rank_id r = 0; r < 2; ++r) {
    const decision d = ops[r].decision(1000);
    REQUIRE(d.decided);
    CHECK(d.config == "together(consume=columns[width:8] produce=columns[width:8])");
    CHECK(d.evidence.size() == 6);
    CHECK(d.evidence[0].config == "together(consume=operation produce=operation)");
  }
}

TEST_CASE("functions of coordinated roles that do not fit never run together") {
  world w(3, eager_trials());
  coupled_roles both(w);
  auto operations = both.operations();
  auto configs = both.configs();
  operations[0].fits = operations[1].fits = "rows";
  configs[0].fits = configs[1].fits = "columns";
  configs[2].fits = "blocks";  // no producer makes blocks
  std::vector<symmetric> ops;
  for (auto& r : w.ranks) ops.push_back(register_coordinated_autotuning(*r, "step", operations, configs, coupled_role));
  for (int i = 0; i < 300 && !ops[0].decision(1000).decided; ++i) {
    scope working(w.clock);
    working.spawn(one_call(ops[0]));
    working.spawn(one_call(ops[1]));
    run_until(w.clock, [&] { return working.running() == 0; });
  }
  const decision d = ops[0].decision(1000);
  CHECK(d.config == "together(consume=columns[width:8] produce=columns[width:8])");
  CHECK(d.evidence.size() == 2);
  for (const auto& [made, times] : both.ran) CHECK((made.second == 0 || made.first == made.second));
  operations[1].fits = "";
  CHECK_THROWS_WITH_AS(
      static_cast<void>(register_coordinated_autotuning(w[0], "other", operations, configs, coupled_role)),
      doctest::Contains("the operations of its roles do not fit"), failure);
}

namespace {

/// Two ranks work, and a third leads them. `ran`: the function that each rank ran in each of its calls.
struct workers_and_leader {
  explicit workers_and_leader(world& w) : clock(w.clock), ran(3) {}

  task<> take(rank_id self, std::string name, time_ns span) {
    ran[self].push_back(std::move(name));
    auto woken = co_await sleep_until(clock.deadline_in(span));
    static_cast<void>(woken);
  }
  operation_function taking(rank_id self, const std::string& name, const std::vector<time_ns>& spans) {
    return [this, self, name, span = spans[self]](std::span<std::byte>) { return take(self, name, span); };
  }
  std::vector<role_operation> operations(rank_id self) {
    return {{"work", taking(self, "operation", {3_ms, 3_ms, 0})}, {"lead", taking(self, "operation", {0, 0, 5_ms})}};
  }
  // `lopsided` takes the shortest time on rank 0, and also on average, but not on rank 1.
  std::vector<role_config> configs(rank_id self) {
    return {{"work", "lopsided", taking(self, "lopsided", {100_us, 3500_us, 0})},
            {"work", "even", taking(self, "even", {2_ms, 2_ms, 0})},
            {"lead", "quick", taking(self, "quick", {0, 0, 100_us})}};
  }

  executor& clock;
  std::vector<std::vector<std::string>> ran;
};

task<> calls_of(symmetric op, int count) {
  for (int i = 0; i < count; ++i) co_await one_call(op);
}

}  // namespace

TEST_CASE("ranks of one coordinated role run the same function in each call, and the best for the slowest wins") {
  world w(3, eager_trials());
  workers_and_leader team(w);
  const role_function role = [](rank_id r) { return std::string(r == 2 ? "lead" : "work"); };
  std::vector<symmetric> ops;
  for (rank_id r = 0; r < 3; ++r)
    ops.push_back(register_coordinated_autotuning(w[r], "step", team.operations(r), team.configs(r), role));
  for (int i = 0; i < 30 && !ops[0].decision(1000).decided; ++i) {
    scope working(w.clock);
    for (const symmetric& op : ops) working.spawn(calls_of(op, 20));  // no rank waits for the others between its calls
    run_until(w.clock, [&] { return working.running() == 0; });
    pass(w, 1_s);
  }
  for (const symmetric& op : ops) {
    REQUIRE(op.decision(1000).decided);
    CHECK(op.decision(1000).config == "together(lead=quick work=even)");
    CHECK(op.decision(1000).evidence.size() == 6);
  }
  CHECK(team.ran[0] == team.ran[1]);
  CHECK(std::set<std::string>(team.ran[0].begin(), team.ran[0].end()) ==
        std::set<std::string>{"operation", "lopsided", "even"});
  CHECK(team.ran[2].size() == team.ran[0].size());

  for (auto& of_rank : team.ran) of_rank.clear();
  scope working(w.clock);
  for (const symmetric& op : ops) working.spawn(calls_of(op, 10));
  run_until(w.clock, [&] { return working.running() == 0; });
  for (rank_id r = 0; r < 3; ++r) CHECK(team.ran[r] == std::vector<std::string>(10, r == 2 ? "quick" : "even"));
}

TEST_CASE("coordinated roles need the functions of their own role only, and not too many combinations") {
  world w(2, eager_trials());
  coupled_roles both(w);
  const auto code_of = [&](const std::vector<role_operation>& o, const std::vector<role_config>& c) {
    try {
      register_coordinated_autotuning(w[0], "step", o, c, coupled_role);
    } catch (const failure& fault) {
      return fault.code();
    }
    return errc::none;
  };
  auto operations = both.operations();
  auto configs = both.configs();
  operations[0].run = nullptr;
  CHECK(code_of(operations, configs) == errc::bad_argument);
  operations = both.operations();
  configs.push_back({"nobody", "x", configs[0].run});
  CHECK(code_of(operations, configs) == errc::bad_argument);
  configs.pop_back();
  for (int i = 0; i < 64; ++i) configs.push_back({"consume", "tiled(rows=" + std::to_string(i) + ")", configs[1].run});
  CHECK(code_of(operations, configs) == errc::bad_argument);
  configs = both.configs();
  CHECK(
      register_coordinated_autotuning(w[1], "idle", both.operations(), configs, [](rank_id) { return "idle"; }).idle());
  operations[1].run = nullptr;  // rank 0 produces
  configs[1].run = nullptr;
  CHECK(code_of(operations, configs) == errc::none);
}

namespace {

// Times of a stage in each of its calls: after its receive it computes, then sleeps.
struct stage_times {
  time_ns computes_ns = 0;
  time_ns sleeps_ns = 0;
  time_ns beside_ns = 0;  // computes while it awaits its receive, before the other two
};
enum class way : std::uint8_t { pair, batch };

task<> compute_for(time_ns span) {
  auto nothing = [] {};
  co_await compute(nothing, span);
}
task<> receive_one(transfer t, std::span<std::byte> data) {
  auto got = co_await t.receive(data, {.from = 0});
  CHECK(got == data.size());
}
task<> in_a_batch(dataflow& flow, p2p b, std::span<std::byte> data, time_ns beside) {
  auto came = b.start(flow, {p2p::irecv(data, {.from = 0})});
  auto also = flow.compute({}, [beside] { return compute_for(beside); });
  co_await came;
  co_await also;
}

struct stage {
  task<> operator()(std::span<std::byte> data) const { return run(*this, data); }
  static task<> run(stage me, std::span<std::byte> data) {
    if (me.how == way::batch) {
      co_await with_dataflow(in_a_batch, me.batches, data, me.times.beside_ns);
    } else if (me.times.beside_ns != 0) {
      co_await when_all(receive_one(me.pairs, data), compute_for(me.times.beside_ns));
    } else {
      co_await receive_one(me.pairs, data);
    }
    co_await compute_for(me.times.computes_ns);
    auto slept = co_await sleep_until(me.ex->deadline_in(me.times.sleeps_ns));
    static_cast<void>(slept);
  }
  executor* ex;
  transfer pairs;
  p2p batches;
  way how;
  stage_times times;
};

// Sends a message every 10 ms to an op whose default computes for 1 ms. Returns the time that `candidate` is charged for a call, and
// requires it to be equal for all calls.
time_ns charged_ns(way how, const stage_times& candidate, std::size_t bytes, std::string* winner = nullptr) {
  world w(2, eager_trials());
  std::vector<transfer> pairs;
  std::vector<p2p> batches;
  for (rank_id r = 0; r < 2; ++r) {
    pairs.push_back(
        transfer(w[r], {.name = "pairs", .role = [](rank_id i) { return i == 0 ? role::sender : role::receiver; }}));
    p2p_options op;
    op.name = "batches";
    batches.emplace_back(w[r], op);
  }
  const stage plain{&w.clock, pairs[1], batches[1], how, {.computes_ns = 1_ms}};
  stage other = plain;
  other.times = candidate;
  role_op op = register_asymmetric_autotuning(w[1], "stage", {{"stage", plain}}, {{"stage", "other", other}},
                                              [](rank_id r) { return std::string(r == 1 ? "stage" : "idle"); });
  constexpr int calls = 60;
  const auto feed = [](executor& ex, transfer t, p2p b, way by, std::size_t n) -> task<> {
    const std::vector<std::byte> data(n);
    scope& here = co_await this_scope;
    for (int i = 0; i < calls; ++i) {
      auto slept = co_await sleep_until((i + 1) * 10_ms);
      static_cast<void>(slept);
      if (by == way::pair) {
        co_await t.send(data, {.to = 1});
      } else {
        dataflow flow(here);
        auto gone = b.start(flow, {p2p::isend(data, {.to = 1})});
        co_await gone;
        co_await flow.join();
      }
    }
    static_cast<void>(ex);
  };
  const auto work = [](role_op staged, std::size_t n) -> task<> {
    std::vector<std::byte> data(n);
    for (int i = 0; i < calls; ++i) co_await staged.run(data);
  };
  scope all(w.clock);
  all.spawn(feed(w.clock, pairs[0], batches[0], how, bytes));
  all.spawn(work(op, bytes));
  run_until(w.clock, [&] { return all.running() == 0; });
  CHECK(all.cancelled() == errc::none);
  CHECK(w.clock.now() >= calls * 10_ms);
  const actors::search* const c = op.search_of(bytes);
  REQUIRE(c != nullptr);
  if (winner != nullptr) *winner = c->chosen().config;
  const auto digest = tuning::digest({.name = "other"});
  std::set<time_ns> spans;
  for (const auto& rows : c->book().rows) {
    for (const tuning::row& r : rows) {
      if (r.digest == digest) spans.insert(r.end_ns - r.start_ns);
    }
  }
  REQUIRE(spans.size() == 1);
  return *spans.begin();
}

}  // namespace

TEST_CASE(
    "a stage is charged to the nanosecond for its computing and sleeping, but not for its waits in calls of ops") {
  for (const way how : {way::pair, way::batch}) {
    for (const std::size_t bytes : {std::size_t{100}, std::size_t{300'000}}) {
      CAPTURE(static_cast<int>(how));
      CAPTURE(bytes);
      std::string winner;
      CHECK(charged_ns(how, {.computes_ns = 700'000}, bytes, &winner) == 700'000);
      CHECK(winner == "other");
      CHECK(charged_ns(how, {.computes_ns = 700'000, .sleeps_ns = 2'000}, bytes) == 702'000);
      CHECK(charged_ns(how, {.computes_ns = 200'000, .beside_ns = 3'000}, bytes) == 203'000);
    }
  }
}

namespace {

/// The time that each config of a collective without headers takes on each rank, and how often it ran on each rank.
struct on_each_rank {
  std::map<std::string, std::vector<int>> ran;

  class config final : public symmetric_config {
   public:
    config(on_each_rank& all, executor& ex, const std::string& name, const std::string& wire_class,
           std::vector<time_ns> takes_ns)
        : symmetric_config({.name = name, .wire_class = wire_class}), all_(all), executor_(ex),
          takes_ns_(std::move(takes_ns)) {}
    task<> run(symmetric_call call, std::span<std::byte>) const override {
      auto& times = all_.ran[identity().name];
      times.resize(takes_ns_.size());
      ++times[call.self];
      auto slept = co_await sleep_until(executor_.deadline_in(takes_ns_[call.self]));
      if (!slept) raise(slept.reason());
    }

   private:
    on_each_rank& all_;
    executor& executor_;
    std::vector<time_ns> takes_ns_;
  };
};

}  // namespace

TEST_CASE(
    "a collective without headers runs a mixture if one wire class allows it, else a config that all ranks have") {
  for (const bool one_wire : {true, false}) {
    CAPTURE(one_wire);
    world w(4, eager_trials());
    on_each_rank room;
    // Ranks 0 and 1 have the newer machine. nccl is slow there, and h100_optimized is not.
    const std::vector<symmetric_config_ptr> configs{
        std::make_shared<on_each_rank::config>(room, w.clock, "nccl", "ring",
                                               std::vector<time_ns>{10_ms, 10_ms, 4_ms, 4_ms}),
        std::make_shared<on_each_rank::config>(room, w.clock, "h100_optimized", one_wire ? "ring" : "tree",
                                               std::vector<time_ns>(4, 5_ms))};
    std::vector<symmetric> ops;
    for (auto& r : w.ranks) {
      symmetric_options op;
      op.name = "gradients";
      ops.push_back(
          register_heterogeneous_autotuning(*r, op, configs, [](rank_id i) { return std::vector<bool>{true, i < 2}; }));
    }
    const auto call = [&](int times) {
      const auto repeat = [](symmetric op, int n) -> task<> {
        std::vector<std::byte> data(1000);
        for (int i = 0; i < n; ++i) co_await op.run(data);
      };
      scope all(w.clock);
      for (const symmetric& op : ops) all.spawn(repeat(op, times));
      run_until(w.clock, [&] { return all.running() == 0; });
      pass(w, 1_s);
    };
    for (int i = 0; i < 10; ++i) call(20);
    for (const symmetric& op : ops) {
      CHECK(op.decision(1000).decided);
      CHECK(op.decision(1000).config == (one_wire ? "h100_optimized" : "nccl"));
    }
    room.ran.clear();
    call(10);
    if (one_wire) {
      CHECK(room.ran["h100_optimized"] == std::vector<int>{10, 10, 0, 0});
      CHECK(room.ran["nccl"] == std::vector<int>{0, 0, 10, 10});
      CHECK(w[0].decisions().front().decision.mixture != 0);
    } else {
      CHECK(room.ran["nccl"] == std::vector<int>(4, 10));
    }
  }
}
