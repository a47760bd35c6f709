// The cost of tuning for a program with several kinds of ops, in its first minute. In each step a rank computes,
// exchanges with its neighbours in a ring and in a grid, sums up a vector, gathers by a collective without headers
// (like that of a library), and takes part in two pipelines: one passes activations on, the other returns gradients.
//
//     first_minute [--ranks 4] [--seconds 60] [--compute_us 1000]
//
// The cost is counted in two ways. The first adds up what the ops of all ranks measured (trial_costs.hpp). The second
// is wall time: the time of the steps until the last decision, minus that of as many steps without tuning. The
// program runs without tuning before and after, each for a quarter of that time. The second way includes what trials
// of faster configs gained.
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/bench/trial_costs.hpp>
#include <parley/parley.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using parley::dataflow;
using parley::rank_id;
using parley::task;

constexpr std::size_t ring_bytes = 256 << 10;
constexpr std::uint64_t cells = 1'022;  // along each edge of a rank's block
constexpr std::size_t summed = 256 << 10;
constexpr std::size_t gathered_bytes = 64 << 10;  // from each rank
constexpr std::uint64_t activation_bytes = 64 << 10;
constexpr std::uint32_t microbatches = 2;

// ---- a collective without headers, on messages with a fixed config

task<> send_block(parley::transfer over, std::span<std::byte> block, rank_id to) {
  co_await over.send(block, {.to = to});
}
task<> receive_block(parley::transfer over, std::span<std::byte> block, rank_id from) {
  co_await over.receive(block, {.from = from});
}

/// An all-gather of every rank's block, in a ring or all at once.
class gathering final : public parley::symmetric_config {
 public:
  enum class shape : std::uint8_t { ring, at_once };
  gathering(shape of, parley::transfer over)
      : symmetric_config({.name = of == shape::ring ? "ring" : "at_once", .wire_class = "blocks"}), shape_(of),
        over_(std::move(over)) {}
  task<> run(parley::symmetric_call call, std::span<std::byte> data) const override {
    const auto ranks = rank_id(call.members.size());
    const auto block = [&](rank_id r) { return data.subspan(r % ranks * gathered_bytes, gathered_bytes); };
    parley::scope& here = co_await parley::this_scope;
    for (rank_id n = 1; n < ranks;) {
      parley::scope moving(here);
      for (bool first = true; n < ranks && (first || shape_ == shape::at_once); ++n, first = false) {
        const bool ring = shape_ == shape::ring;
        const rank_id to = (call.self + (ring ? 1 : n)) % ranks;
        const rank_id from = (call.self + ranks - (ring ? 1 : n)) % ranks;
        moving.spawn(receive_block(over_, block(call.self + ranks - n), from));
        moving.spawn(send_block(over_, block(ring ? call.self + ranks - n + 1 : call.self), to));
      }
      co_await moving.join();
    }
  }

 private:
  shape shape_;
  parley::transfer over_;
};

parley::symmetric gather_op(parley::rank& self) {
  parley::transfer_options blocks;
  blocks.name = "blocks";
  blocks.configs = {parley::configs::direct()};
  for (rank_id a = 0; a < self.world_size(); ++a) {
    for (rank_id b = 0; b < self.world_size(); ++b) {
      if (a != b) blocks.edges.emplace_back(a, b);
    }
  }
  const parley::transfer over(self, blocks);
  parley::symmetric_options op;
  op.name = "gather";
  op.configs = {std::make_shared<gathering>(gathering::shape::ring, over),
                std::make_shared<gathering>(gathering::shape::at_once, over)};
  return parley::symmetric(self, std::move(op));
}

// ---- stages that compute nothing, because only their messages matter here

struct idle_stage final : parley::pipeline_work {
  task<> work(std::uint64_t, std::span<std::byte>) override { co_return; }
};
struct idle_stages final : parley::training_work {
  std::uint64_t activation_bytes(std::uint32_t) const override { return ::activation_bytes; }
  task<> work(parley::pipeline_action, parley::pipeline_memory) override { co_return; }
};

// ---- the program

struct program {
  explicit program(parley::rank& of)
      : self(of), ring(of, {.name = "ring", .configs = catalogue(8)}),
        grid(of, {.name = "grid", .ranks = {of.world_size() / 2, 2}, .configs = catalogue(4)}),
        sums(of, {.name = "sums",
                  .configs = {parley::configs::star(), parley::configs::star(256 << 10), parley::configs::chain(),
                              parley::configs::chain(256 << 10), parley::configs::tree()}}),
        gather(gather_op(of)), layers(of, {.name = "layers", .configs = catalogue(4)}),
        learning(of, {.name = "learning",
                      .schedule = parley::one_forward_one_backward(of.world_size(), microbatches),
                      .configs = catalogue(4)}),
        out(ring_bytes), in(ring_bytes), field((cells + 2) * (cells + 2)), values(summed),
        blocks(of.world_size() * gathered_bytes), rims(grid.plan({parley::grid_field(field, {cells, cells})})) {}
  parley::rank& self;
  parley::p2p ring;
  parley::halo grid;
  parley::collective sums;
  parley::symmetric gather;
  parley::pipeline layers;
  parley::training_pipeline learning;
  idle_stage layer;
  idle_stages learner;
  std::vector<std::uint64_t> activations = std::vector<std::uint64_t>(microbatches, activation_bytes);
  std::vector<std::byte> out, in;
  std::vector<double> field;
  std::vector<float> values;
  std::vector<std::byte> blocks;
  parley::halo_plan rims;
};

