// Data-parallel training steps that each GPU replays from a CUDA graph, which includes the sum of the gradients over
// all GPUs. NCCL or a kernel that reads the other GPUs' memory makes the sum. The ranks agree on one of them while
// the program runs; when the config changes, every rank captures its step again before the same replay. For
// comparison the program also enqueues the same steps call by call.
//
//     parley run -n 2 -- gpu_replayed_step [-b 8] [-e 16M] [-f 8] [-n 1000] [-w 20000] [-c 1] [-g 1] [--slow-first]
//
// -b smallest size of the gradients in bytes, -e largest, -f factor from one size to the next, -n timed steps, -w
// steps before them, in which the ranks agree. With --slow-first the default is a kernel with one block, so that
// large sums are certain to be captured again. Each size prints a line. Unless -c is 0, every weight is compared with
// the value that one process computes. This reveals a wrong sum in any step: each step adds different numbers, all
// numbers are exact, and an error stays.
#include "sums.hpp"

#include <parley/cuda_space.hpp>
#include <parley/replayed_calls.hpp>
#include <parley/symmetric.hpp>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using examples::device_array;
using examples::must;
using parley::ops::captured_call;
using parley::transports::cuda_stream;

examples::size_sweep options{.largest = 16 << 20, .timed = 1000, .before = 20'000};
bool slow_first = false;

/// Weights to which each step adds the sum of all ranks' gradients.
class model {
 public:
  model(parley::job& here, parley::transports::cuda_space& space, std::size_t count)
      : gpu_(*here.gpu()), space_(space), self_(here.self()), weights_(space, count), gradients_(space, count),
        step_(space, 1) {}

  // Only enqueues; called once for each capture.
  static parley::task<> step(model* m, cuda_stream s, captured_call sum) {
    m->backward(s);
    co_await sum(m->gradients_.all());
    m->update(s);
  }
  // The same step, call by call: the sum is ordered after `backward` on the stream, and the host waits for its end.
  parley::task<> step_at_once(parley::ops::symmetric sums) {
    backward(stream_);
    space_.after(gradients_.bytes(), stream_);
    co_await sums.run(gradients_.all());
    update(stream_);
  }

  parley::task<> begin() {
    const std::vector<float> ones(weights_.size(), 1);
    co_await space_.copy(weights_.bytes(), std::as_bytes(std::span(ones)));
    const std::array<unsigned, 1> none{};
    co_await space_.copy(step_.bytes(), std::as_bytes(std::span(none)));
    steps_ = 0;
  }
  void count_step() noexcept { ++steps_; }
  parley::task<std::size_t> wrong() {
    std::vector<float> seen(weights_.size());
    auto ended = co_await parley::transports::reached(gpu_, stream_);
    ended.value();
    co_await space_.copy(std::as_writable_bytes(std::span(seen)), weights_.bytes());
    std::array<float, examples::batch_period> right{};
    for (unsigned i = 0; i < right.size(); ++i) right[i] = weight_of(i);
    std::size_t count = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) count += seen[i] == right[i % right.size()] ? 0 : 1;
    co_return count;
  }
  cuda_stream stream() const noexcept { return static_cast<cudaStream_t>(stream_); }
  std::uint64_t bytes() const noexcept { return gradients_.bytes().size(); }

 private:
  // In each pair of ranks, one adds its weight to its gradient and the other subtracts it. Equal weights cancel out,
  // and a wrong weight on one rank spreads to all.
  float rate() const {
    const parley::rank_id other = self_.id() ^ 1U;
    if (other >= self_.world_size()) return 0;
    return self_.id() < other ? 1 : -1;
  }
  // Weight i as one process computes it. All values are multiples of 1/2 below about ten thousand, so floats are
  // exact in any order of summing.
  float weight_of(unsigned i) const {
    float w = 1;
    for (unsigned step = 0; step < static_cast<unsigned>(steps_) % examples::batch_period; ++step) {
      for (parley::rank_id r = 0; r < self_.world_size(); ++r)
        w += static_cast<float>((5 * r + 3 * step + i) % examples::batch_period) - 0.5F * (examples::batch_period - 1);
    }
    return w;
  }
  void backward(cuda_stream s) {
    must(examples::launch_gradients(gradients_.data(), weights_.data(), {rate(), self_.id()}, step_.data(),
                                    weights_.size(), s),
         "kernel");
  }
  void update(cuda_stream s) {
    must(examples::launch_update(weights_.data(), gradients_.data(), step_.data(), weights_.size(), s), "kernel");
  }
  parley::transports::cuda_copies& gpu_;
  parley::transports::cuda_space& space_;
  parley::rank& self_;
  device_array<float> weights_;
  device_array<float> gradients_;
  device_array<unsigned> step_;  // number of steps so far, for the kernels
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

std::string agreed_on(const parley::symmetric& sums, std::uint64_t bytes) {
  const parley::decision d = sums.decision(bytes);
  return d.decided ? d.config : "(not yet)";
}

parley::task<> rank_main(parley::job& here, parley::transports::cuda_space& space) {
  parley::rank& self = here.self();
  parley::ops::symmetric_options op = co_await examples::sums_of_all(here, space, "gradients");
  op.configs = {parley::configs::nccl_sum(), parley::configs::kernel_sum(8), parley::configs::kernel_sum(32)};
  if (slow_first) op.configs.insert(op.configs.begin(), parley::configs::kernel_sum(1));
  const parley::ops::symmetric sums(self, op);
  op.name = "replayed_gradients";
  op.replayed = true;
  const parley::ops::symmetric replayed_sums(self, op);
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
                  options.wrong(replayed.wrong).c_str(), agreed_on(replayed_sums, m.bytes()).c_str(), enqueued.step_us,
                  options.wrong(enqueued.wrong).c_str(), agreed_on(sums, m.bytes()).c_str(),
                  static_cast<unsigned long long>(steps.captures()));
    std::fflush(stdout);
    if (replayed.wrong + enqueued.wrong != 0)
      parley::runtime::raise({parley::errc::config_failed, "the weights are not those of one process"});
  }
}

}  // namespace

int main(int argc, char** argv) {
  options.options().flag("--slow-first", slow_first).take(argc, argv);
  parley::job_options job;
  job.settings.plan.budget_fraction = 0.5;  // the program has seconds, not days, to agree
  return examples::run_on_gpus(rank_main, std::move(job));
}
