// Config implementations that call the op that they implement. Such a call is refused before it moves any data, the config is left out and
// named, and the program's own messages arrive unchanged.
#include <parley/tests/support/errors.hpp>
#include <parley/tests/support/groups.hpp>
#include <parley/tests/support/transfers.hpp>

#include <parley/actors/agreement/assignment.hpp>
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/group_config.hpp>
#include <parley/hierarchy.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/kernels/role_op.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::tests;

namespace {

constexpr std::size_t size = 40'000;

enum class way : std::uint8_t {
  not_at_all,
  awaited,
  in_a_spawned_task,
  beside_another,
  started,
  started_by_the_program,
  in_a_batch
};

/// The ops that the config's implementations call; set once the op is declared.
struct called {
  std::optional<transfer> pair;
  std::optional<p2p> batches;
  std::vector<errc> ended;  ///< how each inner call ended
};

struct calls_its_op final : paired_config {
  calls_its_op(std::shared_ptr<called> c, way h)
      : paired_config({.name = "calls_its_op", .wire_class = "own"}), op(std::move(c)), how(h) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override {
    co_await call(data, {});
    co_await out.send(0, data);
  }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    co_await call({}, data);
    co_await in.receive(0, data);
  }
  // Sends if `into` is empty, else receives.
  task<> call_awaited(std::span<const std::byte> from, std::span<std::byte> into) const {
    if (into.empty()) {
      co_await op->pair->send(from.first(100), {.to = 1});
    } else {
      co_await op->pair->receive(into, {.from = 0});
    }
  }
  static task<> call_in_a_batch(dataflow& flow, const calls_its_op* self, std::span<const std::byte> from,
                                std::span<std::byte> into) {
    const std::vector<p2p_operation> one(1, into.empty() ? p2p::isend(from, {.to = 1}) : p2p::irecv(into, {.from = 0}));
    const flow_work moving = self->op->batches->start(flow, one);
    co_await moving;
  }
  task<> call(std::span<const std::byte> from, std::span<std::byte> into) const {
    scope& here = co_await this_scope;
    std::exception_ptr thrown;
    try {
      if (how == way::not_at_all) co_return;
      if (how == way::awaited) {
        co_await call_awaited(from, into);
      } else if (how == way::in_a_spawned_task) {
        scope helper(here);
        helper.spawn(call_awaited(from, into));
        co_await helper.join();
      } else if (how == way::beside_another) {
        auto both = co_await when_all(call_awaited(from, into), call_awaited(from, into));
        static_cast<void>(both);
      } else if (how == way::in_a_batch) {
        co_await with_dataflow(&call_in_a_batch, this, from, into);
      } else if (how == way::started_by_the_program) {
        work<> begun = start(here.where(), call_awaited(from, into));
        while (!begun.done()) co_await yield;
        begun.wait();
      } else if (into.empty()) {
        op->pair->start_send(from.first(100), {.to = 1}).wait();
      } else {
        static_cast<void>(op->pair->start_receive(into, {.from = 0}).wait());
      }
    } catch (...) {
      thrown = std::current_exception();
    }
    op->ended.push_back(thrown ? describe(thrown).code() : errc::none);
    if (thrown) std::rethrow_exception(thrown);
  }
  std::shared_ptr<called> op;
  way how;
};

bool names(const std::vector<std::string>& lines, std::string_view config, std::string_view code) {
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return line.find(config) != std::string::npos && line.find(code) != std::string::npos;
  });
}

/// Checks that an op's second config, which calls that op on one of its ranks, was refused and left out. `caller` holds those calls.
void check_left_out(world& w, const called& caller) {
  CHECK(!caller.ended.empty());
  CHECK(std::all_of(caller.ended.begin(), caller.ended.end(), [](errc e) { return e == errc::bad_argument; }));
  const auto agreed = w[0].agreements();
  REQUIRE(agreed.size() == 1);
  CHECK(names(*agreed[0].warm_errors, "calls_its_op", "bad_argument"));
  const auto* c = search_of(w, "64KiB");
  REQUIRE(c != nullptr);
  CHECK(c->is_decided());
  CHECK(c->chosen().digest == direct()->digest());
}

}  // namespace

TEST_CASE("a config that calls its own transfer is left out by name, and consumes none of the program's messages") {
  for (const rank_id caller : {rank_id{0}, rank_id{1}}) {
    for (const way how :
         {way::awaited, way::in_a_spawned_task, way::beside_another, way::started, way::started_by_the_program}) {
      CAPTURE(caller);
      CAPTURE(static_cast<int>(how));
      world w(2, eager_trials());
      const auto end = std::make_shared<called>();
      const auto on = [&](rank_id r) {
        return pair_of({direct(), std::make_shared<calls_its_op>(end, r == caller ? how : way::not_at_all)});
      };
      transfer out(w[0], on(0));
      transfer in(w[1], on(1));
      end->pair = caller == 0 ? out : in;
      std::vector<std::size_t> sizes(60, size);
      for (std::size_t i = 0; i < sizes.size(); i += 7) sizes[i] = 100 + i;  // near the 100 bytes that the config sends
      const auto all = move_each(w, out, in, sizes);
      CHECK(all.failed() == 0);
      CHECK(all.wrong == 0);
      check_left_out(w, *end);
    }
  }
}

