// The heterogeneous all-reduce on two GPUs or more, a process each: NCCL, and a kernel of parley's own that some ranks may lack.
//
//     parley run -n 2 -- gpu_sums [--mask RANK] [--bytes N] [--calls N] [--kill RANK | --fault RANK] [--at CALL]
//
// Compares every result with the sum it must be, prints what was agreed on, and ends with status 1 when one is wrong.
#include <parley/bench/measure.hpp>
#include <parley/ops/gpu_sum.hpp>
#include <parley/parley.hpp>
#include <parley/transports/cuda_runtime.hpp>
#include <parley/transports/cuda_space.hpp>
#include <parley/transports/nccl_runtime.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace parley::bench;

struct wishes {
  std::uint64_t bytes = 0;
  std::int64_t calls = 0;
  std::int64_t mask = -1;
  std::int64_t dies = -1;    // this rank, at this call
  std::int64_t faults = -1;  // or a kernel of its own writes where nothing is
};

float value_of(parley::rank_id rank, std::int64_t call, std::size_t i) {
  return static_cast<float>((rank + 1) * static_cast<std::size_t>(1 + call % 7) + i % 1'000);
}

parley::task<int> sums(parley::job& here, wishes w) {
  parley::rank& self = here.self();
  auto& copies = *here.gpu();
  parley::transports::cuda_space& space = *here.gpu_memory();
  const auto source = std::make_shared<parley::ops::gpu_world_source>(
      *parley::transports::nccl_runtime().value(), copies,
      parley::ops::gpu_world_source::options{
          .members = self.world_size(), .place = self.id(), .kernel_bytes = std::size_t{16} << 20U});
  auto world = co_await parley::ops::connect_all(self, *source, "gradients");
  parley::ops::symmetric_op op;
  op.name = "gradients";
  op.configs = {parley::ops::nccl_sum(), parley::ops::kernel_sum(8), parley::ops::kernel_sum(32)};
  op.over = world;
  op.rehearse = source;
  op.memory = &space;
  op.timeout_ns = 5'000'000'000;
  if (w.mask == self.id()) op.capable = [](parley::rank_id) { return std::vector<bool>{true, false, false}; };
  auto all_reduce = self.declare(op);
  const auto block = space.make(w.bytes);
  std::vector<float> values(w.bytes / sizeof(float));
  const auto host = std::as_writable_bytes(std::span(values));
  std::int64_t wrong = 0;
  std::vector<double> times;
  for (std::int64_t call = 0; call < w.calls; ++call) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(self.id(), call, i);
    co_await space.copy(block->bytes(), host);
    if (w.dies == call) std::raise(SIGKILL);
    if (w.faults == call) {
      const auto stream = copies.driver().make_stream(copies.device());
      static_cast<void>(
          copies.driver().copy_by_kernel(reinterpret_cast<void*>(0x1000), block->bytes().data(), 64, 1, stream));
    }
    const std::int64_t start = now_ns();
    co_await all_reduce.run(block->bytes());
    times.push_back(double(now_ns() - start));
    co_await space.copy(host, block->bytes());
    for (std::size_t i = 0; i < values.size(); ++i) {
      float expected = 0;
      for (parley::rank_id r = 0; r < self.world_size(); ++r) expected += value_of(r, call, i);
      if (values[i] != expected) {
        ++wrong;
        break;
      }
    }
  }
  const std::size_t tail = times.size() / 4;
  if (self.id() == 0) {
    for (const auto& e : self.agreements()) {
      if (e.op != "gradients") continue;
      const auto* const c = e.assigned->find(w.bytes);
      std::printf("%llu B: agreed on %s (%s)%s\n", static_cast<unsigned long long>(w.bytes),
                  c == nullptr ? "nothing" : c->winner.c_str(), c == nullptr ? "" : c->why.c_str(),
                  e.no_common_config.c_str());
    }
    std::printf("%lld calls, %lld wrong; the last quarter took %.1f us each, median\n", static_cast<long long>(w.calls),
                static_cast<long long>(wrong),
                median(std::vector<double>(times.end() - static_cast<std::ptrdiff_t>(tail), times.end())) / 1e3);
  }
  co_return wrong == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const arguments given(argc, argv);
  const auto place = parley::transports::from_environment();
  if (!place) give_up("start it by: parley run -n 2 -- gpu_sums");
  wishes w;
  w.bytes = static_cast<std::uint64_t>(given.number("bytes", 65'536));
  w.calls = given.number("calls", 2'000);
  w.mask = given.number("mask", -1);
  const std::int64_t when = given.number("at", w.calls / 2);
  if (given.number("kill", -1) == place->rank) w.dies = when;
  if (given.number("fault", -1) == place->rank) w.faults = when;
  parley::ops::job_options options;
  const auto gpu = parley::transports::cuda_runtime();
  if (!gpu) give_up(gpu.reason().what());
  options.gpu = *gpu;
  options.settings.plan.budget_fraction = 0.5;
  int status = 0;
  const int ended =
      parley::run([&](parley::job& here) { status = parley::runtime::run(here.loop(), sums(here, w)); }, options);
  return ended != 0 ? ended : status;
}
