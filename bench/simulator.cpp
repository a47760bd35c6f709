// Speed and size of the simulator: real ranks, actors and ops on virtual links, in one process.
//
//     simulator --only events [--ranks 10000] [--calls 600]     pairs of ranks that tune: events a second, and the speed of the
//                                                               event queue alone
//     simulator --only events_checked                           the same with all checkers
//     simulator --only bytes [--ranks 10000]                    heap of one rank, with an op that has been tuned, and without
//     simulator --only start [--ranks 100000] [--calls 60]      pairs of ranks from their start until each has tuned; heap of one rank
//     simulator --only seeds [--seeds 20] --scenarios FOLDER    a swarm seed of few ranks with faults and all checkers
//     simulator --only large_seed                               one of 64 ranks and 2,000 invocations
//     simulator --only join [--ranks 1024] [--calls 60]         a pipeline of --ranks stages, from the start to the last decision,
//                                                               which must fall within --calls microbatches; and how long its
//                                                               edges took to decide, in virtual time
//
// An event is a message that a link has delivered to its handler, or a timer that paces the calls.
#include <parley/bench/keys.hpp>
#include <parley/bench/measure.hpp>
#include <parley/ops/job/rank_foundation.hpp>
#include <parley/parley.hpp>
#include <parley/simulation/world/job.hpp>
#include <parley/simulation/world/world.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace parley::bench;
using namespace parley::simulation;
using parley::rank_id;
using parley::task;
using parley::time_ns;

world_options many_ranks(rank_id ranks) {
  world_options o;
  o.ranks = ranks;
  o.settings.plan.budget_fraction = 1e3;
  o.settings.flight_records = 8;
  o.link.wiring_bytes = 2 * o.link.eager_bytes;  // a rehearsal is one long message
  return o;
}

// Shared by all ranks, because configs never change.
const std::vector<parley::config_ptr>& two_configs() {
  static const std::vector<parley::config_ptr> both{parley::configs::direct(), parley::configs::chunked(64 << 10, 2)};
  return both;
}

// Ranks 2k and 2k + 1 are a pair.
parley::transfer declare_pair(parley::rank& self) {
  const rank_id first = self.id() / 2 * 2;
  return parley::transfer(self, {.name = "pair", .edges = {{first, first + 1}}, .configs = two_configs()});
}
constexpr time_ns pace_ns = 10'000;

task<> one_sender(parley::rank* self, std::int64_t calls) {
  auto op = declare_pair(*self);
  const std::vector<std::byte> words(128);
  for (std::int64_t n = 0; n < calls; ++n) {
    auto paced = co_await parley::sleep_until(self->where().deadline_in(pace_ns));
    if (!paced) co_return;
    co_await op.send(words, {.to = self->id() + 1});
  }
}
task<> one_receiver(parley::rank* self, std::int64_t calls) {
  auto op = declare_pair(*self);
  std::vector<std::byte> words(128);
  for (std::int64_t n = 0; n < calls; ++n) {
    auto paced = co_await parley::sleep_until(self->where().deadline_in(pace_ns));
    if (!paced) co_return;
    co_await op.receive(words, {.from = self->id() - 1});
  }
}

std::uint64_t delivered(world& w) {
  std::uint64_t messages = 0;
  for (rank_id r = 0; r < w.ranks(); ++r) {
    for (const std::uint64_t n : w.network()[r].statistics().received) messages += n;
  }
  return messages;
}

std::size_t undecided(const world& w) {
  std::size_t count = 0;
  for (rank_id r = 0; r < w.ranks(); ++r) count += keys_of(*w.find(r)).undecided;
  return count;
}

/// Runs until the programs of all ranks have ended.
void run_programs(world& w) {
  static_cast<void>(w.stage().run_until([&] { return w.all_ended(); }, parley::runtime::never));
  if (!w.all_ended()) give_up("the ranks hang");
}
void expect_decisions(const world& w) {
  if (undecided(w) != 0) give_up(std::to_string(undecided(w)) + " edges came to no decision");
}

void run_pairs(world& w, std::int64_t calls) {
  w.start_all(
      [&](rank_id r) { w.programs_of(r).spawn(r % 2 == 0 ? one_sender(&w[r], calls) : one_receiver(&w[r], calls)); });
  run_programs(w);
  expect_decisions(w);
}

