// One forward, one backward over several GPUs, a process and a stage each: what tuning costs a pipeline that goes on meanwhile, and how
// long it is idle. torch_pipeline.py runs the same schedule in torch.distributed.pipelining.
//
//     parley run -n 4 -- gpu_pipeline [--microbatches 8] [--passes 200] [--bytes 1048576] [--compute_us 1000] [--ahead 1] [--only ID]
//
// With --ahead 1 kernels are enqueued before the messages that they wait for are here; --only: one config beside the default.
// First passes of an op that has the default alone, then as many of one that has all configs, from its first call on. Each kernel
// looks at every element that it gets; status 1 when one is wrong.
#include <parley/bench/gpu/stage_kernel.hpp>
#include <parley/bench/keys.hpp>
#include <parley/bench/measure.hpp>
#include <parley/parley.hpp>
#include <parley/transports/cuda_link.hpp>
#include <parley/transports/cuda_runtime.hpp>
#include <parley/transports/cuda_space.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;
using kind = parley::pipeline_action::kind;

// Stage s adds 1 forward and doubles the gradient backward; the gradient of the last one's output is that output.
class gpu_stage final : public parley::training_work {
 public:
  gpu_stage(parley::transports::cuda_copies& copies, parley::transports::cuda_space& space, std::uint32_t stages,
            std::uint64_t bytes, std::uint64_t compute_ns, bool ahead)
      : copies_(copies), stream_(copies.driver().make_stream(copies.device())), wrong_(space.make(sizeof(unsigned))),
        times_(space.make(most_times * sizeof(kernel_times))), stages_(stages), bytes_(bytes), compute_ns_(compute_ns),
        ahead_(ahead) {
    // CUDA loads a kernel where it is first launched, and waits for all streams then: also for one that waits for a message.
    launch({});
  }
  gpu_stage(const gpu_stage&) = delete;
  gpu_stage& operator=(const gpu_stage&) = delete;
  ~gpu_stage() override { copies_.driver().destroy(stream_); }
  std::span<std::byte> wrong() const noexcept { return wrong_->bytes(); }
  bool waits_on_device() const override { return ahead_; }