/// The number of keys of the tuned ops that this rank has decided.
std::size_t decided_keys(const parley::rank& self) {
  std::size_t n = 0;
  for (const char* op : {"ring", "grid", "sums", "gather", "layers", "learning"}) n += keys_of(self, op).decided;
  return n;
}
/// The number of keys on all ranks: one per edge of the ring, one per neighbour in the grid, the two groups, and the
/// edges of the pipelines, one direction for the first and both for the second.
std::size_t keys_in_all(rank_id ranks) { return ranks + (3 * ranks - 4) + 2 + 3 * (ranks - 1); }

task<> step(program& p, dataflow& flow, std::int64_t compute_ns) {
  for (const std::int64_t end = now_ns() + compute_ns; now_ns() < end;) {}
  const rank_id ranks = p.self.world_size();
  const rank_id next = (p.self.id() + 1) % ranks;
  const rank_id previous = (p.self.id() + ranks - 1) % ranks;
  auto rims = p.rims.start(flow);
  auto round =
      p.ring.start(flow, {parley::p2p::irecv(p.in, {.from = previous}), parley::p2p::isend(p.out, {.to = next})});
  co_await rims;
  co_await round;
  co_await p.sums.all_reduce(std::span(p.values));
  co_await p.gather.run(p.blocks);
  co_await p.layers.run(p.activations, p.layer);
  auto learned = co_await p.learning.run(p.learner);
  static_cast<void>(learned);
}

task<> run_steps(dataflow& flow, program& p, const arguments& given) {
  const std::int64_t compute_ns = given.number("compute_us", 1'000) * 1'000;
  const std::int64_t length_ns = given.number("seconds", 60) * 1'000'000'000;
  const bool tunes = p.self.settings().policy == parley::actors::tuning_policy::online;
  const auto all_keys = float(keys_in_all(p.self.world_size()));
  const std::int64_t begin = now_ns();
  std::int64_t steps = 0;
  bool undecided = tunes;
  for (bool over = false; !over; ++steps) {
    // Rank 0 decides when the run ends. All ranks contribute their number of decided keys.
    std::fill(p.values.begin(), p.values.end(), 0.0F);
    p.values[0] = p.self.id() == 0 && now_ns() - begin >= length_ns ? 1.0F : 0.0F;
    p.values[1] = undecided ? float(decided_keys(p.self)) : 0.0F;
    co_await step(p, flow, compute_ns);
    over = p.values[0] != 0;
    if (!undecided || (p.values[1] < all_keys && !over)) continue;
    undecided = false;
    report("until_decided", double(now_ns() - begin), "ns");
    report("steps_until_decided", double(steps + 1), "steps");
    const trial_costs mine = costs_of(p.self);
    report("lost", mine.lost_ns(), "ns");
    report("trials_lost", mine.trials_ns, "ns");
    report("rehearsals_lost", mine.rehearsals_ns, "ns");
    report("control_messages", mine.messages, "messages");
    report("trials", mine.trials, "trials");
    report("undecided", mine.undecided, "keys");
  }
  report("wall", double(now_ns() - begin), "ns");
  report("steps", double(steps), "steps");
  co_await flow.join();
}

// ---- results

using ranks_figures = std::vector<rank_figures>;

ranks_figures run_with(const arguments& given, std::vector<std::string> more, char** argv) {
  more.insert(more.begin(), {argv[0], "--compute_us", std::to_string(given.number("compute_us", 1'000))});
  std::vector<char*> words;
  for (std::string& word : more) words.push_back(word.data());
  return run_ranks(rank_id(given.number("ranks", 4)), int(words.size()), words.data());
}

double sum_of(const ranks_figures& all, const std::string& name) {
  double sum = 0;
  for (const auto& of_rank : all) sum += figure(of_rank, name);
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  if (is_rank()) {
    pin_to_core(int(parley::transports::from_environment().value().rank));
    parley::ops::job_options options;
    options.settings.policy =
        given.text("tuning", "on") == "on" ? parley::actors::tuning_policy::online : parley::actors::tuning_policy::off;
    return parley::run(
        [&](parley::job& here) {
          program all(here.self());
          auto body = [&](dataflow& flow) { return run_steps(flow, all, given); };
          parley::runtime::run(here.loop(), parley::runtime::with_dataflow(body));
        },
        options);
  }
  const std::int64_t seconds = given.number("seconds", 60);
  const std::vector<std::string> untuned{"--tuning", "off", "--seconds",
                                         std::to_string(std::max<std::int64_t>(1, seconds / 4))};
  const auto before = run_with(given, untuned, argv);
  const auto tuned = run_with(given, {"--tuning", "on", "--seconds", std::to_string(seconds)}, argv);
  const auto after = run_with(given, untuned, argv);

  const double wall = figure(tuned[0], "wall");
  const auto step_ns = [](const ranks_figures& f) { return figure(f[0], "wall") / figure(f[0], "steps"); };
  const double untuned_step = (step_ns(before) + step_ns(after)) / 2;
  const double steps = figure(tuned[0], "steps_until_decided");
  const double beyond = figure(tuned[0], "until_decided") - steps * untuned_step;
  report("first_minute", 100 * sum_of(tuned, "lost") / wall, "percent");
  report("first_minute_by_clock", 100 * beyond / wall, "percent");
  for (const char* detail : {"trials_lost", "rehearsals_lost"}) report(detail, sum_of(tuned, detail), "ns");
  for (const char* detail : {"control_messages", "trials", "undecided"})
    report(detail, sum_of(tuned, detail), "in_all");
  report("until_decided", figure(tuned[0], "until_decided"), "ns");
  report("steps_until_decided", steps, "steps");
  report("untuned_step", untuned_step, "ns");
  report("untuned_steps_differ", 100 * (step_ns(after) / step_ns(before) - 1), "percent");
  report("tuned_step", (wall - figure(tuned[0], "until_decided")) / (figure(tuned[0], "steps") - steps), "ns");
  report("wall", wall, "ns");
}
