// The heterogeneous all-reduce on GPUs: NCCL, and parley's own kernels, which some ranks may lack. Either one process
// per rank, which get the host's GPUs in turn, or all ranks in one process. If ranks share a GPU or a process, only
// gathered sums are available.
//
//     parley run -n 2 -- gpu_sums [--mask RANK] [--bytes N] [--calls N] [--kill RANK | --fault RANK] [--at CALL]
//     gpu_sums --one-process 8 [--mask RANK] …
//
// The program makes at least CALLS and at most 20 times CALLS calls until rank 0 knows the agreed config, and then
// times CALLS / 4 more. It compares every result with the expected sum, except for the first number, by which rank 0
// signals the others. It prints the agreed config and the outcome of each config. The exit status is 1 if a sum is
// wrong or nothing was agreed on.
#include <parley/bench/measure.hpp>
#include <parley/cuda_runtime.hpp>
#include <parley/cuda_space.hpp>
#include <parley/gpu_sum.hpp>
#include <parley/nccl_runtime.hpp>
#include <parley/ops/job/one_process.hpp>
#include <parley/parley.hpp>
#include <parley/transports/launch/environment.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace parley::bench;

struct wishes {
  std::uint64_t bytes = 0;
  std::int64_t calls = 0;
  std::int64_t at = 0;       // the call at which `dies` or `faults` acts
  std::int64_t mask = -1;    // rank that lacks some configs; -1: none
  std::int64_t dies = -1;    // rank that kills itself
  std::int64_t faults = -1;  // rank whose kernel writes to an invalid address
};

float value_of(parley::rank_id rank, std::int64_t call, std::size_t i) {
  return static_cast<float>((rank + 1) * static_cast<std::size_t>(1 + call % 7) + i % 1'000);
}

parley::ops::gpu_world_source::options ways() {
  parley::ops::gpu_world_source::options with{.kernel_bytes = std::size_t{16} << 20U};
  if (const auto nccl = parley::transports::nccl_runtime()) {
    with.nccl = *nccl;
  } else {
    with.no_nccl = nccl.reason().text();
  }
  return with;
}

void print(const parley::ops::decision& d, const wishes& w) {
  std::printf("%llu B: agreed on %s (%s)\n", static_cast<unsigned long long>(w.bytes),
              d.decided ? d.config.c_str() : "nothing", d.why.c_str());
  for (const auto& e : d.evidence)
    std::printf("  %s: %s, %u times, %.1f us%s%s\n", e.config.c_str(), e.status.c_str(), e.repetitions, e.time_ns / 1e3,
                e.detail.empty() ? "" : ", ", e.detail.c_str());
}

parley::task<> sums(parley::rank* who, parley::transports::cuda_copies* on, parley::transports::cuda_space* memory,
                    wishes w, bool* fine) {
  parley::rank& self = *who;
  parley::transports::cuda_copies& copies = *on;
  parley::transports::cuda_space& space = *memory;
  const auto source = std::make_shared<parley::ops::gpu_world_source>(self, "gradients", copies, ways());
  auto world = co_await source->connect_all();
  parley::ops::symmetric_options op;
  op.name = "gradients";
  op.configs = parley::ops::default_first(
      *world, {parley::configs::nccl_sum(), parley::configs::nccl_graph_sum(), parley::configs::kernel_sum(8),
               parley::configs::kernel_sum(32), parley::configs::gathered_sum(8), parley::configs::gathered_sum(32)});
  op.communicator = world;
  op.rehearse = source;
  op.memory = &space;
  op.timeout = std::chrono::seconds(5);
  if (w.mask == self.id()) {
    op.can_run = [all = op.configs](parley::rank_id) {
      std::vector<bool> can;
      for (const auto& c : all)
        can.push_back(!c->id().starts_with("kernel_sum") && c->id() != parley::configs::gathered_sum(32)->id());
      return can;
    };
  }
  parley::ops::symmetric all_reduce(self, op);
  const auto block = space.make(w.bytes);
  std::vector<float> values(w.bytes / sizeof(float));
  const auto host = std::as_writable_bytes(std::span(values));
  std::int64_t wrong = 0;
  std::vector<double> times;
  std::int64_t known_at = -1;
  std::int64_t call = 0;
  const auto goes_on = [&] {
    return known_at < 0 ? call < 20 * w.calls : call < std::max(w.calls, known_at + w.calls / 4);
  };
  for (; goes_on(); ++call) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(self.id(), call, i);
    // Rank 0 signals that it knows the agreed config. The sum brings the signal to all ranks in the same call.
    values[0] = self.id() == 0 && all_reduce.decision(w.bytes).decided ? 1 : 0;
    co_await space.copy(block->bytes(), host);
    if (w.dies == self.id() && w.at == call) std::raise(SIGKILL);
    if (w.faults == self.id() && w.at == call) {
      const auto stream = copies.driver().make_stream(copies.device());
      static_cast<void>(
          copies.driver().copy_by_kernel(reinterpret_cast<void*>(0x1000), block->bytes().data(), 64, 1, stream));
    }
    const std::int64_t start = now_ns();
    co_await all_reduce.run(block->bytes());
    times.push_back(double(now_ns() - start));
    co_await space.copy(host, block->bytes());
    if (values[0] != 0 && values[0] != 1)
      parley::runtime::raise(
          {parley::errc::config_failed, "the sum of a 1 and of zeros is " + std::to_string(values[0])});
    if (values[0] == 1 && known_at < 0) known_at = call;
    for (std::size_t i = 1; i < values.size(); ++i) {
      float expected = 0;
      for (parley::rank_id r = 0; r < self.world_size(); ++r) expected += value_of(r, call, i);
      if (values[i] != expected) {
        ++wrong;
        break;
      }
    }
  }
  const auto tail = static_cast<std::size_t>(std::max<std::int64_t>(1, w.calls / 4));
  if (self.id() == 0) {
    print(all_reduce.decision(w.bytes), w);
    std::printf("%lld calls, %lld wrong; the last %zu took %.1f us each, median\n", static_cast<long long>(call),
                static_cast<long long>(wrong), tail,
                median(std::vector<double>(times.end() - static_cast<std::ptrdiff_t>(tail), times.end())) / 1e3);
  }
  *fine = *fine && wrong == 0 && known_at >= 0;
}

