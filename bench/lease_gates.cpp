// Ops without headers on a virtual clock. Ranks of uneven speed call one op with several sizes; the op finds its
// configs by rehearsals and switches to them by leases. Measures how often a call had to wait at a gate, and how many
// messages are sent after the decision.
//
//     lease_gates [--ranks 4] [--sizes 3] [--calls 20000] [--call_ns 20000]
//
// Messages are delayed only by the links' own latency, so both figures should be 0. A barrier for each switch would
// have stopped every rank once per size.
#include <parley/actors/leases/lease_coordinator.hpp>
#include <parley/bench/measure.hpp>
#include <parley/bench/modelled_link.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/ops/leased/symmetric_end.hpp>
#include <parley/parley.hpp>
#include <parley/runtime/record/flight_recorder.hpp>
#include <parley/runtime/time/virtual_time.hpp>
#include <parley/runtime/wire/router.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::runtime;
using namespace parley::ops;

/// Takes a different time on each rank, like calls that overlap with other work.
class modelled_algorithm final : public symmetric_config {
 public:
  modelled_algorithm(std::string name, time_ns takes_ns)
      : symmetric_config({.name = std::move(name), .wire_class = "modelled"}), takes_ns_(takes_ns) {}
  task<> run(symmetric_call call, std::span<std::byte>) const override {
    scope& here = co_await this_scope;
    auto slept = co_await sleep_until(here.where().deadline_in(takes_ns_ + 500 * call.self));
    if (!slept) raise(slept.reason());
  }

 private:
  time_ns takes_ns_;
};

/// Stands in for communicators, which the algorithms above do not need.
class idle_communicators final : public communicator_source {
 public:
  bool beside_calls() const noexcept override { return true; }
  std::vector<std::byte> make_id() override { return {}; }
  task<std::shared_ptr<communicator>> connect(std::vector<std::byte>) override {
    co_return std::make_shared<communicator>();
  }
};

task<> call_often(symmetric op, executor& ex, std::size_t sizes, std::size_t calls, random_stream dice) {
  std::vector<std::byte> data(std::size_t{1} << (10 + 2 * sizes));
  for (std::size_t i = 0; i < calls; ++i) {
    auto slept = co_await sleep_until(ex.deadline_in(static_cast<time_ns>(dice.below(10'000))));
    if (!slept) co_return;
    co_await op.run(std::span(data).first(std::size_t{1024} << (2 * (i % sizes))));
  }
}

task<> joined(scope& calls) { co_await calls.join(); }

struct group {
  group(rank_id ranks, time_ns call_ns) : links(clock, ranks) {
    const std::vector<symmetric_config_ptr> configs{std::make_shared<modelled_algorithm>("library", call_ns),
                                                    std::make_shared<modelled_algorithm>("ring", call_ns / 2),
                                                    std::make_shared<modelled_algorithm>("tree", call_ns * 3 / 4)};
    for (rank_id r = 0; r < ranks; ++r) {
      all.push_back(std::make_unique<rank>(
          rank_foundation{clock, links[r], nullptr, std::vector<std::uint64_t>(ranks, 1), {}}, rank_settings{}));
      symmetric_options op;
      op.name = "gradients";
      op.configs = configs;
      op.rehearse = std::make_shared<idle_communicators>();
      ops.emplace_back(*all.back(), std::move(op));
    }
  }
  void call(std::size_t sizes, std::size_t times) {
    scope calls(clock);
    for (rank_id r = 0; r < all.size(); ++r) calls.spawn(call_often(ops[r], clock, sizes, times, random_stream(3, r)));
    parley::runtime::run(clock, joined(calls));
  }
  std::uint64_t frames() const {
    std::uint64_t n = 0;
    for (const auto& r : all) n += r->mail().statistics().sent + r->mail().statistics().credits_sent;
    return n;
  }
  /// The number of invocations that two ranks ran with different configs.
  std::uint64_t mismatches() const {
    std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint64_t> ran;
    std::uint64_t n = 0;
    for (const auto& r : all) {
      for (const auto& f : r->flight().in_order())
        n += ran.emplace(std::pair(f.tag, f.invocation), f.digest).first->second != f.digest;
    }
    return n;
  }
  virtual_time clock;
  modelled_world links;
  std::vector<std::unique_ptr<rank>> all;
  std::vector<symmetric> ops;
};

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const auto ranks = rank_id(given.number("ranks", 4));
  const auto sizes = std::size_t(given.number("sizes", 3));
  const auto calls = std::size_t(given.number("calls", 20'000));
  group here(ranks, given.number("call_ns", 20'000));
  here.call(sizes, calls);
  std::uint64_t gates = 0;
  for (const auto& op : here.ops) gates += op.end().leases().statistics().gates_met;
  const auto& leases = here.ops[0].end().lease_coordinator()->statistics();
  if (leases.scheduled != sizes) give_up("not every size changed its config once");
  const std::uint64_t before = here.frames();
  here.call(sizes, calls);
  if (here.mismatches() != 0) give_up("two ranks ran one invocation with different configs");
  report("lease_gates", double(gates), "gates");
  report("lease_messages_after", double(here.frames() - before), "messages");
  report("lease_messages_before", double(before), "messages");
  report("barrier_stops", double(ranks * sizes), "stops");
}
