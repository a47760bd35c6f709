// Pipeline-parallel training steps over several GPUs, one process per rank. Stages compute forward and backward, and
// pass activations and gradients from GPU to GPU. The program compares the time of a step with the best that the
// schedule allows. bench/gpu/torch_pipeline.py runs the same schedule in torch.distributed.pipelining.
//
//     parley run -n 4 -- gpu_pipeline [--schedule 1F1B] [--num-microbatches 8] [--micro-batch-size 1] [--seq-length 512]
//         [--hidden-size 512] [--train-iters 200] [--log-interval 50] [--compute-us 1000] [--ahead 1] [--only ID]
//
// Options have Megatron's names, schedules PyTorch's: GPipe, 1F1B, or Interleaved1F1B, which has
// --num-virtual-stages-per-pipeline-rank stages on each rank (default 2). An activation has micro-batch-size x
// seq-length x hidden-size floats. --compute-us is the computing time of a stage, forward and backward each. With
// --ahead 1, kernels are enqueued before the messages that they wait for have arrived, with 0 afterwards. --only
// names the one config that is tried in addition to the default.
//
// The program first runs an op that has only the default, then for as many steps an op that has all configs and tunes
// from its first call on. Each kernel checks every element that it receives; the exit status is 1 if one is wrong.
#include "device.hpp"
#include "stage_kernel.hpp"

#include <parley/cuda_link.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using kind = parley::pipeline_action::kind;

struct settings {
  std::string schedule = "1F1B";
  std::uint32_t microbatches = 8;
  std::uint32_t virtual_stages = 2;
  std::uint64_t micro_batch_size = 1;
  std::uint64_t seq_length = 512;
  std::uint64_t hidden_size = 512;
  std::size_t iterations = 200;
  std::size_t log_interval = 50;
  std::uint64_t compute_us = 1000;
  int ahead = 1;
  std::string only;

  void take(int argc, char** argv) {
    examples::option_list known;
    known.one_of("--schedule", schedule, {"GPipe", "1F1B", "Interleaved1F1B"});
    known.number("--num-microbatches", microbatches, 1U)
        .number("--num-virtual-stages-per-pipeline-rank", virtual_stages, 1U);
    known.number("--micro-batch-size", micro_batch_size, std::uint64_t{1});
    known.number("--seq-length", seq_length, std::uint64_t{1}).number("--hidden-size", hidden_size, std::uint64_t{1});
    known.number("--train-iters", iterations, std::size_t{1}).number("--log-interval", log_interval, std::size_t{1});
    known.number("--compute-us", compute_us).number("--ahead", ahead, 0, 1).text("--only", only).take(argc, argv);
  }
  std::uint64_t activation_bytes() const { return micro_batch_size * seq_length * hidden_size * sizeof(float); }
  double compute_ns() const { return 1e3 * static_cast<double>(compute_us); }
  parley::pipeline_schedule schedule_for(std::uint32_t ranks) const {
    if (schedule == "GPipe") return parley::gpipe(ranks, microbatches);
    if (schedule == "1F1B") return parley::one_forward_one_backward(ranks, microbatches);
    return parley::interleaved(ranks, microbatches, virtual_stages);
  }
} options;