TEST_CASE(
    "a config that starts a batch of its own op is left out by name, and consumes none of the program's messages") {
  world w(2, eager_trials());
  auto at_sender = std::make_shared<called>();
  auto at_receiver = std::make_shared<called>();
  const auto op_with = [](const std::shared_ptr<called>& end) {
    p2p_options op{.name = "ghosts", .configs = {direct(), std::make_shared<calls_its_op>(end, way::in_a_batch)}};
    op.edges = {{0, 1}};
    return op;
  };
  p2p out(w[0], op_with(at_sender));
  p2p in(w[1], op_with(at_receiver));
  at_sender->batches = out;
  at_receiver->batches = in;
  int wrong = 0;
  std::vector<std::vector<std::byte>> sent;
  for (std::size_t i = 0; i < 60; ++i) sent.push_back(pattern(size, i));
  std::vector<std::byte> into(size);
  const auto send = [](dataflow& flow, p2p* op, const std::vector<std::vector<std::byte>>* data) -> task<> {
    for (const auto& bytes : *data) {
      const std::vector<p2p_operation> one(1, p2p::isend(bytes, {.to = 1}));
      const flow_work moving = op->start(flow, one);
      co_await moving;
    }
  };
  const auto receive = [](dataflow& flow, p2p* op, std::vector<std::byte>* to, int* bad) -> task<> {
    for (std::size_t i = 0; i < 60; ++i) {
      const std::vector<p2p_operation> one(1, p2p::irecv(*to, {.from = 0}));
      const flow_work moving = op->start(flow, one);
      co_await moving;
      *bad += *to == pattern(size, i) ? 0 : 1;
    }
  };
  scope all(w.clock);
  all.spawn(with_dataflow(send, &out, &sent));
  all.spawn(with_dataflow(receive, &in, &into, &wrong));
  const auto join = [](scope& s) -> task<> { co_await s.join(); };
  run(w.clock, join(all));
  CHECK(wrong == 0);
  check_left_out(w, *at_sender);
}

TEST_CASE("a default that calls its own op fails by name, and a config may call another op") {
  world w(2, eager_trials());
  auto at_sender = std::make_shared<called>();
  auto op = pair_of({std::make_shared<calls_its_op>(at_sender, way::awaited)});
  transfer out(w[0], op);
  transfer in(w[1],
              pair_of({paired(
                  {.name = "calls_its_op", .wire_class = "own"},
                  [](part_sender& to, std::span<const std::byte> data) -> task<> { co_await to.send(0, data); },
                  [](part_receiver& from, std::span<std::byte> data) -> task<> { co_await from.receive(0, data); })}));
  // A config may call another op: its message arrives.
  auto side = pair_of({direct()});
  side.name = "side";
  transfer side_out(w[0], side);
  transfer side_in(w[1], side);
  at_sender->pair = out;
  const auto first = move_each(w, out, in, {size});
  REQUIRE(first.sent.size() == 1);
  CHECK(is(first.sent[0], {.code = errc::config_failed, .config = "calls_its_op", .quotes = "own implementation"}));
  CHECK(!first.received[0]);
  at_sender->pair = side_out;
  at_sender->ended.clear();
  std::vector<std::byte> on_the_side(200);
  auto aside = side_in.start_receive(on_the_side, {.from = 0});
  const auto second = move_each(w, out, in, {size});
  CHECK(second.failed() == 0);
  CHECK(second.wrong == 0);
  CHECK(aside.wait() == 100);
  CHECK(!at_sender->ended.empty());
  CHECK(std::all_of(at_sender->ended.begin(), at_sender->ended.end(), [](errc e) { return e == errc::none; }));
}

namespace {

/// Runs the default after it has called its own group.
struct group_that_calls final : group_config {
  explicit group_that_calls(std::shared_ptr<std::optional<collective>> g)
      : group_config({.name = "calls_its_group", .wire_class = "own"}), group(std::move(g)), by(star()) {}
  bool does(collective_kind c) const noexcept override { return by->does(c); }
  bool returns_later() const noexcept override { return by->returns_later(); }
  task<> lead(group_call& call) const override {
    std::vector<float> x(10);
    co_await (*group)->all_reduce(std::span(x));
    co_await by->lead(call);
  }
  task<> work(group_call& call) const override {
    std::vector<float> x(10);
    co_await (*group)->all_reduce(std::span(x));
    co_await by->work(call);
  }
  std::shared_ptr<std::optional<collective>> group;
  group_config_ptr by;
};

}  // namespace

