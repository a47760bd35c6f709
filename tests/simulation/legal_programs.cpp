// Programs that stay within the rules: no checker may report them, because their errors are their own doing.
#include <parley/collective.hpp>
#include <parley/config.hpp>
#include <parley/p2p.hpp>
#include <parley/pipeline.hpp>
#include <parley/program.hpp>
#include <parley/registration.hpp>
#include <parley/transfer.hpp>
#include <parley/tunable_op.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

using namespace parley;
using namespace parley::configs;
using namespace parley::ops;
using namespace parley::runtime;
using namespace parley::simulation;

namespace {

struct found {
  std::set<std::string> by;  // the names of the checkers that have found something
  std::string text;          // the texts of the violations
  int status = -1;
};
found watched(rank_function rank_main, rank_id ranks, std::uint64_t seed = 1, befalls what = befalls::nothing) {
  found f;
  program_options p;
  p.what = what;
  p.violated = [&f](const violation& v) {
    f.by.insert(v.invariant);
    f.text += v.invariant + ": " + v.text + "\n";
  };
  world_options o{.ranks = ranks, .seed = seed};
  o.settings.flight_records = 1U << 16U;
  f.status = status_of_virtual(o, rank_main, p);
  return f;
}
const std::set<std::string> no_checker{};

transfer_options pair_from_0_to_1(std::vector<config_ptr> configs = {direct()}) {
  transfer_options op;
  op.name = "activations";
  op.edges = {{0, 1}};
  op.configs = std::move(configs);
  return op;
}

// ---- to oneself -------------------------------------------------------------------------------------------------------

task<> sends_to_itself_in_vain(rank& self) {
  p2p ring(self, {.name = "ring", .timeout = 10ms});
  std::vector<std::byte> data(100'000);
  scope& here = co_await this_scope;
  dataflow flow(here);
  auto sent = ring.start(flow, {ring.isend(data, {.to = self.id()})});
  try {
    co_await sent;
  } catch (const failure&) {}
  try {
    co_await flow.join();
  } catch (const failure&) {}
}

// ---- declarations -----------------------------------------------------------------------------------------------------

class stage final : public pipeline_stage {
 public:
  void forward(std::uint64_t, std::span<std::byte>) override {}
};
task<> runs_other_sizes(rank& self) {
  pipeline pipe(self, {.name = "layers"});
  stage work;
  for (int run = 0; run < 2; ++run) {
    const std::vector<std::uint64_t> bytes(4, self.id() == 1 ? 2'000 : 1'000);
    try {
      co_await pipe.run(bytes, work);
    } catch (const failure&) {}
  }
}
task<> runs_other_numbers(rank& self) {
  pipeline pipe(self, {.name = "layers"});
  stage work;
  for (int run = 0; run < 2; ++run) {
    const std::vector<std::uint64_t> bytes(self.id() == 1 ? 3 : 4, 1'000);
    try {
      co_await pipe.run(bytes, work);
    } catch (const failure&) {}
  }
}
task<> declares_other_types(rank& self) {
  auto op = pair_from_0_to_1();
  op.dtype = self.id() == 0 ? "bf16" : "fp32";
  transfer t(self, op);
  std::vector<std::byte> data(100);
  for (int i = 0; i < 3; ++i) {
    if (self.id() == 0) {
      auto sent = co_await attempt(t.send(data, {.to = 1}));
      static_cast<void>(sent);
    } else {
      auto got = co_await attempt(t.receive(data, {.from = 0}));
      static_cast<void>(got);
    }
  }
}
task<> send_whole(part_sender& out, std::span<const std::byte> data) { co_await out.send(0, data); }
task<> receive_whole(part_receiver& in, std::span<std::byte> data) { co_await in.receive(0, data); }
// Waiting for a decision is not an invocation of the op, so the error names no invocation.
task<> waits_for_a_decision_in_vain(rank& self) {
  transfer t(self, pair_from_0_to_1({direct(), chunked(4'000, 2)}));
  static_cast<void>(co_await attempt(t.decided(1'000, {.timeout = 1ms})));
}
// The receiver does not receive for an hour, so that the sender waits and the rehearsal outlasts the program.
task<> receive_after_an_hour(part_receiver& in, std::span<std::byte> data) {
  auto slept = co_await sleep_for(3600s);
  static_cast<void>(slept);
  co_await in.receive(0, data);
}
task<> ends_while_a_config_is_rehearsed(rank& self) {
  transfer t(self, pair_from_0_to_1({direct(), paired({.name = "stuck", .wire_class = "stuck"}, send_whole,
                                                      receive_after_an_hour)}));
  std::vector<std::byte> data(300'000);
  for (int i = 0; i < 20; ++i) {
    if (self.id() == 0) co_await t.send(data, {.to = 1});
    if (self.id() == 1) co_await t.receive(data, {.from = 0});
  }
}
config_ptr mine(const std::string& name, const std::string& wire_class) {
  return paired({.name = name, .wire_class = wire_class}, send_whole, receive_whole);
}
task<> call_whatever_comes_of_it(transfer t, rank_id self) {
  std::vector<std::byte> data(10'000);
  for (int i = 0; i < 50; ++i) {
    if (self == 0) {
      auto sent = co_await attempt(t.send(data, {.to = 1}));
      static_cast<void>(sent);
    } else {
      auto got = co_await attempt(t.receive(data, {.from = 0}));
      static_cast<void>(got);
    }
  }
}
// Both ranks use the same config names with different wire classes.
task<> declares_other_wires(rank& self) {
  const std::string own = self.id() == 0 ? "old" : "new";
  transfer t(self, pair_from_0_to_1({mine("usual", own), mine("fast", own)}));
  co_await call_whatever_comes_of_it(t, self.id());
}
// Each rank has another default.
task<> declares_other_defaults(rank& self) {
  transfer t(self, pair_from_0_to_1(self.id() == 0 ? std::vector{direct(), chunked(4'000, 2)}
                                                   : std::vector{chunked(4'000, 2), direct()}));
  co_await call_whatever_comes_of_it(t, self.id());
}

// The same in a group.
task<> declares_other_group_defaults(rank& self) {
  collective sums(
      self, {.name = "sums", .configs = self.id() == 2 ? std::vector{chain(), star()} : std::vector{star(), chain()}});
  std::vector<float> x(1'000, 1.0F);
  for (int i = 0; i < 20; ++i) {
    try {
      co_await sums.all_reduce(x);
    } catch (const failure& why) {
      if (why.code() != errc::declaration_mismatch && why.code() != errc::closed) throw;
    }
  }
}

// ---- time -------------------------------------------------------------------------------------------------------------

// Fast during its trials, then slower and slower: the first decision is not the fastest config of the whole run.
class drifting final : public paired_config {
 public:
  drifting() : paired_config({.name = "drifting", .wire_class = "drifting"}) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    scope& here = co_await this_scope;
    const time_ns now = here.where().now();
    constexpr time_ns most_ns = 400'000;
    auto slept = co_await sleep_until(now + 10'000 + std::clamp<time_ns>((now - 100'000'000) / 1'000, 0, most_ns));
    if (!slept) raise(slept.reason());
    co_await in.receive(0, data);
  }
};
class steady final : public paired_config {
 public:
  steady(const std::string& name, time_ns takes_ns)
      : paired_config({.name = name, .wire_class = name}), takes_ns_(takes_ns) {}
  task<> send(part_sender& out, std::span<const std::byte> data) const override { co_await out.send(0, data); }
  task<> receive(part_receiver& in, std::span<std::byte> data) const override {
    auto slept = co_await sleep_for(std::chrono::nanoseconds(takes_ns_));
    if (!slept) raise(slept.reason());
    co_await in.receive(0, data);
  }

 private:
  time_ns takes_ns_;
};
task<> drifts(rank& self) {
  transfer t(self, pair_from_0_to_1({std::make_shared<steady>("usual", 200'000), std::make_shared<drifting>(),
                                     std::make_shared<steady>("other", 120'000)}));
  std::vector<std::byte> data(10'000);
  for (int i = 0; i < 6'000; ++i) {
    if (self.id() == 0) {
      co_await t.send(data, {.to = 1});
    } else {
      co_await t.receive(data, {.from = 0});
    }
    auto slept = co_await sleep_for(100us);
    if (!slept) break;
  }
}

task<> computes(std::span<std::byte>) { co_return; }
task<> throws_half_way(std::span<std::byte>) {
  throw std::runtime_error("half-way");
  co_return;
}
// The role's function throws in calls, and the program catches that.
task<> has_a_role_that_throws(rank& self) {
  role_op work = register_asymmetric_autotuning(self, "stage", {{"all", computes}}, {{"all", "fast", throws_half_way}},
                                                [](rank_id) { return std::string("all"); });
  std::vector<std::byte> data(1'000);
  for (int i = 0; i < 100; ++i) {
    try {
      co_await work.run(data);
    } catch (const std::runtime_error&) {}
  }
}
// Kernels take no virtual time, unless they say so.
task<> tunes_kernels_that_take_no_time(rank& self) {
  self.kernels().enable_tunable_op(true);
  const auto add = [](std::span<float> x) { x[0] += 1; };
  tunable_op<void(std::span<float>)> op(self.kernels(),
                                        {.name = "add", .implementations = {{"plain", add}, {"fast", add}}});
  std::vector<float> x(8);
  op(x);
  const kernel_entry& e = op.decision(x);
  if (!e.decided || e.winner != 0 || !e.why.starts_with("the default is the fastest")) throw std::runtime_error(e.why);
  co_return;
}

struct program {
  const char* name;
  rank_function rank_main;
  rank_id ranks;
};
const program programs[] = {{"sends to itself in vain", sends_to_itself_in_vain, 1},
                            {"runs a pipeline with other sizes", runs_other_sizes, 3},
                            {"runs a pipeline with another number of microbatches", runs_other_numbers, 3},
                            {"declares other types", declares_other_types, 2},
                            {"declares other wires", declares_other_wires, 2},
                            {"declares other defaults", declares_other_defaults, 2},
                            {"declares other defaults in a group", declares_other_group_defaults, 3},
                            {"drifts", drifts, 2},
                            {"waits for a decision in vain", waits_for_a_decision_in_vain, 2},
                            {"ends while a config is rehearsed", ends_while_a_config_is_rehearsed, 2},
                            {"has a role that throws", has_a_role_that_throws, 2},
                            {"tunes kernels that take no time", tunes_kernels_that_take_no_time, 2}};

}  // namespace

TEST_CASE("no checker finds fault with a program whose own calls fail, or whose configs change") {
  for (const program& p : programs) {
    CAPTURE(p.name);
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      CAPTURE(seed);
      const found f = watched(p.rank_main, p.ranks, seed);
      INFO(f.text);
      CHECK(f.by == no_checker);
      if (p.rank_main == tunes_kernels_that_take_no_time) CHECK(f.status == 0);
    }
  }
}
