// The cost of tuning while a pipeline runs. Every stage computes and passes an activation on, and the edges find their
// config with those activations. The counterpart of peers/mpi_tuning.cpp, which stops the program while it tunes.
//
//     tuning --only cost [--ranks 4]     per cent of the wall time of the first `--microbatches`
//     tuning --only lost [--ranks 2]     the time itself
//         [--bytes N] [--configs 8] [--repetitions 5] [--microbatches 200] [--compute_us 5000]
//
// trial_costs.hpp defines what counts as lost. Each rank computes on one core, like the ranks of the MPI program.
#include <parley/bench/measure.hpp>
#include <parley/bench/ranks.hpp>
#include <parley/bench/trial_costs.hpp>
#include <parley/parley.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

class spinning_stage final : public parley::pipeline_stage {
 public:
  explicit spinning_stage(std::int64_t compute_us) : compute_ns_(compute_us * 1000) {}
  void forward(std::uint64_t, std::span<std::byte>) override {
    const std::int64_t end = now_ns() + compute_ns_;
    while (now_ns() < end) {}
  }

 private:
  std::int64_t compute_ns_;
};

void run_stage(parley::job& here, const arguments& given) {
  const auto configs = catalogue(std::size_t(given.number("configs", 8)));
  parley::pipeline pipe(here.self(), {.name = "activations", .stages = {}, .configs = configs});
  const std::vector<std::uint64_t> sizes(std::size_t(given.number("microbatches", 200)),
                                         std::uint64_t(given.number("bytes", 16 << 20)));
  spinning_stage stage(given.number("compute_us", 5000));
  const std::int64_t start = now_ns();
  parley::runtime::run(here.loop(), pipe.run(sizes, stage));
  report("wall", double(now_ns() - start), "ns");
  const trial_costs mine = costs_of(here.self());
  report("lost", mine.lost_ns(), "ns");
  report("trials_lost", mine.trials_ns, "ns");
  report("rehearsals_lost", mine.rehearsals_ns, "ns");
  report("control_messages", mine.messages, "messages");
  report("trials", mine.trials, "trials");
  report("undecided", mine.undecided, "keys");
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  if (is_rank()) {
    pin_to_core(int(parley::transports::from_environment().value().rank));
    parley::ops::job_options options;
    options.settings.policy = parley::actors::tuning_policy::online;
    return parley::run([&](parley::job& here) { run_stage(here, given); }, options);
  }
  const bool cost = given.text("only", "cost") == "cost";
  const auto figures = run_ranks(parley::rank_id(given.number("ranks", cost ? 4 : 2)), argc, argv);
  rank_figures sum;
  for (const auto& of : figures)
    for (const auto& [name, value] : of) sum[name] += value;
  double wall = 0;
  for (const auto& of : figures) wall = std::max(wall, figure(of, "wall"));
  report("tuning_cost", 100 * figure(sum, "lost") / wall, "percent");
  report("tuning_time_lost", figure(sum, "lost"), "ns");
  for (const char* detail : {"trials_lost", "rehearsals_lost"}) report(detail, figure(sum, detail), "ns");
  for (const char* detail : {"control_messages", "trials", "undecided"}) report(detail, figure(sum, detail), "in_all");
  report("wall", wall, "ns");
}