void report(const std::string& name, double value, const char* unit) {
  std::printf("%s %.4f %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

// Stage s adds 1 forward, and doubles the gradient backward. The gradient of the last stage's output is that output.
class gpu_stage final : public parley::training_work {
 public:
  gpu_stage(parley::transports::cuda_copies& copies, parley::transports::cuda_space& space, std::uint32_t stages,
            std::uint64_t bytes, std::uint64_t compute_ns, bool ahead)
      : copies_(copies), stream_(copies.driver().make_stream(copies.device())), wrong_(space.make(sizeof(unsigned))),
        times_(space.make(most_times * sizeof(kernel_times))), stages_(stages), bytes_(bytes), compute_ns_(compute_ns),
        ahead_(ahead) {
    // Loads the kernel now: CUDA otherwise loads it at its first launch and then waits for all streams, even for one
    // that waits for a message.
    launch({});
  }
  gpu_stage(const gpu_stage&) = delete;
  gpu_stage& operator=(const gpu_stage&) = delete;
  ~gpu_stage() override { copies_.driver().destroy(stream_); }
  std::span<std::byte> wrong() const noexcept { return wrong_->bytes(); }
  bool waits_on_device() const override { return ahead_; }

  /// Begin and end of a kernel, in ns of its GPU's clock.
  struct kernel_times {
    std::uint64_t began = 0;
    std::uint64_t ended = 0;
  };
  /// The gaps between the last `count` kernels, in ns: how long the GPU was idle from the end of one to the begin of
  /// the next.
  parley::task<std::vector<double>> gaps(parley::transports::cuda_space& space, std::size_t count) const {
    std::vector<kernel_times> all(most_times);
    co_await space.copy(std::as_writable_bytes(std::span(all)), times_->bytes());
    count = std::min({count, launched_, most_times - 1});
    std::vector<double> between;
    for (std::size_t i = launched_ - count + 1; i < launched_; ++i)
      between.push_back(double(all[i % most_times].began) - double(all[(i - 1) % most_times].ended));
    co_return between;
  }
  std::uint64_t activation_bytes(std::uint32_t) const override { return bytes_; }

  parley::task<> work(parley::pipeline_action a, parley::pipeline_memory m) override {
    const bool forward = a.what == kind::forward;
    const bool last = a.stage + 1 == stages_;
    const std::span<const std::byte> in = forward ? m.in : last ? m.out : m.gradient_out;
    const std::span<std::byte> out = forward ? m.out : m.gradient_in;
    examples::stage_step step;
    step.in = reinterpret_cast<const float*>(in.data());
    step.out = reinterpret_cast<float*>(out.data());
    step.count = bytes_ / sizeof(float);
    const std::uint32_t added = !forward ? stages_ : a.stage;
    step.base = static_cast<float>(a.microbatch * 7 + added);
    step.expected_factor = forward ? 1 : std::exp2(static_cast<float>(stages_ - 1 - a.stage));
    step.factor = forward ? 1 : 2;
    step.term = forward ? 1 : 0;
    step.spin_ns = compute_ns_;
    step.wrong = reinterpret_cast<unsigned*>(wrong_->bytes().data());
    if (ahead_ && !in.empty() && copies_.wait_on(in, stream_) != parley::errc::none) fail(copies_.driver().fault());
    step.times =
        reinterpret_cast<std::uint64_t*>(times_->bytes().data() + (launched_++ % most_times) * sizeof(kernel_times));
    launch(step);
    // The kernel may still be running; transfers of its buffers wait for it on the GPU.
    for (const std::span<const std::byte> part : std::array<std::span<const std::byte>, 2>{in, out}) {
      if (!part.empty() && copies_.after(part, stream_) != parley::errc::none) fail(copies_.driver().fault());
    }
    co_return;
  }

 private:
  [[noreturn]] static void fail(const std::string& why) { parley::runtime::raise({parley::errc::device_failed, why}); }
  void launch(const examples::stage_step& step) {
    if (launch_stage(step, copies_.device(), static_cast<cudaStream_t>(stream_)) != cudaSuccess)
      fail("a kernel cannot be started");
  }

  static constexpr std::size_t most_times = 1 << 16;
  parley::transports::cuda_copies& copies_;
  parley::transports::cuda_stream stream_;
  std::unique_ptr<parley::runtime::memory_space::block> wrong_;
  std::unique_ptr<parley::runtime::memory_space::block> times_;
  std::uint32_t stages_;
  std::uint64_t bytes_;
  std::uint64_t compute_ns_;
  bool ahead_;
  std::size_t launched_ = 0;
};

struct steps {
  std::vector<double> ns;
  std::size_t decided_after = 0;  // number of steps; 0: undecided
};

struct larger {
  double operator()(double a, double b) const noexcept { return std::max(a, b); }
};

// Returns the number of steps until all ranks had decided, or all steps if a rank has not.
parley::task<std::size_t> settled_on_all_ranks(parley::rank& self, const steps& tuned) {
  parley::collective all(self, {.name = "steps"});
  const std::size_t mine = tuned.decided_after == 0 ? tuned.ns.size() : tuned.decided_after;
  auto last = static_cast<double>(mine);
  if (!all.idle()) co_await all.all_reduce<larger>(std::span<double>(&last, 1));
  co_return static_cast<std::size_t>(last);
}

double mean(std::span<const double> of) {
  double sum = 0;
  for (const double x : of) sum += x;
  return of.empty() ? 0 : sum / static_cast<double>(of.size());
}
double share_of_idle(double computing_ns, double step_ns) {
  return step_ns == 0 ? 0 : 100 * (1 - computing_ns / step_ns);
}

/// Time of a step if messages took no time, and each rank's computing time in it.
struct ideal_step {
  explicit ideal_step(const parley::pipeline_schedule& s)
      : ns(parley::ops::estimate(s, {options.compute_ns(), options.compute_ns()}).makespan),
        kernels(2 * s.microbatches * s.stages / s.ranks.size()),
        computing_ns(static_cast<double>(kernels) * options.compute_ns()) {}
  double ns;
  std::size_t kernels;
  double computing_ns;
};

// The configs that are tried in addition to the default.
std::vector<parley::config_ptr> others() {
  std::vector<parley::config_ptr> all{parley::configs::chunked(256 << 10, 4),
                                      parley::configs::chunked(1 << 20, 2),
                                      parley::configs::put(),
                                      parley::configs::put(256 << 10, 4),
                                      parley::configs::get(),
                                      parley::configs::get(256 << 10, 4)};
  if (!options.only.empty()) std::erase_if(all, [](const auto& c) { return c->id() != options.only; });
  return all;
}

/// The ranks that this rank sends to.
std::set<parley::rank_id> receivers(const parley::pipeline_schedule& schedule, parley::rank_id self) {
  std::set<parley::rank_id> all;
  for (const parley::pipeline_action& a : schedule.ranks[self]) {
    if (!a.sends()) continue;
    const bool forward = a.what == parley::pipeline_action::kind::send_forward;
    all.insert(schedule.rank_of(forward ? a.stage + 1 : a.stage - 1));
  }
  return all;
}

parley::task<steps> train(parley::rank& self, const std::string& name, const std::vector<parley::config_ptr>& beside,
                          gpu_stage& stage, parley::transports::cuda_space& space) {
  const parley::pipeline_schedule schedule = options.schedule_for(self.world_size());
  const ideal_step ideal(schedule);
  parley::training_pipeline_options op{
      .name = name, .schedule = schedule, .configs = {parley::configs::direct()}, .memory = &space};
  op.configs.insert(op.configs.end(), beside.begin(), beside.end());
  parley::training_pipeline pipe(self, op);
  const auto peers = receivers(schedule, self.id());
  const std::uint64_t bytes = options.activation_bytes();
  steps all;
  for (std::size_t n = 1; n <= options.iterations; ++n) {
    const parley::time_ns began = self.where().precise_now();
    co_await pipe.run(stage);
    all.ns.push_back(static_cast<double>(self.where().precise_now() - began));
    const bool decided =
        std::ranges::all_of(peers, [&](parley::rank_id r) { return pipe.to(r).decision(bytes).decided; });
    if (all.decided_after == 0 && decided) all.decided_after = n;
    if (self.id() != 0 || n % options.log_interval != 0) continue;
    const double lately = mean(std::span(all.ns).last(options.log_interval));
    std::printf(" iteration %8zu/%8zu | elapsed time per iteration (ms): %.3f | idle: %.1f %% (at best %.1f %%) | %s\n",
                n, options.iterations, lately / 1e6, share_of_idle(ideal.computing_ns, lately),
                share_of_idle(ideal.computing_ns, ideal.ns), beside.empty() ? "the default" : "all configs");
    std::fflush(stdout);
  }
  for (const parley::rank_id r : peers) {
    if (beside.empty()) break;
    const parley::decision d = pipe.to(r).decision(bytes);
    std::fprintf(stderr, "%s %s: %s (%s)\n", d.op.c_str(), d.key.c_str(), d.config.c_str(), d.why.c_str());
  }
  co_return all;
}

// Prints where in a step the GPU is idle, by its own clock, over the steps after the decision.
parley::task<> tell_gaps(parley::rank& self, const gpu_stage& stage, parley::transports::cuda_space& space,
                         std::size_t in_a_step, std::size_t settled_steps) {
  // The gap before a step's first kernel does not belong to the step.
  const std::vector<double> between = co_await stage.gaps(space, in_a_step * settled_steps + 1);
  std::string by_place;
  for (std::size_t place = 1; place < in_a_step && between.size() >= in_a_step; ++place) {
    std::vector<double> here_ns;
    for (std::size_t i = place; i < between.size(); i += in_a_step) here_ns.push_back(between[i]);
    std::ranges::nth_element(here_ns, here_ns.begin() + static_cast<std::ptrdiff_t>(here_ns.size() / 2));
    by_place += ' ' + std::to_string(std::llround(here_ns[here_ns.size() / 2] / 1e3));
  }
  std::fprintf(stderr, "rank %u, medians of the gaps between a step's kernels, us:%s\n", self.id(), by_place.c_str());
}

// bench/gpu/pipelines.sh reads these figures.
void tell_figures(const steps& alone, const steps& tuned, std::size_t until, const ideal_step& ideal) {
  const std::span<const double> times(tuned.ns);
  const double untuned = mean(std::span(alone.ns).subspan(alone.ns.size() / 2));
  const double while_tuning = mean(times.first(until));
  const double settled = mean(times.subspan(until));
  report("settled_after", static_cast<double>(until), "passes");
  report("ideal_pass", ideal.ns, "ns");
  report("default_pass", untuned, "ns");
  report("pass_while_tuning", while_tuning, "ns");
  report("pass_when_decided", settled, "ns");
  std::vector<double> decided(times.begin() + static_cast<std::ptrdiff_t>(until), times.end());
  std::ranges::sort(decided);
  if (!decided.empty()) report("pass_when_decided_median", decided[decided.size() / 2], "ns");
  report("tuning_cost", 100 * (while_tuning / untuned - 1), "percent");
  report("ideal_idle", share_of_idle(ideal.computing_ns, ideal.ns), "percent");
  report("default_idle", share_of_idle(ideal.computing_ns, untuned), "percent");
  report("idle_when_decided", share_of_idle(ideal.computing_ns, settled), "percent");
}

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  const parley::pipeline_schedule schedule = options.schedule_for(self.world_size());
  const ideal_step ideal(schedule);
  gpu_stage stage(*here.gpu(), space, schedule.stages, options.activation_bytes(), options.compute_us * 1000,
                  options.ahead != 0);
  const std::array<std::byte, sizeof(unsigned)> none{};
  co_await space.copy(stage.wrong(), none);
  const steps alone = co_await train(self, "untuned", {}, stage, space);
  const steps tuned = co_await train(self, "tuned", others(), stage, space);
  const std::size_t until = co_await settled_on_all_ranks(self, tuned);
  unsigned wrong = 0;
  co_await space.copy(std::as_writable_bytes(std::span(&wrong, 1)), stage.wrong());
  const std::string rank = "rank_" + std::to_string(self.id()) + "/";
  report(rank + "decided_after", static_cast<double>(tuned.decided_after), "passes");
  co_await tell_gaps(self, stage, space, ideal.kernels, tuned.ns.size() - until);
  if (const auto* const wire = dynamic_cast<const parley::transports::cuda_link*>(&here.wire())) {
    report(rank + "staged", static_cast<double>(wire->planes().staged), "messages");
    report(rank + "ipc", static_cast<double>(wire->planes().ipc), "copies");
    report(rank + "flags_set", static_cast<double>(wire->planes().flags_set), "flags");
  }
  report(rank + "wrong", wrong, "elements");
  if (self.id() == 0) tell_figures(alone, tuned, until, ideal);
  if (wrong != 0) parley::runtime::raise({parley::errc::config_failed, std::to_string(wrong) + " elements are wrong"});
}

}  // namespace

int main(int argc, char** argv) {
  options.take(argc, argv);
  return examples::run_on_gpus(rank_main);
}