int in_one_process(std::int64_t ranks, wishes w, parley::ops::rank_settings settings,
                   parley::transports::cuda_driver* gpu) {
  bool fine = true;
  try {
    parley::ops::one_process job(
        {.ranks = static_cast<parley::rank_id>(ranks), .settings = std::move(settings), .gpu = gpu});
    job.run([&](parley::rank& self) { return sums(&self, job.gpu(self.id()), job.gpu_memory(self.id()), w, &fine); });
  } catch (const parley::runtime::failure& f) {
    give_up(f.reason().what());
  }
  return fine ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const std::int64_t together = given.number("one-process", 0);
  if (together == 0 && !parley::transports::from_environment())
    give_up("start it by: parley run -n 2 -- gpu_sums, or with --one-process RANKS");
  wishes w;
  w.bytes = static_cast<std::uint64_t>(given.number("bytes", 65'536));
  if (w.bytes < 8) give_up("--bytes: at least 8, the first four of which are not compared");
  w.calls = std::max<std::int64_t>(given.number("calls", 2'000), 1);
  w.at = given.number("at", w.calls / 2);
  w.mask = given.number("mask", -1);
  w.dies = given.number("kill", -1);
  w.faults = given.number("fault", -1);
  parley::ops::job_options options;
  const auto gpu = parley::transports::cuda_runtime();
  if (!gpu) give_up(gpu.reason().what());
  options.gpu = *gpu;
  options.settings.plan.budget_fraction = 0.5;
  if (together != 0) return in_one_process(together, w, options.settings, *gpu);
  bool fine = true;
  const auto program = [&](parley::job& here) {
    parley::runtime::run(here.loop(), sums(&here.self(), here.gpu(), here.gpu_memory(), w, &fine));
  };
  const int ended = parley::run(program, options);
  return ended != 0 || fine ? ended : 1;
}