TEST_CASE("a config that calls its own group is left out by name, and no call gets the sum of another call") {
  constexpr rank_id ranks = 3;
  world w(ranks, eager_trials());
  std::vector<collective> groups;
  for (rank_id r = 0; r < ranks; ++r) {
    auto own = std::make_shared<std::optional<collective>>();
    groups.emplace_back(w[r], led_by(0, {star(), std::make_shared<group_that_calls>(own)}));
    *own = groups.back();
  }
  const auto all = reduce_all(w, groups, std::vector<std::size_t>(60, 10'000));
  CHECK(all.failed() == 0);
  CHECK(all.wrong == 0);
  const auto agreed = w[0].agreements();
  REQUIRE(agreed.size() == 1);
  CHECK(names(*agreed[0].warm_errors, "calls_its_group", "bad_argument"));
  for (const auto& c : agreed[0].assigned->searches()) CHECK(c->chosen().digest == star()->digest());
}

namespace {

struct stage_that_runs_its_pipeline final : pipeline_work {
  explicit stage_that_runs_its_pipeline(pipeline& p) : own(p) {}
  task<> work(std::uint64_t, std::span<std::byte>) override {
    const std::vector<std::uint64_t> bytes(1, 100);
    co_await own.run(bytes, *this);
  }
  pipeline& own;
};

}  // namespace

TEST_CASE("a stage that runs its own pipeline ends the run as bad_argument") {
  world w(1);
  pipeline alone(w[0], {.name = "layers", .configs = {direct()}});
  stage_that_runs_its_pipeline stage(alone);
  const std::vector<std::uint64_t> bytes(3, 100);
  const auto outcome = thrown_by([&] { run(w.clock, alone.run(bytes, stage)); });
  CHECK(is(outcome, {.code = errc::bad_argument, .quotes = "layers"}));
}

TEST_CASE("a role function that runs its own op fails the call as bad_argument at most once, and the default wins") {
  world w(1, eager_trials());
  std::optional<role_op> own;
  const auto run_own = [&own](std::span<std::byte> data) -> task<> { return own->run(data); };
  const auto nothing = [](std::span<std::byte>) -> task<> { co_return; };
  role_options o{.name = "layer",
                 .role = "solver",
                 .configs = {std::make_shared<role_function_config>(tuning::config_identity{.name = "plain"}, nothing),
                             std::make_shared<role_function_config>(tuning::config_identity{.name = "own"}, run_own)}};
  own.emplace(w[0], o);
  std::vector<std::byte> data(1000);
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    const auto outcome = thrown_by([&] { run(w.clock, own->run(data)); });
    if (!outcome) CHECK(outcome.code() == errc::bad_argument);
    refused += outcome ? 0 : 1;
  }
  CHECK(refused <= 1);
  CHECK(own->decision(1000).config == "plain");
}

TEST_CASE("a kernel's implementation that calls its kernel with the same key is left out, and smaller keys are tuned") {
  virtual_time clock;
  tunable_context kernels(clock, nullptr, {});
  kernels.enable_tunable_op(true);
  using kernel = tunable_op<void(std::size_t)>;
  kernel* self = nullptr;
  int innermost = 0;
  kernel::options o;
  o.name = "halve";
  o.key = [](std::size_t n) { return tuning::kernel_key{{"n", n}}; };
  o.implementations.push_back({"plain", [&](std::size_t n) { innermost += n == 1 ? 1 : 0; }});
  o.implementations.push_back({"again", [&](std::size_t n) { (*self)(n); }});
  o.implementations.push_back({"halves", [&](std::size_t n) {
                                 if (n > 1) (*self)(n / 2);
                               }});
  kernel op(kernels, std::move(o));
  self = &op;
  op(8);
  CHECK(innermost > 0);
  for (const std::size_t n : {std::size_t{8}, std::size_t{4}, std::size_t{2}, std::size_t{1}}) {
    const kernel_entry& entry = op.decision(n);
    CHECK(entry.decided);
    CHECK(op.id_of(entry) != "again");
  }
}

TEST_CASE("a blocking wait in a coroutine is refused before its call has sent anything") {
  world w(2);
  transfer out(w[0], pair_of({direct()}));
  transfer in(w[1], pair_of({direct()}));
  const auto start_and_wait = [](transfer t) -> task<> {
    const auto data = pattern(100, 1);
    t.start_send(data, {.to = 1}).wait();
    co_return;
  };
  CHECK(thrown_by([&] { run(w.clock, start_and_wait(out)); }).code() == errc::bad_argument);
  const auto next = move_each(w, out, in, {100, 100});
  CHECK(next.failed() == 0);
  CHECK(next.wrong == 0);
}
