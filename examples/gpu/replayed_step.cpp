// Data-parallel training steps that each GPU replays from a CUDA graph, the sum of the gradients over all GPUs included: NCCL, or a
// kernel that reads the other GPUs' memory. Which of them runs is agreed on while the program runs; where that changes, every rank
// captures its step anew before the same replay. Beside it the same steps enqueued one call after the other.
//
//     parley run -n 2 -- gpu_replayed_step [-b 8] [-e 16M] [-f 8] [-n 1000] [-w 20000] [-c 1] [-g 1]
//
// -b smallest size of the gradients in bytes, -e largest, -f factor from one to the next, -n steps that are timed, -w steps before them,
// in which the ranks agree. A line for each size; every weight is compared with what one process computes, unless -c 0 says not to.
#include "sums.hpp"

#include <parley/ops/replayed_calls.hpp>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using examples::device_array;
using examples::must;
using parley::ops::captured_call;
using parley::transports::cuda_stream;

examples::size_sweep options{.largest = 16 << 20, .timed = 1000, .before = 20'000};

/// Weights that shrink by what all ranks say of them.
class model {
 public:
  model(parley::job& here, parley::transports::cuda_space& space, std::size_t count)
      : gpu_(*here.gpu()), space_(space), self_(here.self()), weights_(space, count), gradients_(space, count) {}

  // Enqueues only: once, while it is captured.
  static parley::task<> step(model* m, cuda_stream s, captured_call sum) {
    m->backward(s);
    co_await sum(m->gradients_.all());
    m->update(s);
  }
  // The same, call by call: the sum is in the order of the stream on the way in, and is waited for on the way out.
  parley::task<> step_at_once(parley::ops::symmetric sums) {
    backward(stream_);
    space_.after(gradients_.bytes(), stream_);
    co_await sums.run(gradients_.all());
    update(stream_);
  }

  parley::task<> begin() {
    const std::vector<float> ones(weights_.size(), 1);
    co_await space_.copy(weights_.bytes(), std::as_bytes(std::span(ones)));
    steps_ = 0;
  }
  void count_step() noexcept { ++steps_; }
  parley::task<std::size_t> wrong() {
    std::vector<float> seen(weights_.size());
    auto ended = co_await parley::transports::reached(gpu_, stream_);
    ended.value();
    co_await space_.copy(std::as_writable_bytes(std::span(seen)), weights_.bytes());
    float right = 1;
    for (int i = 0; i < steps_; ++i) {
      float sum = 0;
      for (parley::rank_id r = 0; r < self_.world_size(); ++r) sum += right * rate(r) + term;
      right += sum;
    }
    std::size_t count = 0;
    // More than two numbers are added in whatever order a config likes.
    const float off = self_.world_size() == 2 ? 0 : 1e-5F * right;
    for (const float w : seen) count += std::abs(w - right) <= off ? 0 : 1;
    co_return count;
  }
  cuda_stream stream() const noexcept { return static_cast<cudaStream_t>(stream_); }
  std::uint64_t bytes() const noexcept { return gradients_.bytes().size(); }

 private:
  static constexpr float term = 1.0F / 1024;
  // Powers of two: what is scaled by them is exact.
  static float rate(parley::rank_id r) { return -static_cast<float>(1U << r) / 1024; }
  void backward(cuda_stream s) {
    must(examples::launch_scale(gradients_.data(), weights_.data(), rate(self_.id()), term, weights_.size(), s),
         "kernel");
  }
  void update(cuda_stream s) {
    must(examples::launch_add(weights_.data(), weights_.data(), gradients_.data(), weights_.size(), s), "kernel");
  }
  parley::transports::cuda_copies& gpu_;
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  device_array<float> weights_;
  device_array<float> gradients_;
  examples::stream stream_;
  int steps_ = 0;
};

struct outcome {
  double step_us = 0;
  std::size_t wrong = 0;
};

template <class Step>
parley::task<outcome> measure(parley::rank& self, model& m, Step one) {
  outcome seen;
  parley::time_ns began = 0;
  co_await m.begin();
  for (int i = 0; i < options.before + options.timed; ++i) {
    if (i == options.before) began = self.where().precise_now();
    co_await one();
    m.count_step();
  }
  seen.step_us = static_cast<double>(self.where().precise_now() - began) / 1e3 / options.timed;
  if (options.check != 0) seen.wrong = co_await m.wrong();
  co_return seen;
}

std::string agreed_on(parley::rank& self, const char* op, std::uint64_t bytes) {
  for (const auto& a : self.agreements()) {
    if (a.op != op) continue;
    const auto* const found = a.assigned->find(bytes);
    if (found != nullptr && found->where == parley::actors::campaign::stage::decided) return found->winner;
  }
  return "(not yet)";
}

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  parley::ops::symmetric_op op = co_await examples::sums_of_all(here, space, "gradients");
  op.configs = {parley::ops::nccl_sum(), parley::ops::kernel_sum(8), parley::ops::kernel_sum(32)};
  const auto sums = self.declare(op);
  op.name = "replayed_gradients";
  op.replayed = true;
  const auto replayed_sums = self.declare(op);
  if (self.id() == 0)
    std::printf("#%13s %12s %14s %8s  %-22s %14s %8s  %-22s %10s\n", "size (B)", "count", "replayed (us)", "#wrong",
                "config", "enqueued (us)", "#wrong", "config", "captures");
  for (std::uint64_t bytes = options.smallest; bytes <= options.largest; bytes *= options.factor) {
    model m(here, space, std::max<std::size_t>(bytes / sizeof(float), 1));
    parley::ops::replayed_calls steps(replayed_sums, *here.gpu(),
                                      [&m](cuda_stream s, captured_call sum) { return model::step(&m, s, sum); },
                                      {.bytes = m.bytes()});
    const outcome replayed = co_await measure(self, m, [&] { return steps.replay(m.stream()); });
    const outcome enqueued = co_await measure(self, m, [&] { return m.step_at_once(sums); });
    if (self.id() == 0)
      std::printf("%14zu %12zu %14.2f %8s  %-22s %14.2f %8s  %-22s %10llu\n", static_cast<std::size_t>(m.bytes()),
                  static_cast<std::size_t>(m.bytes()) / sizeof(float), replayed.step_us,
                  options.wrong(replayed.wrong).c_str(), agreed_on(self, "replayed_gradients", m.bytes()).c_str(),
                  enqueued.step_us, options.wrong(enqueued.wrong).c_str(),
                  agreed_on(self, "gradients", m.bytes()).c_str(), static_cast<unsigned long long>(steps.captures()));
    std::fflush(stdout);
    if (replayed.wrong + enqueued.wrong != 0)
      parley::runtime::raise({parley::errc::config_failed, "the weights are not those of one process"});
  }
}

}  // namespace

int main(int argc, char** argv) {
  options.options().take(argc, argv);
  parley::job_options job;
  job.settings.plan.budget_fraction = 0.5;  // this program has seconds, not days, to agree in
  return examples::run_on_gpus(rank_main, std::move(job));
}