  /// When a kernel began and ended, by its GPU's clock.
  struct kernel_times {
    std::uint64_t began = 0;
    std::uint64_t ended = 0;
  };
  /// Of the last `count` kernels: how long the GPU had none before each.
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
    stage_step step;
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
    if (ahead_ && !in.empty() && copies_.wait_on(in, stream_) != parley::errc::none) give_up(copies_.driver().fault());
    step.times =
        reinterpret_cast<std::uint64_t*>(times_->bytes().data() + (launched_++ % most_times) * sizeof(kernel_times));
    launch(step);
    // The kernel goes on by itself: what is sent from here waits for it on the GPU.
    for (const std::span<const std::byte> part : std::array<std::span<const std::byte>, 2>{in, out}) {
      if (!part.empty() && copies_.after(part, stream_) != parley::errc::none) give_up(copies_.driver().fault());
    }
    co_return;
  }

 private:
  void launch(const stage_step& step) {
    if (launch_stage(step, copies_.device(), static_cast<cudaStream_t>(stream_)) != cudaSuccess)
      give_up("no kernel starts");
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

struct passes {
  std::vector<double> ns;
  std::size_t decided_after = 0;  // 0: not
};

// `only`: the default and the one of that name.
std::vector<parley::config_ptr> catalogue(std::size_t first, const std::string& only = {}) {
  std::vector<parley::config_ptr> all{parley::direct(),
                                      parley::chunked(256 << 10, 4),
                                      parley::chunked(1 << 20, 2),
                                      parley::put(),
                                      parley::put(256 << 10, 4),
                                      parley::get(),
                                      parley::get(256 << 10, 4),
                                      parley::ops::nccl()};
  all.resize(first);
  if (!only.empty()) std::erase_if(all, [&](const auto& c) { return c != all.front() && c->id() != only; });
  return all;
}

parley::task<passes> run_passes(parley::rank& self, const std::string& name, std::vector<parley::config_ptr> configs,
                                gpu_stage& stage, parley::transports::cuda_space& space, const arguments& given) {
  const auto schedule =
      parley::one_forward_one_backward(self.world_size(), static_cast<std::uint32_t>(given.number("microbatches", 8)));
  auto pipe = self.declare(
      parley::training_pipeline{.name = name, .schedule = schedule, .configs = std::move(configs), .memory = &space});
  passes all;
  const auto count = static_cast<std::size_t>(given.number("passes", 200));
  for (std::size_t n = 1; n <= count; ++n) {
    const std::int64_t start = now_ns();
    co_await pipe.run(stage);
    all.ns.push_back(double(now_ns() - start));
    if (all.decided_after == 0 && keys_of(self, name).undecided == 0) all.decided_after = n;
  }
  co_return all;
}

double mean(std::span<const double> of) {
  double sum = 0;
  for (const double x : of) sum += x;
  return of.empty() ? 0 : sum / double(of.size());
}

parley::task<int> measure(parley::job& here, const arguments& given) {
  parley::rank& self = here.self();
  parley::transports::cuda_space& space = *here.gpu_memory();
  const auto bytes = static_cast<std::uint64_t>(given.number("bytes", 1 << 20));
  const double compute_ns = 1e3 * double(given.number("compute_us", 1000));
  gpu_stage stage(*here.gpu(), space, self.world_size(), bytes, static_cast<std::uint64_t>(compute_ns),
                  given.number("ahead", 1) != 0);
  const std::array<std::byte, sizeof(unsigned)> none{};
  co_await space.copy(stage.wrong(), none);
  const passes alone = co_await run_passes(self, "untuned", catalogue(1), stage, space, given);
  const passes tuned = co_await run_passes(self, "tuned", catalogue(8, given.text("only", "")), stage, space, given);
  unsigned wrong = 0;
  co_await space.copy(std::as_writable_bytes(std::span(&wrong, 1)), stage.wrong());
  const std::string rank = "rank_" + std::to_string(self.id()) + "/";
  for (const auto& e : self.agreements()) {
    if (e.op != "tuned" || e.sender != self.id()) continue;
    for (const auto& c : e.assigned->campaigns()) {
      std::fprintf(stderr, "rank %u to %u, %llu B: %s (%s)\n", e.sender, e.receiver,
                   static_cast<unsigned long long>(c->bucket.largest_bytes()), c->winner.c_str(), c->why.c_str());
    }
  }
  report(rank + "decided_after", double(tuned.decided_after), "passes");
  const auto in_a_pass = static_cast<std::size_t>(2 * given.number("microbatches", 8));
  const std::size_t settled_passes = tuned.ns.size() - tuned.decided_after;
  // The one before a pass's first kernel is no part of it.
  const std::vector<double> between = co_await stage.gaps(space, in_a_pass * settled_passes + 1);
  std::string by_place;
  for (std::size_t place = 1; place < in_a_pass && between.size() >= in_a_pass; ++place) {
    std::vector<double> here_ns;
    for (std::size_t i = place; i < between.size(); i += in_a_pass) here_ns.push_back(between[i]);
    std::ranges::nth_element(here_ns, here_ns.begin() + static_cast<std::ptrdiff_t>(here_ns.size() / 2));
    by_place += ' ' + std::to_string(std::llround(here_ns[here_ns.size() / 2] / 1e3));
  }
  std::fprintf(stderr, "rank %u, medians of the gaps between a pass's kernels, us:%s\n", self.id(), by_place.c_str());
  if (const auto* const wire = dynamic_cast<const parley::transports::cuda_link*>(&here.wire())) {
    report(rank + "staged", double(wire->planes().staged), "messages");
    report(rank + "ipc", double(wire->planes().ipc), "copies");
    report(rank + "flags_set", double(wire->planes().flags_set), "flags");
  }
  report(rank + "wrong", wrong, "elements");
  if (self.id() == 0) {
    const auto microbatches = double(given.number("microbatches", 8));
    const double computing = 2 * microbatches * compute_ns;
    const double ideal = computing + 2 * double(self.world_size() - 1) * compute_ns;
    const std::size_t until = tuned.decided_after == 0 ? tuned.ns.size() : tuned.decided_after;
    const std::span<const double> times(tuned.ns);
    const double untuned = mean(std::span(alone.ns).subspan(alone.ns.size() / 2));
    const double while_tuning = mean(times.first(until));
    const double settled = mean(times.subspan(until));
    report("ideal_pass", ideal, "ns");
    report("default_pass", untuned, "ns");
    report("pass_while_tuning", while_tuning, "ns");
    report("pass_when_decided", settled, "ns");
    std::vector<double> decided(times.begin() + static_cast<std::ptrdiff_t>(until), times.end());
    std::ranges::sort(decided);
    if (!decided.empty()) report("pass_when_decided_median", decided[decided.size() / 2], "ns");
    report("tuning_cost", 100 * (while_tuning / untuned - 1), "percent");
    report("ideal_idle", 100 * (1 - computing / ideal), "percent");
    report("default_idle", 100 * (1 - computing / untuned), "percent");
    report("idle_when_decided", settled == 0 ? 0 : 100 * (1 - computing / settled), "percent");
  }
  co_return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  if (!parley::transports::from_environment()) give_up("start it by: parley run -n 4 -- gpu_pipeline");
  parley::ops::job_options options;
  const auto gpu = parley::transports::cuda_runtime();
  if (!gpu) give_up(gpu.reason().what());
  options.gpu = *gpu;
  options.settings.policy = parley::actors::tuning_policy::online;
  int status = 0;
  const int ended = parley::run(
      [&](parley::job& here) { status = parley::runtime::run(here.loop(), measure(here, given)); }, options);
  return ended != 0 ? ended : status;
}