double queue_alone(std::size_t waiting) {
  struct nothing final : event {
    void happen() override {}
  };
  event_queue queue;
  dice luck(1, purpose::kernel, 0);
  constexpr std::size_t count = 2'000'000;
  for (std::size_t n = 0; n < waiting; ++n) queue.push(time_ns(luck.below(10'000)), 0, std::make_unique<nothing>());
  const std::int64_t start = now_ns();
  for (std::size_t n = 0; n < count; ++n) {
    auto first = queue.pop();
    queue.push(first.when + time_ns(luck.below(10'000)), 0, std::move(first.what));
  }
  return double(count) / (double(now_ns() - start) / 1e9);
}

void events(rank_id ranks, std::int64_t calls) {
  world w(many_ranks(ranks), nullptr);
  const std::int64_t start = now_ns();
  run_pairs(w, calls);
  const double seconds = double(now_ns() - start) / 1e9;
  report("sim_events", double(delivered(w) + std::uint64_t(calls) * ranks) / seconds, "per_s");
  report("sim_queue", queue_alone(ranks), "per_s");
  report("sim_steps", double(w.stage().steps()) / seconds, "per_s");
  report("sim_seconds", seconds, "s");
}

void events_checked(rank_id ranks, std::int64_t calls) {
  scenario s;
  s.name = "pairs";
  s.ranks = ranks;
  s.link.wiring_bytes = 2 * s.link.eager_bytes;
  s.faults.orders = false;
  op_spec op;
  op.sizes = {128};
  op.configs = {"direct", "chunked:65536:2"};
  op.calls = std::uint64_t(calls) / 2;
  op.calm = std::uint64_t(calls) - op.calls;
  op.pause_ns = 20'000;
  op.everybody = false;
  for (rank_id r = 0; r + 1 < ranks; r += 2) {
    op.name = "pair" + std::to_string(r);
    op.members = {r, r + 1};
    s.ops.push_back(op);
  }
  const tape none = draw(s, 1);
  const std::int64_t start = now_ns();
  const outcome o = run(s, none, 1);
  const double seconds = double(now_ns() - start) / 1e9;
  if (!o.violations.empty()) give_up(o.violations.front().invariant + ": " + o.violations.front().text);
  std::uint64_t messages = 0;
  for (const auto& [type, by_state] : o.messages) {
    for (const message_counts& c : by_state) messages += c.sent;
  }
  report("sim_events_checked", double(messages + o.calls) / seconds, "per_s");  // a timer before each call
  report("sim_checked_seconds", seconds, "s");
}

void bytes(rank_id ranks, std::int64_t calls) {
  const std::size_t before = heap_bytes();
  world w(many_ranks(ranks), nullptr);
  w.start_all([](rank_id) {});
  report("sim_idle_rank_bytes", double(heap_bytes() - before) / ranks, "bytes");
  w.end_job();
  run_pairs(w, calls);
  report("sim_rank_bytes", double(heap_bytes() - before) / ranks, "bytes");
}

void start_pairs(rank_id ranks, std::int64_t calls) {
  const std::size_t before = heap_bytes();
  const std::int64_t start = now_ns();
  world w(many_ranks(ranks), nullptr);
  run_pairs(w, calls);
  report("sim_start", double(now_ns() - start) / 1e9, "s");
  report("sim_start_bytes", double(heap_bytes() - before) / ranks, "bytes");
}

// Small seeds have at most 200 invocations. An invocation is a call on each of its ranks, at least two, so at most
// 400 calls.
void seeds(std::int64_t count, const std::string& folder) {
  constexpr std::uint64_t most_calls = 400;
  std::vector<double> ms;
  std::vector<double> small_ms;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(file.path());
    const scenario s = read_scenario(std::string(std::istreambuf_iterator<char>(in), {}));
    for (std::int64_t seed = 1; seed <= count; ++seed) {
      const tape t = draw(s, std::uint64_t(seed));
      const std::int64_t start = now_ns();
      const outcome o = run(s, t, std::uint64_t(seed));
      ms.push_back(double(now_ns() - start) / 1e6);
      if (o.calls <= most_calls) small_ms.push_back(ms.back());
      if (!o.violations.empty())
        give_up(file.path().string() + ", seed " + std::to_string(seed) + ": " + o.violations.front().text);
    }
  }
  if (small_ms.empty()) give_up("no scenario in " + folder + " has a seed of so few invocations");
  report("sim_small_seed", median(small_ms), "ms");
  report("sim_small_seeds", double(small_ms.size()), "seeds");
  report("sim_any_seed", median(ms), "ms");
}

void large_seed() {
  scenario s;
  s.name = "large";
  s.ranks = 64;
  op_spec op;
  op.what = op_spec::kind::pipeline;
  op.name = "stages";
  for (rank_id r = 0; r < s.ranks; ++r) op.members.push_back(r);
  op.configs = {"direct", "chunked:1024:2"};
  op.calls = 12;  // 12 calls and 20 calm ones, on each of 64 ranks: 2,048
  op.calm = 20;
  s.ops.push_back(op);
  s.faults.lose = 100;
  s.faults.delay_control = 200;
  s.faults.delay_data = 200;
  s.faults.double_control = 100;
  s.must_decide = false;
  const std::int64_t start = now_ns();
  const outcome o = run(s, draw(s, 1), 1);
  report("sim_64_ranks_seed", double(now_ns() - start) / 1e6, "ms");
  report("sim_64_ranks_simulated", double(o.simulated_ns) / 1e6, "ms");
  if (!o.violations.empty()) give_up(o.violations.front().invariant + ": " + o.violations.front().text);
}

class quiet_stage final : public parley::pipeline_stage {
 public:
  void forward(std::uint64_t, std::span<std::byte>) override {}
  time_ns modelled_ns(std::uint64_t, std::size_t) const override { return 10'000; }
};

task<> one_stage(parley::rank* self, std::int64_t microbatches) {
  parley::pipeline pipe(*self, {.name = "stages", .configs = two_configs()});
  quiet_stage mine;
  const std::vector<std::uint64_t> sizes(std::size_t(microbatches), 128);
  co_await pipe.run(sizes, mine);
}

// Returns the virtual time of each edge from its sender's first call to the decision, in ascending order.
std::vector<double> agreement_times_ns(const world& w) {
  std::vector<double> times;
  for (rank_id r = 0; r < w.ranks(); ++r) {
    for (const auto& edge : w.find(r)->agreements()) {
      for (const auto& c : edge.assigned->searches()) times.push_back(double(c->chosen().at_ns - c->first_ns()));
    }
  }
  if (times.size() != w.ranks() - 1)
    give_up(std::to_string(times.size()) + " edges searched, not one between any two stages");
  std::sort(times.begin(), times.end());
  return times;
}

void join(rank_id ranks, std::int64_t microbatches) {
  const std::int64_t start = now_ns();
  world w(many_ranks(ranks), nullptr);
  w.start_all([&](rank_id r) { w.programs_of(r).spawn(one_stage(&w[r], microbatches)); });
  run_programs(w);
  report("sim_join", double(now_ns() - start) / 1e6, "ms");
  expect_decisions(w);
  const std::vector<double> times = agreement_times_ns(w);
  report("sim_edge_agreement", median(times), "ns");
  report("sim_edge_agreement_95", times[times.size() * 95 / 100], "ns");
  report("sim_edge_agreement_slowest", times.back(), "ns");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::string only = given.text("only", "events");
  if (only == "events")
    events(rank_id(given.number("ranks", 10'000)), given.number("calls", 600));
  else if (only == "events_checked")
    events_checked(rank_id(given.number("ranks", 1'000)), given.number("calls", 600));
  else if (only == "bytes")
    bytes(rank_id(given.number("ranks", 10'000)), given.number("calls", 600));
  else if (only == "start")
    start_pairs(rank_id(given.number("ranks", 100'000)), given.number("calls", 60));
  else if (only == "seeds")
    seeds(given.number("seeds", 20), given.text("scenarios", "simulation/scenarios"));
  else if (only == "large_seed")
    large_seed();
  else if (only == "join")
    join(rank_id(given.number("ranks", 1'024)), given.number("calls", 60));
  else
    give_up("--only takes events, events_checked, bytes, start, seeds, large_seed or join, not " + only);
}
