// Ops of more than two ranks, one of which restarts as a new process: the calls in flight end, and the op starts again when each of the
// other ranks has called `rejoin`.
#include <parley/tests/support/cases/op_cases.hpp>
#include <parley/tests/support/devices/library.hpp>
#include <parley/tests/support/errors.hpp>

#include <parley/actors/services.hpp>
#include <parley/collective.hpp>
#include <parley/compute.hpp>
#include <parley/config.hpp>
#include <parley/contextual.hpp>
#include <parley/group_config.hpp>
#include <parley/hierarchy.hpp>
#include <parley/ops/edges/message_options.hpp>
#include <parley/ops/groups/group.hpp>
#include <parley/ops/leased/contextual_end.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/symmetric.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_context.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <map>
#include <optional>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;
using namespace parley::tests::op_cases;

namespace {

constexpr rank_id returns = 1;

struct leased final : op_case {
  explicit leased(world& job) : op_case(job), lib(job.clock, ranks) {}
  const char* name() const override { return "norms"; }
  void declare(rank_id r) override {
    symmetric_options op;
    op.name = "norms";
    op.configs = {takes("library", 40'000), takes("ring", 20'000)};
    op.communicator = communicator_of(r);
    op.rehearse = std::make_shared<library_source>(lib);
    of[r] = symmetric(self(r), op);
  }
  task<> call(rank_id r) override { return of[r].run(std::span(data)); }
  bool rejoin(rank_id r) override { return of[r].rejoin(communicator_of(r)); }
  bool right(rank_id) const override { return true; }  // a wrong call would not meet in the library
  // The user's communicator. The user makes a new one for each generation.
  std::shared_ptr<communicator> communicator_of(rank_id r) {
    auto& users = places[self(r).services().incarnations.of(returns)];
    if (!users) users = lib.make();
    return over[r] = std::make_shared<library_communicator>(users);
  }
  std::map<rank_id, std::shared_ptr<communicator>> over;
  library lib;
  std::map<std::uint64_t, decltype(lib.make())> places;
  std::map<rank_id, symmetric> of;
  std::vector<std::byte> data = std::vector<std::byte>(4096);
};

struct tuned_thunk final : op_case {
  using op_case::op_case;
  using kernel = tunable_op<task<>()>;
  const char* name() const override { return "layer"; }
  static task<> spin(time_ns span) {
    co_await compute([] {}, span);
  }
  void declare(rank_id r) override {
    kernel::options o;
    o.name = "kernel";
    o.key = [] { return tuning::kernel_key{{"n", std::uint64_t{1}}}; };
    o.implementations.push_back({"slow", [] { return spin(3'000); }});
    o.implementations.push_back({"fast", [] { return spin(1'000); }});
    kernels[r].reset();
    kernels[r] = std::make_unique<kernel>(self(r).kernels(), std::move(o));
    contextual_options op;
    op.name = "layer";
    op.iterations = 2;
    of.insert_or_assign(r, contextual(self(r), op));
  }
  task<> call(rank_id r) override {
    return of.at(r).run([this, r] { return (*kernels[r])(); });
  }
  bool rejoin(rank_id r) override { return of.at(r).rejoin(); }
  bool meets() const override { return false; }  // not once the kernel is tuned
  bool right(rank_id r) const override { return of.at(r).end().best("kernel", "n=1") == "fast"; }
  std::map<rank_id, std::unique_ptr<kernel>> kernels;
  std::map<rank_id, contextual> of;
};

struct caller {
  scope calls;
  std::map<rank_id, std::optional<result<>>> outcomes;
  explicit caller(world& w) : calls(w.clock) {}
  static task<> one(op_case* op, rank_id r, std::optional<result<>>* outcome) {
    std::exception_ptr thrown;
    try {
      co_await op->call(r);
    } catch (...) {
      thrown = std::current_exception();
    }
    outcome->emplace(thrown ? result<>(describe(thrown)) : result<>());
  }
  void call(op_case& op, rank_id r) { calls.spawn(one(&op, r, &outcomes[r])); }
};

void all_call(op_case& op) {
  caller all(*op.w);
  for (rank_id r = 0; r < ranks; ++r) all.call(op, r);
  run_until(op.w->clock, [&] { return all.calls.running() == 0; });
  for (rank_id r = 0; r < ranks; ++r) {
    CAPTURE(r);
    REQUIRE(all.outcomes[r]);
    CHECK_MESSAGE(*all.outcomes[r], (*all.outcomes[r] ? "" : all.outcomes[r]->reason().what()));
    CHECK(op.right(r));
  }
}

task<> pass(dataflow& flow, p2p* op, p2p_operation what) {
  auto moving = op->start(flow, std::span(&what, 1));
  co_await moving;
}

task<> outcome_of(p2p& op, p2p_operation what, result<>& outcome) {
  std::exception_ptr thrown;
  try {
    co_await with_dataflow(pass, &op, what);
  } catch (...) {
    thrown = std::current_exception();
  }
  outcome = thrown ? result<>(describe(thrown)) : result<>();
}

errc call_alone(op_case& op, rank_id r) {
  caller one(*op.w);
  one.call(op, r);
  run_until(op.w->clock, [&] { return one.calls.running() == 0; });
  return one.outcomes[r]->code();
}

template <class Op>
void restart_and_go_on() {
  world w(ranks);
  Op op(w);
  for (rank_id r = 0; r < ranks; ++r) op.declare(r);
  all_call(op);
  all_call(op);
  for (int again = 0; again < 2; ++again) {
    for (rank_id r = 0; r < ranks; ++r) CHECK((r == returns || !op.rejoin(r)));  // nobody has restarted
    caller calling(w);
    for (rank_id r = 0; r < ranks; ++r) {
      if (r != returns) calling.call(op, r);
    }
    wait_a_while(w, 10'000'000);
    w.restart(returns);
    op.declare(returns);
    w.tell_of(returns);
    run_until(w.clock, [&] { return calling.calls.running() == 0; });
    for (auto& [r, outcome] : calling.outcomes) {
      CAPTURE(r);
      if (*outcome) continue;  // this call needed nothing of the restarted rank
      CHECK(is(*outcome, {.code = errc::peer_restarted, .peer = 1, .culprit = 1}));
    }
    if (op.meets()) CHECK(!*calling.outcomes.at(2));
    for (rank_id r = 0; r < ranks; ++r) {
      if (r == returns) continue;
      CHECK(call_alone(op, r) == errc::peer_restarted);
      CHECK(op.rejoin(r));
      CHECK(!op.rejoin(r));
    }
    all_call(op);
    all_call(op);
  }
}

// Rank `returns` makes no call before it restarts, so that the others' calls fail and the op is closed.
template <class Op>
void close_restart_and_go_on() {
  world w(ranks);
  Op op(w);
  for (rank_id r = 0; r < ranks; ++r) op.declare(r);
  all_call(op);
  for (int again = 0; again < 2; ++again) {
    caller without(w);
    for (rank_id r = 0; r < ranks; ++r) {
      if (r != returns) without.call(op, r);
    }
    run_until(w.clock, [&] { return without.calls.running() == 0; });
    CHECK(!*without.outcomes.at(2));
    CHECK(call_alone(op, 2) == errc::closed);
    wait_a_while(w, 100'000'000);
    w.restart(returns);
    op.declare(returns);
    w.tell_of(returns);
    for (rank_id r = 0; r < ranks; ++r) {
      if (r == returns) continue;
      CHECK(call_alone(op, r) == errc::peer_restarted);
      CHECK(op.rejoin(r));
    }
    all_call(op);
    all_call(op);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("an op that was closed by a failed call starts again after a restart and a rejoin", Op, stages, rims,
                   turning, passes) {
  close_restart_and_go_on<Op>();
}

TEST_CASE_TEMPLATE("an op with a restarted rank fails until the other ranks have rejoined, and then starts again", Op,
                   one_group, two_levels, leased, tuned_thunk, stages, rims, turning, passes) {
  restart_and_go_on<Op>();
}

TEST_CASE("messages of rejoined members wait for members that have not rejoined yet, and are then delivered") {
  world w(ranks);
  one_group op(w);
  for (rank_id r = 0; r < ranks; ++r) op.declare(r);
  all_call(op);
  w.restart(returns);
  op.declare(returns);
  w.tell_of(returns);
  caller early(w);
  for (const rank_id r : {0, 1, 2}) {
    if (r != static_cast<int>(returns)) CHECK(op.rejoin(r));
    early.call(op, r);
  }
  wait_a_while(w, 100'000'000);
  CHECK(early.calls.running() == 3);
  CHECK(op.of[3].details()->data_path().statistics().dropped == 0);
  CHECK(op.rejoin(3));
  early.call(op, 3);
  run_until(w.clock, [&] { return early.calls.running() == 0; });
  for (auto& [r, outcome] : early.outcomes) CHECK(*outcome);
}

TEST_CASE("calls of a restarted group time out if one of its ranks does not rejoin") {
  world w(ranks);
  one_group op(w);
  for (rank_id r = 0; r < ranks; ++r) op.declare(r);
  all_call(op);
  w.restart(returns);
  op.declare(returns);
  w.tell_of(returns);
  for (const rank_id r : {2, 3}) CHECK(op.rejoin(r));
  caller late(w);
  for (const rank_id r : {1, 2, 3}) late.call(op, r);  // their leader keeps their parts, so their buffers stay in use
  const time_ns began = w.clock.now();
  run_until(w.clock, [&] { return late.calls.running() == 0; });
  for (auto& [r, outcome] : late.outcomes) CHECK(outcome->code() == errc::timeout);
  CHECK(w.clock.now() - began < 35'000'000'000);
}

TEST_CASE("a part for a generation that its receiver never joined is released, so that its sender's call ends") {
  world w(3);
  std::map<rank_id, collective> of;
  const auto declare = [&](rank_id r) { of[r] = collective(w[r], led_by(1, {star()})); };
  for (rank_id r = 0; r < 3; ++r) declare(r);
  w.restart(0);
  declare(0);
  w[2].on_restarted(0, w.incarnations[0]);  // rank 1 has not heard of the restart yet
  std::vector<float> x(30'000);
  result<> outcome;
  scope calls(w.clock);
  calls.spawn(reduce_one(of[0], x, outcome));
  wait_a_while(w, 1'000'000);
  CHECK(of[1].details()->data_path().statistics().unjoined == 1);
  w.restart(2);
  declare(2);
  w[0].on_restarted(2, w.incarnations[2]);
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(outcome.code() == errc::peer_restarted);
}

TEST_CASE("a first call between a restart and rejoin fails with peer_restarted and does not count as a call") {
  world w(ranks);
  std::map<rank_id, hierarchy> of;
  const auto declare = [&](rank_id r) {
    of[r] = hierarchy(w[r], {.name = "weights", .leads = [](rank_id who) { return who % 2 == 0; }});
  };
  std::map<rank_id, std::vector<float>> all;
  const auto gather = [&](rank_id r, float value, result<>& outcome) -> task<> {
    std::vector<float> mine(1, value);
    all[r].assign(ranks, 0.0F);
    outcome = co_await attempt(of[r].all_gather(mine, all[r]));
  };
  for (rank_id r = 0; r < ranks; ++r) declare(r);
  w.restart(returns);
  declare(returns);
  w.tell_of(returns);
  result<> early;
  scope calls(w.clock);
  calls.spawn(gather(3, 9.0F, early));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(early.code() == errc::peer_restarted);
  for (const rank_id r : {0, 2, 3}) CHECK(of[r].rejoin());
  std::vector<result<>> outcomes(ranks);
  for (rank_id r = 0; r < ranks; ++r) calls.spawn(gather(r, static_cast<float>(r), outcomes[r]));
  run_until(w.clock, [&] { return calls.running() == 0; });
  for (rank_id r = 0; r < ranks; ++r) {
    CHECK(outcomes[r]);
    CHECK(all[r] == std::vector<float>{0, 1, 2, 3});
  }
}

TEST_CASE("an edge first used between a restart and rejoin fails with peer_restarted, and works after the rejoin") {
  constexpr rank_id many = 12;  // more edges than a declaration makes at once
  world w(many);
  std::map<rank_id, p2p> of;
  const auto declare = [&](rank_id r) {
    p2p_options op;
    op.name = "pieces";
    op.restart_group = named_or_first({}, many);
    of[r] = p2p(w[r], op);
  };
  for (rank_id r = 0; r < many; ++r) declare(r);
  w.restart(returns);
  declare(returns);
  w.tell_of(returns);
  std::vector<std::byte> first(100, std::byte{1});
  std::vector<std::byte> second(100, std::byte{2});
  std::vector<std::byte> got(100);
  result<> doomed;
  scope calls(w.clock);
  calls.spawn(outcome_of(of[11], p2p::isend(first, {.to = 10}), doomed));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(doomed.code() == errc::peer_restarted);
  for (rank_id r = 0; r < many; ++r) CHECK((r == returns || of[r].rejoin()));
  result<> sent;
  result<> received;
  calls.spawn(outcome_of(of[11], p2p::isend(second, {.to = 10}), sent));
  calls.spawn(outcome_of(of[10], p2p::irecv(got, {.from = 11}), received));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(sent);
  CHECK(received);
  CHECK(got == second);
}

TEST_CASE("a stage that learns late of another stage's restart does not fail with fenced") {
  world w(ranks);
  stages op(w);
  for (rank_id r = 0; r < ranks; ++r) op.declare(r);
  all_call(op);
  w.restart(3);
  op.declare(3);
  for (const rank_id r : {1, 2}) {
    w[r].on_restarted(3, w.incarnations[3]);
    CHECK(op.rejoin(r));
  }
  caller late(w);
  late.call(op, 0);
  wait_a_while(w, 100'000'000);
  w[0].on_restarted(3, w.incarnations[3]);
  run_until(w.clock, [&] { return late.calls.running() == 0; });
  CHECK((*late.outcomes[0] || late.outcomes[0]->code() == errc::peer_restarted));
  CHECK(op.rejoin(0));
  all_call(op);
}

TEST_CASE(
    "a receive whose sender learns first of a restart gets peer_failed, and its rank can rejoin after learning of it") {
  world w(3);
  std::map<rank_id, pipeline> of;
  std::map<rank_id, stages::stage> work;
  const std::vector<std::uint64_t> sizes{30'000};
  const auto declare = [&](rank_id r) {
    of[r] = pipeline(w[r], {.name = "layers", .configs = {direct(), put()}, .timeout = 20ms});
    work[r].place = r;
  };
  const auto start = [&](rank_id r, scope& calls, std::optional<result<>>& outcome) {
    const auto one = [](pipeline& p, std::span<const std::uint64_t> all, stages::stage& its,
                        std::optional<result<>>& how) -> task<> { how.emplace(co_await attempt(p.run(all, its))); };
    calls.spawn(one(of[r], sizes, work[r], outcome));
  };
  for (rank_id r = 0; r < 3; ++r) declare(r);
  const auto all_run = [&] {
    scope calls(w.clock);
    std::array<std::optional<result<>>, 3> outcomes;
    for (rank_id r = 0; r < 3; ++r) start(r, calls, outcomes[r]);
    run_until(w.clock, [&] { return calls.running() == 0; });
    for (const auto& o : outcomes) CHECK(*o);
  };
  for (int i = 0; i < 30; ++i) all_run();  // by then receives give credits
  w.restart(2);
  declare(2);
  w[0].on_restarted(2, w.incarnations[2]);
  scope calls(w.clock);
  std::optional<result<>> early;
  start(1, calls, early);
  run_until(w.clock, [&] { return early.has_value(); });
  CHECK(
      is(*early, {.code = errc::peer_failed,
                  .rank = 1,
                  .peer = 0,
                  .quotes = "has ended this generation of the op: it says that one of the op's ranks has restarted"}));
  CHECK_FALSE(of[1].rejoin());
  w[1].on_restarted(2, w.incarnations[2]);
  for (const rank_id r : {0, 1}) CHECK(of[r].rejoin());
  all_run();
}

TEST_CASE("a part kept by a member that has not rejoined is released when the worker's call times out") {
  world w(ranks);
  std::map<rank_id, collective> of;
  const auto declare = [&](rank_id r) {
    auto op = led_by(0, {tree()});
    op.timeout = 2s;
    of[r] = collective(w[r], op);
  };
  for (rank_id r = 0; r < ranks; ++r) declare(r);
  w.restart(returns);
  declare(returns);
  w.tell_of(returns);
  std::vector<std::vector<float>> x(ranks, std::vector<float>(30'000));
  std::vector<result<>> outcomes(ranks);
  scope calls(w.clock);
  for (const rank_id r : {0, 1, 3}) {
    if (r != static_cast<int>(returns)) CHECK(of[r].rejoin());
    calls.spawn(reduce_one(of[r], x[r], outcomes[r]));
  }
  wait_a_while(w, 5'000'000'000);
  CHECK(calls.running() == 0);
  for (const rank_id r : {0, 1, 3}) CHECK(outcomes[r].code() == errc::timeout);
}

TEST_CASE(
    "more data than is kept for an unjoined generation ends the op with full, and a later receive does not wait") {
  rank_settings s;
  s.early_bytes = 1 << 20;
  world w(3, s);
  std::map<rank_id, p2p> of;
  const auto declare = [&](rank_id r) {
    p2p_options op;
    op.name = "pieces";
    op.configs = {chunked(2048, 4)};
    op.restart_group = {0, 1, 2};
    op.timeout = 2s;
    of[r] = p2p(w[r], op);
  };
  for (rank_id r = 0; r < 3; ++r) declare(r);
  w.restart(1);
  declare(1);
  w.tell_of(1);
  CHECK(of[0].rejoin());
  std::vector<std::byte> data(16 << 20);
  std::vector<std::byte> got(16 << 20);
  result<> sent;
  result<> received;
  scope calls(w.clock);
  calls.spawn(outcome_of(of[0], p2p::isend(data, {.to = 2}), sent));
  wait_a_while(w, 500'000'000);
  CHECK(of[2].rejoin());
  calls.spawn(outcome_of(of[2], p2p::irecv(got, {.from = 0}), received));
  wait_a_while(w, 5'000'000'000);
  CHECK(calls.running() == 0);
  CHECK(received.code() == errc::full);
}

TEST_CASE("an op without headers releases the communicator of an ended generation") {
  world w(ranks);
  leased op(w);
  for (rank_id r = 0; r < ranks; ++r) op.declare(r);
  all_call(op);
  const std::weak_ptr<communicator> before = op.over[0];
  op.over.clear();
  w.restart(returns);
  op.declare(returns);
  w.tell_of(returns);
  for (const rank_id r : {0, 2, 3}) CHECK(op.rejoin(r));
  CHECK(before.expired());
}

TEST_CASE("a member that dies after another one has restarted fails the op with peer_failed even after a rejoin") {
  world w(3);
  std::map<rank_id, collective> of;
  const auto declare = [&](rank_id r) { of[r] = collective(w[r], led_by(0, {star()})); };
  for (rank_id r = 0; r < 3; ++r) declare(r);
  w.restart(1);
  declare(1);
  w.tell_of(1);
  for (const rank_id r : {0, 1}) w[r].on_lost(2, "it was killed");
  CHECK(of[0].rejoin());
  std::vector<float> x(10);
  result<> outcome;
  scope calls(w.clock);
  calls.spawn(reduce_one(of[0], x, outcome));
  run_until(w.clock, [&] { return calls.running() == 0; });
  CHECK(outcome.code() == errc::peer_failed);
}
